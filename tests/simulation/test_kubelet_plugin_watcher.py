"""The simulated plugin watcher."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest

from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as plugin_pb
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2_grpc as plugin_grpc
from neuron_plugin.kubelet._proto.pluginregistration.v1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.pluginregistration.v1 import api_pb2_grpc as pb_grpc
from neuron_plugin.simulation.kubelet_plugin_watcher import PluginWatcher
from tests.kubelet.fakes import eventually
from tests.support.kubelet import KubeletOptions, StandInKubelet

RESOURCE = "example.com/dummy"


@dataclass
class Dummy(pb_grpc.RegistrationServicer, plugin_grpc.DevicePluginServicer):
    """A device plugin with one device; ``info`` is what it says of itself."""

    info: pb.PluginInfo
    statuses: list[pb.RegistrationStatus] = field(default_factory=list)
    streams: list[asyncio.Event] = field(default_factory=list)

    async def GetInfo(self, request: pb.InfoRequest, context: object) -> pb.PluginInfo:  # noqa: ARG002, N802 - the API's
        return self.info

    async def NotifyRegistrationStatus(  # noqa: N802 - the API's name
        self,
        request: pb.RegistrationStatus,
        context: object,  # noqa: ARG002 - the API's signature
    ) -> pb.RegistrationStatusResponse:
        self.statuses.append(request)
        return pb.RegistrationStatusResponse()

    async def GetDevicePluginOptions(  # noqa: N802 - the API's name
        self,
        request: plugin_pb.Empty,  # noqa: ARG002 - the API's signature
        context: object,  # noqa: ARG002 - the API's signature
    ) -> plugin_pb.DevicePluginOptions:
        return plugin_pb.DevicePluginOptions()

    async def ListAndWatch(  # type: ignore[override]  # noqa: N802 - the stubs say generator, grpc.aio takes both
        self,
        request: plugin_pb.Empty,  # noqa: ARG002 - the API's signature
        context: grpc.aio.ServicerContext[plugin_pb.Empty, plugin_pb.ListAndWatchResponse],
    ) -> None:
        end = asyncio.Event()
        self.streams.append(end)
        device = plugin_pb.Device(ID="0", health="Healthy")
        await context.write(plugin_pb.ListAndWatchResponse(devices=[device]))
        await end.wait()


def fit() -> pb.PluginInfo:
    return pb.PluginInfo(type="DevicePlugin", name=RESOURCE, supported_versions=["v1beta1"])


def dummy(info: pb.PluginInfo | None = None) -> Dummy:
    return Dummy(info or fit())  # type: ignore[abstract]  # allocating is not asked of it


@asynccontextmanager
async def serving_dummy(plugin: Dummy, path: Path) -> AsyncIterator[None]:
    server = grpc.aio.server()
    pb_grpc.add_RegistrationServicer_to_server(plugin, server)
    plugin_grpc.add_DevicePluginServicer_to_server(plugin, server)
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


@pytest.fixture
async def kubelet(directory: Path) -> AsyncIterator[StandInKubelet]:
    (directory / "sockets").mkdir()
    (directory / "registry").mkdir()
    sockets, registry = directory / "sockets", directory / "registry"
    options = KubeletOptions(watcher_seconds=0.02)
    async with StandInKubelet(sockets, plugins_registry=registry, options=options) as kubelet:
        yield kubelet


@pytest.mark.parametrize(
    ("info", "error"),
    [
        (pb.PluginInfo(type="CSIPlugin", name="x"), "no handler registered for plugin type: CSIPlugin"),
        (pb.PluginInfo(type="DevicePlugin", name="dummy", supported_versions=["v1beta1"]), "is invalid"),
        (pb.PluginInfo(type="DevicePlugin", name=RESOURCE, supported_versions=["v1"]), "does not support"),
    ],
    ids=["type", "name", "version"],
)
async def test_an_unfit_plugin_learns_why(
    kubelet: StandInKubelet, directory: Path, info: pb.PluginInfo, error: str
) -> None:
    plugin = dummy(info)
    async with serving_dummy(plugin, directory / "registry/dummy.sock"):
        await eventually(lambda: bool(plugin.statuses))
        assert not plugin.statuses[0].plugin_registered
        assert error in plugin.statuses[0].error
        assert not plugin.streams
        del kubelet


async def test_a_registration_that_failed_is_tried_again_after_a_pause(
    kubelet: StandInKubelet, directory: Path
) -> None:
    plugin = dummy(pb.PluginInfo(type="DevicePlugin", name=RESOURCE, supported_versions=["v1"]))
    async with serving_dummy(plugin, directory / "registry/dummy.sock"):
        await eventually(lambda: len(plugin.statuses) == 1)
        plugin.info = fit()
        await asyncio.sleep(0.1)
        assert len(plugin.statuses) == 1
        await kubelet.wait_for_capacity(RESOURCE, 1)


async def test_a_dead_socket_is_counted_and_disturbs_nobody(directory: Path) -> None:
    (directory / "registry").mkdir()
    watcher = PluginWatcher(directory / "registry", {})
    dead = dummy()
    async with serving_dummy(dead, directory / "registry/a.sock"):
        (directory / "registry/a.sock").rename(directory / "registry/b.sock")
    await watcher.reconcile()
    assert list(watcher.errors) == [
        f"failed to get plugin info using RPC GetInfo at socket {directory}/registry/b.sock"
    ]
