"""What the daemon and the kubelet's protocol tell each other about devices, as values free of protobuf.

The daemon's rooms speak in these; `service` alone turns them into messages. Saying no is a typed error here, and its
gRPC status is chosen in one place, there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class AdvertisedDevice:
    """One unit of a resource as the kubelet is told of it.

    ``reason`` says why an unhealthy one is; the kubelet never sees it, a refused request does.
    ``numa_nodes`` is empty unless NUMA alignment was asked for and the node is known: with a topology the kubelet may
    fill a request without asking for a preference (``dm/manager.go``, ``devicesToAllocate``).
    """

    id: str
    healthy: bool = True
    numa_nodes: tuple[int, ...] = ()
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device file a container gets; ``permissions`` are letters of the device cgroup (r, w, m)."""

    host_path: str
    container_path: str
    permissions: str = "rw"


@dataclass(frozen=True, slots=True)
class ContainerAllocation:
    """All that one container receives for the devices of one resource.

    ``cdi_devices`` are fully qualified names (``vendor.com/class=name``). Everything here is frozen in the kubelet's
    checkpoint and used again at each start of the container.
    """

    envs: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[DeviceNode, ...] = ()
    cdi_devices: tuple[str, ...] = ()


class RefusalError(Exception):
    """A request of the kubelet that is answered with a gRPC error; its text reaches the pod's status."""


class MalformedRequestError(RefusalError):
    """A request that no state of the node could satisfy: no ids, or an id twice."""


class UnknownDeviceError(RefusalError):
    """A request for ids that were never advertised, or are gone."""


class UnhealthyDeviceError(RefusalError):
    """A request for ids that are advertised as unhealthy."""


class AllocationRefusedError(RefusalError):
    """The daemon's own no, for a lasting conflict: the kubelet fails the pod for good on it."""


class NotYetError(RefusalError):
    """What passes by itself: for PreStartContainer, which the kubelet retries, never for Allocate."""


class DeviceHandler(Protocol):
    """What the daemon decides about devices; one handler may serve several resources."""

    async def preferred(
        self, resource: str, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        """Choose ``size`` of the ``available`` ids, all of ``must_include`` among them.

        Slow work belongs here, within the service's deadline. Whatever it raises or answers wrongly is replaced by a
        plain valid answer: an error would fail the pod for good.
        """

    def allocate(self, resource: str, ids: Sequence[str]) -> ContainerAllocation:
        """Record and answer, from memory: the kubelet admits no other pod of the node meanwhile.

        ``ids`` are known, healthy, distinct and in numeric order.

        Raises:
            RefusalError: the request conflicts with something lasting. Nothing may have been recorded.
        """

    async def pre_start(self, resource: str, ids: Sequence[str]) -> None:
        """Let a container start, or hold it; asked for only if the options say so. The kubelet waits 30 s.

        Raises:
            RefusalError: not now; the kubelet shows the text as the container's state and tries again.
        """


def in_numeric_order(ids: Iterable[str]) -> list[str]:
    """Sort ids so that 10 comes after 9; ids that are no decimal numbers follow, as text."""
    return sorted(ids, key=lambda text: (not text.isdecimal(), int(text) if text.isdecimal() else 0, text))
