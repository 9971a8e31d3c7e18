from __future__ import annotations

import sys
from collections.abc import Mapping
from itertools import pairwise
from typing import TypeAlias

import pytest

from neuron_plugin import topology as topologies
from neuron_plugin.allocation import Allocation, Ledger, PodReference, PodUid, Resource
from neuron_plugin.cli.command import Segment
from neuron_plugin.cli.topology import LONGEST_ROW, TO_ASCII, undrawn
from neuron_plugin.cli.topology import drawn as lines_of
from neuron_plugin.cli.topology import occupancy as occupancy_of
from neuron_plugin.inspection import ShownNode
from neuron_plugin.simulation import SimulatedNode
from neuron_plugin.topology import CoreMask, Grid, InstanceType, Topology, links_of
from neuron_plugin.topology.instances import SHIPPED
from tests.cli.doubles import Cli, Hold
from tests.inspection.cases import looked
from tests.inspection.doubles import MakeNode


def test_holders_have_colours_on_a_terminal(
    cli: Cli, make_node: MakeNode, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(("train", "main", "neuron", "0"))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown = cli("topology", "--root", make_node("inf2.xlarge").root)
    assert "\x1b[1;36mA\x1b[0m" in shown.out


Occupancy: TypeAlias = tuple[dict[int, list[Segment]], dict[Segment, str]]


def occupancy(node: SimulatedNode, ledger: Ledger | None) -> Occupancy:
    seen = looked(node)
    assert seen.node_inventory is not None
    return occupancy_of(ShownNode(seen.node_inventory, seen.links, ledger, seen.usable_mask, seen.usable_mask))


def held(*allocations: tuple[str, str, Resource, int]) -> Ledger:
    return Ledger(
        tuple(
            Allocation(PodReference(PodUid(pod), "ml", pod), container, resource, CoreMask(mask))
            for pod, container, resource, mask in allocations
        )
    )


def characters(of: Occupancy) -> list[str]:
    return ["".join(character for character, _ in marks) for marks in of[0].values()]


def test_a_core_for_every_pod_has_letters_enough_for_62(make_node: MakeNode) -> None:
    ledger = held(*((f"p{core}", "x", Resource.NEURONCORE, 1 << core) for core in range(64)))
    shown = "".join(characters(occupancy(make_node("inf1.24xlarge"), ledger)))
    assert len(set(shown[:62])) == 62
    assert shown[62:] == "##", "further pods share a mark"


@pytest.mark.parametrize("count", [2, 9])
def test_neighbouring_letters_differ_in_colour(make_node: MakeNode, count: int) -> None:
    ledger = held(*((f"p{core}", "x", Resource.NEURONCORE, 1 << core) for core in range(count)))
    styles = [style for _, style in occupancy(make_node("inf2.24xlarge"), ledger)[1]][:count]
    assert all(one != other for one, other in pairwise(styles))


def grids_of(topology: Topology, count: int) -> tuple[Grid, ...]:
    return topologies.grids_of(topology, count, LONGEST_ROW)


def drawn(topology: Topology, count: int, cores: str = "..", links: Mapping[int, frozenset[int]] | None = None) -> str:
    nominal = links_of(topology, count) if links is None else links
    texts = []
    for grid in grids_of(topology, count):
        marks = {device: [(character, "") for character in cores] for device in grid.places}
        lines = lines_of(grid, nominal, marks)
        texts.append("\n".join("".join(character for character, _ in line) for line in lines))
    return "\n\n".join(texts)


def test_a_missing_device_has_no_links() -> None:
    links = {device: near - {1} for device, near in links_of(Topology.TORUS, 16).items() if device != 1}
    lines = drawn(Topology.TORUS, 16, links=links).splitlines()
    assert lines[0] == "      ╎                   ╎         ╎"
    assert lines[2] == "╌╌┤ 0    │  │ 1    │  │ 2    ├──┤ 3    ├╌╌"
    assert lines[5] == "      │                   │         │"


@pytest.mark.parametrize("instance", SHIPPED, ids=lambda instance: instance.name)
def test_every_link_of_every_shipped_type_is_drawn(instance: InstanceType) -> None:
    links = links_of(instance.topology, instance.devices)
    grids = grids_of(instance.topology, instance.devices)
    assert sorted(device for grid in grids for device in grid.places) == list(range(instance.devices))
    assert undrawn(grids, links) == []


@pytest.mark.parametrize(("count", "left"), [(5, [(0, 4)]), (6, []), (16, []), (32, [(0, 31)])])
def test_a_ring_that_does_not_close_on_paper_leaves_one_link_to_be_listed(
    count: int, left: list[tuple[int, int]]
) -> None:
    assert undrawn(grids_of(Topology.RING, count), links_of(Topology.RING, count)) == left


def test_links_of_devices_of_unknown_topology_are_reported() -> None:
    grids = grids_of(Topology.UNLINKED, 4)
    links = {0: frozenset({1, 3}), 1: frozenset({0}), 2: frozenset[int](), 3: frozenset({0})}
    assert undrawn(grids, links) == [(0, 3)]
    assert "0    ├──┤ 1" in drawn(Topology.UNLINKED, 4, links=links)


@pytest.mark.parametrize("instance", SHIPPED, ids=lambda instance: instance.name)
def test_no_line_is_longer_than_80_columns_and_none_ends_in_blanks(instance: InstanceType) -> None:
    cores = "." * (instance.cores_per_device // instance.logical_core_size)
    for line in drawn(instance.topology, instance.devices, cores).splitlines():
        assert len(line) <= 80
        assert line == line.rstrip()


def test_ascii_is_ascii() -> None:
    (grid,) = grids_of(Topology.TORUS, 16)
    marks = {device: [(".", ""), (".", "")] for device in grid.places}
    lines = lines_of(grid, links_of(Topology.TORUS, 16), marks)
    text = "\n".join("".join(character for character, _ in line) for line in lines).translate(TO_ASCII)
    assert text.isascii()
    assert "~~| 0    |--| 1    |" in text


def test_marks_keep_their_styles() -> None:
    (grid,) = grids_of(Topology.SINGLE, 1)
    marks: list[Segment] = [("A", "cyan"), (".", "green")]
    assert [mark for mark in lines_of(grid, {}, {0: marks})[2] if mark[1]] == marks


def test_boxes_are_as_wide_as_their_cores() -> None:
    assert drawn(Topology.SINGLE, 1, "AABBCCDD").splitlines()[2] == "  │ AABBCCDD │"
