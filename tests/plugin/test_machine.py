"""The hardware as it is advertised, over everything that happens to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from neuron_plugin.allocation import HolderLedger, Holding, Resource
from neuron_plugin.hardware import Device, Inventory, SkippedDevice, parse_driver_version
from neuron_plugin.hardware.logical_cores import LogicalCoreSize
from neuron_plugin.hardware.records import NodeState
from neuron_plugin.plugin.machine import (
    MISSING,
    Machine,
    advertised,
    describe,
    health_after,
    machine_after,
    same_ids,
    seen_machine,
    told_machine,
)
from neuron_plugin.plugin.quarantine import Quarantine, Users
from neuron_plugin.plugin.standins import nameless_stand_in
from neuron_plugin.topology import DeviceId, Geometry, Topology, catalogue
from tests.plugin.world import CORE, DEVICE, NEURON, TRN1, devices, machine, ref

TYPES = catalogue()


def device(number: int) -> Device:
    links = frozenset({DeviceId(number - 1), DeviceId(number + 1)})
    return Device(DeviceId(number), 2, "Trainium1", "NDv2", links, NodeState.PRESENT)


def inventory(*numbers: int, instance_type: str = "trn1.32xlarge", lnc: int = 1) -> Inventory:
    return Inventory(
        devices=tuple(device(number) for number in numbers),
        driver_version=parse_driver_version("2.26.5.0"),
        instance_type=instance_type,
        logical_core_size=LogicalCoreSize(lnc, "a test"),
    )


def seen(found: Inventory, unhealthy: Mapping[int, str] | None = None) -> Machine:
    made = seen_machine(found, TYPES, "", unhealthy or {})
    assert made is not None
    return made


def healthy(made: Machine, resource: Resource, ledger: HolderLedger | None = None) -> list[str]:
    return [each.id for each in advertised(made, ledger or HolderLedger(), resource) if each.healthy]


def test_p22_no_device_is_no_machine() -> None:
    assert seen_machine(Inventory(absence="no driver"), TYPES, "", {}) is None


def test_a_whole_machine_has_its_types_geometry_and_nothing_wrong() -> None:
    made = seen(inventory(*range(16)))
    assert made.geometry == TRN1
    assert made.listed == tuple(range(16))
    assert made.unhealthy == {}
    assert made.healthy_mask == TRN1.all_mask


def test_p24_a_device_that_the_type_has_and_the_driver_lacks_is_listed_as_missing() -> None:
    made = seen(inventory(*(number for number in range(16) if number != 5)))
    assert made.listed == tuple(range(16))
    assert made.unhealthy == {5: MISSING}
    assert made.inventory().present == tuple(number for number in range(16) if number != 5)
    assert made.inventory().unhealthy == {}


def test_p26_of_an_unknown_type_only_what_is_there_is_listed() -> None:
    made = seen(inventory(0, 1, 3, instance_type="trn9.large"))
    assert made.listed == (0, 1, 3)
    assert made.unhealthy == {}
    assert made.geometry.device_count == 4


def test_the_operators_type_stands_in_where_the_machine_does_not_tell() -> None:
    made = seen_machine(inventory(*range(16), instance_type=""), TYPES, "trn1.32xlarge", {})
    assert made is not None
    assert made.geometry == TRN1


def test_p27_a_skipped_device_is_listed_with_the_reason() -> None:
    found = replace(inventory(*range(15)), skipped=(SkippedDevice(DeviceId(15), "core_count reads 'x'"),))
    assert seen(found).unhealthy == {15: "core_count reads 'x'"}
    assert seen(found).inventory().unhealthy == {15: "core_count reads 'x'"}


def test_p67_a_sick_device_is_unhealthy_with_its_reason_unless_it_is_not_even_there() -> None:
    made = seen(inventory(*range(15)), {3: "sick", 15: "was sick", 99: "never listed"})
    assert made.unhealthy == {3: "sick", 15: MISSING}


def test_p28_lnc_halves_the_cores_of_a_device() -> None:
    assert seen(inventory(*range(16), lnc=2)).geometry.cores_per_device == 1


def test_p20_p25_what_was_listed_stays_listed_when_the_driver_goes_and_recovers_with_it() -> None:
    before = seen(inventory(*range(16)))
    gone = machine_after(before, None)
    assert gone is not None
    assert gone.listed == before.listed
    assert set(gone.unhealthy.values()) == {MISSING}
    assert gone.inventory().present == ()
    assert machine_after(gone, before) == before


def test_a_device_of_an_unknown_type_that_vanishes_stays_listed() -> None:
    before = seen(inventory(0, 1, 2, 3, instance_type=""))
    after = machine_after(before, seen(inventory(0, 1, 3, instance_type="")))
    assert after is not None
    assert after.unhealthy == {2: MISSING}
    assert after.listed == (0, 1, 2, 3)


def test_links_that_are_known_later_count_and_are_kept_when_they_vanish() -> None:
    unlinked = machine(Geometry("unknown", Topology.UNLINKED, 4, 2, (1,)))
    ring = machine(Geometry("unknown", Topology.RING, 4, 2))
    learned, kept = machine_after(unlinked, ring), machine_after(ring, unlinked)
    assert learned is not None
    assert kept is not None
    assert learned.geometry.topology is Topology.RING
    assert kept.geometry.topology is Topology.RING


def test_another_number_of_cores_is_another_machine_as_a_whole() -> None:
    before, after = seen(inventory(*range(16))), seen(inventory(0, 1, instance_type="", lnc=2))
    assert not same_ids(before, after)
    assert machine_after(before, after) == after
    told = health_after(before, replace(after, unhealthy={1: "sick", 99: "never listed"}))
    assert told.geometry == before.geometry
    assert told.unhealthy == {1: "sick", **dict.fromkeys(range(2, 16), MISSING)}


def test_p57_what_is_held_as_cores_is_unhealthy_as_a_device_and_the_reverse() -> None:
    cores = HolderLedger().with_holding(ref("a"), Holding("app", CORE, TRN1.cores_mask((3,))))
    assert healthy(machine(), NEURON, cores) == healthy(machine(), DEVICE, cores)
    assert "1" not in healthy(machine(), NEURON, cores)
    assert len(healthy(machine(), CORE, cores)) == 32
    device_ = HolderLedger().with_holding(ref("a"), Holding("app", DEVICE, devices(1)))
    assert set(healthy(machine(), CORE)) - set(healthy(machine(), CORE, device_)) == {"2", "3"}
    assert len(healthy(machine(), DEVICE, device_)) == 16


def test_a_device_says_who_holds_it_under_which_name_and_sickness_comes_first() -> None:
    ledger = HolderLedger().with_holding(ref("a"), Holding("app", CORE, TRN1.cores_mask((3,))))
    reasons = {each.id: each.reason for each in advertised(machine(), ledger, NEURON)}
    assert reasons["1"] == "held by pod default/a as aws.amazon.com/neuroncore"
    sick = {each.id: each.reason for each in advertised(machine(unhealthy={1: "sick"}), ledger, NEURON)}
    assert sick["1"] == "sick"


def test_p60_what_is_suspect_is_unhealthy_but_under_the_name_it_is_held_by_again() -> None:
    doubted = Quarantine(30.0).with_suspect(ref("gone"), devices(1, 2), now=0.0)
    ledger = HolderLedger().with_holding(ref("a"), Holding("app", NEURON, devices(1)))
    reasons = {each.id: each.reason for each in advertised(machine(), ledger, NEURON, doubted)}
    assert (reasons["1"], reasons["2"][:25]) == ("", "left by pod default/gone,")
    assert not {"1", "2"} & {each.id for each in advertised(machine(), ledger, DEVICE, doubted) if each.healthy}


def test_of_a_sick_device_that_is_suspect_the_cluster_is_told_the_sickness() -> None:
    suspects = Quarantine(30.0).with_suspect(ref("gone"), devices(1, 2), now=0.0)
    seen_on = suspects.after_look(TRN1, Users({}, complete=False, moment=1.0))
    told = told_machine(machine(unhealthy={1: "sick"}), seen_on).unhealthy
    assert told[1] == "sick"
    assert told[2].startswith("left by pod default/gone")
    assert told_machine(machine(), None) == machine()


def test_a_device_says_that_its_holder_is_not_known_yet() -> None:
    ledger = HolderLedger().with_holding(nameless_stand_in(1), Holding("", CORE, TRN1.cores_mask((3,))))
    reasons = {each.id: each.reason for each in advertised(machine(), ledger, NEURON)}
    assert reasons["1"] == "held by a pod not yet confirmed as aws.amazon.com/neuroncore"


def test_p71_a_held_device_that_is_sick_is_told_so_under_its_own_name_too() -> None:
    ledger = HolderLedger().with_holding(ref("a"), Holding("app", NEURON, devices(1)))
    assert "1" not in healthy(machine(unhealthy={1: "sick"}), NEURON, ledger)


def test_the_machine_in_a_log_line() -> None:
    assert describe(machine(unhealthy={1: "sick"})) == {
        "instance_type": "trn1.32xlarge",
        "devices": 16,
        "cores": 32,
        "unhealthy": {1: "sick"},
    }
    assert describe(machine())["unhealthy"] == "none"
