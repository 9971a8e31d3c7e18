from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from neuron_plugin.allocation import Resource
from neuron_plugin.allocation.node_rules import (
    ANY_ADDRESS,
    NodeRules,
    NodeSelectorTerm,
    NodeUse,
    PodRules,
    PodSelector,
    PodTerm,
    Requirement,
    Taint,
    Toleration,
)
from neuron_plugin.simulation.scheduler import BoundPod, ExtenderCallError, why_apart, why_not
from tests.support.manifests import pod_manifest
from tests.support.scheduler import StandInScheduler

POD = pod_manifest("pod", Resource.NEURON, 1)
VICTIMS = {"a": ["u1"]}
Answers = dict[str, Callable[[dict[str, Any]], Any]]


@asynccontextmanager
async def extender(
    answers: Answers, status: int = 200
) -> AsyncIterator[tuple[StandInScheduler, list[tuple[str, Any]]]]:
    """A scheduler in front of an extender that answers by verb, and what it was asked."""
    asked: list[tuple[str, Any]] = []

    async def handle(request: web.Request) -> web.Response:
        verb = request.match_info["verb"]
        asked.append((verb, json.loads(await request.read())))
        return web.json_response(answers[verb](asked[-1][1]), status=status)

    app = web.Application()
    app.router.add_post("/{verb}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with StandInScheduler(f"http://127.0.0.1:{runner.addresses[0][1]}/") as scheduler:
        yield scheduler, asked
    await runner.cleanup()


def passing(args: dict[str, Any]) -> dict[str, Any]:
    return {"NodeNames": args["NodeNames"], "Error": ""}


async def test_an_attempt_filters_prioritizes_and_binds_to_the_best_node() -> None:
    answers: Answers = {
        "filter": passing,
        "prioritize": lambda args: [{"Host": name, "Score": 10 * (name == "b")} for name in args["NodeNames"]],
        "bind": lambda _: {"Error": ""},
    }
    async with extender(answers) as (scheduler, asked):
        placed = await scheduler.schedule(POD, ["a", "b", "c"])

    assert placed.node == "b"
    assert [verb for verb, _ in asked] == ["filter", "prioritize", "bind"]
    assert asked[0][1]["Nodes"] is None
    assert asked[2][1] == {
        "PodName": "pod",
        "PodNamespace": "default",
        "PodUID": POD["metadata"]["uid"],
        "Node": "b",
    }


async def test_refused_nodes_make_the_schedulers_message_with_a_count_per_text() -> None:
    answers: Answers = {
        "filter": lambda _: {
            "NodeNames": [],
            "FailedNodes": {"a": "full", "b": "full"},
            "FailedAndUnresolvableNodes": None,
        }
    }
    async with extender(answers) as (scheduler, _):
        placed = await scheduler.schedule(POD, ["a", "b", "c"])

    assert placed.message == "0/3 nodes are available: 1 unresolvable, 2 full."


@pytest.mark.parametrize(
    ("verb", "answer", "status", "text"),
    [
        ("filter", {"Error": "not synced"}, 200, "not synced"),
        ("filter", {"NodeNames": ["unknown"]}, 200, "not found in the input node list"),
        ("filter", {"NodeNames": ["a"]}, 500, "code 500"),
        ("preempt", {"NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "unknown"}]}}}, 200, "claims to preempt"),
        ("preempt", {"NodeNameToMetaVictims": {"a": {"Pods": []}}}, 200, "expected at least one victim pod on node"),
    ],
)
async def test_an_answer_that_kube_scheduler_does_not_take_fails_the_attempt(
    verb: str, answer: dict[str, Any], status: int, text: str
) -> None:
    async with extender({verb: lambda _: answer}, status) as (scheduler, _):
        with pytest.raises(ExtenderCallError, match=text):
            await (scheduler.filter(POD, ["a"]) if verb == "filter" else scheduler.preempt(POD, VICTIMS, VICTIMS))


@pytest.mark.parametrize(
    ("answer", "status"), [({"Error": "no"}, 200), ([], 500), ([{"Host": "a", "Score": 5.0}], 200)]
)
async def test_a_prioritize_that_fails_is_ignored_as_the_scheduler_does(answer: Any, status: int) -> None:
    async with extender({"prioritize": lambda _: answer}, status) as (scheduler, _):
        assert await scheduler.prioritize(POD, ["a"]) == {}


async def test_preempt_offers_uids_and_takes_any_pods_of_the_node_as_victims() -> None:
    other = {"NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "u2"}, {"UID": "u1"}], "NumPDBViolations": 0}}}
    async with extender({"preempt": lambda _: other}) as (scheduler, asked):
        assert await scheduler.preempt(POD, VICTIMS, {"a": ["u1", "u2"]}) == {"a": ["u2", "u1"]}
    assert asked[0][1]["NodeNameToMetaVictims"] == {"a": {"Pods": [{"UID": "u1"}], "NumPDBViolations": 0}}


# The scheduler's own filters.

ZONE_A = NodeSelectorTerm(expressions=(Requirement("zone", "In", ("a",)),))
PINNED = NodeSelectorTerm(fields=(Requirement("metadata.name", "In", ("n1",)),))
CORE = "aws.amazon.com/neuroncore"


@pytest.mark.parametrize(
    ("pod", "said"),
    [
        (PodRules(), []),
        (PodRules(terms=(PINNED,), node_selector=(("zone", "a"),)), []),
        (PodRules(terms=(replace(PINNED, expressions=ZONE_A.expressions),)), []),
        (PodRules(terms=(replace(PINNED, fields=(Requirement("metadata.name", "In", ("n2",)),)), ZONE_A)), []),
        (PodRules(terms=(NodeSelectorTerm(),)), ["node(s) didn't match Pod's node affinity/selector"]),
        (PodRules(node_selector=(("zone", "b"),)), ["node(s) didn't match Pod's node affinity/selector"]),
        (PodRules(needs=(("cpu", 3000),), neuron=((CORE, 2000),)), []),
        (PodRules(needs=(("cpu", 3001),), neuron=((CORE, 2001),)), ["Insufficient cpu", f"Insufficient {CORE}"]),
        (PodRules(needs=(("aws.amazon.com/nueron", 1000),)), ["Insufficient aws.amazon.com/nueron"]),
        (PodRules(needs=(("pods", 1000),)), ["Too many pods"]),
        (
            PodRules(ports=frozenset({(ANY_ADDRESS, "TCP", 80)})),
            ["node(s) didn't have free ports for the requested pod ports"],
        ),
        (PodRules(ports=frozenset({("10.0.0.2", "TCP", 80)})), []),
    ],
)
def test_a_node_is_judged_as_kube_scheduler_does(pod: PodRules, said: list[str]) -> None:
    use = NodeUse({"cpu": 1000, "pods": 5000, CORE: 2000}, frozenset({("10.0.0.1", "TCP", 80)}))
    node = NodeRules(labels={"zone": "a"}, allocatable=(("cpu", 4000), ("pods", 5000)), neuron=((CORE, 4000),))
    assert why_not(pod, "n1", node, use) == said


def test_taints_and_cordons_are_tolerated_or_close_the_node() -> None:
    node = NodeRules(cordoned=True, taints=(Taint("gpu", "NoSchedule", "x"), Taint("soft", "PreferNoSchedule")))
    assert why_not(PodRules(), "n1", node, NodeUse()) == ["node(s) were unschedulable"]
    cordon = Toleration("node.kubernetes.io/unschedulable", "Exists")
    assert why_not(PodRules(tolerations=(cordon,)), "n1", node, NodeUse()) == ["node(s) had untolerated taint(s)"]
    tolerant = PodRules(tolerations=(cordon, Toleration("gpu", "", "x")))
    assert why_not(tolerant, "n1", node, NodeUse()) == []


RACKS = {
    "a": NodeRules(labels={"rack": "r1"}),
    "b": NodeRules(labels={"rack": "r1"}),
    "c": NodeRules(labels={"rack": "r2"}),
}
ALONE = BoundPod(
    "a",
    "ml",
    {"app": "alone"},
    PodRules(anti_affinity=(PodTerm(PodSelector(("ml",), (Requirement("app", "Exists", ()),)), "rack"),)),
)
WEB = BoundPod("a", "ml", {"app": "web"}, PodRules())


@pytest.mark.parametrize(("node", "kept_apart"), [("a", True), ("b", True), ("c", False)])
def test_a_required_anti_affinity_keeps_pods_out_of_a_domain_whoever_came_first(node: str, *, kept_apart: bool) -> None:
    late = why_apart(replace(WEB, node=node), [ALONE], RACKS)
    assert late == ["node(s) didn't satisfy existing pods anti-affinity rules"] * kept_apart
    early = why_apart(replace(ALONE, node=node), [WEB], RACKS)
    assert early == ["node(s) didn't match pod anti-affinity rules"] * kept_apart


def test_an_anti_affinity_is_about_the_pods_that_it_names_and_nodes_with_its_label() -> None:
    assert why_apart(replace(WEB, namespace="other"), [ALONE], RACKS) == []
    assert why_apart(replace(WEB, labels={}), [ALONE], RACKS) == []
    assert why_apart(WEB, [ALONE], {"a": NodeRules()}) == []
    assert why_apart(WEB, [replace(ALONE, node="gone")], RACKS) == []
