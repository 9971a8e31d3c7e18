"""``neuron-plugin doctor``: what is wrong with this node, and what to do about it."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from neuron_plugin.cli import machine
from neuron_plugin.cli.command import Exit, Subparsers, UsageError, add_command

if TYPE_CHECKING:
    from neuron_plugin.cli.doctor_findings import Check

FORMS = ("text", "json", "yaml")
DEVICE_PLUGINS = Path("var/lib/kubelet/device-plugins")

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
    parser.add_argument(
        "-o",
        "--output",
        choices=FORMS,
        default=FORMS[0],
        metavar="FORM",
        help="text, json or yaml (default: text)",
    )
    parser.add_argument("--list", action="store_true", help="list the checks, and make none")
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="the daemon's configuration, to go by its paths and health policies; what flags say wins "
        "(default: /etc/neuron-plugin/config.yaml where that is, as in the plugin's pod)",
    )
    machine.add_flags(parser)
    group = parser.add_argument_group("which kubelet and cluster")
    group.add_argument(
        "--kubelet-dir",
        type=Path,
        metavar="DIR",
        help=f"the kubelet's directory of device plugins (default: ROOT/{DEVICE_PLUGINS})",
    )
    group.add_argument("--kubeconfig", type=Path, metavar="FILE", help="how to reach the API server, to check its view")
    group.add_argument(
        "--node-name", metavar="NAME", help="this node's name in Kubernetes (default: NODE_NAME, or the host's name)"
    )


def run(arguments: Namespace) -> int:
    """Make the checks; the status says whether there is a problem."""
    # Imported here: every process imports this module, the daemons too, and the checks are much code.
    from neuron_plugin.cli.doctor_checks import Examined, examine  # noqa: PLC0415 - see above
    from neuron_plugin.cli.doctor_gather import gather  # noqa: PLC0415 - see above
    from neuron_plugin.cli.doctor_report import Form, report_of, show, show_checks, status_of  # noqa: PLC0415 - see above

    if arguments.list:
        show_checks()
        return Exit.FINE
    checks = _chosen(arguments.checks)
    examined: list[Examined] = list(examine(gather(arguments, os.environ), checks))
    report = report_of(examined)
    show(Form(arguments.output), report)
    return status_of(report)


def _chosen(names: list[str]) -> list[Check]:
    from neuron_plugin.cli.doctor_checks import CHECKS  # noqa: PLC0415 - see run

    known = {check.name: check for check in CHECKS}
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"there is no check {unknown[0]}: choose among {', '.join(known)}")
    return [check for check in CHECKS if check.name in names] if names else list(CHECKS)
