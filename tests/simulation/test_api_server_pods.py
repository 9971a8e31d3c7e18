"""What the simulated API server does with pods alone: gates, changes of a spec, bindings, evictions."""

from __future__ import annotations

from typing import Any

import pytest

from neuron_plugin.allocation.keys import GATE
from neuron_plugin.simulation.api_server_kinds import BUDGETS, PODS, Refusal, Target
from neuron_plugin.simulation.api_server_objects import ApiObjects, created
from neuron_plugin.simulation.api_server_patches import merge_patched
from neuron_plugin.simulation.api_server_pods import bound, budget_status

Json = dict[str, Any]
TARGET = Target(PODS, "ns", "p")


def stored(**metadata: Any) -> Json:
    made = created(PODS, "ns", {"metadata": {"name": "p", "uid": "uid-p", **metadata}, "spec": {"containers": []}})
    return made | {"metadata": made["metadata"] | {"resourceVersion": "5"}}


def holding(labels: Json | None = None, **spec: Any) -> ApiObjects:
    """A server with the pod ``p``."""
    objects = ApiObjects()
    container = {"name": "main", "resources": {"limits": {"aws.amazon.com/neuron": 4}}}
    pod = {"metadata": {"name": "p", "labels": labels or {}}, "spec": {"containers": [container], **spec}}
    objects.create(PODS, pod, "ns")
    return objects


def refusal(objects: ApiObjects, change: Json) -> Refusal:
    with pytest.raises(Refusal) as raised:
        objects.patch(TARGET, change)
    return raised.value


def required(*terms: Json) -> Json:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def named(key: str, *values: str) -> Json:
    return {"key": key, "operator": "In", "values": list(values)}


OURS = [{"name": GATE}]
ZONE = {"matchExpressions": [named("zone", "a", "b")]}
PIN = {"matchFields": [named("metadata.name", "n1")]}


# Gates.


def test_a_gated_pod_says_so_and_is_not_bound() -> None:
    objects = holding(schedulingGates=OURS)
    pod = objects.read(TARGET).value
    (condition,) = pod["status"]["conditions"]
    assert (pod["status"]["phase"], condition["type"], condition["status"], condition["reason"]) == (
        "Pending",
        "PodScheduled",
        "False",
        "SchedulingGated",
    )
    with pytest.raises(Refusal, match=r"has non-empty \.spec\.schedulingGates") as raised:
        objects.bind("ns", "p", {"target": {"name": "n1"}})
    assert raised.value.code == 409
    assert "conditions" not in holding().read(TARGET).value["status"]


def test_gates_only_go() -> None:
    text = "only deletion is allowed, but found new scheduling gate 'new'"
    for objects in (holding(), holding(schedulingGates=OURS)):
        found = refusal(objects, {"spec": {"schedulingGates": [*OURS, {"name": "new"}]}})
        assert (found.code, text in found.message) == (422, True)


# Changes of a spec.


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"affinity": required()}, "no additions/deletions to non-empty NodeSelectorTerms"),
        ({"affinity": required(ZONE, ZONE)}, "no additions/deletions to non-empty NodeSelectorTerms"),
        ({"affinity": required({"matchExpressions": [named("zone", "a")]})}, "only additions are allowed"),
        ({"affinity": required(PIN)}, "only additions are allowed"),
        ({"nodeSelector": {"disk": "hdd"}}, "only additions to spec.nodeSelector"),
        ({"nodeSelector": {"disk": None, "more": "x"}}, "only additions to spec.nodeSelector"),
        ({"nodeName": "n1"}, "pod updates may not change fields other than"),
        ({"affinity": {"podAffinity": {}}}, "pod updates may not change fields other than"),
        ({"containers": [{"name": "main"}]}, "pod updates may not change fields other than"),
        ({"tolerations": []}, "existing toleration can not be modified"),
    ],
)
def test_a_gated_pod_is_only_narrowed(change: Json, said: str) -> None:
    spec: Json = {"affinity": required(ZONE), "nodeSelector": {"disk": "ssd"}, "tolerations": [{"key": "a"}]}
    found = refusal(holding(schedulingGates=OURS, **spec), {"spec": change})
    assert (found.code, said in found.message) == (422, True), found.message


def test_an_image_tolerations_and_metadata_may_change() -> None:
    objects = holding(tolerations=[{"key": "a"}])
    (container,) = objects.read(TARGET).value["spec"]["containers"]
    spec = {"containers": [container | {"image": "new"}], "tolerations": [{"key": "a"}, {"key": "b"}]}
    after = objects.patch(TARGET, {"metadata": {"labels": {"a": "b"}}, "spec": spec}).value
    assert after["spec"]["containers"][0]["image"] == "new"


def refusal_of(value: Json, target: Json | None = None, **metadata: Any) -> Refusal:
    with pytest.raises(Refusal) as raised:
        bound(value, {"metadata": metadata, "target": {"name": "n1"} if target is None else target})
    return raised.value


# Bindings: the texts of pkg/registry/core/pod/storage/storage.go.


@pytest.mark.parametrize(
    ("change", "wanted", "text"),
    [
        ({"metadata": {"deletionTimestamp": "x"}}, {}, "pod p is being deleted, cannot be assigned to a host"),
        ({"spec": {"nodeName": "n9"}}, {}, 'pod p is already assigned to node "n9"'),
        ({"spec": {"schedulingGates": [{"name": "g"}]}}, {}, "pod p has non-empty .spec.schedulingGates"),
        ({}, {"uid": "x"}, "Precondition failed: UID in precondition: x, UID in object meta: uid-p"),
        (
            {},
            {"resourceVersion": "4"},
            "Precondition failed: ResourceVersion in precondition: 4, ResourceVersion in object meta: 5",
        ),
    ],
)
def test_a_pod_that_cannot_be_bound_is_refused_with_the_servers_text(change: Json, wanted: Json, text: str) -> None:
    refusal = refusal_of(merge_patched(stored(), change), **wanted)
    assert (refusal.code, refusal.reason) == (409, "Conflict")
    assert refusal.message == f'Operation cannot be fulfilled on pods/binding "p": {text}'


@pytest.mark.parametrize("target", [{}, {"name": ""}, {"name": "n1", "kind": "Machine"}])
def test_a_binding_needs_a_node(target: Json) -> None:
    assert refusal_of(stored(), target).code == 422


@pytest.mark.parametrize("conditions", [[{}], [{"type": "Ready", "status": "True"}, {"status": "True"}]])
def test_a_condition_without_a_type_is_refused(conditions: list[Json]) -> None:
    objects = holding()
    with pytest.raises(Refusal, match=r"status\.conditions\[\d\]\.type: Required value") as raised:
        objects.patch(Target(PODS, "ns", "p", "status"), {"status": {"conditions": conditions}})
    assert raised.value.code == 422


# Evictions.


EVICTION: Json = {"metadata": {"name": "p"}}


def running(budgets: int, allowed: int = 0) -> ApiObjects:
    objects = holding(labels={"app": "a"}, nodeName="n1")
    objects.patch(Target(PODS, "ns", "p", "status"), {"status": {"phase": "Running"}})
    for number in range(budgets):
        budget = {
            "metadata": {"name": f"b{number}"},
            "spec": {"selector": {"matchLabels": {"app": "a"}}},
            "status": {"disruptionsAllowed": allowed, "desiredHealthy": 3, "currentHealthy": 3},
        }
        objects.create(BUDGETS, budget, "ns")
    return objects


def test_an_eviction_deletes_the_pod_and_says_so_on_it() -> None:
    objects = running(0)
    objects.evict("ns", "p", EVICTION)
    pod = objects.read(TARGET).value
    assert "deletionTimestamp" in pod["metadata"]
    assert [(each["type"], each["reason"]) for each in pod["status"]["conditions"]] == [
        ("DisruptionTarget", "EvictionByEvictionAPI")
    ]


def test_an_eviction_is_counted_in_its_budget() -> None:
    objects = running(1, allowed=1)
    objects.evict("ns", "p", EVICTION)
    assert objects.read(Target(BUDGETS, "ns", "b0")).value["status"]["disruptionsAllowed"] == 0
    objects.evict("ns", "p", EVICTION)  # it is being deleted already


def test_a_pod_of_two_budgets_is_not_evicted() -> None:
    with pytest.raises(Refusal) as raised:
        running(2, allowed=1).evict("ns", "p", EVICTION)
    assert raised.value.code == 500


@pytest.mark.parametrize(
    ("options", "code"), [({"preconditions": {"uid": "x"}}, 409), ({"preconditions": {"resourceVersion": "1"}}, 409)]
)
def test_preconditions_of_an_eviction_and_a_deletion_are_kept(options: Json, code: int) -> None:
    objects = running(0)
    for write in (
        lambda: objects.evict("ns", "p", EVICTION | {"deleteOptions": options}),
        lambda: objects.delete(TARGET, options),
    ):
        with pytest.raises(Refusal) as raised:
            write()
        assert raised.value.code == code


@pytest.mark.parametrize(
    ("spec", "allowed"),
    [
        ({"minAvailable": 2}, 1),
        ({"minAvailable": "50%"}, 1),
        ({"maxUnavailable": 1}, 0),
        ({"maxUnavailable": "50%"}, 1),
        ({"maxUnavailable": 1, "selector": None}, 0),
        ({"minAvailable": 0, "selector": {}}, 3),
        ({"minAvailable": 0, "selector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}}, 3),
        (
            {
                "minAvailable": 0,
                "selector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["a"]}]},
            },
            0,
        ),
    ],
)
def test_a_budget_allows_what_its_healthy_pods_leave(spec: Json, allowed: int) -> None:
    ready = {"conditions": [{"type": "Ready", "status": "True"}], "phase": "Running"}
    pods = [
        {"metadata": {"namespace": "ns", "labels": {"app": "a"}}, "status": ready if number else {"phase": "Running"}}
        for number in range(4)
    ]
    pods.append({"metadata": {"namespace": "other", "labels": {"app": "a"}}, "status": ready})
    budget = {"metadata": {"namespace": "ns"}, "spec": {"selector": {"matchLabels": {"app": "a"}}, **spec}}
    assert budget_status(budget, pods)["disruptionsAllowed"] == allowed
