from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from neuron_plugin.cli.command import program
from neuron_plugin.hardware import EVERY_DEVICE, Device, Inventory, MachinePaths, ResetState, read_inventory
from neuron_plugin.hardware.device import CoreErrors, EccCounts, NodeState
from neuron_plugin.hardware.kernel_log import parse_line
from neuron_plugin.simulation import SimulatedNode, write_node
from neuron_plugin.topology import catalogue
from tests.cli.doubles import Cli
from tests.inspection.doubles import MakeNode

SMALL = ("--no-usage-counters",)


def test_types_lists_the_catalogue_with_the_counts_one_can_request(cli: Cli) -> None:
    shown = cli("simulate", "types")
    header, *rows = shown.rows
    assert header[:4] == ["TYPE", "DEVICES", "PRODUCT", "CORES/DEVICE"]
    assert header[4:] == ["PHYSICAL", "LNC", "MEMORY/DEVICE", "TOPOLOGY", "DEVICE-COUNTS", "CORE-COUNTS"]
    assert [row[0] for row in rows] == sorted(catalogue())
    by_name = {row[0]: row[1:] for row in rows}
    assert by_name["trn2.48xlarge"] == ["16", "Trainium2", "4", "8", "2", "96Gi", "torus", "1,4,8,16", "1-4,8,16,32,64"]
    assert by_name["inf2.24xlarge"] == ["6", "Inferentia2", "2", "2", "1", "32Gi", "line", "1-6", "1-12"]


def test_types_lists_the_users_own_too(cli: Cli, tmp_path: Path) -> None:
    types = tmp_path / "types.yaml"
    types.write_text("instance-types: [{name: inf9.xlarge, devices: 3, cores-per-device: 4, topology: line}]\n")
    rows = {row[0]: row[1:] for row in cli("simulate", "types", "--instance-types", types).rows}
    assert rows["inf9.xlarge"] == ["3", "-", "4", "4", "1", "0Gi", "line", "1-3", "1-12"]


@pytest.mark.parametrize(("form", "load"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_types_are_a_document_for_scripts(cli: Cli, form: str, load: Callable[[str], Any]) -> None:
    found = load(cli("simulate", "types", "-o", form).out)
    assert found["version"] == 1
    assert [each["name"] for each in found["types"]] == sorted(catalogue())
    assert next(each for each in found["types"] if each["name"] == "trn2.48xlarge") == {
        "name": "trn2.48xlarge",
        "devices": 16,
        "product": "Trainium2",
        "coresPerDevice": 4,
        "physicalCoresPerDevice": 8,
        "logicalCoreSize": 2,
        "memoryGibPerDevice": 96,
        "topology": "torus",
        "deviceCounts": [1, 4, 8, 16],
        "coreCounts": [1, 2, 3, 4, 8, 16, 32, 64],
    }


def test_a_document_says_what_was_written(cli: Cli, tmp_path: Path) -> None:
    shown = cli("simulate", "node", tmp_path / "n", "--type", "inf2.24xlarge", "--missing", "3", "-o", "json", *SMALL)
    assert json.loads(shown.out) == {
        "version": 1,
        "root": str(tmp_path / "n"),
        "instanceType": "inf2.24xlarge",
        "devices": [0, 1, 2, 4, 5],
        "missing": [3],
        "driverVersion": "2.30.2.0",
    }


def test_a_written_node_reads_as_the_machine(cli: Cli, tmp_path: Path) -> None:
    shown = cli("simulate", "node", tmp_path / "n", "--type", "trn2.3xlarge", "--lnc", "1", *SMALL)
    assert (shown.status, shown.err) == (0, "")
    assert shown.out.splitlines() == [
        f"{tmp_path / 'n'}: trn2.3xlarge, 1 device, driver 2.30.2.0",
        f"Look at it: {program()} devices --root {tmp_path / 'n'}",
    ]
    inventory = read_inventory(MachinePaths.under(tmp_path / "n"), settled=EVERY_DEVICE)
    assert (inventory.instance_type, inventory.cores_per_device) == ("trn2.3xlarge", 8)


def test_missing_devices_may_be_given_as_ranges(cli: Cli, tmp_path: Path) -> None:
    shown = cli("simulate", "node", tmp_path / "n", "--type", "inf2.48xlarge", "--missing", "3,7-8", *SMALL)
    assert "9 devices, without 3,7-8" in shown.out
    inventory = read_inventory(MachinePaths.under(tmp_path / "n"), settled=EVERY_DEVICE)
    assert inventory.device_ids == (0, 1, 2, 4, 5, 6, 9, 10, 11)


def test_the_driver_can_be_chosen(cli: Cli, tmp_path: Path) -> None:
    arguments = ("--type", "inf2.xlarge", "--driver-version", "2.10.11.0", *SMALL)
    assert "driver 2.10.11.0" in cli("simulate", "node", tmp_path / "n", *arguments).out


def test_usage_counters_are_written_unless_they_are_not_wanted(cli: Cli, tmp_path: Path) -> None:
    cli("simulate", "node", tmp_path / "with", "--type", "inf2.xlarge")
    cli("simulate", "node", tmp_path / "without", "--type", "inf2.xlarge", *SMALL)
    counts = [sum(path.is_file() for path in (tmp_path / name).rglob("*")) for name in ("with", "without")]
    assert counts[0] > counts[1] + 100


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--type", "trn7.xlarge"), "--type trn7.xlarge is not known: see 'neuron-plugin simulate types'"),
        (("--type", "inf2.24xlarge", "--missing", "9"), "missing device 9"),
        (("--type", "inf2.24xlarge", "--missing", "a,b"), "--missing a,b: 'a' is no id"),
        (("--type", "inf2.24xlarge", "--missing", "5-1"), "--missing 5-1: the range '5-1' runs backwards"),
        (("--type", "inf2.24xlarge", "--driver-version", "new"), "driver version 'new'"),
        (("--type", "inf1.xlarge", "--driver-version", "2.30.0.0"), "has no Inf1 any more"),
        (("--type", "inf2.24xlarge", "--lnc", "two"), "argument --lnc: invalid int value: 'two'"),
        (("--type", "inf2.24xlarge", "--lnc", "0"), "logical core size 0"),
        (("--type", "trn1.32xlarge", "--lnc", "2"), "--lnc 2 is not known to Trainium1, expected at most 1"),
        (("--type", "trn2.48xlarge", "--lnc", "4"), "--lnc 4 is not known to Trainium2, expected at most 2"),
    ],
)
def test_a_machine_that_cannot_be_is_refused_and_nothing_is_written(
    cli: Cli, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    shown = cli("simulate", "node", tmp_path / "n", *arguments, *SMALL)
    assert (shown.status, shown.out) == (2, "")
    assert said in shown.err
    assert shown.err.count("\n") == 1
    assert not (tmp_path / "n" / "sys").exists()


def test_a_directory_in_use_is_left_alone(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    shown = cli("simulate", "node", tmp_path, "--type", "inf2.xlarge", *SMALL)
    assert shown.status == 2
    assert "is not empty" in shown.err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_directory_that_cannot_be_made_is_one_line(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    shown = cli("simulate", "node", tmp_path / "file" / "n", "--type", "inf2.xlarge", *SMALL)
    assert (shown.status, shown.err.count("\n")) == (1, 1)
    assert "Not a directory" in shown.err


@pytest.fixture
def node(make_node: MakeNode) -> SimulatedNode:
    return make_node("inf2.24xlarge")


def inventory(node: SimulatedNode) -> Inventory:
    return read_inventory(node.paths, settled=EVERY_DEVICE)


def device(node: SimulatedNode, number: int) -> Device:
    return next(each for each in inventory(node).devices if each.id == number)


def fault(cli: Cli, node: SimulatedNode, *arguments: str) -> None:
    shown = cli("simulate", "fault", node.root, *arguments)
    assert (shown.status, shown.out, shown.err) == (0, "", "")


def test_counts_of_ecc_errors_are_set_one_by_one(cli: Cli, node: SimulatedNode) -> None:
    fault(cli, node, "ecc", "3", "--sram", "1", "--memory", "2")
    fault(cli, node, "ecc", "3", "--repairable", "4")
    assert device(node, 3).health.ecc == EccCounts(1, 2, 4)
    assert device(node, 2).health.ecc == EccCounts()


@pytest.mark.parametrize("state", ResetState)
def test_a_reset_can_be_in_every_state(cli: Cli, node: SimulatedNode, state: ResetState) -> None:
    fault(cli, node, "reset", "1", state.name.lower())
    assert device(node, 1).health.reset is state


def test_broken_parts_are_named_and_mended(cli: Cli, node: SimulatedNode) -> None:
    fault(cli, node, "components", "1", "hbm,link_host")
    assert device(node, 1).health.unhealthy_components == frozenset({"hbm", "link_host"})
    fault(cli, node, "components", "1", "none")
    assert device(node, 1).health.unhealthy_components == frozenset()


def test_errors_of_a_core_are_set_on_a_node_with_usage_counters(cli: Cli, tmp_path: Path) -> None:
    node = write_node(tmp_path / "full", "inf2.xlarge")
    fault(cli, node, "core-errors", "0", "--core", "1", "--kind", "hw_nc_ue_error", "--count", "2")
    assert device(node, 0).health.core_errors == (CoreErrors(0), CoreErrors(1, hw_nc_ue_error=2))
    fault(cli, node, "core-errors", "0", "--count", "3")
    assert device(node, 0).health.core_errors[0] == CoreErrors(0, hw_error=3)


def test_firmwares_counter_of_errors_is_set(cli: Cli, node: SimulatedNode) -> None:
    fault(cli, node, "error-events", "2", "7")
    assert device(node, 2).health.status_counts == (("hw_error_events", 7),)


def test_a_line_is_written_into_the_kernel_log_by_the_kernel_or_a_forger(cli: Cli, node: SimulatedNode) -> None:
    log = node.paths.dev / "kmsg"
    before = len(log.read_text().splitlines())
    fault(cli, node, "kmsg", "nd3: NEURON_HW_ERR=DMA_ERROR on queue 4")
    fault(cli, node, "kmsg", "NEURON_HW_ERR=DMA_ERROR", "--forged")
    records = [parse_line(line, None) for line in log.read_bytes().splitlines()[before:]]
    assert [(record.text, record.by_kernel) for record in records if record] == [
        ("nd3: NEURON_HW_ERR=DMA_ERROR on queue 4", True),
        ("NEURON_HW_ERR=DMA_ERROR", False),
    ]


def test_a_count_of_errors_is_a_number(cli: Cli, node: SimulatedNode) -> None:
    shown = cli("simulate", "fault", node.root, "error-events", "2", "few")
    assert shown.status == 2
    assert "'few' is no count of 0 or more" in shown.err


def test_devices_are_made_busy_or_idle_and_their_resets_fail(cli: Cli, tmp_path: Path) -> None:
    node = write_node(tmp_path / "node", "inf2.24xlarge", usage_counters=False, work_counters=True)
    assert cli("simulate", "fault", node.root, "use", "0-2", "busy", "--percent", "80").status == 0
    assert cli("simulate", "fault", node.root, "use", "1", "idle").status == 0
    assert cli("simulate", "fault", node.root, "use", "2", "usual").status == 0
    assert cli("simulate", "fault", node.root, "reset-failures", "1", "3").status == 0
    states = [node.description.device(device) for device in range(3)]
    assert [state.busy_percent for state in states] == [80, 0, None]
    assert states[1].reset_failures == 3
    assert "expected" in cli("simulate", "fault", node.root, "use", "one", "idle").err


def test_a_device_goes_and_comes_back(cli: Cli, node: SimulatedNode) -> None:
    fault(cli, node, "device", "5", "gone")
    assert inventory(node).device_ids == (0, 1, 2, 3, 4)
    fault(cli, node, "device", "5", "back")
    assert inventory(node).device_ids == (0, 1, 2, 3, 4, 5)


def test_a_device_node_goes_and_comes_back(cli: Cli, node: SimulatedNode) -> None:
    fault(cli, node, "node", "5", "gone")
    assert device(node, 5).node is NodeState.ABSENT
    fault(cli, node, "node", "5", "back")
    assert device(node, 5).node is NodeState.PRESENT


def test_the_driver_goes_and_comes_back(cli: Cli, node: SimulatedNode) -> None:
    fault(cli, node, "driver", "gone")
    assert inventory(node).devices == ()
    fault(cli, node, "driver", "back")
    assert len(inventory(node).devices) == 6


def test_an_attribute_reads_garbage_is_missing_and_is_restored(cli: Cli, node: SimulatedNode) -> None:
    path = node.paths.sysfs / "class/neuron_device/neuron2/info/serial_number"
    before = path.read_text()
    fault(cli, node, "attribute", "2", "info/serial_number", "--text", "x\\ny")
    assert path.read_text() == "x\ny"
    fault(cli, node, "attribute", "2", "info/serial_number", "--missing")
    assert not path.exists()
    fault(cli, node, "attribute", "2", "info/serial_number", "--restore")
    assert path.read_text() == before


def test_the_logical_core_size_is_set_and_taken_back(cli: Cli, make_node: MakeNode) -> None:
    node = make_node("trn2.3xlarge")
    fault(cli, node, "lnc", "1")
    assert inventory(node).logical_core_size.size == 1
    fault(cli, node, "lnc", "none")
    assert inventory(node).logical_core_size.size == 2
    assert not node.paths.logical_nc_config.exists()


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("ecc", "3"), 2, "without --sram, --memory or --repairable COUNT"),
        (("ecc", "3", "--sram", "-1"), 2, "'-1' is no count of 0 or more"),
        (("ecc", "three", "--sram", "1"), 2, "invalid int value: 'three'"),
        (("ecc", "44", "--sram", "1"), 2, "device 44"),
        (("reset", "3", "broken"), 2, "invalid choice: 'broken'"),
        (("device", "3"), 2, "presence"),
        (("attribute", "3", "core_count"), 2, "one of the arguments --text --missing --restore is required"),
        (("attribute", "3", "../../etc", "--missing"), 2, "expected a path below the device"),
        (("attribute", "3", "nosuch", "--text", "1"), 2, "neuron3 has no attribute nosuch: expected a path below"),
        (("attribute", "3", "info", "--missing"), 2, "neuron3 has no attribute info"),
        (("lnc", "two"), 2, "'two' is no logical core size: a number, or none"),
        (("lnc", "0"), 2, "logical core size 0"),
        (("meteor", "3"), 2, "invalid choice: 'meteor'"),
    ],
)
def test_a_fault_that_cannot_be_is_refused_in_one_line_and_changes_nothing(
    cli: Cli, node: SimulatedNode, arguments: tuple[str, ...], status: int, said: str
) -> None:
    before = node.description
    shown = cli("simulate", "fault", node.root, *arguments)
    assert (shown.status, shown.out) == (status, "")
    assert said in shown.err
    assert shown.err.count("\n") == 1
    assert node.description == before


def test_a_directory_without_a_machine_says_how_to_get_one(cli: Cli, tmp_path: Path) -> None:
    shown = cli("simulate", "fault", tmp_path, "driver", "gone")
    assert shown.status == 2
    assert "holds no simulated node" in shown.err
