"""A simulated kubelet beside a plugin that answers what a test says, for tests of the kubelet."""

# ruff: noqa: ARG002, N802 - the names and signatures of gRPC methods are the API's

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from neuron_plugin.allocation import ContainerKind
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2_grpc as pb_grpc
from neuron_plugin.kubelet._proto.pluginregistration.v1 import api_pb2 as watcher_pb
from neuron_plugin.kubelet._proto.pluginregistration.v1 import api_pb2_grpc as watcher_grpc
from neuron_plugin.kubelet.socket_watch import channel_to
from neuron_plugin.kubelet_files import KUBELET_SOCKET
from neuron_plugin.simulation.kubelet_pods import AdmittedContainer, KubeletContainer, KubeletPod, PodRejectedError
from tests.kubelet.fakes import CORE, seeded
from tests.support.kubelet import KubeletOptions, StandInKubelet

INIT, SIDECAR, APP = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP


class RawPlugin(pb_grpc.DevicePluginServicer, watcher_grpc.RegistrationServicer):
    """A plugin without manners: it answers what a test says, be it wrong, and keeps what it was asked.

    ``info`` is what it says of itself to a plugin watcher, and ``statuses`` what it hears.
    """

    def __init__(self, ids: Sequence[str] = ("d0", "d1", "d2", "d3"), *, prefers: bool = True) -> None:
        self.devices = [pb.Device(ID=each, health="Healthy") for each in ids]
        self.options = pb.DevicePluginOptions(get_preferred_allocation_available=prefers)
        self.preference: Sequence[str] | None = None
        self.preference_error: str | None = None
        self.allocate_error: str | None = None
        self.gate: asyncio.Event | None = None
        self.info = watcher_pb.PluginInfo(type="DevicePlugin", name=CORE, supported_versions=["v1beta1"])
        self.statuses: list[watcher_pb.RegistrationStatus] = []
        self.calls: list[str] = []
        self.preferences: list[tuple[set[str], set[str], int]] = []
        self.allocations: list[list[str]] = []
        self.stream_ends = asyncio.Event()
        self.news = asyncio.Event()

    async def GetDevicePluginOptions(self, request: Any, context: Any) -> pb.DevicePluginOptions:
        self.calls.append("options")
        return self.options

    async def ListAndWatch(self, request: Any, context: Any) -> AsyncIterator[pb.ListAndWatchResponse]:
        self.calls.append("stream")
        while not self.stream_ends.is_set():
            self.news.clear()
            yield pb.ListAndWatchResponse(devices=self.devices)
            await self.news.wait()

    async def GetPreferredAllocation(self, request: Any, context: Any) -> pb.PreferredAllocationResponse:
        (demand,) = request.container_requests
        available, must = set(demand.available_deviceIDs), set(demand.must_include_deviceIDs)
        self.preferences.append((available, must, demand.allocation_size))
        if self.preference_error is not None:
            await context.abort(grpc.StatusCode.INTERNAL, self.preference_error)
        chosen = self.preference if self.preference is not None else sorted(available)[: demand.allocation_size]
        return pb.PreferredAllocationResponse(
            container_responses=[pb.ContainerPreferredAllocationResponse(deviceIDs=chosen)]
        )

    async def Allocate(self, request: Any, context: Any) -> pb.AllocateResponse:
        (demand,) = request.container_requests
        ids = list(demand.devices_ids)
        self.allocations.append(ids)
        if self.gate is not None:
            await self.gate.wait()
        if self.allocate_error is not None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.allocate_error)
        response = pb.ContainerAllocateResponse(
            envs={"IDS": ",".join(sorted(ids))},
            devices=[pb.DeviceSpec(container_path=f"/dev/{i}", host_path=f"/dev/{i}", permissions="rw") for i in ids],
            cdi_devices=[pb.CDIDevice(name=f"example.com/dummy={i}") for i in ids],
        )
        return pb.AllocateResponse(container_responses=[response])

    async def PreStartContainer(self, request: Any, context: Any) -> pb.PreStartContainerResponse:
        raise NotImplementedError  # the simulated kubelet asks for none

    async def GetInfo(self, request: Any, context: Any) -> watcher_pb.PluginInfo:
        return self.info

    async def NotifyRegistrationStatus(self, request: Any, context: Any) -> watcher_pb.RegistrationStatusResponse:
        self.statuses.append(request)
        return watcher_pb.RegistrationStatusResponse()

    def set_health(self, device_id: str, health: str) -> None:
        for device in self.devices:
            if device_id == device.ID:
                device.health = health
        self.news.set()

    def end_stream(self) -> None:
        self.stream_ends.set()
        self.news.set()


async def register(directory: Path, endpoint: str, resource: str = CORE, version: str = "v1beta1") -> None:
    async with channel_to(directory / KUBELET_SOCKET) as channel:
        request = pb.RegisterRequest(version=version, endpoint=endpoint, resource_name=resource)
        await pb_grpc.RegistrationStub(channel).Register(request, timeout=15)


@asynccontextmanager
async def serving(plugin: RawPlugin, path: Path) -> AsyncIterator[None]:
    server = grpc.aio.server()
    pb_grpc.add_DevicePluginServicer_to_server(plugin, server)
    watcher_grpc.add_RegistrationServicer_to_server(plugin, server)
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    yield
    plugin.end_stream()
    await server.stop(0.2)


@asynccontextmanager
async def node(
    directory: Path, plugin: RawPlugin | None = None, *, options: KubeletOptions | None = None
) -> AsyncIterator[tuple[StandInKubelet, RawPlugin]]:
    """A kubelet with one plugin registered; it serves PodResources in ``pr`` and keeps cgroups in ``cgroup``."""
    plugin = plugin or RawPlugin()
    (directory / "pr").mkdir()
    kubelet = StandInKubelet(
        directory, directory / "pr", random=seeded(0), options=options, cgroup_root=directory / "cgroup"
    )
    async with kubelet, serving(plugin, directory / "plugin.sock"):
        await register(directory, "plugin.sock")
        await kubelet.wait_for_capacity(CORE, 4)
        yield kubelet, plugin


def pod(name: str, *containers: KubeletContainer, uid: str | None = None) -> KubeletPod:
    return KubeletPod(uid or f"uid-{name}", "ns", name, containers)


def wants(count: int, name: str = "c", kind: ContainerKind = APP) -> KubeletContainer:
    return KubeletContainer(name, {CORE: count}, kind)


async def rejection(kubelet: StandInKubelet, candidate: KubeletPod) -> str:
    with pytest.raises(PodRejectedError) as error:
        await kubelet.admit(candidate)
    assert kubelet.rejections[candidate.uid] is error.value
    return str(error.value)


def ids_of(container: AdmittedContainer, resource: str = CORE) -> set[str]:
    return set(container.ids[resource])


async def refusal(directory: Path, *arguments: str) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await register(directory, *arguments)
    assert error.value.code() is grpc.StatusCode.UNKNOWN
    return error.value.details() or ""
