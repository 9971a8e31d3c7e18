"""Whether the suite may use a real node, said in one sentence before anything is done to it.

Without this each test would wait out its patience and blame a pod for what is wrong with the node or the command line.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from neuron_plugin.cluster import ApiServer, ClusterError
from neuron_plugin.cluster.api import send
from neuron_plugin.cluster.writes import read_node
from neuron_plugin.kubelet import PodResourcesClient, PodResourcesError

PREFIX = "aws.amazon.com/"
SETTLE_SECONDS = 5.0
"""The kubelet notices the end of the last test's plugin within milliseconds, a busy machine later."""
_TIMEOUT_SECONDS = 20.0


class UnusableNodeError(Exception):
    """The suite cannot run here; the text says why and what to do."""


async def require_usable_node(
    kubelet_dir: Path, pod_resources: PodResourcesClient, api: ApiServer, node_name: str
) -> None:
    """Look before the first change.

    Raises:
        UnusableNodeError: not root, no kubelet, no such node, or another plugin offers Neuron here.
    """
    if os.geteuid() != 0:
        raise UnusableNodeError("not root: kubelet sockets, device nodes and containers' processes are root's")
    if not (kubelet_dir / "kubelet.sock").is_socket():
        raise UnusableNodeError(
            f"no kubelet.sock in {kubelet_dir}: --kubelet-dir has to be the device plugin directory"
        )
    await _require_node(api, node_name)
    await _require_no_other_plugin(pod_resources)


async def _require_node(api: ApiServer, name: str) -> None:
    try:
        await send(api, read_node(name), timeout_seconds=_TIMEOUT_SECONDS)
    except ClusterError as error:
        raise UnusableNodeError(f"node {name!r} cannot be read with --kubeconfig: {error}") from error


async def _require_no_other_plugin(pod_resources: PodResourcesClient) -> None:
    deadline = asyncio.get_running_loop().time() + SETTLE_SECONDS
    while offered := await _offered(pod_resources):
        if asyncio.get_running_loop().time() > deadline:
            raise UnusableNodeError(f"another plugin offers {', '.join(offered)} on this node: stop it first")
        await asyncio.sleep(0.2)


async def _offered(pod_resources: PodResourcesClient) -> list[str]:
    try:
        return sorted(name for name in await pod_resources.allocatable() if name.startswith(PREFIX))
    except PodResourcesError as error:
        raise UnusableNodeError(f"--pod-resources-socket: {error}") from error
