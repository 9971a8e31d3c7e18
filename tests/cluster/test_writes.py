from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.allocation import PodReference, PodUid
from neuron_plugin.cluster import writes
from neuron_plugin.cluster.api import ApiError, ApiRequest, UnreachableError, send
from neuron_plugin.cluster.client import KubernetesApi
from neuron_plugin.cluster.objects import HOLDER_URL_KEY, LEASES, NODES, Lease, ObjectReference
from neuron_plugin.cluster.pods import PODS
from neuron_plugin.cluster.writes import LeaseName, bind_pod
from neuron_plugin.simulation import api_server_kinds as kinds
from tests.support.api_server import Fault, Match, StandInApiServer

Manifest = Callable[..., dict[str, Any]]

NOW = datetime(2026, 1, 2, 3, 4, 5, 678900, tzinfo=UTC)
CHOICE = {"NEURON_DEVS": "2,3", "NEURON_ALLOC_TIME": "1767323045000000000", "NEURON_ALLOCATED": "false"}


def binding(**changes: str) -> ApiRequest:
    wanted = {"namespace": "default", "name": "a", "uid": "uid-a", "node": "n1"} | changes
    pod = PodReference(PodUid(wanted["uid"]), wanted["namespace"], wanted["name"])
    return bind_pod(pod, wanted["node"], CHOICE)


async def refusal_of(api: KubernetesApi, request: ApiRequest) -> ApiError:
    with pytest.raises(ApiError) as raised:
        await send(api, request, timeout_seconds=5)
    return raised.value


def body_of(request: ApiRequest) -> Any:
    assert request.body is not None
    return request.body


# Bindings.


def test_a_binding_is_one_post_with_uid_node_and_annotations() -> None:
    request = binding()
    assert (request.method, request.path) == ("POST", "/api/v1/namespaces/default/pods/a/binding")
    assert request.body == {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "a", "namespace": "default", "uid": "uid-a", "annotations": CHOICE},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }


async def test_node_and_assignment_are_written_together(
    server: StandInApiServer, api: KubernetesApi, pod: Manifest
) -> None:
    server.create_pod(pod("a", uid="uid-a"))
    await send(api, binding(), timeout_seconds=5)
    bound = PODS.decode(await send(api, writes.read_pod(namespace="default", name="a"), timeout_seconds=5))
    assert bound.node_name == "n1"
    assert bound.annotations == CHOICE


async def test_t37_exactly_one_binder_wins(server: StandInApiServer, api: KubernetesApi, pod: Manifest) -> None:
    server.create_pod(pod("a", uid="uid-a"))
    await send(api, binding(), timeout_seconds=5)
    refusal = await refusal_of(api, binding(node="n2"))
    assert refusal.conflict
    assert 'pod a is already assigned to node "n1"' in refusal.message


async def test_t39_a_binding_for_another_uid_is_refused_and_nothing_written(
    server: StandInApiServer, api: KubernetesApi, pod: Manifest
) -> None:
    server.create_pod(pod("a", uid="uid-new"))
    refusal = await refusal_of(api, binding())
    assert refusal.other_object
    assert "nodeName" not in server.get(kinds.PODS, "a", "default")["spec"]


async def test_t40_after_a_lost_answer_the_pod_read_back_tells(
    server: StandInApiServer, api: KubernetesApi, pod: Manifest
) -> None:
    server.create_pod(pod("a", uid="uid-a"))
    server.fail(Fault(Match(path="/binding$"), lose_answer=True))
    with pytest.raises(UnreachableError) as raised:
        await send(api, binding(), timeout_seconds=5)
    assert raised.value.may_have_arrived
    found = PODS.decode(await send(api, writes.read_pod(namespace="default", name="a"), timeout_seconds=5))
    assert (found.uid, found.node_name) == ("uid-a", "n1")


async def test_binding_a_pod_that_is_gone_is_refused_as_missing(api: KubernetesApi) -> None:
    assert (await refusal_of(api, binding())).missing


# Annotations of pods.


async def test_annotations_are_changed_through_the_status(
    server: StandInApiServer, api: KubernetesApi, pod: Manifest
) -> None:
    server.create_pod(pod("a", uid="uid-a", node="n1"))
    server.patch_pod("default", "a", {"metadata": {"annotations": {"theirs": "1", "old": "2"}}})
    change = {"NEURON_ALLOCATED": "true", "old": None}
    request = writes.describe_pod(namespace="default", name="a", uid="uid-a", annotations=change)
    assert request.path == "/api/v1/namespaces/default/pods/a/status"
    await send(api, request, timeout_seconds=5)
    assert server.get(kinds.PODS, "a", "default")["metadata"]["annotations"] == {
        "theirs": "1",
        "NEURON_ALLOCATED": "true",
    }
    assert server.get(kinds.PODS, "a", "default")["spec"]["nodeName"] == "n1"


async def test_t31_the_successor_of_a_pod_is_not_annotated(
    server: StandInApiServer, api: KubernetesApi, pod: Manifest
) -> None:
    server.create_pod(pod("web-0", uid="second"))
    request = writes.describe_pod(namespace="default", name="web-0", uid="first", annotations={"a": "b"})
    assert (await refusal_of(api, request)).other_object
    assert "annotations" not in server.get(kinds.PODS, "web-0", "default")["metadata"]


# Nodes.


async def test_a_nodes_annotations_and_labels_are_merged(server: StandInApiServer, api: KubernetesApi) -> None:
    server.create_node({"metadata": {"name": "n1", "labels": {"zone": "a", "old": "x"}, "annotations": {"k": "v"}}})
    request = writes.describe_node("n1", annotations={"neuron-plugin.io/inventory": "{}"}, labels={"old": None})
    await send(api, request, timeout_seconds=5)
    found = NODES.decode(await send(api, writes.read_node("n1"), timeout_seconds=5))
    assert found.annotations == {"k": "v", "neuron-plugin.io/inventory": "{}"}
    assert found.labels == {"zone": "a"}


def test_a_node_patch_names_only_what_it_changes() -> None:
    assert writes.describe_node("n1", labels={"a": "b"}).body == {"metadata": {"labels": {"a": "b"}}}


@pytest.mark.parametrize(("status", "text"), [(True, "True"), (False, "False"), (None, "Unknown")])
async def test_a_condition_leaves_those_of_the_kubelet_alone(
    server: StandInApiServer,
    api: KubernetesApi,
    status: bool | None,  # noqa: FBT001 - a table's column
    text: str,
) -> None:
    ready = {"type": "Ready", "status": "True"}
    old = {"type": "NeuronHealthy", "status": "True", "reason": "Old"}
    server.create_node({"metadata": {"name": "n1"}, "status": {"conditions": [ready, old]}})
    request = writes.report_node_condition(
        "n1", condition="NeuronHealthy", status=status, reason="DeviceReset", message="m", since=NOW, now=NOW
    )
    await send(api, request, timeout_seconds=5)
    conditions = {entry["type"]: entry for entry in server.get(kinds.NODES, "n1")["status"]["conditions"]}
    assert conditions["Ready"] == ready
    assert (conditions["NeuronHealthy"]["status"], conditions["NeuronHealthy"]["reason"]) == (text, "DeviceReset")
    assert conditions["NeuronHealthy"]["lastTransitionTime"] == "2026-01-02T03:04:05Z"


async def test_a_condition_is_taken_out_and_those_of_the_kubelet_stay(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    ready = {"type": "Ready", "status": "True"}
    server.create_node({"metadata": {"name": "n1"}, "status": {"conditions": [ready, {"type": "NeuronHealthy"}]}})
    for _ in range(2):
        await send(api, writes.remove_node_condition("n1", "NeuronHealthy"), timeout_seconds=5)
        assert server.get(kinds.NODES, "n1")["status"]["conditions"] == [ready]


# Events.

POD = ObjectReference("Pod", "train-0", "uid-1", "v1", "ml")
NODE = ObjectReference("Node", "n1", "uid-2", "v1")


def event(regarding: ObjectReference, **changes: Any) -> ApiRequest:
    said: dict[str, Any] = {
        "reason": "NotLinked",
        "note": "devices 0 and 5 are not linked",
        "action": "Allocate",
        "reporter": "neuron-plugin.io/plugin",
        "instance": "n1",
        "now": NOW,
    }
    return writes.create_event(regarding, **(said | changes))


async def test_an_event_about_a_pod_lives_in_its_namespace(server: StandInApiServer, api: KubernetesApi) -> None:
    await send(api, event(POD, warning=True), timeout_seconds=5)
    (found,) = server.objects(kinds.EVENTS)
    assert found["metadata"]["namespace"] == "ml"
    assert found["metadata"]["name"].startswith("train-0-")
    assert found["type"] == "Warning"
    assert found["eventTime"] == "2026-01-02T03:04:05.678900Z"
    pod = {"kind": "Pod", "name": "train-0", "uid": "uid-1", "apiVersion": "v1", "namespace": "ml"}
    assert found["regarding"] == pod
    assert (found["reason"], found["action"]) == ("NotLinked", "Allocate")
    assert (found["reportingController"], found["reportingInstance"]) == ("neuron-plugin.io/plugin", "n1")


async def test_an_event_about_a_node_lives_in_default(server: StandInApiServer, api: KubernetesApi) -> None:
    await send(api, event(NODE), timeout_seconds=5)
    (found,) = server.objects(kinds.EVENTS)
    assert found["metadata"]["namespace"] == "default"
    assert "namespace" not in found["regarding"]
    assert found["type"] == "Normal"


@pytest.mark.parametrize("name", ["a" * 253, f"{'a' * 99}.b", "n1.example.com"])
async def test_an_event_about_an_object_of_any_name_is_taken(
    name: str, server: StandInApiServer, api: KubernetesApi
) -> None:
    await send(api, event(msgspec.structs.replace(POD, name=name)), timeout_seconds=5)
    (found,) = server.objects(kinds.EVENTS)
    assert found["regarding"]["name"] == name


@pytest.mark.parametrize("instance", ["n" * 128, "n" * 129, "n" * 253])
async def test_an_event_is_taken_from_a_node_of_any_name(
    instance: str, server: StandInApiServer, api: KubernetesApi
) -> None:
    await send(api, event(POD, instance=instance), timeout_seconds=5)
    (found,) = server.objects(kinds.EVENTS)
    assert found["reportingInstance"][:125] == instance[:125]
    assert (found["reportingInstance"] == instance) is (len(instance) <= 128)


def test_the_prefix_of_an_events_name_is_never_longer_than_a_name_may_be() -> None:
    assert len(body_of(event(msgspec.structs.replace(POD, name="a" * 253)))["metadata"]["generateName"]) <= 253


@given(st.text(max_size=1100) | st.just("ü" * 1000) | st.just("x" * 1025))
def test_a_note_is_never_longer_than_the_server_takes(note: str) -> None:
    sent = str(body_of(event(POD, note=note))["note"])
    assert len(sent.encode()) <= 1024
    assert sent == note or (sent.endswith("…") and note.startswith(sent[:-1]))


# Leases.

NAME = LeaseName("kube-system", "neuron-extender", "me")


def observed(version: str, holder: str = "other", transitions: int = 0) -> Lease:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": transitions}
    return LEASES.decode(msgspec.json.encode({"metadata": {"resourceVersion": version, "uid": "u"}, "spec": spec}))


def test_a_claim_names_the_version_it_saw() -> None:
    request = writes.claim_lease(NAME, observed("7", holder="other", transitions=4), duration_seconds=15, now=NOW)
    assert request.body == {
        "metadata": {"resourceVersion": "7", "uid": "u"},
        "spec": {
            "holderIdentity": "me",
            "leaseDurationSeconds": 15,
            "renewTime": "2026-01-02T03:04:05.678900Z",
            "acquireTime": "2026-01-02T03:04:05.678900Z",
            "leaseTransitions": 5,
        },
    }


def test_renewing_ones_own_is_no_transition() -> None:
    request = writes.claim_lease(NAME, observed("7", holder="me", transitions=4), duration_seconds=15, now=NOW)
    assert not {"leaseTransitions", "acquireTime"} & body_of(request)["spec"].keys()


def test_a_claim_says_where_its_holder_can_be_reached_in_the_same_write() -> None:
    url = "https://10.0.0.7:12345"
    named = LeaseName("kube-system", "neuron-extender", "me", url=url)
    claimed = writes.claim_lease(named, observed("7"), duration_seconds=15, now=NOW)
    made = writes.create_lease(named, duration_seconds=15, now=NOW)
    for request in (claimed, made):
        assert body_of(request)["metadata"]["annotations"] == {HOLDER_URL_KEY: url}


def test_a_holder_without_a_url_takes_the_last_ones_away() -> None:
    seen = LEASES.decode(
        b'{"metadata":{"resourceVersion":"7","annotations":{"neuron-plugin.io/holder-url":"https://gone"}},"spec":{}}'
    )
    request = writes.claim_lease(NAME, seen, duration_seconds=15, now=NOW)
    assert body_of(request)["metadata"] == {"resourceVersion": "7", "uid": "", "annotations": {HOLDER_URL_KEY: None}}


async def test_a_nodes_lease_goes_with_its_node(server: StandInApiServer, api: KubernetesApi) -> None:
    name = LeaseName("kube-system", "n1", "n1", owner=ObjectReference("Node", "n1", "uid-n1", "v1"))
    await send(api, writes.create_lease(name, duration_seconds=40, now=NOW), timeout_seconds=5)
    made = server.get(kinds.LEASES, "n1", "kube-system")
    assert made["metadata"]["ownerReferences"] == [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-n1"}]
    assert made["spec"]["leaseDurationSeconds"] == 40


def test_a_lease_is_deleted_by_its_name() -> None:
    request = writes.delete_lease(NAME)
    assert (request.method, request.path) == (
        "DELETE",
        "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/neuron-extender",
    )
