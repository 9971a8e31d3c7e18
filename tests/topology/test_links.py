"""Links are those the driver prints, links tell the topology, and linked devices stand beside each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.topology import links as topologies
from neuron_plugin.topology.links import Grid, Topology, grids_of, links_of, topology_of

TORUS_AS_THE_DRIVER_PRINTS_IT = """
12 3 4 1; 13 0 5 2; 14 1 6 3; 15 2 7 0; 0 7 8 5; 1 4 9 6; 2 5 10 7; 3 6 11 4;
4 11 12 9; 5 8 13 10; 6 9 14 11; 7 10 15 8; 8 15 0 13; 9 12 1 14; 10 13 2 15; 11 14 3 12
"""
"""connected_devices of trn1.32xlarge, devices 0 to 15 (driver 2.24.7)."""


def driver_torus() -> dict[int, frozenset[int]]:
    lists = TORUS_AS_THE_DRIVER_PRINTS_IT.split(";")
    return {device: frozenset(int(other) for other in text.split()) for device, text in enumerate(lists)}


def test_the_torus_is_the_drivers() -> None:
    assert links_of(Topology.TORUS, 16) == driver_torus()


def test_a_host_of_32_devices_is_two_tori_that_share_no_link() -> None:
    links = links_of(Topology.TORUS, 32)
    assert {device: links[device] for device in range(16)} == driver_torus()
    for device in range(16):
        assert links[device + 16] == frozenset(other | 0x10 for other in links[device])


def test_the_ring_of_inf2_48xlarge_closes() -> None:
    links = links_of(Topology.RING, 12)
    assert links[0] == {11, 1}
    assert links[11] == {10, 0}
    assert links[5] == {4, 6}


def test_the_line_of_inf2_24xlarge_has_ends() -> None:
    links = links_of(Topology.LINE, 6)
    assert links[0] == {1}
    assert links[5] == {4}


@pytest.mark.parametrize("topology", list(Topology))
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 6, 12, 15, 16, 20, 32])
def test_links_go_both_ways_and_stay_inside_the_node(topology: Topology, count: int) -> None:
    links = links_of(topology, count)
    assert sorted(links) == list(range(count))
    for device, others in links.items():
        assert device not in others
        assert all(device in links[other] for other in others)


@pytest.mark.parametrize(
    ("topology", "count"),
    [
        (Topology.SINGLE, 1),
        (Topology.LINE, 2),
        (Topology.LINE, 3),
        (Topology.LINE, 4),
        (Topology.LINE, 6),
        (Topology.RING, 3),
        (Topology.RING, 12),
        (Topology.RING, 16),
        (Topology.TORUS, 16),
        (Topology.TORUS, 32),
    ],
)
def test_p26_a_topology_is_recognised_by_its_links(topology: Topology, count: int) -> None:
    assert topology_of(links_of(topology, count)) is topology


@pytest.mark.parametrize("gone", [0, 3, 5])
def test_p26_a_hole_may_hide_any_topology(gone: int) -> None:
    links = {device: others - {gone} for device, others in links_of(Topology.LINE, 6).items() if device != gone}
    assert topology_of(links) is (Topology.LINE if gone == 5 else Topology.UNLINKED)


def test_p26_a_single_device_that_is_not_the_first_is_no_single_device_machine() -> None:
    assert topology_of({3: frozenset()}) is Topology.UNLINKED


@pytest.mark.parametrize("count", [2, 11, 16])
def test_links_that_the_driver_blanked_say_nothing(count: int) -> None:
    assert topology_of({device: frozenset() for device in range(count)}) is Topology.UNLINKED


@pytest.mark.parametrize("topology", [Topology.LINE, Topology.RING, Topology.TORUS])
def test_a_link_that_only_one_end_tells_or_that_leads_away_is_another_machine(topology: Topology) -> None:
    links = links_of(topology, 16)
    assert topology_of({**links, 3: links[3] - {2}}) is Topology.UNLINKED
    assert topology_of({**links, 3: links[3] | {40}}) is Topology.UNLINKED


def test_no_device_has_no_topology() -> None:
    assert topology_of({}) is Topology.UNLINKED


def test_one_more_link_is_another_machine() -> None:
    links = links_of(Topology.RING, 12)
    assert topology_of({**links, 0: links[0] | {6}, 6: links[6] | {0}}) is Topology.UNLINKED


@given(st.dictionaries(st.integers(-3, 70), st.frozensets(st.integers(-3, 70), max_size=4), max_size=34))
def test_any_links_have_some_topology(links: dict[int, frozenset[int]]) -> None:
    assert topology_of(links) in Topology


def rows(grid: Grid) -> list[list[int]]:
    """Device ids as they stand."""
    lines: dict[int, dict[int, int]] = {}
    for device, (row, column) in grid.places.items():
        lines.setdefault(row, {})[column] = device
    return [[line[column] for column in sorted(line)] for _, line in sorted(lines.items())]


def pairs(grids: tuple[Grid, ...]) -> set[frozenset[int]]:
    """Devices beside each other, also around the edge."""
    return {frozenset(pair) for grid in grids for pair in (*grid.neighbours(), *grid.around())}


def linked(topology: Topology, count: int) -> set[frozenset[int]]:
    return {frozenset((device, other)) for device, others in links_of(topology, count).items() for other in others}


def test_thirty_two_devices_are_two_tori() -> None:
    first, second = grids_of(Topology.TORUS, 32, 8)
    assert rows(first)[0] == [0, 1, 2, 3]
    assert rows(second)[3] == [28, 29, 30, 31]
    assert pairs((first, second)) == linked(Topology.TORUS, 32)


def test_a_part_of_a_torus_has_no_edge_to_go_around() -> None:
    first, second = grids_of(Topology.TORUS, 18, 8)
    assert (first.wraps, second.wraps) == (True, False)
    assert rows(second) == [[16, 17]]


def test_a_long_line_turns_like_a_snake() -> None:
    (grid,) = grids_of(Topology.LINE, 10, 8)
    assert rows(grid) == [[0, 1, 2, 3, 4, 5, 6, 7], [9, 8]]
    assert grid.places[8][1] == 7, "below its neighbour 7"
    assert pairs((grid,)) >= linked(Topology.LINE, 10)


def test_the_ends_of_a_folded_ring_meet() -> None:
    (grid,) = grids_of(Topology.RING, 12, 8)
    assert rows(grid) == [[0, 1, 2, 3, 4, 5], [11, 10, 9, 8, 7, 6]]
    assert pairs((grid,)) >= linked(Topology.RING, 12)


def test_devices_without_known_links_stand_in_the_order_of_their_ids() -> None:
    (grid,) = grids_of(Topology.UNLINKED, 6, 4)
    assert rows(grid) == [[0, 1, 2, 3], [4, 5]]


@pytest.mark.parametrize("size", [(4, 4), (4, 8), (8, 4), (3, 5)])
def test_a_torus_of_any_size_is_one_line_of_the_table(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topologies, "TORI", {Topology.TORUS: size})
    count = size[0] * size[1]
    assert Topology.TORUS.can_link(2 * count)
    assert not Topology.TORUS.can_link(count + 1)
    assert pairs(grids_of(Topology.TORUS, 2 * count, 8)) == linked(Topology.TORUS, 2 * count)
    assert {len(others) for others in links_of(Topology.TORUS, count).values()} == {4}
    assert topology_of(links_of(Topology.TORUS, count)) is Topology.TORUS
