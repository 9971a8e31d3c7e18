from __future__ import annotations

import pytest

from neuron_plugin.allocation import Assignment, PodReference, PodUid
from neuron_plugin.cluster import ApiError, ApiRequest, KubernetesApi, UnreachableError
from neuron_plugin.cluster.api import Response
from neuron_plugin.extender.attempts import may_have_happened
from neuron_plugin.extender.pod_writes import ApiPodWrites
from neuron_plugin.simulation import PODS, Fault, Match, StandInApiServer, node_manifest, pod_manifest
from tests.extender.pod_server import lost, never_sent, refused
from tests.extender.world import DEVICE, pod_of

KEYS = {"NEURON_DEVS": "0", "NEURON_ALLOC_TIME": "1", "NEURON_ALLOCATED": "false"}


@pytest.fixture
def writes(api: KubernetesApi) -> ApiPodWrites:
    return ApiPodWrites(api)


@pytest.fixture
def pod(server: StandInApiServer) -> PodReference:
    server.create_node(node_manifest("node", "trn1.32xlarge"))
    return pod_of(server.create_pod(pod_manifest("pod", DEVICE, 1)))


async def test_a_binding_carries_node_and_annotations_in_one_request(
    server: StandInApiServer, writes: ApiPodWrites, pod: PodReference
) -> None:
    before = len(server.requests)
    await writes.bind(pod, "node", KEYS, timeout_seconds=5)

    found = server.get(PODS, "pod", "default")
    assert found["spec"]["nodeName"] == "node"
    assert found["metadata"]["annotations"] == KEYS
    assert len(server.requests) - before == 1


async def test_a_pod_made_anew_under_the_name_is_neither_bound_nor_annotated(
    server: StandInApiServer, writes: ApiPodWrites, pod: PodReference
) -> None:
    old = PodReference(PodUid("gone"), pod.namespace, pod.name)

    with pytest.raises(ApiError):
        await writes.bind(old, "node", KEYS, timeout_seconds=5)
    with pytest.raises(ApiError):
        await writes.annotate(old, KEYS, timeout_seconds=5)

    assert await writes.read(old, timeout_seconds=5) is None
    assert not server.get(PODS, "pod", "default")["spec"].get("nodeName")


async def test_a_read_shows_where_the_pod_is_and_what_it_was_given(
    server: StandInApiServer, writes: ApiPodWrites, pod: PodReference
) -> None:
    waiting = await writes.read(pod, timeout_seconds=5)
    await writes.bind(pod, "node", {}, timeout_seconds=5)
    await writes.annotate(pod, KEYS, timeout_seconds=5)
    bound = await writes.read(pod, timeout_seconds=5)
    server.set_pod_status("default", "pod", {"phase": "Succeeded"})
    ended = await writes.read(pod, timeout_seconds=5)

    assert waiting is not None
    assert waiting.record.node == ""
    assert bound is not None
    assert bound.record.node == "node"
    assert isinstance(bound.record.decision, Assignment)
    assert not bound.terminal
    assert ended is not None
    assert ended.terminal


async def test_a_pod_that_is_gone_reads_as_none_and_trouble_is_raised(
    server: StandInApiServer, writes: ApiPodWrites, pod: PodReference
) -> None:
    server.fail(Fault(match=Match(method="GET", path="/pods/pod$"), status=500))
    with pytest.raises(ApiError):
        await writes.read(pod, timeout_seconds=5)

    server.delete_pod("default", "pod", grace_seconds=0)
    assert await writes.read(pod, timeout_seconds=5) is None


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (refused(400), False),
        (refused(403), False),
        (refused(404), False),
        (refused(409), False),
        (refused(429), False),
        (refused(500), True),
        (refused(504), True),
        (lost(), True),
        (never_sent(), False),
    ],
    ids=str,
)
def test_t40_a_write_may_be_in_place_after_any_end_but_a_refusal(
    error: ApiError | UnreachableError, *, expected: bool
) -> None:
    assert may_have_happened(error) is expected


async def test_every_call_hands_its_deadline_on(pod: PodReference) -> None:
    class Api:
        seconds: list[float] = []  # noqa: RUF012 - one use, one test

        async def request(self, request: ApiRequest, *, timeout_seconds: float) -> Response:
            self.seconds.append(timeout_seconds)
            return Response(404, request.method.encode())

        def stream(self, request: ApiRequest, *, silence_seconds: float) -> None:
            raise NotImplementedError(request, silence_seconds)

    api = Api()
    writes = ApiPodWrites(api)  # type: ignore[arg-type]  # it never streams
    for call in (writes.bind(pod, "node", {}, timeout_seconds=1), writes.annotate(pod, {}, timeout_seconds=2)):
        with pytest.raises(ApiError):
            await call
    await writes.read(pod, timeout_seconds=3)

    assert api.seconds == [1, 2, 3]
