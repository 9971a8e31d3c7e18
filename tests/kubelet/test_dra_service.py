"""A DRA driver's one standing socket; what the kubelet asks of it is in ``tests/conformance/test_dra.py``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from neuron_plugin.kubelet._proto.dra.v1 import api_pb2 as dra_pb
from neuron_plugin.kubelet._proto.pluginregistration.v1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.pluginregistration.v1 import api_pb2_grpc as pb_grpc
from neuron_plugin.kubelet.dra_service import ClaimReference, DraServer, PreparedDevice, dial_driver
from neuron_plugin.kubelet.registration import STANDING, RegistrationState
from neuron_plugin.kubelet.socket_watch import DirectoryWatch, channel_to, endpoint_path, identity_of
from tests.kubelet.fakes import QUICK, eventually

DRIVER = "neuron-plugin.io"


class NoClaims:
    async def prepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, Sequence[PreparedDevice] | str]:
        return {claim.uid: () for claim in claims}

    async def unprepare(self, claims: Sequence[ClaimReference]) -> None:
        del claims


@asynccontextmanager
async def running_driver(directory: Path) -> AsyncIterator[DraServer]:
    watch = DirectoryWatch(directory, period_seconds=0.05)
    server = DraServer(DRIVER, watch, NoClaims(), times=QUICK)
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(watch.run())
        group.create_task(server.run())
        try:
            yield server
        finally:
            await server.stop()
            watching.cancel()


async def report(path: Path, **outcome: object) -> None:
    async with channel_to(path) as channel:
        stub = pb_grpc.RegistrationStub(channel)
        await stub.GetInfo(pb.InfoRequest())
        await stub.NotifyRegistrationStatus(pb.RegistrationStatus(**outcome))  # type: ignore[arg-type]


async def test_each_outcome_that_the_kubelet_reports_is_kept_and_counted(directory: Path) -> None:
    path = endpoint_path(directory, DRIVER, STANDING)
    async with running_driver(directory) as server:
        await eventually(path.exists)
        counted = server.counters.registrations
        await report(path, plugin_registered=False, error="no such version")
        assert (server.failure, counted[DRIVER, "failed"]) == (f"the kubelet refused {DRIVER}: no such version", 1)
        assert not server.registered.is_set()
        for kubelets in (1, 2):  # one that restarts finds the same socket
            await report(path, plugin_registered=True)
            await eventually(lambda kubelets=kubelets: counted[DRIVER, "accepted"] == kubelets)  # type: ignore[misc]
            await eventually(server.registered.is_set)
            assert server.failure is None
        await asyncio.sleep(0.05)
        assert counted[DRIVER, "accepted"] == 2, "each once"
        await report(path, plugin_registered=False)
        assert server.failure == f"the kubelet refused {DRIVER}: it gives no reason"
        assert server.registered.is_set()
    assert server.state is RegistrationState.STOPPED
    assert not list(directory.iterdir())


async def test_an_accident_in_the_daemon_is_an_error_of_each_claim_and_names_them_in_the_log(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(NoClaims):
        async def prepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, Sequence[PreparedDevice] | str]:
            raise KeyError(claims[0].name)

    server = DraServer(DRIVER, DirectoryWatch(directory), Broken(), times=QUICK)
    asked = dra_pb.NodePrepareResourcesRequest(claims=[dra_pb.Claim(namespace="ml", name="chips", uid="u")])
    answer = await server.NodePrepareResources(asked, None)  # type: ignore[arg-type]  # the call's context is not used
    assert answer.claims["u"].error == "Prepare failed: KeyError: 'chips'"
    assert [record.__dict__["claims"] for record in caplog.records] == [["ml/chips"]]


async def test_a_socket_that_is_removed_is_served_again(directory: Path) -> None:
    path = endpoint_path(directory, DRIVER, STANDING)
    async with running_driver(directory) as server:
        await eventually(path.exists)
        await report(path, plugin_registered=True)
        await eventually(server.registered.is_set)
        before = identity_of(path)
        path.unlink()
        await eventually(lambda: identity_of(path) not in {None, before})
        assert not server.registered.is_set()
        await eventually(lambda: server.socket_path == path)
        assert await server.fault(5) is None
    assert await server.fault(5) is None, "there is no socket now, so none that does not answer"
    assert "No such file" in (await dial_driver(path, 5) or "")


async def test_a_driver_waits_for_its_directory_and_says_why(directory: Path) -> None:
    registry = directory / "registry"
    async with running_driver(registry) as server:
        await eventually(lambda: server.counters.registrations[DRIVER, "failed"] >= 2)
        assert "no socket can be made" in (server.failure or "")
        assert server.socket_path is None
        registry.mkdir()
        await eventually(endpoint_path(registry, DRIVER, STANDING).exists)
