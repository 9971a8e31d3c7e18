"""Pods as the stand-in kubelet takes them, and what it makes of them.

Only what device allocation looks at: names, the UID, and how many of which resource each container asks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from neuron_plugin.allocation import ContainerKind
from neuron_plugin.kubelet import DeviceNode


@dataclass(frozen=True, slots=True)
class Mount:
    """A host path a container gets as a bind mount."""

    host_path: str
    container_path: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class Container:
    """One container and its limits of extended resources."""

    name: str
    limits: Mapping[str, int] = field(default_factory=dict)
    kind: ContainerKind = ContainerKind.APP


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod; ``containers`` in spec order, init containers and sidecars first, as they are admitted."""

    uid: str
    namespace: str
    name: str
    containers: tuple[Container, ...]

    def container(self, name: str) -> Container:
        """The container of that name; KeyError if there is none."""
        return {container.name: container for container in self.containers}[name]


@dataclass(frozen=True, slots=True)
class AdmittedContainer:
    """What one container received at its last start.

    ``ids`` are the device ids of each resource, in numeric order. Where two resources answered the same key, one of
    the two is here, chosen anew at each start, as on a kubelet. ``waiting`` is the text of a failed PreStartContainer;
    the container then has not started.
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
    """A pod the kubelet took, and what its containers received, in spec order."""

    pod: Pod
    containers: tuple[AdmittedContainer, ...]

    def container(self, name: str) -> AdmittedContainer:
        """The container of that name; KeyError if there is none."""
        return {container.name: container for container in self.containers}[name]


class PodRejectedError(Exception):
    """The kubelet failed the pod, for good; the text is the message of the pod's status."""

    reason = "UnexpectedAdmissionError"

    def __init__(self, pod: Pod, cause: str) -> None:
        super().__init__(f"Pod was rejected: Allocate failed due to {cause}, which is unexpected")
        self.pod = pod
