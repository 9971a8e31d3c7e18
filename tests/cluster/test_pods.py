"""Decoding a pod, and what its assignment means on a node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from neuron_plugin.allocation import Constraints, ContainerKind, NeuronPod, Rejection, Resource
from neuron_plugin.allocation.keys import NODE_KEY, POD_UID_KEY, RELEASED_KEY
from neuron_plugin.allocation.pod import assigned_allocations
from neuron_plugin.allocation.runs import ContainerRun
from neuron_plugin.cluster import Pod
from neuron_plugin.cluster.pods import PODS, asks_for_neuron, neuron_pod
from neuron_plugin.topology import Geometry, Topology
from tests.support.manifests import pod_manifest

INF2 = Geometry("inf2.48xlarge", Topology.RING, 12, 2)
DEVICE, CORE = Resource.NEURONDEVICE.value, Resource.NEURONCORE.value


def container(name: str = "main", limits: Mapping[str, str] | None = None, **fields: object) -> dict[str, object]:
    return {"name": name, "resources": {"limits": limits or {}}, **fields}


def wire(
    *containers: dict[str, object],
    annotations: Mapping[str, str] | None = None,
    phase: str = "Running",
    controller: tuple[str, str] = ("", ""),
    **spec: object,
) -> Pod:
    """A pod as the API server sends it."""
    owner = {"kind": controller[0], "name": controller[1], "controller": True}
    metadata: dict[str, object] = {"uid": "uid-1", "namespace": "ml", "name": "train", "annotations": annotations or {}}
    metadata |= {"ownerReferences": [owner]} if controller[0] else {}
    described = {"nodeName": "node-1", "priority": 7, "containers": containers, **spec}
    return PODS.decode(msgspec.json.encode({"metadata": metadata, "spec": described, "status": {"phase": phase}}))


def pod(limits: Mapping[str, str], annotations: Mapping[str, str] | None = None) -> NeuronPod:
    return neuron_pod(wire(container(limits=limits), annotations=annotations))


def test_a_pod_is_decoded_with_what_decides_about_it() -> None:
    decoded = pod({DEVICE: "2"}, {"NEURON_DEVS": "2,3", "NEURON_ALLOC_TIME": "17", "kubernetes.io/config.hash": "abc"})
    assert str(decoded.reference) == "ml/train"
    assert (decoded.node, decoded.priority, decoded.life.started, decoded.ended) == ("node-1", 7, True, False)
    assert [(part.name, part.count) for part in decoded.requests] == [("main", 2)]
    assert (decoded.uid, decoded.kubelet_uid) == ("uid-1", "abc")
    allocations = assigned_allocations(decoded, INF2)
    assert not isinstance(allocations, Rejection)
    assert [(one.container, one.mask, one.kubelet_mask) for one in allocations] == [("main", 0xF0, 0xF0)]


@pytest.mark.parametrize(
    ("named", "is_ours"),
    [
        ({}, True),
        ({NODE_KEY: "node-1", POD_UID_KEY: "uid-1"}, True),
        ({NODE_KEY: "node-2", POD_UID_KEY: "uid-1"}, False),
        ({NODE_KEY: "node-1", POD_UID_KEY: "uid-0"}, False),
        ({NODE_KEY: "node-2", POD_UID_KEY: "uid-0", "NEURON_ALLOCATED": "true"}, True),
    ],
    ids=["nothing said", "this pod, this node", "another node", "another pod", "what the plugin says the pod has"],
)
def test_an_assignment_for_another_node_or_pod_is_none(named: Mapping[str, str], is_ours: bool) -> None:  # noqa: FBT001 - a table
    decoded = pod({DEVICE: "2"}, {"NEURON_DEVS": "2,3", "NEURON_ALLOC_TIME": "17", **named})
    assert (decoded.assignment is not None) is is_ours
    assert decoded.life.assignment_keys == ("NEURON_DEVS",)


@pytest.mark.parametrize("limits", [{DEVICE: "1.5"}, {DEVICE: "1", CORE: "1"}])
def test_a_request_that_cannot_be_served_is_a_rejection(limits: Mapping[str, str]) -> None:
    decoded = pod(limits, {"NEURON_DEVS": "1"})
    assert isinstance(decoded.request, Rejection)
    assert "container main asks for" in str(decoded.request)
    assert decoded.requests == ()
    assert decoded.assignment is None
    assert isinstance(assigned_allocations(decoded, INF2), Rejection)


@pytest.mark.parametrize(
    ("annotations", "code"),
    [
        ({}, "no-assignment"),
        ({"NEURON_DEVS": "x"}, "unreadable-assignment"),
        ({"NEURON_DEVS": "1"}, "unreadable-assignment"),
        ({"NEURON_DEVS": "11,12"}, "unreadable-assignment"),
    ],
)
def test_t34_t35_an_assignment_that_a_node_cannot_honour_is_a_rejection(
    annotations: Mapping[str, str], code: str
) -> None:
    found = assigned_allocations(pod({DEVICE: "2"}, annotations), INF2)
    assert isinstance(found, Rejection)
    assert (found.code, found.may_pass) == (code, True)
    assert "ml/train" in str(found)


def test_a_pod_that_asks_for_0_has_nothing_assigned() -> None:
    decoded = pod({DEVICE: "0"})
    assert decoded.request == ()
    assert assigned_allocations(decoded, INF2) == ()


def test_a_pod_asks_for_neuron_when_a_container_names_a_resource() -> None:
    assert asks_for_neuron(wire(initContainers=[{"name": "init", "resources": {"requests": {CORE: "1"}}}]))
    assert asks_for_neuron(wire(container(limits={DEVICE: "0"})))
    assert not asks_for_neuron(wire(container(limits={"cpu": "1"})))


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_t28_a_pod_in_a_terminal_phase_has_ended(phase: str) -> None:
    assert neuron_pod(wire(phase=phase)).ended


@pytest.mark.parametrize(
    ("controller", "known", "made_again"),
    [
        (("ReplicaSet", "web-1"), "ReplicaSet/web-1", True),
        (("Job", "train"), "Job/train", True),
        (("DaemonSet", "agent"), "DaemonSet/agent", False),
        (("Node", "worker-1"), "", False),
        (("", ""), "", False),
    ],
)
def test_a_daemon_set_makes_its_pods_and_not_again_elsewhere(
    controller: tuple[str, str], known: str, *, made_again: bool
) -> None:
    found = neuron_pod(wire(controller=controller))
    assert (found.controller, found.made_again) == (known, made_again)


@pytest.mark.parametrize(("text", "movable"), [("true", True), ("True", True), ("false", False), ("yes", False)])
def test_a_pod_says_that_it_may_be_moved(text: str, *, movable: bool) -> None:
    assert pod({CORE: "1"}, {"neuron-plugin.io/movable": text}).movable is movable


@pytest.mark.parametrize(
    ("checkpoint", "since"),
    [
        ("2026-01-01T00:00:00Z", 1767225600.0),
        ("2026-01-01T01:00:00+01:00", 1767225600.0),
        ("2026-01-01T00:00:00", 17.0),
        ("2001-01-01T00:00:00+00:00" * 9, 17.0),
        ("0001-01-01T00:00:00+14:00", 17.0),
        ("soon", 17.0),
        ("", 17.0),
    ],
)
def test_work_would_be_lost_since_the_assignment_or_a_later_checkpoint(checkpoint: str, since: float) -> None:
    annotations = {
        "NEURON_DEVS": "2",
        "NEURON_ALLOC_TIME": "17000000000",
        "neuron-plugin.io/last-checkpoint": checkpoint,
    }
    assert pod({DEVICE: "1"}, annotations).work_since == since


def test_t19_t20_requesting_containers_come_init_first_and_others_count_for_nothing() -> None:
    init = [container("setup", {CORE: "4"}), container("proxy", {CORE: "1"}, restartPolicy="Always"), container("no")]
    decoded = neuron_pod(wire(container("main", {CORE: "2"}), container("log"), initContainers=init))
    assert [(part.name, part.kind, part.count) for part in decoded.requests] == [
        ("setup", ContainerKind.INIT, 4),
        ("proxy", ContainerKind.SIDECAR, 1),
        ("main", ContainerKind.APP, 2),
    ]


def test_equal_requests_are_one_object() -> None:
    assert pod({CORE: "3"}).request is pod({CORE: "3"}, {"NEURON_CORES": "1,2,3"}).request


def test_constraints_are_the_same_for_each_container_and_read_once() -> None:
    containers = [container(name, {CORE: "1"}) for name in ("load", "serve")]
    texts = {"neuron-plugin.io/same-device": "load,serve", "neuron-plugin.io/deny-devices": "0"}
    request = neuron_pod(wire(*containers, annotations=texts)).requests
    assert isinstance(request[0].constraints, Constraints)
    assert request[0].constraints.same_device == (0, 1)
    assert request[1].constraints is request[0].constraints
    assert neuron_pod(wire(*containers, annotations={**texts, "other": "x"})).request is request


def test_an_unreadable_constraint_takes_nothing_from_what_a_bound_pod_has() -> None:
    annotations = {"NEURON_DEVS": "2,3", "neuron-plugin.io/allow-devices": "?"}
    decoded = pod({DEVICE: "2", "neuron-plugin.io/memory": "64"}, annotations)
    allocations = assigned_allocations(decoded, INF2)
    assert not isinstance(allocations, Rejection)
    assert [one.mask for one in allocations] == [0xF0]
    assert decoded.requests[0].amounts == (("memory", 64),)
    refused = decoded.requests[0].constraints
    assert isinstance(refused, Rejection)
    assert refused.detail.startswith("annotation neuron-plugin.io/allow-devices is '?'")


def test_of_an_endless_annotation_only_its_beginning_is_kept() -> None:
    endless = pod({CORE: "1"}, {"neuron-plugin.io/allow-devices": "1," * 100_000}).requests[0].constraints
    assert isinstance(endless, Rejection)
    assert endless.detail.endswith("expected at most 1024 characters")


def test_constraints_of_a_pod_without_neuron_say_nothing() -> None:
    assert pod({"cpu": "1"}, {"neuron-plugin.io/allow-devices": "?"}).request == ()


Json = dict[str, Any]


def required_terms(*terms: Json) -> Json:
    required = {"nodeSelectorTerms": list(terms)}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


def one_of(key: str, *values: str) -> Json:
    return {"key": key, "operator": "In", "values": values}


PINNED: Json = {"matchFields": [one_of("metadata.name", "node-1")]}
EITHER = one_of("metadata.name", "node-1", "node-2")
ZONE_A: Json = {"matchExpressions": [one_of("zone", "a")]}
ZONE_B: Json = {"matchExpressions": [one_of("zone", "b")]}
PLACED = {NODE_KEY: "node-1", POD_UID_KEY: "uid-1"}


@pytest.mark.parametrize(
    ("terms", "own"),
    [
        ([PINNED], []),
        ([ZONE_A | PINNED], [ZONE_A]),
        ([{"matchFields": [EITHER, *PINNED["matchFields"]]}], [{"matchFields": [EITHER]}]),
        ([ZONE_A | PINNED, ZONE_B | PINNED], [ZONE_A, ZONE_B]),
        ([ZONE_A], [ZONE_A]),
    ],
)
def test_a_placed_pod_is_bound_to_its_node_but_its_replacement_is_not(terms: list[Json], own: list[Json]) -> None:
    """Plans may move a pod that was placed by gates: the next pod of its owner is placed again."""
    asked = container(limits={DEVICE: "2"})
    without: Json = required_terms(*own) if own else {}
    placed: Json = {"annotations": PLACED, **required_terms(*terms)}
    assert neuron_pod(wire(asked, **placed)).rules == neuron_pod(wire(asked, **without)).rules


def test_the_replacement_of_a_pod_that_was_let_go_may_go_where_that_one_might_not() -> None:
    kept_off = {"key": "metadata.name", "operator": "NotIn", "values": ["node-2"]}
    asked = container(limits={DEVICE: "2"})
    released: Json = {"annotations": {RELEASED_KEY: "excluded", POD_UID_KEY: "uid-1"}}
    found = neuron_pod(wire(asked, **released, **required_terms(ZONE_A | {"matchFields": [kept_off]})))
    assert found.rules == neuron_pod(wire(asked, **required_terms(ZONE_A))).rules
    waits = neuron_pod(wire(asked, **released, **required_terms({"matchFields": [kept_off]}), nodeName=""))
    assert waits.rules.terms is not None


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"annotations": PLACED | {POD_UID_KEY: "of-another"}},
        {"annotations": PLACED | {NODE_KEY: "node-2"}},
        {"annotations": PLACED, "nodeName": ""},
    ],
)
def test_a_node_on_which_the_pod_was_not_placed_is_a_rule_of_its_own(options: Json) -> None:
    found = neuron_pod(wire(container(limits={DEVICE: "2"}), **required_terms(PINNED), **options))
    assert found.rules.terms is not None
    assert [str(term) for term in found.rules.terms] == ["metadata.name In node-1"]


def status_of(**state: Any) -> dict[str, Any]:
    return {"name": "main", **state}


def with_status(status: Json, manifest: Json | None = None) -> NeuronPod:
    """A pod for one device with this status."""
    said = manifest or pod_manifest("pod", Resource.NEURON, 1)
    return neuron_pod(PODS.decode(msgspec.json.encode({**said, "status": status})))


START, END = "2026-11-26T08:00:00Z", "2026-11-26T08:00:04Z"
STARTED = 1_795_680_000.0


def ended(exit_code: int = 1, reason: str = "Error") -> dict[str, Any]:
    return {"terminated": {"exitCode": exit_code, "reason": reason, "startedAt": START, "finishedAt": END}}


@pytest.mark.parametrize(
    ("status", "run"),
    [
        (status_of(state={"running": {"startedAt": START}}, lastState=ended()), ContainerRun("main", STARTED)),
        (status_of(state=ended()), ContainerRun("main", STARTED, STARTED + 4, failed=True)),
        (status_of(state={"waiting": {}}, lastState=ended()), ContainerRun("main", STARTED, STARTED + 4, failed=True)),
        (status_of(state=ended(0, "Completed")), ContainerRun("main", STARTED, STARTED + 4)),
        (status_of(state=ended(137, "OOMKilled")), ContainerRun("main", STARTED, STARTED + 4)),
        (status_of(state=ended(137, "ContainerStatusUnknown")), ContainerRun("main", STARTED, STARTED + 4)),
        (status_of(state=ended(128, "StartError")), ContainerRun("main", STARTED, STARTED + 4)),
        (status_of(state={"waiting": {"reason": "ImagePullBackOff"}}), None),
    ],
)
def test_the_latest_run_of_a_container_is_read(status: dict[str, Any], run: ContainerRun | None) -> None:
    assert with_status({"containerStatuses": [status]}).life.runs == ((run,) if run else ())


REQUESTED: dict[str, Json] = {
    "deleted": {"metadata": {"deletionTimestamp": "2026-11-26T08:00:03Z"}},
    "evicted by the API": {
        "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]
    },
    "evicted by the kubelet": {"phase": "Failed", "reason": "Evicted"},
    "node shut down": {"phase": "Failed", "reason": "Terminated"},
    "preempted by the kubelet": {"phase": "Failed", "reason": "Preempting"},
    "out of time": {"phase": "Failed", "reason": "DeadlineExceeded"},
}


@pytest.mark.parametrize("how", REQUESTED)
def test_a_container_whose_end_was_requested_has_not_failed(how: str) -> None:
    manifest, change = pod_manifest("pod", Resource.NEURON, 1), dict(REQUESTED[how])
    manifest["metadata"] |= change.pop("metadata", {})
    killed = status_of(state=ended(137))
    (run,) = with_status({"containerStatuses": [killed], **change}, manifest).life.runs
    assert run == ContainerRun("main", STARTED, STARTED + 4)


def test_a_disruption_that_did_not_come_requests_no_end() -> None:
    over = {"conditions": [{"type": "DisruptionTarget", "status": "False"}]}
    status = {"phase": "Running", "containerStatuses": [status_of(state=ended())], **over}
    assert with_status(status).life.runs[0].failed


@pytest.mark.parametrize(
    ("sidecar_end", "app", "fails"),
    [
        ("2026-11-26T08:00:04Z", ended(0, "Completed"), False),
        ("2026-11-26T08:00:04Z", ended(1), False),
        ("2026-11-26T08:00:03Z", ended(0, "Completed"), True),
        ("2026-11-26T08:00:04Z", {"running": {"startedAt": START}}, True),
        ("2026-11-26T08:00:04Z", {"waiting": {"reason": "PodInitializing"}}, True),
    ],
)
def test_a_sidecar_that_the_kubelet_ends_after_the_other_containers_has_not_failed(
    sidecar_end: str, app: Json, *, fails: bool
) -> None:
    manifest = pod_manifest("pod", Resource.NEURON, 1)
    manifest["spec"]["initContainers"] = [{"name": "sidecar", "restartPolicy": "Always"}]
    end = {**ended(137)["terminated"], "finishedAt": sidecar_end}
    status = {
        "containerStatuses": [status_of(state=app)],
        "initContainerStatuses": [{"name": "sidecar", "state": {"terminated": end}}],
    }
    runs = with_status(status, manifest).life.runs
    assert {run.container: run.failed for run in runs}["sidecar"] is fails
    assert {run.container: run.failed for run in runs}.get("main", False) is (app == ended(1)), "its own failure stays"


@pytest.mark.parametrize(
    ("policy", "end", "ending"),
    [
        ("Always", ended(0, "Completed"), False),
        ("OnFailure", ended(1), False),
        ("OnFailure", ended(0, "Completed"), True),
        ("Never", ended(1), True),
        ("Never", {"running": {"startedAt": START}}, False),
        ("Never", {"waiting": {}}, False),
    ],
)
def test_a_pod_begins_to_end_with_the_first_container_that_is_not_started_again(
    policy: str, end: Json, *, ending: bool
) -> None:
    manifest = pod_manifest("pod", Resource.NEURON, 1)
    manifest["spec"] |= {"restartPolicy": policy}
    status = {"phase": "Running", "containerStatuses": [status_of(state=end), {"name": "other"}]}
    wire_pod = PODS.decode(msgspec.json.encode({**manifest, "status": status}))
    assert neuron_pod(wire_pod).life.ending is ending
    assert neuron_pod(wire_pod, progress=False).life.ending is False
    manifest["spec"]["containers"][0] |= {"restartPolicy": "Always"}
    assert with_status(status, manifest).life.ending is False, "the container's own policy comes first"


@pytest.mark.parametrize("how", REQUESTED)
def test_a_pod_begins_to_end_when_its_end_is_requested(how: str) -> None:
    manifest, change = pod_manifest("pod", Resource.NEURON, 1), dict(REQUESTED[how])
    manifest["metadata"] |= change.pop("metadata", {})
    running = {"containerStatuses": [status_of(state={"running": {"startedAt": START}})]}
    assert with_status(running | change, manifest).life.ending


def test_the_containers_that_run_privileged_are_read() -> None:
    manifest = pod_manifest("pod", Resource.NEURON, 1)
    contexts: tuple[Json, ...] = ({}, {"securityContext": {}}, {"securityContext": {"privileged": True}})
    manifest["spec"]["containers"] = [{"name": f"c{number}", **context} for number, context in enumerate(contexts)]
    manifest["spec"]["initContainers"] = [{"name": "init", "securityContext": {"privileged": True}}]
    wire_pod = PODS.decode(msgspec.json.encode(manifest))
    assert neuron_pod(wire_pod).life.privileged == ("init", "c2")
    assert neuron_pod(wire_pod, progress=False).life.privileged == ()


# A group's pods, and UltraServers.

GROUPED = {"neuron-plugin.io/group": "job", "neuron-plugin.io/group-size": "2"}


def test_the_name_of_a_pod_of_a_group_is_the_one_that_its_service_gives_it() -> None:
    def host(**spec: str) -> str:
        given: dict[str, Any] = {**spec}
        decoded = neuron_pod(wire(container(limits={DEVICE: "2"}), annotations=GROUPED, **given))
        return decoded.member.host if decoded.member else "no member"

    assert host(hostname="train-0", subdomain="train") == "train-0.train.ml.svc"
    assert [host(hostname="train-0"), host(subdomain="train"), host()] == ["", "", ""]


@pytest.mark.parametrize(
    ("name", "is_set"), [("NEURON_RT_ULTRASERVER_MODE", True), ("NEURON_GLOBAL_TOPOID", True), ("OTHER", False)]
)
def test_a_pod_of_a_group_may_set_variables_of_ultraservers_itself(name: str, *, is_set: bool) -> None:
    main = container(limits={DEVICE: "2"}, env=[{"name": name, "value": "1"}])
    decoded = neuron_pod(wire(container("first"), main, annotations=GROUPED))
    assert decoded.member
    assert decoded.member.sets_ultraserver is is_set


def test_a_place_in_an_ultraserver_counts_for_the_pod_and_node_that_it_was_written_for() -> None:
    def place(**other: str) -> str:
        said = {"neuron-plugin.io/ultraserver": "nodes=4,index=1,first=a", NODE_KEY: "node-1", POD_UID_KEY: "uid-1"}
        return str(neuron_pod(wire(container(limits={DEVICE: "2"}), annotations={**said, **other})).ultraserver)

    assert place() == "nodes=4,index=1,first=a"
    assert place(**{POD_UID_KEY: "uid-2"}) == place(**{NODE_KEY: "node-2"}) == "None"
