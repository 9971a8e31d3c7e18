from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.doubles import Cli
from tests.inspection.doubles import MakeNode

KEYS = [
    *("instance_type", "instance_id", "neuron_device", "bdf", "cpu_affinity", "numa_node", "connected_to", "nc_count"),
    *("logical_neuroncore_config", "memory_size", "neuroncore_ids", "neuron_processes"),
]


def devices(cli: Cli, root: Path) -> list[dict[str, object]]:
    shown = cli("devices", "-o", "neuron-ls", "--root", root)
    assert shown.status == 0
    decoded: list[dict[str, object]] = json.loads(shown.out)
    return decoded


def test_a_trn2_device_reads_as_neuron_ls_prints_it(cli: Cli, make_node: MakeNode) -> None:
    thirteenth = devices(cli, make_node("trn2.48xlarge").root)[13]
    assert list(thirteenth) == KEYS
    assert thirteenth == {
        "instance_type": "trn2.48xlarge",
        "instance_id": "",
        "neuron_device": 13,
        "bdf": "",
        "cpu_affinity": "",
        "numa_node": "1",
        "connected_to": [1, 9, 12, 14],
        "nc_count": 4,
        "logical_neuroncore_config": 2,
        "memory_size": 103079215104,
        "neuroncore_ids": [52, 53, 54, 55],
        "neuron_processes": [],
    }


def test_a_single_device_has_null_for_its_links(cli: Cli, make_node: MakeNode) -> None:
    (device,) = devices(cli, make_node("trn1.2xlarge").root)
    assert device["connected_to"] is None
    assert device["numa_node"] == "-1", "as the kernel says it"


def test_unusable_and_missing_devices_are_left_out_as_there(cli: Cli, make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge", missing=[5])
    node.set_attribute(1, "core_count", "x")
    assert [device["neuron_device"] for device in devices(cli, node.root)] == [0, 2, 3, 4]


def test_cpus_come_from_the_numa_node(cli: Cli, make_node: MakeNode) -> None:
    node = make_node("trn1.32xlarge")
    cpulist = node.root / "sys/devices/system/node/node1/cpulist"
    cpulist.parent.mkdir(parents=True)
    cpulist.write_text("32-63,96-127\n")
    found = devices(cli, node.root)
    assert (found[2]["cpu_affinity"], found[0]["cpu_affinity"]) == ("32-63,96-127", "")


@pytest.mark.parametrize(
    ("tag", "expected"),
    [("i-0123456789abcdef0\n", "i-0123456789abcdef0"), ("Not Specified\n", ""), ("i-xyz\n", "")],
)
def test_the_instance_id_is_the_asset_tag_if_that_is_one(
    cli: Cli, make_node: MakeNode, tag: str, expected: str
) -> None:
    node = make_node("inf2.xlarge")
    (node.root / "sys/class/dmi/id/board_asset_tag").write_text(tag)
    assert devices(cli, node.root)[0]["instance_id"] == expected


def test_a_process_with_the_device_open_is_named(cli: Cli, make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    with (node.root / "dev/neuron2").open("rb"):
        found = devices(cli, node.root)
    processes = found[2]["neuron_processes"]
    assert isinstance(processes, list)
    assert [process["pid"] for process in processes] == [os.getpid()]
    assert list(processes[0]) == ["pid", "command", "neuron_runtime_version"]
    assert found[1]["neuron_processes"] == []
