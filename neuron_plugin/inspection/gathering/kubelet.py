"""What ``doctor`` asks the kubelet and the plugins beside it: each of them once, and each with a deadline."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

from neuron_plugin.inspection.facts import DRA_DRIVER, Kubelet, SocketSeen
from neuron_plugin.inspection.holders import ask
from neuron_plugin.inspection.unknown import Unknown
from neuron_plugin.kubelet import is_served

KUBELET_SOCKET = "kubelet.sock"
DIAL_SECONDS = 2.0

_OURS = "neuron-plugin."
REGISTRY = "plugins_registry"
"""Beside the directory of device plugins, made by every kubelet: where drivers have the sockets it discovers."""
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
    others = [path for path in sockets if path != own] + _of_drivers(directory.parent)
    plugins = await asyncio.gather(*(_seen(path) for path in others))
    allocatable = await ask(pod_resources, lambda kubelet: kubelet.allocatable())
    pods = await ask(pod_resources, lambda kubelet: kubelet.list())
    return Kubelet(
        directory,
        own_socket=SocketSeen(own, is_served(own)) if own in sockets else None,
        plugins=tuple(plugins),
        drivers_seen=_may_list(directory.parent / REGISTRY),
        allocatable=allocatable,
        pods=pods,
    )


def _without(directory: Path, *, expected: bool) -> Kubelet:
    why = f"there is no kubelet at {directory}"
    unknown = Unknown(why, "if there is one elsewhere, give --kubelet-dir and --pod-resources-socket")
    return Kubelet(directory, trouble=None if expected else unknown, missing=True, allocatable=unknown, pods=unknown)


def _of_drivers(kubelet_root: Path) -> list[Path]:
    """Sockets of ours and of the DRA driver. Never deeper: below ``plugins`` lie the volumes that drivers mount."""
    registered = (kubelet_root / REGISTRY).glob("*.sock")
    ours = [path for path in registered if DRA_DRIVER in path.name or path.name.startswith(_OURS)]
    return sorted([*ours, *(kubelet_root / "plugins").glob(f"*{DRA_DRIVER}*/*.sock")])


def _may_list(directory: Path) -> bool:
    return os.access(directory, os.R_OK | os.X_OK)


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
    from neuron_plugin.kubelet import dial

    return SocketSeen(path, served, await dial(path, DIAL_SECONDS) or "")
