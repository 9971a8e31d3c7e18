from __future__ import annotations

import re
from dataclasses import replace

import msgspec
import pytest

from neuron_plugin.allocation import INVENTORY_KEY, read_inventory
from neuron_plugin.cluster import NODES
from neuron_plugin.hardware import MISSING, DriverVersion, UltraServer
from neuron_plugin.plugin.publish import PUBLISHED_LABELS, node_labels, publication, withdrawal
from tests.plugin.world import TRN2, machine

SERVER = UltraServer("1,2,4", "00000000000000a2", "1", "00000000000000a4", "3")
TRAINIUM = machine(
    TRN2,
    device_name="Trainium2",
    driver_version=DriverVersion("2.26.5.0", (2, 26, 5, 0)),
    logical_core_size=2,
    physical_cores_per_device=8,
)
LEGAL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def metadata(request: object) -> dict[str, dict[str, str | None]]:
    body = getattr(request, "body", {})
    return body["metadata"]  # type: ignore[no-any-return]  # what the patch is made of


def node(**metadata: object) -> object:
    return NODES.decode(msgspec.json.encode({"metadata": {"name": "n1", "uid": "u", **metadata}}))


def test_labels_tell_family_device_driver_lnc_and_physical_cores() -> None:
    labels = node_labels(TRAINIUM)
    own = {name.removeprefix("neuron-plugin.io/"): value for name, value in labels.items() if value}
    assert own == {
        "family": "trn2",
        "device-name": "Trainium2",
        "driver-version": "2.26.5.0",
        "logical-core-size": "2",
        "physical-core-count": "128",
    }


@pytest.mark.parametrize("prefix", ["neuron-plugin.io", "neuron.amazonaws.com"])
def test_an_ultraserver_is_told_under_the_vendors_names_and_ours(prefix: str) -> None:
    labels = node_labels(replace(TRAINIUM, ultraserver=SERVER))
    assert {name: labels[f"{prefix}/ultraserver-{name}"] for name in ("mode", "server-id-2", "node-id-2")} == {
        "mode": "1_2_4",
        "server-id-2": "00000000000000a2",
        "node-id-2": "1",
    }
    assert labels[f"{prefix}/ultraserver-server-id-4"] == "00000000000000a4"
    assert labels[f"{prefix}/ultraserver-node-id-4"] == "3"


def test_a_node_outside_an_ultraserver_loses_labels_of_one() -> None:
    labels = node_labels(TRAINIUM)
    assert {labels[name] for name in PUBLISHED_LABELS if "ultraserver" in name} == {None}


def test_what_is_not_known_is_removed_rather_than_empty() -> None:
    labels = node_labels(machine(TRN2))
    assert labels["neuron-plugin.io/device-name"] is None
    assert labels["neuron-plugin.io/physical-core-count"] is None


@pytest.mark.parametrize("name", ["Trainium 2!", "-x-", "é" * 9, "a" * 90])
def test_every_value_is_a_legal_label(name: str) -> None:
    labels = node_labels(replace(TRAINIUM, device_name=name, ultraserver=SERVER))
    assert all(value is None or LEGAL.fullmatch(value) for value in labels.values())


def test_every_label_is_among_those_that_uninstalling_takes_back() -> None:
    assert node_labels(TRAINIUM).keys() == PUBLISHED_LABELS


def test_the_annotation_is_the_inventory_with_physical_cores_and_ultraserver() -> None:
    text = metadata(publication("n1", replace(TRAINIUM, ultraserver=SERVER)))["annotations"][INVENTORY_KEY]
    assert text
    inventory = read_inventory(text)
    assert inventory.physical_cores_per_device == 8
    assert inventory.ultraserver == {
        "mode": "1,2,4",
        "serverId2": "00000000000000a2",
        "nodeId2": "1",
        "serverId4": "00000000000000a4",
        "nodeId4": "3",
    }


def test_equal_machines_are_published_by_equal_patches() -> None:
    assert publication("n1", TRAINIUM) == publication("n1", replace(TRAINIUM))


def test_a_withdrawal_takes_back_ours_and_leaves_the_rest() -> None:
    told = {"neuron-plugin.io/family": "trn2", "neuron.amazonaws.com/ultraserver-mode": "4"}
    found = node(labels={**told, "zone": "a"}, annotations={INVENTORY_KEY: "{}", "other": "x"})
    request = withdrawal(found)  # type: ignore[arg-type]  # a decoded node
    assert metadata(request) == {"annotations": {INVENTORY_KEY: None}, "labels": dict.fromkeys(told)}


def test_a_node_with_nothing_of_ours_is_not_written() -> None:
    assert withdrawal(node(labels={"zone": "a"})) is None  # type: ignore[arg-type]  # as above


def test_the_inventory_reads_back_with_missing_and_sick_devices_told_apart() -> None:
    made = machine(unhealthy={3: MISSING, 5: "sick"}, device_name="Trainium1")
    read = read_inventory(metadata(publication("worker-1", made))["annotations"][INVENTORY_KEY] or "")
    assert read.present == tuple(number for number in range(16) if number != 3)
    assert read.unhealthy == {5: "sick"}
