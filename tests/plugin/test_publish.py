"""What the node says of itself."""

from __future__ import annotations

import pytest

from neuron_plugin.allocation.inventory import INVENTORY_KEY, read_inventory, write_inventory
from neuron_plugin.hardware.attributes import parse_driver_version
from neuron_plugin.plugin.machine import MISSING
from neuron_plugin.plugin.publish import node_labels, publication
from tests.plugin.world import TRN1, machine


def test_the_inventory_reads_back_with_missing_and_sick_devices_told_apart() -> None:
    made = machine(unhealthy={3: MISSING, 5: "sick"}, device_name="Trainium1")
    request = publication("worker-1", made)
    assert (request.method, request.path) == ("PATCH", "/api/v1/nodes/worker-1")
    assert request.body is not None
    metadata = request.body["metadata"]
    assert isinstance(metadata, dict)
    read = read_inventory(metadata["annotations"][INVENTORY_KEY])
    assert read.geometry == TRN1
    assert read.present == tuple(number for number in range(16) if number != 3)
    assert read.unhealthy == {5: "sick"}
    assert metadata["annotations"][INVENTORY_KEY] == write_inventory(made.inventory())


def test_labels_name_what_people_select_by() -> None:
    made = machine(device_name="Trainium1", driver_version=parse_driver_version("2.26.5.0"), logical_core_size=2)
    labels = node_labels(made)
    assert labels["neuron-plugin.io/device-name"] == "Trainium1"
    assert labels["neuron-plugin.io/driver-version"] == "2.26.5.0"
    assert labels["neuron-plugin.io/logical-core-size"] == "2"
    assert labels["neuron-plugin.io/family"]


@pytest.mark.parametrize(("name", "label"), [("", None), ("a b/c", "a-b-c"), ("..x..", "x"), ("y" * 70, "y" * 63)])
def test_a_label_is_legal_or_removed(name: str, label: str | None) -> None:
    assert node_labels(machine(device_name=name))["neuron-plugin.io/device-name"] == label


def test_an_unknown_driver_or_product_removes_its_label() -> None:
    labels = node_labels(machine(device_name="Unheard"))
    assert labels["neuron-plugin.io/family"] is None
    assert labels["neuron-plugin.io/driver-version"] is None
