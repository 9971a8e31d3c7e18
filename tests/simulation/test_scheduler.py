from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

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
from neuron_plugin.simulation.scheduler import BoundPod, ExtenderCallError, SimulatedScheduler, why_apart, why_not
from tests.support.manifests import pod_manifest

POD = pod_manifest("pod", Resource.NEURON, 1)


FULL: dict[str, Any] = {"NodeNames": [], "FailedNodes": {"a": "full", "b": "full"}, "FailedAndUnresolvableNodes": None}


async def test_an_attempt_filters_prioritizes_and_binds_and_takes_no_answer_that_kube_scheduler_does_not() -> None:
    asked: list[tuple[str, Any]] = []
    answers: dict[str, Any] = {
        "filter": {"NodeNames": ["a", "b", "c"], "Error": ""},
        "prioritize": [{"Host": name, "Score": 10 * (name == "b")} for name in "abc"],
        "bind": {"Error": ""},
        "status": 200,
    }

    async def handle(request: web.Request) -> web.Response:
        asked.append((request.match_info["verb"], json.loads(await request.read())))
        return web.json_response(answers[request.match_info["verb"]], status=answers["status"])

    app = web.Application()
    app.router.add_post("/{verb}", handle)
    async with TestServer(app) as server, SimulatedScheduler(str(server.make_url("/"))) as scheduler:
        found = await scheduler.filter(POD, ["a", "b", "c"])
        assert await scheduler.best(POD, found.nodes) == "b"
        await scheduler.bind(POD, "b")
        uid = POD["metadata"]["uid"]
        assert [verb for verb, _ in asked] == ["filter", "prioritize", "bind"]
        assert asked[0][1] == {"Pod": POD, "Nodes": None, "NodeNames": ["a", "b", "c"]}
        assert asked[2][1] == {"PodName": "pod", "PodNamespace": "default", "PodUID": uid, "Node": "b"}
        answers["filter"] = FULL
        full = await scheduler.filter(POD, ["a", "b", "c"])
        assert full.message(3) == "0/3 nodes are available: 1 unresolvable, 2 full."
        for answer, status, text in (
            ({"Error": "not synced"}, 200, "not synced"),
            ({"NodeNames": ["unknown"]}, 200, "not found in the input node list"),
            ({"NodeNames": ["a"]}, 500, "code 500"),
        ):
            answers |= {"filter": answer, "status": status}
            with pytest.raises(ExtenderCallError, match=text):
                await scheduler.filter(POD, ["a"])
        answers |= {"bind": {"Error": "no"}, "status": 200}
        with pytest.raises(ExtenderCallError, match="no"):
            await scheduler.bind(POD, "a")


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
