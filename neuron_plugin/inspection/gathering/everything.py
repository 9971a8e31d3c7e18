"""Everything ``doctor`` looks at, gathered once. All effects are in this package."""

from __future__ import annotations

import asyncio
import platform
import time
from collections.abc import Mapping
from pathlib import Path

from neuron_plugin.inspection.facts import Cluster, DeviceUsers, Facts, Host, Kubelet
from neuron_plugin.inspection.gathering.cluster import gather_cluster
from neuron_plugin.inspection.gathering.daemon import gather_daemon
from neuron_plugin.inspection.gathering.host import gather_host
from neuron_plugin.inspection.gathering.kubelet import KUBELET_SOCKET, gather_kubelet
from neuron_plugin.inspection.gathering.processes import gather_users
from neuron_plugin.inspection.machine import look
from neuron_plugin.inspection.node import Node
from neuron_plugin.inspection.unknown import Unknown

IN_POD = "KUBERNETES_SERVICE_HOST"
"""What the kubelet sets in every container."""


def gather(flags: Mapping[str, object], environ: Mapping[str, str]) -> Facts:
    """Look at the machine, ask the kubelet, the plugins and the API server; ``flags`` as for ``node_of``.

    Raises:
        SettingsError: --root or --config is not there, or the file of instance types or the named type is no use.
    """
    node, daemon = gather_daemon(flags, environ)
    seen = look(node.settings, environ)
    host = gather_host(node.root, seen.paths, in_pod=IN_POD in environ)
    # A loop of its own leaves the thread's loop, if it has one, as it is.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        expected = flags.get("kubelet_dir") is not None or not host.simulated
        kubelet, cluster = runner.run(_ask(node, environ, expected=expected))
    users = _look_at_users(host, seen.paths.dev, node)
    return Facts(seen, host, kubelet, cluster, users, time.time_ns(), daemon)


async def _ask(node: Node, environ: Mapping[str, str], *, expected: bool) -> tuple[Kubelet, Cluster | Unknown]:
    directory = node.settings.kubelet_dir
    kubelet, cluster = await asyncio.gather(
        gather_kubelet(directory, node.settings.pod_resources_socket, expected=expected),
        _ask_cluster(node, environ),
        return_exceptions=True,
    )
    if isinstance(kubelet, BaseException):
        trouble = _unforeseen(kubelet)
        kubelet = Kubelet(directory, trouble=trouble, allocatable=trouble, pods=trouble)
    return kubelet, _unforeseen(cluster) if isinstance(cluster, BaseException) else cluster


async def _ask_cluster(node: Node, environ: Mapping[str, str]) -> Cluster | Unknown:
    """The API server is asked where we were told how to reach it, or run in a pod of this node."""
    settings = node.settings
    if settings.kubeconfig is None and (node.root or IN_POD not in environ):
        return Unknown("no API server is known", "give --kubeconfig (and --node-name)")
    name = settings.node_name or environ.get("NODE_NAME") or platform.node().lower()
    return await gather_cluster(settings.kubeconfig, name)


def _look_at_users(host: Host, dev: Path, node: Node) -> DeviceUsers | Unknown:
    try:
        return gather_users(_node_paths(host, dev), node.proc, node.settings.kubelet_dir / KUBELET_SOCKET)
    except Exception as error:  # noqa: BLE001 - on a broken node the rest is wanted most
        return _unforeseen(error)


def _unforeseen(error: BaseException) -> Unknown:
    """What one source stumbled over must not hide what the others tell."""
    if not isinstance(error, Exception):
        raise error
    return Unknown(f"looking failed itself ({error!r})", "please report it")


def _node_paths(host: Host, dev: Path) -> dict[int, Path]:
    nodes = () if isinstance(host.nodes, Unknown) else host.nodes
    return {node.device: dev / f"neuron{node.device}" for node in nodes}
