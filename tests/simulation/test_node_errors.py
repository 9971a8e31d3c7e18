"""Hardware errors of a simulated machine: counters of cores, and the kernel log."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from neuron_plugin.hardware import parse_error
from neuron_plugin.hardware.kernel_log import parse_line
from neuron_plugin.simulation.node import SimulatedNode, write_node
from neuron_plugin.simulation.node_tree import SimulationError
from neuron_plugin.simulation.node_writer import append_record


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> SimulatedNode:
    """A machine with every counter; each test uses counters of its own."""
    return write_node(tmp_path_factory.mktemp("errors") / "node", "inf2.xlarge")


def counter(node: SimulatedNode, core: int, name: str, part: str = "total") -> str:
    path = node.paths.sysfs / f"class/neuron_device/neuron0/neuron_core{core}/stats/status/{name}/{part}"
    return path.read_text()


def test_an_error_counts_on_its_core_only_in_total_and_at_present(node: SimulatedNode) -> None:
    node.set_core_errors(0, 1, hw_error=2)
    assert counter(node, 1, "hw_error") == counter(node, 1, "hw_error", "present") == "2\n"
    assert counter(node, 0, "hw_error") == "0\n"


def test_counters_that_are_not_given_stay(node: SimulatedNode) -> None:
    node.set_core_errors(0, 0, hw_nc_ue_error=1)
    node.set_core_errors(0, 0, hw_hbm_ue_error=3)
    assert counter(node, 0, "hw_nc_ue_error") == "1\n"
    assert counter(node, 0, "hw_hbm_ue_error") == "3\n"


@pytest.mark.parametrize(("core", "name"), [(2, "hw_error"), (-1, "hw_error"), (0, "success")])
def test_an_error_that_cannot_be_is_refused(node: SimulatedNode, core: int, name: str) -> None:
    with pytest.raises(SimulationError, match=r"expected a core from 0 to 1 and one of hw_error, hw_nc_ue_error"):
        node.set_core_errors(0, core, **{name: 1})


def test_the_kernel_log_grows_by_records_in_the_kernels_form(tmp_path: Path) -> None:
    node = write_node(tmp_path / "node", "inf1.xlarge", usage_counters=False)
    log = node.paths.dev / "kmsg"
    assert log.read_text() == ""
    node.log_kernel_message("nd0: NEURON_HW_ERR=DMA_ERROR\nqueue 1")
    node.log_kernel_message("NEURON_HW_ERR=DMA_ERROR", by_kernel=False, age_seconds=60)
    first, second = (parse_line(line, None) for line in log.read_bytes().splitlines())
    assert first
    assert second
    assert (first.text, first.by_kernel) == ("nd0: NEURON_HW_ERR=DMA_ERROR queue 1", True)
    assert abs(first.at - time.monotonic()) < 30
    assert not second.by_kernel
    assert 55 < first.at - second.at < 65
    error = parse_error(first)
    assert error
    assert error.devices == {0}


def test_a_log_needs_a_machine(tmp_path: Path) -> None:
    with pytest.raises(SimulationError, match="write a simulated node first"):
        append_record(tmp_path, "text", by_kernel=True)
