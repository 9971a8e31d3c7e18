"""A pod that asks for Neuron, as plugin, extender and command line see it.

One decoder makes it from the API server's object, so that the scheduler and the node can never disagree about what a
pod asks for, what it was assigned and what that means on a node's geometry.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Protocol, TypeAlias

from neuron_plugin.allocation.assignment import ASSIGNMENT_KEYS, Assignment, AssignmentError, read_assignment
from neuron_plugin.allocation.constraints import CONSTRAINT_KEYS, LONGEST_TEXT, PREFIX, read_constraints
from neuron_plugin.allocation.ledger import Allocation, PodReference, PodUid
from neuron_plugin.allocation.rejection import INVALID_REQUEST, NO_ASSIGNMENT, UNREADABLE_ASSIGNMENT, Rejection
from neuron_plugin.allocation.requests import (
    ContainerKind,
    ContainerSpec,
    PodRequest,
    RequestError,
    parse_count,
    pod_request,
)
from neuron_plugin.allocation.resources import Resource, mask_of
from neuron_plugin.topology import CoreMask, Geometry, Unit

TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})
STATIC_POD_UID_KEY = "kubernetes.io/config.hash"
"""On a mirror pod: the UID under which the kubelet knows the static pod (pkg/kubelet/types/constants.go)."""
UNHEALTHY_LABEL = "neuron-plugin.io/device-unhealthy"
"""Label of a pod that has an unhealthy device, where the plugin is set to write it."""

PLACEMENT_KEY = "neuron-plugin.io/placement"
"""On a pod: the strategy by which its node is chosen, in place of the extender's own."""

MOVABLE_KEY = f"{PREFIX}movable"
"""On a pod: "true" lets it be evicted where that makes room for another and it fits elsewhere."""
LAST_CHECKPOINT_KEY = f"{PREFIX}last-checkpoint"
"""On a pod: when it last saved its work (RFC 3339), from which on an eviction would lose it."""
_NOT_MADE_AGAIN = frozenset({"Node", "DaemonSet"})
"""Controllers that make a pod again on the same node only, or not at all (static pods)."""

_RESOURCE_NAMES = tuple(resource.value for resource in Resource)
_FIRST_YEAR = 1970
_REQUESTS_REMEMBERED = 4_096

_Quantities: TypeAlias = tuple[tuple[str, str], ...]
_ContainerKey: TypeAlias = tuple[str, ContainerKind, _Quantities, _Quantities]


class PlacementStrategy(enum.StrEnum):
    """Which of the nodes that fit a pod gets."""

    PACK = "pack"
    """The node where it takes least from later pods."""
    SPREAD = "spread"
    """The node with the most free devices."""


class ContainerObject(Protocol):
    """A container as the API server describes it."""

    @property
    def name(self) -> str:
        """Unique in its pod."""

    @property
    def limits(self) -> Mapping[str, str]:
        """Resource name to quantity."""

    @property
    def requests(self) -> Mapping[str, str]:
        """Resource name to quantity."""


class PodObject(Protocol):
    """A pod as the API server describes it: the fields that ``neuron_pod`` reads."""

    @property
    def uid(self) -> str:
        """Never used again, unlike the name."""

    @property
    def namespace(self) -> str:
        """The pod's namespace."""

    @property
    def name(self) -> str:
        """Unique in its namespace at one time."""

    @property
    def node_name(self) -> str:
        """The node that the pod is bound to; empty while it waits."""

    @property
    def annotations(self) -> Mapping[str, str]:
        """The pod's annotations."""

    @property
    def labels(self) -> Mapping[str, str]:
        """The pod's labels."""

    @property
    def priority(self) -> int:
        """0 without a priority class."""

    @property
    def phase(self) -> str:
        """Pending, Running, Succeeded, Failed or Unknown."""

    @property
    def terminating(self) -> bool:
        """Whether ``deletionTimestamp`` is set."""

    @property
    def started(self) -> bool:
        """Whether any of the pod's containers has started."""

    @property
    def running(self) -> bool:
        """Whether the status shows a container that runs."""

    @property
    def controller(self) -> tuple[str, str]:
        """Kind and name of the owner that controls the pod; empty texts without one."""

    @property
    def scheduling_group(self) -> str:
        """The PodGroup that the pod is scheduled with; empty without one."""

    @property
    def prefers_nodes(self) -> bool:
        """Whether the spec prefers some nodes to others."""

    @property
    def containers(self) -> Iterable[tuple[ContainerObject, ContainerKind]]:
        """All containers in the order in which the kubelet admits them."""


@dataclass(frozen=True, slots=True)
class NeuronPod:
    """What decides about a pod: what it asks for, where it is bound, which ids the scheduler assigned to it.

    ``request`` is empty for a pod that asks for no Neuron, and a ``Rejection`` that cannot be served.
    ``assignment`` is None without one, and a ``Rejection`` where its annotations cannot be followed.
    ``static_uid`` is the UID under which the kubelet knows a static pod; this object is then its mirror.
    ``assignment_keys`` are the annotations that name ids, readable or not. ``refused_demands`` are
    what the containers of a request that cannot be served ask the kubelet for all the same. ``labelled_unhealthy``:
    it has ``UNHEALTHY_LABEL``.

    ``group`` is the PodGroup that the pod is scheduled with, as namespace and name. ``placement`` is the annotation's
    text, whatever it says. ``prefers_nodes`` says that the spec prefers some nodes to others.

    ``controller`` is what makes the pod again somewhere else, as KIND/NAME; empty without such a controller.
    ``movable`` says whether the pod may be evicted to make room, None where that is for its namespace to say, and
    ``last_checkpoint`` when it saved its work, in unix seconds.
    """

    reference: PodReference
    request: PodRequest | Rejection
    node: str = ""
    assignment: Assignment | Rejection | None = None
    priority: int = 0
    phase: str = ""
    terminating: bool = False
    started: bool = False
    running: bool = False
    static_uid: str = ""
    assignment_keys: tuple[str, ...] = ()
    refused_demands: frozenset[tuple[Resource, int]] = frozenset()
    group: tuple[str, str] | None = None
    placement: str = ""
    prefers_nodes: bool = False
    labelled_unhealthy: bool = False
    controller: str = ""
    movable: bool | None = None
    last_checkpoint: float = 0.0

    @property
    def work_since(self) -> float:
        """From when on an eviction would lose the pod's work, in unix seconds: its assignment or last checkpoint."""
        assigned = self.assignment.alloc_time_ns / 1e9 if isinstance(self.assignment, Assignment) else 0.0
        return max(assigned, self.last_checkpoint)

    @property
    def uid(self) -> PodUid:
        """The pod's key in every table."""
        return self.reference.uid

    @property
    def kubelet_uid(self) -> PodUid:
        """The UID in the kubelet's checkpoint."""
        return PodUid(self.static_uid) if self.static_uid else self.reference.uid

    @property
    def ended(self) -> bool:
        """The phase is terminal. All containers have stopped for good, unless PodGC has set the phase."""
        return self.phase in TERMINAL_PHASES

    @property
    def requests(self) -> PodRequest:
        """The request, or nothing where it cannot be served."""
        return () if isinstance(self.request, Rejection) else self.request


def asks_for_neuron(pod: PodObject) -> bool:
    """Whether a container of the pod names one of the resources, be it with the quantity 0."""
    return any(
        name in container.limits or name in container.requests
        for container, _ in pod.containers
        for name in _RESOURCE_NAMES
    )


def neuron_pod(pod: PodObject) -> NeuronPod:
    """Decode a pod. Nothing in it can fail this: what cannot be followed becomes a ``Rejection``."""
    request = _request(
        tuple(
            (container.name, kind, _neuron_quantities(container.limits), _neuron_quantities(container.requests))
            for container, kind in pod.containers
        ),
        # Bounded, as they are remembered; one character more than is read shows that a text is too long.
        tuple((key, pod.annotations[key][: LONGEST_TEXT + 1]) for key in CONSTRAINT_KEYS if key in pod.annotations),
    )
    reference = PodReference(PodUid(pod.uid), pod.namespace, pod.name)
    assignment: Assignment | Rejection | None = None
    if request and not isinstance(request, Rejection) and not pod.annotations.keys().isdisjoint(ASSIGNMENT_KEYS):
        try:
            assignment = read_assignment(str(reference), pod.annotations, request)
        except AssignmentError as error:
            assignment = replace(UNREADABLE_ASSIGNMENT, detail=str(error))
    return NeuronPod(
        reference=reference,
        request=request,
        node=pod.node_name,
        assignment=assignment,
        priority=pod.priority,
        phase=pod.phase,
        terminating=pod.terminating,
        started=pod.started or pod.phase == "Running",
        running=pod.running,
        static_uid=pod.annotations.get(STATIC_POD_UID_KEY, ""),
        assignment_keys=tuple(key for key in ASSIGNMENT_KEYS if key in pod.annotations),
        refused_demands=_refused_demands(pod) if isinstance(request, Rejection) else frozenset(),
        group=(pod.namespace, pod.scheduling_group) if pod.scheduling_group else None,
        placement=pod.annotations.get(PLACEMENT_KEY, ""),
        prefers_nodes=pod.prefers_nodes,
        labelled_unhealthy=UNHEALTHY_LABEL in pod.labels,
        controller="" if pod.controller[0] in _NOT_MADE_AGAIN else "/".join(filter(None, pod.controller)),
        movable=is_movable(pod.annotations),
        last_checkpoint=_unix_seconds(pod.annotations.get(LAST_CHECKPOINT_KEY, "")),
    )


def is_movable(annotations: Mapping[str, str]) -> bool | None:
    """Whether a pod, or a namespace for its pods, allows evictions that make room; None if it does not say."""
    text = annotations.get(MOVABLE_KEY)
    return None if text is None else text.lower() == "true"


def assigned_allocations(pod: NeuronPod, geometry: Geometry) -> tuple[Allocation, ...] | Rejection:
    """What a pod's assignment means on a node of this geometry: the one place where this is decided.

    A pod without an assignment, with one that cannot be read, or with ids that the node does not have is rejected:
    the extender then closes the node to new pods, the plugin serves the pod like one without an assignment.
    """
    if isinstance(pod.request, Rejection):
        return replace(UNREADABLE_ASSIGNMENT, detail=pod.request.detail)
    if isinstance(pod.assignment, Rejection):
        return pod.assignment
    if not pod.request:
        return ()
    if pod.assignment is None:
        return replace(NO_ASSIGNMENT, detail=f"pod {pod.reference} is bound and has no assignment yet")
    allocations = []
    for part in pod.assignment.containers:
        unit = part.request.resource.unit
        mask = mask_of(geometry, unit, part.ids)
        if mask.bit_count() != len(part.ids) * (geometry.cores_per_device if unit is Unit.DEVICE else 1):
            return replace(
                UNREADABLE_ASSIGNMENT,
                detail=f"pod {pod.reference} has {unit} ids {part.ids}, and its node is a {geometry.instance_type} "
                f"of {geometry.device_count} devices with {geometry.cores_per_device} cores each",
            )
        asked = part.request
        what = (pod.reference, asked.container, asked.resource, CoreMask(mask))
        allocations.append(Allocation(*what, amounts=asked.amounts, kind=asked.kind))
    return tuple(allocations)


@lru_cache(maxsize=_REQUESTS_REMEMBERED)
def _request(containers: tuple[_ContainerKey, ...], constraint_texts: _Quantities) -> PodRequest | Rejection:
    """Equal requests are one object. Exact quantities cost tens of microseconds, and pods ask for few things."""
    try:
        request = pod_request(ContainerSpec(name, kind, dict(lim), dict(req)) for name, kind, lim, req in containers)
    except RequestError as error:
        return replace(INVALID_REQUEST, detail=str(error))
    if not constraint_texts:
        return request
    asked = [(part.container, part.resource.unit) for part in request]
    constraints = read_constraints(dict(constraint_texts), asked)
    return tuple(replace(part, constraints=constraints) for part in request)


def _unix_seconds(text: str) -> float:
    """A time of RFC 3339 in unix seconds; 0 for any other text."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return 0.0
    return time.timestamp() if time.tzinfo and time.year > _FIRST_YEAR else 0.0


def _refused_demands(pod: PodObject) -> frozenset[tuple[Resource, int]]:
    found = set()
    for container, _ in pod.containers:
        for resource in Resource:
            with suppress(ValueError):
                text = container.limits.get(resource.value, container.requests.get(resource.value, "0"))
                found.add((resource, parse_count(text)))
    return frozenset(demand for demand in found if demand[1])


def _neuron_quantities(quantities: Mapping[str, str]) -> _Quantities:
    return tuple(item for item in quantities.items() if item[0] in _RESOURCE_NAMES or item[0].startswith(PREFIX))
