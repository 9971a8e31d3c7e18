"""The catalogue is the documentation's table, and a machine is believed over it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.topology import Topology, Unit
from neuron_plugin.topology.geometry import MOST_CORES_PER_DEVICE, GeometryError
from neuron_plugin.topology.instances import SHIPPED, InstanceType, catalogue, geometry_of
from neuron_plugin.topology.links import links_of
from neuron_plugin.topology.sets import sets_by_count

TABLE = """
inf1.xlarge 1 4 4 8 single
inf1.2xlarge 1 4 4 8 single
inf1.6xlarge 4 4 16 8 line
inf1.24xlarge 16 4 64 8 ring
inf2.xlarge 1 2 2 32 single
inf2.8xlarge 1 2 2 32 single
inf2.24xlarge 6 2 12 32 line
inf2.48xlarge 12 2 24 32 ring
trn1.2xlarge 1 2 2 32 single
trn1.32xlarge 16 2 32 32 torus
trn1n.32xlarge 16 2 32 32 torus
trn2.3xlarge 1 8 4 96 single
trn2.48xlarge 16 8 64 96 torus
trn2n.48xlarge 16 8 64 96 torus
trn2u.48xlarge 16 8 64 96 torus
trn2p.48xlarge 16 8 64 96 torus
trn2eu.48xlarge 16 8 64 96 torus
trn2e.48xlarge 16 8 64 96 torus
trn2es.48xlarge 16 8 64 96 torus
trn3.48xlarge 16 8 64 144 torus
trn3n.48xlarge 16 8 64 144 torus
trn3p.48xlarge 16 8 64 144 torus
trn3pd98.48xlarge 16 8 64 144 torus
trn3s.48xlarge 16 8 64 144 torus
trn3s-es.48xlarge 16 8 64 144 torus
trn3-dev0.48xlarge 16 8 64 144 torus
trn3-dev1.48xlarge 16 8 64 144 torus
trn3en.24xlarge 4 8 16 144 unlinked
trn3pd98.3xlarge 1 8 4 144 single
"""
"""name, devices, physical cores per device, the node's logical cores by default, GiB per device, topology."""

ROWS = [line.split() for line in TABLE.strip().splitlines()]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row[0]))
def test_a_type_is_as_documented(row: list[str]) -> None:
    kind = catalogue()[row[0]]
    logical = kind.devices * kind.cores_per_device // kind.logical_core_size
    told = [kind.name, kind.devices, kind.cores_per_device, logical, kind.memory_gib, kind.topology.value]
    assert [str(part) for part in told] == row


def test_no_type_is_missing_or_there_twice() -> None:
    assert sorted(kind.name for kind in SHIPPED) == sorted(row[0] for row in ROWS)


NUMA = [
    ("trn1.32xlarge", {0: {0, 1, 4, 5, 8, 9, 12, 13}, 1: {2, 3, 6, 7, 10, 11, 14, 15}}),
    ("trn2.48xlarge", {0: {4, 5, 6, 7, 8, 9, 10, 11}, 1: {0, 1, 2, 3, 12, 13, 14, 15}}),
    ("trn2.3xlarge", {0: {0}}),
    ("inf2.48xlarge", {0: {8, 9, 10}, 1: {6, 7, 11}, 2: {0, 2, 4}, 3: {1, 3, 5}}),
    ("inf2.24xlarge", {0: {2, 3, 4}, 1: {0, 1, 5}}),
]


@pytest.mark.parametrize(("name", "nodes"), NUMA)
def test_numa_nodes_are_the_captured_ones(name: str, nodes: dict[int, set[int]]) -> None:
    told = catalogue()[name].numa_nodes
    assert {node: {device for device, own in enumerate(told) if own == node} for node in set(told)} == nodes


@pytest.mark.parametrize("kind", SHIPPED, ids=lambda kind: str(kind.name))
def test_numa_nodes_are_known_for_all_devices_of_a_type_or_for_none(kind: InstanceType) -> None:
    assert len(kind.numa_nodes) in (0, kind.devices)


@pytest.mark.parametrize("kind", SHIPPED, ids=lambda kind: str(kind.name))
def test_a_whole_machine_of_a_type_has_its_geometry_whatever_its_links_say(kind: InstanceType) -> None:
    blanked = {device: frozenset[int]() for device in range(kind.devices)}
    geometry = geometry_of(
        catalogue(), kind.name, device_ids=range(kind.devices), cores_per_device=kind.cores_per_device, links=blanked
    )
    assert (geometry.topology, geometry.device_count) == (kind.topology, kind.devices)
    assert geometry.instance_type == kind.name
    assert geometry.block_sizes == kind.block_sizes


def test_p24_a_missing_chip_shortens_no_geometry() -> None:
    ids = [device for device in range(16) if device not in (3, 15)]
    geometry = geometry_of(catalogue(), "trn1.32xlarge", device_ids=ids, cores_per_device=2, links={})
    assert geometry.device_count == 16
    assert geometry.topology is Topology.TORUS


def test_p28_the_cores_are_the_machines_and_not_the_types() -> None:
    for cores in (4, 8):
        geometry = geometry_of(catalogue(), "trn2.48xlarge", device_ids=range(16), cores_per_device=cores, links={})
        assert geometry.core_count == 16 * cores


def test_p26_an_unknown_type_is_known_by_its_links() -> None:
    links = links_of(Topology.TORUS, 16)
    geometry = geometry_of(catalogue(), "trn9.48xlarge", device_ids=range(16), cores_per_device=2, links=links)
    assert (geometry.instance_type, geometry.topology) == ("trn9.48xlarge", Topology.TORUS)
    assert geometry.block_sizes == (1, 4, 8, 16)
    line = geometry_of(catalogue(), "", device_ids=range(5), cores_per_device=2, links=links_of(Topology.LINE, 5))
    assert (line.instance_type, line.topology, line.block_sizes) == ("unknown", Topology.LINE, ())


def test_p26_an_unknown_type_without_links_gives_one_or_all() -> None:
    geometry = geometry_of(catalogue(), "", device_ids=[0, 1, 3], cores_per_device=2, links={0: frozenset({1})})
    assert geometry.device_count == 4
    assert tuple(sets_by_count(geometry, Unit.DEVICE)) == (1, 4)


def test_p26_a_lone_device_behind_a_gap_gives_one_or_all() -> None:
    geometry = geometry_of(catalogue(), "", device_ids=[3], cores_per_device=2, links={3: frozenset()})
    assert tuple(sets_by_count(geometry, Unit.DEVICE)) == (1, 4)


def test_more_devices_than_the_type_has_are_believed_over_the_type() -> None:
    geometry = geometry_of(
        catalogue(), "inf2.24xlarge", device_ids=range(12), cores_per_device=2, links=links_of(Topology.RING, 12)
    )
    assert (geometry.device_count, geometry.topology) == (12, Topology.RING)


def test_a_users_type_replaces_a_shipped_one_and_adds_new_ones() -> None:
    mine = InstanceType("trn1.32xlarge", "Trainium1", 16, 2, 32, Topology.UNLINKED, block_sizes=(1, 2))
    fresh = InstanceType("trn9.48xlarge", "Trainium9", 8, 4, 192, Topology.RING)
    types = catalogue([mine, fresh])
    geometry = geometry_of(types, "trn1.32xlarge", device_ids=range(16), cores_per_device=2, links={})
    assert tuple(sets_by_count(geometry, Unit.DEVICE)) == (1, 2, 16)
    assert types["trn9.48xlarge"] is fresh
    assert catalogue()["trn1.32xlarge"].topology is Topology.TORUS


def test_hyperpods_prefix_means_nothing() -> None:
    geometry = geometry_of(catalogue(), "ml.trn1.32xlarge", device_ids=range(16), cores_per_device=2, links={})
    assert (geometry.instance_type, geometry.topology) == ("trn1.32xlarge", Topology.TORUS)


def test_ids_that_the_driver_cannot_have_are_passed_over() -> None:
    geometry = geometry_of(catalogue(), "", device_ids=[0, 1, 10**9], cores_per_device=2, links={})
    assert geometry.device_count == 2


def test_no_device_at_all_has_a_geometry_that_gives_nothing() -> None:
    geometry = geometry_of(catalogue(), "", device_ids=[], cores_per_device=0, links={})
    assert (geometry.device_count, geometry.all_mask) == (0, 0)


def test_more_cores_than_the_driver_knows_are_refused() -> None:
    with pytest.raises(GeometryError, match="cores_per_device is 9"):
        geometry_of(catalogue(), "", device_ids=[0], cores_per_device=MOST_CORES_PER_DEVICE + 1, links={})


@given(
    name=st.one_of(st.text(max_size=20), st.sampled_from([kind.name for kind in SHIPPED])),
    ids=st.sets(st.integers(0, 200)),
    cores=st.integers(0, 8),
    links=st.dictionaries(st.integers(0, 20), st.frozensets(st.integers(0, 20), max_size=4), max_size=16),
)
def test_any_machine_has_a_geometry_that_covers_its_devices(
    name: str, ids: set[int], cores: int, links: dict[int, frozenset[int]]
) -> None:
    geometry = geometry_of(catalogue(), name, device_ids=ids, cores_per_device=cores, links=links)
    assert geometry.cores_per_device == cores
    assert all(device < geometry.device_count for device in ids if device < 64)
