"""What the simulated API server refuses to store, in the real one's words, and what it does with pods alone."""

from __future__ import annotations

from typing import Any

import pytest

from neuron_plugin.allocation.keys import GATE
from neuron_plugin.simulation.api_server_kinds import (
    BUDGETS,
    CLAIM_TEMPLATES,
    EVENTS,
    LEASES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    Refusal,
    ServedKind,
    Target,
)
from neuron_plugin.simulation.api_server_objects import ApiObjects
from neuron_plugin.simulation.api_server_rules import budget_status
from tests.simulation.api_client import MERGE, Client, names
from tests.simulation.dra import CLAIMS, DRIVER, FINALIZER, SLICES, USER, allocation, claim, node_slice
from tests.support.api_server import StandInApiServer

Json = dict[str, Any]
TARGET = Target(PODS, "ns", "p")
STATUS = Target(PODS, "ns", "p", "status")

EVENT: Json = {
    "eventTime": "2026-01-02T03:04:05.678900Z",
    "type": "Normal",
    "reason": "Reason",
    "action": "Action",
    "reportingController": "neuron-plugin.io/plugin",
    "reportingInstance": "i" * 128,
    "regarding": {"kind": "Pod", "name": "p", "namespace": "ns"},
    "note": "n" * 1024,
}
AT_ITS_LIMITS = {
    "labels": {"neuron-plugin.io/" + "a" * 63: "b" * 63, "empty": ""},
    "annotations": {"NEURON_DEVS": "0", "Upper.Case/IN_THE_DOMAIN": "too", "a": "b" * (255 << 10)},
}
OWNER = {"apiVersion": "v1", "kind": "Node", "name": "n"}
METADATA: list[Json] = [
    *({"name": name} for name in ("A", "a_b", "-a", "a.", "a..b", "a" * 254, "a\n")),
    *({"labels": {"a": text}} for text in ("b c", "ends-.", "b" * 64, 1)),
    *({"labels": {key: "b"}} for key in ("neuron-plugin.io/", "Neuron-Plugin.io/a", "a/b/c", "a" * 64)),
    *({"annotations": annotations} for annotations in ({"a b": "c"}, {"a": 1}, {"a": "b" * (256 << 10)})),
    {"ownerReferences": [OWNER]},
]
EVENTS_REFUSED: list[Json] = [
    *({"eventTime": time} for time in (None, "2026-01-02T03:04:05Z")),
    *({word: text} for word in ("reason", "action", "reportingInstance") for text in ("", "r" * 129)),
    *({"reportingController": text} for text in ("", "two words")),
    {"type": "Bad"},
    {"regarding": {"kind": "Node", "name": "n"}},
    {"note": "ä" * 513},
]
LEASES_REFUSED: list[Json] = [
    *({"leaseDurationSeconds": seconds} for seconds in (0, -1)),
    {"leaseTransitions": -1},
    *({"acquireTime": f"2026-01-02{time}"} for time in ("T03:04:05Z", "T03:04:05.123Z", " 03:04:05.123456Z")),
]


def kept(kind: ServedKind, **body: Any) -> Json:
    body |= {"metadata": {"name": "x", **body.get("metadata", {})}}
    return ApiObjects().create(kind, body, "ns" if kind.namespaced else "").value


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        *((NODES, {"metadata": metadata}) for metadata in METADATA),
        *((EVENTS, EVENT | change) for change in EVENTS_REFUSED),
        *((LEASES, {"spec": spec}) for spec in LEASES_REFUSED),
        *((PODS, {"spec": {"containers": [], part: [{}]}}) for part in ("containers", "initContainers")),
        *((EVENTS, EVENT | {"metadata": {"name": "", "generateName": each}}) for each in ("A-", "-")),
    ],
)
def test_what_breaks_a_rule_is_refused(kind: ServedKind, body: Json) -> None:
    with pytest.raises(Refusal) as raised:
        kept(kind, **body)
    assert raised.value.code in {400, 422}


def test_what_is_at_its_limits_is_kept_and_a_refusal_names_the_field() -> None:
    assert kept(NODES, metadata={"name": "n" * 253, **AT_ITS_LIMITS})["metadata"]["labels"] == AT_ITS_LIMITS["labels"]
    kept(EVENTS, **EVENT)
    kept(LEASES, spec={"acquireTime": "2026-01-02T03:04:05.123456Z", "leaseDurationSeconds": 1})
    with pytest.raises(Refusal, match=r'Lease.coordination.k8s.io "x" is invalid: .*spec.leaseDurationSeconds'):
        kept(LEASES, spec={"leaseDurationSeconds": 0})


@pytest.mark.parametrize("namespace", ["default", "kube-system"])
def test_an_event_about_a_node_lives_in_one_of_two_namespaces(namespace: str) -> None:
    about = {"metadata": {"name": "e"}, "regarding": {"kind": "Node", "name": "n"}}
    assert ApiObjects().create(EVENTS, EVENT | about, namespace).value


def test_a_binding_is_not_judged_but_the_next_patch_of_its_pod_is() -> None:
    objects = ApiObjects()
    objects.create(PODS, {"metadata": {"name": "p"}, "spec": {}}, "ns")
    objects.bind("ns", "p", {"metadata": {"annotations": {"no key": "x"}}, "target": {"name": "n"}})
    with pytest.raises(Refusal, match="Expected `str` matching regex") as raised:
        objects.patch(Target(PODS, "ns", "p", "status"), {"metadata": {"annotations": {"a": "b"}}})
    assert raised.value.code == 422


# Pods: gates, and changes of a spec.


def holding(labels: Json | None = None, **spec: Any) -> ApiObjects:
    """A server with the pod ``p``."""
    objects = ApiObjects()
    container = {"name": "main", "resources": {"limits": {"aws.amazon.com/neuron": 4}}}
    metadata = {"name": "p", "uid": "uid-p", "labels": labels or {}}
    objects.create(PODS, {"metadata": metadata, "spec": {"containers": [container], **spec}}, "ns")
    return objects


def required(*terms: Json) -> Json:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def named(key: str, *values: str) -> Json:
    return {"key": key, "operator": "In", "values": list(values)}


OURS = [{"name": GATE}]
ZONE = {"matchExpressions": [named("zone", "a", "b")]}
PIN = {"matchFields": [named("metadata.name", "n1")]}
TERMS = "no additions/deletions to non-empty NodeSelectorTerms"
FIXED = "pod updates may not change fields other than"


def test_a_gated_pod_says_so_and_others_do_not() -> None:
    status = holding(schedulingGates=OURS).read(TARGET).value["status"]
    (condition,) = status["conditions"]
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    assert (status["phase"], condition.items() >= gated.items()) == ("Pending", True)
    assert "conditions" not in holding().read(TARGET).value["status"]


@pytest.mark.parametrize(
    ("target", "change", "said"),
    [
        (TARGET, {"spec": {"affinity": required()}}, TERMS),
        (TARGET, {"spec": {"affinity": required(ZONE, ZONE)}}, TERMS),
        (TARGET, {"spec": {"affinity": required({"matchExpressions": [named("zone", "a")]})}}, "only additions are"),
        (TARGET, {"spec": {"affinity": required(PIN)}}, "only additions are allowed"),
        (TARGET, {"spec": {"nodeSelector": {"disk": "hdd"}}}, "only additions to spec.nodeSelector"),
        (TARGET, {"spec": {"nodeSelector": {"disk": None, "more": "x"}}}, "only additions to spec.nodeSelector"),
        (TARGET, {"spec": {"nodeName": "n1"}}, FIXED),
        (TARGET, {"spec": {"affinity": {"podAffinity": {}}}}, FIXED),
        (TARGET, {"spec": {"containers": [{"name": "main"}]}}, FIXED),
        (TARGET, {"spec": {"tolerations": []}}, "existing toleration can not be modified"),
        (TARGET, {"spec": {"schedulingGates": [*OURS, {"name": "new"}]}}, "but found new scheduling gate 'new'"),
        (TARGET, {"metadata": {"uid": "x"}}, "metadata.uid: Invalid value"),
        (STATUS, {"status": {"conditions": [{}]}}, "status.conditions[0].type: Required value"),
        (STATUS, {"status": {"conditions": [{"type": "Ready"}, {"status": "True"}]}}, "status.conditions[1].type"),
    ],
)
def test_a_gated_pod_is_only_narrowed(target: Target, change: Json, said: str) -> None:
    spec: Json = {"affinity": required(ZONE), "nodeSelector": {"disk": "ssd"}, "tolerations": [{"key": "a"}]}
    with pytest.raises(Refusal) as raised:
        holding(schedulingGates=OURS, **spec).patch(target, change)
    assert (raised.value.code, said in raised.value.message) == (422, True), raised.value.message


@pytest.mark.parametrize("gates", [[], OURS])
def test_an_image_tolerations_and_metadata_may_change_and_of_a_gated_pod_more(gates: list[Json]) -> None:
    objects = holding(schedulingGates=gates, affinity=required(ZONE), tolerations=[{"key": "a"}])
    (container,) = objects.read(TARGET).value["spec"]["containers"]
    spec: Json = {"containers": [container | {"image": "new"}], "tolerations": [{"key": "a"}, {"key": "b"}]}
    spec |= {"affinity": required(ZONE | PIN), "nodeSelector": {"disk": "ssd"}} if gates else {}
    after = objects.patch(TARGET, {"metadata": {"labels": {"a": "b"}}, "spec": spec | {"schedulingGates": []}}).value
    assert after["spec"].items() >= spec.items()
    assert "schedulingGates" not in after["spec"]
    objects.bind("ns", "p", {"target": {"name": "n1"}})


# Bindings and evictions.


@pytest.mark.parametrize(
    ("spec", "binding", "code", "text"),
    [
        ({"nodeName": "n9"}, {}, 409, 'pod p is already assigned to node "n9"'),
        ({"schedulingGates": OURS}, {}, 409, "pod p has non-empty .spec.schedulingGates"),
        ({}, {"metadata": {"uid": "x"}}, 409, "Precondition failed: UID in precondition: x, UID in object meta: uid-p"),
        ({}, {"metadata": {"resourceVersion": "4"}}, 409, "in precondition: 4, ResourceVersion in object meta: 2"),
        ({}, {"metadata": {"name": "q"}}, 400, "name in URL does not match name in Binding object"),
        *(({}, {"target": target}, 422, "") for target in ({}, {"name": ""}, {"name": "n1", "kind": "Machine"})),
    ],
)
def test_a_pod_that_cannot_be_bound_is_refused_with_the_servers_text(
    spec: Json, binding: Json, code: int, text: str
) -> None:
    with pytest.raises(Refusal) as raised:
        holding(**spec).bind("ns", "p", {"target": {"name": "n1"}, **binding})
    assert (raised.value.code, text in raised.value.message) == (code, True), raised.value.message
    if code == 409:
        assert raised.value.message.startswith('Operation cannot be fulfilled on pods/binding "p": ')


EVICTION: Json = {"metadata": {"name": "p"}}


def running(budgets: int, allowed: int = 0) -> ApiObjects:
    objects = holding(labels={"app": "a"}, nodeName="n1")
    objects.patch(STATUS, {"status": {"phase": "Running"}})
    for number in range(budgets):
        budget = {
            "metadata": {"name": f"b{number}"},
            "spec": {"selector": {"matchLabels": {"app": "a"}}},
            "status": {"disruptionsAllowed": allowed, "desiredHealthy": 3, "currentHealthy": 3},
        }
        objects.create(BUDGETS, budget, "ns")
    return objects


def test_an_eviction_is_counted_in_its_budget_deletes_the_pod_and_says_so_on_it() -> None:
    objects = running(1, allowed=1)
    objects.evict("ns", "p", EVICTION)
    pod = objects.read(TARGET).value
    reasons = {each["type"]: each["reason"] for each in pod["status"]["conditions"]}
    assert ("deletionTimestamp" in pod["metadata"], reasons) == (True, {"DisruptionTarget": "EvictionByEvictionAPI"})
    assert objects.read(Target(BUDGETS, "ns", "b0")).value["status"]["disruptionsAllowed"] == 0
    objects.evict("ns", "p", EVICTION)  # it is being deleted already
    with pytest.raises(Refusal, match="pod p is being deleted, cannot be assigned to a host"):
        objects.bind("ns", "p", {"target": {"name": "n1"}})


@pytest.mark.parametrize(
    ("budgets", "eviction", "code"),
    [
        (2, {}, 500),
        (0, {"metadata": {"name": "q"}}, 400),
        *((0, {"deleteOptions": {"preconditions": {name: "1"}}}, 409) for name in ("uid", "resourceVersion")),
    ],
)
def test_a_pod_of_two_budgets_or_another_pod_is_not_evicted(budgets: int, eviction: Json, code: int) -> None:
    with pytest.raises(Refusal) as raised:
        running(budgets, allowed=1).evict("ns", "p", EVICTION | eviction)
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
        ({"minAvailable": 0, "selector": {"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}}, 0),
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


# Claims, templates and slices.


async def test_the_status_of_a_claim_brings_no_finalizer(client: Client) -> None:
    await client.ask("POST", CLAIMS, claim(finalizers=[FINALIZER]))
    change = {"metadata": {"finalizers": []}, "status": allocation()}
    _, after = await client.ask("PATCH", f"{CLAIMS}/c/status", change, headers=MERGE)
    assert after["metadata"]["finalizers"] == [FINALIZER]
    assert after["status"] == allocation()


@pytest.mark.parametrize(
    ("before", "change", "text"),
    [
        (allocation(), allocation("neuron-1"), "status.allocation: Invalid value: field is immutable"),
        (allocation(), allocation(allocationTimestamp="2026-01-01T00:00:00Z"), "field is immutable"),
        ({}, {"reservedFor": [USER]}, "may not be specified when `allocated` is not set"),
        (allocation(), {"reservedFor": [USER, USER]}, "status.reservedFor: Duplicate value"),
        (
            allocation(),
            {"reservedFor": [USER | {"uid": str(number)} for number in range(257)]},
            "status.reservedFor: Too many: 257: must have at most 256 items",
        ),
        (
            allocation() | {"reservedFor": [USER]},
            {"reservedFor": [USER, USER | {"uid": "b"}]},
            "new entries may not be",
        ),
    ],
)
def test_a_status_that_cannot_be_is_refused(server: StandInApiServer, before: Json, change: Json, text: str) -> None:
    server.create(RESOURCE_CLAIMS, claim(finalizers=[FINALIZER]), "default")
    server.change(RESOURCE_CLAIMS, "c", {"status": before}, "default", "status")
    if "new entries" in text:
        server.delete(RESOURCE_CLAIMS, "c", "default")
    with pytest.raises(Refusal, match=text) as refusal:
        server.change(RESOURCE_CLAIMS, "c", {"status": change}, "default", "status")
    assert refusal.value.code == 422


def test_the_spec_of_a_claim_and_of_a_template_stays(server: StandInApiServer) -> None:
    server.create(RESOURCE_CLAIMS, claim(), "default")
    server.create(CLAIM_TEMPLATES, {"metadata": {"name": "t"}, "spec": claim()}, "default")
    for kind, name in ((RESOURCE_CLAIMS, "c"), (CLAIM_TEMPLATES, "t")):
        with pytest.raises(Refusal, match="field is immutable"):
            server.change(kind, name, {"spec": {"devices": None, "spec": None}}, "default")
        server.change(kind, name, {"metadata": {"labels": {"app": "a"}}}, "default")


async def test_slices_are_listed_changed_and_deleted_by_node_and_driver(client: Client) -> None:
    for node, driver in (("n1", DRIVER), ("n2", DRIVER), ("n1", "efa")):
        await client.ask("POST", SLICES, node_slice(node, driver=driver))
    chosen = {"fieldSelector": "spec.nodeName=n1,spec.driver=neuron.aws.com"}
    assert names(await client.get(SLICES, **chosen)) == [f"n1-{DRIVER}"]
    status, _ = await client.ask("PATCH", f"{SLICES}/n1-{DRIVER}", {"spec": {"devices": []}}, headers=MERGE)
    assert status == 200
    status, refused = await client.ask("PATCH", f"{SLICES}/n1-{DRIVER}", {"spec": {"nodeName": "n2"}}, headers=MERGE)
    assert (status, "spec.nodeName: Invalid value: field is immutable" in refused["message"]) == (422, True)
    assert (await client.ask("DELETE", f"{SLICES}/n1-{DRIVER}"))[0] == 200
    assert names(await client.get(SLICES)) == ["n1-efa", f"n2-{DRIVER}"]
