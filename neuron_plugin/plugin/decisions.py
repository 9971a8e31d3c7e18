"""Decisions that wait for their Allocate.

Allocate names no pod, so a decision is found by its ids: GetPreferredAllocation steers the kubelet to the ids of the
oldest decision that fits, and the ids that come back name it. A decided set is a token: it waits until its ids are
held, whoever's pod the kubelet admitted with it, so two equal pods can at worst swap sets and never share one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from neuron_plugin.allocation.ledger import Ledger, Pod
from neuron_plugin.allocation.requests import ContainerRequest
from neuron_plugin.allocation.resources import Resource, mask_of
from neuron_plugin.plugin.pods import NodePod
from neuron_plugin.topology.geometry import CoreMask, Geometry


@dataclass(frozen=True, slots=True)
class WaitingDecision:
    """The set that one container of one pod is to get."""

    pod: Pod
    request: ContainerRequest
    ids: tuple[int, ...]
    mask: CoreMask


def waiting_decisions(geometry: Geometry, pods: Iterable[NodePod], ledger: Ledger) -> tuple[WaitingDecision, ...]:
    """Every decided set that nobody has been given yet, in the order of the bindings.

    A set that another pod holds, or that has an id this node does not have, does not wait: it can no longer be given.
    """
    decided = [pod for pod in pods if pod.decision and not pod.decision.allocated]
    decided.sort(key=lambda pod: pod.decision.alloc_time_ns if pod.decision else 0)
    sets = (waiting for pod in decided for waiting in _sets_of(geometry, pod))
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
        if decision.request.resource is resource and len(decision.ids) == size and must <= set(decision.ids) <= offered
    )
    return next(fitting, None)


def decision_of(waiting: Iterable[WaitingDecision], resource: Resource, mask: int) -> WaitingDecision | None:
    """The decision that these ids name."""
    return next((one for one in waiting if one.request.resource is resource and one.mask == mask), None)


def _sets_of(geometry: Geometry, pod: NodePod) -> Iterable[WaitingDecision]:
    for part in pod.decision.containers if pod.decision else ():
        mask = mask_of(geometry, part.request.resource.unit, part.ids)
        known = mask.bit_count() == len(part.ids) * _cores_of_one(geometry, part.request.resource)
        if known:
            yield WaitingDecision(pod.pod, part.request, part.ids, mask)


def _can_be_given(waiting: WaitingDecision, ledger: Ledger) -> bool:
    others = [holder for holder in ledger.holders_of(waiting.mask) if holder.pod.uid != waiting.pod.uid]
    own = ledger.holders.get(waiting.pod.uid)
    given = own is not None and any(
        (holding.container, holding.mask) == (waiting.request.container, waiting.mask) for holding in own.holdings
    )
    return not others and not given


def _cores_of_one(geometry: Geometry, resource: Resource) -> int:
    return 1 if resource is Resource.NEURONCORE else geometry.cores_per_device
