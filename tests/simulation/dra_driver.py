"""A driver of claims that answers what a test says, beside a simulated kubelet."""

# ruff: noqa: ARG002, N802 - the names and signatures of gRPC methods are the API's

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from neuron_plugin.kubelet._proto.dra.v1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.dra.v1 import api_pb2_grpc as pb_grpc
from neuron_plugin.kubelet._proto.drahealth.v1alpha1 import api_pb2 as health_pb
from neuron_plugin.kubelet._proto.drahealth.v1alpha1 import api_pb2_grpc as health_grpc
from neuron_plugin.kubelet._proto.pluginregistration.v1 import api_pb2 as watcher_pb
from neuron_plugin.kubelet._proto.pluginregistration.v1 import api_pb2_grpc as watcher_grpc
from neuron_plugin.simulation.kubelet_dra import HEALTH_SERVICE, PLUGIN_TYPE, SERVICE
from tests.simulation.dra import DRIVER


class RawDriver(pb_grpc.DRAPluginServicer, health_grpc.DRAResourceHealthServicer, watcher_grpc.RegistrationServicer):
    """A driver whose claims get one device ``d0``, or ``error``, or are skipped; it keeps its calls."""

    def __init__(self, name: str = DRIVER) -> None:
        self.name = name
        self.error = ""
        self.skips = False
        self.gate: asyncio.Event | None = None
        self.cdi_id = f"{name.replace('.', '-')}.io/device=0"
        self.prepared: list[list[str]] = []
        self.unprepared: list[list[str]] = []
        self.ends = asyncio.Event()

    async def GetInfo(self, request: Any, context: Any) -> watcher_pb.PluginInfo:
        return watcher_pb.PluginInfo(type=PLUGIN_TYPE, name=self.name, supported_versions=[SERVICE, HEALTH_SERVICE])

    async def NotifyRegistrationStatus(self, request: Any, context: Any) -> watcher_pb.RegistrationStatusResponse:
        return watcher_pb.RegistrationStatusResponse()

    async def NodePrepareResources(self, request: Any, context: Any) -> pb.NodePrepareResourcesResponse:
        self.prepared.append([each.name for each in request.claims])
        if self.gate:
            await self.gate.wait()
        response = pb.NodePrepareResourcesResponse()
        for each in () if self.skips else request.claims:
            response.claims[each.uid].error = self.error
            if not self.error:
                response.claims[each.uid].devices.add(pool_name="p", device_name="d0", cdi_device_ids=[self.cdi_id])
        return response

    async def NodeUnprepareResources(self, request: Any, context: Any) -> pb.NodeUnprepareResourcesResponse:
        self.unprepared.append([each.name for each in request.claims])
        response = pb.NodeUnprepareResourcesResponse()
        for each in request.claims:
            response.claims[each.uid].error = self.error
        return response

    async def NodeWatchResources(
        self, request: Any, context: Any
    ) -> AsyncIterator[health_pb.NodeWatchResourcesResponse]:
        yield health_pb.NodeWatchResourcesResponse()
        await self.ends.wait()


@asynccontextmanager
async def serving(driver: RawDriver, registry: Path) -> AsyncIterator[Path]:
    """The driver's standing socket, while the block lasts."""
    registry.mkdir(exist_ok=True)
    path = registry / f"{driver.name}.sock"
    server = grpc.aio.server()
    pb_grpc.add_DRAPluginServicer_to_server(driver, server)
    health_grpc.add_DRAResourceHealthServicer_to_server(driver, server)
    watcher_grpc.add_RegistrationServicer_to_server(driver, server)
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    driver.ends.clear()
    try:
        yield path
    finally:
        driver.ends.set()
        await server.stop(0.1)
        path.unlink(missing_ok=True)
