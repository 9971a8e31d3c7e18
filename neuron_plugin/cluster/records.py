"""Kubernetes objects as this project sees them: the few fields that matter, decoded straight from the server's bytes.

A pod of 7 KB becomes a record of some hundred bytes in about 15 µs because everything else is skipped unread. The
structs follow the wire's nesting; the properties on top say what the rest of the code asks for, with nothing to be
None that need not be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from neuron_plugin.allocation import ContainerKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})
MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
"""On the API server's copy of a static pod, which only its kubelet manages (``pkg/kubelet/types/constants.go``)."""
HOLDER_URL_KEY = "neuron-plugin.io/holder-url"
"""On a Lease: where its holder is reached."""

_NOTHING: Mapping[str, str] = {}


class _Wire(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Base of all: names as on the wire, and no cycles, hence nothing for the garbage collector to visit."""


class ObjectReference(_Wire, frozen=True, omit_defaults=True):
    """Which object an event is about."""

    kind: str
    name: str
    uid: str
    api_version: str
    namespace: str = ""


class Metadata(_Wire, frozen=True):
    """``metadata``; the server leaves empty parts out or sends null."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None


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
        return (self.resources and self.resources.limits) or _NOTHING

    @property
    def requests(self) -> Mapping[str, str]:
        """Resource name to quantity."""
        return (self.resources and self.resources.requests) or _NOTHING


class _PodSpec(_Wire, frozen=True):
    node_name: str = ""
    priority: int | None = None
    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None


class _PodStatus(_Wire, frozen=True):
    phase: str = ""


class _Object(_Wire, frozen=True):
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
        return self.metadata.annotations or _NOTHING

    @property
    def labels(self) -> Mapping[str, str]:
        """Possibly empty."""
        return self.metadata.labels or _NOTHING


class Pod(_Object, frozen=True):
    """A pod."""

    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()

    @property
    def node_name(self) -> str:
        """Where it is bound; empty while it waits."""
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
    def started(self) -> bool:
        """Whether a container has started, as far as the phase says."""
        return self.status.phase not in {"", "Pending"}

    @property
    def terminating(self) -> bool:
        """It was told to end; it holds what it holds until it is gone."""
        return self.metadata.deletion_timestamp is not None

    @property
    def priority(self) -> int:
        """0 where no priority class says otherwise."""
        return self.spec.priority or 0

    @property
    def containers(self) -> Iterator[tuple[Container, ContainerKind]]:
        """Every container and when it runs, in the order in which the kubelet admits them."""
        for container in self.spec.init_containers or ():
            yield container, ContainerKind.SIDECAR if container.restart_policy == "Always" else ContainerKind.INIT
        for container in self.spec.containers or ():
            yield container, ContainerKind.APP


class _Condition(_Wire, frozen=True):
    type: str = ""


class _NodeStatus(_Wire, frozen=True):
    capacity: dict[str, str] | None = None
    allocatable: dict[str, str] | None = None
    conditions: tuple[_Condition, ...] | None = None


class Node(_Object, frozen=True):
    """A node."""

    status: _NodeStatus = _NodeStatus()

    @property
    def condition_types(self) -> frozenset[str]:
        """Which conditions its status has."""
        return frozenset(condition.type for condition in self.status.conditions or ())

    @property
    def capacity(self) -> Mapping[str, str]:
        """Resource name to quantity, broken devices included."""
        return self.status.capacity or _NOTHING

    @property
    def allocatable(self) -> Mapping[str, str]:
        """Resource name to quantity that pods can get, the used part included."""
        return self.status.allocatable or _NOTHING


class _LeaseSpec(_Wire, frozen=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    lease_transitions: int | None = None


class Lease(_Object, frozen=True):
    """A lease: who says they are alive, or are the leader."""

    spec: _LeaseSpec = _LeaseSpec()

    @property
    def holder(self) -> str:
        """Empty if nobody holds it."""
        return self.spec.holder_identity or ""

    @property
    def holder_url(self) -> str:
        """Where the holder is reached; empty if it does not say."""
        return self.annotations.get(HOLDER_URL_KEY, "")

    @property
    def duration_seconds(self) -> int:
        """How long after its last renewal others must leave it alone; 0 if it does not say."""
        return self.spec.lease_duration_seconds or 0

    @property
    def transitions(self) -> int:
        """How often it changed hands."""
        return self.spec.lease_transitions or 0
