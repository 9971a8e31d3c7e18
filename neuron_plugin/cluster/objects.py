"""Kubernetes objects as this project reads them, and how they are listed and decoded.

Only the fields that matter are decoded, straight from the server's bytes: a pod of 7 KB becomes a record of some
hundred bytes in about 15 µs because everything else is skipped unread. The structs follow the wire's nesting; the
properties on top are what the rest of the code uses, with nothing None that need not be.

Whatever comes in, the only error that goes out is ``DecodeError``: a garbled
answer is one more failure of the cluster, never a crash.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

from neuron_plugin.allocation import ContainerKind
from neuron_plugin.cluster.api import UNREADABLE, ApiRequest, ApiServer, DecodeError, send

TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})
HOLDER_URL_KEY = "neuron-plugin.io/holder-url"
"""Annotation of a Lease: where its holder can be reached."""

PAGE_SIZE = 500
"""Objects per page of a list: decoded in some milliseconds, so memory and the event loop's pauses stay small."""

_NONE: Mapping[str, str] = {}
_MAX_QUOTED = 120
_MAX_VERSION_DIGITS = 20  # of a 64-bit number


class _Wire(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Base of all: names as on the wire, and no cycles, hence nothing for the garbage collector to visit."""


class ObjectReference(_Wire, frozen=True, omit_defaults=True):
    """Which object an event is about."""

    kind: str
    name: str
    uid: str
    api_version: str
    namespace: str = ""


class _Owner(_Wire, frozen=True):
    kind: str = ""
    name: str = ""
    controller: bool | None = None


class Metadata(_Wire, frozen=True):
    """``metadata``; the server leaves empty parts out or sends null."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    owner_references: tuple[_Owner, ...] | None = None


class ApiObject(_Wire, frozen=True):
    """What every record has."""

    metadata: Metadata

    @property
    def uid(self) -> str:
        """Unique for ever, unlike the name."""
        return self.metadata.uid

    @property
    def name(self) -> str:
        """Unique within its namespace and kind, at one time."""
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """Empty for cluster-wide kinds."""
        return self.metadata.namespace

    @property
    def resource_version(self) -> str:
        """The version of this state of the object, decimal."""
        return self.metadata.resource_version

    @property
    def annotations(self) -> Mapping[str, str]:
        """Possibly empty."""
        return self.metadata.annotations or _NONE

    @property
    def labels(self) -> Mapping[str, str]:
        """Possibly empty."""
        return self.metadata.labels or _NONE


class Resources(_Wire, frozen=True):
    """``resources`` of a container: quantities as written, such as ``2`` or ``1k``."""

    limits: dict[str, str] | None = None
    requests: dict[str, str] | None = None


class Container(_Wire, frozen=True):
    """A container of either list."""

    name: str = ""
    restart_policy: str | None = None
    resources: Resources | None = None

    @property
    def limits(self) -> Mapping[str, str]:
        """Resource name to quantity."""
        return (self.resources and self.resources.limits) or _NONE

    @property
    def requests(self) -> Mapping[str, str]:
        """Resource name to quantity."""
        return (self.resources and self.resources.requests) or _NONE


class _Present(_Wire, frozen=True):
    """An object of which only its presence matters."""


class _Preferred(_Wire, frozen=True):
    preferred_during_scheduling_ignored_during_execution: tuple[_Present, ...] | None = None


class _Affinity(_Wire, frozen=True):
    node_affinity: _Preferred | None = None
    pod_affinity: _Preferred | None = None
    pod_anti_affinity: _Preferred | None = None


class _SpreadConstraint(_Wire, frozen=True):
    when_unsatisfiable: str = ""


class _SchedulingGroup(_Wire, frozen=True):
    pod_group_name: str | None = None


class _PodSpec(_Wire, frozen=True):
    node_name: str = ""
    priority: int | None = None
    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None
    affinity: _Affinity | None = None
    topology_spread_constraints: tuple[_SpreadConstraint, ...] | None = None
    scheduling_group: _SchedulingGroup | None = None


class _ContainerState(_Wire, frozen=True):
    running: _Present | None = None
    terminated: _Present | None = None


class _ContainerStatus(_Wire, frozen=True):
    started: bool | None = None
    state: _ContainerState | None = None
    last_state: _ContainerState | None = None


class _PodStatus(_Wire, frozen=True):
    phase: str = ""
    reason: str | None = None
    container_statuses: tuple[_ContainerStatus, ...] | None = None
    init_container_statuses: tuple[_ContainerStatus, ...] | None = None


class Pod(ApiObject, frozen=True):
    """A pod."""

    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()

    @property
    def node_name(self) -> str:
        """The node it is bound to; empty before."""
        return self.spec.node_name

    @property
    def phase(self) -> str:
        """Pending, Running, Succeeded, Failed or Unknown."""
        return self.status.phase

    @property
    def terminal(self) -> bool:
        """Its containers have ended for good, though the object may stay."""
        return self.status.phase in TERMINAL_PHASES

    @property
    def terminating(self) -> bool:
        """Its deletion has begun; it keeps its devices until it is gone."""
        return self.metadata.deletion_timestamp is not None

    @property
    def priority(self) -> int:
        """0 where no priority class says otherwise."""
        return self.spec.priority or 0

    @property
    def controller(self) -> tuple[str, str]:
        """Kind and name of the owner that controls it; empty texts without one."""
        owners = self.metadata.owner_references or ()
        return next(((owner.kind, owner.name) for owner in owners if owner.controller), ("", ""))

    @property
    def scheduling_group(self) -> str:
        """The PodGroup that it is scheduled with, in its own namespace; empty without one."""
        return (self.spec.scheduling_group and self.spec.scheduling_group.pod_group_name) or ""

    @property
    def prefers_nodes(self) -> bool:
        """Whether its spec prefers some nodes to others, which the scheduler's own scorers judge."""
        affinity = self.spec.affinity or _Affinity()
        kinds = (affinity.node_affinity, affinity.pod_affinity, affinity.pod_anti_affinity)
        return any(kind and kind.preferred_during_scheduling_ignored_during_execution for kind in kinds) or any(
            each.when_unsatisfiable == "ScheduleAnyway" for each in self.spec.topology_spread_constraints or ()
        )

    @property
    def rejected_at_admission(self) -> bool:
        """Whether its kubelet got no devices for it from the plugin: the pod has failed for good."""
        return self.status.phase == "Failed" and self.status.reason == "UnexpectedAdmissionError"

    @property
    def containers(self) -> Iterator[tuple[Container, ContainerKind]]:
        """Every container and when it runs, in the order in which the kubelet admits them."""
        for container in self.spec.init_containers or ():
            yield container, ContainerKind.SIDECAR if container.restart_policy == "Always" else ContainerKind.INIT
        for container in self.spec.containers or ():
            yield container, ContainerKind.APP

    @property
    def started(self) -> bool:
        """Whether any container, init containers included, runs or has ever run.

        A container that crashed and waits for its restart has only its last state.
        """
        for statuses in (self.status.init_container_statuses, self.status.container_statuses):
            for status in statuses or ():
                states = (status.state, status.last_state)
                if status.started or any(state and (state.running or state.terminated) for state in states):
                    return True
        return False

    @property
    def running(self) -> bool:
        """Whether a container runs. Of a pod whose phase PodGC has set to Failed the status may show that still."""
        parts = (self.status.init_container_statuses, self.status.container_statuses)
        return any(status.state and status.state.running for statuses in parts for status in statuses or ())


class _Condition(_Wire, frozen=True):
    type: str = ""


class _NodeStatus(_Wire, frozen=True):
    capacity: dict[str, str] | None = None
    allocatable: dict[str, str] | None = None
    conditions: tuple[_Condition, ...] | None = None


class _NodeSpec(_Wire, frozen=True):
    unschedulable: bool | None = None


class Node(ApiObject, frozen=True):
    """A node."""

    spec: _NodeSpec = _NodeSpec()
    status: _NodeStatus = _NodeStatus()

    @property
    def unschedulable(self) -> bool:
        """Whether it is cordoned."""
        return bool(self.spec.unschedulable)

    @property
    def condition_types(self) -> frozenset[str]:
        """Which conditions its status has."""
        return frozenset(condition.type for condition in self.status.conditions or ())

    @property
    def capacity(self) -> Mapping[str, str]:
        """Resource name to quantity, unhealthy devices included."""
        return self.status.capacity or _NONE

    @property
    def allocatable(self) -> Mapping[str, str]:
        """Resource name to quantity that pods can get, the used part included."""
        return self.status.allocatable or _NONE


class _LeaseSpec(_Wire, frozen=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    lease_transitions: int | None = None
    renew_time: str | None = None


class Lease(ApiObject, frozen=True):
    """A lease: its holder is alive, or is the leader."""

    spec: _LeaseSpec = _LeaseSpec()

    @property
    def holder(self) -> str:
        """Empty while it has no holder."""
        return self.spec.holder_identity or ""

    @property
    def holder_url(self) -> str:
        """Where the holder can be reached; empty if it does not say."""
        return self.annotations.get(HOLDER_URL_KEY, "")

    @property
    def duration_seconds(self) -> int:
        """How long after its last renewal others must leave it alone; 0 if it does not say."""
        return self.spec.lease_duration_seconds or 0

    @property
    def renewed_at(self) -> str:
        """When its holder last renewed it, by the holder's clock: for people, see ``leases``."""
        return self.spec.renew_time or ""

    @property
    def transitions(self) -> int:
        """How often its holder changed."""
        return self.spec.lease_transitions or 0


class _Gang(_Wire, frozen=True):
    min_count: int = 0


class _SchedulingPolicy(_Wire, frozen=True):
    gang: _Gang | None = None


class _PodGroupSpec(_Wire, frozen=True):
    scheduling_policy: _SchedulingPolicy = _SchedulingPolicy()


class PodGroup(ApiObject, frozen=True):
    """Pods that kube-scheduler places together or not at all."""

    spec: _PodGroupSpec = _PodGroupSpec()

    @property
    def min_count(self) -> int:
        """How many of its pods must be placed for any to be; 0 if it is no gang."""
        gang = self.spec.scheduling_policy.gang
        return gang.min_count if gang else 0


# Resources of the API.


class Record(Protocol):
    """What is listed and watched; ``ApiObject`` is one."""

    @property
    def uid(self) -> str:
        """Unique for ever."""

    @property
    def resource_version(self) -> str:
        """The version of this state of the object, decimal."""


R = TypeVar("R", bound=Record)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[R]):
    """One page of a list. ``version`` is the same on all of them, ``continuation`` empty on the last."""

    records: tuple[R, ...]
    version: int
    continuation: str


class _ListMeta(_Wire, frozen=True):
    resource_version: str = ""
    continuation: str = msgspec.field(default="", name="continue")


class _WirePage(_Wire, Generic[R], frozen=True):
    metadata: _ListMeta
    items: tuple[R, ...] | None = None


@dataclass(frozen=True, slots=True)
class ApiResource(Generic[R]):
    """One resource of the API: the path of its group, its plural name, and the record it is read into."""

    group: str
    plural: str
    record: type[R]

    def collection(self, namespace: str = "") -> str:
        """The path of all objects, or of those in one namespace."""
        return f"{self.group}/namespaces/{namespace}/{self.plural}" if namespace else f"{self.group}/{self.plural}"

    def item(self, name: str, namespace: str = "") -> str:
        """The path of one object; no namespace for cluster-wide resources."""
        return f"{self.collection(namespace)}/{name}"

    def decode(self, data: bytes | msgspec.Raw) -> R:
        """Read one object."""
        return _decode(self.record, self.plural, data)

    def decode_page(self, data: bytes) -> Page[R]:
        """Read one page of a list."""
        kind: type[_WirePage[R]] = _WirePage[self.record]  # type: ignore[name-defined]  # msgspec reads it at run time
        page = _decode(kind, f"a list of {self.plural}", data)
        return Page(page.items or (), parse_version(page.metadata.resource_version), page.metadata.continuation)


PODS = ApiResource("/api/v1", "pods", Pod)
NODES = ApiResource("/api/v1", "nodes", Node)
LEASES = ApiResource("/apis/coordination.k8s.io/v1", "leases", Lease)
POD_GROUPS = tuple(
    ApiResource(f"/apis/scheduling.k8s.io/{version}", "podgroups", PodGroup) for version in ("v1beta1", "v1alpha2")
)
"""Newest first: v1alpha2 is that of Kubernetes 1.36. A server has one of them, or none."""


def parse_version(text: str) -> int:
    """Read a resourceVersion as the number it is.

    Servers count writes, and from Kubernetes 1.35 the order is part of the contract (KEP-5504), so versions can be
    compared.
    """
    if text.isascii() and text.isdecimal() and len(text) <= _MAX_VERSION_DIGITS:
        return int(text)
    raise DecodeError(
        f"resourceVersion reads {text[:_MAX_QUOTED]!r}, expected a decimal number: "
        "is this a Kubernetes API server backed by etcd?"
    )


def _decode(kind: type[T], what: str, data: bytes | msgspec.Raw) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except UNREADABLE as error:
        size, start = len(bytes(data)), bytes(data)[:_MAX_QUOTED].decode(errors="replace")
        raise DecodeError(f"{what} cannot be read: {error}; it starts with {start!r} ({size} bytes)") from error


# Lists and watches.


class WatchEvent(msgspec.Struct, frozen=True, gc=False):
    """One line of a watch: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR, and the object still undecoded."""

    type: str
    object: msgspec.Raw


def decode_event(line: bytes) -> WatchEvent:
    """Read one line of a watch, leaving its object for later."""
    return _decode(WatchEvent, "a watch event", line)


@dataclass(frozen=True, slots=True)
class Scope:
    """Which objects: all by default. The selector is the API's, such as ``spec.nodeName=worker-1``."""

    namespace: str = ""
    field_selector: str = ""

    def query(self) -> dict[str, str]:
        """The selector as query parameter."""
        return {"fieldSelector": self.field_selector} if self.field_selector else {}


EVERYWHERE = Scope()


async def pages(
    api: ApiServer, resource: ApiResource[R], scope: Scope = EVERYWHERE, *, page_timeout_seconds: float
) -> AsyncIterator[Page[R]]:
    """Read all pages of a consistent list.

    Without a resourceVersion in the query a list is a quorum read: at least as new as the moment of the request, all
    pages from one version.

    Raises:
        ApiError: the server refused; 410 if the list took so long that its version was compacted away.
        UnreachableError: a page did not come within ``page_timeout_seconds``.
        DecodeError: a page cannot be read.
    """
    query = {**scope.query(), "limit": str(PAGE_SIZE)}
    while True:
        request = ApiRequest("GET", resource.collection(scope.namespace), query)
        page = resource.decode_page(await send(api, request, timeout_seconds=page_timeout_seconds))
        yield page
        if not page.continuation:
            return
        query = {**query, "continue": page.continuation}
