"""What follows from the inputs of one moment: who has what, who waits for what, what is advertised, what to write.

Two pure functions. ``settle`` ends what is over and starts its hold-down; ``derive`` says what the rest means. Nothing
is released: an allocation is in the ledger for as long as the inputs say that its pod may use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from neuron_plugin.allocation import (
    Allocation,
    Assignment,
    ContainerKind,
    ContainerSet,
    DeviceFacts,
    Dialect,
    Ledger,
    NeuronPod,
    NodeInventory,
    PodReference,
    PodUid,
    Rejection,
    Resource,
)
from neuron_plugin.allocation.assignment import write_assignment
from neuron_plugin.allocation.claims import NeuronClaim
from neuron_plugin.allocation.inventory import DISABLED_REASON
from neuron_plugin.allocation.keys import ALLOC_TIME_KEY, ALLOCATED_KEY, ASSIGNMENT_KEYS, VENDOR_IDS_KEY
from neuron_plugin.allocation.narrowing import constraint_not_kept, device_facts
from neuron_plugin.allocation.placement import assignment_of, is_constrained, why_not
from neuron_plugin.allocation.pod import assigned_allocations, mask_union
from neuron_plugin.allocation.rejection import set_kind
from neuron_plugin.allocation.resources import format_ids
from neuron_plugin.kubelet import AdvertisedDevice
from neuron_plugin.plugin.inputs import (
    LISTED_SECONDS,
    PENDING,
    AllocationKey,
    HoldDown,
    Inputs,
    NodePods,
    PendingAnswer,
    RecordedAllocation,
    claim_allocations,
    made_by_api_server,
)
from neuron_plugin.topology import NO_CORES, CoreMask, Unit, valid_sets

VANISHED_SECONDS = 2.0
"""How long cores of a pod that was not seen to stop are held down at least: a container of it may be starting."""
ADMISSION_SECONDS = 3.0
"""How long a hold-down makes a new pod wait in its admission, and is not yet shown to the kubelet as an unhealthy
device, which would reject the pod at once. The sandbox of a pod that has stopped is gone by then, and mostly so are the
processes of one that was deleted by force."""
UNLISTED_SECONDS = 2.0
"""How long the watch may take to show a pod that the kubelet has recorded."""


def settle(inputs: Inputs, populated: Mapping[PodUid, bool | None], hold_down_seconds: float) -> Inputs:
    """The inputs without what is over, and with its cores held down while its pod may still use them.

    ``populated`` says of the pods in ``pods_to_look_at`` whether a process of their cgroup lives, and None where that
    cannot be seen. There is no hold-down if the containers were seen to stop and no process lives. ``_holds`` says when
    one ends.
    """
    over, now = _over(inputs), inputs.now
    lost = [answer for answer in inputs.pending if _is_never_recorded(answer, inputs)]
    pending = tuple(
        answer for answer in inputs.pending if answer not in lost and answer.reply.id not in inputs.recorded.reply_ids
    )
    hold_downs = [hold_down for hold_down in inputs.hold_downs if _holds(hold_down, inputs, populated)]
    ended: dict[PodUid, tuple[PodReference, CoreMask, bool]] = {}
    for key, stopped in over.items():
        pod, mask, _ = ended.get(key.uid, (inputs.reference(key.uid), NO_CORES, stopped))
        mask = CoreMask(mask | inputs.recorded.entries[key].on(inputs.inventory, pod).mask)
        ended[key.uid] = pod, mask, stopped
    for answer in lost:
        allocation, uid = answer.on(inputs.inventory), inputs.uid_of(answer)
        _, mask, _ = ended.get(uid, (allocation.pod, NO_CORES, False))
        ended[uid] = allocation.pod, CoreMask(mask | allocation.mask), False
    for uid, (pod, mask, stopped) in ended.items():
        alive = populated.get(uid)
        if stopped and not alive:
            continue
        reason = f"processes of {named(pod)}, which has ended, may still use it"
        if uid.startswith(PENDING):
            reason = "the kubelet did not record the pod that was given it, whose processes may still use it"
        hold_downs.append(
            HoldDown(
                uid=uid,
                pod=pod,
                mask=mask,
                since=now,
                not_before=now if stopped else now + VANISHED_SECONDS,
                published_from=now + ADMISSION_SECONDS if stopped else now,
                advertised_from=now + ADMISSION_SECONDS,
                until=now + hold_down_seconds,
                reason=reason,
            )
        )
    if not over and len(pending) == len(inputs.pending) and len(hold_downs) == len(inputs.hold_downs):
        return inputs
    return replace(
        inputs,
        recorded=inputs.recorded.without(over),
        pending=pending,
        hold_downs=tuple(hold_downs),
        doubted=inputs.doubted - ended.keys(),
    )


def with_lost_records(inputs: Inputs) -> Inputs:
    """The inputs with what annotations say of containers that may run and of which the kubelet has lost its record."""
    entries, inventory = inputs.recorded.entries, inputs.inventory
    answered = {(answer.pod.uid, answer.container) for answer in inputs.pending if answer.pod}
    lost = {}
    for pod in inputs.pods.asking:
        assigned = assigned_allocations(pod, inventory.geometry) if pod.started else ()
        for allocation in () if isinstance(assigned, Rejection) else assigned:
            key = AllocationKey(pod.kubelet_uid, allocation.container, allocation.resource)
            if key not in entries and (pod.uid, allocation.container) not in answered:
                ids = inventory.geometry.ids_of(allocation.resource.unit, allocation.mask)
                lost[key] = RecordedAllocation(key, ids, None, seen_at=inputs.now, missing=True, annotated=True)
    for pod in inputs.pods.pods.values() if inputs.claims else ():
        for claim in claims_of(inputs, pod) if pod.started else ():
            devices = [result.device for result in claim.results]
            for entry in claim_allocations([pod.kubelet_uid], claim.uid, claim.name, devices, missing=True):
                if devices and entry.key not in entries:
                    lost[entry.key] = replace(entry, seen_at=inputs.now)
    if not lost:
        return inputs
    return replace(inputs, recorded=replace(inputs.recorded, entries={**entries, **lost}))


def claims_of(inputs: Inputs, pod: NeuronPod) -> Iterator[NeuronClaim]:
    """The claims of a pod that were read and are reserved for it."""
    for pod_claim in pod.claims:
        claim = inputs.claims.get((pod.reference.namespace, pod_claim.claim))
        if claim and pod.uid in claim.reserved_for:
            yield claim


def pods_to_look_at(inputs: Inputs) -> frozenset[PodUid]:
    """The pods whose cgroups decide something now."""
    answered = {inputs.uid_of(answer) for answer in inputs.pending if _is_never_recorded(answer, inputs)}
    return frozenset({key.uid for key in _over(inputs)} | {hold_down.uid for hold_down in inputs.hold_downs} | answered)


def pods_of_kubelet_alone(inputs: Inputs) -> frozenset[PodUid]:
    """The pods whose end only the kubelet's record can tell: static pods, and all pods where there is no API server."""
    uids = {key.uid for key in inputs.recorded.entries}
    return frozenset(uid for uid in uids if not (inputs.cluster and made_by_api_server(uid)))


def list_is_due(inputs: Inputs, now: float) -> bool:
    """Whether the API server has to be asked about a recorded pod that it has not shown since the file was read."""
    pods, alone = inputs.pods, pods_of_kubelet_alone(inputs)
    return any(
        key.uid not in alone and key.uid not in pods.pods and now - entry.seen_at >= UNLISTED_SECONDS
        for key, entry in inputs.recorded.entries.items()
    )


def is_explained(inputs: Inputs, uid: PodUid) -> bool:
    """Whether it is known what a pod has that uses devices: it is recorded, or the pod asks for nothing."""
    pod = inputs.pods.by_kubelet_uid.get(uid)
    if any(key.uid == uid for key in inputs.recorded.entries):
        return True
    if pod is None or pod.request:
        return False
    claims = [inputs.claims.get((pod.reference.namespace, pod_claim.claim)) for pod_claim in pod.claims]
    return not any(claim is None or claim.results for claim in claims)


def rewrite_is_due(inputs: Inputs, now: float) -> bool:
    """Whether the kubelet has to write its whole memory before it is known who has what."""
    recorded = inputs.recorded
    alone = pods_of_kubelet_alone(inputs)
    missing = (
        entry.missing and not (entry.gone or key.claim) and key.uid in alone and not _is_shown(entry, inputs.pods)
        for key, entry in recorded.entries.items()
    )
    return not recorded.unreadable and (any(missing) or any(now >= answer.doubtful_at for answer in inputs.pending))


def named(pod: PodReference) -> str:
    """A pod in a message; the kubelet's record has UIDs only."""
    if pod.uid.startswith(PENDING):
        return "a pod that the kubelet has not recorded yet"
    return f"pod {pod}" if pod.name else f"the pod with UID {pod.uid}"


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


@dataclass(frozen=True, slots=True)
class PodWrite:
    """Annotations that a pod should have and has not; None removes one.

    ``correction`` is set where they differ from the assignment that the pod came with.
    """

    pod: PodReference
    annotations: Mapping[str, str | None]
    correction: str = ""


@dataclass(frozen=True, slots=True)
class PodEvent:
    """Something that the owner of a pod should know."""

    pod: PodReference
    reason: str
    text: str


@dataclass(frozen=True)
class Snapshot:
    """All that follows from ``inputs``. What every call needs is derived at once, the rest when it is first read."""

    inputs: Inputs
    inventory: NodeInventory
    ledger: Ledger

    @cached_property
    def offered_mask(self) -> CoreMask:
        """Healthy cores that neither an operator nor a hold-down keeps back, whether in use or not."""
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
        """What each container has, of pods that have a name; cores that a later container re-uses are that one's."""
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
        """The assigned sets that can still be given, oldest first; of each pod that of its next container.

        A pod with a started container waits for nothing: if the kubelet has lost its record of that pod, no other pod
        may be given its set.
        """
        assignments = []
        for pod in self.inputs.pods.asking:
            served = {allocation.container for allocation in self.ledger.of(pod.uid)}
            if pod.started or all(container.name in served for container in pod.requests):
                continue
            place = next(place for place, container in enumerate(pod.requests) if container.name not in served)
            assigned = self._usable_assignment(pod)
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
            and not pod.started
            and {container.name for container in pod.requests}
            - {allocation.container for allocation in self.ledger.of(pod.uid)}
        )

    def reusable_masks(self, pod: NeuronPod, resource: Resource) -> tuple[CoreMask, CoreMask]:
        """What plain init containers of a pod have and no later container of it was given.

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

        What is in use under this same name stays healthy: the kubelet counts that itself. What is in use under another
        name, broken, disabled or held down, is unhealthy.

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
        """What the cluster should know: devices that a hold-down keeps back are unhealthy, too.

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
    def writes(self) -> tuple[PodWrite, ...]:
        """Annotations to write, in this order.

        A pod that takes over another's set comes before that other, so that no two pods claim one set meanwhile.
        """
        handed_over = []
        for pod in self.inputs.pods.asking:  # one that was not served takes over the set which another pod left
            assigned = () if self.ledger.of(pod.uid) else self._usable_assignment(pod)
            if assigned and assigned != assigned_allocations(pod, self.inventory.geometry):
                handed_over.append(
                    self._assignment_write(pod, [allocation.mask for allocation in assigned], allocated=False)
                )
        return (*handed_over, *(write for pod in self.inputs.pods.asking if (write := self._served(pod))))

    @cached_property
    def events(self) -> tuple[PodEvent, ...]:
        """What the owners of this node's pods should know. Equal events of later snapshots are the same news."""
        events, geometry = [], self.inventory.geometry
        for pod in self.inputs.pods.pods.values():
            if isinstance(pod.request, Rejection):
                events.append(PodEvent(pod.reference, "InvalidNeuronRequest", str(pod.request)))
            elif pod.request and pod.assignment is not None:
                assigned = assigned_allocations(pod, geometry)
                if isinstance(assigned, Rejection):
                    events.append(PodEvent(pod.reference, "InvalidNeuronAssignment", str(assigned)))
            if is_constrained(pod.requests):
                constraints = pod.requests[0].constraints
                has = {allocation.container: allocation.mask for allocation in self.ledger.of(pod.uid)}
                if isinstance(constraints, Rejection):
                    events.append(PodEvent(pod.reference, "InvalidNeuronConstraint", str(constraints)))
                elif text := constraint_not_kept(geometry, pod.requests, self.device_facts, has):
                    events.append(PodEvent(pod.reference, "ConstraintNotKept", text))
            if pod.privileged and pod.started and (text := self._sees_more_text(pod)):
                events.append(PodEvent(pod.reference, "PrivilegedContainer", text))
        for entry in self.inputs.recorded.entries.values():
            if entry.key.claim or (known := self.inputs.pods.by_kubelet_uid.get(entry.key.uid)) is None:
                continue
            allocation, assigned = entry.on(self.inventory, known.reference), assigned_allocations(known, geometry)
            chosen = () if isinstance(assigned, Rejection) else assigned
            as_chosen = any(
                (other.container, other.mask) == (allocation.container, allocation.mask) for other in chosen
            )
            if not as_chosen and (why := self.unlinked_text(allocation.resource, allocation.mask)):
                unit, resource = allocation.resource.unit, allocation.resource.value
                ids = ", ".join(map(str, geometry.ids_of(unit, allocation.mask)))
                what = f"{resource} ids {ids} of container {allocation.container}"
                text = f"{what} are not {set_kind(geometry, unit)}: {why}"
                events.append(PodEvent(known.reference, "UnlinkedDevices", text))
        return tuple(events)

    @cached_property
    def unhealthy_devices(self) -> Mapping[PodReference, Mapping[int, str]]:
        """Which devices of the pods that the API server shows are unhealthy, and why."""
        by_pod: dict[PodReference, Mapping[int, str]] = {}
        for uid in self.ledger.by_pod if self.inventory.unhealthy else ():
            pod = self.inputs.pods.pods.get(uid)
            devices = self.inventory.geometry.devices_touched(self.ledger.mask_of(uid))
            if pod and (sick := [device for device in devices if device in self.inventory.unhealthy]):
                by_pod[pod.reference] = {int(device): self.inventory.unhealthy[device] for device in sick}
        return by_pod

    @cached_property
    def wrongly_labelled(self) -> tuple[NeuronPod, ...]:
        """The pods that should have the label of an unhealthy device and have not, or the reverse."""
        pods, sick = self.inputs.pods.pods.values(), self.unhealthy_devices
        return tuple(pod for pod in pods if pod.labelled_unhealthy != (pod.reference in sick))

    @property
    def device_facts(self) -> DeviceFacts:
        """What constraints ask about the devices, as far as the machine says it."""
        return device_facts(self.inventory.device_name, self.inventory.geometry.instance_type, None)

    def unlinked_text(self, resource: Resource, mask: CoreMask) -> str:
        """Why a set is not one that the topology hands out; empty if it is one."""
        geometry = self.inventory.geometry
        ids = geometry.ids_of(resource.unit, mask)
        if mask in valid_sets(geometry, resource.unit, len(ids)):
            return ""
        return why_not(geometry, mask, resource.unit, len(ids)).text

    # What the above is made of.

    def _may_end(self, pod: PodReference) -> bool:
        """Whether the kubelet may soon give to others what a pod has."""
        known = self.inputs.pods.pods.get(pod.uid)
        return self.inputs.kubelet_uid(pod) in self.inputs.doubted or (known is not None and known.ending)

    def _sees_more_text(self, pod: NeuronPod) -> str:
        """Which privileged containers of a pod see devices that are not the pod's; empty if none does."""
        has, claims = self.ledger.of(pod.uid), {claim.claim: claim.users for claim in pod.claims}
        users = {name for one in has for name, _ in claims.get(one.claim, ()) or ((one.container, ""),)}
        names = [name for name in pod.privileged if name in users]
        devices = self.inventory.geometry.devices_touched(self.ledger.mask_of(pod.uid))
        if not names or set(self.inventory.present) <= set(devices):
            return ""
        return (
            f"container {', '.join(names)} is privileged: it sees every Neuron device of the node, and only "
            f"{format_ids(devices)} of them are the pod's"
        )

    def _usable_assignment(self, pod: NeuronPod) -> tuple[Allocation, ...]:
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

    def _served(self, pod: NeuronPod) -> PodWrite | None:
        """The annotations of a pod whose containers are all in the kubelet's record.

        Half an assignment would be read as a malformed one, so nothing is written before. PodResources does not list
        plain init containers: without the checkpoint an assignment that the others confirm is only marked.
        """
        recorded = {
            key.container: entry.on(self.inventory, pod.reference).mask
            for key, entry in self.inputs.recorded.entries.items()
            if key.uid == pod.kubelet_uid
        }
        assigned = assigned_allocations(pod, self.inventory.geometry)
        missing = [container for container in pod.requests if container.name not in recorded]
        if not isinstance(assigned, Rejection) and recorded:
            unlisted = bool(self.inputs.recorded.unreadable) and all(
                container.kind is ContainerKind.INIT for container in missing
            )
            as_assigned = all(
                recorded.get(allocation.container, allocation.mask) == allocation.mask for allocation in assigned
            )
            if as_assigned and (not missing or unlisted):
                done = isinstance(pod.assignment, Assignment) and pod.assignment.allocated
                return None if done else PodWrite(pod.reference, {ALLOCATED_KEY: "true"})
        if missing:
            return None
        return self._assignment_write(pod, [recorded[container.name] for container in pod.requests], allocated=True)

    def _assignment_write(self, pod: NeuronPod, masks: Sequence[CoreMask], *, allocated: bool) -> PodWrite:
        """The sets in the dialects that the pod has, in place of every assignment that it had.

        The time of an assignment is kept; 0 stands for the time of the write.
        """
        dialects = {Dialect.NEURON_PLUGIN} | ({Dialect.VENDOR} if VENDOR_IDS_KEY in pod.assignment_keys else set())
        placement = tuple(ContainerSet(container, mask) for container, mask in zip(pod.requests, masks, strict=True))
        time_ns = pod.assignment.alloc_time_ns if isinstance(pod.assignment, Assignment) else 0
        annotations: dict[str, str | None] = dict.fromkeys(pod.assignment_keys)
        annotations |= write_assignment(assignment_of(self.inventory.geometry, placement, time_ns), dialects)
        annotations |= {ALLOC_TIME_KEY: str(time_ns), ALLOCATED_KEY: "true" if allocated else "false"}
        ids = ", ".join(f"{key}={annotations[key]}" for key in ASSIGNMENT_KEYS if annotations.get(key))
        was_assigned = bool(pod.assignment_keys) and not isinstance(pod.assignment, Rejection)
        correction = f"{named(pod.reference)} got another set than it was assigned: {ids}" if was_assigned else ""
        return PodWrite(pod.reference, annotations, correction)


def derive(inputs: Inputs) -> Snapshot:
    """What follows from settled inputs."""
    allocations = [
        entry.on(inputs.inventory, inputs.reference(key.uid)) for key, entry in inputs.recorded.entries.items()
    ]
    allocations += [answer.on(inputs.inventory) for answer in inputs.pending]
    snapshot = Snapshot(inputs, inputs.inventory, Ledger(tuple(allocations)))
    _ = snapshot.free_mask, snapshot.unassigned  # so that no call of the kubelet has to wait for them
    return snapshot


def _over(inputs: Inputs) -> dict[AllocationKey, bool]:
    """The recorded allocations that are over; True where the containers are known to have stopped.

    A pod that the API server made is over when its end was seen, or when a consistent LIST that began after the file
    was read lacks it: it lives as long as the API says so, even if the kubelet lost it or offers its ids. Of any other
    pod only the kubelet knows: it is over when a file that was rewritten since has nothing of it any more.
    """
    pods, recorded = inputs.pods, inputs.recorded
    alone = pods_of_kubelet_alone(inputs)
    present = {key.uid for key, entry in recorded.entries.items() if not entry.missing}
    over: dict[AllocationKey, bool] = {}
    for key, entry in recorded.entries.items():
        if key.uid in alone:
            if entry.gone and key.uid not in present and not _is_shown(entry, pods):
                over[key] = False
        elif key.uid in pods.ended and key.uid not in pods.pods:
            over[key] = pods.ended[key.uid]
        elif key.uid not in pods.pods and pods.listed_at is not None and entry.seen_at < pods.listed_at:
            over[key] = False
    return over


def _is_shown(entry: RecordedAllocation, pods: NodePods) -> bool:
    return entry.annotated and entry.key.uid in pods.by_kubelet_uid


def _holds(hold_down: HoldDown, inputs: Inputs, populated: Mapping[PodUid, bool | None]) -> bool:
    """Whether a hold-down goes on: until ``not_before``, and then while a process of the pod lives, however long.

    Only where that cannot be seen, or may be a process of the same pod that came back, does ``until`` end it.
    """
    if hold_down.unknown and is_explained(inputs, hold_down.uid):
        return False
    is_recorded = any(key.uid == hold_down.uid for key in inputs.recorded.entries)
    if inputs.now < hold_down.not_before:
        return True
    alive = populated.get(hold_down.uid)
    if alive is None or is_recorded:  # a static pod came back under its UID: its processes may be new ones
        return inputs.now < hold_down.until and alive is not False
    return alive


def _is_never_recorded(answer: PendingAnswer, inputs: Inputs) -> bool:
    """Whether an answer is not in the kubelet's record and certainly will never be.

    Such a pod may still start: the kubelet forgets a pod that is removed during its admission.
    """
    recorded = inputs.recorded
    if answer.reply.id in recorded.reply_ids:
        return False
    if not recorded.unreadable:
        return recorded.rewritten_at >= answer.doubtful_at
    may_be_init = any(
        container.kind is ContainerKind.INIT
        and container.resource is answer.resource
        and container.count == len(answer.ids)
        for pod in inputs.pods.asking
        for container in pod.requests
    )
    return not may_be_init and recorded.read_at >= answer.at + LISTED_SECONDS
