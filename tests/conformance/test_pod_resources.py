"""What upstream's ``podresources_test.go`` expects, and what a plugin needs when the API is hard pressed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from neuron_plugin.kubelet import PodDevices
from neuron_plugin.kubelet._proto.podresources.v1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.podresources.v1 import api_pb2_grpc as pb_grpc
from neuron_plugin.kubelet.socket_watch import channel_to
from tests.conformance.node import DEVICES, NEURON, Ability, ContainerSpec, Node, PodSpec, until
from tests.conformance.steps import (
    asking,
    held,
    is_called,
    is_confirmed,
    is_running,
    reaches,
    received,
    runs,
    shows,
    start_offering,
)
from tests.support.pod_resources import get_pod

CPU, MEMORY = {"cpu": "10m"}, {"cpu": "10m", "memory": "32Mi"}
OF_EVERY_QUALITY = (
    PodSpec("best-effort", (ContainerSpec("app", {NEURON: 1}),)),
    PodSpec("burstable", (ContainerSpec("app", {NEURON: 1}, compute=CPU),)),
    PodSpec("guaranteed", (ContainerSpec("app", {NEURON: 1}, compute=MEMORY, guaranteed=True),)),
)
CALLS_AT_ONCE = 40
"""Four times what the kubelet lets through at once (``pkg/kubelet/apis/podresources/constants.go``)."""
PAUSE_SECONDS = 0.1
ANSWERED, THROTTLED = "answered", "RESOURCE_EXHAUSTED: rejected by rate limit"


async def listed(node: Node, name: str) -> PodDevices | None:
    """The entry of a pod, found by List."""
    return next((pod for pod in await node.pod_resources.list() if is_called(pod, name)), None)


async def test_pod_resources_knows_running_pods_by_name_and_no_others(node: Node) -> None:
    await start_offering(node)
    await runs(node, asking("with"))
    await runs(node, PodSpec("without", (ContainerSpec("app"),)))
    found = await listed(node, "with")
    assert found is not None
    assert found.containers
    assert await get_pod(node.pod_resources.socket, found.namespace, found.name) == found
    assert await get_pod(node.pod_resources.socket, found.namespace, "np-conformance-absent") is None
    assert not await held(node, "without")


async def test_pod_resources_forgets_a_pod_that_has_completed(node: Node) -> None:
    await start_offering(node)
    await runs(node, asking("running"))
    await node.create(asking("done", exits=0))
    await reaches(node, "done", "Succeeded")
    running = await listed(node, "running")
    assert running is not None
    assert await listed(node, "done") is None
    assert await get_pod(node.pod_resources.socket, running.namespace, running.name.replace("running", "done")) is None


async def test_pod_resources_lists_pods_of_every_quality_of_service_also_after_a_kubelet_restart(node: Node) -> None:
    node.require(Ability.RESTART_KUBELET)
    await start_offering(node)
    for pod in OF_EVERY_QUALITY:
        await runs(node, pod)
    before = [await listed(node, pod.name) for pod in OF_EVERY_QUALITY]
    ids = [each for pod in before if pod for part in pod.containers for each in part.ids]
    assert len(set(ids)) == len(OF_EVERY_QUALITY)
    await node.restart_kubelet()
    await shows(node, DEVICES)

    async def are_listed_again() -> bool:
        return [await listed(node, pod.name) for pod in OF_EVERY_QUALITY] == before

    await until(node, are_listed_again, "the same pods with the same ids")


@asynccontextmanager
async def pressed(node: Node) -> AsyncIterator[Counter[str]]:
    """Somebody asks the kubelet without a pause, as upstream's test does; yields what it answered, as it grows."""
    answers: Counter[str] = Counter()

    async def is_throttled() -> bool:
        return answers[THROTTLED] > 0

    async def ask(stub: pb_grpc.PodResourcesListerAsyncStub) -> None:
        try:
            await stub.GetAllocatableResources(pb.AllocatableResourcesRequest(), timeout=10)
            answers[ANSWERED] += 1
        except grpc.aio.AioRpcError as error:
            answers[f"{error.code().name}: {error.details()}"] += 1

    async def press() -> None:
        async with channel_to(node.pod_resources_socket) as channel:
            stub = pb_grpc.PodResourcesListerStub(channel)
            while True:
                await asyncio.gather(*(ask(stub) for _ in range(CALLS_AT_ONCE)))
                await asyncio.sleep(PAUSE_SECONDS)

    async with asyncio.TaskGroup() as tasks:
        pressing = tasks.create_task(press(), name="somebody who asks PodResources without end")
        await until(node, is_throttled, THROTTLED)
        yield answers
        pressing.cancel()


async def test_p62_the_kubelet_throttles_and_our_client_gets_its_answer(node: Node) -> None:
    await start_offering(node)
    await runs(node, asking("one"))
    async with pressed(node) as answers:
        for _ in range(3):
            assert await held(node, "one")
    assert set(answers) == {ANSWERED, THROTTLED}


async def test_p62_a_throttled_plugin_still_serves_pods_and_learns_who_they_are(node: Node) -> None:
    await start_offering(node)
    async with pressed(node):
        await node.create(asking("one"))
        view = await is_running(node, "one")
        await is_confirmed(node, "one")
    assert received(view).nodes == ("neuron0",)
