"""EC2 instance types with Neuron devices, as data.

A type has facts that sysfs has not: how many devices there should be, and which sets the collectives support. Its links
are used, too, because the driver prints none once a chip is missing. The machine's own links decide if the type is
unknown, or if the machine has more devices than the type (``links.topology_of``). Sources: Neuron driver 2.24.7 and
2.25.4 (counts, links), SDK documentation to 2.32 (memory, valid counts), captured PCI bus numbers (NUMA nodes, constant
per type).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from neuron_plugin.topology.geometry import MOST_DEVICES, Geometry
from neuron_plugin.topology.links import Links, Topology, topology_of

_TORUS_BLOCKS = Topology.TORUS.blocks
_TORUS_CORE_BLOCKS = (1, 2, 4, 8, 16)
"""For slices of cores on Trn2 and Trn3, which may span two neighbouring devices: AWS's tutorial for vLLM puts eight
slices of eight logical cores on a trn2.48xlarge (LNC 2). Two devices by count are refused, as by AWS."""

_FAMILY = re.compile(r"[a-z]+[0-9]+")


@dataclass(frozen=True, slots=True)
class InstanceType:
    """One EC2 type. ``cores_per_device`` is physical; ``logical_core_size`` is the default LNC.

    For ``block_sizes`` and ``core_block_sizes`` see ``Geometry``. ``numa_nodes`` has the NUMA node of each device by
    id, and is empty if unknown. ``amounts`` are the amounts of each device, for pods that share a device by its cores;
    memory need not be among them.
    """

    name: str
    device_name: str
    devices: int
    cores_per_device: int
    memory_gib: int
    topology: Topology
    logical_core_size: int = 1
    block_sizes: tuple[int, ...] = ()
    core_block_sizes: tuple[int, ...] = ()
    numa_nodes: tuple[int, ...] = ()
    amounts: tuple[tuple[str, int], ...] = ()

    @property
    def device_amounts(self) -> tuple[tuple[str, int], ...]:
        """The amounts of each device by name, with memory in MiB."""
        memory = (("memory", self.memory_gib * 1024),) if self.memory_gib else ()
        return (*memory, *self.amounts)

    @property
    def geometry(self) -> Geometry:
        """The geometry of a complete machine with the default LNC."""
        return self.geometry_with(self.cores_per_device // self.logical_core_size)

    def geometry_with(self, cores_per_device: int) -> Geometry:
        """The geometry of a complete machine with so many logical cores per device.

        Raises:
            GeometryError: a count is beyond the driver's limits.
        """
        blocks = self.block_sizes, self.core_block_sizes
        return Geometry(self.name, self.topology, self.devices, cores_per_device, *blocks)


Catalogue = Mapping[str, InstanceType]


def family_of(instance_type: str) -> str:
    """The hardware's family in the name of a type, lower case: ``trn1`` of trn1n.32xlarge; empty if there is none."""
    family = _FAMILY.match(instance_type.removeprefix("ml."))
    return family[0] if family else ""


def catalogue(extra: Iterable[InstanceType] = ()) -> dict[str, InstanceType]:
    """The shipped types by name, with the user's ``extra`` types, which replace types of the same name."""
    return {instance.name: instance for instance in (*SHIPPED, *extra)}


def product_names(types: Catalogue) -> frozenset[str]:
    """The products and families of a catalogue, lower case: ``trainium1`` and ``trn1``."""
    names = (name for instance in types.values() for name in (instance.device_name.lower(), family_of(instance.name)))
    return frozenset(filter(None, names))


def geometry_of(
    types: Catalogue, instance_type: str, *, device_ids: Iterable[int], cores_per_device: int, links: Links
) -> Geometry:
    """The geometry of a machine, from its type if known, else from its sysfs.

    ``cores_per_device`` is logical, as read on the machine. If the machine has more devices than its type, the machine
    decides; ids that the driver cannot have (``MOST_DEVICES`` and above) are ignored. HyperPod's prefix ``ml.`` of a
    type's name is ignored.

    Raises:
        GeometryError: ``cores_per_device``, or the count of the user's own type, is beyond the driver's limits.
    """
    seen = max((device for device in device_ids if device < MOST_DEVICES), default=-1) + 1
    known = types.get(instance_type) or types.get(instance_type.removeprefix("ml."))
    if known and seen <= known.devices:
        return known.geometry_with(cores_per_device)
    topology = topology_of(links)
    return Geometry(instance_type or "unknown", topology, seen, cores_per_device, topology.blocks)


def _inf1(name: str, devices: int, topology: Topology) -> InstanceType:
    return InstanceType(name, "Inferentia", devices, 4, 8, topology)


def _inf2(name: str, devices: int, topology: Topology, numa: tuple[int, ...] = ()) -> InstanceType:
    return InstanceType(name, "Inferentia2", devices, 2, 32, topology, numa_nodes=numa)


def _trn1(name: str, numa: tuple[int, ...] = ()) -> InstanceType:
    return InstanceType(name, "Trainium1", 16, 2, 32, Topology.TORUS, 1, _TORUS_BLOCKS, numa_nodes=numa)


def _trn2(name: str, numa: tuple[int, ...] = ()) -> InstanceType:
    return InstanceType(name, "Trainium2", 16, 8, 96, Topology.TORUS, 2, _TORUS_BLOCKS, _TORUS_CORE_BLOCKS, numa)


def _trn3(name: str) -> InstanceType:
    return InstanceType(name, "Trainium3", 16, 8, 144, Topology.TORUS, 2, _TORUS_BLOCKS, _TORUS_CORE_BLOCKS)


_TRN1_NUMA = (0, 0, 1, 1) * 4
_TRN2_NUMA = (1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1)

SHIPPED: tuple[InstanceType, ...] = (
    _inf1("inf1.xlarge", 1, Topology.SINGLE),
    _inf1("inf1.2xlarge", 1, Topology.SINGLE),
    _inf1("inf1.6xlarge", 4, Topology.LINE),
    _inf1("inf1.24xlarge", 16, Topology.RING),
    _inf2("inf2.xlarge", 1, Topology.SINGLE),
    _inf2("inf2.8xlarge", 1, Topology.SINGLE),
    _inf2("inf2.24xlarge", 6, Topology.LINE, (1, 1, 0, 0, 0, 1)),
    _inf2("inf2.48xlarge", 12, Topology.RING, (2, 3, 2, 3, 2, 3, 1, 1, 0, 0, 0, 1)),
    InstanceType("trn1.2xlarge", "Trainium1", 1, 2, 32, Topology.SINGLE),
    _trn1("trn1.32xlarge", _TRN1_NUMA),
    _trn1("trn1n.32xlarge"),
    InstanceType("trn2.3xlarge", "Trainium2", 1, 8, 96, Topology.SINGLE, 2, (), (1,), (0,)),
    _trn2("trn2.48xlarge", _TRN2_NUMA),
    *(_trn2(f"{name}.48xlarge") for name in ("trn2n", "trn2u", "trn2p", "trn2eu", "trn2e", "trn2es")),
    *(
        _trn3(f"{name}.48xlarge")
        for name in ("trn3", "trn3n", "trn3p", "trn3pd98", "trn3s", "trn3s-es", "trn3-dev0", "trn3-dev1")
    ),
    InstanceType("trn3en.24xlarge", "Trainium3", 4, 8, 144, Topology.UNLINKED, 2, (1, 4), (1, 2, 4)),
    InstanceType("trn3pd98.3xlarge", "Trainium3", 1, 8, 144, Topology.SINGLE, 2, (), (1,)),
)
