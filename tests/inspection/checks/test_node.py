from __future__ import annotations

from dataclasses import replace

import pytest

from neuron_plugin.allocation import INVENTORY_KEY, NodeInventory, write_inventory
from neuron_plugin.inspection.facts import Facts
from neuron_plugin.inspection.findings import Level
from neuron_plugin.simulation import shipped_geometry
from tests.inspection.cases import NODE, facts_of, holding, is_fine, the_finding, with_cluster, with_kubelet
from tests.inspection.doubles import MakeNode


def inventory(instance_type: str, **changes: object) -> dict[str, str]:
    geometry = shipped_geometry(instance_type)
    told = {"present": tuple(range(geometry.device_count)), **changes}
    return {INVENTORY_KEY: write_inventory(NodeInventory(geometry, **told))}  # type: ignore[arg-type]  # fields by name


def test_a_true_inventory_is_fine(well: Facts) -> None:
    assert is_fine("node-annotations", well)


def test_an_inventory_of_another_machine_is_a_problem(well: Facts) -> None:
    finding = the_finding("node-annotations", with_cluster(well, annotations=inventory("inf2.24xlarge")))
    assert finding.level is Level.PROBLEM
    assert "inf2.24xlarge, 6 devices" in finding.seen
    assert "trn1.32xlarge, 16 devices" in finding.seen


@pytest.mark.parametrize("text", ["", "{", '{"version": 99}'])
def test_an_inventory_that_cannot_be_read_is_a_problem(well: Facts, text: str) -> None:
    assert the_finding("node-annotations", with_cluster(well, annotations={INVENTORY_KEY: text})).level is Level.PROBLEM


def test_no_inventory_beside_a_running_plugin_is_a_warning(well: Facts) -> None:
    finding = the_finding("node-annotations", with_cluster(well, annotations={}))
    assert finding.level is Level.WARNING
    assert "patch nodes" in finding.action
    assert is_fine("node-annotations", with_kubelet(with_cluster(well, annotations={}), plugins=()))
    without_devices = replace(well, machine=replace(well.machine, geometry=None))
    assert is_fine("node-annotations", with_cluster(without_devices, annotations={}))


def test_an_inventory_without_a_plugin_is_a_note_with_the_command_that_removes_it(well: Facts) -> None:
    finding = the_finding("node-annotations", with_kubelet(well, plugins=()))
    assert finding.level is Level.NOTE
    assert f"kubectl annotate node {NODE} {INVENTORY_KEY}-" in finding.action


def test_a_sick_device_that_the_node_does_not_tell_of_is_a_warning(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge", missing=(4,))
    node.set_ecc(1, memory=1)
    facts = facts_of(node)
    finding = the_finding("node-annotations", with_cluster(facts, annotations=inventory("inf2.24xlarge")))
    assert finding.level is Level.WARNING
    assert finding.seen.endswith("1,4")
    told = inventory("inf2.24xlarge", present=(0, 1, 2, 3, 5), unhealthy={1: "memory"})
    assert is_fine("node-annotations", with_cluster(facts, annotations=told))


def with_map(facts: Facts, key: str, value: str) -> Facts:
    return with_cluster(facts, annotations={**inventory("trn1.32xlarge"), key: value})


def test_the_vendors_map_is_a_note_while_it_is_true(well: Facts) -> None:
    facts = holding(well, ("train", "main", "neurondevice", "1"))
    finding = the_finding("node-annotations", with_map(facts, "NEURON_DEV_USAGE_MAP", "false,true" + ",false" * 14))
    assert finding.level is Level.NOTE
    assert f"kubectl annotate node {NODE} NEURON_DEV_USAGE_MAP-" in finding.action


@pytest.mark.parametrize(
    ("key", "value", "leaked"),
    [("NEURON_DEV_USAGE_MAP", "true,true,true", "devices 0,2"), ("NEURON_CORE_USAGE_MAP", "True,,true", "core 0")],
)
def test_a_stale_map_of_the_vendors_is_a_warning_with_the_leaked_ids(
    well: Facts, key: str, value: str, leaked: str
) -> None:
    facts = holding(well, ("train", "main", "neurondevice", "1"))
    finding = the_finding("node-annotations", with_map(facts, key, value))
    assert finding.level is Level.WARNING
    assert f"{leaked} in use, held by no pod" in finding.seen
