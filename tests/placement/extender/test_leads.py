"""To which node filter leads a pod, what is assumed of the pod there, and how that ends."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from neuron_plugin.allocation.node import Reservation
from neuron_plugin.allocation.rejection import LEFT_TO_OTHERS
from neuron_plugin.placement.extender.binding import Ending
from neuron_plugin.placement.extender.filter import EXPECTED_SECONDS, ONE_NODE_SECONDS
from neuron_plugin.placement.extender.server import ExtenderService
from neuron_plugin.planning.choice import PreferenceOrder
from neuron_plugin.simulation.api_server_kinds import AnyJson
from neuron_plugin.topology import CoreMask
from tests.support.api_server import Fault
from tests.support.bench import BINDS, CUT, LOST, READS, TRN1, UNSENT, Bench
from tests.support.manifests import gated_manifest, node_manifest, pod_manifest
from tests.support.world import CORE, DEVICE, pod_of, record_of

FIRST, TIES = PreferenceOrder


def lead(bench: Bench, pod: AnyJson, *names: str, **options: bool) -> str | None:
    return bench.leads.lead(record_of(pod), names or list(bench.world.state.nodes), **options)


def endings(bench: Bench) -> dict[str, int]:
    return {ending.value: number for ending, number in bench.leads.endings.items()}


def test_the_next_pod_finds_the_set_of_the_last_one_in_use(bench: Bench) -> None:
    assert [lead(bench, bench.waiting(f"pod-{number}", 8)) for number in range(5)] == [
        *("node", "node", "other", "other", "")
    ]
    assert (bench.used(), bench.used("other"), len(bench.world.state.assumed)) == (16, 16, 4)


def test_a_pod_that_the_watch_has_not_shown_is_led_and_not_assumed(bench: Bench) -> None:
    assert [lead(bench, pod_manifest("new", DEVICE, 4)) for _ in range(2)] == ["node", "node"]
    assert not bench.world.state.assumed


def test_a_pod_asked_for_again_is_answered_with_all_nodes_from_then_on_and_assumed_on_none(bench: Bench) -> None:
    pod = bench.waiting("pod", 4)

    assert [lead(bench, pod) for _ in range(3)] == ["node", None, None]
    assert bench.leads.in_vain(pod_of(pod).uid)
    assert not bench.world.state.assumed
    assert endings(bench) == {"asked-again": 1}


def test_a_cycle_in_which_the_pod_fitted_nowhere_was_not_in_vain(bench: Bench) -> None:
    holders = [bench.world.held(f"on-{node}", node, DEVICE, "0") for node in ("node", "other")]
    pod = bench.waiting("pod", 16)
    assert [lead(bench, pod) for _ in range(3)] == [""] * 3

    bench.world.gone(holders[1])

    assert lead(bench, pod) == "other"


def test_an_assumption_no_bind_comes_for_ends_by_itself_sooner_where_one_node_was_called(bench: Bench) -> None:
    pods = [bench.waiting(name, 4) for name in ("one", "two")]
    lead(bench, pods[0], "other", one_node=True)
    lead(bench, pods[1], "node")
    used = []
    for seconds in (ONE_NODE_SECONDS, EXPECTED_SECONDS - ONE_NODE_SECONDS):
        bench.now += seconds
        bench.leads.expire()
        used.append((bench.used(), bench.used("other")))

    assert used == [(4, 0), (0, 0)]
    assert endings(bench) == {"expired": 2}
    assert [lead(bench, pod) for pod in pods] == [None, None], "the node may be refused later than that, too"


def test_a_pod_is_led_to_no_node_where_none_was_called(bench: Bench) -> None:
    assert bench.leads.lead(record_of(bench.waiting("pod", 4)), []) == ""
    assert not bench.world.state.assumed


def test_what_is_left_to_a_pod_without_a_node_is_not_offered(bench: Bench) -> None:
    roaming = record_of(bench.waiting("roaming", 16))
    bench.world.state.roaming[roaming.uid] = roaming
    first = bench.waiting("first", 4)
    assert lead(bench, first) == "node"
    second = bench.waiting("second", 16)
    assert lead(bench, second) == "", "one of the two nodes is left to the other pod"
    found = bench.world.filter(second)
    assert (found.passed, found.texts(may_pass=True)["other"]) == ([], LEFT_TO_OTHERS.text)
    assert lead(bench, bench.waiting("third", 4)) == "node"


@pytest.mark.parametrize("end", ["gone", "bound by others"])
def test_the_end_of_a_pod_ends_what_was_assumed_of_it(bench: Bench, end: str) -> None:
    pod = bench.waiting("pod", 4)
    lead(bench, pod)

    if end == "gone":
        bench.world.gone(pod)
    else:
        bench.world.show({**pod, "spec": {**pod["spec"], "nodeName": "node"}})
    assert not bench.world.state.assumed
    assert bench.world.fits(DEVICE, 16, "node") is (end == "gone")
    bench.leads.expire()

    assert endings(bench) == {"pod-ended": 1}
    assert not bench.leads._led


# What the pod itself prefers.


def preferring(key: str, value: str) -> dict[str, Any]:
    term = {"weight": 1, "preference": {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}}
    return {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}}


SERVING = {"labelSelector": {"matchLabels": {"app": "serving"}}, "topologyKey": "zone"}
APART = {"weight": 1, "podAffinityTerm": SERVING}
SPREAD = SERVING | {"maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}


@pytest.mark.parametrize(("when", "packs_on", "node"), [(FIRST, "node", "other"), (TIES, "node", "node")])
@pytest.mark.parametrize(
    "spec",
    [
        preferring("zone", "b"),
        {"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [APART]}}},
        {"topologySpreadConstraints": [SPREAD]},
        {"tolerations": [{"key": "b", "operator": "Exists"}]},
    ],
    ids=["node affinity", "anti-affinity", "spread", "soft taint"],
)
def test_what_a_pod_prefers_decides_before_packing_or_among_equals_alone(
    bench: Bench, spec: dict[str, Any], when: PreferenceOrder, packs_on: str, node: str
) -> None:
    bench.world.state._preferences = when
    for name, zone in (("node", "a"), ("other", "b")):
        manifest = node_manifest(name, TRN1)
        manifest["metadata"]["labels"]["zone"] = zone
        manifest["spec"] = {"taints": [{"key": zone, "effect": "PreferNoSchedule"}]}
        bench.world.show_node(manifest)
    pods = [pod_manifest(name, DEVICE, 8) for name in ("among equals", "pod")]
    for pod in pods:
        pod["metadata"]["labels"] = {"app": "serving"}
        pod["spec"] |= spec
    serving = pod_manifest("serving", node="node")
    serving["metadata"]["labels"] = {"app": "serving"}
    bench.world.show(serving)

    assert lead(bench, pods[0]) == "other"
    bench.world.held("half", packs_on, DEVICE, "0,1,2,3,4,5,6,7")
    assert lead(bench, pods[1]) == node


def test_a_pod_that_spreads_goes_to_the_node_with_the_most_free_devices(bench: Bench) -> None:
    keys = {"neuron-plugin.io/placement": "spread"}
    pods = [bench.world.pod(f"pod-{number}", CORE, 1, annotations=keys) for number in range(3)]

    assert [lead(bench, pod) for pod in pods] == ["node", "other", "node"]


# What is kept for the pod, or was promised to it.


def test_a_pod_goes_to_what_is_kept_for_it_however_often_it_is_asked_for(bench: Bench) -> None:
    for name in ("other", "full"):
        bench.world.node(name, TRN1)
        bench.world.held(f"on-{name}", name, DEVICE, "0,1,2,3,4,5,6,7")
    bench.world.held("rest", "full", DEVICE, "8,9,10,11,12,13,14,15")
    pod, thief = bench.waiting("pod", 8), bench.waiting("thief", 8)
    bench.world.state.reserve(Reservation(pod_of(pod), "other", CoreMask(0xFFFF << 16)))

    assert lead(bench, thief, "other", "full") == ""
    assert [lead(bench, pod), lead(bench, pod), bench.world.filter(pod).passed] == ["other", None, ["node", "other"]]
    (for_pod,), (for_thief,) = (bench.world.filter(each).rejected.values() for each in (pod, thief))
    assert (for_pod, for_thief) == ({"full"}, {"full", "other"})
    bench.leads.begin_bind(record_of(pod), "other")
    assert lead(bench, pod, "node", "full") == "node"


@pytest.mark.parametrize("closed", [False, True])
async def test_the_bind_of_a_pod_that_gates_have_placed_adds_nothing_to_its_promise(
    bench: Bench, *, closed: bool
) -> None:
    promise = ("node", "4,5,6,7")
    pod = bench.server.create_pod(gated_manifest("pod", DEVICE, 4, promised=promise, gates=()))
    bench.world.show(pod)
    bench.world.state.set_stale(frozenset({"node"} if closed else ()))

    outcome = await bench.bind(pod)

    assert outcome.ending is (Ending.NO_SET if closed else Ending.BOUND)
    assert not outcome.annotations
    assert bench.used() == 4
    assert bench.stored(pod)["metadata"]["annotations"]["NEURON_DEVS"] == "4,5,6,7"


# What binds do with it.


async def test_a_bind_takes_the_set_that_filter_assumed(bench: Bench) -> None:
    first, second = bench.waiting("first", 4), bench.waiting("second", 4)
    assert (lead(bench, first), lead(bench, second)) == ("node", "node")

    await bench.bind(second)
    await bench.bind(first)

    bound = [bench.stored(pod)["metadata"]["annotations"]["NEURON_DEVS"] for pod in (first, second)]
    assert bound == ["0,1,2,3", "4,5,6,7"]
    assert bench.used() == 8
    assert endings(bench) == {"bound": 2}
    assert not bench.leads._led


async def test_a_bind_to_another_node_than_filter_named_chooses_there(bench: Bench) -> None:
    pod = bench.waiting("pod", 4)
    lead(bench, pod)

    outcome = await bench.bind(pod, "other")

    assert not outcome.error
    assert (bench.used("node"), bench.used("other")) == (0, 4)
    assert endings(bench) == {"bound-elsewhere": 1}


@pytest.mark.parametrize(
    ("fault", "led"),
    [(Fault(status=403), None), (Fault(status=422), None), (Fault(status=429), "node"), (UNSENT, "node")],
)
async def test_a_node_that_the_api_server_refuses_is_not_insisted_on(
    bench: Bench, fault: Fault, led: str | None
) -> None:
    pod = bench.waiting("pod", 4)
    lead(bench, pod)
    bench.fail(BINDS, fault)
    assert (await bench.bind(pod)).ending is Ending.REFUSED

    assert lead(bench, pod) == led


async def test_the_set_of_a_bind_that_may_have_landed_is_kept_for_longer_than_an_assumption(bench: Bench) -> None:
    pod = bench.waiting("pod", 4)
    lead(bench, pod)
    bench.fail(BINDS, LOST)
    bench.fail(READS, CUT, CUT)
    await bench.bind(pod)

    bench.now += EXPECTED_SECONDS
    await bench.binder.settle()

    assert bench.used() == 4


@pytest.mark.parametrize(
    ("instance_type", "held", "amount", "unhealthy", "bound"),
    [(TRN1, "0", 4, 5, "8,9,10,11"), ("inf2.24xlarge", "3,4,5", 2, 0, "1,2")],
    ids=["another set", "what is left of it"],
)
async def test_a_set_that_became_unhealthy_is_not_bound(
    bench: Bench, instance_type: str, held: str, amount: int, unhealthy: int, bound: str
) -> None:
    bench.world.node("node", instance_type)
    bench.world.held("holder", "node", DEVICE, held)
    pod = bench.waiting("pod", amount)
    assert lead(bench, pod, "node") == "node"
    bench.world.node("node", instance_type, unhealthy={unhealthy: "ECC"})

    assert (await bench.bind(pod)).annotations["NEURON_DEVS"] == bound


async def test_an_assumption_ends_where_its_bind_finds_the_node_closed(bench: Bench) -> None:
    pod = bench.waiting("pod", 4)
    lead(bench, pod)
    bench.world.state.set_stale(frozenset({"node"}))

    outcome = await bench.bind(pod)

    assert outcome.error == "The node's Neuron plugin does not renew its lease"
    assert not bench.world.state.assumed


async def test_an_assumption_is_never_looked_up_at_the_server(bench: Bench) -> None:
    lead(bench, bench.waiting("pod", 4))
    bench.now += EXPECTED_SECONDS - 1

    await bench.binder.settle()

    assert (bench.calls, bench.used(), bench.writer.unseen()) == ([], 4, 0)


@pytest.mark.parametrize("seed", range(6))
def test_a_pod_whose_best_nodes_always_fail_later_is_placed_elsewhere_in_bounded_cycles(
    bench: Bench, seed: int
) -> None:
    """As kube-scheduler does with them: the highest score wins, and any of equal ones."""
    chance = random.Random(seed)  # noqa: S311 - a reproducible history
    names = [f"node-{number}" for number in range(8)]
    for name in names:
        bench.world.node(name, TRN1)
    failing = set(names[: chance.choice((1, 3, 7))])
    pod = bench.waiting("pod", 4)
    service = ExtenderService(bench.context, bench.binder, bench.leads)
    body = json.dumps({"Pod": pod, "NodeNames": names}).encode()
    for _ in range(100):
        passed = json.loads(service.answer("filter", body))["NodeNames"]
        call = json.dumps({"Pod": pod, "NodeNames": passed}).encode()
        scores = {each["Host"]: each["Score"] for each in json.loads(service.answer("prioritize", call))}
        node = chance.choice([name for name in passed if scores[name] == max(scores.values())])
        if node not in failing:
            break
        bench.now += chance.choice((1.0, 2 * EXPECTED_SECONDS))
        bench.leads.expire()
    assert node not in failing
