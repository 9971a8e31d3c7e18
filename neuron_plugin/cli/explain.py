"""``neuron-plugin explain``: why a pod that asks for Neuron fits a node or does not."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from urllib.parse import quote

import msgspec

from neuron_plugin.cli.cluster import LOOK, add_cluster_flags, ask_extender, cluster_state, node_name, pod_from
from neuron_plugin.cli.command import VERSION, CommandError, add_output_flag, no_such, plain, show
from neuron_plugin.monitor.explain import Explanation, UnknownPodError, explain, explain_text, find_pod, question

DESCRIPTION = """\
Say for each node which set a pod would get there, or what it lacks and who holds the sets in its
way. Nodes that give the same answer are shown once and counted; --node shows one in full.

Works it out from the API server. That takes some seconds only where clocks leave a doubt whether a
plugin still renews its Lease. With --extender a running extender is asked, which says the same. Cordon,
taints, affinities, topology spread, volumes, ports, CPU, memory and other resources are looked at, too."""

EXAMPLES = """
neuron-plugin explain training-0
neuron-plugin explain training-0 --node worker-1
neuron-plugin explain ml/my-group
neuron-plugin explain ml/training-0 --kubeconfig ~/.kube/config -o json
neuron-plugin explain training-0 --extender http://127.0.0.1:12346
"""


def add_flags(parser: ArgumentParser) -> None:
    """Add arguments for the pod and the source."""
    parser.add_argument("pod", metavar="[NAMESPACE/]POD", help="the pod, or a group of pods")
    nodes = "only this node, with all that is in the way there; can be given several times"
    parser.add_argument("--node", metavar="NODE", type=node_name, action="append", default=[], help=nodes)
    add_cluster_flags(parser, "namespace", "extender", *LOOK)
    add_output_flag(parser)


def run(arguments: Namespace) -> None:
    """Print the explanation."""
    namespace, name = pod_from(arguments, arguments.pod)
    if arguments.extender:
        path = f"/explain/{quote(namespace)}/{quote(name)}"
        explanation = ask_extender(arguments.extender, path, {"format": "json"}, Explanation)
    else:
        state = cluster_state(arguments)
        try:
            explanation = explain(question(state, find_pod(state, namespace, name), time.time()))
        except UnknownPodError as error:
            raise CommandError(str(error)) from None
    if missing := sorted({*arguments.node} - {node.node for node in explanation.nodes}) if explanation.nodes else []:
        raise no_such("node", missing[0], (node.node for node in explanation.nodes))
    if arguments.node:
        explanation = msgspec.structs.replace(
            explanation, nodes=tuple(node for node in explanation.nodes if node.node in arguments.node)
        )
    lines = plain(*explain_text(explanation, arguments.node).splitlines())
    show(arguments.output, {"version": VERSION, **msgspec.to_builtins(explanation)}, lines)
