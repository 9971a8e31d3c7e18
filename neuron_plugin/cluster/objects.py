"""Kubernetes objects as this project reads them, and how they are listed and decoded.

Only the needed fields are decoded, directly from the server's bytes: a pod of 7 KB becomes a record of some hundred
bytes in about 15 µs. The structs follow the nesting on the wire. The rest of the code uses the properties, which are
None only where necessary.

The only error is ``DecodeError``: a garbled answer is one more failure of the cluster, never a crash.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

from neuron_plugin.cluster.api import UNREADABLE, ApiRequest, ApiServer, DecodeError, send

HOLDER_URL_KEY = "neuron-plugin.io/holder-url"
"""Annotation of a Lease: the URL of its holder."""

PAGE_SIZE = 500
"""Objects per page of a list: decoded in some milliseconds, so memory and the event loop's pauses stay small."""

_NONE: Mapping[str, str] = {}
_MAX_QUOTED = 120
"""Characters that an error's text quotes of an unreadable value."""
_MAX_VERSION_DIGITS = 20  # of a 64-bit number


class Wire(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Base of all structs: names as on the wire. There are no reference cycles, so the garbage collector skips them."""


class ObjectReference(Wire, frozen=True, omit_defaults=True):
    """The object that an event is about."""

    kind: str
    name: str
    uid: str
    api_version: str
    namespace: str = ""


class Owner(Wire, frozen=True):
    """An owner of an object."""

    kind: str = ""
    name: str = ""
    controller: bool | None = None


class Metadata(Wire, frozen=True):
    """``metadata``; the server omits empty fields or sends null."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    owner_references: tuple[Owner, ...] | None = None
    finalizers: tuple[str, ...] | None = None


class ApiObject(Wire, frozen=True):
    """The common part of all records."""

    metadata: Metadata

    @property
    def uid(self) -> str:
        """The UID, which is never re-used."""
        return self.metadata.uid

    @property
    def name(self) -> str:
        """The name, unique within namespace and kind at one time."""
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """The namespace; empty for cluster-wide kinds."""
        return self.metadata.namespace

    @property
    def resource_version(self) -> str:
        """The resource version of this state of the object, decimal."""
        return self.metadata.resource_version

    @property
    def annotations(self) -> Mapping[str, str]:
        """Possibly empty."""
        return self.metadata.annotations or _NONE

    @property
    def labels(self) -> Mapping[str, str]:
        """Possibly empty."""
        return self.metadata.labels or _NONE


class _Condition(Wire, frozen=True):
    type: str = ""


class _SystemInfo(Wire, frozen=True):
    boot_id: str = msgspec.field(default="", name="bootID")


class _NodeAddress(Wire, frozen=True):
    type: str = ""
    address: str = ""


class _NodeStatus(Wire, frozen=True):
    addresses: tuple[_NodeAddress, ...] | None = None
    capacity: dict[str, str] | None = None
    allocatable: dict[str, str] | None = None
    conditions: tuple[_Condition, ...] | None = None
    node_info: _SystemInfo | None = None


class WireTaint(Wire, frozen=True):
    """A taint of a node."""

    key: str
    effect: str
    value: str | None = None


class _NodeSpec(Wire, frozen=True):
    unschedulable: bool | None = None
    taints: tuple[WireTaint, ...] | None = None


class Node(ApiObject, frozen=True):
    """A node."""

    spec: _NodeSpec = _NodeSpec()
    status: _NodeStatus = _NodeStatus()

    @property
    def unschedulable(self) -> bool:
        """Whether it is cordoned."""
        return bool(self.spec.unschedulable)

    @property
    def boot_id(self) -> str:
        """The current boot of the machine; empty if the kubelet has not reported it."""
        return self.status.node_info.boot_id if self.status.node_info else ""

    @property
    def internal_ip(self) -> str:
        """The first internal IP; empty if there is none."""
        inside = (each.address for each in self.status.addresses or () if each.type == "InternalIP")
        return next(inside, "")

    @property
    def condition_types(self) -> frozenset[str]:
        """The types of the conditions in its status."""
        return frozenset(condition.type for condition in self.status.conditions or ())

    @property
    def capacity(self) -> Mapping[str, str]:
        """Resource name to quantity, unhealthy devices included."""
        return self.status.capacity or _NONE

    @property
    def allocatable(self) -> Mapping[str, str]:
        """Resource name to the quantity for pods, including the used part."""
        return self.status.allocatable or _NONE


class _LeaseSpec(Wire, frozen=True):
    acquire_time: str | None = None
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    lease_transitions: int | None = None
    renew_time: str | None = None


class Lease(ApiObject, frozen=True):
    """A lease: says that its holder is alive, or the leader."""

    spec: _LeaseSpec = _LeaseSpec()

    @property
    def holder(self) -> str:
        """The holder; empty if there is none."""
        return self.spec.holder_identity or ""

    @property
    def holder_url(self) -> str:
        """The URL of the holder; empty if it is not set."""
        return self.annotations.get(HOLDER_URL_KEY, "")

    @property
    def duration_seconds(self) -> int:
        """How long after the last renewal no other may take the lease; 0 if it is not set."""
        return self.spec.lease_duration_seconds or 0

    @property
    def acquired_at(self) -> str:
        """When the holder acquired the lease, by the holder's clock; empty if it is not set."""
        return self.spec.acquire_time or ""

    @property
    def renewed_at(self) -> str:
        """When the holder last renewed the lease, by the holder's clock: for people only, see ``leases``."""
        return self.spec.renew_time or ""

    @property
    def transitions(self) -> int:
        """How often the holder has changed."""
        return self.spec.lease_transitions or 0


class ConfigMap(ApiObject, frozen=True):
    """A ConfigMap with its binary data."""

    binary_data: dict[str, bytes] | None = None


class _Gang(Wire, frozen=True):
    min_count: int = 0


class _SchedulingPolicy(Wire, frozen=True):
    gang: _Gang | None = None


class _GroupTopology(Wire, frozen=True):
    key: str = ""


class _SchedulingConstraints(Wire, frozen=True):
    topology: tuple[_GroupTopology, ...] | None = None


class _PodGroupSpec(Wire, frozen=True):
    scheduling_policy: _SchedulingPolicy = _SchedulingPolicy()
    scheduling_constraints: _SchedulingConstraints | None = None


class PodGroup(ApiObject, frozen=True):
    """Pods that kube-scheduler places together or not at all."""

    spec: _PodGroupSpec = _PodGroupSpec()

    @property
    def min_count(self) -> int:
        """How many of its pods must be placed together at least; 0 if it is no gang."""
        gang = self.spec.scheduling_policy.gang
        return gang.min_count if gang else 0

    @property
    def topology_key(self) -> str:
        """The node label whose value must be equal on the nodes of all its pods; empty if there is none."""
        constraints = self.spec.scheduling_constraints
        return next((topology.key for topology in (constraints and constraints.topology) or ()), "")


# Resources of the API.


class Record(Protocol):
    """A record that can be listed and watched, such as ``ApiObject``."""

    @property
    def uid(self) -> str:
        """The UID, which is never re-used."""

    @property
    def resource_version(self) -> str:
        """The resource version of this state of the object, decimal."""


R = TypeVar("R", bound=Record)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[R]):
    """One page of a list. ``version`` is equal on all pages, ``continuation`` is empty on the last.

    ``remaining`` is how many objects follow; 0 if the server does not say, as with selectors.
    """

    records: tuple[R, ...]
    version: int
    continuation: str
    remaining: int = 0


class _ListMeta(Wire, frozen=True):
    resource_version: str = ""
    remaining_item_count: int | None = None
    continuation: str = msgspec.field(default="", name="continue")


class _WirePage(Wire, Generic[R], frozen=True):
    metadata: _ListMeta
    items: tuple[R, ...] | None = None


@dataclass(frozen=True, slots=True)
class ApiResource(Generic[R]):
    """One resource of the API: the path of its group, its plural name, and the type of its records."""

    group: str
    plural: str
    record: type[R]

    def collection(self, namespace: str = "") -> str:
        """The path of all objects, or of the objects in one namespace."""
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
        metadata = page.metadata
        version, remaining = parse_version(metadata.resource_version), metadata.remaining_item_count or 0
        return Page(page.items or (), version, metadata.continuation, remaining)


NODES = ApiResource("/api/v1", "nodes", Node)
LEASES = ApiResource("/apis/coordination.k8s.io/v1", "leases", Lease)
CONFIG_MAPS = ApiResource("/api/v1", "configmaps", ConfigMap)
POD_GROUPS = tuple(
    ApiResource(f"/apis/scheduling.k8s.io/{version}", "podgroups", PodGroup) for version in ("v1beta1", "v1alpha2")
)
"""Newest first: Kubernetes 1.36 has v1alpha2. A server has one of them, or none."""


def parse_version(text: str) -> int:
    """Read a resourceVersion as a number.

    Servers count writes, and since Kubernetes 1.35 the API guarantees the order (KEP-5504), so versions can be
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
    """One line of a watch: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR, and the undecoded object."""

    type: str
    object: msgspec.Raw


def decode_event(line: bytes) -> WatchEvent:
    """Read one line of a watch without decoding its object."""
    return _decode(WatchEvent, "a watch event", line)


@dataclass(frozen=True, slots=True)
class Scope:
    """Which objects: all by default. The selectors are the API's, such as ``spec.nodeName=worker-1``."""

    namespace: str = ""
    field_selector: str = ""
    label_selector: str = ""

    def query(self) -> dict[str, str]:
        """The selectors as query parameters."""
        selectors = {"fieldSelector": self.field_selector, "labelSelector": self.label_selector}
        return {name: text for name, text in selectors.items() if text}


EVERYWHERE = Scope()


async def pages(
    api: ApiServer, resource: ApiResource[R], scope: Scope = EVERYWHERE, *, page_timeout_seconds: float
) -> AsyncIterator[Page[R]]:
    """Read all pages of a consistent list.

    Without a resourceVersion in the query a list is a quorum read: it is as new as the request or newer, and all pages
    have one version.

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


async def count_of(api: ApiServer, resource: ApiResource[R], *, timeout_seconds: float) -> int:
    """How many objects there are, by a page of one object and the count that follow.

    Raises:
        ApiError: the server refused.
        UnreachableError: no complete answer within ``timeout_seconds``.
        DecodeError: the page cannot be read.
    """
    request = ApiRequest("GET", resource.collection(), {"limit": "1"})
    page = resource.decode_page(await send(api, request, timeout_seconds=timeout_seconds))
    return len(page.records) + page.remaining
