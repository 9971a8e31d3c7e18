from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from neuron_plugin.hardware import EVERY_DEVICE, MachinePaths, read_inventory
from neuron_plugin.topology import catalogue
from tests.cli.doubles import Cli

SMALL = ("--no-usage-counters",)


def test_types_lists_the_catalogue_with_the_counts_one_can_request(cli: Cli) -> None:
    shown = cli("simulate", "types")
    header, *rows = shown.rows
    assert header == ["TYPE", "DEVICES", "PRODUCT", "CORES/DEVICE", "LNC", "MEMORY/DEVICE", "TOPOLOGY", "DEVICE-COUNTS"]
    assert [row[0] for row in rows] == sorted(catalogue())
    by_name = {row[0]: row[1:] for row in rows}
    assert by_name["trn2.48xlarge"] == ["16", "Trainium2", "8", "2", "96Gi", "torus", "1,4,8,16"]
    assert by_name["inf2.24xlarge"] == ["6", "Inferentia2", "2", "1", "32Gi", "line", "1-6"]


def test_types_lists_the_users_own_too(cli: Cli, tmp_path: Path) -> None:
    types = tmp_path / "types.yaml"
    types.write_text("instance-types: [{name: inf9.xlarge, devices: 3, cores-per-device: 4, topology: line}]\n")
    rows = {row[0]: row[1:] for row in cli("simulate", "types", "--instance-types", types).rows}
    assert rows["inf9.xlarge"] == ["3", "-", "4", "1", "0Gi", "line", "1-3"]


@pytest.mark.parametrize(("form", "load"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_types_are_a_document_for_scripts(cli: Cli, form: str, load: Callable[[str], Any]) -> None:
    found = load(cli("simulate", "types", "-o", form).out)
    assert found["version"] == 1
    assert [each["name"] for each in found["types"]] == sorted(catalogue())
    assert next(each for each in found["types"] if each["name"] == "trn2.48xlarge") == {
        "name": "trn2.48xlarge",
        "devices": 16,
        "product": "Trainium2",
        "coresPerDevice": 8,
        "logicalCoreSize": 2,
        "memoryGibPerDevice": 96,
        "topology": "torus",
        "deviceCounts": [1, 4, 8, 16],
    }


def test_a_script_is_told_what_was_written(cli: Cli, tmp_path: Path) -> None:
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
        f"Look at it: neuron-plugin devices --root {tmp_path / 'n'}",
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
