"""``neuron-plugin ungate``: hand gated pods to their scheduler without a place, while no controller runs."""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser, Namespace
from collections.abc import Collection, Mapping

from neuron_plugin.cli.command import VERSION, CommandError, Exit, UsageError, add_output_flag, plain, show
from neuron_plugin.cli.target import add_kubeconfig_flag, kubeconfig_of

DESCRIPTION = """\
Take the gate neuron-plugin.io/placement off pods, so that their scheduler takes them as they are.

For when the placement controller is away for long, or gone for good. No node is chosen for such a pod
and no other pod is looked at: kube-scheduler counts devices, and the plugin of the node chooses among
those that are free there. What was planned for members of a group goes.

A pod whose ResourceClaims are not allocated keeps its gate while all devices have the taint
neuron-plugin.io/placed-by-gates: no scheduler could allocate them."""

EXAMPLES = """
neuron-plugin ungate training-0
neuron-plugin ungate ml/training-0 ml/training-1 --kubeconfig ~/.kube/config
neuron-plugin ungate --all
"""


def add_flags(parser: ArgumentParser) -> None:
    """Which pods."""
    pods = "pods; namespace default where none is given"
    parser.add_argument("pods", metavar="[NAMESPACE/]POD", nargs="*", help=pods)
    parser.add_argument("--all", action="store_true", help="every pod of the cluster that has the gate")
    add_output_flag(parser)
    add_kubeconfig_flag(parser)


def run(arguments: Namespace) -> int:
    """Release them, and name those that had the gate; the status says whether all did that were named."""
    if arguments.all is bool(arguments.pods):
        raise UsageError("give names of pods, or --all for every pod that has the gate")
    names = [name if "/" in name else f"default/{name}" for name in arguments.pods]
    kubeconfig = kubeconfig_of(arguments.kubeconfig)
    from neuron_plugin.cluster import ClusterError
    from neuron_plugin.cluster.client import connect
    from neuron_plugin.placement.gates.ungate import release_gated

    async def released() -> tuple[Collection[str], Mapping[str, str]]:
        async with await connect(kubeconfig) as api:
            return await release_gated(api, None if arguments.all else names)

    try:
        done, refused = asyncio.run(released())
    except ClusterError as error:
        raise CommandError(str(error)) from error
    lines = [f"pod {name} is released" for name in done]
    why_not = {name: "it is not there, or does not have the gate" for name in names if name not in {*done, *refused}}
    document = {"version": VERSION, "released": list(done), "refused": {**refused, **why_not}}
    show(arguments.output, document, plain(*(lines or ["no pod is released" if names else "no pod has the gate"])))
    texts = [f"pod {name} keeps its gate: {reason}" for name, reason in refused.items()]
    texts += [f"pod {name} is not released: {reason}" for name, reason in why_not.items()]
    if texts:
        raise CommandError("; ".join(texts))
    return Exit.SUCCESS
