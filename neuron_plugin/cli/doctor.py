"""``neuron-plugin doctor``: faults of this node, and their remedies."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest

from neuron_plugin.cli.cluster import add_cluster_flags, cluster_state, node_in, node_name
from neuron_plugin.cli.command import (
    CommandError,
    Exit,
    Line,
    UsageError,
    add_output_flag,
    print_lines,
    printable,
    show,
    table,
)
from neuron_plugin.cli.target import EVERYTHING, add_node_flags
from neuron_plugin.inspection import CHECKS, Level, Report, examine, gather, report_of
from neuron_plugin.inspection.findings import Finding
from neuron_plugin.inspection.published import examine_published
from neuron_plugin.monitor.views import pod_problem
from neuron_plugin.wording import plural

DESCRIPTION = """\
Look at everything between the Neuron driver and the pods of this node, and say what is wrong, why
it matters and what to do. Nothing is changed. See --list for the checks; give names to make only
those. NODE, a node of the cluster, is looked at from here, by what its plugin has published, by its
Lease and by its pods; what only the machine shows takes a look there.

findings:
  ok       looked at, and fine
  note     worth knowing, or "not checked" with the reason
  warning  works, but will hurt some pods, or later
  problem  pods do not get what they should

Exit status 0 says that there is no problem (warnings are none), 1 that there is one.

Run it as root, on the node or in the plugin's pod. The API server is asked where --kubeconfig is
given, and in a pod through its service account. The kubelet's checkpoint is read, and PodResources
asked once."""

EXAMPLES = """
neuron-plugin doctor
neuron-plugin doctor trn1-2
neuron-plugin doctor --kubeconfig /etc/kubernetes/kubelet.conf --node-name "$(hostname)"
neuron-plugin doctor driver device-nodes
kubectl -n kube-system exec POD-OF-THE-PLUGIN -- neuron-plugin doctor
neuron-plugin doctor --root ./trn1         # a simulated machine, see: neuron-plugin simulate --help
"""

_STYLES = {Level.OK: "green", Level.NOTE: "cyan", Level.WARNING: "bold yellow", Level.PROBLEM: "bold red"}
_LEVEL_WIDTH = max(len(level.value) for level in Level) + 2
_NAME_WIDTH = max(len(check.name) for check in CHECKS) + 2


def add_flags(parser: ArgumentParser) -> None:
    """Add arguments for checks and node."""
    words = "a node of the cluster (default: this machine), or checks: make only these (default: all)"
    parser.add_argument("words", nargs="*", metavar="NODE|CHECK", help=words)
    add_output_flag(parser)
    parser.add_argument("--list", action="store_true", help="list the checks, and make none")
    add_node_flags(parser, EVERYTHING)
    add_cluster_flags(parser, "context", "lease_namespace")


def run(arguments: Namespace) -> int:
    """Run the checks; the exit status says whether there is a problem."""
    if arguments.list:
        print_lines(table([{"CHECK": check.name, "IS FINE WHEN": check.looks_at} for check in CHECKS]))
        return Exit.SUCCESS
    names, words = [check.name for check in CHECKS], arguments.words
    unknown = [word for word in words if word not in names]
    if unknown and len(words) == 1 and not arguments.root:
        return _print_report(arguments, report_of(_published(arguments, unknown[0])))
    if unknown:
        raise UsageError(f"there is no check {unknown[0]}: choose among {', '.join(names)}; NODE stands alone")
    checks = [check for check in CHECKS if not words or check.name in words]
    report = report_of(examine(gather(vars(arguments), os.environ), checks), as_root=os.geteuid() == 0)
    return _print_report(arguments, report)


def _published(arguments: Namespace, word: str) -> list[Finding]:
    """Findings about a node from published facts. An unknown word may be a misspelt node or check."""
    name = node_name(word)
    try:
        state = cluster_state(arguments)
        info = node_in(state, name)
    except CommandError as error:
        raise type(error)(f"{word} is no check (see --list); as a node: {error}") from None
    pods = (pod for pod in state.pods.values() if pod.place == name)
    problems = {str(pod.reference): text for pod in pods if (text := pod_problem(state, pod))}
    return examine_published(info, state.history.renewals.get(name, ""), problems)


def _print_report(arguments: Namespace, report: Report) -> int:
    show(arguments.output, report, report_lines(report))
    return Exit.FAILURE if report.worst is Level.PROBLEM else Exit.SUCCESS


def report_lines(report: Report) -> Iterator[Line]:
    """One line for each finding, so that ``grep`` works, with reason and remedy below, and a summary.

    Text that successive findings have in common is printed once, below the last of them. So is a remedy for several
    checks that could not be made.
    """
    said: set[str] = set()
    for finding, following in zip_longest(report.findings, report.findings[1:]):
        same_action = following and (following.check, following.action) == (finding.check, finding.action)
        lines = [(finding.level.value, _STYLES[finding.level], finding.check, "", finding.seen)]
        if finding.why and not (same_action and following.why == finding.why):
            lines.append(("", "", " why", "dim", finding.why))
        if finding.action and not same_action and (finding.checked or finding.action not in said):
            lines.append(("", "", "  do", "dim", finding.action))
            said.add(finding.action)
        for level, style, name, name_style, text in lines:
            yield [(level.ljust(_LEVEL_WIDTH), style), (name.ljust(_NAME_WIDTH), name_style), (printable(text), "")]
    counts = Counter(finding.level for finding in report.findings)
    unchecked = sum(not finding.checked for finding in report.findings)
    parts = [
        plural(counts[Level.PROBLEM], "problem") if counts[Level.PROBLEM] else "no problem",
        *(plural(counts[level], level.value) for level in (Level.WARNING, Level.NOTE) if counts[level]),
        f"{counts[Level.OK]} ok",
    ]
    yield []
    yield [(", ".join(parts) + (f" ({unchecked} not checked)" if unchecked else ""), _STYLES[report.worst])]
