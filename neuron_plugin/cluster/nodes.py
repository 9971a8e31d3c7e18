"""The decoder of ``NeuronNode``: the Neuron hardware of a Node object, or why it is unknown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from neuron_plugin.allocation import IdListError, InventoryError, NeuronNode, NodeInventory, Rejection, Resource
from neuron_plugin.allocation.inventory import disabled_devices, read_inventory
from neuron_plugin.allocation.keys import DISABLE_KEY, INVENTORY_KEY, PREFLIGHT_KEY
from neuron_plugin.allocation.narrowing import device_facts
from neuron_plugin.allocation.node_rules import NodeRules, Taint
from neuron_plugin.allocation.preflight import read_preflight
from neuron_plugin.allocation.rejection import NO_INVENTORY, NO_NEURON, UNKNOWN_HEALTH, UNREADABLE_INVENTORY
from neuron_plugin.allocation.requests import parse_count
from neuron_plugin.cluster.objects import Node
from neuron_plugin.cluster.pod_rules import quantities
from neuron_plugin.cluster.pod_wire import unix_seconds
from neuron_plugin.topology import Catalogue, Geometry, InstanceType

_INSTANCE_TYPE_LABELS = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
_SAGEMAKER_PREFIX = "ml."
_RESOURCE_NAMES = frozenset(resource.value for resource in Resource)


def neuron_node(node: Node, types: Catalogue) -> NeuronNode:
    """Decode a node.

    The inventory annotation of the plugin decides. If it is malformed or of a newer version, the node is closed. A node
    without the annotation, where the vendor's plugin runs, is judged by instance type and capacity. It is closed if
    these are ambiguous: the kubelet's counts do not say *which* device is missing. Only for such a node ``DISABLE_KEY``
    is read here; on other nodes the plugin reads it.
    """
    text = node.annotations.get(INVENTORY_KEY)
    inventory = _by_instance_type(node, types) if text is None else _by_annotation(text)
    offered = quantities(tuple(node.allocatable.items()))
    rules = NodeRules(
        cordoned=node.unschedulable,
        taints=tuple(Taint(taint.key, taint.effect, taint.value or "") for taint in node.spec.taints or ()),
        labels=node.labels,
        allocatable=tuple(item for item in offered if item[0] not in _RESOURCE_NAMES),
        neuron=tuple(item for item in offered if item[0] in _RESOURCE_NAMES),
    )
    if isinstance(inventory, Rejection):
        return NeuronNode(node.name, node.uid, inventory, rules=rules)
    instance_type = inventory.geometry.instance_type
    rules = replace(rules, claim_driver=inventory.claim_driver)
    facts = device_facts(inventory.device_name, instance_type, types.get(instance_type))
    if inventory.disabled:
        facts = replace(facts, disabled_mask=inventory.disabled_mask)
    checked = node.annotations.get(PREFLIGHT_KEY)
    preflight = None if checked is None else read_preflight(checked)
    created = unix_seconds(node.metadata.creation_timestamp or "")
    return NeuronNode(node.name, node.uid, inventory, facts, rules, preflight, node.boot_id, node.internal_ip, created)


@lru_cache(maxsize=1024)
def _by_annotation(text: str) -> NodeInventory | Rejection:
    """Decode an inventory. Most nodes of a type have equal texts: these share one object."""
    try:
        inventory = read_inventory(text)
    except InventoryError as error:
        return replace(UNREADABLE_INVENTORY, detail=f"annotation {INVENTORY_KEY}: {error}")
    if not inventory.geometry.device_count:
        return NO_NEURON
    return replace(inventory, geometry=shared_geometry(inventory.geometry))


@lru_cache(maxsize=256)
def shared_geometry(geometry: Geometry) -> Geometry:
    """Equal geometries as one object, so that look-ups by geometry compare identities."""
    return geometry


def _by_instance_type(node: Node, types: Catalogue) -> NodeInventory | Rejection:
    capacity, allocatable = _counts(node.capacity), _counts(node.allocatable)
    if not capacity:
        return NO_NEURON
    labels = (node.labels[key] for key in _INSTANCE_TYPE_LABELS if node.labels.get(key))
    instance_type = next(labels, "").removeprefix(_SAGEMAKER_PREFIX)
    known = types.get(instance_type)
    if known is None:
        return replace(NO_INVENTORY, detail=f"instance type {instance_type or 'unset'!r} is not in the catalogue")
    cores_per_device = _cores_per_device(known, capacity)
    if not cores_per_device or allocatable != capacity:
        expected = f"{known.name} has {known.devices} devices of {known.cores_per_device} cores"
        return replace(UNKNOWN_HEALTH, detail=f"{expected}, capacity is {capacity}, allocatable {allocatable}")
    try:
        disabled = disabled_devices(node.annotations.get(DISABLE_KEY, ""))
    except IdListError as error:
        return replace(UNREADABLE_INVENTORY, detail=f"annotation {DISABLE_KEY}: {error}")
    geometry = shared_geometry(known.geometry_with(cores_per_device))
    present = tuple(range(geometry.device_count))
    return NodeInventory(geometry, present, disabled=tuple(device for device in disabled if device in present))


def _counts(quantities: Mapping[str, str]) -> dict[str, int]:
    """The counts of Neuron resources; a quantity that the kubelet cannot have written is left out."""
    counts = {}
    for resource in Resource:
        try:
            count = parse_count(quantities.get(resource.value, "0"))
        except ValueError:
            count = 0
        if count:
            counts[resource.value] = count
    return counts


def _cores_per_device(known: InstanceType, capacity: Mapping[str, int]) -> int:
    """Logical cores per device; 0 if the capacity does not fit a complete node of this type."""
    devices = {capacity[name] for name in (Resource.NEURON, Resource.NEURONDEVICE) if name in capacity}
    if devices - {known.devices}:
        return 0
    cores = capacity.get(Resource.NEURONCORE)
    if cores is None:
        return known.cores_per_device // known.logical_core_size
    per_device, rest = divmod(cores, known.devices)
    whole = not rest and 0 < per_device <= known.cores_per_device and known.cores_per_device % per_device == 0
    return per_device if whole else 0
