"""The hardware as it is advertised, over everything that happens to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from neuron_plugin.allocation import NodeInventory
from neuron_plugin.allocation.resources import format_ids, parse_ids, ranges
from neuron_plugin.hardware import Device, Inventory, parse_driver_version, read_inventory
from neuron_plugin.hardware.device import NodeState, SkippedDevice
from neuron_plugin.hardware.health_signals import MISSING
from neuron_plugin.hardware.inventory import LogicalCoreSize
from neuron_plugin.plugin.node_inventory import node_inventory
from neuron_plugin.simulation import write_node
from neuron_plugin.topology import DeviceId, Topology, catalogue
from tests.plugin.world import TRN1
from tests.support.stories import rows

TYPES = catalogue()


def device(number: int) -> Device:
    links = frozenset({DeviceId(number - 1), DeviceId(number + 1)})
    return Device(DeviceId(number), 2, "Trainium1", "NDv2", links, NodeState.PRESENT)


def a_look(*numbers: int, instance_type: str = "trn1.32xlarge", lnc: int = 1) -> Inventory:
    return Inventory(
        devices=tuple(device(number) for number in numbers),
        driver_version=parse_driver_version("2.26.5.0"),
        instance_type=instance_type,
        logical_core_size=LogicalCoreSize(lnc, "a test"),
    )


def seen(found: Inventory, before: NodeInventory | None = None) -> NodeInventory:
    made = node_inventory(before, found, TYPES, "", {})
    assert made is not None
    return made


LOOKS = rows("""
    a whole node has nothing wrong: 0-15 -> 0-15 of 16
    p24 a device that the type has and the driver lacks is missing: 0-4,6-15 -> 0-4,6-15 of 16, 5 missing
    p26 of an unknown type only what is there is listed: 0-1,3 type=trn9.large -> 0-1,3 of 3
    p27 a skipped device is listed with the reason: 0-14 skipped=15 -> 0-14 of 16, 15 skipped
    p67 a sick device, unless it is not even there: 0-14 sick=3,15,99 -> 0-14 of 16, 15 missing, 3 sick
    p20 what was listed stays when the driver goes: 0-15; - -> - of 16, 0-15 missing
    p25 and recovers with it: 0-15; -; 0-15 -> 0-15 of 16
    one of an unknown type that vanishes stays listed: 0-3 type=; 0-1,3 type= -> 0-1,3 of 4, 2 missing
    p28 with other cores the node is taken as it is seen now: 0-15; 0-1 type= lnc=2 -> 0-1 of 2
    disabled devices are those that the node has: 0-15 off=5,7,99 -> 0-15 of 16, 5,7 off
    also without a driver: 0-3 type=; - off=1 -> - of 4, 0-3 missing, 1 off
""")
"""Looks one after the other; then the devices that are present, how many are listed, and what is wrong with them."""


def numbers(text: str) -> tuple[int, ...]:
    return parse_ids(text) if text else ()


@pytest.mark.parametrize("steps", LOOKS)
def test_what_is_listed_and_what_is_wrong_with_it(steps: str) -> None:
    looks, _, expected = steps.partition(" -> ")
    made: NodeInventory | None = None
    for look in looks.split("; "):
        ids, *options = look.split(" ")
        given = {"type": "trn1.32xlarge", "lnc": "1"} | dict(option.split("=") for option in options)
        found = Inventory(absence="no driver")
        if ids != "-":
            skipped = tuple(SkippedDevice(DeviceId(one), "skipped") for one in numbers(given.get("skipped", "")))
            found = a_look(*parse_ids(ids), instance_type=given["type"], lnc=int(given["lnc"]))
            found = replace(found, skipped=skipped)
        sick = dict.fromkeys(numbers(given.get("sick", "")), "sick")
        made = node_inventory(made, found, TYPES, "", sick, numbers(given.get("off", "")))
    assert made is not None
    wrong: dict[str, list[int]] = {}
    for number, why in made.unhealthy.items():
        wrong.setdefault("missing" if why == MISSING else why, []).append(number)
    said = [f"{ranges(made.present)} of {len(made.listed)}", *(f"{ranges(wrong[why])} {why}" for why in sorted(wrong))]
    assert ", ".join([*said, *[f"{format_ids(made.disabled)} off"] * bool(made.disabled)]) == expected


def test_p22_while_no_device_was_ever_found_there_is_no_inventory() -> None:
    assert node_inventory(None, Inventory(absence="no driver"), TYPES, "", {}) is None


def test_a_node_has_its_types_geometry_or_the_operators_and_lnc_halves_its_cores() -> None:
    made = seen(a_look(*range(16)))
    assert (made.geometry, made.healthy_mask) == (TRN1, TRN1.all_mask)
    assert (made.device_name, made.driver_version, made.logical_core_size) == ("Trainium1", "2.26.5.0", 1)
    named = node_inventory(None, a_look(*range(16), instance_type=""), TYPES, "trn1.32xlarge", {})
    assert named is not None
    assert named.geometry == TRN1
    halved = seen(a_look(*range(16), lnc=2))
    assert (halved.geometry.cores_per_device, halved.logical_core_size) == (1, 2)


def test_links_that_are_known_later_count_and_are_kept_when_they_vanish(tmp_path: Path) -> None:
    ring = read_inventory(write_node(tmp_path, "inf2.48xlarge").paths)
    unlinked = replace(
        ring, instance_type="", devices=tuple(replace(device, connected=frozenset()) for device in ring.devices)
    )
    ring = replace(ring, instance_type="")
    before = seen(unlinked)
    assert before.geometry.topology is Topology.UNLINKED
    learned = seen(ring, before=before)
    assert learned.geometry.topology is Topology.RING
    assert seen(unlinked, before=learned).geometry.topology is Topology.RING


@pytest.mark.parametrize(("instance_type", "nodes"), [("inf2.48xlarge", (2, 3, 2, 3)), ("inf1.6xlarge", ())])
def test_p21_the_types_say_the_numa_node_of_each_device_where_it_is_known(
    instance_type: str, nodes: tuple[int, ...]
) -> None:
    known = TYPES.get(instance_type)
    assert known is not None
    assert tuple(known.numa_nodes[:4]) == nodes
