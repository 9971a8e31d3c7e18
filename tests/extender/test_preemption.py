from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.allocation.placement import place
from neuron_plugin.allocation.refusals import Refusal
from neuron_plugin.allocation.resources import Resource
from neuron_plugin.extender.hardware import Hardware
from neuron_plugin.extender.preemption import preempt
from neuron_plugin.extender.wire import Victims
from neuron_plugin.simulation.manifests import container, pod_manifest
from tests.extender.world import CORE, DEVICE, World, record_of, request_of

TRN1 = "trn1.32xlarge"


def uid(manifest: dict[str, Any]) -> str:
    return str(manifest["metadata"]["uid"])


def victims_of(world: World, amount: int, offered: dict[str, list[str]], resource: Resource = DEVICE) -> dict[str, Any]:
    request = request_of(record_of(pod_manifest("new", resource, amount)))
    return preempt(world.state, request, {node: Victims(tuple(uids), 1) for node, uids in offered.items()})


def test_e01_the_fewest_victims_that_open_a_row_are_chosen(world: World) -> None:
    world.node("node", TRN1)
    first_row = [uid(world.held(f"a{device}", "node", DEVICE, str(device), priority=1)) for device in (0, 1)]
    second_row = uid(world.held("b", "node", DEVICE, "4", priority=9))
    rest = [uid(world.held(f"c{device}", "node", DEVICE, str(device), priority=1)) for device in (8, 9, 12, 13)]

    chosen = victims_of(world, 4, {"node": [second_row, *first_row, *rest]})

    assert chosen == {"node": Victims((second_row,), 1)}


def test_e01_among_equally_few_the_lowest_priority_goes(world: World) -> None:
    world.node("node", TRN1)
    uids = [
        uid(world.held(f"pod-{device}", "node", DEVICE, str(device), priority=priority))
        for device, priority in ((0, 5), (4, 2), (8, 9), (12, 3))
    ]

    assert victims_of(world, 4, {"node": [uids[2], uids[0], uids[3], uids[1]]})["node"].uids == (uids[1],)


def test_e01_a_node_that_the_victims_do_not_help_is_left_out(world: World) -> None:
    world.node("node", TRN1)
    offered = [uid(world.held("victim", "node", DEVICE, "0"))]
    for device in (1, 4, 8, 12):
        world.held(f"stays-{device}", "node", DEVICE, str(device))

    assert victims_of(world, 4, {"node": offered, "unknown": offered}) == {}


def test_e01_victims_keep_their_order_and_those_without_neuron_stay(world: World) -> None:
    world.node("node", TRN1)
    held = [uid(world.held(f"pod-{device}", "node", DEVICE, str(device))) for device in range(16)]

    chosen = victims_of(world, 4, {"node": [held[3], "for-cpu", *held[:3], *held[4:]]})

    assert chosen["node"].uids == (held[3], "for-cpu", *held[:3])


def test_e01_a_pod_that_keeps_the_node_closed_must_be_among_the_victims(world: World) -> None:
    world.node("node", TRN1)
    odd = uid(world.pod("odd", DEVICE, 1, node="node"))
    held = uid(world.held("holder", "node", DEVICE, "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15"))

    assert victims_of(world, 4, {"node": [held]}) == {}
    assert victims_of(world, 4, {"node": [held, odd]})["node"].uids == (held, odd)


def test_a_node_without_known_hardware_or_with_a_stale_plugin_is_left_out(world: World) -> None:
    world.tell_node({"metadata": {"name": "plain", "uid": "p"}})
    world.node("stale", TRN1)
    held = uid(world.held("holder", "stale", DEVICE, ",".join(map(str, range(16)))))
    world.state.set_stale(frozenset({"stale"}))

    assert victims_of(world, 4, {"plain": [held], "stale": [held]}) == {}


def test_for_a_pod_without_neuron_the_offer_stands(world: World) -> None:
    world.node("node", TRN1)

    assert victims_of(world, 0, {"node": ["a", "b"]}) == {"node": Victims(("a", "b"), 1)}


def test_several_containers_are_opened_together(world: World) -> None:
    world.node("node", "inf2.24xlarge")
    held = [uid(world.held(f"pod-{device}", "node", DEVICE, str(device), priority=device)) for device in range(6)]
    request = request_of(
        record_of(pod_manifest("new", containers=[container("a", DEVICE, 2), container("b", CORE, 2)]))
    )

    chosen = preempt(world.state, request, {"node": Victims(tuple(held))})

    assert chosen["node"].uids == tuple(held[:3])


def test_many_victims_for_several_containers_are_thinned_out_when_trying_all_takes_too_long(world: World) -> None:
    world.node("node", TRN1)
    held = [uid(world.held(f"pod-{device}", "node", DEVICE, str(device), priority=1)) for device in range(16)]
    containers = [container("a", DEVICE, 4), container("b", DEVICE, 4)]
    request = request_of(record_of(pod_manifest("new", containers=containers)))

    chosen = preempt(world.state, request, {"node": Victims(tuple(held))})

    assert len(chosen["node"].uids) == 8


@given(st.sets(st.integers(0, 11), max_size=12), st.sampled_from([1, 2, 3, 5, 12]), st.randoms())
def test_e01_no_smaller_set_of_victims_would_do(held: set[int], amount: int, chance: Any) -> None:
    world = World()
    world.node("node", "inf2.48xlarge")
    by_uid = {uid(world.held(f"pod-{device}", "node", DEVICE, str(device))): device for device in sorted(held)}
    offered = [each for each in by_uid if chance.random() < 0.8]
    request = request_of(record_of(pod_manifest("new", DEVICE, amount)))
    record = world.state.nodes["node"]
    assert isinstance(record.hardware, Hardware)
    geometry = record.hardware.geometry

    chosen = preempt(world.state, request, {"node": Victims(tuple(offered))})

    def fits(evicted: tuple[str, ...]) -> bool:
        free = record.free_mask | geometry.devices_mask(by_uid[each] for each in evicted)
        return not isinstance(place(geometry, free, request), Refusal)

    sizes = [size for size in range(len(offered) + 1) if any(fits(each) for each in combinations(offered, size))]
    if not sizes or not sizes[0]:
        assert chosen == {}
    else:
        assert len(chosen["node"].uids) == sizes[0]
        assert fits(chosen["node"].uids)
        assert set(chosen["node"].uids) <= set(offered)


@pytest.mark.parametrize("amount", [1, 4])
def test_a_node_that_fits_already_needs_no_victim_and_is_left_out(world: World, amount: int) -> None:
    world.node("node", TRN1)
    held = uid(world.held("holder", "node", DEVICE, "0"))

    assert victims_of(world, amount, {"node": [held]}) == {}


def test_a_pod_that_asks_for_no_neuron_gets_the_offer_back_without_nodes_that_offer_nobody(world: World) -> None:
    assert set(victims_of(world, 0, {"node": ["victim"], "nobody": []})) == {"node"}
