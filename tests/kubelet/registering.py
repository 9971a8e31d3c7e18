"""What the tests of registration share: a kubelet with scripted answers to Register, and the sockets in a directory."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2_grpc as pb_grpc
from neuron_plugin.kubelet.socket_watch import endpoint_prefix
from neuron_plugin.kubelet_files import KUBELET_SOCKET
from tests.kubelet.fakes import CORE, RunningPlugin, eventually
from tests.support.kubelet import StandInKubelet


def sockets_of(directory: Path, resource: str = CORE) -> list[Path]:
    return [path for path in directory.iterdir() if path.name.startswith(endpoint_prefix(resource))]


def modes_of(directory: Path) -> list[int]:
    return [stat.S_IMODE(path.stat().st_mode) for path in sockets_of(directory)]


async def advertised_again(kubelet: StandInKubelet, plugin: RunningPlugin, registrations: int) -> None:
    await eventually(lambda: kubelet.registration_count(CORE) >= registrations)
    await kubelet.wait_for_capacity(CORE, 4)
    # The kubelet hears the devices a moment before the server hears that its Register call has ended.
    await plugin.observer.until(plugin.server.registered.is_set)
    assert not plugin.task.done()


@dataclass
class ScriptedRegistration(pb_grpc.RegistrationServicer):
    """A Registration service that answers as a test says, and keeps the requests."""

    requests: list[pb.RegisterRequest] = field(default_factory=list)
    refusal: str | None = None
    during: Callable[[pb.RegisterRequest], object] | None = None

    async def Register(  # noqa: N802 - the API's name
        self, request: pb.RegisterRequest, context: grpc.aio.ServicerContext[pb.RegisterRequest, pb.Empty]
    ) -> pb.Empty:
        self.requests.append(request)
        if self.during is not None:
            outcome = self.during(request)
            if asyncio.iscoroutine(outcome):
                await outcome
        if self.refusal is not None:
            await context.abort(grpc.StatusCode.UNKNOWN, self.refusal)
        return pb.Empty()


@asynccontextmanager
async def scripted_kubelet(directory: Path, registration: ScriptedRegistration) -> AsyncIterator[None]:
    server = grpc.aio.server()
    pb_grpc.add_RegistrationServicer_to_server(registration, server)
    server.add_insecure_port(f"unix:{directory / KUBELET_SOCKET}")
    await server.start()
    yield
    await server.stop(None)
