"""Placeholder pods: made for what lacks links alone, and gone once they are bound or nobody waits."""

from __future__ import annotations

from typing import Any

import pytest

from neuron_plugin.allocation.keys import DEMAND_LABEL, NODE_KEY
from neuron_plugin.cluster import ApiError, KubernetesApi
from neuron_plugin.gates.demand_pods import DEMAND, TIMES, placeholder
from neuron_plugin.simulation.api_server_kinds import PODS
from tests.gates.bench import FORM, NEURON, DemandBench
from tests.support.api_server import Fault, Match, StandInApiServer


@pytest.fixture
def waiting(server: StandInApiServer, api: KubernetesApi) -> DemandBench:
    return DemandBench(server, api)


async def test_pods_that_lack_only_links_get_one_placeholder_for_each_kind(waiting: DemandBench) -> None:
    waiting.pod("train-1", NEURON, 4, cpu="8")
    waiting.pod("train-2", NEURON, 4, cpu="8")
    waiting.pod("other", NEURON, 4, spec={"nodeSelector": {"node.kubernetes.io/instance-type": "trn1.32xlarge"}})
    await waiting.looks(TIMES.patience - TIMES.tick)
    assert waiting.placeholders() == [], "a move may help yet"
    await waiting.looks()
    first, second = sorted((pod["spec"] for pod in waiting.placeholders()), key=lambda spec: "nodeSelector" in spec)
    assert first["containers"][0]["resources"]["limits"] == {NEURON.value: "4"}
    assert first["containers"][0]["resources"]["requests"]["cpu"] == "8"
    assert second["nodeSelector"] == {"node.kubernetes.io/instance-type": "trn1.32xlarge"}
    assert [reason for reason, _ in waiting.events("train-1")].count(DEMAND) == 1
    assert DEMAND not in [reason for reason, _ in waiting.events("train-2")]


async def test_a_placeholder_is_no_pod_that_waits(waiting: DemandBench) -> None:
    waiting.pod("train", NEURON, 4)
    await waiting.looks()
    (made,) = waiting.placeholders()
    assert made["metadata"]["uid"] not in waiting.state.pods


@pytest.mark.parametrize(
    ("amount", "described"),
    [
        pytest.param(4, {"group": "job", "size": 1}, id="a group"),
        pytest.param(16, {}, id="fits nowhere by count"),
        pytest.param(7, {}, id="no node can link so many"),
    ],
)
async def test_there_is_none_for(waiting: DemandBench, amount: int, described: dict[str, Any]) -> None:
    waiting.pod("train", NEURON, amount, **described)
    await waiting.looks()
    assert waiting.placeholders() == []


async def test_it_goes_when_nobody_of_its_kind_waits_any_more(waiting: DemandBench) -> None:
    waiting.pod("train", NEURON, 4)
    await waiting.looks()
    waiting.node("b")
    await waiting.looks(2 * TIMES.tick)
    assert waiting.place("train") == "b"
    assert waiting.placeholders() == []
    asked = waiting.requests("GET")
    await waiting.looks()
    assert waiting.requests("GET") == asked, "nothing is asked for while nobody waits"


async def test_it_goes_when_it_is_bound_and_does_not_come_again_at_once(waiting: DemandBench) -> None:
    waiting.pod("train", NEURON, 4)
    await waiting.looks()
    (made,) = waiting.placeholders()
    waiting.server.bind(FORM.namespace, made["metadata"]["name"], node="a")
    await waiting.looks(2 * TIMES.tick)
    assert waiting.placeholders() == []
    await waiting.looks(TIMES.again)
    assert len(waiting.placeholders()) == 1


async def test_the_next_leader_finds_the_placeholders_and_makes_none_twice(waiting: DemandBench) -> None:
    waiting.pod("train", NEURON, 4)
    await waiting.looks()
    (made,) = waiting.placeholders()
    waiting.demand = waiting.leader()
    await waiting.looks(TIMES.tick)
    assert waiting.placeholders() == [made]
    waiting.server.delete(PODS, "train", "default")
    waiting.demand = waiting.leader()
    await waiting.looks(TIMES.tick)
    assert waiting.placeholders() == []


async def test_a_placeholder_that_is_refused_is_tried_again(waiting: DemandBench, server: StandInApiServer) -> None:
    waiting.pod("train", NEURON, 4)
    server.fail(Fault(Match(method="POST", path=f"/{FORM.namespace}/pods"), status=403, times=1))
    with pytest.raises(ApiError):
        await waiting.looks()
    await waiting.looks(TIMES.tick)
    assert len(waiting.placeholders()) == 1


def test_it_keeps_what_decides_where_a_pod_may_go_and_nothing_else() -> None:
    terms = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    main = {
        "name": "main",
        "image": "train",
        "env": [{"name": "SECRET", "value": "x"}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "resources": {"limits": {NEURON.value: "4"}, "claims": [{"name": "nic"}]},
    }
    sidecar = {"name": "log", "image": "log", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}}
    pod: Any = {
        "metadata": {"name": "train", "labels": {"app": "train"}, "annotations": {"note": "x"}},
        "spec": {
            "containers": [main],
            "initContainers": [sidecar],
            "affinity": {"nodeAffinity": {**required, "preferredDuringSchedulingIgnoredDuringExecution": []}},
            "tolerations": [{"operator": "Exists"}],
            "nodeSelector": {"pool": "trn1"},
            "schedulingGates": [{"name": "neuron-plugin.io/placement"}],
            "serviceAccountName": "train",
            "volumes": [{"name": "data", "emptyDir": {}}],
            "priority": 1000,
            "schedulerName": "default-scheduler",
        },
    }
    made: Any = placeholder(pod, FORM)
    spec = made["spec"]
    assert made["metadata"]["namespace"] == FORM.namespace
    assert made["metadata"]["labels"] == {DEMAND_LABEL: "true"}
    assert spec["containers"] == [
        {"name": "main", "image": FORM.image, "args": ["--version"], "resources": {"limits": {NEURON.value: "4"}}}
    ]
    assert spec["initContainers"][0]["restartPolicy"] == "Always"
    assert spec["affinity"]["nodeAffinity"] == required
    (kept_off,) = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert kept_off["labelSelector"] == {"matchExpressions": [{"key": NODE_KEY, "operator": "Exists"}]}
    assert kept_off["namespaceSelector"] == {}, "pods of all namespaces"
    assert spec["priorityClassName"] == FORM.priority_class
    assert spec["nodeSelector"] == {"pool": "trn1"}
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert spec.keys().isdisjoint({"volumes", "serviceAccountName", "priority", "schedulingGates"})
    pod["metadata"]["name"] = "another"
    assert placeholder(pod, FORM) == made
    main["resources"] = {"limits": {NEURON.value: "8"}}
    assert placeholder(pod, FORM) != made
