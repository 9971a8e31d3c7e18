"""Everything ``doctor`` looks at, gathered once. All effects are here and in the ``doctor_gather_*`` modules."""

from __future__ import annotations

import asyncio
import os
import platform
import time
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

from neuron_plugin.cli import machine
from neuron_plugin.cli.doctor import DEVICE_PLUGINS
from neuron_plugin.cli.doctor_facts import Cluster, Facts, Host, Kubelet, Unknown
from neuron_plugin.cli.doctor_gather_cluster import gather_cluster
from neuron_plugin.cli.doctor_gather_host import gather_host
from neuron_plugin.cli.doctor_gather_kubelet import gather_kubelet
from neuron_plugin.cli.doctor_gather_users import gather_users


def gather(arguments: Namespace, environ: Mapping[str, str]) -> Facts:
    """Look at the machine, ask the kubelet, the plugins and the API server.

    Raises:
        CommandError: --root is no directory, or --instance-type is unknown.
        SettingsError: --instance-types cannot be used.
    """
    root: Path | None = arguments.root
    seen = machine.look(arguments)
    host = gather_host(root, seen.paths, in_pod="KUBERNETES_SERVICE_HOST" in environ)
    # A loop of its own leaves the thread's loop, if it has one, as it is.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        kubelet, cluster = runner.run(_ask(arguments, environ, simulated=host.simulated))
    users = gather_users(_node_paths(host, seen.paths.dev), _proc(root))
    return Facts(seen, host, kubelet, cluster, users, time.time_ns())


async def _ask(
    arguments: Namespace, environ: Mapping[str, str], *, simulated: bool
) -> tuple[Kubelet, Cluster | Unknown]:
    given: Path | None = arguments.kubelet_dir
    directory = given or (arguments.root or Path("/")) / DEVICE_PLUGINS
    return await asyncio.gather(
        gather_kubelet(
            directory, machine.pod_resources_socket_of(arguments), expected=given is not None or not simulated
        ),
        _ask_cluster(arguments, environ),
    )


async def _ask_cluster(arguments: Namespace, environ: Mapping[str, str]) -> Cluster | Unknown:
    """The API server is asked where we were told how to reach it, or run in a pod of this node."""
    kubeconfig: Path | None = arguments.kubeconfig
    in_pod = "KUBERNETES_SERVICE_HOST" in environ and arguments.root is None
    if kubeconfig is None and not in_pod:
        return Unknown("no API server is known", "give --kubeconfig (and --node-name)")
    node_name = arguments.node_name or environ.get("NODE_NAME") or platform.node().lower()
    return await gather_cluster(kubeconfig, node_name)


def _node_paths(host: Host, dev: Path) -> dict[int, Path]:
    nodes = () if isinstance(host.nodes, Unknown) else host.nodes
    return {node.device: dev / f"neuron{node.device}" for node in nodes}


def _proc(root: Path | None) -> Path:
    """The host's /proc where it is mounted with the host, else this machine's."""
    mounted = root / "proc" if root else Path("/proc")
    return mounted if os.path.isdir(mounted) else Path("/proc")  # noqa: PTH112 - Path.is_dir raises on EACCES
