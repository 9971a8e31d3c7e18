"""``neuron-plugin gather``: one archive for a bug report."""

from __future__ import annotations

import asyncio
import os
import platform
from argparse import ArgumentParser, Namespace
from datetime import UTC, datetime
from pathlib import Path

from neuron_plugin.cli.command import VERSION, CommandError, Exit, UsageError, add_output_flag, plain, show
from neuron_plugin.cli.target import EVERYTHING, add_node_flags, kubeconfig_of, settings_here
from neuron_plugin.cluster import ClusterError
from neuron_plugin.cluster.client import connect
from neuron_plugin.inspection.bug_report import BugReport, cluster_report, node_report
from neuron_plugin.instance_file import load_catalogue

DESCRIPTION = """\
Write an archive with what a bug report needs. Of this node: doctor, devices, topology, settings, the
daemon's readiness, metrics and decisions, the kubelet's checkpoint (Neuron only). With --cluster,
from a desk: every Neuron node and pod, inventories, Leases, and log, readiness, metrics and
decisions of the extenders and of plugins, those of nodes with something wrong first.

No Secret, no environment and no annotation of others is read; credentials and serial numbers are
blanked. Names of nodes, namespaces and pods stay: look through the archive before you publish it.
What could not be had is listed in not-gathered.json."""

EXAMPLES = """
neuron-plugin gather
neuron-plugin gather --cluster --node worker-1
kubectl -n kube-system exec POD-OF-THE-PLUGIN -- neuron-plugin gather --file /tmp/report.tar.gz
neuron-plugin gather --root ./trn1 --file report.tar.gz
"""


def add_flags(parser: ArgumentParser) -> None:
    """Where to look, and where to write."""
    parser.add_argument("-f", "--file", metavar="FILE", type=Path, help="the archive (default: a name with the time)")
    parser.add_argument("--cluster", action="store_true", help="look at the cluster by --kubeconfig, not at this node")
    nodes = "with --cluster: of the plugins only those of this node; can be given several times"
    parser.add_argument("--node", metavar="NODE", action="append", default=[], help=nodes)
    namespace = "with --cluster: where plugin and extender run (default: that of the nodes' Leases)"
    parser.add_argument("-n", "--namespace", metavar="NAME", default="", help=namespace)
    add_output_flag(parser)
    add_node_flags(parser, EVERYTHING)


def run(arguments: Namespace) -> int:
    """Write the archive, and name its files."""
    if not arguments.cluster and (arguments.node or arguments.namespace):
        raise UsageError("--node and --namespace are for --cluster: without it this node is looked at")
    where = "cluster" if arguments.cluster else platform.node() or "node"
    file = arguments.file or Path(f"neuron-plugin-{where}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.tar.gz")
    if file.exists():
        raise UsageError(f"--file {file} exists: give a new name")
    gathered = asyncio.run(_of_cluster(arguments)) if arguments.cluster else node_report(vars(arguments), os.environ)
    gathered.write(file)
    report = {"version": VERSION, "archive": str(file), "files": gathered.names, "notGathered": gathered.missing}
    lines = [
        f"{file}: {len(gathered.names)} files",
        *(f"not gathered: {name}: {why}" for name, why in gathered.missing.items()),
    ]
    show(arguments.output, report, plain(*lines))
    return Exit.SUCCESS


async def _of_cluster(arguments: Namespace) -> BugReport:
    here = settings_here()
    types = load_catalogue(arguments.instance_types or here.instance_types)
    kubeconfig = kubeconfig_of(Path(arguments.kubeconfig) if arguments.kubeconfig else here.kubeconfig)
    try:
        async with await connect(kubeconfig) as api:
            return await cluster_report(
                api,
                types,
                lease_namespace=here.lease_namespace,
                namespace=arguments.namespace or here.lease_namespace,
                only=arguments.node,
            )
    except ClusterError as error:
        raise CommandError(str(error)) from None
