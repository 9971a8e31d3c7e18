from __future__ import annotations

import random
import time
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.allocation import Capacity, PodRequest, PodUid, Rejection, Resource
from neuron_plugin.allocation import node as state_module
from neuron_plugin.allocation.cost import cost, devices_lost
from neuron_plugin.allocation.node import STALE_PLUGIN, capacity_of
from neuron_plugin.allocation.placement import placement_mask
from neuron_plugin.placement.extender.filter import filter_nodes, scores
from neuron_plugin.placement.state import NODE_REFUSALS, UNKNOWN_NODE
from neuron_plugin.planning import choice as module
from neuron_plugin.planning.choice import Choices, verdict
from neuron_plugin.topology import CoreMask
from tests.support.manifests import container, node_manifest, pod_manifest, shipped_geometry
from tests.support.world import CORE, DEVICE, World, record_of, request_of

TRN1 = "trn1.32xlarge"


def test_t06_every_candidate_is_answered_exactly_once_and_no_other_name_appears(world: World) -> None:
    world.node("free", TRN1)
    world.node("small", "inf1.xlarge")
    world.node("full", TRN1)
    world.held("holder", "full", DEVICE, ",".join(str(device) for device in range(16)))
    names = ["free", "small", "full", "ghost"]

    found = world.filter(pod_manifest("new", DEVICE, 4), names)

    answered = [*found.passed, *found.failed, *found.unresolvable]
    assert sorted(answered) == sorted(names)


def test_t08_what_no_pods_end_can_mend_is_unresolvable_and_the_rest_only_failed(world: World) -> None:
    world.node("full", TRN1)
    world.held("holder", "full", DEVICE, ",".join(str(device) for device in range(16)))
    world.node("fragmented", TRN1)
    for device in (0, 4, 8, 12):
        world.held(f"single-{device}", "fragmented", DEVICE, str(device))
    world.node("small", "inf1.xlarge")
    world.node("broken", TRN1, unhealthy=dict.fromkeys((0, 5, 10, 15), "reset"))
    world.show_node({"metadata": {"name": "plain", "uid": "p"}})

    found = world.filter(pod_manifest("new", DEVICE, 4))

    assert set(found.failed) == {"full", "fragmented"}
    assert set(found.unresolvable) == {"small", "broken", "plain"}
    assert found.failed["full"] == "Fewer than 4 free Neuron devices"
    assert found.failed["fragmented"] == "No free linked set of 4 Neuron devices"
    assert found.unresolvable["plain"] == "The node has no Neuron devices"


def test_t07_no_reason_names_a_node_so_that_the_scheduler_can_count_nodes_per_text(world: World) -> None:
    for index in range(50):
        world.show_node({"metadata": {"name": f"plain-{index}", "uid": str(index)}})
        world.node(f"small-{index}", "inf1.xlarge")

    found = world.filter(pod_manifest("new", DEVICE, 4))

    assert len(found.rejected) == 2
    assert len({refusal.text for refusal in NODE_REFUSALS}) == len(NODE_REFUSALS)


def test_t07_reasons_read_as_one_sentence_once_the_scheduler_has_joined_them_by_commas(world: World) -> None:
    """kube-scheduler sets the full stop, too; only the vendor's sentence brings its own."""
    world.node("small", "inf1.xlarge")
    world.node("full", TRN1)
    world.held("holder", "full", DEVICE, ",".join(str(device) for device in range(16)))
    found = world.filter(pod_manifest("new", DEVICE, 4))

    for text in (rejection.text for rejection in (*found.rejected, *NODE_REFUSALS)):
        assert not text.endswith(".")
        assert "," not in text


def test_t16_seven_devices_on_a_torus_are_refused_in_the_vendors_words(world: World) -> None:
    world.node("torus", TRN1)

    assert world.why_not(DEVICE, 7, "torus") == (
        "Instance type trn1.32xlarge does not support requests for device: 7. "
        "Please request a different number of devices. It supports 1 or 4 or 8 or 16"
    )


@pytest.mark.parametrize(
    ("held", "amount", "fits"),
    [
        ((1, 5, 9), 4, True),
        ((1, 5, 9, 13), 4, False),
        ((0, 15), 8, False),
        ((8,), 8, True),
        ((0,), 16, False),
        ((), 16, True),
        ((0, 3, 4, 7, 8, 11, 12, 15), 4, False),
    ],
    ids=str,
)
def test_t16_a_torus_hands_out_rows_and_halves_and_nothing_between(
    world: World, held: tuple[int, ...], amount: int, *, fits: bool
) -> None:
    world.node("torus", TRN1)
    for device in held:
        world.held(f"pod-{device}", "torus", DEVICE, str(device))

    assert world.fits(DEVICE, amount, "torus") is fits


def test_t12_t13_each_node_is_judged_by_its_own_cores_per_device(world: World) -> None:
    world.node("four-per-device", "inf1.6xlarge")
    world.node("two-per-device", "inf2.24xlarge")
    world.held("a", "four-per-device", DEVICE, "0,1,2")
    world.held("b", "two-per-device", DEVICE, "0,1,2,3")

    assert not world.fits(CORE, 5, "four-per-device")
    assert not world.fits(CORE, 5, "two-per-device")
    assert world.fits(CORE, 4, "four-per-device")
    assert world.fits(CORE, 4, "two-per-device")
    assert world.fits(CORE, 3, "four-per-device")


def test_t15_the_two_ends_of_a_ring_are_no_set(world: World) -> None:
    world.node("ring", "inf2.48xlarge")
    world.held("middle", "ring", DEVICE, "1,2,3,4,5,6,7,8,9,10")

    assert world.why_not(DEVICE, 2, "ring") == "No free linked set of 2 Neuron devices"
    assert world.fits(DEVICE, 1, "ring")


def test_t17_everything_is_valid_only_on_a_wholly_free_and_healthy_node(world: World) -> None:
    world.node("free", "inf2.48xlarge")
    world.node("one-broken", "inf2.48xlarge", unhealthy={7: "ECC"})
    world.node("one-core-held", "inf2.48xlarge")
    world.held("holder", "one-core-held", CORE, "23")

    found = world.filter(pod_manifest("new", DEVICE, 12))

    assert found.passed == ["free"]
    assert set(found.failed) == {"one-core-held"}
    assert set(found.unresolvable) == {"one-broken"}


def test_t18_more_than_a_node_has_is_unresolvable_there_and_nowhere_else(world: World) -> None:
    world.node("small", "inf1.xlarge")
    world.node("large", TRN1)

    found = world.filter(pod_manifest("new", DEVICE, 8))

    assert found.passed == ["large"]
    assert found.unresolvable["small"] == "Instance type inf1.xlarge has 1 Neuron devices and 8 were requested"


def test_t21_devices_and_cores_in_two_containers_need_disjoint_silicon(world: World) -> None:
    world.node("pair", "inf2.24xlarge")
    world.held("holder", "pair", DEVICE, "1,2,3,4,5")
    both = [container("a", DEVICE, 1), container("b", CORE, 1)]

    assert world.filter(pod_manifest("new", containers=both)).passed == []
    assert world.filter(pod_manifest("one", containers=both[:1])).passed == ["pair"]


def test_t23_a_bound_pod_that_asks_for_0_holds_nothing_and_closes_nothing(world: World) -> None:
    world.node("node", TRN1)
    none = {"name": "main", "resources": {"limits": {DEVICE: "0"}, "requests": {DEVICE: "0"}}}
    world.pod("none", containers=[none], node="node")

    assert world.fits(DEVICE, 16, "node")
    assert not world.state.nodes["node"].ledger.allocations


def test_t25_an_unhealthy_device_is_in_no_set_while_its_holder_keeps_it(world: World) -> None:
    world.node("node", "inf1.6xlarge")
    world.held("holder", "node", DEVICE, "1")
    world.node("node", "inf1.6xlarge", unhealthy={1: "ECC", 2: "reset"})

    record = world.state.nodes["node"]

    assert world.fits(DEVICE, 1, "node")
    assert not world.fits(DEVICE, 2, "node")
    assert record.used_mask == 0xF0
    assert record.free_mask == 0xF00F


def test_t25_a_node_that_shrinks_below_what_is_used_is_closed_and_nothing_goes_negative(world: World) -> None:
    world.node("node", TRN1)
    world.held("holder", "node", DEVICE, "12,13,14,15")

    world.node("node", "inf1.6xlarge")

    assert world.why_not(DEVICE, 1, "node") == "A pod on the node has a Neuron assignment that cannot be read"
    assert world.state.nodes["node"].free_mask == 0xFFFF


def test_t42_a_pod_that_asks_for_nothing_passes_everywhere(world: World) -> None:
    world.show_node({"metadata": {"name": "plain", "uid": "p"}})
    world.node("torus", TRN1)

    assert world.filter(pod_manifest("new", CORE, 0), ["plain", "torus", "ghost"]).passed == ["plain", "torus", "ghost"]


def test_t48_unknown_nodes_and_nodes_without_neuron_carry_one_constant_text_each(world: World) -> None:
    for index in range(20):
        world.show_node({"metadata": {"name": f"plain-{index}", "uid": str(index)}})
    names = [f"plain-{index}" for index in range(20)] + [f"ghost-{index}" for index in range(20)]

    found = world.filter(pod_manifest("new", DEVICE, 1), names)

    assert {rejection.text: len(names) for rejection, names in found.rejected.items()} == {
        "The node has no Neuron devices": 20,
        "The node is not known to the Neuron extender yet": 20,
    }
    assert not found.failed


def test_a_pod_that_is_bound_fits_its_own_node_only(world: World) -> None:
    world.node("here", TRN1)
    world.node("there", TRN1)
    bound = world.held("pod", "here", DEVICE, "0")

    found = world.filter(bound, ["there", "here"])

    assert found.passed == ["here"]
    assert set(found.failed) == {"there"}
    assert [(rejection.code, len(names)) for rejection, names in found.rejected.items()] == [("bound-elsewhere", 1)]
    assert not world.filter(bound, ["here"]).rejected


def test_e02_the_node_where_the_pod_costs_later_pods_least_scores_highest(world: World) -> None:
    world.node("empty", TRN1)
    world.node("broken-row", TRN1)
    world.held("single", "broken-row", DEVICE, "0")
    world.node("nearly-full", TRN1)
    world.held("most", "nearly-full", DEVICE, "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14")

    scores = world.scores(DEVICE, 1, ["empty", "broken-row", "nearly-full"])

    assert scores[0] < scores[2] < scores[1] == 10
    assert all(0 <= score <= 10 for score in scores)


def test_e02_a_node_that_was_filled_between_filter_and_prioritize_does_not_win(world: World) -> None:
    for name in ("filled", "torn"):
        world.node(name, TRN1)
    world.held("holder", "torn", DEVICE, "0")
    candidates = world.filter(pod_manifest("new", DEVICE, 4)).passed

    world.held("faster", "filled", DEVICE, "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15")

    assert dict(zip(candidates, world.scores(DEVICE, 4, candidates), strict=True)) == {"filled": 0, "torn": 10}


def test_e02_of_equal_nodes_one_leads_unless_the_pod_prefers_some_itself(world: World) -> None:
    world.node("a", TRN1)
    world.node("b", TRN1)

    assert world.scores(DEVICE, 4, ["a", "b"]) == [10, 9]
    assert world.scores(DEVICE, 4, ["a", "b"], alone=False) == [10, 10]
    assert world.scores(CORE, 0, ["a", "b"]) == [10, 10]


def test_e03_single_devices_leave_rows_and_halves_whole_while_leftovers_suffice(world: World) -> None:
    world.node("a", TRN1)
    world.node("b", TRN1)
    for number in range(8):
        scores = world.scores(DEVICE, 1, ["a", "b"])
        node = max(("a", "b"), key=dict(zip(("a", "b"), scores, strict=True)).__getitem__)
        free = world.state.nodes[node]
        choice = _best(world, node)
        assert free.free_mask & choice == choice
        device = choice.bit_length() // 2 - 1
        world.held(f"single-{number}", node, DEVICE, str(device))

    assert {world.fits(DEVICE, 16, node) for node in ("a", "b")} == {True, False}
    used = next(node for node in ("a", "b") if not world.fits(DEVICE, 16, node))
    assert world.fits(DEVICE, 8, used)


def _best(world: World, node: str) -> int:
    capacity = world.state.nodes[node].capacity
    assert isinstance(capacity, Capacity)
    placed = capacity.place(request_of(record_of(pod_manifest("probe", DEVICE, 1))))
    assert not isinstance(placed, Rejection)
    return placement_mask(placed)


def test_e09_a_malformed_or_newer_inventory_closes_the_node_whatever_its_type_says(world: World) -> None:
    for text in ("{", '{"version":2}', "[]", '{"version":1,"devices":99}'):
        manifest = node_manifest("node", TRN1)
        manifest["metadata"]["annotations"] = {"neuron-plugin.io/inventory": text}
        world.show_node(manifest)

        assert world.why_not(DEVICE, 1, "node") == "The node's Neuron inventory cannot be read"


def quickest(work: Callable[[], object], rounds: int = 15) -> float:
    """CPU seconds of the best of some rounds: other work on the machine does not count."""
    found = []
    for _ in range(rounds):
        started = time.process_time()
        work()
        found.append(time.process_time() - started)
    return min(found)


def filled(nodes: int, pods_per_node: int) -> tuple[World, list[str]]:
    world, names = World(), [f"node-{number}" for number in range(nodes)]
    for number, name in enumerate(names):
        world.node(name, "inf2.48xlarge", unhealthy={number % 12: "ECC"})
        for pod in range(pods_per_node):
            world.held(f"pod-{number}-{pod}", name, CORE, str((number * 7 + pod * 5) % 24))
    return world, names


def test_t47_filter_is_flat_in_pods_and_at_most_linear_in_names() -> None:
    """The figures themselves are the benchmark's; here their growth, with room for a noisy machine."""
    probe = pod_manifest("new", DEVICE, 2)
    few, names = filled(100, 1)
    many_pods, _ = filled(100, 4)
    many_nodes, more_names = filled(800, 1)

    base = quickest(lambda: few.filter(probe, names))
    with_pods = quickest(lambda: many_pods.filter(probe, names))
    with_nodes = quickest(lambda: many_nodes.filter(probe, more_names))

    assert with_pods < base * 3
    assert with_nodes < base * 8 * 3


GEOMETRY = shipped_geometry(TRN1)
INF1 = shipped_geometry("inf1.6xlarge")


def asking(resource: Resource, amount: int) -> PodRequest:
    return request_of(record_of(pod_manifest("pod", resource, amount)))


def capacity(free: int) -> Capacity:
    return capacity_of(GEOMETRY, GEOMETRY.all_mask, CoreMask(free))


def test_nodes_in_the_same_state_share_one_capacity() -> None:
    assert capacity(0b1111) is capacity(0b1111)
    assert capacity(0b1111) is not capacity(0b111)


def test_a_capacity_that_no_node_has_is_forgotten() -> None:
    before = len(state_module._capacities)
    kept = capacity(0b1010101)
    assert len(state_module._capacities) == before + 1
    del kept
    assert len(state_module._capacities) == before


@given(st.integers(0, 2**32 - 1), st.sampled_from([(DEVICE, 1), (DEVICE, 4), (DEVICE, 8), (CORE, 1), (CORE, 8)]))
def test_a_verdict_is_the_cost_of_the_set_which_a_bind_would_choose_or_why_there_is_none(
    free: int, asked: tuple[Resource, int]
) -> None:
    node, request = capacity(free), asking(*asked)
    placed = node.place(request)

    expected = placed if isinstance(placed, Rejection) else cost(GEOMETRY, free, placement_mask(placed))
    assert verdict(node, request) == expected


def test_equal_rejections_are_one_object() -> None:
    first, second = verdict(capacity(0b1), asking(DEVICE, 1)), verdict(capacity(0b1000), asking(DEVICE, 1))

    assert isinstance(first, Rejection)
    assert first is second


def test_a_cost_is_that_of_the_best_placement_of_all_containers() -> None:
    request = request_of(
        record_of(pod_manifest("pod", containers=[container("a", DEVICE, 1), container("b", CORE, 2)]))
    )
    free = capacity(GEOMETRY.all_mask)
    placed = free.place(request)
    assert not isinstance(placed, Rejection)

    assert verdict(free, request) == cost(GEOMETRY, free.free_mask, placement_mask(placed))
    assert verdict(STALE_PLUGIN, request) is STALE_PLUGIN
    assert isinstance(verdict(capacity(0), request), Rejection)


def test_e02_scores_are_ranks_so_that_the_cheapest_leads_by_a_whole_point() -> None:
    assert scores([5, 7, 5, 1000]) == [10, 9, 10, 8]
    assert scores([]) == []
    assert scores([3, 3]) == [10, 10]
    assert scores([None, 3]) == [0, 10]
    assert scores([None]) == [0]


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=60))
def test_e02_scores_keep_the_order_and_only_the_cheapest_gets_ten(costs: list[int]) -> None:
    found = scores([*costs])

    assert all(0 <= score <= 10 for score in found)
    assert {value for value, score in zip(costs, found, strict=True) if score == 10} == {min(costs)}
    by_cost = sorted(zip(costs, found, strict=True))
    assert all(one[1] >= other[1] for one, other in pairwise(by_cost))


def test_the_line_of_inf1_is_judged_in_cores_across_devices() -> None:
    line = capacity_of(INF1, INF1.all_mask, CoreMask(0xFF0F))

    assert not isinstance(verdict(line, asking(CORE, 8)), Rejection)
    assert isinstance(verdict(line, asking(CORE, 9)), Rejection)


def verdict_on(world: World, request: PodRequest, name: str) -> Rejection | None:
    found = filter_nodes(world.state, PodUid("new"), request, [name])
    return None if found.passed else next(iter(found.rejected))


def best_of(world: World, request: PodRequest, called: list[str]) -> str:
    """By looking at every node: the best of each geometry, then the one that loses the fewest devices."""
    best: dict[str, tuple[int, int, str]] = {}
    for name in called:
        found = world.capacity(name)
        price = verdict(found, request)
        if isinstance(found, Rejection) or isinstance(price, Rejection):
            continue
        free, kind = found.free_mask.bit_count(), found.geometry.instance_type
        use = free if kind.startswith("inf") else -len(world.state.nodes[name].ledger.by_pod)
        best[kind] = min(best.get(kind, (price, use, name)), (price, use, name))

    def lost(key: tuple[int, int, str]) -> float:
        found = world.capacity(key[-1])
        placed = Rejection("", "") if isinstance(found, Rejection) else found.place(request)
        assert not isinstance(found, Rejection)
        assert not isinstance(placed, Rejection)
        return devices_lost(found.geometry, found.free_mask, placement_mask(placed))

    return min(best.values(), key=lambda key: (lost(key), key), default=(0, 0, ""))[-1]


def test_answers_follow_every_change_of_a_node(world: World) -> None:
    chance = random.Random(3)  # noqa: S311 - a reproducible history
    nodes = [f"node-{number}" for number in range(4)]
    held: dict[str, dict[str, object]] = {}
    for step in range(300):
        name, node = f"pod-{chance.randrange(20)}", chance.choice(nodes)
        match chance.randrange(4):
            case 0:
                world.node(node, chance.choice((TRN1, "inf2.48xlarge")))
            case 1 if node in world.state.nodes:
                world.state.remove_node(node, world.state.nodes[node].node.uid)
            case 2 if name in held:
                world.gone(held.pop(name))
            case _ if name not in held:
                held[name] = world.held(name, node, DEVICE, str(chance.randrange(12)))
        request = asking(DEVICE, 1 + step % 4)
        for each in [*nodes, "ghost"]:
            now = verdict(world.capacity(each), request)
            assert verdict_on(world, request, each) == (now if isinstance(now, Rejection) else None)
            assert (world.state.choices.answers(request).values([each]) == [None]) is isinstance(now, Rejection)
        called = chance.sample([*nodes, "ghost"], 3)
        assert world.state.choices.answers(request).best(called) == best_of(world, request, called)


def test_nodes_in_one_state_are_judged_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[object] = []

    def count(capacity: object, **_: object) -> int:
        judged.append(capacity)
        return 0

    monkeypatch.setattr(module, "verdict", count)
    for number in range(50):
        world.node(f"node-{number}", TRN1)

    world.filter(pod_manifest("new", DEVICE, 4))

    assert len(judged) == 1


@given(st.data())
def test_t06_names_are_split_by_the_verdict_on_their_node_whatever_was_asked_before(data: st.DataObject) -> None:
    world = World()
    known = [f"node-{number}" for number in range(6)]
    for name in known:
        world.node(name, data.draw(st.sampled_from((TRN1, "inf1.xlarge", "inf2.48xlarge"))))
    for number in range(data.draw(st.integers(0, 8))):
        world.held(f"pod-{number}", data.draw(st.sampled_from(known)), DEVICE, str(number))
    request = asking(DEVICE, data.draw(st.sampled_from((1, 2, 4, 7))))
    for _ in range(3):
        names = data.draw(st.lists(st.sampled_from([*known, "ghost", "spirit"]), unique=True))
        verdicts = {name: verdict(world.capacity(name), request) for name in names}
        refusals = {name: found for name, found in verdicts.items() if isinstance(found, Rejection)}

        found = filter_nodes(world.state, PodUid("new"), request, names)
        passed, rejected = found.passed, found.rejected

        assert passed == [name for name in names if name not in refusals]
        assert {name: rejection for rejection, refused in rejected.items() for name in refused} == refusals
        assert all(rejected.values())
        world.held(f"late-{data.draw(st.integers(0, 99))}", data.draw(st.sampled_from(known)), DEVICE, "0")


@pytest.mark.parametrize("amount", [4, 7], ids=["fits", "refused"])
def test_t06_a_name_that_comes_twice_has_one_verdict(world: World, amount: int) -> None:
    world.node("node", TRN1)
    for _ in range(2):
        passed, rejected = world.state.choices.answers(asking(DEVICE, amount)).split(["node", "node"])
        assert [set(passed), *rejected.values()].count({"node"}) == 1


def test_pods_whose_containers_have_other_names_share_their_answers(world: World) -> None:
    one, other = (
        request_of(record_of(pod_manifest("pod", containers=[container(name, DEVICE, 4)]))) for name in ("a", "b")
    )

    assert world.state.choices.answers(one) is world.state.choices.answers(other)


def test_names_of_no_node_are_not_remembered(world: World) -> None:
    answers, request = world.state.choices.answers(asking(DEVICE, 4)), asking(DEVICE, 4)

    found = filter_nodes(world.state, PodUid("new"), request, [f"ghost-{number}" for number in range(100)])
    passed, rejected = found.passed, found.rejected

    assert passed == []
    assert [(rejection.text, len(names)) for rejection, names in rejected.items()] == [(UNKNOWN_NODE.text, 100)]
    assert answers._rejected == {}
    assert answers.values(["ghost"]) == [None]
    assert answers._ranks == {}


def test_nothing_is_left_of_a_verdict_that_no_node_has_any_more(world: World) -> None:
    world.node("node", TRN1)
    pod = world.held("holder", "node", DEVICE, "0,4,8,12")
    answers = world.state.choices.answers(asking(DEVICE, 4))
    answers.split(["node"])
    assert answers._rejected

    world.gone(pod)

    assert world.state.choices.answers(asking(DEVICE, 4)) is answers
    assert answers._rejected == {}


def test_the_demand_that_was_asked_for_longest_ago_is_forgotten_when_there_are_too_many(world: World) -> None:
    memo = Choices(world.state.nodes)
    first, second = (memo.answers(asking(DEVICE, amount)) for amount in (1, 2))
    for amount in range(3, module.MOST_DEMANDS + 2):
        assert memo.answers(asking(DEVICE, 1)) is first
        memo.answers(asking(DEVICE, amount))

    assert memo.answers(asking(DEVICE, 1)) is first
    assert memo.answers(asking(DEVICE, 2)) is not second
