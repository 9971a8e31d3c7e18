from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from neuron_plugin.allocation import ContainerKind
from neuron_plugin.cluster import NODES, PODS
from neuron_plugin.extender.claims import Unreadable
from neuron_plugin.extender.feeds import keep_pod
from neuron_plugin.extender.observation import asks_for_neuron, node_facts
from neuron_plugin.simulation import container, node_manifest, pod_manifest
from tests.extender.world import CORE, DEVICE, record_of, request_of


def counts(*containers: dict[str, Any], init: Sequence[dict[str, Any]] = ()) -> list[tuple[str, ContainerKind, int]]:
    manifest = pod_manifest("pod", containers=containers, init_containers=init)
    return [(part.container, part.kind, part.count) for part in request_of(record_of(manifest))]


def test_t19_t20_requesting_containers_come_init_first_and_others_count_for_nothing() -> None:
    init = [container("setup", CORE, 4), container("proxy", CORE, 1, sidecar=True), container("plain", CORE, 0)]

    assert counts(container("main", CORE, 2), container("log", CORE, 0), init=init) == [
        ("setup", ContainerKind.INIT, 4),
        ("proxy", ContainerKind.SIDECAR, 1),
        ("main", ContainerKind.APP, 2),
    ]


@pytest.mark.parametrize(
    ("limits", "requests", "expected"),
    [({CORE: "2"}, {}, 2), ({}, {CORE: "3"}, 3), ({CORE: "2"}, {CORE: "3"}, 2), ({CORE: "1k"}, {}, 1000)],
    ids=str,
)
def test_t22_t23_limits_decide_and_requests_stand_in(
    limits: dict[str, str], requests: dict[str, str], expected: int
) -> None:
    given = {"name": "main", "resources": {"limits": limits, "requests": requests}}

    assert counts(given) == [("main", ContainerKind.APP, expected)]


@pytest.mark.parametrize("amount", ["-1", "1.5", "1m", "x", "9223372036854775808", "1e99"])
def test_t23_an_impossible_quantity_is_refused_with_a_reason(amount: str) -> None:
    request = record_of(pod_manifest("pod", containers=[container("main", CORE, amount)])).request

    assert isinstance(request, Unreadable)
    assert "container main asks for aws.amazon.com/neuroncore" in request.text


def test_t21_two_neuron_resources_in_one_container_are_refused_with_a_reason() -> None:
    both = {"name": "main", "resources": {"limits": {CORE: "1", DEVICE: "1"}}}

    request = record_of(pod_manifest("pod", containers=[both])).request

    assert isinstance(request, Unreadable)
    assert "ask for one Neuron resource per container" in request.text


def test_equal_requests_of_many_pods_are_one_object() -> None:
    first, second = (record_of(pod_manifest(name, CORE, 3)) for name in ("a", "b"))

    assert first.request is second.request


def test_only_live_pods_that_ask_for_neuron_are_kept() -> None:
    def kept(manifest: object) -> bool:
        return keep_pod(PODS.decode(msgspec.json.encode(manifest))) is not None

    assert kept(pod_manifest("pod", CORE, 1))
    assert kept(pod_manifest("init", containers=[container("a", CORE, 0)], init_containers=[container("b", CORE, 1)]))
    assert not kept(pod_manifest("plain", CORE, 0))
    assert not kept({**pod_manifest("done", CORE, 1), "status": {"phase": "Failed"}})


def test_a_quantity_of_zero_still_makes_the_scheduler_ask_about_the_pod() -> None:
    zero = {"name": "main", "resources": {"limits": {CORE: "0"}}}
    pod = PODS.decode(msgspec.json.encode(pod_manifest("pod", containers=[zero])))

    assert asks_for_neuron(pod)


def test_of_a_node_only_neuron_resources_are_kept() -> None:
    manifest = node_manifest("node", "inf1.6xlarge")
    manifest["status"]["capacity"] = {**manifest["status"]["capacity"], "cpu": "96"}

    facts = node_facts(NODES.decode(msgspec.json.encode(manifest)))

    assert facts.instance_type == "inf1.6xlarge"
    assert "cpu" not in facts.capacity
    assert facts.capacity["aws.amazon.com/neuroncore"] == "16"
