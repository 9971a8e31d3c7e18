"""Faults of a simulated machine, their remedies, and readers that scan meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_plugin.hardware import ResetState, read_inventory
from neuron_plugin.simulation.node import SimulatedNode, write_node
from neuron_plugin.simulation.node_writer import TreeWriter
from neuron_plugin.topology import InstanceType, Topology
from tests.simulation.node_tree import MakeNode, everything, text

FAULTS: dict[str, tuple[Callable[[SimulatedNode], None], Callable[[SimulatedNode], None]]] = {
    "ecc": (lambda node: node.set_ecc(2, sram=1, memory=2), lambda node: node.set_ecc(2, sram=0, memory=0)),
    "reset": (lambda node: node.set_reset(2, ResetState.FAILED), lambda node: node.set_reset(2, ResetState.READY)),
    "components": (
        lambda node: node.set_unhealthy_components(2, ("hbm", "sram")),
        lambda node: node.set_unhealthy_components(2, ()),
    ),
    "error events": (lambda node: node.set_error_events(2, 4), lambda node: node.set_error_events(2, 0)),
    "device": (lambda node: node.remove_device(2), lambda node: node.restore_device(2)),
    "node": (lambda node: node.remove_node(2), lambda node: node.restore_node(2)),
    "driver": (lambda node: node.unload_driver(), lambda node: node.load_driver()),
    "garbage": (
        lambda node: node.set_attribute(2, "core_count", "many"),
        lambda node: node.restore_attribute(2, "core_count"),
    ),
    "late attribute": (
        lambda node: node.remove_attribute(2, "connected_devices"),
        lambda node: node.restore_attribute(2, "connected_devices"),
    ),
    "new attribute": (
        lambda node: node.set_attribute(2, "stats/hardware/new", "1\n"),
        lambda node: node.restore_attribute(2, "stats/hardware/new"),
    ),
    "lnc": (lambda node: node.set_logical_core_size(1), lambda node: node.set_logical_core_size(None)),
}


@pytest.mark.parametrize(("fault", "remedy"), FAULTS.values(), ids=FAULTS.keys())
def test_p68_every_fault_changes_the_tree_and_every_remedy_restores_its_bytes(
    make_node: MakeNode,
    fault: Callable[[SimulatedNode], None],
    remedy: Callable[[SimulatedNode], None],
) -> None:
    node = make_node()
    before = everything(node.root)
    fault(node)
    assert everything(node.root) != before
    remedy(node)
    assert everything(node.root) == before


def test_faults_read_as_the_driver_would_print_them(make_node: MakeNode) -> None:
    node = make_node()
    node.set_ecc(2, sram=1, memory=2, repairable=3)
    node.set_ecc(2, memory=7)
    node.set_reset(2, ResetState.RESETTING)
    node.set_unhealthy_components(2, ["hbm", "link_host"])
    node.set_error_events(2, 9)
    hardware = "stats/hardware"
    assert text(node, 2, f"{hardware}/sram_ecc_uncorrected") == "1\n"
    assert text(node, 2, f"{hardware}/mem_ecc_uncorrected") == "7\n"
    assert text(node, 2, f"{hardware}/mem_ecc_repairable_uncorrected") == "3\n"
    assert text(node, 2, f"{hardware}/health_status/unhealthy_components") == "hbm,link_host\n"
    assert text(node, 2, f"{hardware}/health_status/hw_error_events") == "9\n"
    assert text(node, 2, "reset") == "0\n"
    assert text(node, 1, "reset") == "1\n"


def test_p25_faults_survive_a_driver_reload_because_counters_live_in_firmware(make_node: MakeNode) -> None:
    node = make_node()
    node.set_ecc(2, memory=4)
    node.unload_driver()
    assert not (node.root / "sys/class/neuron_device").exists()
    assert not (node.root / "sys/module/neuron").exists()
    assert [path.name for path in (node.root / "dev").glob("neuron*")] == []
    node.set_ecc(2, sram=1)
    node.load_driver()
    assert text(node, 2, "stats/hardware/mem_ecc_uncorrected") == "4\n"
    assert text(node, 2, "stats/hardware/sram_ecc_uncorrected") == "1\n"


def test_a_device_that_goes_blanks_the_links_of_the_others_until_it_is_back(make_node: MakeNode) -> None:
    node = make_node("inf2.48xlarge")
    node.remove_device(3)
    assert text(node, 8, "connected_devices") == "\n"
    node.restore_device(3)
    assert text(node, 8, "connected_devices") == "7, 9\n"


def test_another_process_finds_the_machine_with_its_faults(make_node: MakeNode) -> None:
    node = make_node()
    node.set_ecc(2, memory=1)
    again = SimulatedNode.open(node.root)
    again.remove_device(4)
    assert read_inventory(node.paths).device_ids == (0, 1, 2, 3, 5)
    assert again.description.device(2).memory_ecc == 1
    node.restore_device(4)
    assert text(node, 2, "stats/hardware/mem_ecc_uncorrected") == "1\n"


def test_faults_from_many_sides_at_once_are_all_kept(make_node: MakeNode) -> None:
    node = make_node()
    threads = [
        threading.Thread(target=SimulatedNode.open(node.root).set_ecc, args=(device,), kwargs={"memory": device + 1})
        for device in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ecc = [device.health.ecc for device in read_inventory(node.paths).devices]
    assert [counts.memory for counts in ecc if counts] == [1, 2, 3, 4, 5, 6]


def test_a_reader_that_scans_during_changes_sees_whole_files_only(make_node: MakeNode) -> None:
    node = make_node("inf2.48xlarge")
    done = threading.Event()

    def disturb() -> None:
        for round_ in range(15):
            node.set_ecc(5, memory=10 ** (round_ % 8))
            node.remove_device(7)
            node.restore_device(7)
        done.set()

    disturber = threading.Thread(target=disturb)
    disturber.start()
    looks = 0
    while not done.is_set():
        inventory = read_inventory(node.paths)
        assert inventory.skipped == ()
        assert set(inventory.device_ids) | {7} == set(range(12))
        assert all(not device.problems for device in inventory.devices)
        looks += 1
    disturber.join()
    assert looks > 3


ACTIONS: dict[str, Callable[[SimulatedNode, int], None]] = {
    "errors": lambda node, device: node.set_ecc(device, memory=device + 1),
    "no errors": lambda node, device: node.set_ecc(device, memory=0),
    "failed reset": lambda node, device: node.set_reset(device, ResetState.FAILED),
    "broken parts": lambda node, device: node.set_unhealthy_components(device, ["hbm"]),
    "error events": lambda node, device: node.set_error_events(device, 3),
    "device gone": lambda node, device: node.remove_device(device),
    "device back": lambda node, device: node.restore_device(device),
    "node gone": lambda node, device: node.remove_node(device),
    "node back": lambda node, device: node.restore_node(device),
    "garbage": lambda node, device: node.set_attribute(device, "core_count", "?"),
    "no attribute": lambda node, device: node.remove_attribute(device, "core_count"),
    "attribute back": lambda node, device: node.restore_attribute(device, "core_count"),
    "driver gone": lambda node, _device: node.unload_driver(),
    "driver back": lambda node, _device: node.load_driver(),
    "lnc": lambda node, device: node.set_logical_core_size(device or None),
}


@settings(deadline=None, max_examples=15)
@given(st.lists(st.tuples(st.sampled_from(sorted(ACTIONS)), st.integers(0, 2)), max_size=12))
def test_after_any_faults_the_tree_is_the_one_its_description_would_be_written_as(
    steps: list[tuple[str, int]],
) -> None:
    types = {"inf2.small": InstanceType("inf2.small", "Inferentia2", 3, 2, 32, Topology.LINE)}
    with TemporaryDirectory() as directory:
        node = write_node(Path(directory) / "node", "inf2.small", usage_counters=False, types=types)
        for action, device in steps:
            ACTIONS[action](node, device)
        fresh = Path(directory) / "fresh"
        fresh.mkdir()
        TreeWriter(fresh).build(node.description)
        assert everything(node.root) == everything(fresh)
        assert SimulatedNode(fresh).description == node.description
        read_inventory(node.paths)


@pytest.mark.parametrize(("fault", "remedy"), FAULTS.values(), ids=FAULTS.keys())
def test_a_change_that_was_cut_short_is_completed_when_it_is_made_again(
    make_node: MakeNode,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[SimulatedNode], None],
    remedy: Callable[[SimulatedNode], None],
) -> None:
    node = make_node()
    before = everything(node.root)
    for change in (fault, remedy):
        with monkeypatch.context() as patch:
            patch.setattr(TreeWriter, "_describe", cut_short)
            with pytest.raises(KeyboardInterrupt):
                change(node)
        change(node)
    assert everything(node.root) == before


def cut_short(_writer: TreeWriter, _description: object) -> None:
    raise KeyboardInterrupt
