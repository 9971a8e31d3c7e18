from __future__ import annotations

import pytest

from neuron_plugin.extender.hardware import Hardware, NodeFacts, NoHardware, hardware_of, instance_type_of
from neuron_plugin.extender.reasons import NO_INVENTORY, NO_NEURON, UNKNOWN_HEALTH
from neuron_plugin.simulation import node_manifest, shipped_geometry
from neuron_plugin.topology import catalogue

TYPES = catalogue()


def facts(instance_type: str, **counts: str) -> NodeFacts:
    quantities = {f"aws.amazon.com/{name}": count for name, count in counts.items()}
    return NodeFacts("node", instance_type=instance_type, capacity=quantities, allocatable=quantities)


def test_the_inventory_names_geometry_and_broken_devices() -> None:
    text = node_manifest("n", "trn2.48xlarge", unhealthy={3: "ECC"}, missing=[5])["metadata"]["annotations"]

    found = hardware_of(NodeFacts("n", inventory=text["neuron-plugin.io/inventory"]), TYPES)

    assert isinstance(found, Hardware)
    assert found.geometry == shipped_geometry("trn2.48xlarge")
    assert found.missing == (5,)
    assert found.unhealthy == {3: "ECC"}
    assert found.geometry.whole_devices(found.healthy_mask) == tuple(d for d in range(16) if d not in (3, 5))


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
def test_without_inventory_type_and_capacity_stand_in(
    instance_type: str, counts: dict[str, str], cores_per_device: int
) -> None:
    found = hardware_of(facts(instance_type, **counts), TYPES)

    assert isinstance(found, Hardware)
    assert found.geometry.cores_per_device == cores_per_device
    assert found.healthy_mask == found.geometry.all_mask


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        (facts("trn1.32xlarge"), NO_NEURON),
        (facts("m5.large"), NO_NEURON),
        (facts("trn1.32xlarge", neuron="0"), NO_NEURON),
        (facts("trn9.48xlarge", neuron="16"), NO_INVENTORY),
        (facts("", neuron="16"), NO_INVENTORY),
        (facts("trn1.32xlarge", neuron="15", neuroncore="30"), UNKNOWN_HEALTH),
        (facts("trn1.32xlarge", neuron="16", neuroncore="31"), UNKNOWN_HEALTH),
        (facts("trn1.32xlarge", neuron="16", neuroncore="64"), UNKNOWN_HEALTH),
        (facts("trn1.32xlarge", neuron="garbage", neuroncore="-3"), NO_NEURON),
    ],
    ids=str,
)
def test_e09_what_type_and_capacity_leave_open_is_refused_and_not_guessed(given: NodeFacts, refusal: object) -> None:
    found = hardware_of(given, TYPES)

    assert isinstance(found, NoHardware)
    assert found.refusal is refusal


def test_an_unhealthy_device_without_inventory_closes_the_node_because_nobody_says_which() -> None:
    given = NodeFacts(
        "node",
        instance_type="trn1.32xlarge",
        capacity={"aws.amazon.com/neuron": "16"},
        allocatable={"aws.amazon.com/neuron": "15"},
    )

    found = hardware_of(given, TYPES)

    assert isinstance(found, NoHardware)
    assert found.refusal is UNKNOWN_HEALTH
    assert "15" in found.detail


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"node.kubernetes.io/instance-type": "trn1.32xlarge"}, "trn1.32xlarge"),
        ({"node.kubernetes.io/instance-type": "ml.trn1.32xlarge"}, "trn1.32xlarge"),
        ({"beta.kubernetes.io/instance-type": "inf1.xlarge"}, "inf1.xlarge"),
        ({"node.kubernetes.io/instance-type": "a", "beta.kubernetes.io/instance-type": "b"}, "a"),
        ({}, ""),
    ],
    ids=str,
)
def test_the_instance_type_is_read_from_either_label_without_sagemakers_prefix(
    labels: dict[str, str], expected: str
) -> None:
    assert instance_type_of(labels) == expected
