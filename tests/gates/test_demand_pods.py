"""Placeholder pods: made for what lacks links alone, and gone once they are bound or nobody waits."""

from __future__ import annotations

from typing import Any

import pytest

from neuron_plugin.allocation.keys import DEMAND_LABEL, NODE_KEY
from neuron_plugin.allocation.node import Reservation
from neuron_plugin.cluster import ApiError, KubernetesApi
from neuron_plugin.gates.demand_pods import DEMAND, TIMES, placeholder
from neuron_plugin.simulation.api_server_kinds import PODS
from neuron_plugin.topology import CoreMask
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
    (owner,) = waiting.placeholders()[0]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("PriorityClass", FORM.priority_class, "of-the-class")
    assert owner["apiVersion"] == "scheduling.k8s.io/v1"
    assert [reason for reason, _ in waiting.events("train-1")].count(DEMAND) == 1
    assert DEMAND not in [reason for reason, _ in waiting.events("train-2")]


async def test_a_pod_for_which_room_was_made_gets_no_placeholder(waiting: DemandBench) -> None:
    waiting.pod("train", NEURON, 4)
    waiting.state.reserve(Reservation(waiting.record("train").reference, "a", CoreMask(0xFF)))
    await waiting.looks()
    assert waiting.placeholders() == []
    waiting.pod("other", NEURON, 4)
    await waiting.looks()
    assert len(waiting.placeholders()) == 1
    assert DEMAND in [reason for reason, _ in waiting.events("other")]


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
    ],
)
async def test_there_is_none_for(waiting: DemandBench, amount: int, described: dict[str, Any]) -> None:
    waiting.pod("train", NEURON, amount, **described)
    await waiting.looks()
    assert waiting.placeholders() == []


async def test_there_is_none_for_a_pod_that_no_node_has_enough_for_by_count(waiting: DemandBench) -> None:
    waiting.node("b")
    for number, device in enumerate(set(range(16)) - {0, 2, 8, 10}):
        waiting.pod(f"on-b-{number}", NEURON, 1, gates=(), node="b", annotations={"NEURON_DEVS": str(device)})
    waiting.pod("train", NEURON, 8)  # eight are free on the two nodes together
    await waiting.looks()
    assert waiting.placeholders() == []


async def test_there_is_none_for_a_count_that_no_machine_can_link(waiting: DemandBench) -> None:
    waiting.node("b")
    waiting.pod("train", NEURON, 7)
    await waiting.looks()
    assert waiting.placeholders() == []


async def test_one_that_could_not_be_deleted_goes_later(waiting: DemandBench, server: StandInApiServer) -> None:
    waiting.pod("train", NEURON, 4)
    await waiting.looks()
    waiting.server.delete(PODS, "train", "default")
    server.fail(Fault(Match(method="DELETE", path=f"/{FORM.namespace}/pods"), status=500, times=1))
    with pytest.raises(ApiError):
        await waiting.looks(TIMES.tick)
    await waiting.looks(TIMES.tick)
    assert waiting.placeholders() == []


async def test_it_goes_when_less_is_free_than_its_pod_asks_for(waiting: DemandBench) -> None:
    waiting.pod("train", NEURON, 4)
    await waiting.looks()
    assert len(waiting.placeholders()) == 1
    waiting.pod("one-more", NEURON, 1, gates=(), node="a", annotations={"NEURON_DEVS": "0"})
    await waiting.looks(4 * TIMES.tick)
    assert waiting.placeholders() == []


async def test_links_that_broken_devices_cut_are_a_reason_too(waiting: DemandBench) -> None:
    waiting.node("a", unhealthy=dict.fromkeys((3, 7, 11, 15), "ECC"))  # a row has none left, were it empty
    waiting.pod("train", NEURON, 4)
    await waiting.looks()
    assert len(waiting.placeholders()) == 1


async def test_a_pod_that_waits_is_read_once(waiting: DemandBench, server: StandInApiServer) -> None:
    waiting.pod("train", NEURON, 4)
    await waiting.looks()
    await waiting.looks()
    assert sum(seen.method == "GET" and seen.path.endswith("/pods/train") for seen in server.requests) == 1


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
    await waiting.looks(3 * TIMES.patience)
    assert waiting.placeholders() == []
    await waiting.looks(TIMES.again)
    assert len(waiting.placeholders()) == 1


async def test_the_next_leader_finds_the_placeholders_and_makes_none_twice(waiting: DemandBench) -> None:
    waiting.pod("train", NEURON, 4)
    await waiting.looks()
    (made,) = waiting.placeholders()
    waiting.demand = waiting.leader()
    waiting.placer.queue.hopeless.clear()
    waiting.placer._judged_capacity = -1  # as of a replica that has just begun
    await waiting.demand.look()
    await waiting.looks()
    assert waiting.placeholders() == [made]
    waiting.server.delete(PODS, "train", "default")
    waiting.demand = waiting.leader()
    await waiting.looks(2 * TIMES.tick)
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
