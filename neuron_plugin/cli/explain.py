"""``neuron-plugin explain``: why a pod that asks for Neuron fits a node or does not."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.parse
import urllib.request
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

import msgspec

from neuron_plugin.cli.command import CommandError, Exit, Form, UsageError, add_output_flag, plain, server_url, show
from neuron_plugin.cli.target import add_cluster_flags, kubeconfig_of, settings_here
from neuron_plugin.instance_file import load_catalogue

if TYPE_CHECKING:
    from neuron_plugin.extender.explain import Explanation

DESCRIPTION = """\
Say for each node which set a pod would get there, or what it lacks and who holds the sets in its
way. Asks a running extender with --extender, and otherwise works it out from the API server, which
takes some seconds: whether a node's plugin still renews its Lease shows only then."""

EXAMPLES = """
neuron-plugin explain training-0
neuron-plugin explain ml/training-0 --kubeconfig ~/.kube/config -o json
neuron-plugin explain training-0 --extender http://127.0.0.1:12345
"""

VERSION = 1
_TIMEOUT_SECONDS = 10.0


def add_flags(parser: ArgumentParser) -> None:
    """The pod, and what to ask."""
    parser.add_argument("pod", metavar="[NAMESPACE/]POD", help="the pod; namespace default when none is given")
    add_cluster_flags(parser)
    add_output_flag(parser)


def run(arguments: Namespace) -> int:
    """Print the explanation."""
    namespace, _, name = arguments.pod.rpartition("/")
    if not name or "/" in namespace:
        raise UsageError(f"the pod is {arguments.pod!r}, expected POD or NAMESPACE/POD")
    namespace = namespace or "default"
    if arguments.extender:
        url, form = server_url("--extender", arguments.extender), Form.TEXT
        if arguments.output != Form.TEXT:
            form = Form.JSON
        path = f"/explain/{urllib.parse.quote(namespace)}/{urllib.parse.quote(name)}?format={form}"
        try:
            with urllib.request.urlopen(url.rstrip("/") + path, timeout=_TIMEOUT_SECONDS) as page:  # noqa: S310 - HTTP
                answer = str(page.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                raise CommandError(f"{url}: {error.read(500).decode(errors='replace').strip()}") from None
        except (urllib.error.URLError, TimeoutError) as error:
            why = getattr(error, "reason", error)
            raise CommandError(f"{url} does not answer: {why}; is the extender there?") from None
        found, text = ({}, answer) if form is Form.TEXT else (json.loads(answer), "")
    else:
        from neuron_plugin.extender.explain import explain_text

        explanation = asyncio.run(_work_out(arguments, namespace, name))
        found, text = msgspec.to_builtins(explanation), explain_text(explanation)
    show(arguments.output, {"version": VERSION, **found}, plain(*text.splitlines()))
    return Exit.SUCCESS


async def _work_out(arguments: Namespace, namespace: str, name: str) -> Explanation:
    from neuron_plugin.cluster import ClusterError, connect
    from neuron_plugin.extender.explain import explain, find_pod
    from neuron_plugin.extender.informers import survey

    here = settings_here()
    types = load_catalogue(arguments.instance_types or here.instance_types)
    leases = here.lease_namespace if arguments.lease_namespace is None else arguments.lease_namespace
    try:
        async with await connect(kubeconfig_of(arguments.kubeconfig or here.kubeconfig)) as api:
            state = await survey(api, types, lease_namespace=leases)
    except ClusterError as error:
        raise CommandError(str(error)) from None
    record = find_pod(state, namespace, name)
    if record is None:
        raise CommandError(f"no live pod {namespace}/{name} that asks for Neuron: check the name and the namespace")
    return explain(state, record)
