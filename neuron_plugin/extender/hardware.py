"""What Neuron hardware a node has, from what the API server says about it.

The plugin's inventory annotation is the truth, and a malformed or newer one closes the node instead of being guessed
around. Only where there is none (the vendor's plugin runs there) do instance type and capacity stand in, and then
only if they leave nothing open: the kubelet's counts do not say *which* device is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from neuron_plugin.allocation import INVENTORY_KEY, InventoryError, Resource, parse_count, read_inventory
from neuron_plugin.extender.reasons import (
    NO_INVENTORY,
    NO_NEURON,
    UNKNOWN_HEALTH,
    UNREADABLE_INVENTORY,
    NodeRefusal,
)
from neuron_plugin.topology import Catalogue, CoreMask, Geometry, InstanceType

INSTANCE_TYPE_LABELS = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
_SAGEMAKER_PREFIX = "ml."
_GEOMETRIES = 256


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The part of a Node object that matters here; quantities as they stand in the API, Neuron resources only."""

    name: str
    uid: str = ""
    inventory: str | None = None
    instance_type: str = ""
    capacity: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hardware:
    """A node's geometry and the cores that may be handed out."""

    geometry: Geometry
    healthy_mask: CoreMask
    unhealthy: Mapping[int, str] = field(default_factory=dict)
    missing: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class NoHardware:
    """Why the node's hardware is not known, for the scheduler, and in detail for people."""

    refusal: NodeRefusal
    detail: str = ""


def instance_type_of(labels: Mapping[str, str]) -> str:
    """The EC2 type a node's labels name, without SageMaker's ``ml.``; empty when they name none."""
    named = next((labels[key] for key in INSTANCE_TYPE_LABELS if labels.get(key)), "")
    return named.removeprefix(_SAGEMAKER_PREFIX)


def hardware_of(facts: NodeFacts, types: Catalogue) -> Hardware | NoHardware:
    """What a node has: by its inventory, else by its instance type held against its capacity."""
    if facts.inventory is not None:
        return _by_inventory(facts.inventory)
    return _by_type(facts, types)


def _by_inventory(text: str) -> Hardware | NoHardware:
    try:
        inventory = read_inventory(text)
    except InventoryError as error:
        return NoHardware(UNREADABLE_INVENTORY, f"annotation {INVENTORY_KEY}: {error}")
    geometry = _shared(inventory.geometry)
    if not geometry.device_count:
        return NoHardware(NO_NEURON)
    missing = tuple(device for device in range(geometry.device_count) if device not in inventory.present)
    return Hardware(geometry, inventory.healthy_mask, dict(inventory.unhealthy), missing)


@lru_cache(maxsize=_GEOMETRIES)
def _shared(geometry: Geometry) -> Geometry:
    """Equal geometries as one object: every look-up by geometry is then a comparison of identities."""
    return geometry


def _by_type(facts: NodeFacts, types: Catalogue) -> Hardware | NoHardware:
    capacity = _counts(facts.capacity)
    if not any(capacity.values()):
        return NoHardware(NO_NEURON)
    known = types.get(facts.instance_type)
    if known is None:
        return NoHardware(NO_INVENTORY, f"instance type {facts.instance_type or 'unset'!r} is not in the catalogue")
    cores_per_device = _cores_per_device(known, capacity)
    if not cores_per_device:
        return NoHardware(UNKNOWN_HEALTH, _disagreement(known, facts.capacity))
    geometry = _shared(Geometry(known.name, known.topology, known.devices, cores_per_device, known.block_sizes))
    if _counts(facts.allocatable) != capacity:
        return NoHardware(UNKNOWN_HEALTH, f"allocatable {dict(facts.allocatable)}, capacity {dict(facts.capacity)}")
    return Hardware(geometry, geometry.all_mask)


def _counts(quantities: Mapping[str, str]) -> dict[Resource, int]:
    """The Neuron resources that are there; a quantity the kubelet could not have written counts as none."""
    counts = {}
    for resource in Resource:
        try:
            count = parse_count(quantities.get(resource.value, "0"))
        except ValueError:
            count = 0
        if count:
            counts[resource] = count
    return counts


def _cores_per_device(known: InstanceType, capacity: Mapping[Resource, int]) -> int:
    """Logical cores per device, or 0 when the capacity does not tell a complete node of this type."""
    devices = {capacity[name] for name in (Resource.NEURON, Resource.NEURONDEVICE) if name in capacity}
    if devices - {known.devices}:
        return 0
    cores = capacity.get(Resource.NEURONCORE)
    if cores is None:
        return known.cores_per_device // known.logical_core_size
    per_device, rest = divmod(cores, known.devices)
    whole = not rest and 0 < per_device <= known.cores_per_device and known.cores_per_device % per_device == 0
    return per_device if whole else 0


def _disagreement(known: InstanceType, capacity: Mapping[str, str]) -> str:
    return f"{known.name} has {known.devices} devices of {known.cores_per_device} cores, capacity is {dict(capacity)}"
