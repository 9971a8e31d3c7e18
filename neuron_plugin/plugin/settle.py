"""The end of allocations: which are over, which cores are held down then, and until when.

Nothing is released: an allocation is in the ledger for as long as the inputs say that its pod may use it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from neuron_plugin.allocation import ContainerKind, NeuronPod, PodReference, PodUid, Rejection
from neuron_plugin.allocation.claims import NeuronClaim
from neuron_plugin.allocation.pod import assigned_allocations
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
    named,
)
from neuron_plugin.topology import NO_CORES, CoreMask

VANISHED_SECONDS = 2.0
"""How long cores of a pod that was not seen to stop are held down at least: a container of it may be starting."""
ADMISSION_SECONDS = 3.0
"""How long a hold-down makes a new pod wait in its admission. Then it is shown to the kubelet as an unhealthy device,
which rejects the pod at once. By then the sandbox of a pod that has stopped is gone, and mostly so are the processes of
a pod that was deleted by force."""
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
    """The inputs with allocations from annotations, for containers that may run and that the kubelet's record lacks."""
    entries, inventory = inputs.recorded.entries, inputs.inventory
    answered = {(answer.pod.uid, answer.container) for answer in inputs.pending if answer.pod}
    lost = {}
    for pod in inputs.pods.asking:
        assigned = assigned_allocations(pod, inventory.geometry) if pod.life.started else ()
        for allocation in () if isinstance(assigned, Rejection) else assigned:
            key = AllocationKey(pod.kubelet_uid, allocation.container, allocation.resource)
            if key not in entries and (pod.uid, allocation.container) not in answered:
                ids = inventory.geometry.ids_of(allocation.resource.unit, allocation.mask)
                lost[key] = RecordedAllocation(key, ids, None, seen_at=inputs.now, missing=True, annotated=True)
    for pod in inputs.pods.pods.values() if inputs.claims else ():
        for claim in claims_of(inputs, pod) if pod.life.started else ():
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

    ``until`` ends it where processes cannot be seen, or may be those of the same pod after it came back.
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
