"""Storage objects that limit where a pod can run, budgets and namespaces: on the wire, and as values."""

from __future__ import annotations

from collections.abc import Mapping

from neuron_plugin.allocation.budgets import Budget
from neuron_plugin.allocation.node_rules import NodeSelectorTerm, Requirement
from neuron_plugin.allocation.pod import is_movable
from neuron_plugin.allocation.volumes import ZONE_LABELS, Claim, StorageClass, Volume
from neuron_plugin.cluster.objects import ApiObject, ApiResource, Wire
from neuron_plugin.cluster.pod_wire import WireLabelSelector, WireNodeSelector

_SELECTED_NODE = "volume.kubernetes.io/selected-node"
_CLASS = "volume.beta.kubernetes.io/storage-class"
_SEVERAL = "__"
"""Separates the zones in an old volume's label (staging/src/k8s.io/cloud-provider/volume/helpers)."""


class _ClaimSpec(Wire, frozen=True):
    volume_name: str = ""
    storage_class_name: str | None = None
    access_modes: tuple[str, ...] | None = None


class _ClaimStatus(Wire, frozen=True):
    phase: str = ""


class WireClaim(ApiObject, frozen=True):
    """A PersistentVolumeClaim."""

    spec: _ClaimSpec = _ClaimSpec()
    status: _ClaimStatus = _ClaimStatus()

    @property
    def value(self) -> Claim:
        """The claim as a value."""
        return Claim(
            self.spec.volume_name,
            self.annotations.get(_CLASS) or self.spec.storage_class_name or "",
            once="ReadWriteOncePod" in (self.spec.access_modes or ()),
            lost=self.status.phase == "Lost",
            terminating=self.metadata.deletion_timestamp is not None,
            selected_node=self.annotations.get(_SELECTED_NODE, ""),
        )


class _VolumeNodeAffinity(Wire, frozen=True):
    required: WireNodeSelector | None = None


class _Csi(Wire, frozen=True):
    driver: str = ""
    volume_handle: str = ""


class _VolumeSpec(Wire, frozen=True):
    node_affinity: _VolumeNodeAffinity | None = None
    csi: _Csi | None = None


class WireVolume(ApiObject, frozen=True):
    """A PersistentVolume."""

    spec: _VolumeSpec = _VolumeSpec()

    @property
    def value(self) -> Volume:
        """The volume as a value."""
        required = self.spec.node_affinity.required if self.spec.node_affinity else None
        zones = tuple((key, frozenset(self.labels[key].split(_SEVERAL))) for key in ZONE_LABELS if key in self.labels)
        csi = self.spec.csi or _Csi()
        return Volume(self.name, required.terms if required else None, zones, csi.driver, csi.volume_handle)


class _TopologyRequirement(Wire, frozen=True):
    key: str = ""
    values: tuple[str, ...] | None = None


class _TopologyTerm(Wire, frozen=True):
    match_label_expressions: tuple[_TopologyRequirement, ...] | None = None


class WireStorageClass(ApiObject, frozen=True):
    """A StorageClass."""

    provisioner: str = ""
    volume_binding_mode: str | None = None
    allowed_topologies: tuple[_TopologyTerm, ...] | None = None

    @property
    def value(self) -> StorageClass:
        """The class as a value."""
        topologies = tuple(
            NodeSelectorTerm(
                tuple(Requirement(one.key, "In", one.values or ()) for one in term.match_label_expressions or ())
            )
            for term in self.allowed_topologies or ()
        )
        return StorageClass(self.provisioner, self.volume_binding_mode == "WaitForFirstConsumer", topologies)


class _Allocatable(Wire, frozen=True):
    count: int | None = None


class _NodeDriver(Wire, frozen=True):
    name: str = ""
    allocatable: _Allocatable | None = None


class _NodeDrivers(Wire, frozen=True):
    drivers: tuple[_NodeDriver, ...] | None = None


class WireCsiNode(ApiObject, frozen=True):
    """A CSINode: how many volumes of each driver can be attached to a node."""

    spec: _NodeDrivers = _NodeDrivers()

    @property
    def value(self) -> Mapping[str, int]:
        """The limit by driver; drivers without a limit are left out."""
        drivers = self.spec.drivers or ()
        counts = {driver.name: driver.allocatable.count for driver in drivers if driver.allocatable}
        return {name: count for name, count in counts.items() if count is not None}


class _CsiDriverSpec(Wire, frozen=True):
    storage_capacity: bool | None = None


class WireCsiDriver(ApiObject, frozen=True):
    """A CSIDriver."""

    spec: _CsiDriverSpec = _CsiDriverSpec()


class _BudgetSpec(Wire, frozen=True):
    selector: WireLabelSelector | None = None
    unhealthy_pod_eviction_policy: str | None = None


class _BudgetStatus(Wire, frozen=True):
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    expected_pods: int = 0
    observed_generation: int = 0


class WireBudget(ApiObject, frozen=True):
    """A PodDisruptionBudget."""

    spec: _BudgetSpec = _BudgetSpec()
    status: _BudgetStatus = _BudgetStatus()

    @property
    def value(self) -> Budget:
        """The budget as a value; it allows nothing until its controller has processed the last change of its spec."""
        status, policy = self.status, self.spec.unhealthy_pod_eviction_policy
        is_current = status.observed_generation >= self.metadata.generation
        is_guarded = status.current_healthy >= status.desired_healthy > 0
        return Budget(
            self.namespace,
            self.name,
            self.spec.selector.requirements if self.spec.selector else None,
            status.disruptions_allowed if is_current else 0,
            recovers=status.expected_pods > status.desired_healthy,
            counts_unready=policy != "AlwaysAllow" and not is_guarded,
        )


class WireNamespace(ApiObject, frozen=True):
    """A namespace with its labels and annotations."""

    @property
    def movable(self) -> bool:
        """Whether its pods may be evicted to make room, unless a pod itself says otherwise."""
        return bool(is_movable(self.annotations))


CLAIMS = ApiResource("/api/v1", "persistentvolumeclaims", WireClaim)
PERSISTENT_VOLUMES = ApiResource("/api/v1", "persistentvolumes", WireVolume)
STORAGE_CLASSES = ApiResource("/apis/storage.k8s.io/v1", "storageclasses", WireStorageClass)
CSI_NODES = ApiResource("/apis/storage.k8s.io/v1", "csinodes", WireCsiNode)
CSI_DRIVERS = ApiResource("/apis/storage.k8s.io/v1", "csidrivers", WireCsiDriver)
BUDGETS = ApiResource("/apis/policy/v1", "poddisruptionbudgets", WireBudget)
NAMESPACES = ApiResource("/api/v1", "namespaces", WireNamespace)
