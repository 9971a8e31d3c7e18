from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from neuron_plugin.allocation import ContainerKind
from neuron_plugin.kubelet import AdvertisedDevice, PodDevices, PodResourcesClient
from neuron_plugin.kubelet._proto.podresources.v1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.podresources.v1 import api_pb2_grpc as pb_grpc
from neuron_plugin.kubelet.pod_resources import ContainerDevices
from neuron_plugin.kubelet.socket_watch import channel_to
from neuron_plugin.simulation.kubelet_pod_resources import RateLimit
from neuron_plugin.simulation.kubelet_pods import KubeletContainer, KubeletPod
from tests.kubelet.fakes import CORE, RunningPlugin, eventually, running_plugin
from tests.support.kubelet import KubeletOptions, StandInKubelet
from tests.support.pod_resources import get_pod

UNLIMITED = KubeletOptions(pod_resources_per_second=0)


@dataclass
class Node:
    kubelet: StandInKubelet
    plugin: RunningPlugin
    client: PodResourcesClient
    socket: Path


@asynccontextmanager
async def node(directory: Path, options: KubeletOptions = UNLIMITED) -> AsyncIterator[Node]:
    plugins, pods = directory / "dp", directory / "pr"
    plugins.mkdir()
    pods.mkdir()
    async with StandInKubelet(plugins, pods, options=options) as kubelet, running_plugin(plugins) as plugin:
        await kubelet.wait_for_capacity(CORE, 4)
        socket = pods / "kubelet.sock"
        yield Node(kubelet, plugin, PodResourcesClient(socket), socket)


def pod(name: str, *containers: tuple[str, int, ContainerKind]) -> KubeletPod:
    return KubeletPod(
        f"uid-{name}", "ns", name, tuple(KubeletContainer(n, {CORE: count}, kind) for n, count, kind in containers)
    )


APP = ContainerKind.APP


async def test_the_claims_of_a_pod_are_listed(directory: Path) -> None:
    async with node(directory) as n:
        container = KubeletContainer("c", claims=(("dev", ""),))
        await n.kubelet.admit(KubeletPod("uid-a", "ns", "a", (container,), {"dev": "a-dev-1f"}))
        assert await n.client.list() == (PodDevices("ns", "a", (), frozenset({"a-dev-1f"})),)


async def test_there_is_one_entry_for_each_id(directory: Path) -> None:
    async with node(directory) as n, channel_to(n.socket) as channel:
        await n.kubelet.admit(pod("a", ("c", 3, APP)))
        answer = await pb_grpc.PodResourcesListerStub(channel).List(pb.ListPodResourcesRequest())
        entries = answer.pod_resources[0].containers[0].devices
    assert [entry.resource_name for entry in entries] == [CORE] * 3
    assert sorted(list(entry.device_ids) for entry in entries) == [["0"], ["1"], ["2"]]


async def test_p74_sidecar_and_app_are_listed_and_the_plain_init_container_is_not(directory: Path) -> None:
    containers = (("i", 1, ContainerKind.INIT), ("s", 1, ContainerKind.SIDECAR), ("c", 1, APP))
    async with node(directory) as n:
        await n.kubelet.admit(pod("a", *containers))
        (listed,) = await n.client.list()
    assert [each.container for each in listed.containers] == ["s", "c"]


async def test_a_pod_under_admission_is_already_known_but_holds_nothing_yet(directory: Path) -> None:
    async with node(directory) as n:
        release = asyncio.Event()

        async def slow(available: object, _must: object, size: int) -> list[str]:
            del available
            await release.wait()
            return [str(each) for each in range(size)]

        n.plugin.handler.prefer = slow
        admission = asyncio.create_task(n.kubelet.admit(pod("a", ("c", 1, APP))))
        await eventually(lambda: bool(n.plugin.handler.preferences))
        assert await get_pod(n.socket, "ns", "a") == PodDevices("ns", "a", ())
        release.set()
        await admission
        assert (await get_pod(n.socket, "ns", "a")) == PodDevices("ns", "a", (ContainerDevices("c", CORE, ("0",)),))


async def test_numa_nodes_are_passed_on_node_zero_included(directory: Path) -> None:
    async with node(directory) as n, channel_to(n.socket) as channel:
        n.plugin.advertisement.publish([AdvertisedDevice("0", numa_nodes=(0, 1))])
        await n.kubelet.wait_for_capacity(CORE, 1)
        answer = await pb_grpc.PodResourcesListerStub(channel).GetAllocatableResources(pb.AllocatableResourcesRequest())
    assert [entry.ID for entry in answer.devices[0].topology.nodes] == [0, 1]


async def test_a_list_frees_what_ended_pods_held_and_get_does_not(directory: Path) -> None:
    async with node(directory) as n:
        await n.kubelet.admit(pod("a", ("c", 4, APP)))
        n.kubelet.finish("uid-a")
        await get_pod(n.socket, "ns", "a")
        assert n.kubelet.devices.entries()
        await n.client.list()
        assert not n.kubelet.devices.entries()


async def test_a_list_during_an_allocate_can_hand_one_device_to_two_pods(directory: Path) -> None:
    """kubernetes/kubernetes#137534, which is why the plugin never lists while an Allocate is under way."""
    async with node(directory) as n:
        await n.kubelet.admit(pod("old", ("c", 1, APP)))
        endpoint = n.kubelet._clients.endpoints[CORE]
        assert endpoint is not None
        allocate = endpoint.allocate

        async def listed_meanwhile(ids: list[str]) -> object:
            n.kubelet.finish("uid-old")
            await n.client.list()
            return await allocate(ids)

        endpoint.allocate = listed_meanwhile  # type: ignore[assignment,method-assign]  # something in between
        first = (await n.kubelet.admit(pod("a", ("c", 1, APP)))).container("c").ids[CORE]
        endpoint.allocate = allocate  # type: ignore[method-assign]  # and out again
        await n.kubelet.admit(pod("b", ("c", 4, APP)))
        available, _, _ = n.plugin.handler.preferences[-1]
    assert set(first) <= set(available)


async def test_a_kubelet_whose_gate_is_off_says_that_get_is_disabled(directory: Path) -> None:
    async with node(directory, KubeletOptions(pod_resources_get=False)) as n:
        with pytest.raises(grpc.aio.AioRpcError, match="PodResources API Get method disabled"):
            await get_pod(n.socket, "ns", "a")


def test_the_rate_limit_fills_up_again_with_time() -> None:
    limit = RateLimit(100, 2)
    assert [limit.allows(0.0) for _ in range(3)] == [True, True, False]
    assert [limit.allows(0.01) for _ in range(2)] == [True, False]
    assert [limit.allows(10.0) for _ in range(3)] == [True, True, False]
