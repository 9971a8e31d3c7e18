"""A node's hardware as its plugin publishes it: the text of one node annotation.

The plugin writes the annotation and the extender reads it, both by this module. It is versioned JSON, so that either
side can be upgraded first; an unknown version is refused.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeGuard

from neuron_plugin.allocation.keys import DISABLE_KEY
from neuron_plugin.allocation.resources import parse_ids
from neuron_plugin.topology import MOST_CORES_PER_DEVICE, MOST_DEVICES, CoreMask, Geometry, Topology, Unit

VERSION = 1
"""Version of the annotation's format."""

DISABLED_REASON = f"disabled by the node's annotation {DISABLE_KEY}"
"""The reason that is shown for a disabled device."""

_LONGEST_TEXT = 65_536
"""Characters of an annotation; a longer one is refused."""
LONGEST_WORD = 256
"""Characters of a name; a longer one is refused."""
_SURROGATE = re.compile("[\ud800-\udfff]")


class InventoryError(ValueError):
    """An inventory annotation that cannot be used; the text names the field, its value and the expected value."""


@dataclass(frozen=True)
class NodeInventory:
    """The hardware of one node: its geometry, the devices that are present, and faults of devices.

    ``unhealthy`` maps a device id to the reason; a nominal device that is not ``present`` is missing. ``disabled``
    devices were taken out of service by an operator, healthy or not. ``held_down`` devices are unhealthy only because
    an ended pod may still use them. ``vanished_pods`` are the UIDs of the latest pods that are gone from the API before
    the node saw them stop. Their devices are held down, so no one has to wait for these pods. ``logical_core_size`` is
    the LNC in force. ``claim_driver`` is the DRA driver whose claims give the devices, empty if devices are extended
    resources. Two fields are for display only: ``physical_cores_per_device`` is 0 when unknown, ``ultraserver`` has the
    node's ids in an UltraServer by name.
    """

    geometry: Geometry
    present: tuple[int, ...]
    unhealthy: Mapping[int, str] = field(default_factory=dict)
    device_name: str = ""
    driver_version: str = ""
    logical_core_size: int = 1
    physical_cores_per_device: int = 0
    ultraserver: Mapping[str, str] = field(default_factory=dict)
    disabled: tuple[int, ...] = ()
    held_down: tuple[int, ...] = ()
    vanished_pods: tuple[str, ...] = ()
    claim_driver: str = ""

    @property
    def listed(self) -> tuple[int, ...]:
        """The devices that are listed to the kubelet: present ones, and missing ones that have a reason."""
        return tuple(sorted({*self.present, *self.unhealthy}))

    @cached_property
    def healthy_mask(self) -> CoreMask:
        """The cores that may be handed out."""
        kept_back = {*self.unhealthy, *self.disabled}
        return self.geometry.mask_of(Unit.DEVICE, (device for device in self.present if device not in kept_back))

    @cached_property
    def disabled_mask(self) -> CoreMask:
        """The cores that could be handed out if no device were disabled."""
        healthy = {*self.present} - {*self.unhealthy}
        return self.geometry.mask_of(Unit.DEVICE, (device for device in self.disabled if device in healthy))


def disabled_devices(text: str) -> tuple[int, ...]:
    """Read the value of ``DISABLE_KEY``: ids and ranges as ``5,7`` or ``0-3``; an empty text disables no device.

    Raises:
        IdListError: the text is no list of ids.
    """
    return parse_ids(text) if text.strip() else ()


def write_inventory(inventory: NodeInventory) -> str:
    """The annotation's text; equal inventories give equal texts.

    A disabled device is written as unhealthy, too, for an older reader that does not know disabled devices.
    """
    geometry = inventory.geometry
    unhealthy = {**dict.fromkeys(inventory.disabled, DISABLED_REASON), **inventory.unhealthy}
    fields: dict[str, object] = {
        "version": VERSION,
        "instanceType": geometry.instance_type,
        "topology": geometry.topology.value,
        "devices": geometry.device_count,
        "coresPerDevice": geometry.cores_per_device,
        "blockSizes": list(geometry.block_sizes),
        "present": sorted(inventory.present),
        "unhealthy": {str(device): unhealthy[device] for device in sorted(unhealthy)},
        "deviceName": inventory.device_name,
        "driverVersion": inventory.driver_version,
        "logicalCoreSize": inventory.logical_core_size,
    }
    if geometry.core_block_sizes:
        fields["coreBlockSizes"] = list(geometry.core_block_sizes)
    if inventory.physical_cores_per_device:
        fields["physicalCoresPerDevice"] = inventory.physical_cores_per_device
    if inventory.ultraserver:
        fields["ultraServer"] = dict(sorted(inventory.ultraserver.items()))
    if inventory.disabled:
        fields["disabled"] = sorted(inventory.disabled)
    if inventory.held_down:
        fields["heldDown"] = sorted(inventory.held_down)
    if inventory.claim_driver:
        fields["claimDriver"] = inventory.claim_driver
    if inventory.vanished_pods:
        fields["vanishedPods"] = list(inventory.vanished_pods)
    return json.dumps(fields, separators=(",", ":"))


def read_inventory(text: str) -> NodeInventory:
    """Read the annotation's text; unknown fields of the same version are ignored.

    Raises:
        InventoryError: no JSON object, another version, or a field that is missing or out of range.
    """
    if len(text) > _LONGEST_TEXT:
        raise InventoryError(f"the inventory has {len(text)} characters, expected at most {_LONGEST_TEXT}")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InventoryError(f"{text[:60]!r} is no JSON object")
    fields = _Fields(value)
    version = fields.integer("version", 1, 2**31)
    if version != VERSION:
        raise InventoryError(f"version is {version}, expected {VERSION}: upgrade the older of plugin and extender")
    devices = fields.integer("devices", 0, MOST_DEVICES)
    geometry = Geometry(
        instance_type=fields.text("instanceType"),
        topology=fields.topology("topology"),
        device_count=devices,
        cores_per_device=fields.integer("coresPerDevice", 0, MOST_CORES_PER_DEVICE),
        block_sizes=fields.integers("blockSizes", 1, MOST_DEVICES),
        core_block_sizes=fields.integers("coreBlockSizes", 1, MOST_DEVICES, absent=[]),
    )
    disabled, unhealthy = fields.integers("disabled", 0, devices - 1, absent=[]), fields.reasons("unhealthy", devices)
    return NodeInventory(
        geometry=geometry,
        present=fields.integers("present", 0, devices - 1),
        unhealthy={
            device: why for device, why in unhealthy.items() if device not in disabled or why != DISABLED_REASON
        },
        device_name=fields.text("deviceName"),
        driver_version=fields.text("driverVersion"),
        logical_core_size=fields.integer("logicalCoreSize", 1, MOST_CORES_PER_DEVICE),
        physical_cores_per_device=fields.integer("physicalCoresPerDevice", 0, MOST_CORES_PER_DEVICE, absent=0),
        ultraserver=fields.words("ultraServer"),
        disabled=disabled,
        held_down=fields.integers("heldDown", 0, devices - 1, absent=[]),
        vanished_pods=fields.texts("vanishedPods"),
        claim_driver=fields.text("claimDriver") if "claimDriver" in value else "",
    )


class _Fields:
    """Typed access to the fields of a JSON object."""

    def __init__(self, fields: dict[str, object]) -> None:
        self._fields = fields

    def integer(self, key: str, low: int, high: int, absent: int | None = None) -> int:
        """A whole number; ``absent`` is the value if an older plugin did not write the field."""
        return self._integer(key, self._fields.get(key, absent), low, high)

    def words(self, key: str) -> dict[str, str]:
        """Short texts by name; empty if an older plugin did not write the field."""
        value = self._fields.get(key, {})
        if not isinstance(value, dict) or not all(_is_word(word) for item in value.items() for word in item):
            raise InventoryError(f"{key} is {_short(value)}, expected short texts by name")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """Short texts; empty if an older plugin did not write the field."""
        value = self._fields.get(key, [])
        if not isinstance(value, list) or not all(map(_is_word, value)):
            raise InventoryError(f"{key} is {_short(value)}, expected a list of short texts")
        return tuple(value)

    def integers(self, key: str, low: int, high: int, absent: list[int] | None = None) -> tuple[int, ...]:
        value = self._fields.get(key, absent)
        if not isinstance(value, list) or len(value) > MOST_DEVICES:
            raise InventoryError(f"{key} is {_short(value)}, expected a list of whole numbers")
        return tuple(sorted({self._integer(key, item, low, high) for item in value}))

    def text(self, key: str) -> str:
        value = self._fields.get(key)
        if not _is_word(value):
            raise InventoryError(f"{key} is {_short(value)}, expected a text of at most {LONGEST_WORD} characters")
        return value

    def topology(self, key: str) -> Topology:
        value = self.text(key)
        if value not in {topology.value for topology in Topology}:
            raise InventoryError(f"{key} is {_short(value)}, expected one of {', '.join(Topology)}")
        return Topology(value)

    def reasons(self, key: str, devices: int) -> dict[int, str]:
        value = self._fields.get(key)
        ids = {str(device): device for device in range(devices)}
        if not isinstance(value, dict) or not all(name in ids and _is_text(why) for name, why in value.items()):
            raise InventoryError(f"{key} is {_short(value)}, expected device ids with a reason each")
        return {ids[name]: why for name, why in value.items()}

    def _integer(self, key: str, value: object, low: int, high: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise InventoryError(f"{key} is {_short(value)}, expected a whole number from {low} to {high}")
        return value


def _is_word(value: object) -> TypeGuard[str]:
    return _is_text(value) and len(value) <= LONGEST_WORD


def _is_text(value: object) -> TypeGuard[str]:
    """Whether a value is text that can be encoded again: JSON may contain half a surrogate pair, which cannot."""
    return isinstance(value, str) and not _SURROGATE.search(value)


def _short(value: object) -> str:
    """A value for an error text. Depth is bounded, too: ``repr`` fails on deeply nested JSON."""
    return reprlib.repr(value)[:60]
