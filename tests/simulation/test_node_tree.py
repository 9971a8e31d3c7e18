"""The links that the driver prints for a simulated machine."""

from __future__ import annotations

import pytest

from neuron_plugin.hardware.sysfs import parse_connected_devices
from neuron_plugin.simulation.node_tree import connected_devices_text
from neuron_plugin.topology import Topology, links_of

ALL = range(16)

TRN1 = """12, 3, 4, 1|13, 0, 5, 2|14, 1, 6, 3|15, 2, 7, 0|0, 7, 8, 5|1, 4, 9, 6|2, 5, 10, 7|3, 6, 11, 4|4, 11, 12, 9
5, 8, 13, 10|6, 9, 14, 11|7, 10, 15, 8|8, 15, 0, 13|9, 12, 1, 14|10, 13, 2, 15|11, 14, 3, 12"""
TRN2 = """12, 1, 3, 4|0, 13, 5, 2|14, 3, 1, 6|2, 15, 7, 0|8, 5, 7, 0|4, 9, 1, 6|10, 7, 5, 2|6, 11, 3, 4|4, 9, 11, 12
8, 5, 13, 10|6, 11, 9, 14|10, 7, 15, 8|0, 13, 15, 8|12, 1, 9, 14|2, 15, 13, 10|14, 3, 11, 12"""


@pytest.mark.parametrize(("device_name", "table"), [("Trainium1", TRN1), ("Trainium2", TRN2), ("Trainium3", TRN2)])
def test_a_torus_is_printed_in_the_order_of_its_product(device_name: str, table: str) -> None:
    texts = [connected_devices_text(device_name, device, ALL, 16) for device in ALL]
    assert texts == [line + "\n" for line in table.replace("\n", "|").split("|")]


@pytest.mark.parametrize(
    ("device_name", "count", "texts"),
    [
        ("Inferentia2", 6, ["1\n", "0, 2\n", "1, 3\n", "2, 4\n", "3, 5\n", "4\n"]),
        ("Inferentia", 4, ["1\n", "2, 0\n", "3, 1\n", "2\n"]),
        ("Inferentia2", 1, ["\n"]),
        ("Inferentia", 1, ["\n"]),
        ("Trainium1", 1, ["\n"]),
        ("Trainium2", 1, ["\n"]),
    ],
)
def test_lines_and_single_devices_are_printed_as_captured(device_name: str, count: int, texts: list[str]) -> None:
    assert [connected_devices_text(device_name, device, range(count), count) for device in range(count)] == texts


@pytest.mark.parametrize(
    ("device_name", "count", "topology"),
    [
        ("Trainium1", 16, Topology.TORUS),
        ("Trainium2", 16, Topology.TORUS),
        ("Inferentia2", 12, Topology.RING),
        ("Inferentia2", 6, Topology.LINE),
        ("Inferentia", 4, Topology.LINE),
        ("Inferentia", 16, Topology.RING),
    ],
)
def test_what_is_printed_is_the_topology(device_name: str, count: int, topology: Topology) -> None:
    printed = {
        device: parse_connected_devices(connected_devices_text(device_name, device, range(count), count))
        for device in range(count)
    }
    assert printed == links_of(topology, count)


@pytest.mark.parametrize(("device_name", "count"), [("Trainium1", 16), ("Trainium2", 16), ("Inferentia2", 12)])
def test_one_missing_chip_blanks_every_list(device_name: str, count: int) -> None:
    present = [device for device in range(count) if device != 3]
    assert {connected_devices_text(device_name, device, present, count) for device in present} == {"\n"}


def test_on_inf1_a_missing_chip_is_missing_from_its_neighbours_lists_only() -> None:
    texts = [connected_devices_text("Inferentia", device, (0, 2, 3), 4) for device in (0, 2, 3)]
    assert texts == ["\n", "3\n", "2\n"]
