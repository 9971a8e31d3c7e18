from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.allocation import NodeInventory, Rejection
from neuron_plugin.allocation.inventory import write_inventory
from neuron_plugin.allocation.keys import INVENTORY_KEY, PREFIX
from neuron_plugin.allocation.node import Reservation
from neuron_plugin.allocation.placement import place
from neuron_plugin.placement.extender import preempt as module
from neuron_plugin.placement.extender.preempt import Victims, preempt
from neuron_plugin.placement.state import AssumedPod
from neuron_plugin.simulation.api_server_kinds import AnyJson
from neuron_plugin.topology import CoreMask
from tests.support.manifests import container, node_manifest, pod_manifest, shipped_geometry, with_memory
from tests.support.world import CORE, DEVICE, World, pod_of, record_of, request_of

TRN1, INF1, INF2, LINE = "trn1.32xlarge", "inf1.6xlarge", "inf2.48xlarge", "inf2.24xlarge"


def uid(manifest: AnyJson) -> str:
    return str(manifest["metadata"]["uid"])


def preempted(world: World, pod: AnyJson, offered: dict[str, list[str]]) -> dict[str, Victims]:
    request = request_of(record_of(pod))
    return preempt(world.state, request, {node: Victims(tuple(uids), 1) for node, uids in offered.items()})


def victims_of(world: World, amount: int, offered: list[str]) -> tuple[str, ...]:
    """Who goes from the one node for a pod of so many devices."""
    chosen = preempted(world, pod_manifest("new", DEVICE, amount), {"node": offered})
    return chosen["node"].uids if chosen else ()


def singles(world: World, instance_type: str, priorities: dict[int, int], **described: Any) -> dict[int, str]:
    """A node with a pod of each priority on each of these devices; their UIDs by device."""
    world.node("node", instance_type, **described)
    return {
        device: uid(world.held(f"pod-{device}", "node", DEVICE, str(device), priority=priority))
        for device, priority in priorities.items()
    }


def one_each(count: int) -> dict[int, int]:
    return {device: device for device in range(count)}


def asking(*containers: AnyJson, init: tuple[AnyJson, ...] = (), **annotations: str) -> AnyJson:
    keys = {PREFIX + key.replace("_", "-"): text for key, text in annotations.items()}
    return pod_manifest("new", containers=containers, init_containers=init, annotations=keys)


@pytest.mark.parametrize(
    ("instance_type", "amount", "priorities", "evicted"),
    [
        (TRN1, 4, {0: 1, 1: 1, 4: 9, 8: 1, 9: 1, 12: 1, 13: 1}, {4}),
        (TRN1, 4, {0: 5, 4: 2, 8: 9, 12: 3}, {4}),
        (LINE, 2, {0: 1, 1: 5, 2: 2, 3: 4, 4: 9, 5: 9}, {2, 3}),
        (TRN1, 4, {0: 1, 4: 1, 8: 1, 9: 1, 12: 1}, {0}),
    ],
    ids=["the fewest", "the lowest priority", "the lowest of the highest", "the first set"],
)
def test_e01_the_fewest_victims_that_open_a_row_are_chosen(
    world: World, instance_type: str, amount: int, priorities: dict[int, int], evicted: set[int]
) -> None:
    uids = singles(world, instance_type, priorities)

    assert set(victims_of(world, amount, [*uids.values()][::-1])) == {uids[device] for device in evicted}


def test_e01_no_pod_is_evicted_for_a_set_with_an_unhealthy_device(world: World) -> None:
    uids = singles(world, TRN1, one_each(16), unhealthy={0: "ECC"})

    assert victims_of(world, 4, [*uids.values()]) == tuple(uids[device] for device in range(4, 8))


def test_e01_a_node_that_the_victims_do_not_help_is_left_out(world: World) -> None:
    """Also where as many devices would come free, in the wrong places; nobody else is evicted for them."""
    uids = singles(world, TRN1, one_each(16))
    scattered = [uids[device] for device in (5, 2, 14, 9)]
    world.show_node({"metadata": {"name": "plain", "uid": "p"}})
    world.node("stale", TRN1)
    held = uid(world.held("holder", "stale", DEVICE, ",".join(map(str, range(16)))))
    world.state.set_stale(frozenset({"stale"}))
    offered = {"node": scattered, "unknown": scattered, "plain": scattered, "stale": [held]}

    assert preempted(world, pod_manifest("new", DEVICE, 4), offered) == {}


def test_e01_victims_keep_their_order_and_those_without_neuron_stay(world: World) -> None:
    uids = singles(world, TRN1, dict.fromkeys(range(16), 0))
    first, *rest = uids[3], "for-cpu", *(uids[device] for device in (0, 1, 2))

    assert victims_of(world, 4, [first, *rest, *(uids[device] for device in range(4, 16))]) == (first, *rest)


def test_e01_a_pod_that_keeps_the_node_closed_must_be_among_the_victims(world: World) -> None:
    world.node("node", TRN1)
    odd = uid(world.pod("odd", DEVICE, 1, node="node"))
    held = uid(world.held("holder", "node", DEVICE, ",".join(map(str, range(16)))))

    assert victims_of(world, 4, [held]) == ()
    assert victims_of(world, 4, [held, odd]) == (held, odd)


def test_e01_of_two_pods_that_claim_the_same_the_one_that_closes_the_node_goes(world: World) -> None:
    world.node("node", TRN1)
    claims = [uid(world.held(name, "node", DEVICE, "0")) for name in ("first", "second")]
    ((unclear, _),) = world.state.nodes["node"].unclear

    assert victims_of(world, 4, claims) == (unclear.uid,)


def test_e01_of_equally_few_a_pod_of_which_only_the_assignment_is_known_goes_last(world: World) -> None:
    uids = singles(world, TRN1, dict.fromkeys((0, 4, 8), 9))
    unseen = pod_manifest("unseen", DEVICE, 1, node="node", annotations={"NEURON_DEVS": "12"})
    world.state.assume(AssumedPod(record_of(unseen), (), since=0.0))

    assert victims_of(world, 4, [uid(unseen), *uids.values()]) == (uids[0],)
    assert victims_of(world, 4, [uid(unseen)]) == (uid(unseen),)


def test_for_a_pod_without_neuron_the_offer_stands_but_for_nodes_without_victims(world: World) -> None:
    world.node("node", TRN1)

    assert preempted(world, pod_manifest("new"), {"node": ["a", "b"], "empty": []}) == {"node": Victims(("a", "b"), 1)}


@pytest.mark.parametrize("amount", [1, 4])
def test_where_the_silicon_is_free_already_the_victims_were_offered_for_something_else_and_stand(
    world: World, amount: int
) -> None:
    """CPU, say: left out, the node would never be freed of them, and the pod would wait for ever."""
    uids = tuple(singles(world, TRN1, {0: 0, 1: 0}).values())

    assert preempted(world, pod_manifest("new", DEVICE, amount), {"node": [*uids]}) == {"node": Victims(uids, 1)}


def test_no_pod_is_evicted_for_a_set_that_is_reserved_for_another(world: World) -> None:
    uids = singles(world, TRN1, {0: 0, 4: 0, 8: 9, 12: 9})
    waiting = world.pod("waiting", DEVICE, 4)
    world.state.reserve(Reservation(pod_of(waiting), "node", CoreMask(0b1111_1111)))

    assert victims_of(world, 4, [*uids.values()]) == (uids[4],)
    assert victims_of(world, 4, [uids[0]]) == ()


# Several containers, which are opened together.


@pytest.mark.parametrize(
    ("instance_type", "pod", "held", "evicted"),
    [
        (LINE, asking(container("a", DEVICE, 2), container("b", CORE, 2)), {str(at): at for at in range(6)}, "012"),
        (
            LINE,
            asking(container("a", DEVICE, 1), container("b", DEVICE, 1)),
            {"0,1": 9, "2": 0, "3": 0, "4": 0, "5": 0},
            ["0,1"],
        ),
        (
            INF2,
            asking(container("then", DEVICE, 6), init=(container("first", DEVICE, 6),)),
            {"0,1,2": 1, "3,4,5": 10, "6,7,8": 2, "9,10,11": 3},
            ["6,7,8", "9,10,11"],
        ),
        (
            TRN1,
            asking(container("a", DEVICE, 4), container("b", DEVICE, 4)),
            {str(at): at for at in range(16)},
            map(str, range(8)),
        ),
    ],
    ids=["the fewest", "one of high priority", "e01: the lowest priorities", "too many groups to look at each"],
)
def test_e01_for_several_containers_the_fewest_go_and_of_these_the_lowest(
    world: World, instance_type: str, pod: AnyJson, held: dict[str, int], evicted: Any
) -> None:
    world.node("node", instance_type)
    uids = {ids: uid(world.held(f"p{ids}", "node", DEVICE, ids, priority=each)) for ids, each in held.items()}

    chosen = preempted(world, pod, {"node": [*uids.values()]})["node"]

    assert set(chosen.uids) == {uids[ids] for ids in evicted}


def test_groups_of_victims_that_are_too_small_are_not_looked_at_for_ever(world: World) -> None:
    """Five million groups of eleven lie below the one pod without which none is enough."""
    world.node("node", TRN1)
    small = [uid(world.held(f"core-{core}", "node", CORE, str(core), priority=1)) for core in range(26)]
    large = uid(world.held("large", "node", DEVICE, "13,14,15", priority=9))

    chosen = preempted(
        world, asking(container("then", CORE, 16), init=(container("first", CORE, 16),)), {"node": [large, *small]}
    )

    assert set(chosen["node"].uids) == set(small[:16])


def test_as_many_pods_are_evicted_as_a_whole_node_holds(world: World) -> None:
    manifest = node_manifest("node", "trn2.48xlarge")
    geometry = replace(shipped_geometry("trn2.48xlarge"), cores_per_device=8)
    manifest["metadata"]["annotations"][INVENTORY_KEY] = write_inventory(NodeInventory(geometry, tuple(range(16))))
    world.show_node(manifest)
    uids = [uid(world.held(f"core-{core}", "node", CORE, str(core))) for core in range(128)]

    assert victims_of(world, 16, uids) == tuple(uids)


def test_a_call_about_many_nodes_leaves_those_out_that_it_has_no_time_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other verb is answered meanwhile, and no Lease renewed."""
    offered = {}
    for node in ("helpless", "first", "second"):
        world.node(node, TRN1)
        pods = [uid(world.held(f"{node}-{device}", node, DEVICE, str(device))) for device in range(16)]
        offered[node] = pods[: 1 if node == "helpless" else None]
    pod = asking(container("a", DEVICE, 4), container("b", DEVICE, 4))
    assert set(preempted(world, pod, offered)) >= {"first"}

    monkeypatch.setattr(module, "SEARCH_SECONDS", 0.0)

    assert set(preempted(world, pod, offered)) == {"first"}


@given(st.sets(st.integers(0, 11), max_size=12), st.sampled_from([1, 2, 3, 5, 12]), st.randoms())
def test_e01_no_smaller_set_of_victims_would_do(held: set[int], amount: int, chance: Any) -> None:
    world = World()
    uids = singles(world, INF2, {device: chance.choice((1, 9)) for device in sorted(held)})
    offered = {uid: device for device, uid in uids.items() if chance.random() < 0.7}
    request = request_of(record_of(pod_manifest("new", DEVICE, amount)))
    record = world.state.nodes["node"]
    assert record.inventory
    geometry = record.inventory.geometry

    chosen = preempted(world, pod_manifest("new", DEVICE, amount), {"node": [*offered]}).get("node")

    def fits(evicted: tuple[str, ...]) -> bool:
        free = record.free_mask | geometry.devices_mask(offered[each] for each in evicted)
        return not isinstance(place(geometry, free, request), Rejection)

    def rank(evicted: tuple[str, ...]) -> list[int]:
        return sorted((world.state.pods[each].priority for each in evicted), reverse=True)  # type: ignore[index]  # UIDs

    sizes = range(len(offered) + 1)
    ways = next((found for size in sizes if (found := [*filter(fits, combinations(offered, size))])), None)
    if ways is None or not offered:
        assert chosen is None
    elif ways == [()]:
        assert chosen == Victims(tuple(offered), 1), "whatever they were offered for, it was not Neuron cores"
    else:
        assert chosen is not None
        assert (chosen.uids in ways, chosen.pdb_violations) == (True, 1)
        assert rank(chosen.uids) == min(map(rank, ways))


# What a pod asks of its devices.


def test_pods_go_for_an_amount_and_for_allowed_devices(world: World) -> None:
    world.node("node", INF1)
    uids = {}
    for device, mib in ((0, 6000), (1, 100), (2, 7000), (3, 8000)):
        assigned = {"NEURON_CORES": str(device * 4)}
        holder = pod_manifest(
            f"on-{device}", containers=[with_memory("main", 1, mib)], node="node", annotations=assigned
        )
        world.show(holder)
        uids[uid(holder)] = device

    def evicted(pod: AnyJson) -> list[int]:
        chosen = preempted(world, pod, {"node": [*uids]})
        return [uids[each] for each in chosen["node"].uids] if chosen else []

    assert len(evicted(asking(with_memory("main", 1, 8192)))) == 1
    assert evicted(asking(with_memory("main", 1, 8192), allow_devices="2")) == [2]
    assert evicted(asking(container("main", CORE, 4), device_name="trn1")) == []


def test_pods_that_leave_too_little_of_an_amount_go_though_their_cores_are_not_in_the_way(world: World) -> None:
    world.node("node", INF1)
    uids = []
    for core in (0, 1, 4, 5, 8, 9, 12, 13):
        assigned = {"NEURON_CORES": str(core)}
        holder = pod_manifest(
            f"on-{core}", containers=[with_memory("main", 1, 3000)], node="node", annotations=assigned
        )
        world.show(holder)
        uids.append(uid(holder))

    chosen = preempted(world, asking(with_memory("main", 2, 5000)), {"node": uids})

    assert len(chosen["node"].uids) == 1


def test_a_pod_that_asks_for_a_product_evicts_no_more_than_it_needs(world: World) -> None:
    world.node("node", TRN1)
    parts = ("0,1,2,3", "4,5,6,7", "8", "9", "10,11", "12,13,14,15")
    uids = [uid(world.held(f"p{ids}", "node", DEVICE, ids)) for ids in parts]

    chosen = preempted(world, asking(container("main", DEVICE, 8), device_name="trainium1"), {"node": uids})

    assert chosen["node"].uids == tuple(uids[:2])
