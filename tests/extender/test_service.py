from __future__ import annotations

import json
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from neuron_plugin.extender import service as module
from neuron_plugin.extender.binding import Binder
from neuron_plugin.extender.metrics import ExtenderMetrics
from neuron_plugin.extender.readiness import Readiness
from neuron_plugin.extender.service import ExtenderService
from neuron_plugin.simulation import pod_manifest
from tests.extender.pod_server import PodServer
from tests.extender.world import DEVICE, World, pod_of

TRN1 = "trn1.32xlarge"


class Counter:
    """A service on a world, with its metrics and its readiness at hand."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.server = PodServer()
        self.registry = CollectorRegistry()
        self.readiness = Readiness({})
        binder = Binder(world.state, self.server, fence=lambda: self.readiness.why_not, dialects=())
        self.service = ExtenderService(world.state, binder, self.readiness, ExtenderMetrics(self.registry))

    def count(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


@pytest.fixture
def counter(world: World) -> Counter:
    world.node("node", TRN1)
    return Counter(world)


def args(amount: int, *names: str) -> bytes:
    return json.dumps({"Pod": pod_manifest("pod", DEVICE, amount), "NodeNames": names}).encode()


def bind_args(manifest: dict[str, Any], node: str) -> bytes:
    pod = pod_of(manifest)
    return json.dumps({"PodName": pod.name, "PodNamespace": pod.namespace, "PodUID": pod.uid, "Node": node}).encode()


def test_a_filter_counts_nodes_by_reason_and_itself_by_result(counter: Counter) -> None:
    counter.service.filter(args(7, "node", "ghost"))
    counter.service.filter(b"garbage")

    assert counter.count("neuron_extender_refused_nodes_total", reason="unsupported-count") == 1
    assert counter.count("neuron_extender_refused_nodes_total", reason="unknown-node") == 1
    assert counter.count("neuron_extender_verbs_total", verb="filter", result="ok") == 1
    assert counter.count("neuron_extender_verbs_total", verb="filter", result="error") == 1


async def test_a_bind_counts_how_it_ended(counter: Counter) -> None:
    for name in ("first", "second"):
        manifest = counter.server.add(counter.world.pod(name, DEVICE, 16))
        await counter.service.bind(bind_args(manifest, "node"))

    assert counter.count("neuron_extender_binds_total", ending="no-set") == 2
    assert counter.count("neuron_extender_verbs_total", verb="bind", result="error") == 2


async def test_t02_while_not_ready_every_verb_says_why_and_touches_nothing(counter: Counter) -> None:
    counter.readiness.unmet("leader", "another replica leads")
    manifest = counter.server.add(counter.world.pod("pod", DEVICE, 1))
    preempt = json.dumps({"Pod": manifest, "NodeNameToMetaVictims": {"node": {"Pods": [{"UID": "u"}]}}}).encode()

    answers = [
        counter.service.filter(args(1, "node")),
        counter.service.prioritize(args(1, "node")),
        counter.service.preempt(preempt),
        await counter.service.bind(bind_args(manifest, "node")),
    ]

    assert [json.loads(answer)["Error"] for answer in answers] == ["another replica leads"] * 4
    assert counter.server.calls == []


def test_t02_a_fault_of_ours_is_an_error_in_the_body_and_its_cause_in_the_log(
    counter: Counter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "filter_nodes", lambda *_: 1 / 0)

    answer = json.loads(counter.service.filter(args(1, "node")))

    assert answer == {"Error": "filter failed inside the extender; its log has the cause"}
    assert "ZeroDivisionError" in caplog.text
    assert counter.count("neuron_extender_verbs_total", verb="filter", result="error") == 1


def test_e01_preempt_answers_by_uid_and_leaves_out_what_does_not_help(counter: Counter) -> None:
    held = [counter.world.held(f"pod-{device}", "node", DEVICE, str(device)) for device in range(16)]
    counter.world.node("other", "inf1.xlarge")
    offered = {"Pods": [{"UID": each["metadata"]["uid"]} for each in held], "NumPDBViolations": 2}
    body = {
        "Pod": pod_manifest("new", DEVICE, 4),
        "NodeNameToVictims": None,
        "NodeNameToMetaVictims": {"node": offered, "other": offered},
    }

    answer = json.loads(counter.service.preempt(json.dumps(body).encode()))["NodeNameToMetaVictims"]

    assert list(answer) == ["node"]
    assert answer["node"]["NumPDBViolations"] == 2
    assert len(answer["node"]["Pods"]) == 4


def test_prioritize_scores_every_name_it_was_sent_known_or_not(counter: Counter) -> None:
    answer = json.loads(counter.service.prioritize(args(1, "node", "ghost")))

    assert [entry["Host"] for entry in answer] == ["node", "ghost"]


def test_a_pod_that_is_no_pod_is_an_error_in_the_body(counter: Counter) -> None:
    for pod in ("[]", '"text"', "{}", '{"metadata":3}'):
        answer = json.loads(counter.service.filter(f'{{"Pod":{pod},"NodeNames":["node"]}}'.encode()))
        assert answer["Error"]
