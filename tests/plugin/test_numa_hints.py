from __future__ import annotations

from pathlib import Path

import pytest

from neuron_plugin.allocation import HolderLedger, Resource
from neuron_plugin.hardware import read_inventory
from neuron_plugin.kubelet import (
    AdvertisedDevice,
    ContainerAllocation,
    DevicePluginServer,
    ServiceOptions,
    WatchedPluginServer,
)
from neuron_plugin.plugin.machine import Machine, advertised, seen_machine, with_numa_nodes
from neuron_plugin.plugin.node import NodeState
from neuron_plugin.plugin.offering import Offering, route
from neuron_plugin.plugin.settings import PluginSettings, Registration
from neuron_plugin.simulation import write_node
from neuron_plugin.topology import catalogue
from tests.kubelet.fakes import FakeObserver
from tests.plugin.world import INF2, machine


def seen(root: Path, instance_type: str) -> Machine:
    node = write_node(root / "node", instance_type, usage_counters=False)
    found = seen_machine(read_inventory(node.paths), catalogue(), "", {})
    assert found is not None
    return found


def nodes(found: Machine, resource: Resource) -> dict[str, tuple[int, ...]]:
    devices = with_numa_nodes(found, resource, advertised(found, HolderLedger(), resource))
    return {device.id: device.numa_nodes for device in devices}


class NobodyAsks:
    async def preferred(self, resource: str, available: object, must_include: object, size: int) -> list[str]:
        raise AssertionError(resource, available, must_include, size)

    def allocate(self, resource: str, ids: object) -> ContainerAllocation:
        raise AssertionError(resource, ids)

    async def pre_start(self, resource: str, ids: object) -> None:
        raise AssertionError(resource, ids)


def published(machine: Machine, *, numa_hints: bool) -> tuple[AdvertisedDevice, ...]:
    state = NodeState()
    state.see_machine(machine)
    offering = Offering(
        state,
        NobodyAsks(),
        [Resource.NEURON],
        route(PluginSettings()),
        ServiceOptions(),
        FakeObserver(),
        numa_hints=numa_hints,
    )
    offering.refresh()
    return offering.servers[0]._advertisement.latest.devices


@pytest.fixture(scope="module")
def inf2(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return seen(tmp_path_factory.mktemp("inf2"), "inf2.48xlarge")


def test_p21_no_topology_by_default(inf2: Machine) -> None:
    assert {device.numa_nodes for device in published(inf2, numa_hints=False)} == {()}


def test_p21_hints_name_the_node_of_each_device_by_its_type(inf2: Machine) -> None:
    assert [device.numa_nodes for device in published(inf2, numa_hints=True)] == [
        (node,) for node in (2, 3, 2, 3, 2, 3, 1, 1, 0, 0, 0, 1)
    ]


def test_p21_a_core_is_where_its_device_is(inf2: Machine) -> None:
    cores = nodes(inf2, Resource.NEURONCORE)
    assert (cores["0"], cores["1"], cores["2"], cores["23"]) == ((2,), (2,), (3,), (1,))


def test_p21_a_type_whose_nodes_are_not_known_says_nothing(tmp_path: Path) -> None:
    assert set(nodes(seen(tmp_path, "inf1.6xlarge"), Resource.NEURON).values()) == {()}


def test_p21_a_node_of_minus_one_is_left_out(inf2: Machine) -> None:
    found = machine(INF2, numa_nodes={0: -1, 1: 0, 2: 5})
    assert [nodes(found, Resource.NEURON)[each] for each in ("0", "1", "2", "3")] == [(), (0,), (5,), ()]
    del inf2


def test_p12_a_resource_goes_one_way_and_knows_the_other() -> None:
    socket, watcher = route(PluginSettings()), route(PluginSettings(registration=Registration.WATCHER))
    assert (socket.server, watcher.server) == (DevicePluginServer, WatchedPluginServer)
    assert (socket.directory, socket.other_directory) == (watcher.other_directory, watcher.directory)
