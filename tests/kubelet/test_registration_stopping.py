from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as pb
from neuron_plugin.kubelet.advertisement import Advertisement
from neuron_plugin.kubelet.registration import DevicePluginServer, RegistrationState, RegistrationTimes
from neuron_plugin.kubelet.socket_watch import DirectoryWatch
from neuron_plugin.kubelet_files import KUBELET_SOCKET
from neuron_plugin.simulation import KubeletContainer, KubeletPod
from tests.kubelet.fakes import CORE, FakeHandler, eventually, running_plugin
from tests.kubelet.registering import ScriptedRegistration, scripted_kubelet, sockets_of
from tests.support.kubelet import StandInKubelet

State = RegistrationState


async def test_p13_stopping_ends_the_stream_and_removes_the_socket_quickly(directory: Path) -> None:
    async with StandInKubelet(directory) as kubelet, running_plugin(directory) as plugin:
        await kubelet.wait_for_capacity(CORE, 4)
        begun = time.monotonic()
        await plugin.server.stop()
        assert time.monotonic() - begun < 2
        assert sockets_of(directory) == []
        assert plugin.server.state is State.STOPPED
        await kubelet.wait_for_capacity(CORE, 0)
        assert kubelet.capacity(CORE).capacity == 4


async def test_p13_a_second_stop_is_harmless(directory: Path) -> None:
    async with StandInKubelet(directory), running_plugin(directory) as plugin:
        await plugin.server.registered.wait()
        await asyncio.gather(plugin.server.stop(), plugin.server.stop())
        await plugin.server.stop()


@pytest.mark.parametrize("state", [State.WAITING, State.BACKING_OFF])
async def test_p13_stopping_interrupts_every_wait(directory: Path, state: State) -> None:
    if state is State.BACKING_OFF:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(directory / KUBELET_SOCKET))
    times = RegistrationTimes(first_delay=60, longest_delay=60)
    async with running_plugin(directory, times=times, watch_seconds=60) as plugin:
        await plugin.observer.until(lambda: plugin.server.state is state)
        begun = time.monotonic()
        await plugin.server.stop()
        assert time.monotonic() - begun < 2


async def test_p13_stopping_interrupts_a_register_call(directory: Path) -> None:
    waiting = asyncio.Event()

    async def hang(_request: pb.RegisterRequest) -> None:
        waiting.set()
        await asyncio.Event().wait()

    async with scripted_kubelet(directory, ScriptedRegistration(during=hang)), running_plugin(directory) as plugin:
        await asyncio.wait_for(waiting.wait(), 5)
        begun = time.monotonic()
        await plugin.server.stop()
        assert time.monotonic() - begun < 2
    assert sockets_of(directory) == []


async def test_cancelling_run_tidies_up_as_stopping_does(directory: Path) -> None:
    async with StandInKubelet(directory), running_plugin(directory) as plugin:
        await plugin.server.registered.wait()
        plugin.task.cancel()
        await asyncio.gather(plugin.task, return_exceptions=True)
        assert plugin.task.cancelled()
        assert sockets_of(directory) == []
        assert plugin.server.state is State.STOPPED


async def test_a_server_that_never_ran_can_be_stopped_and_then_does_not_run(directory: Path) -> None:
    server = DevicePluginServer(CORE, DirectoryWatch(directory), FakeHandler(), Advertisement())
    await server.stop()
    await asyncio.wait_for(server.run(), 5)
    assert server.state is State.STOPPED


async def test_stopping_lets_an_admission_finish_that_is_under_way(directory: Path) -> None:
    """The kubelet fails a pod for good if the stream ends between its preference and its Allocate, or during either."""
    release = asyncio.Event()

    async def slow(available: Sequence[str], _must: Sequence[str], size: int) -> Sequence[str]:
        await release.wait()
        return sorted(available, key=int)[:size]

    pod = KubeletPod("uid", "ns", "pod", (KubeletContainer("c", {CORE: 2}),))
    async with StandInKubelet(directory) as kubelet, running_plugin(directory) as plugin:
        plugin.handler.prefer = slow
        await kubelet.wait_for_capacity(CORE, 4)
        admission = asyncio.create_task(kubelet.admit(pod))
        await eventually(lambda: bool(plugin.handler.preferences))
        stopping = asyncio.create_task(plugin.server.stop())
        await asyncio.sleep(0.02)
        assert kubelet.capacity(CORE).allocatable == 4
        release.set()
        assert (await admission).containers[0].ids == {CORE: ("0", "1")}
        await stopping
        await kubelet.wait_for_capacity(CORE, 0)


async def test_p13_a_cancellation_is_not_lost_while_a_register_call_is_being_given_up(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called, given_up, closed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow_to_close(*_: object) -> None:
        called.set()
        try:
            await asyncio.Event().wait()
        finally:
            given_up.set()
            await closed.wait()

    monkeypatch.setattr("neuron_plugin.kubelet.registration.register", slow_to_close)
    async with StandInKubelet(directory), running_plugin(directory) as plugin:
        await asyncio.wait_for(called.wait(), 5)
        sockets_of(directory)[0].unlink()
        await asyncio.wait_for(given_up.wait(), 5)
        plugin.task.cancel()
        await asyncio.sleep(0)
        closed.set()
        await asyncio.wait({plugin.task}, timeout=5)
        assert plugin.task.cancelled()
