from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.allocation import ContainerKind
from neuron_plugin.cluster import Pod
from neuron_plugin.cluster.api import ApiError, DecodeError, UnreachableError
from neuron_plugin.cluster.client import KubernetesApi
from neuron_plugin.cluster.objects import (
    LEASES,
    NODES,
    Lease,
    Node,
    Scope,
    count_of,
    decode_event,
    pages,
    parse_version,
)
from neuron_plugin.cluster.pods import PODS, neuron_pod
from tests.support.api_server import Fault, StandInApiServer


def pod(value: dict[str, Any]) -> Pod:
    return PODS.decode(msgspec.json.encode(value))


def node(value: dict[str, Any]) -> Node:
    return NODES.decode(msgspec.json.encode(value))


def lease(value: dict[str, Any]) -> Lease:
    return LEASES.decode(msgspec.json.encode(value))


FULL: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "train-0",
        "namespace": "ml",
        "uid": "6f1c",
        "resourceVersion": "812",
        "creationTimestamp": "2026-01-02T03:04:05Z",
        "deletionTimestamp": "2026-01-02T04:04:05Z",
        "annotations": {"NEURON_DEVS": "2,3"},
        "labels": {"app": "train"},
        "ownerReferences": [
            {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "77", "controller": True},
        ],
        "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}],
    },
    "spec": {
        "nodeName": "trn1-a",
        "schedulerName": "neuron-scheduler",
        "priority": 1000,
        "initContainers": [
            {"name": "warm-up", "resources": {"limits": {"aws.amazon.com/neuroncore": "2"}}},
            {"name": "proxy", "restartPolicy": "Always"},
        ],
        "containers": [
            {
                "name": "main",
                "image": "x",
                "resources": {
                    "limits": {"aws.amazon.com/neurondevice": "2", "cpu": "1k"},
                    "requests": {"aws.amazon.com/neurondevice": "2", "cpu": "500m"},
                },
            }
        ],
        "volumes": [{"name": "token"}],
    },
    "status": {"phase": "Running", "startTime": "2026-01-02T03:04:06Z", "nominatedNodeName": "trn1-b", "podIP": "::1"},
}


def test_a_pod_has_the_fields_that_matter() -> None:
    found = pod(FULL)
    assert (found.name, found.namespace, found.uid, found.resource_version) == ("train-0", "ml", "6f1c", "812")
    assert (found.node_name, found.phase) == ("trn1-a", "Running")
    assert neuron_pod(found).priority == 1000
    assert found.annotations == {"NEURON_DEVS": "2,3"}
    assert found.labels == {"app": "train"}


def test_containers_keep_their_order_and_their_quantities_as_written() -> None:
    found = pod(FULL)
    warm_up, _, main = (container for container, _ in found.containers)
    assert main.limits == {"aws.amazon.com/neurondevice": "2", "cpu": "1k"}
    assert main.requests["cpu"] == "500m"
    assert warm_up.limits == {"aws.amazon.com/neuroncore": "2"}


def test_containers_come_as_they_are_admitted_and_a_sidecar_is_an_init_container_that_always_restarts() -> None:
    found = [(container.name, kind) for container, kind in pod(FULL).containers]
    assert found == [("warm-up", ContainerKind.INIT), ("proxy", ContainerKind.SIDECAR), ("main", ContainerKind.APP)]


def test_an_app_container_that_always_restarts_is_no_sidecar() -> None:
    spec = {"containers": [{"name": "main", "restartPolicy": "Always"}]}
    assert [kind for _, kind in pod({"metadata": {}, "spec": spec}).containers] == [ContainerKind.APP]


@pytest.mark.parametrize(
    ("phase", "terminal"),
    [("Pending", False), ("Running", False), ("Unknown", False), ("Succeeded", True), ("Failed", True), ("", False)],
)
def test_t28_a_pod_that_ended_is_terminal(phase: str, terminal: bool) -> None:  # noqa: FBT001 - a table's column
    assert pod({"metadata": {}, "status": {"phase": phase}}).terminal is terminal


def test_t27_terminating_is_not_terminal() -> None:
    found = pod(FULL)
    assert found.terminating
    assert not found.terminal


@pytest.mark.parametrize(
    "bare",
    [
        {"metadata": {}},
        {"metadata": {"annotations": None, "labels": None}, "spec": {"containers": None, "initContainers": None}},
        {"metadata": {}, "spec": {"containers": [{"resources": None}], "priority": None}},
        {"metadata": {}, "spec": {"containers": [{"resources": {"limits": None, "requests": None}}]}},
    ],
)
def test_what_is_left_out_or_null_reads_as_empty(bare: dict[str, Any]) -> None:
    found = pod(bare)
    assert (found.annotations, found.labels, neuron_pod(found).priority) == ({}, {}, 0)
    assert all((container.limits, container.requests) == ({}, {}) for container, _ in found.containers)
    assert (found.node_name, found.phase, found.terminating) == ("", "", False)


# Whether a pod has begun.

WAITING = {"name": "main", "started": False, "state": {"waiting": {"reason": "ContainerCreating"}}, "lastState": {}}


@pytest.mark.parametrize(
    ("status", "started"),
    [
        ({"state": {"running": {"startedAt": "2026-01-02T03:04:06Z"}}}, True),
        ({"started": True}, True),
        ({"started": False, "state": {"running": {}}}, True),
        ({"state": {"terminated": {"exitCode": 1}}}, True),
        ({"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": {"exitCode": 1}}}, True),
        (WAITING, False),
        ({"started": None, "state": None, "lastState": None}, False),
        ({"state": {"running": None}}, False),
    ],
)
@pytest.mark.parametrize("part", ["containerStatuses", "initContainerStatuses"])
def test_a_pod_has_started_when_any_of_its_containers_has(
    part: str,
    status: dict[str, Any],
    started: bool,  # noqa: FBT001 - a table's column
) -> None:
    assert pod({"metadata": {}, "status": {part: [WAITING, status]}}).started is started


@pytest.mark.parametrize("status", [{}, {"containerStatuses": None, "initContainerStatuses": []}])
def test_a_pod_without_container_statuses_has_not_started(status: dict[str, Any]) -> None:
    assert not pod({"metadata": {}, "status": status}).started


def test_records_are_not_tracked_by_the_garbage_collector() -> None:
    found = pod(FULL)
    assert not any(map(gc.is_tracked, (found, found.metadata, found.spec, found.status)))


def test_records_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        pod(FULL).spec.node_name = "x"  # type: ignore[misc]  # that is what is tested


def test_a_node_has_the_fields_that_matter() -> None:
    found = node(
        {
            "metadata": {"name": "trn1-a", "labels": {"node.kubernetes.io/instance-type": "trn1.32xlarge"}},
            "spec": {"unschedulable": True},
            "status": {
                "capacity": {"aws.amazon.com/neurondevice": "16"},
                "allocatable": {"aws.amazon.com/neurondevice": "15"},
                "conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": "True"}],
                "images": [{"names": ["a"]}],
            },
        }
    )
    assert found.labels["node.kubernetes.io/instance-type"] == "trn1.32xlarge"
    assert found.capacity["aws.amazon.com/neurondevice"] == "16"
    assert found.allocatable["aws.amazon.com/neurondevice"] == "15"


def test_an_empty_node_has_no_resources() -> None:
    found = node({"metadata": {"name": "n"}, "status": {"capacity": None}})
    assert (found.capacity, found.allocatable) == ({}, {})


def test_a_lease_has_the_fields_that_matter() -> None:
    found = lease(
        {
            "metadata": {"name": "leader", "namespace": "kube-system", "resourceVersion": "5"},
            "spec": {
                "holderIdentity": "extender-1",
                "leaseDurationSeconds": 15,
                "leaseTransitions": 3,
                "renewTime": "2026-01-02T03:04:05.000006Z",
            },
        }
    )
    assert (found.holder, found.duration_seconds, found.transitions) == ("extender-1", 15, 3)


def test_a_released_lease_has_no_holder() -> None:
    assert lease({"metadata": {}, "spec": {"holderIdentity": None}}).holder == ""
    assert lease({"metadata": {}}).duration_seconds == 0


def test_paths_of_collections_and_objects() -> None:
    assert PODS.collection() == "/api/v1/pods"
    assert PODS.collection("ml") == "/api/v1/namespaces/ml/pods"
    assert PODS.item("a", "ml") == "/api/v1/namespaces/ml/pods/a"
    assert NODES.item("n1") == "/api/v1/nodes/n1"
    assert LEASES.item("l", "kube-system") == "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/l"


def test_a_page_has_records_version_and_continuation() -> None:
    page = PODS.decode_page(
        b'{"kind":"PodList","metadata":{"resourceVersion":"90","continue":"abc","remainingItemCount":7},'
        b'"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}}]}'
    )
    assert ([pod.name for pod in page.records], page.version, page.continuation) == (["a", "b"], 90, "abc")


@pytest.mark.parametrize("items", ['"items":[]', '"items":null', '"kind":"PodList"'])
def test_an_empty_page_has_no_records(items: str) -> None:
    page = PODS.decode_page(f'{{"metadata":{{"resourceVersion":"1"}},{items}}}'.encode())
    assert (page.records, page.continuation) == ((), "")


def test_a_page_without_a_version_is_refused() -> None:
    with pytest.raises(DecodeError, match="resourceVersion reads '', expected a decimal number"):
        PODS.decode_page(b'{"metadata":{},"items":[]}')


def test_an_event_is_read_without_its_object() -> None:
    event = decode_event(b'{"type":"MODIFIED","object":{"metadata":{"name":"a"},"spec":17}}')
    assert event.type == "MODIFIED"
    assert bytes(event.object) == b'{"metadata":{"name":"a"},"spec":17}'
    assert PODS.decode(decode_event(b'{"type":"ADDED","object":{"metadata":{"name":"a"}}}').object).name == "a"


def test_a_bookmark_is_an_object_with_a_version_alone() -> None:
    plain = b'{"kind":"Pod","metadata":{"resourceVersion":"12","creationTimestamp":null},"spec":{"containers":null}}'
    assert PODS.decode(plain).resource_version == "12"


@pytest.mark.parametrize("text", ["", "-1", "1.5", "0x10", "abc", "١٢", " 7", "9" * 5000])
def test_a_version_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(DecodeError, match="expected a decimal number"):
        parse_version(text)


def test_versions_are_compared_as_numbers() -> None:
    assert parse_version("100") > parse_version("99")


@pytest.mark.parametrize(
    "garbage",
    [b"", b"<html>", b"[1]", b"null", b'{"metadata":7}', b'{"metadata":', b'{"metadata":{"resourceVersion":"\xff"}}'],
)
def test_garbage_is_a_decode_error_that_says_what_and_how_it_starts(garbage: bytes) -> None:
    with pytest.raises(DecodeError, match=rf"^pods cannot be read: .*\({len(garbage)} bytes\)$"):
        PODS.decode(garbage)
    with pytest.raises(DecodeError, match="a list of pods cannot be read"):
        PODS.decode_page(garbage)


def test_deep_nesting_is_a_decode_error() -> None:
    deep = b'{"metadata":{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}}"
    with pytest.raises(DecodeError):
        PODS.decode(deep)
    with pytest.raises(DecodeError):
        decode_event(b'{"type":"ADDED","object":' + deep + b"}")


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    for decode in (PODS.decode, PODS.decode_page, NODES.decode, LEASES.decode, decode_event):
        try:
            decode(data)
        except DecodeError:
            continue


Json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["metadata", "spec", "status", "items", "containers", "type", "object"]), inner
        )
    ),
    max_leaves=12,
)


@given(Json)
def test_no_json_raises_anything_else(value: Any) -> None:
    test_no_bytes_raise_anything_else.hypothesis.inner_test(msgspec.json.encode(value))  # type: ignore[attr-defined]  # hypothesis adds it


def big_page(pods: int) -> bytes:
    """A page of pods of about 7 KB each, mostly of what is skipped."""
    managed = [{"manager": "kubelet", "fieldsV1": {f"f:field-{number}": {"f:x": {}} for number in range(150)}}]
    spec = {
        "nodeName": "n1",
        "containers": [
            {
                "name": "main",
                "env": [{"name": f"VARIABLE_{number}", "value": "x" * 20} for number in range(40)],
                "resources": {"limits": {"aws.amazon.com/neurondevice": "1"}},
            }
        ],
    }
    items = [
        {
            "metadata": {"name": f"p{number}", "uid": f"u{number}", "resourceVersion": "1", "managedFields": managed},
            "spec": spec,
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "message": "m" * 500}]},
        }
        for number in range(pods)
    ]
    return json.dumps({"metadata": {"resourceVersion": "5"}, "items": items}).encode()


def test_reading_a_page_costs_less_than_reading_it_as_plain_json() -> None:
    """An absolute bound would measure the machine; the ratio was 6 when this was written."""
    page = big_page(200)
    assert 6_000 < len(page) / 200 < 9_000
    ours = min(_cpu_seconds(lambda: PODS.decode_page(page)) for _ in range(5))
    plain = min(_cpu_seconds(lambda: json.loads(page)) for _ in range(5))
    assert ours < plain / 1.5


def _cpu_seconds(act: Any) -> float:
    started = time.process_time()
    act()
    return time.process_time() - started


Manifest = Callable[..., dict[str, Any]]


async def test_t50_a_collection_is_read_in_pages_of_five_hundred(server: StandInApiServer, api: KubernetesApi) -> None:
    for number in range(1001):
        server.create_node({"metadata": {"name": f"n{number:04}"}})
    found = [page async for page in pages(api, NODES, page_timeout_seconds=5)]
    assert [len(page.records) for page in found] == [500, 500, 1]
    assert [node.name for page in found for node in page.records] == [f"n{number:04}" for number in range(1001)]
    assert len({page.version for page in found}) == 1
    assert len(server.requests) == 3


@pytest.mark.parametrize("number", [0, 1, 3])
async def test_objects_are_counted_by_a_page_of_one(server: StandInApiServer, api: KubernetesApi, number: int) -> None:
    for node in range(number):
        server.create_node({"metadata": {"name": f"node-{node}"}})
    assert await count_of(api, NODES, timeout_seconds=5) == number


async def test_the_scope_narrows_every_page(server: StandInApiServer, api: KubernetesApi, pod: Manifest) -> None:
    for number in range(1200):
        server.create_pod(pod(f"p{number:04}", node="n1" if number % 2 else "n2"))
    scope = Scope(namespace="default", field_selector="spec.nodeName=n1")
    found = [page async for page in pages(api, PODS, scope, page_timeout_seconds=5)]
    assert [len(page.records) for page in found] == [500, 100]
    assert {record.node_name for page in found for record in page.records} == {"n1"}
    assert server.requests[-1].path == "/api/v1/namespaces/default/pods"


async def test_a_list_that_took_too_long_says_so(server: StandInApiServer, api: KubernetesApi) -> None:
    for number in range(501):
        server.create_node({"metadata": {"name": f"n{number}"}})
    reading = pages(api, NODES, page_timeout_seconds=5)
    await anext(reading)
    server.compact()
    with pytest.raises(ApiError) as raised:
        await anext(reading)
    assert raised.value.expired


async def test_every_page_has_the_deadline(server: StandInApiServer, api: KubernetesApi) -> None:
    server.fail(Fault(delay_seconds=0.2))
    with pytest.raises(UnreachableError, match=r"within 0\.02 s"):
        await anext(pages(api, NODES, page_timeout_seconds=0.02))


async def test_an_unreadable_page_is_an_error(server: StandInApiServer, api: KubernetesApi) -> None:
    server.fail(Fault(body=b'{"items": 7}'))
    with pytest.raises(DecodeError, match="a list of nodes"):
        await anext(pages(api, NODES, page_timeout_seconds=5))


def test_an_empty_scope_selects_by_nothing() -> None:
    assert Scope().query() == {}
    assert Scope("ns", "a=b").query() == {"fieldSelector": "a=b"}
