from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.allocation import Rejection, Resource
from neuron_plugin.allocation.rejection import NODE_REFUSALS
from neuron_plugin.placement.extender.filter import scores
from neuron_plugin.placement.state import AssumedPod
from neuron_plugin.planning.choice import verdict
from neuron_plugin.simulation.api_server_kinds import AnyJson
from tests.support.bench import Bench
from tests.support.manifests import container, node_manifest, pod_manifest
from tests.support.world import CORE, DEVICE, World, record_of, request_of

TRN1, INF1, INF2, LINE, SMALL = "trn1.32xlarge", "inf1.6xlarge", "inf2.48xlarge", "inf2.24xlarge", "inf1.xlarge"
ALL = ",".join(map(str, range(16)))
VENDORS_WORDS = (
    "Instance type trn1.32xlarge does not support requests for device: 7. "
    "Please request a different number of devices. It supports 1 or 4 or 8 or 16"
)


@pytest.fixture
def mixed(world: World) -> World:
    """A node of each kind, for a pod of four devices: two that it fits, three it may fit later, and others."""
    for name in ("free", "torn", "full", "fragmented"):
        world.node(name, TRN1)
    world.node("small", SMALL)
    world.node("broken", TRN1, unhealthy=dict.fromkeys((0, 5, 10, 15), "reset"))
    world.show_node({"metadata": {"name": "plain", "uid": "p"}})
    world.held("torn-one", "torn", DEVICE, "0")
    world.held("holder", "full", DEVICE, ALL)
    for device in (0, 4, 8, 12):
        world.held(f"single-{device}", "fragmented", DEVICE, str(device))
    return world


def test_t06_every_candidate_is_answered_exactly_once_and_no_other_name_appears(mixed: World) -> None:
    names = [*mixed.state.nodes, "ghost"][1:]

    found = mixed.filter(pod_manifest("new", DEVICE, 4), names)

    assert sorted([*found.passed, *found.texts(may_pass=True), *found.texts(may_pass=False)]) == sorted(names)


def test_t08_what_no_pods_end_can_mend_is_unresolvable_and_the_rest_only_failed(mixed: World) -> None:
    found = mixed.filter(pod_manifest("new", DEVICE, 4))

    assert found.passed == ["free", "torn"]
    assert found.texts(may_pass=True) == {
        "full": "Fewer than 4 free Neuron devices",
        "fragmented": "No free linked set of 4 Neuron devices",
    }
    assert found.texts(may_pass=False) == {
        "small": "Instance type inf1.xlarge has 1 Neuron devices and 4 were requested",
        "broken": "No set of 4 healthy linked Neuron devices on the node",
        "plain": "The node has no Neuron devices",
    }


def test_t17_everything_is_valid_only_on_a_wholly_free_and_healthy_node(mixed: World) -> None:
    found = mixed.filter(pod_manifest("new", DEVICE, 16))

    assert found.passed == ["free"]
    assert set(found.texts(may_pass=True)) == {"torn", "full", "fragmented"}
    assert set(found.texts(may_pass=False)) == {"small", "broken", "plain"}


def test_t07_t48_unknown_nodes_and_nodes_without_neuron_carry_one_constant_text_each(world: World) -> None:
    """No reason names a node, so that the scheduler can count nodes for each text."""
    for index in range(20):
        world.show_node({"metadata": {"name": f"plain-{index}", "uid": str(index)}})
        world.node(f"small-{index}", SMALL)

    found = world.filter(pod_manifest("new", DEVICE, 4), [*world.state.nodes, *(f"ghost-{n}" for n in range(20))])

    assert {rejection.text: len(names) for rejection, names in found.rejected.items()} == {
        "The node has no Neuron devices": 20,
        "Instance type inf1.xlarge has 1 Neuron devices and 4 were requested": 20,
        "The node is not known to the Neuron extender yet": 20,
    }
    assert not found.texts(may_pass=True)


def test_t07_reasons_read_as_one_sentence_once_the_scheduler_has_joined_them_by_commas(mixed: World) -> None:
    """kube-scheduler sets the full stop, too; only the vendor's sentence brings its own."""
    found = mixed.filter(pod_manifest("new", DEVICE, 4))

    assert len({refusal.text for refusal in NODE_REFUSALS}) == len(NODE_REFUSALS)
    for text in (rejection.text for rejection in (*found.rejected, *NODE_REFUSALS)):
        assert not text.endswith(".")
        assert "," not in text


@pytest.mark.parametrize("refusal", NODE_REFUSALS, ids=lambda refusal: refusal.code)
def test_what_closes_a_node_reads_well_as_what_is_said_of_nodes(refusal: Rejection) -> None:
    verb, _, rest = refusal.predicate.partition(" ")
    assert verb in {"has", "is", "does", "lacks", "takes"} or "node" in refusal.predicate
    assert verb != "has" or not re.search(r"^an? (?!.*\b(that|which|whose)\b).* (is|are|does|do|has)\b", rest)


@pytest.mark.parametrize(
    ("instance_type", "held", "resource", "amount", "why_not"),
    [
        pytest.param(INF1, range(3), CORE, 4, "", id="t12: a device's cores"),
        pytest.param(INF1, range(3), CORE, 5, "Fewer than 5 free Neuron cores", id="t13: four cores a device"),
        pytest.param(LINE, range(4), CORE, 3, "", id="t12: consecutive cores"),
        pytest.param(LINE, range(4), CORE, 5, "Fewer than 5 free Neuron cores", id="t13: two cores a device"),
        pytest.param(INF2, range(1, 11), DEVICE, 1, "", id="t15: one end of a ring"),
        pytest.param(INF2, range(1, 11), DEVICE, 2, "No free linked set of 2 Neuron devices", id="t15: both ends"),
        pytest.param(INF2, (), DEVICE, 12, "", id="t17: a whole ring"),
        pytest.param(INF2, (7,), DEVICE, 12, "Fewer than 12 free Neuron devices", id="t17: all but one"),
        pytest.param(TRN1, (1, 5, 9), DEVICE, 4, "", id="t16: a row"),
        pytest.param(TRN1, (1, 5, 9, 13), DEVICE, 4, "No free linked set of 4 Neuron devices", id="t16: no row"),
        pytest.param(TRN1, (8,), DEVICE, 8, "", id="t16: a half"),
        pytest.param(TRN1, (0, 15), DEVICE, 8, "No free linked set of 8 Neuron devices", id="t16: no half"),
        pytest.param(TRN1, (), DEVICE, 7, VENDORS_WORDS, id="t16: seven"),
        pytest.param(SMALL, (), CORE, 5, "Instance type inf1.xlarge has 4 Neuron cores and 5 were requested", id="t18"),
    ],
)
def test_t12_to_t18_each_node_is_judged_by_its_own_devices_cores_and_links(
    world: World, instance_type: str, held: Iterable[int], resource: Resource, amount: int, why_not: str
) -> None:
    world.node("node", instance_type)
    for device in held:
        world.held(f"pod-{device}", "node", DEVICE, str(device))

    found = world.filter(pod_manifest("new", resource, amount))

    assert (found.passed, [*map(str, found.rejected)]) == (["node"], []) if not why_not else ([], [why_not])


def test_t21_devices_and_cores_in_two_containers_need_disjoint_silicon(world: World) -> None:
    world.node("pair", LINE)
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
    world.node("node", INF1)
    world.held("holder", "node", DEVICE, "1")
    world.node("node", INF1, unhealthy={1: "ECC", 2: "reset"})

    assert [world.fits(DEVICE, amount, "node") for amount in (1, 2)] == [True, False]
    record = world.state.nodes["node"]
    assert (record.used_mask, record.free_mask) == (0xF0, 0xF00F)


def test_t25_a_node_that_shrinks_below_what_is_used_is_closed_and_nothing_goes_negative(world: World) -> None:
    world.node("node", TRN1)
    world.held("holder", "node", DEVICE, "12,13,14,15")
    world.node("node", INF1)

    assert world.why_not(DEVICE, 1, "node") == "A pod on the node has a Neuron assignment that cannot be read"
    assert world.state.nodes["node"].free_mask == 0xFFFF


def test_t42_a_pod_that_asks_for_nothing_passes_everywhere(mixed: World) -> None:
    assert mixed.filter(pod_manifest("new"), ["plain", "full", "ghost"]).passed == ["plain", "full", "ghost"]


def test_a_pod_that_is_bound_fits_its_own_node_only(world: World) -> None:
    world.node("here", TRN1)
    world.node("there", TRN1)
    bound = world.held("pod", "here", DEVICE, "0")

    found = world.filter(bound, ["there", "here"])

    assert found.passed == ["here"]
    assert set(found.texts(may_pass=True)) == {"there"}
    assert [(rejection.code, len(names)) for rejection, names in found.rejected.items()] == [("bound-elsewhere", 1)]
    assert not world.filter(bound, ["here"]).rejected


def test_an_annotation_that_a_running_pod_gets_afterwards_frees_and_closes_nothing(world: World) -> None:
    world.node("node", TRN1)
    keys = {"NEURON_DEVS": "0,1,2,3", "neuron-plugin.io/allow-devices": "?"}
    world.pod("holder", DEVICE, 4, node="node", annotations=keys)

    assert [world.fits(DEVICE, amount, "node") for amount in (4, 16)] == [True, False]


@pytest.mark.parametrize("text", ["{", '{"version":2}', "[]", '{"version":1,"devices":99}'])
def test_e09_a_malformed_or_newer_inventory_closes_the_node_whatever_its_type_says(world: World, text: str) -> None:
    manifest = node_manifest("node", TRN1)
    manifest["metadata"]["annotations"] = {"neuron-plugin.io/inventory": text}
    world.show_node(manifest)

    assert world.why_not(DEVICE, 1, "node") == "The node's Neuron inventory cannot be read"


@given(st.data())
def test_t06_names_are_split_by_the_verdict_on_their_node_whatever_was_asked_before(data: st.DataObject) -> None:
    world = World()
    known = [f"node-{number}" for number in range(6)]
    for name in known:
        world.node(name, data.draw(st.sampled_from((TRN1, SMALL, INF2))))
    for number in range(data.draw(st.integers(0, 8))):
        world.held(f"pod-{number}", data.draw(st.sampled_from(known)), DEVICE, str(number))
    pod = pod_manifest("new", DEVICE, data.draw(st.sampled_from((1, 2, 4, 7))))
    for _ in range(3):
        names = data.draw(st.lists(st.sampled_from([*known, "ghost", "spirit"]), unique=True, min_size=1))
        verdicts = {name: verdict(world.capacity(name), request_of(record_of(pod))) for name in names}
        refusals = {name: found for name, found in verdicts.items() if isinstance(found, Rejection)}

        found = world.filter(pod, names)

        assert found.passed == [name for name in names if name not in refusals]
        assert {name: reason for reason, refused in found.rejected.items() for name in refused} == refusals
        assert all(found.rejected.values())
        world.held(f"late-{data.draw(st.integers(0, 99))}", data.draw(st.sampled_from(known)), DEVICE, "0")


# Scores.


def test_e02_the_node_where_the_pod_costs_later_pods_least_scores_highest(world: World) -> None:
    for name in ("empty", "broken-row", "nearly-full"):
        world.node(name, TRN1)
    world.held("single", "broken-row", DEVICE, "0")
    world.held("most", "nearly-full", DEVICE, ",".join(map(str, range(15))))

    empty, broken_row, nearly_full = world.scores(DEVICE, 1, ["empty", "broken-row", "nearly-full"])

    assert 0 <= empty < nearly_full < broken_row == 10


def test_e02_a_node_that_was_filled_between_filter_and_prioritize_does_not_win(mixed: World) -> None:
    candidates = mixed.filter(pod_manifest("new", DEVICE, 4)).passed
    mixed.held("faster", "free", DEVICE, ALL)

    assert dict(zip(candidates, mixed.scores(DEVICE, 4, candidates), strict=True)) == {"free": 0, "torn": 10}


def test_e02_of_equal_nodes_one_leads_unless_the_pod_prefers_some_itself(world: World) -> None:
    for name in ("a", "b"):
        world.node(name, TRN1)

    assert world.scores(DEVICE, 4, ["a", "b"]) == [10, 9]
    assert world.scores(DEVICE, 4, ["a", "b"], alone=False) == [10, 10]
    assert world.scores(CORE, 0, ["a", "b"]) == [10, 10]


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


def test_e03_single_devices_leave_rows_and_halves_whole_while_leftovers_suffice(bench: Bench) -> None:
    names = ["node", "other"]
    for number in range(8):
        scored = dict(zip(names, bench.world.scores(DEVICE, 1, names), strict=True))
        pod = record_of(bench.waiting(f"single-{number}"))
        made = bench.leads.choose(pod, max(names, key=scored.__getitem__))
        assert isinstance(made, AssumedPod)
        bench.world.state.assume(made)

    whole, half = sorted(names, key=bench.used)
    assert (bench.used(half), bench.world.fits(DEVICE, 8, half)) == (8, True)
    assert bench.world.fits(DEVICE, 16, whole)


def quickest(work: Callable[[], object], rounds: int = 15) -> float:
    """CPU seconds of the best of some rounds: other work on the machine does not count."""
    found = []
    for _ in range(rounds):
        started = time.process_time()
        work()
        found.append(time.process_time() - started)
    return min(found)


def filled(nodes: int, pods_per_node: int) -> Callable[[], object]:
    """A filter call about so many nodes with so many pods each."""
    world, names = World(), [f"node-{number}" for number in range(nodes)]
    for number, name in enumerate(names):
        world.node(name, INF2, unhealthy={number % 12: "ECC"})
        for pod in range(pods_per_node):
            world.held(f"pod-{number}-{pod}", name, CORE, str((number * 7 + pod * 5) % 24))
    probe: AnyJson = pod_manifest("new", DEVICE, 2)
    return lambda: world.filter(probe, names)


def test_t47_filter_is_flat_in_pods_and_at_most_linear_in_names() -> None:
    """The figures themselves are the benchmark's; here their growth, with room for a noisy machine."""
    base = quickest(filled(100, 1))

    assert quickest(filled(100, 4)) < base * 3
    assert quickest(filled(800, 1)) < base * 8 * 3
