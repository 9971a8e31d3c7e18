"""The hardware as it is advertised, over everything that happens to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from neuron_plugin.allocation import NodeInventory
from neuron_plugin.hardware import Device, Inventory, parse_driver_version, read_inventory
from neuron_plugin.hardware.device import NodeState, SkippedDevice
from neuron_plugin.hardware.health_signals import MISSING
from neuron_plugin.hardware.inventory import LogicalCoreSize
from neuron_plugin.plugin.node_inventory import node_inventory
from neuron_plugin.simulation import write_node
from neuron_plugin.topology import DeviceId, Topology, catalogue
from tests.plugin.world import TRN1

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


def seen(
    found: Inventory, unhealthy: Mapping[int, str] | None = None, before: NodeInventory | None = None
) -> NodeInventory:
    made = node_inventory(before, found, TYPES, "", unhealthy or {})
    assert made is not None
    return made


def test_p22_while_no_device_was_ever_found_there_is_no_inventory() -> None:
    assert node_inventory(None, Inventory(absence="no driver"), TYPES, "", {}) is None


def test_a_whole_node_has_its_types_geometry_and_nothing_wrong() -> None:
    made = seen(a_look(*range(16)))
    assert made.geometry == TRN1
    assert made.listed == made.present == tuple(range(16))
    assert made.unhealthy == {}
    assert made.healthy_mask == TRN1.all_mask
    assert (made.device_name, made.driver_version, made.logical_core_size) == ("Trainium1", "2.26.5.0", 1)


def test_p24_a_device_that_the_type_has_and_the_driver_lacks_is_listed_as_missing() -> None:
    made = seen(a_look(*(number for number in range(16) if number != 5)))
    assert made.listed == tuple(range(16))
    assert made.unhealthy == {5: MISSING}
    assert made.present == tuple(number for number in range(16) if number != 5)


def test_p26_of_an_unknown_type_only_what_is_there_is_listed() -> None:
    made = seen(a_look(0, 1, 3, instance_type="trn9.large"))
    assert made.listed == (0, 1, 3)
    assert made.unhealthy == {}
    assert made.geometry.device_count == 4


def test_the_operators_type_is_used_where_the_machine_names_none() -> None:
    made = node_inventory(None, a_look(*range(16), instance_type=""), TYPES, "trn1.32xlarge", {})
    assert made is not None
    assert made.geometry == TRN1


def test_p27_a_skipped_device_is_listed_with_the_reason() -> None:
    found = replace(a_look(*range(15)), skipped=(SkippedDevice(DeviceId(15), "core_count reads 'x'"),))
    assert seen(found).unhealthy == {15: "core_count reads 'x'"}


def test_p67_a_sick_device_is_unhealthy_with_its_reason_unless_it_is_not_even_there() -> None:
    made = seen(a_look(*range(15)), {3: "sick", 15: "was sick", 99: "never listed"})
    assert made.unhealthy == {3: "sick", 15: MISSING}


def test_p28_lnc_halves_the_cores_of_a_device() -> None:
    made = seen(a_look(*range(16), lnc=2))
    assert (made.geometry.cores_per_device, made.logical_core_size) == (1, 2)


def test_p20_p25_what_was_listed_stays_listed_when_the_driver_goes_and_recovers_with_it() -> None:
    before = seen(a_look(*range(16)))
    gone = seen(Inventory(absence="no driver"), before=before)
    assert gone.listed == before.listed
    assert set(gone.unhealthy.values()) == {MISSING}
    assert gone.present == ()
    assert seen(a_look(*range(16)), before=gone) == before


def test_a_device_of_an_unknown_type_that_vanishes_stays_listed() -> None:
    before = seen(a_look(0, 1, 2, 3, instance_type=""))
    after = seen(a_look(0, 1, 3, instance_type=""), before=before)
    assert after.unhealthy == {2: MISSING}
    assert after.listed == (0, 1, 2, 3)


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


def test_p28_with_another_number_of_cores_the_node_is_taken_as_it_is_seen_now() -> None:
    before, after = seen(a_look(*range(16))), a_look(0, 1, instance_type="", lnc=2)
    assert seen(after, before=before) == seen(after)


@pytest.mark.parametrize(("instance_type", "nodes"), [("inf2.48xlarge", (2, 3, 2, 3)), ("inf1.6xlarge", ())])
def test_p21_the_types_say_the_numa_node_of_each_device_where_it_is_known(
    instance_type: str, nodes: tuple[int, ...]
) -> None:
    known = TYPES.get(instance_type)
    assert known is not None
    assert tuple(known.numa_nodes[:4]) == nodes


def test_disabled_devices_are_those_of_the_annotation_that_the_node_has() -> None:
    made = node_inventory(None, a_look(*range(16)), TYPES, "", {}, (5, 7, 99))
    assert made is not None
    assert made.disabled == (5, 7)
    gone = node_inventory(made, Inventory(absence="no driver"), TYPES, "", {}, (7,))
    assert gone is not None
    assert gone.disabled == (7,)
