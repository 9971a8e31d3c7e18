"""A simulated machine: its files as a reader finds them, its faults, and what it refuses to be."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_plugin.hardware import ResetState, read_inventory
from neuron_plugin.simulation import node as written
from neuron_plugin.simulation.node import HELD_MEMORY, HELD_PERCENT, SimulatedNode, change, write_entry, write_node
from neuron_plugin.simulation.node_tree import DESCRIPTION_FILE, WORK_COUNTERS, Entry, SimulationError, entries
from neuron_plugin.topology import InstanceType, Topology

MakeNode = Callable[..., SimulatedNode]


def device_dir(node: SimulatedNode, device: int) -> Path:
    return node.root / "sys/devices/virtual/neuron_device" / f"neuron{device}"


def text(node: SimulatedNode, device: int, name: str) -> str:
    return (device_dir(node, device) / name).read_bytes().decode()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def everything(root: Path) -> dict[str, tuple[int, bytes]]:
    """Every file and link below sys/, dev/ and opt/ with its mode and content."""
    return {
        str(path.relative_to(root)): (
            path.lstat().st_mode,
            str(path.readlink()).encode() if path.is_symlink() else path.read_bytes(),
        )
        for part in ("sys", "dev", "opt")
        for path in (root / part).rglob("*")
        if path.is_symlink() or path.is_file()
    }


@pytest.fixture
def make_node(tmp_path: Path) -> MakeNode:
    """Write a machine without the usage counters, which take most of the time."""

    def make(instance_type: str = "inf2.24xlarge", **options: Any) -> SimulatedNode:
        return write_node(tmp_path / "node", instance_type, **{"usage_counters": False, **options})

    return make


# The published bytes, column by column: core_count, connected_devices, the three architecture files, cores.
@pytest.mark.parametrize(
    ("instance_type", "driver", "device", "core_count", "connected", "architecture", "core_arch"),
    [
        ("trn1.32xlarge", "2.24.7.0", 0, "2", "12, 3, 4, 1\n", ("NDv2\n", "Trn1\n", "Trainium1\n"), "NCv2\n"),
        ("trn2.48xlarge", "2.26.5.0", 13, "8", "12, 1, 9, 14\n", ("NDv3\n", "Trn2\n", "Trainium2\n"), "NCv3\n"),
        ("inf2.24xlarge", "2.26.5.0", 5, "2", "4\n", ("NDv3\n", "Inf2\n", "Inferentia2\n"), "NCv2\n"),
        ("inf1.6xlarge", "2.24.7.0", 1, "4", "2, 0\n", ("NDv1\n", "Inf1\n", "Inferentia\n"), "NCv1\n"),
        ("trn1.2xlarge", "2.26.5.0", 0, "2", "\n", ("NDv2\n", "Trn1\n", "Trainium1\n"), "NCv2\n"),
        ("trn3.48xlarge", "2.25.4.0", 0, "8", "12, 1, 3, 4\n", ("NDv4\n", "Trn3\n", "Trainium3\n"), "NCv4\n"),
    ],
)
def test_the_bytes_are_the_drivers(
    make_node: MakeNode,
    instance_type: str,
    driver: str,
    device: int,
    core_count: str,
    connected: str,
    architecture: tuple[str, str, str],
    core_arch: str,
) -> None:
    node = make_node(instance_type, driver_version=driver)
    assert text(node, device, "core_count") == core_count
    assert text(node, device, "connected_devices") == connected
    assert text(node, device, "reset") == "1\n"
    assert text(node, device, "dev") == f"243:{device}\n"
    assert text(node, device, "uevent") == f"MAJOR=243\nMINOR={device}\nDEVNAME=neuron{device}\n"
    assert text(node, device, "info/notify_delay") == "-1\n"
    names = ("arch_type", "instance_type", "device_name")
    assert tuple(text(node, device, f"info/architecture/{name}") for name in names) == architecture
    cores = sorted(path.name for path in device_dir(node, device).glob("neuron_core*"))
    assert cores == [f"neuron_core{core}" for core in range(int(core_count))]
    assert text(node, device, "neuron_core0/info/architecture/arch_type") == core_arch


@pytest.mark.parametrize(
    ("instance_type", "ids"),
    [
        ("inf2.xlarge", ("node_id_2", "node_id_4", "server_id_2", "server_id_4")),
        ("trn3s.48xlarge", ("node_id", "node_cnt", "reservation_id")),
    ],
)
def test_the_class_links_to_the_devices_and_holds_plain_files(
    make_node: MakeNode, instance_type: str, ids: tuple[str, ...]
) -> None:
    class_dir = make_node(instance_type).root / "sys/class/neuron_device"
    assert str((class_dir / "neuron0").readlink()) == "../../devices/virtual/neuron_device/neuron0"
    assert (class_dir / "neuron0").resolve() == class_dir.parents[1] / "devices/virtual/neuron_device/neuron0"
    assert (class_dir / "neuron0/subsystem").resolve() == class_dir
    plain = {path.name: path.read_text() for path in class_dir.iterdir() if not path.is_symlink()}
    texts = {name: f"{'-1' if name.startswith('node') else '0' * 16}\n" for name in ids}
    assert plain == texts | {"ultraserver_mode": "\n"}
    assert {mode(class_dir / name) for name in plain} == {0o444}


@pytest.mark.parametrize(
    ("driver", "attribute", "expected"),
    [
        ("2.13.3.0", "connected_devices", None),
        ("2.13.4.0", "connected_devices", 0o400),
        ("2.27.9.9", "connected_devices", 0o400),
        ("2.28.0.0", "connected_devices", 0o444),
        *((driver, "core_count", mode) for driver, mode in (("2.27.9.9", 0o400), ("2.28.0.0", 0o444))),
        ("2.28.0.0", "reset", 0o600),
        ("2.14.4.0", "stats/hardware/mem_ecc_uncorrected", None),
        ("2.14.5.0", "stats/hardware/mem_ecc_uncorrected", 0o644),
        *((driver, "stats/power/utilization", mode) for driver, mode in (("2.21.36.0", None), ("2.21.37.0", 0o644))),
        ("2.28.0.0", "stats/hardware/health_status/unhealthy_components", None),
        ("2.30.2.0", "stats/hardware/health_status/unhealthy_components", 0o644),
    ],
)
def test_p27_attributes_come_with_the_driver_that_brought_them_and_modes_follow_it(
    make_node: MakeNode, driver: str, attribute: str, expected: int | None
) -> None:
    path = device_dir(make_node("inf2.xlarge", driver_version=driver), 0) / attribute
    assert (mode(path) if path.exists() else None) == expected


@pytest.mark.skipif(os.geteuid() != 0, reason="making character devices takes root")
def test_character_devices_are_made_on_request(make_node: MakeNode) -> None:
    try:
        node = make_node("inf2.24xlarge", char_nodes=True)
    except PermissionError:
        pytest.skip("this container may not make device nodes")
    status = (node.root / "dev/neuron5").stat()
    assert stat.S_ISCHR(status.st_mode)
    assert (os.major(status.st_rdev), os.minor(status.st_rdev)) == (243, 5)
    assert stat.S_IMODE(status.st_mode) == 0o666
    node.remove_node(5)
    assert not (node.root / "dev/neuron5").exists()
    node.restore_node(5)
    assert (node.root / "dev/neuron5").is_char_device()


# Faults.

Deed = Callable[[SimulatedNode, int], None]
FAULTS: dict[str, tuple[Deed, Deed]] = {
    "ecc": (lambda node, n: node.set_ecc(n, sram=1, memory=n + 1), lambda node, n: node.set_ecc(n, sram=0, memory=0)),
    "reset": (
        lambda node, n: node.set_reset(n, ResetState.FAILED),
        lambda node, n: node.set_reset(n, ResetState.READY),
    ),
    "components": (
        lambda node, n: node.set_unhealthy_components(n, ("hbm", "sram")),
        lambda node, n: node.set_unhealthy_components(n, ()),
    ),
    "error events": (lambda node, n: node.set_error_events(n, 4), lambda node, n: node.set_error_events(n, 0)),
    "device": (lambda node, n: node.remove_device(n), lambda node, n: node.restore_device(n)),
    "node": (lambda node, n: node.remove_node(n), lambda node, n: node.restore_node(n)),
    "driver": (lambda node, _: node.unload_driver(), lambda node, _: node.load_driver()),
    **{
        f"attribute {name} {text}": (
            lambda node, n, name=name, text=text: node.set_attribute(n, name, text),  # type: ignore[misc]
            lambda node, n, name=name: node.restore_attribute(n, name),  # type: ignore[misc]
        )
        for name, text in (("core_count", "many"), ("connected_devices", None), ("stats/hardware/new", "1\n"))
    },
    "lnc": (lambda node, _: node.set_logical_core_size(1), lambda node, _: node.set_logical_core_size(None)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_p68_every_fault_changes_the_tree_every_remedy_restores_it_and_what_was_cut_short_is_completed(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    node, (fault, remedy) = make_node(), FAULTS[name]
    before = everything(node.root)
    for deed in (fault, remedy):
        with monkeypatch.context() as patch:
            patch.setattr(written, "write_entry", write_until_cut_short)
            with pytest.raises(KeyboardInterrupt):
                deed(node, 2)
        deed(node, 2)
        assert (everything(node.root) == before) is (deed is remedy)


def write_until_cut_short(root: Path, path: Path, entry: Entry) -> None:
    if path.name == DESCRIPTION_FILE:
        raise KeyboardInterrupt
    write_entry(root, path, entry)


def test_what_a_killed_change_has_taken_away_comes_back_with_the_next_one(make_node: MakeNode) -> None:
    node = make_node()
    before = everything(node.root)
    written.remove(node.root, device_dir(node, 3))
    written.remove(node.root, node.paths.dev / "neuron4")
    node.set_ecc(2, memory=1)
    node.set_ecc(2, memory=0)
    assert everything(node.root) == before


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


def test_a_reboot_brings_back_what_came_up_at_the_last_start_with_an_empty_kernel_log(make_node: MakeNode) -> None:
    node = make_node(missing=(3,))
    before = everything(node.root)
    node.remove_device(2)
    node.set_ecc(4, repairable=1)
    node.log_kernel_message("nd4: NEURON_HW_ERR=DMA_ERROR on queue 4")
    node.unload_driver()
    node.reboot()
    assert everything(node.root) == before


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


@settings(max_examples=15)
@given(st.lists(st.tuples(st.sampled_from(sorted(FAULTS)), st.integers(0, 1), st.integers(0, 2)), max_size=12))
def test_after_any_faults_the_tree_is_the_one_its_description_would_be_written_as(
    steps: list[tuple[str, int, int]],
) -> None:
    types = {"inf2.small": InstanceType("inf2.small", "Inferentia2", 3, 2, 32, Topology.LINE)}
    with TemporaryDirectory() as directory:
        node = write_node(Path(directory) / "node", "inf2.small", usage_counters=False, types=types)
        for name, place, device in steps:
            FAULTS[name][place](node, device)
        fresh = Path(directory) / "fresh"
        fresh.mkdir()
        change(fresh, {}, entries(fresh, node.description))
        assert everything(node.root) == everything(fresh)
        assert SimulatedNode(fresh).description == node.description
        read_inventory(node.paths)


# Refusals.


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        (lambda node: node.set_ecc(9, memory=1), "device 9: inf2.24xlarge has devices 0 to 5 without 1$"),
        (lambda node: node.remove_device(1), "device 1: inf2.24xlarge has devices 0 to 5 without 1$"),
        (lambda node: node.set_attribute(2, "../../x", "1"), "expected a path below the device"),
        (lambda node: node.set_attribute(2, "/etc/x", "1"), "expected a path below the device"),
        (lambda node: node.set_unhealthy_components(2, ["hbm"]), "has no unhealthy_components"),
        (lambda node: node.set_error_events(2, 1), "has no health_status"),
        (lambda node: node.set_core_errors(2, 0, hw_error=1), "without usage counters"),
    ],
)
def test_a_fault_that_cannot_be_is_refused_and_changes_nothing(
    make_node: MakeNode, fault: Callable[[SimulatedNode], None], complaint: str
) -> None:
    node = make_node(missing=(1,), driver_version="2.26.5.0")
    before = everything(node.root)
    with pytest.raises(SimulationError, match=complaint):
        fault(node)
    assert everything(node.root) == before


COUNTERS = {name: f"neuron_core1/stats/{name}/total" for name in WORK_COUNTERS}


def counters(node: SimulatedNode, device: int) -> list[int]:
    directory = node.paths.sysfs / f"class/neuron_device/neuron{device}"
    return [int((directory / COUNTERS[name]).read_text()) for name in WORK_COUNTERS]


def test_what_a_pod_has_is_busy_and_holds_memory_and_stays_counted_when_something_else_changes(
    make_node: MakeNode,
) -> None:
    node = make_node("inf2.24xlarge", work_counters=True)
    busy = HELD_PERCENT * 100_000
    node.set_busy(2, 100)
    node.work(10, held={1})
    assert [counters(node, device) for device in range(3)] == [[0, 0, 0], [busy, HELD_MEMORY, 0], [10_000_000, 0, 0]]
    node.work(10, held=())
    node.set_reset_failures(1, 2)
    assert counters(node, 1) == [busy, 0, 2]
    node.remove_device(1)
    node.work(10, held={1})
    node.restore_device(1)
    assert counters(node, 1) == [0, 0, 2]
