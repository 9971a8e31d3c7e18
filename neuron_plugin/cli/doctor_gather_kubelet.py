"""What ``doctor`` asks the kubelet and the plugins beside it: each of them once, and each with a deadline."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from neuron_plugin.cli.doctor_facts import DRA_DRIVER, Kubelet, SocketSeen, Unknown
from neuron_plugin.kubelet.sockets import is_served

if TYPE_CHECKING:
    from neuron_plugin.kubelet.pod_resources import PodDevices

KUBELET_SOCKET = "kubelet.sock"
DIAL_SECONDS = 2.0
POD_RESOURCES_SECONDS = 3.0

_OURS = "neuron-plugin."
_OTHER_DIRECTORIES = ("plugins_registry", "plugins")
"""Beside the directory of device plugins: where drivers that the kubelet discovers have their sockets."""
_AS_ROOT = "run this as root"


async def gather_kubelet(directory: Path, pod_resources: Path, *, expected: bool) -> Kubelet:
    """The kubelet of ``directory``. Not ``expected``: that there is none is no surprise (a simulated machine)."""
    try:
        sockets = _sockets(directory)
    except FileNotFoundError:
        return _without(directory, expected=expected)
    except OSError as error:
        trouble = Unknown(f"{directory} cannot be listed ({error.strerror})", _AS_ROOT)
        return Kubelet(directory, trouble=trouble, allocatable=trouble, pods=trouble)
    own = directory / KUBELET_SOCKET
    others = [path for path in sockets if path != own] + list(_of_drivers(directory.parent))
    plugins, (allocatable, pods) = await asyncio.gather(
        asyncio.gather(*(_seen(path) for path in others)), _account(pod_resources)
    )
    return Kubelet(
        directory,
        own_socket=SocketSeen(own, is_served(own)) if own in sockets else None,
        plugins=tuple(plugins),
        allocatable=allocatable,
        pods=pods,
    )


def _without(directory: Path, *, expected: bool) -> Kubelet:
    why = f"there is no kubelet at {directory}"
    unknown = Unknown(why, "if there is one elsewhere, give --kubelet-dir and --pod-resources-socket")
    return Kubelet(directory, trouble=None if expected else unknown, missing=True, allocatable=unknown, pods=unknown)


def _of_drivers(kubelet_root: Path) -> Iterator[Path]:
    for name in _OTHER_DIRECTORIES:
        for path in sorted((kubelet_root / name).rglob("*.sock")):
            if DRA_DRIVER in str(path) or path.name.startswith(_OURS):
                yield path


def _sockets(directory: Path) -> list[Path]:
    return [path for path in sorted(directory.iterdir()) if _is_socket(path)]


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:
        return False


async def _seen(path: Path) -> SocketSeen:
    served = is_served(path)
    if not served or not path.name.startswith(_OURS):
        return SocketSeen(path, served)
    from neuron_plugin.kubelet.dialling import dial  # noqa: PLC0415 - loads gRPC

    return SocketSeen(path, served, await dial(path, DIAL_SECONDS) or "")


async def _account(
    socket: Path,
) -> tuple[dict[str, tuple[str, ...]] | Unknown, tuple[PodDevices, ...] | Unknown]:
    """What is allocatable, and who holds what."""
    if not _is_socket(socket):
        missing = Unknown(
            f"no kubelet at {socket}", "if it is elsewhere, give --pod-resources-socket; else run as root"
        )
        return missing, missing
    from neuron_plugin.kubelet.pod_resources import PodResourcesClient, PodResourcesError  # noqa: PLC0415 - loads gRPC

    client = PodResourcesClient(socket, deadline_seconds=POD_RESOURCES_SECONDS)
    try:
        return await client.allocatable(), await client.list()
    except PodResourcesError as error:
        failed = Unknown(str(error))
        return failed, failed
