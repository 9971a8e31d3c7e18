"""Decisions that wait for their Allocate.

Allocate names no pod, so a decision is found by its ids: GetPreferredAllocation steers the kubelet to the ids of the
oldest decision that fits, and the ids that come back name it. A decided set is a token: it waits until its ids are
held, whoever's pod the kubelet admitted with it, so two equal pods can at worst swap sets and never share one. Once a
swap is certain, the set that was left over waits for the pod whose own is gone: its heir.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from neuron_plugin.allocation import (
    ContainerAssignment,
    ContainerKind,
    ContainerRequest,
    HolderLedger,
    PodReference,
    PodUid,
    Resource,
    mask_of,
)
from neuron_plugin.plugin.pods import NodePod, demanded_cores
from neuron_plugin.plugin.standins import is_outdated
from neuron_plugin.topology import CoreMask, Geometry


@dataclass(frozen=True, slots=True)
class WaitingDecision:
    """The set that one container of one pod is to get.

    ``reuses``: some of it its pod's init containers have before, so the kubelet never asks for it as for new ids.
    """

    pod: PodReference
    request: ContainerRequest
    ids: tuple[int, ...]
    mask: CoreMask
    reuses: bool = False


def waiting_decisions(
    geometry: Geometry, pods: Iterable[NodePod], ledger: HolderLedger, confirmed: Collection[PodUid] = ()
) -> tuple[WaitingDecision, ...]:
    """Every decided set that nobody has been given yet, in the order of the bindings.

    A set that another pod holds, or that has an id this node does not have, does not wait: it can no longer be given.
    What ``confirmed`` pods hold is certain, so they wait for nothing: their sets are their heirs'.
    """
    decided = [pod for pod in pods if pod.decision and not pod.decision.allocated]
    decided.sort(key=lambda pod: pod.decision.alloc_time_ns if pod.decision else 0)
    sets = (waiting for pod in decided for waiting in _sets_of(geometry, pod, decided, ledger, confirmed))
    return tuple(waiting for waiting in sets if _can_be_given(waiting, ledger))


def decision_for(
    waiting: Iterable[WaitingDecision],
    resource: Resource,
    available: Collection[int],
    must_include: Collection[int],
    size: int,
) -> WaitingDecision | None:
    """The oldest waiting decision of this resource and size that the kubelet's offer allows."""
    offered, must = set(available), set(must_include)
    fitting = (
        decision
        for decision in waiting
        if decision.request.resource is resource
        and len(decision.ids) == size
        and must <= set(decision.ids) <= offered
        and not (decision.reuses and not must)
    )
    return next(fitting, None)


def decision_of(waiting: Iterable[WaitingDecision], resource: Resource, mask: int) -> WaitingDecision | None:
    """The decision that these ids name."""
    return next((one for one in waiting if one.request.resource is resource and one.mask == mask), None)


def heir_of(geometry: Geometry, pod: NodePod, pods: Iterable[NodePod], ledger: HolderLedger) -> NodePod | None:
    """The pod whose decided sets ``pod`` was given in place of its own, while it holds nothing itself."""
    holder = ledger.holders.get(pod.pod.uid)
    if holder is None or pod.decision is None:
        return None
    by_container = {holding.container: holding.mask for holding in holder.holdings}
    held = [by_container.get(part.container) for part in pod.request]
    if held == _decided_masks(geometry, pod):
        return None
    equal = (other for other in pods if other.decision and other.pod.uid != pod.pod.uid and _same_demand(other, pod))
    unserved = (other for other in equal if other.pod.uid not in ledger.holders)
    return next((other for other in unserved if _decided_masks(geometry, other) == held), None)


def _same_demand(one: NodePod, other: NodePod) -> bool:
    return _demand(one) == _demand(other)


def _demand(pod: NodePod) -> list[tuple[ContainerKind, Resource, int]]:
    return [(part.kind, part.resource, part.count) for part in pod.request]


def _decided_masks(geometry: Geometry, pod: NodePod) -> list[CoreMask]:
    return [_mask(geometry, part) for part in (pod.decision.containers if pod.decision else ())]


def _sets_of(
    geometry: Geometry, pod: NodePod, decided: Sequence[NodePod], ledger: HolderLedger, confirmed: Collection[PodUid]
) -> Iterator[WaitingDecision]:
    """The decided sets of a pod that this node has, for the pod or for its heir."""
    waits = heir_of(geometry, pod, decided, ledger) if pod.pod.uid in confirmed else pod
    if waits is None or pod.decision is None:
        return
    before: dict[Resource, int] = {}
    for part, request in zip(pod.decision.containers, waits.request, strict=True):
        mask, left = _mask(geometry, part), before.get(request.resource, 0)
        if mask.bit_count() == demanded_cores(geometry, request):
            yield WaitingDecision(waits.pod, request, part.ids, mask, reuses=bool(mask & left))
        if request.kind is ContainerKind.INIT:
            before[request.resource] = left | mask


def _can_be_given(waiting: WaitingDecision, ledger: HolderLedger) -> bool:
    own = ledger.holders.get(waiting.pod.uid)
    if own and any(holding.container == waiting.request.container for holding in own.holdings):
        return False
    others = (holder for holder in ledger.holders_of(waiting.mask) if holder.pod.uid != waiting.pod.uid)
    return all(is_outdated(holder, waiting.request.resource, waiting.mask) for holder in others)


def _mask(geometry: Geometry, part: ContainerAssignment) -> CoreMask:
    return mask_of(geometry, part.request.resource.unit, part.ids)
