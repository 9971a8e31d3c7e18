"""``neuron-plugin explain``: why a pod that asks for Neuron fits a node or does not."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.parse
import urllib.request
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from neuron_plugin.cli.command import CommandError, Exit, Subparsers, UsageError, add_command
from neuron_plugin.cli.configuration import settings_here
from neuron_plugin.cli.kubeconfig import add_kubeconfig_flag, kubeconfig_of
from neuron_plugin.cli.output import Form, add_output_flag, document
from neuron_plugin.inspection.text import printable
from neuron_plugin.instance_file import load_catalogue

if TYPE_CHECKING:
    from neuron_plugin.extender.explain import Explanation

EXAMPLES = """
neuron-plugin explain training-0
neuron-plugin explain ml/training-0 --kubeconfig ~/.kube/config -o json
neuron-plugin explain training-0 --extender http://127.0.0.1:12345
"""

VERSION = 1
_TIMEOUT_SECONDS = 10.0


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "explain",
        run,
        summary="say for each node why a pod fits it or not",
        description=(
            "Say for each node which set a pod would get there, or what it lacks and who holds the sets in its way. "
            "Asks a running extender with --extender, and otherwise works it out from the API server, which takes some "
            "seconds: whether a node's plugin still renews its Lease shows only then."
        ),
        examples=EXAMPLES,
    )
    parser.add_argument("pod", metavar="[NAMESPACE/]POD", help="the pod; namespace default when none is given")
    parser.add_argument(
        "--extender", metavar="URL", default="", help="ask this extender, such as http://127.0.0.1:12345"
    )
    add_kubeconfig_flag(parser)
    parser.add_argument("--instance-types", metavar="FILE", type=Path, help="YAML file of further instance types")
    parser.add_argument(
        "--lease-namespace",
        metavar="TEXT",
        help="namespace of the nodes' Leases (default: that of this pod's daemon, or kube-system); empty: do not look",
    )
    add_output_flag(parser)


def run(arguments: Namespace) -> int:
    """Print the explanation."""
    namespace, _, name = arguments.pod.rpartition("/")
    if not name or "/" in namespace:
        raise UsageError(f"the pod is {arguments.pod!r}, expected POD or NAMESPACE/POD")
    form = Form(arguments.output)
    if arguments.extender:
        answer = _ask_extender(arguments.extender, namespace or "default", name, form)
        print(answer if form is Form.TEXT else _document(form, json.loads(answer)), end="")
        return Exit.FINE
    found = asyncio.run(_work_out(arguments, namespace or "default", name))
    print(_text(found) if form is Form.TEXT else _document(form, msgspec.to_builtins(found)), end="")
    return Exit.FINE


def _document(form: Form, found: Mapping[str, object]) -> str:
    return document(form, {"version": VERSION, **found})


def _ask_extender(url: str, namespace: str, name: str, form: Form) -> str:
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"--extender is {url!r}, expected it to begin with http:// or https://")
    asked = form if form is Form.TEXT else Form.JSON
    path = f"/explain/{urllib.parse.quote(namespace)}/{urllib.parse.quote(name)}?format={asked}"
    try:
        with urllib.request.urlopen(url.rstrip("/") + path, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310 - checked above
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            raise CommandError(f"{url}: {error.read(500).decode(errors='replace').strip()}") from None
    except (urllib.error.URLError, TimeoutError) as error:
        raise CommandError(
            f"{url} does not answer: {getattr(error, 'reason', error)}; is the extender there?"
        ) from None


async def _work_out(arguments: Namespace, namespace: str, name: str) -> Explanation:
    from neuron_plugin.cluster import (
        ClusterError,
        connect,
    )
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


def _text(found: Explanation) -> str:
    from neuron_plugin.extender.explain import explain_text

    return "".join(f"{printable(line)}\n" for line in explain_text(found).splitlines())
