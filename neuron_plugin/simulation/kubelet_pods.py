"""Pods as the simulated kubelet takes them, what their containers receive, and their cgroups.

Only what device allocation looks at: names, the UID, and how many of which resource each container asks for.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from neuron_plugin.allocation import ContainerKind
from neuron_plugin.kubelet import DeviceNode, in_numeric_order
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as pb
from neuron_plugin.simulation.kubelet_device_manager import DeviceEntry

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Mount:
    """A host path that a container gets as a bind mount."""

    host_path: str
    container_path: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class KubeletContainer:
    """One container, its limits of extended resources, and the claims of the pod that it uses.

    A use is the pod's name for a claim and one of its requests, which is empty for all of them.
    """

    name: str
    limits: Mapping[str, int] = field(default_factory=dict)
    kind: ContainerKind = ContainerKind.APP
    claims: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class KubeletPod:
    """One pod; ``containers`` in spec order, init containers and sidecars first, as they are admitted.

    ``claims`` are the names of its ResourceClaims, by its own names for them.
    """

    uid: str
    namespace: str
    name: str
    containers: tuple[KubeletContainer, ...]
    claims: Mapping[str, str] = field(default_factory=dict)

    def container(self, name: str) -> KubeletContainer:
        """The container of that name; KeyError if there is none."""
        return {container.name: container for container in self.containers}[name]


@dataclass(frozen=True, slots=True)
class AdmittedContainer:
    """What one container received at its last start.

    ``ids`` are the device ids of each resource, in numeric order. Where two resources answered the same key, one of
    the two is here, drawn at each start, as on a kubelet. ``waiting`` is the text of a failed start; the container has
    then not started.
    """

    name: str
    kind: ContainerKind
    ids: Mapping[str, tuple[str, ...]]
    envs: Mapping[str, str]
    devices: tuple[DeviceNode, ...]
    mounts: tuple[Mount, ...]
    annotations: Mapping[str, str]
    cdi_devices: tuple[str, ...]
    waiting: str | None = None


@dataclass(frozen=True, slots=True)
class AdmittedPod:
    """A pod that the kubelet admitted, and what its containers received, in spec order."""

    pod: KubeletPod
    containers: tuple[AdmittedContainer, ...]

    def container(self, name: str) -> AdmittedContainer:
        """The container of that name; KeyError if there is none."""
        return {container.name: container for container in self.containers}[name]


class PodGoneError(Exception):
    """A pod was deleted while it waited for its claims to be prepared."""


class PodRejectedError(Exception):
    """The kubelet failed the pod, for good; the text is the message of the pod's status."""

    reason = "UnexpectedAdmissionError"

    def __init__(self, pod: KubeletPod, cause: str) -> None:
        super().__init__(f"Pod was rejected: Allocate failed due to {cause}, which is unexpected")
        self.pod = pod


def received(container: KubeletContainer, allocations: Sequence[DeviceEntry], waiting: str | None) -> AdmittedContainer:
    """What a container receives from its ``allocations``; of two answers with one key the first wins.

    The kubelet draws the order at each start, so two resources of one container that set the same variable differently
    give it a value that flips (``dm/pod_devices.go``).
    """
    answers = [pb.ContainerAllocateResponse.FromString(allocation.response) for allocation in allocations]
    nodes = (
        DeviceNode(device.host_path, device.container_path, device.permissions) for a in answers for device in a.devices
    )
    mounts = (Mount(mount.host_path, mount.container_path, mount.read_only) for a in answers for mount in a.mounts)
    return AdmittedContainer(
        name=container.name,
        kind=container.kind,
        ids={allocation.resource: tuple(in_numeric_order(allocation.ids)) for allocation in allocations},
        envs=_first_wins(item for answer in answers for item in answer.envs.items()),
        devices=tuple(_first_wins((node.container_path, node) for node in nodes).values()),
        mounts=tuple(_first_wins((mount.container_path, mount) for mount in mounts).values()),
        annotations=_first_wins(item for answer in answers for item in answer.annotations.items()),
        cdi_devices=tuple(dict.fromkeys(device.name for answer in answers for device in answer.cdi_devices)),
        waiting=waiting,
    )


def _first_wins(items: Iterable[tuple[_Key, _Value]]) -> dict[_Key, _Value]:
    merged: dict[_Key, _Value] = {}
    for key, value in items:
        merged.setdefault(key, value)
    return merged


class SimulatedCgroups:
    """A directory like ``/sys/fs/cgroup`` (version 2, named by systemd), with a slice for each pod that has processes.

    The process of the pod's sandbox keeps a slice populated between the starts of containers.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        for directory in (root, root / "kubepods.slice"):
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")

    def path(self, pod: KubeletPod) -> Path:
        """The slice of a pod; its QoS class is a level of its own, here always that of a pod without CPU and memory."""
        name = f"kubepods-besteffort-pod{pod.uid.replace('-', '_')}.slice"
        return self.root / "kubepods.slice" / "kubepods-besteffort.slice" / name

    def populate(self, pod: KubeletPod) -> None:
        """The pod has processes."""
        self.path(pod).mkdir(parents=True, exist_ok=True)
        self._write_events(pod, 1)

    def remove(self, pod: KubeletPod) -> None:
        """The processes of the pod have ended, and the kubelet removes its slice."""
        with contextlib.suppress(FileNotFoundError):
            self._write_events(pod, 0)
            shutil.rmtree(self.path(pod))

    def _write_events(self, pod: KubeletPod, populated: int) -> None:
        """In place and in one write, as the kernel changes this file: a reader never sees a part of it."""
        events = os.open(self.path(pod) / "cgroup.events", os.O_WRONLY | (os.O_CREAT if populated else 0), 0o644)
        try:
            os.write(events, f"populated {populated}\nfrozen 0\n".encode())
        finally:
            os.close(events)
