"""The simulated API server judged by what no one here wrote: the Kubernetes project's own client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from kubernetes.aio import client, config, dynamic, watch
from kubernetes.aio.client.exceptions import ApiException

from neuron_plugin.simulation.api_server_kinds import KINDS, PODS
from tests.support.api_server import StandInApiServer

STRATEGIC = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"
NEURON = "aws.amazon.com/neuron"
Official = Any
"""An API of the client, or what makes one: in its types nearly everything may be None."""


@pytest.fixture
async def sender(server: StandInApiServer, tmp_path: Path) -> AsyncIterator[Official]:
    loaded = config.new_client_from_config(str(server.write_kubeconfig(tmp_path / "kubeconfig")))  # type: ignore[no-untyped-call]
    async with await loaded as sender:
        yield sender


@pytest.fixture
def core(sender: Official) -> Official:
    return client.CoreV1Api(sender)


def pod(name: str, **metadata: Any) -> client.V1Pod:
    limits = client.V1ResourceRequirements(limits={NEURON: "1"})
    containers = [client.V1Container(name="main", image="none", resources=limits)]
    return client.V1Pod(
        metadata=client.V1ObjectMeta(name=name, **metadata), spec=client.V1PodSpec(containers=containers)
    )


async def refusal(call: Awaitable[Any]) -> tuple[int, str, str]:
    """Code, reason and message of a refusal, as the client finds them in the Status object."""
    with pytest.raises(ApiException) as raised:
        await call
    status = json.loads(raised.value.body or "")
    assert (status["kind"], status["apiVersion"], status["code"]) == ("Status", "v1", raised.value.status)
    return raised.value.status, status["reason"], status["message"]


async def test_pods_are_created_listed_by_pages_and_read(core: Official) -> None:
    for name in "abc":
        made = await core.create_namespaced_pod("default", pod(name, labels={"app": "x"}))
        assert (made.spec.restart_policy, made.status.phase) == ("Always", "Pending")
    first = await core.list_namespaced_pod("default", label_selector="app=x", limit=2)
    rest = await core.list_namespaced_pod(
        "default", label_selector="app=x", limit=2, _continue=first.metadata._continue
    )
    assert [each.metadata.name for each in (*first.items, *rest.items)] == ["a", "b", "c"]
    assert first.metadata.resource_version == rest.metadata.resource_version
    selected = await core.list_pod_for_all_namespaces(field_selector="metadata.name=b,spec.nodeName=")
    assert [each.metadata.name for each in selected.items] == ["b"]
    read = await core.read_namespaced_pod("a", "default")
    assert read.spec.containers[0].resources.requests == {"aws.amazon.com/neuron": "1"}


async def test_refusals_are_status_objects_with_their_reasons(core: Official) -> None:
    made = await core.create_namespaced_pod("default", pod("a"))
    assert await refusal(core.create_namespaced_pod("default", pod("a"))) == (
        409,
        "AlreadyExists",
        'pods "a" already exists',
    )
    assert (await refusal(core.read_namespaced_pod("b", "default")))[:2] == (404, "NotFound")
    assert (await refusal(core.list_pod_for_all_namespaces(field_selector="spec.priority=1")))[:2] == (
        400,
        "BadRequest",
    )
    assert (await refusal(core.create_namespaced_pod("default", pod("A"))))[:2] == (422, "Invalid")
    await core.patch_namespaced_pod("a", "default", {"metadata": {"labels": {"x": "y"}}})
    assert (await refusal(core.replace_namespaced_pod("a", "default", made)))[:2] == (409, "Conflict")
    listed = await core.list_pod_for_all_namespaces(limit=1)
    assert listed.metadata._continue is None
    expired = core.list_pod_for_all_namespaces(_continue="OTk6MQ==")
    assert (await refusal(expired))[:2] == (410, "Expired")


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({NEURON: "2"}, f'.requests: Invalid value: "1": must be equal to {NEURON} limit of 2'),
        ({"cpu": "1"}, ".limits: Required value: Limit must be set for non overcommitable resources"),
    ],
)
async def test_a_count_is_limited_to_what_it_requests(core: Official, limits: dict[str, str], why: str) -> None:
    asking: Official = pod("a")
    asking.spec.containers[0].resources = client.V1ResourceRequirements(limits=limits, requests={NEURON: "1"})
    answer = await refusal(core.create_namespaced_pod("default", asking))
    assert answer == (422, "Invalid", f'Pod "a" is invalid: spec.containers[0].resources{why}')


async def test_a_pod_with_a_finalizer_stays_until_that_is_off_and_its_containers_have_ended(
    core: Official, server: StandInApiServer
) -> None:
    await core.create_namespaced_pod("default", pod("a", finalizers=["example.com/wait"]))
    server.bind("default", "a", node="n")
    await core.delete_namespaced_pod("a", "default")
    ending = await core.read_namespaced_pod("a", "default")
    assert ending.metadata.deletion_grace_period_seconds == 30
    server.delete_pod("default", "a", grace_seconds=0)  # by its kubelet
    left = await core.patch_namespaced_pod("a", "default", {"metadata": {"labels": {"a": "b"}}})
    assert left.metadata.deletion_grace_period_seconds == 0
    await core.patch_namespaced_pod("a", "default", {"metadata": {"finalizers": None}})
    assert (await refusal(core.read_namespaced_pod("a", "default")))[0] == 404


async def test_a_json_patch_tests_replaces_and_removes_and_says_what_it_cannot(core: Official) -> None:
    await core.create_namespaced_pod("default", pod("a", labels={"app": "a", "old": "1"}))
    steps: list[dict[str, object]] = [
        {"op": "test", "path": "/metadata/labels/app", "value": "a"},
        {"op": "replace", "path": "/metadata/labels/app", "value": "b"},
        {"op": "remove", "path": "/metadata/labels/old"},
        {"op": "add", "path": "/metadata/labels/a~1b", "value": "c"},
        {"op": "add", "path": "/spec/tolerations", "value": []},
        {"op": "add", "path": "/spec/tolerations/-", "value": {"operator": "Exists"}},
    ]
    patched = await core.patch_namespaced_pod("a", "default", steps)
    assert patched.metadata.labels == {"app": "b", "a/b": "c"}
    assert patched.spec.tolerations[0].operator == "Exists"
    for step in (steps[0], {"op": "remove", "path": "/metadata/none/x"}):
        assert (await refusal(core.patch_namespaced_pod("a", "default", [step])))[0] == 422
    move = {"op": "move", "path": "/metadata/labels/app", "from": "/metadata/labels/x"}
    assert (await refusal(core.patch_namespaced_pod("a", "default", [move])))[0] == 400


async def test_a_pod_s_life_by_its_subresources(core: Official, server: StandInApiServer) -> None:
    await core.create_node(client.V1Node(metadata=client.V1ObjectMeta(name="n1")))
    await core.create_namespaced_pod("default", pod("a"))
    binding = client.V1Binding(
        metadata=client.V1ObjectMeta(name="a", annotations={"NEURON_DEVS": "3"}),
        target=client.V1ObjectReference(kind="Node", name="n1"),
    )
    # The answer is a Status, as from a real server, of which the client can make no binding.
    answer = await core.create_namespaced_pod_binding_without_preload_content("a", "default", binding)
    assert answer.status == 201
    assert (await refusal(core.create_namespaced_pod_binding("a", "default", binding)))[:2] == (409, "Conflict")
    running = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    shown = await core.patch_namespaced_pod_status("a", "default", running, _content_type=STRATEGIC)
    assert (shown.spec.node_name, shown.status.phase) == ("n1", "Running")
    assert shown.metadata.annotations == {"NEURON_DEVS": "3"}
    assert {each.type for each in shown.status.conditions} == {"Ready", "PodScheduled"}
    resized = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "2"}}}]}}
    after = await core.patch_namespaced_pod_resize("a", "default", resized, _content_type=STRATEGIC)
    assert after.spec.containers[0].resources.requests["cpu"] == "2"
    assert (await refusal(core.read_namespaced_pod_log("a", "default")))[0] == 400
    server.serve_logs(lambda *_: "NEURON_RT_VISIBLE_CORES=0\n")
    assert await core.read_namespaced_pod_log("a", "default") == "NEURON_RT_VISIBLE_CORES=0\n"
    await core.create_namespaced_pod_eviction("a", "default", client.V1Eviction(metadata=client.V1ObjectMeta(name="a")))
    going = await core.read_namespaced_pod("a", "default")
    assert isinstance(going.metadata.deletion_timestamp, datetime)
    other = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid="another"))
    assert (await refusal(core.delete_namespaced_pod("a", "default", body=other)))[:2] == (409, "Conflict")
    await core.delete_namespaced_pod("a", "default", grace_period_seconds=0)
    assert server.objects(PODS) == []


async def test_an_eviction_that_a_budget_does_not_allow_is_429(sender: Official, core: Official) -> None:
    spec = client.V1PodDisruptionBudgetSpec(min_available=1, selector=client.V1LabelSelector(match_labels={"app": "a"}))
    budget = client.V1PodDisruptionBudget(metadata=client.V1ObjectMeta(name="one"), spec=spec)
    await client.PolicyV1Api(sender).create_namespaced_pod_disruption_budget("default", budget)
    await core.create_namespaced_pod("default", pod("a", labels={"app": "a"}))
    await core.patch_namespaced_pod_status("a", "default", {"status": {"phase": "Running"}}, _content_type=MERGE)
    eviction = client.V1Eviction(metadata=client.V1ObjectMeta(name="a"))
    assert (await refusal(core.create_namespaced_pod_eviction("a", "default", eviction)))[:2] == (
        429,
        "TooManyRequests",
    )


async def test_a_dry_run_answers_as_the_write_would_and_writes_nothing(
    core: Official, server: StandInApiServer
) -> None:
    made = await core.create_namespaced_pod("default", pod("b"), dry_run="All")
    assert (made.metadata.name, made.status.phase) == ("b", "Pending")
    kept = server.create_pod({"metadata": {"name": "a"}, "spec": {"containers": [], "nodeName": "n"}})
    changed = await core.patch_namespaced_pod("a", "default", {"metadata": {"labels": {"a": "b"}}}, dry_run="All")
    assert changed.metadata.labels == {"a": "b"}
    options = client.V1DeleteOptions(dry_run=["All"], grace_period_seconds=0)
    eviction = client.V1Eviction(metadata=client.V1ObjectMeta(name="a"), delete_options=options)
    await core.create_namespaced_pod_eviction("a", "default", eviction)
    await core.delete_namespaced_pod("a", "default", body=options)
    assert (await refusal(core.create_namespaced_pod("default", pod("a"), dry_run="All")))[0] == 409
    assert server.objects(PODS) == [kept]


async def test_who_asks_may_do_everything(sender: Official) -> None:
    attributes = client.V1ResourceAttributes(verb="create", resource="pods")
    asked = client.V1SelfSubjectAccessReview(spec=client.V1SelfSubjectAccessReviewSpec(resource_attributes=attributes))
    answer: Official = await client.AuthorizationV1Api(sender).create_self_subject_access_review(asked)
    assert answer.status.allowed


async def test_what_reaches_into_containers_is_refused_for_that(core: Official, server: StandInApiServer) -> None:
    server.create_pod({"metadata": {"name": "a"}, "spec": {"containers": []}})
    change: Official = {"spec": {"ephemeralContainers": []}}
    answer = await refusal(core.patch_namespaced_pod_ephemeralcontainers("a", "default", change))
    assert answer == (501, "NotImplemented", "ephemeralcontainers is not simulated: no container runs anything here")


async def test_a_watch_shows_what_happens_and_its_410(core: Official, server: StandInApiServer) -> None:
    server.create_pod({"metadata": {"name": "a"}, "spec": {"containers": []}})
    seen = []

    async def see() -> None:
        watching: Official = watch.Watch()  # type: ignore[no-untyped-call]
        async for event in watching.stream(core.list_namespaced_pod, "default", timeout_seconds=5):
            seen.append((event["type"], event["object"].metadata.name))
            if event["type"] == "ADDED":
                server.patch_pod("default", "a", {"metadata": {"labels": {"x": "y"}}})
            elif event["type"] == "MODIFIED":
                server.delete_pod("default", "a", grace_seconds=0)
            else:
                server.expire_watches()

    with pytest.raises(ApiException, match="410"):
        await see()
    assert seen == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


async def test_leases_events_and_claims_have_the_client_s_shapes(sender: Official, core: Official) -> None:
    now = datetime.now(UTC)
    leases: Official = client.CoordinationV1Api(sender)
    lease = client.V1Lease(
        metadata=client.V1ObjectMeta(name="l"), spec=client.V1LeaseSpec(holder_identity="me", renew_time=now)
    )
    made = await leases.create_namespaced_lease("default", lease)
    assert made.spec.renew_time == now
    made.spec.holder_identity = "you"
    assert (await leases.replace_namespaced_lease("l", "default", made)).spec.holder_identity == "you"
    assert (await refusal(leases.replace_namespaced_lease("l", "default", made)))[:2] == (409, "Conflict")
    about = client.V1ObjectReference(kind="Pod", name="a", namespace="default")
    event = client.EventsV1Event(
        metadata=client.V1ObjectMeta(generate_name="e-"),
        event_time=now,
        type="Normal",
        reason="Placed",
        action="Place",
        note="here",
        reporting_controller="neuron-plugin.io/extender",
        reporting_instance="e",
        regarding=about,
    )
    await client.EventsV1Api(sender).create_namespaced_event("default", event)
    (older,) = (await core.list_namespaced_event("default", field_selector="involvedObject.name=a")).items
    assert (older.reason, older.message, older.involved_object.kind) == ("Placed", "here", "Pod")
    resource: Official = client.ResourceV1Api(sender)
    spec = {"devices": {"requests": [{"name": "neurons", "exactly": {"deviceClassName": "neuron.aws.com"}}]}}
    claim = await resource.create_namespaced_resource_claim("default", {"metadata": {"name": "c"}, "spec": spec})
    assert claim.spec.devices.requests[0].exactly.count == 1
    assert [each.metadata.name for each in (await resource.list_resource_claim_for_all_namespaces()).items] == ["c"]


async def test_its_discovery_finds_every_kind_and_what_a_drain_needs(sender: Official) -> None:
    assert (await client.VersionApi(sender).get_code()).minor == "36"
    async with dynamic.DynamicClient(sender) as finder:  # type: ignore[no-untyped-call]
        for kind in KINDS:
            found = await finder.resources.get(api_version=kind.version, kind=kind.kind)
            assert (found.namespaced, (await found.get()).kind) == (kind.namespaced, f"{kind.kind}List")
        assert await finder.resources.get(api_version="v1", kind="Event")
        assert "eviction" in (await finder.resources.get(api_version="v1", kind="Pod")).subresources
