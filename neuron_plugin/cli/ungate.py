"""``neuron-plugin ungate``: release gated pods to their scheduler without a place, while no controller runs."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from neuron_plugin.cli.cluster import SERVER, add_cluster_flags, ask_cluster, pod_from
from neuron_plugin.cli.command import VERSION, CommandError, UsageError, add_output_flag, plain, show

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
    """Add arguments for the pods."""
    parser.add_argument("pods", metavar="[NAMESPACE/]POD", nargs="*", help="pods")
    everyone = "every pod that has the gate: of the cluster, or of the namespace that -n gives"
    parser.add_argument("--all", action="store_true", help=everyone)
    add_output_flag(parser)
    add_cluster_flags(parser, "namespace", *SERVER)


def run(arguments: Namespace) -> None:
    """Release the pods, and print them; the exit status says whether all named pods were released."""
    if arguments.all is bool(arguments.pods):
        raise UsageError("give names of pods, or --all for every pod that has the gate")
    names = ["/".join(pod_from(arguments, name)) for name in arguments.pods]
    from neuron_plugin.placement.gates.ungate import release_gated

    wanted = (None, arguments.namespace) if arguments.all else (names, "")
    done, refused = ask_cluster(arguments, lambda api: release_gated(api, *wanted))
    lines = [f"pod {name} is released" for name in done]
    why_not = {name: "it is not there, or does not have the gate" for name in names if name not in {*done, *refused}}
    document = {"version": VERSION, "released": list(done), "refused": {**refused, **why_not}}
    show(arguments.output, document, plain(*(lines or ["no pod is released" if names else "no pod has the gate"])))
    texts = [f"pod {name} keeps its gate: {reason}" for name, reason in refused.items()]
    texts += [f"pod {name} is not released: {reason}" for name, reason in why_not.items()]
    if texts:
        raise CommandError("; ".join(texts))
