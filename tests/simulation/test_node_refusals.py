"""Machines and faults that cannot be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from neuron_plugin.simulation.node import SimulatedNode, write_node
from neuron_plugin.simulation.node_tree import SimulationError
from neuron_plugin.simulation.node_writer import DESCRIPTION_FILE
from neuron_plugin.topology import InstanceType, Topology
from tests.simulation.node_tree import MakeNode, everything


@pytest.mark.parametrize(
    ("instance_type", "options", "complaint"),
    [
        ("p5.48xlarge", {}, "'p5.48xlarge' is not known: choose among inf1.24xlarge, inf1.2xlarge"),
        ("inf1.xlarge", {"driver_version": "2.26.5.0"}, "has no Inf1 any more: use 2.24.7.0 or older"),
        ("trn3.48xlarge", {"driver_version": "2.24.7.0"}, "does not know Trn3 yet: use 2.25.4 or newer"),
        ("inf2.xlarge", {"driver_version": "latest"}, "'latest': expected a version such as 2.26.5.0"),
        ("inf2.24xlarge", {"missing": (6,)}, "missing device 6: inf2.24xlarge has devices 0 to 5"),
        ("inf2.24xlarge", {"logical_core_size": 0}, "logical core size 0: expected 1 or more"),
    ],
)
def test_a_machine_that_cannot_be_is_refused_and_nothing_is_written(
    tmp_path: Path, make_node: MakeNode, instance_type: str, options: dict[str, object], complaint: str
) -> None:
    with pytest.raises(SimulationError, match=complaint):
        make_node(instance_type, **options)
    assert not (tmp_path / "node").exists()


def test_a_directory_in_use_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    with pytest.raises(SimulationError, match="is not empty"):
        write_node(tmp_path, "inf2.xlarge")
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_opening_what_is_no_simulated_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SimulationError, match="holds no simulated node"):
        SimulatedNode.open(tmp_path)
    (tmp_path / DESCRIPTION_FILE).write_text('{"instance_type": 1}')
    with pytest.raises(SimulationError, match="does not describe a simulated node"):
        SimulatedNode.open(tmp_path)


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


@pytest.mark.parametrize(
    ("instance_type", "devices"), [("trn1.2xlarge", "device 0"), ("trn2.48xlarge", "devices 0 to 15")]
)
def test_a_device_that_is_not_there_is_refused_with_those_that_are(
    make_node: MakeNode, instance_type: str, devices: str
) -> None:
    with pytest.raises(SimulationError, match=f"^device 99: {instance_type} has {devices}$"):
        make_node(instance_type).remove_device(99)


def test_inf1_refuses_ecc_errors_it_could_not_show(make_node: MakeNode) -> None:
    with pytest.raises(SimulationError, match="no ECC counters"):
        make_node("inf1.xlarge").set_ecc(0, memory=1)


def test_a_product_that_no_driver_has_is_refused(make_node: MakeNode) -> None:
    strange = InstanceType("trn9.huge", "Trainium9", 4, 8, 1, Topology.UNLINKED)
    with pytest.raises(SimulationError, match="devices named 'Trainium9', which no known driver has"):
        make_node("trn9.huge", types={"trn9.huge": strange})
