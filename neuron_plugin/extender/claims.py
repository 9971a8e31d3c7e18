"""What a pod holds on a node, read from the pod alone.

The pod is the only store. A live, bound pod holds what its annotations say; one that uses Neuron and does not say
what, or says something its node cannot have, *closes* the node: to guess would hand the same silicon out twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from neuron_plugin.allocation import (
    Assignment,
    AssignmentError,
    ContainerAssignment,
    Holder,
    Holding,
    Placement,
    PodReference,
    PodRequest,
    PodUid,
    mask_of,
    read_assignment,
)
from neuron_plugin.extender.reasons import UNREADABLE_CLAIM, UNTOLD_CLAIM, NodeRefusal
from neuron_plugin.topology import CoreMask, Geometry, Unit


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A request or an assignment that cannot be followed, and why."""

    text: str


@dataclass(frozen=True, slots=True)
class PodRecord:
    """A live pod that asks for Neuron: what it asks, where it is bound (empty: nowhere), what it was given."""

    pod: PodReference
    request: PodRequest | Unreadable
    node: str = ""
    decision: Assignment | Unreadable | None = None
    priority: int = 0
    terminating: bool = False

    @property
    def uid(self) -> PodUid:
        """The key that is never used again."""
        return self.pod.uid


@dataclass(frozen=True, slots=True)
class UnclearClaim:
    """A pod that uses Neuron on a node without saying clearly what: the node takes no new Neuron pod meanwhile."""

    pod: PodReference
    refusal: NodeRefusal
    detail: str


def decision_of(
    pod: PodReference, annotations: Mapping[str, str], request: PodRequest | Unreadable
) -> Assignment | Unreadable | None:
    """The assignment that a pod's annotations carry, in any dialect; None when they carry none."""
    if isinstance(request, Unreadable):
        return None
    try:
        return read_assignment(str(pod), annotations, request)
    except AssignmentError as error:
        return Unreadable(str(error))


def claim_of(record: PodRecord, geometry: Geometry) -> Holder | UnclearClaim:
    """What a bound pod holds on a node of this geometry, or why that is not clear."""
    if isinstance(record.request, Unreadable):
        return UnclearClaim(record.pod, UNREADABLE_CLAIM, record.request.text)
    match record.decision:
        case None:
            return UnclearClaim(record.pod, UNTOLD_CLAIM, f"pod {record.pod} is bound and has no assignment yet")
        case Unreadable(text):
            return UnclearClaim(record.pod, UNREADABLE_CLAIM, text)
        case Assignment() as decision:
            return _held(record.pod, decision, geometry)


def holder_for(pod: PodReference, placement: Placement) -> Holder:
    """The holder that a pod will be once a placement is bound."""
    return Holder(pod, tuple(Holding(part.request.container, part.request.resource, part.mask) for part in placement))


def _held(pod: PodReference, decision: Assignment, geometry: Geometry) -> Holder | UnclearClaim:
    holdings = []
    for part in decision.containers:
        mask = mask_of(geometry, part.request.resource.unit, part.ids)
        if mask.bit_count() != _cores(part, geometry):
            unit = part.request.resource.unit
            text = f"pod {pod} has {unit} ids {part.ids}, and its node is a {geometry.instance_type}"
            return UnclearClaim(pod, UNREADABLE_CLAIM, f"{text} of {geometry.device_count} devices")
        holdings.append(Holding(part.request.container, part.request.resource, CoreMask(mask)))
    return Holder(pod, tuple(holdings))


def _cores(part: ContainerAssignment, geometry: Geometry) -> int:
    return len(part.ids) * (geometry.cores_per_device if part.request.resource.unit is Unit.DEVICE else 1)
