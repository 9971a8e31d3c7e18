"""Nodes in the same state share one capacity, so that they share their verdicts, too."""

from __future__ import annotations

from neuron_plugin.allocation import Capacity
from neuron_plugin.allocation import node as module
from neuron_plugin.allocation.node import capacity_of
from neuron_plugin.topology import CoreMask
from tests.support.manifests import pod_manifest, shipped_geometry, with_memory
from tests.support.world import CORE, World

INF1 = "inf1.6xlarge"


def capacity(free: int) -> Capacity:
    geometry = shipped_geometry(INF1)
    return capacity_of(geometry, geometry.all_mask, CoreMask(free))


def test_a_capacity_is_one_object_until_no_node_has_it_any_more() -> None:
    before, kept = len(module._capacities), capacity(0b1010101)

    assert capacity(0b1010101) is kept
    assert capacity(0b111) is not kept
    assert len(module._capacities) == before + 1
    del kept
    assert len(module._capacities) == before


def test_nodes_in_one_state_are_one_capacity_unless_their_pods_use_amounts(world: World) -> None:
    for name in ("one", "other"):
        world.node(name, INF1)

    def capacities() -> tuple[Capacity, Capacity]:
        one, other = (world.state.nodes[name].capacity for name in ("one", "other"))
        assert isinstance(one, Capacity)
        assert isinstance(other, Capacity)
        return one, other

    one, other = capacities()
    assert one is other
    assigned = {"NEURON_CORES": "0"}
    using = pod_manifest("m", containers=[with_memory("main", 1, 64)], node="one", annotations=assigned)
    world.show(using)
    plain = world.held("p", "other", CORE, "0")
    one, other = capacities()
    assert (one.free_mask, one.facts.amounts) == (other.free_mask, other.facts.amounts)
    assert (one.facts.used, other.facts.used) == ((("memory", (64, 0, 0, 0)),), ())
    for pod in (using, plain):
        world.gone(pod)
    one, other = capacities()
    assert one is other
