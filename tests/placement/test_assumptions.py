from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from neuron_plugin.allocation import Assignment, Dialect, NeuronPod, PlacementStrategy
from neuron_plugin.backoff import Clock
from neuron_plugin.placement.extender.filter import EXPECTED_SECONDS, ONE_NODE_SECONDS
from neuron_plugin.simulation.api_server_kinds import PODS
from tests.support.bench import BINDS, CUT, LOST, READS, TRN1, Bench
from tests.support.manifests import pod_manifest
from tests.support.world import CORE, DEVICE, World, pod_of, record_of

GANG = ("default", "gang")


@dataclass
class Led:
    """Assumptions on a world, with a clock of its own."""

    world: World
    now: float = 100.0
    assumptions: Assumptions = field(init=False)

    def __post_init__(self) -> None:
        clock = Clock(now=lambda: self.now)
        dialects = (Dialect.NEURON_PLUGIN,)
        self.assumptions = Assumptions(self.world.state, dialects, PlacementStrategy.PACK, clock, lambda: 7)

    def lead(self, manifest: dict[str, Any], *names: str, **options: bool) -> list[str] | None:
        return self.assumptions.lead(record_of(manifest), list(names or self.world.state.nodes), **options)

    def ended(self) -> dict[str, int]:
        return {ending.value: number for ending, number in self.assumptions.endings.items() if number}

    def used(self, node: str) -> int:
        return self.world.state.nodes[node].used_mask.bit_count() // 2


@pytest.fixture
def led(world: World) -> Led:
    for name in ("a", "b", "c"):
        world.node(name, TRN1)
    return Led(world)


def member(world: World, name: str, amount: int, group: str = "gang", **described: Any) -> dict[str, Any]:
    manifest = pod_manifest(name, DEVICE, amount, **described)
    manifest["spec"]["schedulingGroup"] = {"podGroupName": group}
    world.show(manifest)
    return manifest


def gang(world: World, count: int, amount: int, name: str = "gang") -> list[dict[str, Any]]:
    world.state.set_min_count(("default", name), count)
    return [member(world, f"{name}-{number}", amount, name) for number in range(count)]


# One pod.


def test_the_next_pod_finds_the_set_of_the_last_one_in_use(led: Led) -> None:
    nodes = [led.lead(led.world.pod(f"pod-{number}", DEVICE, 8)) for number in range(5)]

    assert nodes == [["a"], ["a"], ["b"], ["b"], ["c"]]
    assert [led.used(node) for node in "abc"] == [16, 16, 8]
    assert len(led.world.state.assumed) == 5


def test_a_pod_that_the_watch_has_not_shown_is_led_and_not_assumed(led: Led) -> None:
    assert led.lead(pod_manifest("new", DEVICE, 4)) == ["a"]
    assert not led.world.state.assumed


def test_a_pod_asked_for_again_is_led_to_the_next_node_then_to_two_to_four_and_to_all(led: Led) -> None:
    for name in ("d", "e", "f", "g", "h"):
        led.world.node(name, TRN1)
    pod = led.world.pod("pod", DEVICE, 4)
    answers = []
    for _ in range(len(WIDTHS) + 1):
        answers.append(led.lead(pod))
        assert bool(led.assumptions.refused_elsewhere(pod_of(pod).uid)) == (len(answers) > 2)
        assert len(led.world.state.assumed) == (len(answers) <= 2)

    assert answers == [["a"], ["b"], ["c", "d"], ["c", "d", "e", "f"], None]
    assert set(led.assumptions.refused_elsewhere(pod_of(pod).uid)) == {"a", "b"}
    assert led.ended() == {"asked-again": 2}


def test_a_pod_that_was_led_everywhere_is_led_there_again(led: Led) -> None:
    pod = led.world.pod("pod", DEVICE, 16)

    assert [led.lead(pod, "b") for _ in range(2)] == [["b"], ["b"]]
    assert [led.lead(pod, "b", "c") for _ in range(2)] == [["c"], ["b", "c"]]


def test_a_cycle_in_which_the_pod_fitted_nowhere_does_not_widen_the_next_answer(led: Led) -> None:
    holders = [led.world.held(f"holder-{node}", node, DEVICE, "0") for node in "abc"]
    pod = led.world.pod("pod", DEVICE, 16)
    assert [led.lead(pod) for _ in range(4)] == [[]] * 4

    for holder in holders:
        led.world.gone(holder)

    assert led.lead(pod) == ["a"]


def test_an_assumption_no_bind_comes_for_ends_by_itself_sooner_where_one_node_was_called(led: Led) -> None:
    pods = [led.world.pod(name, DEVICE, 4) for name in ("one", "two")]
    led.lead(pods[0], "b", one_node=True)
    led.lead(pods[1], "a", "c")
    led.now += ONE_NODE_SECONDS
    led.assumptions.expire()
    assert [led.used(node) for node in "ab"] == [4, 0]

    led.now += EXPECTED_SECONDS - ONE_NODE_SECONDS
    led.assumptions.expire()

    assert not led.world.state.assumed
    for pod in pods:
        led.world.gone(pod)
    led.assumptions.expire()
    assert led.ended() == {"expired": 2}


def test_the_end_of_a_pod_ends_what_was_assumed_of_it(led: Led) -> None:
    pod = led.world.pod("pod", DEVICE, 4)
    led.lead(pod)

    led.world.gone(pod)
    led.assumptions.expire()

    assert led.used("a") == 0
    assert led.ended() == {"pod-ended": 1}
    assert not led.assumptions._leads


def test_a_pod_bound_by_others_counts_by_what_the_watch_shows(led: Led) -> None:
    pod = led.world.pod("pod", DEVICE, 4)
    led.lead(pod)

    led.world.show({**pod, "spec": {**pod["spec"], "nodeName": "a"}})

    assert not led.world.state.assumed
    assert led.world.why_not(DEVICE, 1, "a") == "A pod on the node uses Neuron and its assignment is not known yet"
    led.assumptions.expire()
    assert led.ended() == {"pod-ended": 1}
    assert not led.assumptions._leads


@pytest.mark.parametrize(
    "spec",
    [
        {"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}},
        {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}},
        {"topologySpreadConstraints": [{"maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}]},
    ],
    ids=lambda spec: next(iter(spec)),
)
def test_a_pod_that_prefers_nodes_itself_gets_all_nodes_of_least_cost(led: Led, spec: dict[str, Any]) -> None:
    led.world.held("holder", "a", DEVICE, "0")
    pod = pod_manifest("pod", DEVICE, 8)
    pod["spec"] |= spec
    led.world.show(pod)

    assert led.lead(pod) == ["a"]
    led.world.held("other", "a", DEVICE, "8")
    assert led.lead(pod, "a", "b", "c") == ["b", "c"]
    assert not led.world.state.assumed
    assert led.lead(pod) is None
    pod["metadata"] |= {"uid": "another", "annotations": {"neuron-plugin.io/placement": "spread"}}
    assert led.lead(pod) is None


def test_rules_that_nodes_must_meet_are_no_preference() -> None:
    pod = pod_manifest("pod", DEVICE, 8)
    required: dict[str, Any] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}
    pod["spec"] |= {"affinity": required, "topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]}

    assert not record_of(pod).rules.prefers_nodes


def test_a_pod_that_spreads_goes_to_the_node_with_the_most_free_devices(led: Led) -> None:
    keys = {"neuron-plugin.io/placement": "spread"}
    nodes = [led.lead(led.world.pod(f"pod-{number}", CORE, 1, annotations=keys)) for number in range(4)]

    assert nodes == [["a"], ["b"], ["c"], ["a"]]


def test_among_equals_on_a_torus_the_node_with_the_most_pods_comes_first_and_on_a_line_the_fullest(led: Led) -> None:
    led.world.held("one", "a", DEVICE, "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14")
    for device in range(3):
        led.world.held(f"few-{device}", "b", DEVICE, str(device))
    assert led.lead(pod_manifest("single", DEVICE, 1)) == ["b"]

    led.world.node("line", "inf2.48xlarge")
    led.world.node("fuller-line", "inf2.48xlarge")
    led.world.held("pods", "line", CORE, "0")
    led.world.held("pods-2", "line", CORE, "2")
    led.world.held("long", "fuller-line", DEVICE, "1,2,3,4,5,6,7,8,9,10")
    led.world.held("core", "fuller-line", CORE, "0")
    assert led.lead(pod_manifest("core-pod", CORE, 1), "line", "fuller-line") == ["fuller-line"]


def test_a_pod_takes_no_node_of_other_hardware_while_it_would_lose_more_there(world: World) -> None:
    led = Led(world)
    world.node("inferentia", "inf2.48xlarge")
    world.node("trainium", TRN1)
    assert led.lead(pod_manifest("four", DEVICE, 4)) == ["inferentia"]

    world.held("most", "trainium", DEVICE, "0,1,2,3,4,5,6,7,8,9,10,11")
    assert led.lead(pod_manifest("four", DEVICE, 4)) == ["trainium"]


# What binds do with it.


def led_bench(world: World) -> tuple[Bench, Any]:
    bench = Bench(world)
    return bench, lambda pod, *names: bench.binder.assumptions.lead(record_of(pod), names or ("node", "other"))


async def test_a_bind_takes_the_set_that_filter_assumed(world: World) -> None:
    bench, lead = led_bench(world)
    first, second = bench.waiting("first", 4), bench.waiting("second", 4)
    assert (lead(first), lead(second)) == (["node"], ["node"])

    await bench.bind(second)
    await bench.bind(first)

    bound = [bench.stored(pod) for pod in (first, second)]
    assert [pod["metadata"]["annotations"]["NEURON_DEVS"] for pod in bound] == ["0,1,2,3", "4,5,6,7"]
    assert bench.used() == 8
    for pod in bound:
        world.show(pod)
    bench.binder.assumptions.expire()
    assert +bench.binder.assumptions.endings == {AssumptionEnding.BOUND: 2}


async def test_a_bind_to_another_node_than_filter_named_chooses_there(world: World) -> None:
    bench, lead = led_bench(world)
    pod = bench.waiting("pod", 4)
    lead(pod)

    outcome = await bench.bind(pod, "other")

    assert not outcome.error
    assert (bench.used("node"), bench.used("other")) == (0, 4)
    assert bench.binder.assumptions.endings == {AssumptionEnding.ELSEWHERE: 1}


async def test_the_set_of_a_bind_that_may_have_landed_is_kept_for_longer_than_an_assumption(world: World) -> None:
    bench, lead = led_bench(world)
    pod = bench.waiting("pod", 4)
    lead(pod)
    bench.fail(BINDS, LOST)
    bench.fail(READS, CUT, CUT)
    await bench.bind(pod)

    bench.now += EXPECTED_SECONDS
    await bench.binder.settle()

    assert bench.used() == 4


async def test_a_set_that_became_unhealthy_is_not_bound(world: World) -> None:
    bench, lead = led_bench(world)
    pod = bench.waiting("pod", 4)
    lead(pod)
    world.node("node", TRN1, unhealthy={2: "ECC"})

    outcome = await bench.bind(pod)

    assert outcome.annotations["NEURON_DEVS"] == "4,5,6,7"
    assert bench.used() == 4


async def test_what_is_left_of_a_set_that_became_unhealthy_is_chosen_from_again(world: World) -> None:
    bench, lead = led_bench(world)
    world.node("line", "inf2.24xlarge")
    world.held("rest", "line", DEVICE, "3,4,5")
    pod = bench.waiting("pod", 2)
    assert lead(pod, "line") == ["line"]
    world.node("line", "inf2.24xlarge", unhealthy={0: "ECC"})

    outcome = await bench.bind(pod, "line")

    assert outcome.annotations["NEURON_DEVS"] == "1,2"


async def test_an_assumption_ends_where_its_bind_finds_the_node_closed(world: World) -> None:
    bench, lead = led_bench(world)
    pod = bench.waiting("pod", 4)
    lead(pod)
    world.state.set_stale(frozenset({"node"}))

    outcome = await bench.bind(pod)

    assert outcome.error == "The node's Neuron plugin does not renew its lease"
    assert not world.state.assumed


async def test_an_assumption_is_never_looked_up_at_the_server(world: World) -> None:
    bench, lead = led_bench(world)
    lead(bench.waiting("pod", 4))
    bench.now += 5

    await bench.binder.settle()

    assert bench.calls == []
    assert bench.used() == 4
    assert bench.binder.assumed.unseen() == 0


# Gangs.


def test_a_gang_that_does_not_fit_is_refused_from_its_first_member_on_and_holds_nothing(led: Led) -> None:
    led.world.pod("waiting", DEVICE, 1, priority=-1)
    members = gang(led.world, 7, 8)

    assert [led.lead(pod) for pod in members] == [[]] * 7
    assert not led.world.state.assumed
    assert led.lead(led.world.pod("single", DEVICE, 16)) == ["a"]


def test_a_gang_that_could_preempt_is_led_as_far_as_it_fits_so_that_the_scheduler_looks_for_victims(led: Led) -> None:
    for node in "bc":
        led.world.held(f"low-{node}", node, DEVICE, "0,1,2,3", priority=-1)
    members = gang(led.world, 5, 8)[::-1]

    nodes = [led.lead(pod) or [] for pod in members]

    assert sorted(nodes[:4]) == [["a"], ["a"], ["b"], ["c"]]
    assert nodes[4] == []
    assert [led.assumptions.has_place(record_of(pod)) for pod in members] == [True] * 4 + [False]
    led.assumptions.begin_bind(record_of(members[0]), nodes[0][0])
    assert not led.world.state.assumed


def test_a_gang_that_fits_is_led_whole_and_unseen_by_others_until_its_first_bind(led: Led) -> None:
    members = gang(led.world, 6, 8)
    records = [record_of(pod) for pod in members]

    nodes = [led.lead(pod) or [] for pod in members]

    assert sorted(nodes) == [["a"], ["a"], ["b"], ["b"], ["c"], ["c"]]
    assert not led.world.state.assumed
    led.assumptions.begin_bind(records[2], "b")
    assert [led.used(node) for node in "abc"] == [16, 16, 16]
    assert all(each.expected for each in led.world.state.assumed.values())

    led.now += EXPECTED_SECONDS
    led.assumptions.expire()
    led.assumptions.begin_bind(records[3], "b")
    assert not led.world.state.assumed


def test_a_set_of_the_plan_that_another_pod_took_meanwhile_is_not_assumed(led: Led) -> None:
    members = gang(led.world, 2, 8)
    assert [led.lead(pod) for pod in members] == [["a"], ["a"]]
    led.world.held("other", "a", DEVICE, "8")

    led.assumptions.begin_bind(record_of(members[0]), "a")

    assert led.used("a") == 8 + 1
    assert len(led.world.state.assumed) == 1


def test_a_gang_that_could_be_placed_only_in_part_is_not_torn(led: Led) -> None:
    for node in "abc":
        led.world.held(f"holder-{node}", node, DEVICE, "0")
        led.world.held(f"other-{node}", node, DEVICE, "8")

    assert [led.lead(pod) for pod in gang(led.world, 4, 8)] == [[]] * 4


def test_a_member_asked_for_again_begins_a_new_plan_elsewhere(led: Led) -> None:
    members = gang(led.world, 2, 8)
    first = [led.lead(pod) for pod in members]
    second = [led.lead(pod) for pod in members]
    third = [led.lead(pod) for pod in members]

    assert (first, second, third) == ([["a"]] * 2, [["b"]] * 2, [["c"]] * 2)
    assert not led.world.state.assumed


def test_a_member_asked_for_again_before_the_others_came_avoids_no_node(led: Led) -> None:
    members = gang(led.world, 2, 8)

    assert [led.lead(members[number]) for number in (0, 0, 1)] == [["a"]] * 3


def test_a_member_asked_for_again_while_the_others_are_bound_is_placed_beside_them(world: World) -> None:
    led = Led(world)
    for name in ("a", "b"):
        world.node(name, TRN1)
    members = gang(world, 4, 8)
    for pod in members:
        led.lead(pod)
    led.assumptions.begin_bind(record_of(members[0]), "a")

    assert led.lead(members[3]) in (["a"], ["b"])
    assert len(world.state.assumed) == 3


def test_a_member_that_terminates_takes_no_place(world: World) -> None:
    led = Led(world)
    world.node("a", TRN1)
    members = gang(world, 3, 8)
    world.state.set_min_count(GANG, 2)
    members[0]["metadata"]["deletionTimestamp"] = "2026-11-22T00:00:00Z"
    world.show(members[0])

    assert [led.lead(pod) for pod in members[1:]] == [["a"], ["a"]]


def test_a_member_whose_planned_node_was_not_called_gets_another_beside_the_others(led: Led) -> None:
    members = gang(led.world, 2, 16)

    assert led.lead(members[0], "b", "c") == ["c"]
    assert led.lead(members[1], "b", "c") == ["b"]


def test_a_member_whose_planned_set_was_taken_meanwhile_gets_another(led: Led) -> None:
    members = gang(led.world, 2, 8)
    assert led.lead(members[0]) == ["a"]
    for device in ("0", "8"):
        led.world.held(f"other-{device}", "a", DEVICE, device)

    assert led.lead(members[1]) == ["b"]


def test_a_member_takes_the_place_of_none_that_asks_for_more(world: World) -> None:
    led = Led(world)
    world.node("a", TRN1)
    world.held("low", "a", DEVICE, "0,1,2,3,4,5,6,7", priority=-1)
    world.state.set_min_count(GANG, 2)
    large, small = member(world, "large", 8), member(world, "small", 4)

    assert (led.lead(small), led.lead(large)) == ([], ["a"])


def test_the_largest_member_is_placed_first_whatever_the_order_of_calls(world: World) -> None:
    led = Led(world)
    world.node("a", TRN1)
    world.state.set_min_count(GANG, 3)
    members = [member(world, "s1", 4), member(world, "s2", 4), member(world, "t-large", 8)]

    assert [led.lead(pod) for pod in members] == [["a"]] * 3
    led.assumptions.begin_bind(record_of(members[0]), "a")
    assert led.used("a") == 16


def test_bound_members_count_towards_the_minimum(led: Led) -> None:
    members = gang(led.world, 6, 8)
    for number, (node, ids) in enumerate((("a", "0,1,2,3,4,5,6,7"), ("b", "0,1,2,3,4,5,6,7"))):
        members[number]["spec"]["nodeName"] = node
        members[number]["metadata"]["annotations"]["NEURON_DEVS"] = ids
        led.world.show(members[number])

    assert [led.lead(pod) for pod in members[2:]] == [["a"], ["b"], ["c"], ["c"]]


def test_a_refused_gang_costs_no_new_plan_until_something_changes(led: Led) -> None:
    members = gang(led.world, 7, 8)
    record = record_of(members[0])
    plan = led.assumptions.plan_of(record)

    assert led.lead(members[3]) == []
    assert led.assumptions.plan_of(record) is plan
    led.world.node("d", TRN1)
    assert led.assumptions.plan_of(record) is not plan
    assert led.lead(members[0]) != []


def test_a_member_of_a_group_whose_size_is_not_known_is_a_single_pod(led: Led) -> None:
    pod = member(led.world, "pod", 4, "labels-only")

    assert led.lead(pod) == ["a"]
    assert led.world.state.assumed


def test_nothing_is_kept_of_a_gang_that_is_gone(led: Led) -> None:
    members = gang(led.world, 2, 8)
    for pod in members:
        led.lead(pod)
    for pod in members:
        led.world.gone(pod)

    led.assumptions.expire()

    assert not led.assumptions._plans
    assert not led.world.state.members


# Properties.


@pytest.mark.parametrize("bad", [1, 3, 7])
def test_a_pod_whose_best_nodes_always_fail_later_is_placed_elsewhere_in_bounded_cycles(world: World, bad: int) -> None:
    """As kube-scheduler does with them: the highest score wins, and any of equal ones."""
    led, chance = Led(world), random.Random(bad)  # noqa: S311 - a reproducible history
    names = [f"node-{number}" for number in range(8)]
    for name in names:
        world.node(name, TRN1)
    pod = world.pod("pod", DEVICE, 4)
    failing = set(names[:bad])
    cycle, node = 0, ""
    while node in {"", *failing} and cycle < 60:
        cycle += 1
        named = led.lead(pod) or names
        refused = led.assumptions.refused_elsewhere(pod_of(pod).uid)
        node = chance.choice([name for name in named if name not in refused] or named)
    assert node not in failing
    assert cycle == 2 or bad > 1


@pytest.mark.parametrize("seed", range(6))
async def test_no_core_has_two_live_or_assumed_holders_and_every_assumption_ends(seed: int) -> None:
    """Against an oracle that adds up who was given what: pods and gangs come, are led, bound, given up and deleted."""
    chance = random.Random(seed)  # noqa: S311 - a reproducible history
    world = World()
    bench = Bench(world)
    for number in range(3):
        world.node(f"torus-{number}", TRN1)
    world.node("line", "inf2.24xlarge")
    assumptions = bench.binder.assumptions
    waiting: dict[str, dict[str, Any]] = {}
    bound: dict[str, dict[str, Any]] = {}
    for step in range(600):
        bench.now += chance.choice((0.0, 0.1, 3.0))
        match chance.randrange(8):
            case 0 | 1:
                pod = bench.waiting(f"pod-{step}", chance.choice((1, 1, 4, 8, 16)))
                waiting[pod["metadata"]["name"]] = pod
            case 2:
                world.state.set_min_count(("default", f"gang-{step}"), size := chance.randrange(2, 5))
                for number in range(size):
                    pod = member(world, f"gang-{step}-{number}", chance.choice((1, 4, 8)), f"gang-{step}")
                    waiting[pod["metadata"]["name"]] = bench.server.create_pod(pod)
            case 3 if waiting:
                pod = waiting.pop(chance.choice(list(waiting)))
                gone(bench, pod)
            case 4 if bound:
                pod = bound.pop(chance.choice(list(bound)))
                gone(bench, pod)
            case 5:
                await bench.binder.settle()
            case _ if waiting:
                pod = waiting[chance.choice(list(waiting))]
                group = pod["spec"].get("schedulingGroup")
                cycle = [each for each in waiting.values() if each["spec"].get("schedulingGroup") == group]
                chosen = []
                for each in cycle if group else [pod]:
                    led = assumptions.lead(record_of(each), list(world.state.nodes))
                    if led and chance.random() < 0.8:
                        chosen.append((each, chance.choice(led)))
                for each, node in chosen:
                    if not (await bench.bind(each, node)).error:
                        bound[each["metadata"]["name"]] = waiting.pop(each["metadata"]["name"])
                        if chance.random() < 0.7:
                            world.show(bench.stored(each))
        check(world)
    bench.now += EXPECTED_SECONDS
    await bench.binder.settle()
    assert not any(assumed.expected for assumed in world.state.assumed.values())
    assert sum(assumptions.endings.values()) > 50
    for pod in bench.server.objects(PODS):
        gone(bench, pod)
    await bench.binder.settle()
    assert not world.state.assumed
    assert not assumptions._leads
    assert not assumptions._plans
    assert all(info.used_mask == 0 for info in world.state.nodes.values())


def gone(bench: Bench, pod: dict[str, Any]) -> None:
    bench.server.delete_pod("default", pod["metadata"]["name"], grace_seconds=0)
    bench.world.gone(pod)


def check(world: World) -> None:
    """Every live or assumed pod counts once on its node, and no two share a core."""
    held: dict[tuple[str, int], str] = {}
    pods: dict[str, NeuronPod] = {uid: pod for uid, pod in world.state.pods.items() if pod.node}
    pods |= {uid: assumed.pod for uid, assumed in world.state.assumed.items()}
    for uid, pod in pods.items():
        assert isinstance(pod.assignment, Assignment)
        for part in pod.assignment.containers:
            for device in part.ids:
                assert held.setdefault((pod.node, device), uid) == uid
    for name, info in world.state.nodes.items():
        assert info.used_mask.bit_count() == 2 * sum(node == name for node, _ in held)
