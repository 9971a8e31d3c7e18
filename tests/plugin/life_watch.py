"""Who looks at a node of a random life from outside: its metrics, its Lease, its Node object, and the hardware."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from neuron_plugin.allocation import Resource
from neuron_plugin.allocation.inventory import read_inventory
from neuron_plugin.allocation.keys import DISABLE_KEY, INVENTORY_KEY
from neuron_plugin.allocation.resources import parse_ids
from neuron_plugin.hardware import Device, Inventory
from neuron_plugin.hardware.device import NodeState
from neuron_plugin.hardware.inventory import LogicalCoreSize
from neuron_plugin.plugin.daemon import NodeDaemon
from neuron_plugin.plugin.snapshot import Snapshot
from neuron_plugin.simulation.api_server_kinds import LEASES, NODES
from neuron_plugin.topology import DeviceId, Geometry
from tests.plugin.life_cluster import NODE, LifeApi, Violation


@dataclass
class LifeHardware:
    """What sysfs shows, and which devices are ``unhealthy``: the ``Judge`` of a life's daemon."""

    geometry: Geometry
    logical_core_size: int
    unhealthy: Mapping[int, str] = field(default_factory=dict)
    inventory: Inventory | None = None

    def __post_init__(self) -> None:
        cores = self.geometry.cores_per_device * self.logical_core_size
        devices = tuple(
            Device(DeviceId(number), cores, "", "", frozenset(), NodeState.PRESENT)
            for number in range(self.geometry.device_count)
        )
        size = LogicalCoreSize(self.logical_core_size, "a life")
        self.inventory = Inventory(devices, instance_type=self.geometry.instance_type, logical_core_size=size)

    def look(self, inventory: Inventory, uevents_problem: str) -> None:
        raise NotImplementedError(inventory, uevents_problem)


def check_metrics(daemon: NodeDaemon, snapshot: Snapshot, holders: Mapping[int, str] = MappingProxyType({})) -> None:
    """Each id of a resource is in one state, each core has one holder at most, and all say what the ledger says.

    ``holders`` are pods by the logical cores that they have, as far as that is known.
    """
    found = defaultdict[str, dict[tuple[str, ...], float]](dict)
    for family in daemon.status.collect():
        for sample in family.samples:
            found[sample.name.removeprefix("neuron_plugin_")][tuple(sample.labels.values())] = sample.value
    geometry, states = snapshot.inventory.geometry, Counter[str]()
    for (resource, _), count in found["devices"].items():
        states[resource] += int(count)
    for resource in daemon.node.options.counted:
        ids = geometry.ids_of(resource.unit, geometry.all_mask)
        if states[resource.value] != len(ids):
            raise Violation(f"{resource} has {len(ids)} ids, and states for {states[resource.value]}")
    shown = {int(labels[0]): labels[3] for labels in found["core_holder"]}
    if len(shown) < len(found["core_holder"]):
        raise Violation(f"a core has two holders: {found['core_holder']}")
    if wrong := {core: (pod, shown.get(core)) for core, pod in holders.items() if shown.get(core, pod) != pod}:
        raise Violation(f"metrics name others than those that have the cores: {wrong}")
    if found["allocated_pods"][()] != len(snapshot.ledger.by_pod):
        raise Violation("metrics count other pods than the ledger")


def check_node(api: LifeApi, daemon: NodeDaemon, snapshot: Snapshot) -> None:
    """At rest the Node object says what there is, its disabled devices are known, and the Lease is held."""
    cluster = daemon.cluster
    if cluster is None:
        return
    annotations = api.get(NODES, NODE)["metadata"]["annotations"]
    if read_inventory(annotations[INVENTORY_KEY]) != snapshot.published_inventory:
        raise Violation(f"the Node says {annotations[INVENTORY_KEY]}, and there is {snapshot.published_inventory}")
    there = range(snapshot.inventory.geometry.device_count)  # what is not there is named in an event
    wanted = set(parse_ids(annotations[DISABLE_KEY])) & set(there) if annotations.get(DISABLE_KEY) else set[int]()
    if tuple(sorted(wanted)) != snapshot.inventory.disabled:
        raise Violation(f"{wanted} are to be disabled, and {snapshot.inventory.disabled} are")
    holders = [lease["spec"].get("holderIdentity") for lease in api.objects(LEASES)]
    if holders != [NODE]:
        raise Violation(f"the kubelet follows the plugin, and the Lease is held by {holders}")
    if Resource.NEURON in daemon.node.options.counted and not daemon.status.ready_condition()[0]:
        raise Violation(f"all is well, and the node is not ready: {daemon.status.ready_condition()}")
