from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neuron_plugin.cli.command import program
from neuron_plugin.hardware import EVERY_DEVICE, Device, Inventory, MachinePaths, ResetState, read_inventory
from neuron_plugin.hardware.device import CoreErrors, EccCounts, NodeState
from neuron_plugin.hardware.kernel_log import parse_line
from neuron_plugin.simulation import SimulatedNode, write_node
from neuron_plugin.topology import catalogue
from tests.cli.doubles import Cli

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


def test_types_are_a_document_for_scripts(cli: Cli) -> None:
    found = json.loads(cli("simulate", "types", "-o", "json").out)
    assert [each["name"] for each in found["types"]] == sorted(catalogue())
    trn2 = next(each for each in found["types"] if each["name"] == "trn2.48xlarge")
    cores = (trn2["coresPerDevice"], trn2["physicalCoresPerDevice"], trn2["logicalCoreSize"])
    assert (cores, trn2["memoryGibPerDevice"], trn2["deviceCounts"]) == ((4, 8, 2), 96, [1, 4, 8, 16])


def test_a_written_node_reads_as_the_machine_and_a_document_says_what_it_is(cli: Cli, tmp_path: Path) -> None:
    shown = cli("simulate", "node", tmp_path / "n", "--type", "trn2.3xlarge", "--lnc", "1", *SMALL)
    assert (shown.status, shown.err) == (0, "")
    assert shown.out.splitlines() == [
        f"{tmp_path / 'n'}: trn2.3xlarge, 1 device, driver 2.30.2.0",
        f"Look at it: {program()} devices --root {tmp_path / 'n'}",
    ]
    found = read_inventory(MachinePaths.under(tmp_path / "n"), settled=EVERY_DEVICE)
    assert (found.instance_type, found.cores_per_device) == ("trn2.3xlarge", 8)
    chosen = ("--type", "inf2.24xlarge", "--missing", "0,3-4", "--driver-version", "2.10.11.0")
    assert json.loads(cli("simulate", "node", tmp_path / "m", "-o", "json", *chosen, *SMALL).out) == {
        "version": 1,
        "root": str(tmp_path / "m"),
        "instanceType": "inf2.24xlarge",
        "devices": [1, 2, 5],
        "missing": [0, 3, 4],
        "driverVersion": "2.10.11.0",
    }
    assert "3 devices, without 0,3-4, driver 2.30.2.0" in cli("simulate", "node", tmp_path / "w", *chosen[:4]).out
    counts = [sum(path.is_file() for path in (tmp_path / name).rglob("*")) for name in ("w", "m")]
    assert counts[0] > counts[1] + 300, "usage counters are written unless they are not wanted"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--type", "trn7.xlarge"), "--type trn7.xlarge is not known: see 'neuron-plugin simulate types'"),
        (("--type", "inf2.24xlarge", "--missing", "9"), "missing device 9"),
        (("--type", "inf2.24xlarge", "--missing", "a,b"), "--missing a,b: 'a' is no id"),
        (("--type", "inf2.24xlarge", "--missing", "5-1"), "--missing 5-1: the range '5-1' runs backwards"),
        (("--type", "inf2.24xlarge", "--driver-version", "new"), "driver version 'new'"),
        (("--type", "inf1.xlarge", "--driver-version", "2.25.0.0"), "has no Inf1 any more: use 2.24.7.0 or older"),
        (("--type", "trn3.48xlarge", "--driver-version", "2.25.3.9"), "does not know Trn3 yet: use 2.25.4 or newer"),
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


@pytest.fixture
def node(tmp_path: Path) -> SimulatedNode:
    return write_node(tmp_path / "node", "inf2.24xlarge", usage_counters=False)


def inventory(node: SimulatedNode) -> Inventory:
    return read_inventory(node.paths, settled=EVERY_DEVICE)


def device(node: SimulatedNode, number: int) -> Device:
    return next(each for each in inventory(node).devices if each.id == number)


def fault(cli: Cli, node: SimulatedNode, *arguments: str) -> None:
    shown = cli("simulate", "fault", node.root, *arguments)
    assert (shown.status, shown.out, shown.err) == (0, "", "")


def kmsg(node: SimulatedNode) -> list[bytes]:
    return (node.paths.dev / "kmsg").read_bytes().splitlines()


def parse(line: bytes) -> Any:
    return parse_line(line, None)


Read = Callable[[SimulatedNode], object]
FAULTS: list[tuple[Read, list[tuple[str, object]]]] = [
    (
        lambda node: (device(node, 3).health.ecc, device(node, 2).health.ecc),
        [
            ("ecc 3 --sram 1 --memory 2", (EccCounts(1, 2), EccCounts())),
            ("ecc 3 --repairable 4", (EccCounts(1, 2, 4), EccCounts())),
        ],
    ),
    (lambda node: device(node, 1).health.reset, [(f"reset 1 {state.name.lower()}", state) for state in ResetState]),
    (
        lambda node: device(node, 1).health.unhealthy_components,
        [("components 1 hbm,link_host", frozenset({"hbm", "link_host"})), ("components 1 none", frozenset())],
    ),
    (
        lambda node: device(node, 0).health.core_errors,
        [
            (
                "core-errors 0 --core 1 --kind hw_nc_ue_error --count 2",
                (CoreErrors(0), CoreErrors(1, hw_nc_ue_error=2)),
            ),
            ("core-errors 0 --count 3", (CoreErrors(0, hw_error=3), CoreErrors(1, hw_nc_ue_error=2))),
        ],
    ),
    (lambda node: device(node, 2).health.status_counts, [("error-events 2 7", (("hw_error_events", 7),))]),
    (
        lambda node: inventory(node).device_ids,
        [("device 5 gone", (0, 1, 2, 3, 4)), ("device 5 back", (0, 1, 2, 3, 4, 5))],
    ),
    (lambda node: device(node, 5).node, [("node 5 gone", NodeState.ABSENT), ("node 5 back", NodeState.PRESENT)]),
    (lambda node: len(inventory(node).devices), [("driver gone", 0), ("driver back", 6)]),
    (
        lambda node: [node.description.device(number).busy_percent for number in range(3)],
        [("use 0-2 busy --percent 80", [80, 80, 80]), ("use 1 idle", [80, 0, 80]), ("use 2 usual", [80, 0, None])],
    ),
    (lambda node: node.description.device(1).reset_failures, [("reset-failures 1 3", 3)]),
    (
        lambda node: [(record.text, record.by_kernel) for record in map(parse, kmsg(node)) if record],
        [
            ("kmsg NEURON_HW_ERR=DMA_ERROR", [("NEURON_HW_ERR=DMA_ERROR", True)]),
            ("kmsg x --forged", [("NEURON_HW_ERR=DMA_ERROR", True), ("x", False)]),
        ],
    ),
    (
        lambda node: (inventory(node).logical_core_size.size, node.paths.logical_nc_config.exists()),
        [("lnc 1", (1, True)), ("lnc none", (1, False))],
    ),
]


@pytest.mark.parametrize(("read", "faults"), FAULTS, ids=[faults[0][0] for _, faults in FAULTS])
def test_what_a_fault_leaves_is_what_a_reader_of_the_machine_sees(
    cli: Cli, tmp_path: Path, read: Read, faults: list[tuple[str, object]]
) -> None:
    node = write_node(tmp_path / "node", "inf2.24xlarge")
    for words, seen in faults:
        fault(cli, node, *words.split())
        assert read(node) == seen, words


def test_an_attribute_reads_garbage_is_missing_and_is_restored(cli: Cli, node: SimulatedNode) -> None:
    path = node.paths.sysfs / "class/neuron_device/neuron2/info/serial_number"
    before = path.read_text()
    fault(cli, node, "attribute", "2", "info/serial_number", "--text", "x\\ny")
    assert path.read_text() == "x\ny"
    fault(cli, node, "attribute", "2", "info/serial_number", "--missing")
    assert not path.exists()
    fault(cli, node, "attribute", "2", "info/serial_number", "--restore")
    assert path.read_text() == before


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
        (("error-events", "2", "few"), 2, "'few' is no count of 0 or more"),
        (("use", "one", "idle"), 2, "expected"),
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
