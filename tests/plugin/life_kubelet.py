"""The kubelet of a simulated node's life: the device manager's book-keeping, its order and its faults.

The same rules as the stand-in's (``simulation/kubelet_devices.py``), without sockets, tasks and messages, so that an
admission costs microseconds; and with its doors open, so that other things can happen in the middle of one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Protocol

from neuron_plugin.allocation import ContainerKind, ContainerRequest, Resource
from neuron_plugin.kubelet import ContainerAllocation, PodDevices, PodResourcesAbsentError, RecordedDevices
from neuron_plugin.kubelet.devices import RefusalError
from neuron_plugin.kubelet.pod_resources import ContainerDevices, PodResourcesThrottledError
from tests.plugin.life_pods import LivePod
from tests.plugin.world import shuffled, texts

Preferred = Callable[[Resource, list[str], list[str], int], Awaitable[set[int]]]
Allocate = Callable[[Resource, list[str]], ContainerAllocation]


class Meanwhile(Protocol):
    """Something that happens within a call; ``last``: of a pod's last container."""

    def __call__(self, *, last: bool) -> None: ...


def _nothing(*, last: bool) -> None:
    del last


class RejectedError(Exception):
    """The kubelet failed the pod, for a reason of its own."""


class CutOffError(Exception):
    """The kubelet ended while an Allocate was under way."""


class LifeKubelet:
    """What outlives a restart is ``entries``: pods whose devices are not free, with what is recorded for them.

    ``written`` is its own file, which lags behind. ``healthy`` is what the last messages said, None for a resource that
    nobody has registered. ``meanwhile`` happens while an Allocate is under way. ``chosen_from`` are the healthy ids
    from which the latest choice was made, and ``last_offer`` those that were nobody's; ``lost`` had been given away,
    but the reservation was lost.
    """

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.entries: list[LivePod] = []
        self.written: tuple[RecordedDevices, ...] = ()
        self.healthy: dict[Resource, set[int]] = {}
        self.down = False
        self.throttled = 0.0
        self.meanwhile: Meanwhile = _nothing
        self.chosen_from: set[int] = set()
        self.last_offer: set[int] = set()
        self.lost: set[int] = set()
        self._reserved: dict[Resource, set[int]] = {}

    # Devices come free here and nowhere else.

    def free_ended(self) -> None:
        """Drop what is not active any more; the reservations are then those recorded, so one in flight is lost."""
        left = [pod for pod in self.entries if pod.active]
        if len(left) < len(self.entries):
            self.entries = left
            self.restore_reserved()

    def restore_reserved(self) -> None:
        self._reserved = {resource: self.recorded(resource) for resource in Resource}

    def recorded(self, resource: Resource) -> set[int]:
        """The ids that the checkpoint gives to somebody."""
        found: set[int] = set()
        for pod in self.entries:
            for of_resource, ids in pod.recorded.values():
                if of_resource is resource:
                    found |= ids
        return found

    def write(self) -> None:
        """With each allocation and each list of devices; not when pods end."""
        self.written = tuple(
            RecordedDevices(pod.uid, container, resource.value, frozenset(texts(ids)))
            for pod in self.entries
            for container, (resource, ids) in pod.recorded.items()
        )

    def _lost(self, resource: Resource) -> set[int]:
        """Recorded ids that it offers all the same (kubernetes/kubernetes#137534)."""
        return self.recorded(resource) - self._reserved.get(resource, set())

    # Its life.

    def stop(self) -> None:
        self.down = True
        self.healthy = {}

    def start(self) -> None:
        self.down = False
        self.restore_reserved()

    # Admission.

    async def allocate(
        self,
        pod: LivePod,
        preferred: Preferred,
        allocate: Allocate,
        received: Callable[[LivePod, ContainerRequest, ContainerAllocation], None],
        *,
        cut_after: int = -1,
    ) -> None:
        """Container by container; what is recorded already is passed over.

        Raises:
            RejectedError: too few devices, or none that are healthy.
            RefusalError: the plugin's own.
            CutOffError: after ``cut_after`` containers.
        """
        reusable: dict[Resource, set[int]] = {}
        for place, part in enumerate(pod.shape.request):
            left = reusable.setdefault(part.resource, set())
            if part.container not in pod.recorded:
                self.free_ended()
                taken = await self._choose(part, left, preferred)
                self._reserved.setdefault(part.resource, set()).update(taken)
                try:
                    allocation = allocate(part.resource, texts(shuffled(self.chance, taken)))
                except RefusalError:
                    self.restore_reserved()
                    raise
                self.meanwhile(last=place == len(pod.shape.request) - 1)
                if place == cut_after:
                    raise CutOffError
                pod.recorded[part.container] = part.resource, frozenset(taken)
                if pod not in self.entries:
                    self.entries.append(pod)
                self.write()
                received(pod, part, allocation)
            elif not pod.recorded[part.container][1] <= self._healthy(part.resource):
                raise RejectedError("previously allocated devices are no longer healthy")
            ids = pod.recorded[part.container][1]
            reusable[part.resource] = left | ids if part.kind is ContainerKind.INIT else left - ids

    async def _choose(self, part: ContainerRequest, reusable: set[int], preferred: Preferred) -> set[int]:
        healthy = self._healthy(part.resource)
        self.chosen_from, self.last_offer, self.lost = set(healthy), set(), self._lost(part.resource)
        taken = set(shuffled(self.chance, reusable)[: part.count])
        if len(taken) == part.count:
            return taken
        available = healthy - self._reserved.get(part.resource, set()) - taken
        if len(available) < part.count - len(taken):
            raise RejectedError(f"requested {part.count} {part.resource}, available {len(available)}")
        self.last_offer = available
        offer, must = shuffled(self.chance, available | taken), sorted(taken)
        return await preferred(part.resource, texts(offer), texts(must), part.count)

    def _healthy(self, resource: Resource) -> set[int]:
        healthy = self.healthy.get(resource)
        if not healthy:
            raise RejectedError(f"no healthy devices present of {resource}")
        return healthy

    # PodResources.

    def _answer(self) -> None:
        if self.down:
            raise PodResourcesAbsentError("nobody answers")
        if self.chance.random() < self.throttled:
            raise PodResourcesThrottledError("rejected by rate limit")

    def said(self, pod: LivePod) -> PodDevices:
        listed = tuple(
            ContainerDevices(container, resource.value, tuple(texts(sorted(ids))))
            for container, (resource, ids) in pod.recorded.items()
            if pod.shape.kinds[container] is not ContainerKind.INIT
        )
        return PodDevices("default", pod.name, listed)

    async def get(self, namespace: str, name: str) -> PodDevices | None:
        del namespace
        self._answer()
        return next((self.said(pod) for pod in self.entries if pod.name == name and pod.active), None)

    async def list(self) -> tuple[PodDevices, ...]:
        self._answer()
        self.free_ended()
        return tuple(self.said(pod) for pod in self.entries)
