from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from neuron_plugin.kubelet import announcement
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2_grpc as pb_grpc
from neuron_plugin.kubelet.announcement import RegistrationError, announce
from tests.kubelet.fakes import CORE


class Kubelet(pb_grpc.RegistrationServicer):
    def __init__(self, refusal: str | None = None, *, silent: bool = False) -> None:
        self.refusal = refusal
        self.silent = silent
        self.requests: list[pb.RegisterRequest] = []
        self.server = grpc.aio.server()

    async def Register(  # noqa: N802 - the API's name
        self, request: pb.RegisterRequest, context: grpc.aio.ServicerContext[pb.RegisterRequest, pb.Empty]
    ) -> pb.Empty:
        self.requests.append(request)
        if self.refusal is not None:
            await context.abort(grpc.StatusCode.UNKNOWN, self.refusal)
        if self.silent:
            await asyncio.Event().wait()
        return pb.Empty()

    async def serve(self, directory: Path) -> Kubelet:
        pb_grpc.add_RegistrationServicer_to_server(self, self.server)
        self.server.add_insecure_port(f"unix:{directory / 'kubelet.sock'}")
        await self.server.start()
        return self


async def register(directory: Path) -> None:
    await announce(directory / "e.sock", CORE, pb.DevicePluginOptions())


async def test_p1_an_accepted_announcement_says_version_endpoint_and_resource(directory: Path) -> None:
    kubelet = await Kubelet().serve(directory)
    await register(directory)
    await kubelet.server.stop(None)
    expected = pb.RegisterRequest(
        version="v1beta1", endpoint="e.sock", resource_name=CORE, options=pb.DevicePluginOptions()
    )
    assert kubelet.requests == [expected]


async def test_a_refusal_carries_the_kubelets_own_words(directory: Path) -> None:
    kubelet = await Kubelet("failed to dial device plugin: context deadline exceeded").serve(directory)
    with pytest.raises(RegistrationError) as error:
        await register(directory)
    await kubelet.server.stop(None)
    assert str(error.value) == (f"the kubelet refused {CORE}: failed to dial device plugin: context deadline exceeded")


async def test_nobody_there_says_so_and_what_to_look_at(directory: Path) -> None:
    with pytest.raises(RegistrationError, match=r"nobody answers on .*kubelet.sock \(No such file or directory\): is"):
        await register(directory)


async def test_no_answer_in_time_says_how_long_it_waited(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcement, "REGISTER_DEADLINE_SECONDS", 0.05)
    kubelet = await Kubelet(silent=True).serve(directory)
    with pytest.raises(RegistrationError, match=r"did not answer within 0.05 s when told of aws.amazon.com/neuroncore"):
        await register(directory)
    await kubelet.server.stop(None)


def test_the_deadline_lies_beyond_the_kubelets_own_dial_of_10_seconds() -> None:
    assert announcement.REGISTER_DEADLINE_SECONDS > 10
