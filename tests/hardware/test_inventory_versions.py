"""What a driver is read for, with every layout of its sysfs tree that is known, and with what 2.31 may have moved.

The vendor's guide says that driver 2.31 moved attributes to other directories, not back-compatibly; the places here are
invented, the names are not.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from neuron_plugin.hardware.device import Device, EccCounts
from neuron_plugin.hardware.inventory import read_inventory
from neuron_plugin.hardware.sysfs import HEALTH_STATUS, ResetState, Sysfs, by_name, names_in
from neuron_plugin.simulation import SimulatedNode, write_node
from tests.hardware.conftest import MakeNode

COUNTERS = (2, 14, 5)
LINKS = (2, 13, 4)
NOTICES = (2, 28)
COMPONENTS = (2, 30, 2)

VERSIONS = (
    *("2.10.11.0", "2.12.14.0", "2.13.4.0", "2.14.5.0", "2.21.37.0", "2.24.7.0", "2.25.4.0", "2.26.5.0"),
    *("2.28.0.0", "2.29.0.0", "2.30.2.0"),
)
"""Every version at which the facts of the driver name a difference."""

MOVES = {
    "core_count": "info/core_count",
    "connected_devices": "info/links/connected_devices",
    "reset": "control/reset",
    "info/architecture": "hardware/architecture",
    "info/serial_number": "hardware/identity/serial_number",
    "stats/hardware/sram_ecc_uncorrected": "health/ecc/sram_ecc_uncorrected",
    "stats/hardware/mem_ecc_uncorrected": "health/ecc/mem_ecc_uncorrected",
    "stats/hardware/mem_ecc_repairable_uncorrected": "health/ecc/mem_ecc_repairable_uncorrected",
    "stats/hardware/health_status": "health/health_status",
}
CORES = {f"neuron_core{core}": f"cores/neuron_core{core}" for core in range(2)}


def spoiled(node: SimulatedNode) -> SimulatedNode:
    """An error of each kind."""
    node.set_ecc(0, sram=1, memory=2, repairable=3)
    node.set_core_errors(0, 1, hw_nc_ue_error=4)
    node.set_unhealthy_components(0, ["hbm"])
    node.set_error_events(0, 5)
    return node


def moved(node: SimulatedNode, moves: dict[str, str]) -> SimulatedNode:
    """The tree as a driver that keeps things elsewhere has it."""
    for directory in (node.paths.sysfs / "devices/virtual/neuron_device").iterdir():
        for old, new in moves.items():
            (directory / new).parent.mkdir(parents=True, exist_ok=True)
            (directory / old).rename(directory / new)
    return node


@pytest.mark.parametrize("version", VERSIONS)
def test_every_driver_version_is_read_for_all_that_it_tells(make_node: MakeNode, version: str) -> None:
    node = make_node("trn2.48xlarge", driver_version=version)
    for device in (0, 15):
        node.set_ecc(device, sram=1)
    inventory = read_inventory(node.paths)
    assert inventory.driver_version
    since = inventory.driver_version.at_least
    assert (inventory.skipped, inventory.problems, inventory.absence) == ((), (), "")
    assert [device.id for device in inventory.devices] == list(range(16))
    assert {(device.cores, device.device_name, device.architecture) for device in inventory.devices} == {
        (8, "Trainium2", "NDv3")
    }
    assert all(device.problems == () for device in inventory.devices)
    first = inventory.devices[0]
    assert first.connected == ({12, 1, 3, 4} if since(*LINKS) else set())
    assert first.health.reset is ResetState.READY
    assert first.health.ecc == (EccCounts(sram=1) if since(*COUNTERS) else None)
    assert bool(first.health.status_counts) is since(*NOTICES)
    assert first.health.unhealthy_components == (frozenset() if since(*COMPONENTS) else None)


def the_device(node: SimulatedNode) -> Device:
    (device,) = read_inventory(node.paths).devices
    assert device.problems == ()
    return device


@pytest.mark.parametrize("moves", [*({old: new} for old, new in MOVES.items()), CORES, {**MOVES, **CORES}])
def test_what_was_moved_is_found_by_its_name(tmp_path: Path, moves: dict[str, str]) -> None:
    usual = spoiled(write_node(tmp_path / "usual", "inf2.xlarge"))
    other = moved(spoiled(write_node(tmp_path / "other", "inf2.xlarge")), moves)
    assert read_inventory(other.paths) == read_inventory(usual.paths)
    health = the_device(other).health
    assert health.ecc == EccCounts(1, 2, 3)
    assert health.core_errors[1].hw_nc_ue_error == 4
    assert health.unhealthy_components == frozenset({"hbm"})
    assert health.status_counts == (("hw_error_events", 5),)


def test_moved_files_of_health_are_looked_for_where_they_are(tmp_path: Path) -> None:
    node = moved(write_node(tmp_path / "node", "inf2.xlarge"), MOVES)
    tree = Sysfs(node.paths.sysfs).device(the_device(node).id)
    assert tree.located(HEALTH_STATUS) == tree.path / "health/health_status"
    assert names_in(tree.located(HEALTH_STATUS)) == ["hw_error_events", "unhealthy_components"]


def test_a_name_that_is_there_twice_or_is_a_directory_is_not_guessed(tmp_path: Path, make_node: MakeNode) -> None:
    node = moved(make_node("inf2.24xlarge"), {"core_count": "a/core_count"})
    for device in (node.paths.sysfs / "devices/virtual/neuron_device").iterdir():
        (device / "b").mkdir()
        (device / "b/core_count").write_text("4")
    inventory = read_inventory(node.paths)
    assert inventory.devices == ()
    assert inventory.incomplete == frozenset(range(6))
    (tmp_path / "tree/x/core_count").mkdir(parents=True)
    assert by_name(tmp_path / "tree")["core_count"].is_dir()


def test_cores_and_the_kernels_own_directories_are_not_searched(tmp_path: Path) -> None:
    for path in ("deep/er/reset", "neuron_core0/info/reset", "power/control", "deep/control"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("1\n")
    found = by_name(tmp_path)
    assert found["reset"] == tmp_path / "deep/er/reset"
    assert found["control"] == tmp_path / "deep/control"
    assert found["neuron_core0"] == tmp_path / "neuron_core0"
    assert by_name(tmp_path / "nothing") == {}


def test_a_heartbeat_that_beats_is_no_change(make_node: MakeNode) -> None:
    node = make_node("trn2.3xlarge", driver_version="2.30.2.0")
    before = read_inventory(node.paths)
    node.set_attribute(0, "stats/hardware/health_status/healthcheck_heartbeat", "1789180860\n")
    assert read_inventory(node.paths) == before
