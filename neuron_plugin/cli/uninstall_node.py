"""``neuron-plugin uninstall-node``: remove annotation, labels, Lease and condition of an uninstalled plugin."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping

from neuron_plugin.cli.cluster import SERVER, add_cluster_flags, ask_cluster, lease_namespace_of, node_name
from neuron_plugin.cli.command import VERSION, Exit, UsageError, add_output_flag, plain, show
from neuron_plugin.cluster import ApiServer
from neuron_plugin.plugin.settings import TAKEN_CONDITIONS

DESCRIPTION = """\
Remove the plugin's annotation, labels, Lease and node condition from nodes.

For after the DaemonSet has been deleted. While a plugin runs on a node it writes everything again,
at the latest when it is restarted. Not for a preStop hook: that runs at every rollout too, and the
extender would close the node each time. A node that is gone, or has nothing of the plugin's, is no
error.

A node is kept as it is while pods have its devices by claims, and the status is 1: without a driver
they stay Terminating. Delete them while the driver runs. With --force the node is cleared; its pods
end once a driver of the same name serves the node again. Asking takes the right to list
resourceclaims."""

EXAMPLES = """
neuron-plugin uninstall-node worker-1 worker-2 --kubeconfig ~/.kube/config
neuron-plugin uninstall-node --all --node-condition NeuronDevicesHealthy
NODE_NAME=worker-1 neuron-plugin uninstall-node
"""


def add_flags(parser: ArgumentParser) -> None:
    """Add arguments for nodes and for their parts to remove."""
    parser.add_argument("nodes", metavar="NODE", nargs="*", type=node_name, help="names of nodes (default: NODE_NAME)")
    parser.add_argument("--all", action="store_true", help="every node that the plugin has written something about")
    force = "also clear nodes whose devices pods have by claims"
    parser.add_argument("--force", action="store_true", help=force)
    add_output_flag(parser)
    add_cluster_flags(parser, *SERVER, "lease_namespace")
    condition = "a node condition that the plugin kept, by either setting of 'run'; may be repeated (default: none)"
    parser.add_argument("--node-condition", metavar="TEXT", action="append", default=[], help=condition)


def run(arguments: Namespace) -> int:
    """Remove the parts, and print the nodes."""
    if arguments.all and arguments.nodes:
        raise UsageError("--all and names of nodes exclude each other: give one of them")
    for condition in arguments.node_condition:
        if writer := TAKEN_CONDITIONS.get(condition):
            raise UsageError(f"--node-condition is {condition!r}, which {writer} writes: it is not removed")
    names = [] if arguments.all else arguments.nodes or [os.environ.get("NODE_NAME", "")]
    if names == [""]:
        raise UsageError("no node: give names of nodes, --all, or set NODE_NAME")
    from neuron_plugin.plugin.uninstall import claims_in_use, installed_nodes, uninstall_nodes

    async def uninstall(api: ApiServer) -> tuple[list[str], Mapping[str, tuple[str, ...]]]:
        written = await lease_namespace_of(api, arguments), arguments.node_condition
        installed = names or await installed_nodes(api, *written)
        kept = {} if arguments.force else await claims_in_use(api, installed)
        return await uninstall_nodes(api, [name for name in installed if name not in kept], *written), kept

    done, kept = ask_cluster(arguments, uninstall)
    lines = [f"{name} is cleared" for name in done]
    lines += [
        f"{name} is kept: pods have its devices by claims ({', '.join(claims)}). Delete them first, or give --force"
        for name, claims in kept.items()
    ]
    document = {"version": VERSION, "cleared": done, "kept": kept}
    show(arguments.output, document, plain(*(lines or ["nothing of the plugin's was found"])))
    return Exit.FAILURE if kept else Exit.SUCCESS
