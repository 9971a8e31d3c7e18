"""What a Node object says about its hardware."""

from __future__ import annotations

from typing import Any

import pytest

from neuron_plugin.allocation import NodeInventory, Rejection
from neuron_plugin.allocation.rejection import NO_INVENTORY, NO_NEURON, UNKNOWN_HEALTH
from tests.support.manifests import node_manifest, shipped_geometry
from tests.support.world import node_of

TRN1 = shipped_geometry("trn1.32xlarge")
TYPE_LABEL = "node.kubernetes.io/instance-type"


def bare(instance_type: str, allocatable: dict[str, str] | None = None, /, **capacity: str) -> dict[str, Any]:
    """A node without an inventory, as the vendor's plugin leaves it."""
    quantities = {f"aws.amazon.com/{name}": count for name, count in capacity.items()}
    return {
        "metadata": {"name": "node", "uid": "u", "labels": {TYPE_LABEL: instance_type}},
        "status": {"capacity": quantities | {"cpu": "96"}, "allocatable": (allocatable or quantities) | {"cpu": "95"}},
    }


def test_the_inventory_names_geometry_and_broken_devices() -> None:
    found = node_of(node_manifest("n", "trn2.48xlarge", unhealthy={3: "ECC"}, missing=[5])).inventory

    assert isinstance(found, NodeInventory)
    assert found.geometry == shipped_geometry("trn2.48xlarge")
    assert found.present == tuple(device for device in range(16) if device != 5)
    assert found.unhealthy == {3: "ECC"}
    assert found.geometry.whole_devices(found.healthy_mask) == tuple(d for d in range(16) if d not in (3, 5))


def test_nodes_of_one_type_share_their_geometry() -> None:
    whole, broken = (node_of(node_manifest("n", "trn2.48xlarge", unhealthy=each)) for each in ({}, {3: "ECC"}))

    assert isinstance(whole.inventory, NodeInventory)
    assert isinstance(broken.inventory, NodeInventory)
    assert whole.inventory.geometry is broken.inventory.geometry


@pytest.mark.parametrize(
    ("instance_type", "counts", "cores_per_device"),
    [
        ("trn1.32xlarge", {"neuron": "16", "neuroncore": "32"}, 2),
        ("trn2.48xlarge", {"neuron": "16", "neuroncore": "64"}, 4),
        ("trn2.48xlarge", {"neuron": "16", "neuroncore": "128"}, 8),
        ("trn2.48xlarge", {"neurondevice": "16"}, 4),
        ("inf1.6xlarge", {"neuroncore": "16"}, 4),
    ],
)
def test_without_an_inventory_instance_type_and_capacity_decide(
    instance_type: str, counts: dict[str, str], cores_per_device: int
) -> None:
    found = node_of(bare(instance_type, **counts)).inventory

    assert isinstance(found, NodeInventory)
    assert found.geometry.instance_type == instance_type
    assert found.geometry.cores_per_device == cores_per_device
    assert found.healthy_mask == found.geometry.all_mask


@pytest.mark.parametrize(
    ("given", "rejection"),
    [
        (bare("trn1.32xlarge"), NO_NEURON),
        (bare("m5.large"), NO_NEURON),
        (bare("trn1.32xlarge", neuron="0"), NO_NEURON),
        (bare("trn9.48xlarge", neuron="16"), NO_INVENTORY),
        (bare("", neuron="16"), NO_INVENTORY),
        (bare("trn1.32xlarge", neuron="15", neuroncore="30"), UNKNOWN_HEALTH),
        (bare("trn1.32xlarge", neuron="16", neuroncore="31"), UNKNOWN_HEALTH),
        (bare("trn1.32xlarge", neuron="16", neuroncore="64"), UNKNOWN_HEALTH),
        (bare("trn1.32xlarge", neuron="garbage", neuroncore="-3"), NO_NEURON),
    ],
    ids=str,
)
def test_e09_what_type_and_capacity_leave_open_is_refused_and_not_guessed(
    given: dict[str, Any], rejection: Rejection
) -> None:
    assert node_of(given).inventory == rejection


def test_an_unhealthy_device_without_inventory_closes_the_node_because_its_id_is_not_known() -> None:
    found = node_of(bare("trn1.32xlarge", {"aws.amazon.com/neuron": "15"}, neuron="16")).inventory

    assert isinstance(found, Rejection)
    assert found == UNKNOWN_HEALTH
    assert "15" in found.detail


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"node.kubernetes.io/instance-type": "trn1.32xlarge"}, "trn1.32xlarge"),
        ({"node.kubernetes.io/instance-type": "ml.trn1.32xlarge"}, "trn1.32xlarge"),
        ({"beta.kubernetes.io/instance-type": "inf1.xlarge"}, "inf1.xlarge"),
        ({"node.kubernetes.io/instance-type": "a", "beta.kubernetes.io/instance-type": "b"}, "a"),
        ({}, "unset"),
    ],
    ids=str,
)
def test_the_instance_type_is_read_from_either_label_without_sagemakers_prefix(
    labels: dict[str, str], expected: str
) -> None:
    manifest = bare("", neuron="7")

    found = node_of({**manifest, "metadata": {**manifest["metadata"], "labels": labels}}).inventory

    assert isinstance(found, Rejection)
    assert expected in found.detail
