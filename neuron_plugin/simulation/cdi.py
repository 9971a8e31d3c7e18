"""What a container runtime makes of CDI devices: the device nodes and the environment of a container.

It reads every file of the directory again at each container. Source: the Container Device Interface's own library
(tags.cncf.io/container-device-interface/pkg/cdi), which containerd and CRI-O use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from neuron_plugin.kubelet import DeviceNode


class UnresolvableError(Exception):
    """CDI devices that no file describes: the container is not created. The text is the runtime's."""


@dataclass(frozen=True, slots=True)
class CdiEdits:
    """What CDI devices add to a container."""

    devices: tuple[DeviceNode, ...] = ()
    envs: Mapping[str, str] | None = None


def resolve(directory: Path, names: Iterable[str]) -> CdiEdits:
    """The edits of CDI devices, in order; of two with the same node or variable the last one holds.

    Raises:
        UnresolvableError: some names are not described.
    """
    known = dict(_described(directory))
    names = tuple(names)
    if missing := [name for name in names if name not in known]:
        raise UnresolvableError(f"CDI device injection failed: unresolvable CDI devices {', '.join(missing)}")
    nodes: dict[str, DeviceNode] = {}
    envs: dict[str, str] = {}
    for name in names:
        for node in known[name].get("deviceNodes") or ():
            path = node["path"]
            nodes[path] = DeviceNode(node.get("hostPath") or path, path, node.get("permissions") or "rwm")
        envs.update(text.split("=", 1) for text in known[name].get("env") or ())
    return CdiEdits(tuple(nodes.values()), envs)


def _described(directory: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The devices of all files by full name. A file that describes one name twice is invalid as a whole."""
    for path in sorted(directory.glob("*.json")):
        try:
            spec = msgspec.json.decode(path.read_bytes())
            devices = [(f"{spec['kind']}={device['name']}", device["containerEdits"]) for device in spec["devices"]]
        except (OSError, msgspec.DecodeError, KeyError, TypeError):
            continue
        if len(dict(devices)) == len(devices):
            yield from devices
