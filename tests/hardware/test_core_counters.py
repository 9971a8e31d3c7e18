"""The counters of the cores' work, as old and new drivers show them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from neuron_plugin.hardware import DriverVersion, parse_driver_version
from neuron_plugin.hardware.core_counters import CoreCounterReader, CoreCounters
from neuron_plugin.simulation import SimulatedNode

LIVE, OLD = parse_driver_version("2.30.2.0"), parse_driver_version("2.30.1.9")
TIME, MEMORY = "stats/other_info/nc_time_in_use/total", "stats/memory_usage/device_mem/total"


@pytest.fixture
def node(make_node: Callable[..., SimulatedNode]) -> SimulatedNode:
    node = make_node("inf2.24xlarge", work_counters=True)
    node.set_attribute(3, f"neuron_core1/{TIME}", "5000000\n")
    node.set_attribute(3, f"neuron_core1/{MEMORY}", "1024\n")
    return node


def counters_of(
    node: SimulatedNode, driver: DriverVersion | None = LIVE, core: tuple[int, int] = (3, 1)
) -> CoreCounters:
    return CoreCounterReader(node.paths.sysfs).read([core], driver)[core]


def test_time_in_microseconds_and_memory_in_bytes_are_read(node: SimulatedNode) -> None:
    assert counters_of(node) == CoreCounters(5_000_000, 1024)


@pytest.mark.parametrize("driver", [OLD, None])
def test_a_driver_that_counts_a_process_when_it_ends_tells_no_time(node: SimulatedNode, driver: Any) -> None:
    assert counters_of(node, driver) == CoreCounters(None, 1024)


def test_a_counter_that_is_not_there_or_cannot_be_read_is_not_known(node: SimulatedNode) -> None:
    node.set_attribute(3, f"neuron_core1/{TIME}", "soon\n")
    node.set_attribute(3, f"neuron_core1/{MEMORY}", None)
    assert counters_of(node) == CoreCounters(None, None)
    assert counters_of(node, core=(60, 0)) == CoreCounters(None, None)


def test_a_counter_that_was_moved_below_its_core_is_found_by_its_name(node: SimulatedNode) -> None:
    node.set_attribute(3, f"neuron_core1/{TIME}", None)
    directory = node.paths.sysfs / "class/neuron_device/neuron3/neuron_core1"
    (directory / "stats/other_info/nc_time_in_use").rmdir()
    node.set_attribute(3, "neuron_core1/usage/nc_time_in_use/total", "77\n")
    assert counters_of(node).busy_microseconds == 77


def test_a_device_that_comes_back_is_read_again(node: SimulatedNode) -> None:
    reader = CoreCounterReader(node.paths.sysfs)
    node.remove_device(3)
    assert reader.read([(3, 1)], LIVE)[3, 1] == CoreCounters(None, None)
    node.restore_device(3)
    assert reader.read([(3, 1)], LIVE)[3, 1] == CoreCounters(5_000_000, 1024)
