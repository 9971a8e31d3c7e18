from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.allocation import PodRequest, Rejection, Resource
from neuron_plugin.allocation.node import Reservation
from neuron_plugin.allocation.placement import place
from neuron_plugin.placement.extender.preempt import Victims, preempt
from neuron_plugin.placement.state import AssumedPod
from neuron_plugin.topology import CoreMask
from tests.support.manifests import container, pod_manifest
from tests.support.world import CORE, DEVICE, World, pod_of, record_of, request_of

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


def test_e01_among_equally_few_the_highest_priority_that_goes_is_the_lowest(world: World) -> None:
    world.node("node", "inf2.24xlarge")
    priorities = (1, 5, 2, 4, 9, 9)
    uids = [uid(world.held(f"pod-{n}", "node", DEVICE, str(n), priority=each)) for n, each in enumerate(priorities)]

    assert victims_of(world, 2, {"node": uids})["node"].uids == (uids[2], uids[3])


def test_e01_no_pod_is_evicted_for_a_set_with_an_unhealthy_device(world: World) -> None:
    world.node("node", TRN1, unhealthy={0: "ECC"})
    uids = [uid(world.held(f"pod-{n}", "node", DEVICE, str(n), priority=n)) for n in range(16)]

    assert sorted(victims_of(world, 4, {"node": uids})["node"].uids) == sorted(uids[4:8])


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


def test_e01_of_two_pods_that_claim_the_same_the_one_that_closes_the_node_goes(world: World) -> None:
    world.node("node", TRN1)
    claims = [uid(world.held(name, "node", DEVICE, "0")) for name in ("first", "second")]
    ((unclear, _),) = world.state.nodes["node"].unclear

    assert victims_of(world, 4, {"node": claims}) == {"node": Victims((unclear.uid,), 1)}


def test_a_node_without_known_hardware_or_with_a_stale_plugin_is_left_out(world: World) -> None:
    world.show_node({"metadata": {"name": "plain", "uid": "p"}})
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


def test_one_pod_of_high_priority_goes_before_two_of_low_priority_for_several_containers_too(world: World) -> None:
    world.node("node", "inf2.24xlarge")
    pair = uid(world.held("pair", "node", DEVICE, "0,1", priority=9))
    singles = [uid(world.held(f"pod-{device}", "node", DEVICE, str(device))) for device in range(2, 6)]
    containers = [container("a", DEVICE, 1), container("b", DEVICE, 1)]
    request = request_of(record_of(pod_manifest("new", containers=containers)))

    assert preempt(world.state, request, {"node": Victims((pair, *singles))})["node"].uids == (pair,)


def six_devices_twice() -> PodRequest:
    """Two containers that get the same six linked devices, one after the other."""
    init = [container("first", DEVICE, 6)]
    return request_of(record_of(pod_manifest("new", init_containers=init, containers=[container("then", DEVICE, 6)])))


def test_e01_the_lowest_priorities_go_for_several_containers_too(world: World) -> None:
    world.node("node", "inf2.48xlarge")
    ids = {1: "0,1,2", 10: "3,4,5", 2: "6,7,8", 3: "9,10,11"}
    uids = {each: uid(world.held(f"p{each}", "node", DEVICE, text, priority=each)) for each, text in ids.items()}

    chosen = preempt(world.state, six_devices_twice(), {"node": Victims(tuple(uids.values()))})

    assert set(chosen["node"].uids) == {uids[2], uids[3]}


def test_groups_of_victims_that_are_too_small_are_not_looked_at_for_ever(world: World) -> None:
    """Five million groups of eleven lie below the one pod without which none is enough."""
    world.node("node", TRN1)
    small = [uid(world.held(f"core-{core}", "node", CORE, str(core), priority=1)) for core in range(26)]
    large = uid(world.held("large", "node", DEVICE, "13,14,15", priority=9))
    init = [container("first", CORE, 16)]
    request = request_of(record_of(pod_manifest("new", init_containers=init, containers=[container("then", CORE, 16)])))

    (victims,) = preempt(world.state, request, {"node": Victims((large, *small))}).values()

    assert set(victims.uids) == set(small[:16])


def test_many_victims_for_several_containers_are_thinned_out_when_trying_all_takes_too_long(world: World) -> None:
    world.node("node", TRN1)
    held = [uid(world.held(f"pod-{device}", "node", DEVICE, str(device), priority=device)) for device in range(16)]
    containers = [container("a", DEVICE, 4), container("b", DEVICE, 4)]
    request = request_of(record_of(pod_manifest("new", containers=containers)))

    chosen = preempt(world.state, request, {"node": Victims(tuple(held))})

    assert set(chosen["node"].uids) == set(held[:8])


@given(st.sets(st.integers(0, 11), max_size=12), st.sampled_from([1, 2, 3, 5, 12]), st.randoms())
def test_e01_no_smaller_set_of_victims_would_do(held: set[int], amount: int, chance: Any) -> None:
    below = chance.choice((None, 5))
    world = World()
    world.node("node", "inf2.48xlarge")
    by_uid = {}
    for device in sorted(held):
        manifest = world.held(f"pod-{device}", "node", DEVICE, str(device), priority=chance.choice((1, 9)))
        by_uid[uid(manifest)] = (device, manifest["spec"]["priority"])
    offered = [each for each in by_uid if chance.random() < 0.5]
    lower = [each for each, (_, priority) in by_uid.items() if priority < (below or 0) and each not in offered]
    request = request_of(record_of(pod_manifest("new", DEVICE, amount)))
    record = world.state.nodes["node"]
    assert record.inventory
    geometry = record.inventory.geometry

    chosen = preempt(world.state, request, {"node": Victims(tuple(offered))}, unoffered_below=below).get("node")

    def fits(evicted: tuple[str, ...]) -> bool:
        free = record.free_mask | geometry.devices_mask(by_uid[each][0] for each in evicted)
        return not isinstance(place(geometry, free, request), Rejection)

    def least(among: list[str]) -> int | None:
        sizes = range(len(among) + 1)
        return next((size for size in sizes if any(fits(each) for each in combinations(among, size))), None)

    among = offered if least(offered) is not None else [*offered, *lower]
    fewest = least(among)
    if fewest is None or not offered:
        assert chosen is None
    elif fewest == 0:
        assert chosen == Victims(tuple(offered)), "whatever they were offered for, it was not Neuron cores"
    else:
        assert chosen is not None
        assert len(chosen.uids) == fewest
        assert fits(chosen.uids)
        assert set(chosen.uids) <= set(among)
        assert chosen.pdb_violations == len(set(chosen.uids) - set(offered))


@pytest.mark.parametrize("amount", [1, 4])
def test_where_the_silicon_is_free_already_the_victims_were_offered_for_something_else_and_stand(
    world: World, amount: int
) -> None:
    """CPU, say: left out, the node would never be freed of them, and the pod would wait for ever."""
    world.node("node", TRN1)
    held = [uid(world.held(f"holder-{device}", "node", DEVICE, str(device))) for device in (0, 1)]

    assert victims_of(world, amount, {"node": held}) == {"node": Victims(tuple(held), 1)}


def full_of_singles(world: World, priority: int = 1) -> list[str]:
    """A torus of sixteen pods with a device each; their UIDs by device."""
    world.node("node", TRN1)
    return [uid(world.held(f"pod-{device}", "node", DEVICE, str(device), priority=priority)) for device in range(16)]


def asking(world: World, priority: int, offered: list[str], amount: int = 4) -> Victims | None:
    """What a waiting pod of that priority gets on the one node where others than those offered may go."""
    request = request_of(record_of(pod_manifest("new", DEVICE, amount)))
    return preempt(world.state, request, {"node": Victims(tuple(offered), 1)}, unoffered_below=priority).get("node")


def test_e01_no_pod_is_evicted_unoffered_unless_that_is_asked_for(world: World) -> None:
    held = full_of_singles(world)
    scattered = [held[device] for device in (5, 2, 14, 9)]

    assert victims_of(world, 4, {"node": scattered}) == {}
    assert asking(world, 10, scattered) is not None


def test_e01_where_the_offered_open_no_set_other_pods_of_lower_priority_may_go(world: World) -> None:
    """What kube-scheduler offers on a full node: as many singles as it takes, wherever they are."""
    held = full_of_singles(world)

    chosen = asking(world, 10, [held[device] for device in (5, 2, 14, 9)])

    assert chosen is not None
    assert len(chosen.uids) == 4
    assert any(set(chosen.uids) == set(held[row : row + 4]) for row in (0, 4, 8, 12))
    assert chosen.pdb_violations == 1 + 3, "of budgets nothing is known: each that was not offered may break one"


def test_e01_an_offered_pod_goes_before_another_of_its_priority(world: World) -> None:
    held = full_of_singles(world)

    chosen = asking(world, 10, [held[device] for device in (13, 1, 7, 12)])

    assert chosen is not None
    assert set(chosen.uids) == set(held[12:])
    assert chosen.pdb_violations == 1 + 2


def test_e01_none_of_the_offered_need_be_among_the_victims(world: World) -> None:
    world.node("node", TRN1)
    held = [
        uid(world.held(f"pod-{device}", "node", DEVICE, str(device), priority=1 if device < 4 else 5))
        for device in range(16)
    ]

    chosen = asking(world, 10, [held[device] for device in (5, 10, 15, 8)])

    assert chosen is not None
    assert set(chosen.uids) == set(held[:4])


@pytest.mark.parametrize("priority", [0, 1])
def test_e01_no_pod_is_evicted_unoffered_for_a_pod_of_no_higher_priority(world: World, priority: int) -> None:
    held = full_of_singles(world, priority=1)

    assert asking(world, priority, [held[device] for device in (5, 2, 14, 9)]) is None


def test_e01_a_pod_of_higher_priority_keeps_its_row(world: World) -> None:
    world.node("node", TRN1)
    priorities = {0: 99, 5: 99, 10: 99}
    held = [
        uid(world.held(f"pod-{device}", "node", DEVICE, str(device), priority=priorities.get(device, 1)))
        for device in range(16)
    ]

    chosen = asking(world, 10, [held[device] for device in (1, 6, 11, 15)])

    assert chosen is not None
    assert set(chosen.uids) == set(held[12:])


@pytest.mark.parametrize("watched", [True, False])
def test_e01_what_the_scheduler_does_not_know_to_be_on_the_node_is_not_evicted_unoffered(
    world: World, *, watched: bool
) -> None:
    """It refuses the whole answer for a pod that it does not find there, and one that is being bound may be one."""
    held = full_of_singles(world)
    for device in (0, 4, 8, 12):
        world.gone({"metadata": {"uid": held[device]}})
        manifest = pod_manifest(f"binding-{device}", DEVICE, 1, priority=1)
        if watched:
            world.show(manifest)
        keys = {"NEURON_DEVS": str(device)}
        metadata = {**manifest["metadata"], "annotations": keys}
        bound = record_of({**manifest, "metadata": metadata, "spec": {**manifest["spec"], "nodeName": "node"}})
        world.state.assume(AssumedPod(bound, (), since=0.0))

    assert asking(world, 10, [held[device] for device in (5, 2, 14, 9)]) is None


def test_e01_victims_come_by_falling_priority_because_the_first_is_read_as_the_highest(world: World) -> None:
    world.node("node", TRN1)
    priorities = {0: 5, 1: 8, 2: 2, 3: 3}
    held = {
        device: uid(world.held(f"pod-{device}", "node", DEVICE, str(device), priority=priorities.get(device, 9)))
        for device in range(16)
    }

    chosen = asking(world, 10, [held[0], "for-cpu", held[2]])

    assert chosen is not None
    assert chosen.uids == (held[1], held[0], "for-cpu", held[3], held[2])


def test_a_call_about_many_nodes_tries_no_more_placements_than_it_has_time_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other verb is answered meanwhile, and no Lease renewed."""
    placements: list[object] = []

    def counted(*args: Any) -> object:
        placements.append(args)
        return place(*args)

    monkeypatch.setattr(module, "place", counted)
    monkeypatch.setattr(module, "_MOST_TRIALS", 50)
    offered = {}
    for number in range(20):
        world.node(f"node-{number}", TRN1)
        held = [
            uid(world.held(f"pod-{number}-{device}", f"node-{number}", DEVICE, str(device))) for device in range(16)
        ]
        offered[f"node-{number}"] = Victims(tuple(held))
    containers = [container("a", DEVICE, 4), container("b", DEVICE, 4)]
    request = request_of(record_of(pod_manifest("new", containers=containers)))

    chosen = preempt(world.state, request, offered)

    assert {len(victims.uids) for victims in chosen.values()} == {8}
    assert len(placements) <= 50 + 20 * (1 + 16)


def test_a_pod_that_asks_for_no_neuron_gets_the_offer_back_without_nodes_that_offer_no_pod(world: World) -> None:
    assert set(victims_of(world, 0, {"node": ["victim"], "empty": []})) == {"node"}


def test_no_pod_is_evicted_for_a_set_that_is_reserved_for_another(world: World) -> None:
    world.node("node", TRN1)
    reserved, other = (uid(world.held(name, "node", DEVICE, device)) for name, device in (("a", "0"), ("b", "4")))
    rest = [world.held(f"c{device}", "node", DEVICE, str(device), priority=9) for device in (8, 12)]
    waiting = world.pod("waiting", DEVICE, 4)
    world.state.reserve(Reservation(pod_of(waiting), "node", CoreMask(0b1111_1111)))

    chosen = victims_of(world, 4, {"node": [reserved, other, *map(uid, rest)]})
    assert chosen["node"].uids == (other,)
    assert victims_of(world, 4, {"node": [reserved]}) == {}
