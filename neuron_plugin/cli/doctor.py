"""``neuron-plugin doctor``: what is wrong with this node, and what to do about it."""

from __future__ import annotations

import os
from argparse import Namespace
from typing import TYPE_CHECKING

from neuron_plugin.cli.command import Exit, Subparsers, UsageError, add_command
from neuron_plugin.cli.node_flags import EVERYTHING, add_node_flags
from neuron_plugin.cli.output import Form, add_output_flag

if TYPE_CHECKING:
    from neuron_plugin.inspection.findings import Check

DESCRIPTION = """\
Look at everything between the Neuron driver and the pods of this node, and say what is wrong, why it matters and what
to do. Nothing is changed. See --list for the checks; give names to make only those.

findings:
  ok       looked at, and fine
  note     worth knowing, or "not checked" with the reason
  warning  works, but will hurt some pods, or later
  problem  pods do not get what they should

Exit status 0 says that there is no problem (warnings are none), 1 that there is one.

Run it as root, on the node or in the plugin's pod. The API server is asked where --kubeconfig is given, and in a pod
through its service account. The kubelet is asked once for its list of holders."""

EXAMPLES = """
neuron-plugin doctor
neuron-plugin doctor --kubeconfig /etc/kubernetes/kubelet.conf --node-name "$(hostname)"
neuron-plugin doctor driver device-nodes
neuron-plugin doctor --config /etc/neuron-plugin.yaml health
neuron-plugin doctor -o json | jq '.findings[] | select(.level == "problem")'
kubectl -n kube-system exec POD-OF-THE-PLUGIN -- neuron-plugin doctor
neuron-plugin doctor --root ./trn1         # a simulated machine, see: neuron-plugin simulate --help
"""


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "doctor",
        run,
        summary="find out what is wrong with this node, and what to do about it",
        description=DESCRIPTION,
        examples=EXAMPLES,
    )
    parser.add_argument("checks", nargs="*", metavar="CHECK", help="make only these checks (default: all)")
    add_output_flag(parser)
    parser.add_argument("--list", action="store_true", help="list the checks, and make none")
    add_node_flags(parser, EVERYTHING)


def run(arguments: Namespace) -> int:
    """Make the checks; the status says whether there is a problem."""
    # Imported here: every process imports this module, the daemons too, and the checks are much code.
    from neuron_plugin.cli.doctor_output import show, show_checks, status_of
    from neuron_plugin.inspection.checks.table import examine
    from neuron_plugin.inspection.findings import report_of
    from neuron_plugin.inspection.gathering.everything import gather

    if arguments.list:
        show_checks()
        return Exit.FINE
    checks = _chosen(arguments.checks)
    report = report_of(examine(gather(vars(arguments), os.environ), checks))
    show(Form(arguments.output), report)
    return status_of(report)


def _chosen(names: list[str]) -> list[Check]:
    from neuron_plugin.inspection.checks.table import CHECKS

    known = {check.name: check for check in CHECKS}
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"there is no check {unknown[0]}: choose among {', '.join(known)}")
    return [check for check in CHECKS if check.name in names] if names else list(CHECKS)
