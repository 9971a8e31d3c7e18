"""``neuron-plugin gather``: one archive for a bug report."""

from __future__ import annotations

import os
import platform
from argparse import ArgumentParser, Namespace
from datetime import UTC, datetime
from pathlib import Path

from neuron_plugin.cli.cluster import add_cluster_flags, ask_cluster, lease_namespace_of, node_name, types_from
from neuron_plugin.cli.command import VERSION, UsageError, add_output_flag, plain, show
from neuron_plugin.cli.target import EVERYTHING, add_node_flags
from neuron_plugin.cluster import ApiServer
from neuron_plugin.inspection.bug_report import BugReport, cluster_report, node_report

DESCRIPTION = """\
Write an archive with what a bug report needs. Of this node: doctor, devices, topology, settings, the
daemon's readiness, metrics and decisions, the kubelet's checkpoint (Neuron only). With NODE or --all,
from a desk: every Neuron node and pod, inventories, Leases, and log, readiness, metrics and
decisions of the extenders and of plugins, those of nodes with something wrong first.

No Secret, no environment and no annotation of others is read; credentials and serial numbers are
blanked. Names of nodes, namespaces and pods stay: look through the archive before you publish it.
What could not be had is listed in not-gathered.json."""

EXAMPLES = """
neuron-plugin gather
neuron-plugin gather worker-1
neuron-plugin gather --all
kubectl -n kube-system exec POD-OF-THE-PLUGIN -- neuron-plugin gather --file /tmp/report.tar.gz
neuron-plugin gather --root ./trn1 --file report.tar.gz
"""


def add_flags(parser: ArgumentParser) -> None:
    """Add flags for source and output."""
    parser.add_argument("-f", "--file", metavar="FILE", type=Path, help="the archive (default: a name with the time)")
    nodes = "look at the cluster, of the plugins only at those of these nodes (default: this machine)"
    parser.add_argument("node", metavar="NODE", nargs="*", type=node_name, help=nodes)
    parser.add_argument("--all", action="store_true", help="look at the cluster with all its plugins")
    namespace = "of a cluster: where plugin and extender run (default: that of the nodes' Leases)"
    parser.add_argument("-n", "--namespace", metavar="NAME", default="", help=namespace)
    add_output_flag(parser)
    add_node_flags(parser, EVERYTHING)
    add_cluster_flags(parser, "context", "lease_namespace")


def run(arguments: Namespace) -> None:
    """Write the archive, and print the names of its files."""
    of_cluster = arguments.all or arguments.node
    if arguments.namespace and not of_cluster:
        raise UsageError("--namespace is for a cluster: name a NODE, or give --all")
    if arguments.all and arguments.node:
        raise UsageError("--all is for the plugins of all nodes: name none")
    subject = "cluster" if of_cluster else platform.node() or "node"
    file = arguments.file or Path(f"neuron-plugin-{subject}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.tar.gz")
    if file.exists():
        raise UsageError(f"--file {file} exists: give a new name")
    if of_cluster:
        types = types_from(arguments)

        async def report_of(api: ApiServer) -> BugReport:
            leases = await lease_namespace_of(api, arguments)
            where = {"lease_namespace": leases, "namespace": arguments.namespace or leases}
            return await cluster_report(api, types, **where, only=arguments.node)

        gathered = ask_cluster(arguments, report_of)
    else:
        gathered = node_report(vars(arguments), os.environ)
    gathered.write(file)
    report = {"version": VERSION, "archive": str(file), "files": gathered.names, "notGathered": gathered.missing}
    lines = [
        f"{file}: {len(gathered.names)} files",
        *(f"not gathered: {name}: {why}" for name, why in gathered.missing.items()),
    ]
    show(arguments.output, report, plain(*lines))
