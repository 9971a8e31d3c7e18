"""``neuron-plugin explain``: why a pod that asks for Neuron fits a node or does not."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.parse
import urllib.request
from argparse import ArgumentParser, Namespace
from collections import defaultdict

import msgspec

from neuron_plugin.cli.command import CommandError, Exit, UsageError, add_output_flag, plain, server_url, show
from neuron_plugin.cli.target import add_cluster_flags, kubeconfig_of, settings_here
from neuron_plugin.cluster import ApiRequest, ClusterError, connect, pages, send
from neuron_plugin.extender.explain import Explanation, explain, explain_text, find_pod, with_node_rules
from neuron_plugin.extender.informers import survey, volumes_of
from neuron_plugin.extender.node_rules import NODE_RULES, POD_RULES, NodeUse
from neuron_plugin.instance_file import load_catalogue

DESCRIPTION = """\
Say for each node which set a pod would get there, or what it lacks and who holds the sets in its
way. Nodes that give the same answer are shown once and counted; --node shows one in full.

Works it out from the API server, which takes some seconds: whether a node's plugin still renews its
Lease shows only then. Cordon, taints, nodeSelector, node affinity, volumes, ports, CPU, memory and other
resources are looked at, too, and what is not looked at is named. With --extender a running extender is
asked, which knows Neuron alone."""

EXAMPLES = """
neuron-plugin explain training-0
neuron-plugin explain training-0 --node worker-1
neuron-plugin explain ml/training-0 --kubeconfig ~/.kube/config -o json
neuron-plugin explain training-0 --extender http://127.0.0.1:12345
"""

VERSION = 1
PAGE_SECONDS = 30.0
_TIMEOUT_SECONDS = 10.0


def add_flags(parser: ArgumentParser) -> None:
    """The pod, and what to ask."""
    parser.add_argument("pod", metavar="[NAMESPACE/]POD", help="the pod; namespace default when none is given")
    nodes = "only this node, with all that is in the way there; can be given several times"
    parser.add_argument("--node", metavar="NODE", action="append", default=[], help=nodes)
    add_cluster_flags(parser)
    add_output_flag(parser)


def run(arguments: Namespace) -> int:
    """Print the explanation."""
    namespace, _, name = arguments.pod.rpartition("/")
    if not name or "/" in namespace:
        raise UsageError(f"the pod is {arguments.pod!r}, expected POD or NAMESPACE/POD")
    namespace = namespace or "default"
    if arguments.extender:
        found = _asked(server_url("--extender", arguments.extender), namespace, name)
    else:
        found = asyncio.run(_work_out(arguments, namespace, name))
    if missing := sorted({*arguments.node} - {node.node for node in found.nodes}) if found.nodes else []:
        raise CommandError(f"there is no node {missing[0]}: see kubectl get nodes")
    if arguments.node:
        found = msgspec.structs.replace(found, nodes=tuple(node for node in found.nodes if node.node in arguments.node))
    lines = plain(*explain_text(found, arguments.node).splitlines())
    show(arguments.output, {"version": VERSION, **msgspec.to_builtins(found)}, lines)
    return Exit.SUCCESS


def _asked(url: str, namespace: str, name: str) -> Explanation:
    path = f"/explain/{urllib.parse.quote(namespace)}/{urllib.parse.quote(name)}?format=json"
    try:
        with urllib.request.urlopen(url.rstrip("/") + path, timeout=_TIMEOUT_SECONDS) as page:  # noqa: S310 - HTTP
            return msgspec.json.decode(page.read(), type=Explanation)
    except urllib.error.HTTPError as error:
        with error:
            raise CommandError(f"{url}: {error.read(500).decode(errors='replace').strip()}") from None
    except (urllib.error.URLError, TimeoutError) as error:
        why = getattr(error, "reason", error)
        raise CommandError(f"{url} does not answer: {why}; is the extender there?") from None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise CommandError(f"{url} answers something else: is it an extender of this version?") from None


async def _work_out(arguments: Namespace, namespace: str, name: str) -> Explanation:
    here = settings_here()
    types = load_catalogue(arguments.instance_types or here.instance_types)
    leases = here.lease_namespace if arguments.lease_namespace is None else arguments.lease_namespace
    try:
        async with await connect(kubeconfig_of(arguments.kubeconfig or here.kubeconfig)) as api:
            state = await survey(api, types, lease_namespace=leases)
            record = find_pod(state, namespace, name)
            if record is None:
                raise CommandError(
                    f"no live pod {namespace}/{name} that asks for Neuron: check the name and the namespace"
                )
            request = ApiRequest("GET", POD_RULES.item(name, namespace))
            pod = POD_RULES.decode(await send(api, request, timeout_seconds=PAGE_SECONDS))
            volumes = await volumes_of(api, pod)
            listed = pages(api, NODE_RULES, page_timeout_seconds=PAGE_SECONDS)
            nodes = {node.name: node async for page in listed for node in page.records}
            uses = defaultdict[str, NodeUse](NodeUse)
            async for page in pages(api, POD_RULES, page_timeout_seconds=PAGE_SECONDS):
                for each in page.records:
                    if each.spec.node_name:
                        uses[each.spec.node_name].add(each)
    except ClusterError as error:
        raise CommandError(str(error)) from None
    return with_node_rules(explain(state, record), pod, nodes, uses, volumes)
