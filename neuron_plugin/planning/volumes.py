"""Where a pod's PersistentVolumeClaims let it go: VolumeBinding, VolumeZone, NodeVolumeLimits and ReadWriteOncePod.

The rules are those of kube-scheduler 1.36 (pkg/scheduler/framework/plugins/volumebinding, volumezone, nodevolumelimits,
volumerestrictions). A claim that waits for its first consumer is provisioned where its StorageClass allows. Two cases
cannot be judged, and are reported so: classes whose volumes are made by hand, and drivers that publish their free
storage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from neuron_plugin.allocation.node_rules import NodeSelectorTerm, PlacedPod
from neuron_plugin.allocation.volumes import GENERAL_LABELS, ZONE_LABELS, Claim, StorageClass, Volume
from neuron_plugin.planning.population import AnyPopulation

NO_PROVISIONER = "kubernetes.io/no-provisioner"
Attached = tuple[str, str]
"""A driver, and the identity of a volume for it."""


@dataclass(frozen=True, slots=True)
class PodVolumes:
    """The demands of a pod's claims on a node.

    ``waits`` says why no node suits for now, and ``doubt`` what cannot be judged; both may be empty. A node has to meet
    one term of each of ``wants``, by name of the volume or claim.
    """

    wants: tuple[tuple[str, tuple[NodeSelectorTerm, ...]], ...] = ()
    zones: tuple[tuple[str, str, frozenset[str]], ...] = ()
    nodes: frozenset[str] = frozenset()
    attached: frozenset[Attached] = frozenset()
    waits: str = ""
    doubt: str = ""

    def objections(self, name: str, labels: Mapping[str, str]) -> Iterator[str]:
        """Why the volumes cannot be used on a node of this name and these labels."""
        for volume, terms in self.wants:
            if not any(term.matches(name, labels) for term in terms):
                yield f"cannot use the volume {volume}"
        if self.nodes - {name}:
            yield "is not where a volume of the pod is being made"
        if self.zones and not ZONE_LABELS.isdisjoint(labels):
            for volume, key, values in self.zones:
                if labels.get(key, labels.get(GENERAL_LABELS.get(key, key))) not in values:
                    yield f"is not in a zone of the volume {volume}"


NO_VOLUMES = PodVolumes()


@dataclass(frozen=True, slots=True)
class Storage:
    """The storage of a cluster: claims by namespace and name, volumes and classes by name.

    ``limits`` has for each node how many volumes of a driver can be attached (CSINode). ``with_capacity`` are the
    drivers that publish their free storage. ``waits`` says that nothing is known yet, and ``doubt`` why claims cannot
    be looked up, if so.
    """

    claims: Mapping[tuple[str, str], Claim] = field(default_factory=dict)
    volumes: Mapping[str, Volume] = field(default_factory=dict)
    classes: Mapping[str, StorageClass] = field(default_factory=dict)
    limits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    with_capacity: frozenset[str] = frozenset()
    waits: str = ""
    doubt: str = ""

    def copy(self) -> Storage:
        """The same as of now, for another thread."""
        return replace(
            self,
            claims=dict(self.claims),
            volumes=dict(self.volumes),
            classes=dict(self.classes),
            limits=dict(self.limits),
        )

    def of(self, namespace: str, names: Iterable[str], population: AnyPopulation) -> PodVolumes:
        """The demands of a pod's claims on a node, beside the placed pods."""
        if self.waits:
            return PodVolumes(waits=self.waits)
        wants, zones, nodes = list[tuple[str, tuple[NodeSelectorTerm, ...]]](), [], set[str]()
        attached, doubt = set[Attached](), self.doubt
        for name in names if not doubt else ():
            claim = self.claims.get((namespace, name))
            if waits := self._why_not_yet(namespace, name, claim, population):
                return PodVolumes(waits=waits)
            attached.update(self._attached(namespace, name))
            if claim is None:
                continue
            if claim.volume:
                volume = self.volumes[claim.volume]
                wants += [(volume.name, volume.terms)] if volume.terms is not None else []
                zones += [(volume.name, key, values) for key, values in volume.zones]
                continue
            storage_class = self.classes[claim.storage_class]
            if claim.selected_node:
                nodes.add(claim.selected_node)
            if storage_class.topologies:
                wants.append((name, storage_class.topologies))
            if storage_class.provisioner == NO_PROVISIONER:
                doubt = f"volumes of StorageClass {claim.storage_class} are made by hand"
            elif storage_class.provisioner in self.with_capacity:
                doubt = f"driver {storage_class.provisioner} publishes where storage is left"
        return PodVolumes(tuple(wants), tuple(zones), frozenset(nodes), frozenset(attached), doubt=doubt)

    def _why_not_yet(self, namespace: str, name: str, claim: Claim | None, population: AnyPopulation) -> str:
        if claim is None:
            return f"PersistentVolumeClaim {name} does not exist"
        if claim.terminating or claim.lost:
            return f"PersistentVolumeClaim {name} {'is being deleted' if claim.terminating else 'lost its volume'}"
        if claim.once and population.uses_claim(namespace, name):
            return f"PersistentVolumeClaim {name} is ReadWriteOncePod, and a pod uses it"
        if claim.volume:
            return "" if claim.volume in self.volumes else f"PersistentVolume {claim.volume} does not exist"
        if (storage_class := self.classes.get(claim.storage_class)) is None:
            return f"PersistentVolumeClaim {name} has no volume and no StorageClass"
        return "" if storage_class.waits else f"PersistentVolumeClaim {name} is not bound yet"

    def _attached(self, namespace: str, name: str) -> Iterator[Attached]:
        """The volume of a claim as its driver's limit counts it (nodevolumelimits/csi.go)."""
        if claim := self.claims.get((namespace, name)):
            volume, storage_class = self.volumes.get(claim.volume), self.classes.get(claim.storage_class)
            if volume and volume.driver:
                yield volume.driver, volume.handle
            elif not claim.volume and storage_class:
                yield storage_class.provisioner, f"{namespace}/{name}"

    def too_many_attached(self, node: str, pod: PodVolumes, there: Iterable[PlacedPod]) -> str:
        """The driver whose limit a node would exceed with one more pod; empty if none."""
        limits = self.limits.get(node, {})
        if not pod.attached or not limits:
            return ""
        attached = {
            one for other in there for name in other.claims for one in self._attached(other.labels.namespace, name)
        }
        for driver in {driver for driver, _ in pod.attached - attached}:
            count = sum(name == driver for name, _ in attached | pod.attached)
            if driver in limits and count > limits[driver]:
                return f"has {limits[driver]} volumes of {driver} at most, with the pod {count}"
        return ""


NO_STORAGE = Storage()
