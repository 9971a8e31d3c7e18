"""What follows from the inputs of one moment: allocations, waiting assignments, advertised devices.

``settle`` ends before what is over; ``writes`` says what pods should say then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from neuron_plugin.allocation import (
    Allocation,
    ContainerKind,
    DeviceFacts,
    Ledger,
    NeuronPod,
    NodeInventory,
    PodReference,
    Rejection,
    Resource,
)
from neuron_plugin.allocation.inventory import DISABLED_REASON
from neuron_plugin.allocation.narrowing import device_facts
from neuron_plugin.allocation.placement import why_not
from neuron_plugin.allocation.pod import assigned_allocations, mask_union
from neuron_plugin.kubelet import AdvertisedDevice
from neuron_plugin.plugin.inputs import HoldDown, Inputs, made_by_api_server, named
from neuron_plugin.topology import NO_CORES, CoreMask, Unit, valid_sets


@dataclass(frozen=True, slots=True)
class WaitingAssignment:
    """The set that the next container of a pod is to get.

    ``reused_mask`` are the cores in it that the pod's own init containers have.
    """

    pod: PodReference
    container: str
    resource: Resource
    ids: tuple[int, ...]
    mask: CoreMask
    reused_mask: CoreMask


@dataclass(frozen=True)
class Snapshot:
    """All that follows from ``inputs``. Parts for every call are derived at once, the rest when it is first read."""

    inputs: Inputs
    inventory: NodeInventory
    ledger: Ledger

    @cached_property
    def offered_mask(self) -> CoreMask:
        """Healthy cores that no operator and no hold-down keeps back, in use or not."""
        return CoreMask(self.inventory.healthy_mask & ~mask_union(self.inputs.hold_downs))

    def mask_of(self, resource: Resource, ids: Iterable[int]) -> CoreMask:
        """The cores behind ids; ids that the node does not have add nothing."""
        return self.inventory.geometry.mask_of(resource.unit, ids)

    def kept_back(self, mask: int, hold_downs: Sequence[HoldDown]) -> tuple[str, ...]:
        """Why healthy cores of ``mask`` are not given to a pod that has not got them yet: each reason once."""
        reasons = [hold_down.reason for hold_down in hold_downs if hold_down.mask & mask]
        by_hand = mask & self.inventory.disabled_mask
        return tuple(dict.fromkeys([DISABLED_REASON] * bool(by_hand) + reasons))

    def broken_text(self, mask: int) -> str:
        """Which devices of ``mask`` are broken, and why; empty if none is."""
        touched, reasons = self.inventory.geometry.devices_touched(CoreMask(mask)), self.inventory.unhealthy
        return "; ".join(f"device {device}: {reasons[device]}" for device in touched if device in reasons)

    @cached_property
    def free_mask(self) -> CoreMask:
        """Offered cores that no pod has, no assignment waits for and no pod was promised."""
        free = self.unassigned_mask
        for pod in self.inputs.pods.promised:
            promised = assigned_allocations(pod, self.inventory.geometry)
            free = CoreMask(free & ~(NO_CORES if isinstance(promised, Rejection) else mask_union(promised)))
        return free

    @cached_property
    def unassigned_mask(self) -> CoreMask:
        """Offered cores that no pod has and no assignment waits for; a pod that is not bound yet may expect some."""
        free = self.offered_mask & ~self.ledger.used_mask
        for assignment in self.waiting:
            free &= ~assignment.mask
        return CoreMask(free)

    @cached_property
    def counted_once(self) -> tuple[Allocation, ...]:
        """The allocations of named pods, each core once: a core that a later container re-uses is that container's."""
        once = []
        for uid, allocations in self.ledger.by_pod.items():
            pod, counted = self.inputs.pods.pods.get(uid), 0
            order = {container.name: place for place, container in enumerate(pod.requests if pod else ())}
            for allocation in sorted(allocations, key=lambda allocation: -order.get(allocation.container, 0)):
                if allocation.pod.name and (mask := CoreMask(allocation.mask & ~counted)):
                    once.append(replace(allocation, mask=mask))
                counted |= allocation.mask
        return tuple(once)

    @cached_property
    def waiting(self) -> tuple[WaitingAssignment, ...]:
        """For each pod the assigned set of its next container, if it can still be given; in the order of bindings.

        A pod with a started container waits for nothing: if the kubelet has lost its record of that pod, no other pod
        may be given its set.
        """
        assignments = []
        for pod in self.inputs.pods.asking:
            served = {allocation.container for allocation in self.ledger.of(pod.uid)}
            if pod.life.started or all(container.name in served for container in pod.requests):
                continue
            place = next(place for place, container in enumerate(pod.requests) if container.name not in served)
            assigned = self.usable_assignment(pod)
            if assigned:
                allocation = assigned[place]
                _, left = self.reusable_masks(pod, allocation.resource)
                if allocation.mask & self.ledger.mask_of(pod.uid) & ~left:
                    continue  # an earlier container was given other cores than its own, and some of these
                ids = self.inventory.geometry.ids_of(allocation.resource.unit, allocation.mask)
                reused = CoreMask(allocation.mask & left)
                assignments.append(
                    WaitingAssignment(
                        pod.reference, allocation.container, allocation.resource, ids, allocation.mask, reused
                    )
                )
        return tuple(assignments)

    @cached_property
    def unassigned(self) -> tuple[NeuronPod, ...]:
        """The pods that have not been served yet and have no assignment that could be given to them."""
        waiting = {assignment.pod.uid for assignment in self.waiting}
        return tuple(
            pod
            for pod in self.inputs.pods.asking
            if pod.uid not in waiting
            and not pod.life.started
            and {container.name for container in pod.requests}
            - {allocation.container for allocation in self.ledger.of(pod.uid)}
        )

    def reusable_masks(self, pod: NeuronPod, resource: Resource) -> tuple[CoreMask, CoreMask]:
        """The cores of a pod's plain init containers that no later container of the pod was given.

        First by the kubelet's ids, then by what was given: the same until a container was given a linked part of what
        init containers have, in place of the kubelet's random one.
        """
        init = {container.name for container in pod.requests if container.kind is ContainerKind.INIT}
        recorded = given = recorded_later = given_later = 0
        for allocation in self.ledger.of(pod.uid):
            if allocation.resource is not resource:
                continue
            if allocation.container in init:
                recorded, given = recorded | allocation.kubelet_mask, given | allocation.mask
            else:
                recorded_later, given_later = recorded_later | allocation.kubelet_mask, given_later | allocation.mask
        return CoreMask(recorded & ~recorded_later), CoreMask(given & ~given_later)

    def advertised(
        self, resource: Resource, numa_nodes: Sequence[int] = (), *, unhealthy_in_use: bool = False
    ) -> tuple[AdvertisedDevice, ...]:
        """The ids of one resource as the kubelet should see them.

        An id in use under this same name stays healthy: the kubelet counts that itself. An id is unhealthy if it is in
        use under another name, broken, disabled or held down.

        A broken or disabled device stays healthy, too, while a pod has it under this name that shows no end: else
        allocatable lacks the device, and kube-scheduler takes the pod's request off as well. From the first sign of an
        end on it is unhealthy. A kubelet frees what a pod has before any watch shows the end, and writes the node's
        status up to 10 s later. With ``unhealthy_in_use`` a broken device is unhealthy at once.
        """
        geometry, unit = self.inventory.geometry, resource.unit
        counted = lasting = 0
        for allocation in self.ledger.allocations:
            mask = allocation.kubelet_mask if allocation.resource is resource else NO_CORES
            counted |= mask
            lasting |= NO_CORES if self._may_end(allocation.pod) else mask
        used, kept_back = self.ledger.used_mask & ~counted, self.inventory.disabled_mask & ~lasting
        kept_healthy = NO_CORES if unhealthy_in_use else lasting
        for hold_down in self.inputs.advertised_hold_downs:
            kept_back |= hold_down.mask & ~counted
        per_device = geometry.cores_per_device if unit is Unit.CORE else 1
        listed, devices = frozenset(self.inventory.listed), []
        for number, mask in enumerate(geometry.masks(unit)):
            owner = number // per_device
            if owner not in listed:
                continue
            reason = "" if mask & kept_healthy else self.inventory.unhealthy.get(owner, "")
            if not reason and mask & used:
                allocation = self.ledger.overlapping(mask & used)[0]
                how = f"by claim {allocation.claim}" if allocation.claim else f"as {allocation.resource.value}"
                reason = f"in use by {named(allocation.pod)} {how}"
            elif not reason and mask & kept_back:
                reason = self.kept_back(mask & kept_back, self.inputs.advertised_hold_downs)[0]
            node = numa_nodes[owner] if owner < len(numa_nodes) else -1
            numa = (node,) if node >= 0 else ()
            devices.append(AdvertisedDevice(str(number), healthy=not reason, reason=reason, numa_nodes=numa))
        return tuple(devices)

    @cached_property
    def published_inventory(self) -> NodeInventory:
        """The inventory for the cluster: devices that a hold-down keeps back are unhealthy, too.

        With them, in one annotation, the pods that went while they ran: the scheduler keeps the cores of such a pod
        until its node has seen the end, and from then on follows what is held down.
        """
        published = self.inputs.published_hold_downs
        held = {
            int(device): hold_down.reason
            for hold_down in published
            for device in self.inventory.geometry.devices_touched(hold_down.mask & ~self.ledger.used_mask)
        }
        vanished = dict.fromkeys(uid for uid in self.inputs.pods.vanished if uid not in self.ledger.by_pod)
        vanished |= dict.fromkeys(
            hold_down.uid for hold_down in published if made_by_api_server(hold_down.uid) and not hold_down.unknown
        )
        if not held and not vanished:
            return self.inventory
        unhealthy, only = {**held, **self.inventory.unhealthy}, held.keys() - self.inventory.unhealthy.keys()
        return replace(
            self.inventory, unhealthy=unhealthy, held_down=tuple(sorted(only)), vanished_pods=tuple(vanished)
        )

    @cached_property
    def unhealthy_devices(self) -> Mapping[PodReference, Mapping[int, str]]:
        """The unhealthy devices of pods that the API server shows, and why."""
        by_pod: dict[PodReference, Mapping[int, str]] = {}
        for uid in self.ledger.by_pod if self.inventory.unhealthy else ():
            pod = self.inputs.pods.pods.get(uid)
            devices = self.inventory.geometry.devices_touched(self.ledger.mask_of(uid))
            if pod and (sick := [device for device in devices if device in self.inventory.unhealthy]):
                by_pod[pod.reference] = {int(device): self.inventory.unhealthy[device] for device in sick}
        return by_pod

    @property
    def device_facts(self) -> DeviceFacts:
        """The facts that constraints ask about, as far as the machine shows them."""
        return device_facts(self.inventory.device_name, self.inventory.geometry.instance_type, None)

    def unlinked_text(self, resource: Resource, mask: CoreMask) -> str:
        """Why a set is not one that the topology hands out; empty if it is one."""
        geometry = self.inventory.geometry
        ids = geometry.ids_of(resource.unit, mask)
        if mask in valid_sets(geometry, resource.unit, len(ids)):
            return ""
        return why_not(geometry, mask, resource.unit, len(ids)).text

    def usable_assignment(self, pod: NeuronPod) -> tuple[Allocation, ...]:
        """The sets that an unserved pod is to get; empty without any.

        Allocate names no pod, so of two equal pods one may be given the other's set. A set is a token: the other pod
        then gets the set that was left over.
        """
        geometry = self.inventory.geometry
        own = assigned_allocations(pod, geometry)
        if isinstance(own, Rejection) or not own:
            return ()
        if self._is_free_for(pod, own):
            return own
        wanted = [(allocation.resource, allocation.mask) for allocation in own]
        for other in self.inputs.pods.asking:
            if other.uid == pod.uid:
                continue
            given = {allocation.container: allocation.mask for allocation in self.ledger.of(other.uid)}
            if [(container.resource, given.get(container.name)) for container in other.requests] != wanted:
                continue
            left = assigned_allocations(other, geometry)
            if isinstance(left, Rejection):
                continue
            taken_over = tuple(replace(mine, mask=theirs.mask) for mine, theirs in zip(own, left, strict=True))
            if self._is_free_for(pod, taken_over):
                return taken_over
        return ()

    def _is_free_for(self, pod: NeuronPod, sets: Sequence[Allocation]) -> bool:
        return all(allocation.pod.uid == pod.uid for allocation in self.ledger.overlapping(mask_union(sets)))

    def _may_end(self, pod: PodReference) -> bool:
        """Whether the kubelet may soon give to others what a pod has."""
        known = self.inputs.pods.pods.get(pod.uid)
        return self.inputs.kubelet_uid(pod) in self.inputs.doubted or (known is not None and known.life.ending)


def derive(inputs: Inputs) -> Snapshot:
    """The snapshot of settled inputs."""
    allocations = [
        entry.on(inputs.inventory, inputs.reference(key.uid)) for key, entry in inputs.recorded.entries.items()
    ]
    allocations += [answer.on(inputs.inventory) for answer in inputs.pending]
    snapshot = Snapshot(inputs, inputs.inventory, Ledger(tuple(allocations)))
    _ = snapshot.free_mask, snapshot.unassigned  # so that no call of the kubelet has to wait for them
    return snapshot
