"""The simulated kubelet, checked against what kubelet 1.36 was seen to do: capacity, admission, its own restarts."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import grpc
import pytest

from neuron_plugin.kubelet import is_served
from neuron_plugin.kubelet_files import KUBELET_SOCKET
from neuron_plugin.simulation.kubelet_plugins import ResourceCapacity
from neuron_plugin.simulation.kubelet_pods import KubeletContainer, PodRejectedError
from tests.kubelet.fakes import CORE, eventually
from tests.simulation.kubelet_node import (
    INIT,
    RawPlugin,
    ids_of,
    node,
    pod,
    register,
    rejection,
    serving,
    wants,
)
from tests.support.kubelet import KubeletOptions, KubeletStoppedError, StandInKubelet

# Capacity and health


async def test_any_other_health_text_is_unhealthy(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        plugin.set_health("d1", "healthy")
        await kubelet.wait_for_capacity(CORE, 3)


async def test_an_ended_stream_keeps_the_capacity_for_the_grace_and_is_never_opened_again(directory: Path) -> None:
    async with node(directory, options=KubeletOptions(grace_seconds=0.05)) as (kubelet, plugin):
        plugin.end_stream()
        assert await kubelet.wait_for_capacity(CORE, 0) == ResourceCapacity(4, 0)
        await eventually(lambda: kubelet.capacity(CORE) == ResourceCapacity(0, 0))
        assert plugin.calls == ["options", "stream"]


# Admission and freeing


async def test_admission_is_serial_a_slow_allocate_delays_every_pod(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        plugin.gate = asyncio.Event()
        slow = asyncio.create_task(kubelet.admit(pod("slow", wants(1))))
        await eventually(lambda: bool(plugin.allocations))
        plain = asyncio.create_task(kubelet.admit(pod("plain", KubeletContainer("c"))))
        await asyncio.sleep(0.02)
        assert not plain.done()
        plugin.gate.set()
        await asyncio.gather(slow, plain)


async def test_a_stream_that_ends_under_an_allocate_rejects_the_pod(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        plugin.gate = asyncio.Event()
        admission = asyncio.create_task(kubelet.admit(pod("a", wants(1))))
        await eventually(lambda: bool(plugin.allocations))
        plugin.end_stream()
        with pytest.raises(PodRejectedError, match="code = Canceled"):
            await admission
        plugin.gate.set()


# The kubelet's own restarts


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


async def test_a_start_wipes_sockets_directly_in_the_directory_and_nothing_else(directory: Path) -> None:
    (directory / "sub").mkdir()
    (directory / "kubelet_internal_checkpoint").write_text("{}")
    for path in (directory / "stray.sock", directory / "sub" / "kept.sock", directory / KUBELET_SOCKET):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
    async with StandInKubelet(directory):
        names = names_in(directory)
    assert names == ["kubelet.sock", "kubelet_internal_checkpoint", "sub"]
    assert (directory / "sub" / "kept.sock").is_socket()


async def test_a_stopped_kubelet_leaves_a_dead_socket_behind(directory: Path) -> None:
    async with StandInKubelet(directory):
        pass
    assert (directory / KUBELET_SOCKET).is_socket()
    with pytest.raises(grpc.aio.AioRpcError, match="Connection refused"):
        await register(directory, "e")


async def test_a_restart_remembers_allocations_and_forgets_plugins(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        before = (await kubelet.admit(pod("a", wants(3)))).container("c")
        await kubelet.restart()
        assert kubelet.capacity(CORE) == ResourceCapacity(0, 0)
        assert kubelet.rejections == {}
        async with serving(plugin_again := RawPlugin(), directory / "again.sock"):
            await register(directory, "again.sock")
            await kubelet.wait_for_capacity(CORE, 4)
            assert await kubelet.start_container("uid-a", "c") == before
            assert "Requested: 2, Available: 1" in await rejection(kubelet, pod("b", wants(2)))
        assert plugin_again.allocations == []
    assert len(plugin.allocations) == 1


async def test_a_pod_with_devices_in_init_and_app_dies_as_well(directory: Path) -> None:
    async with node(directory, options=KubeletOptions(sync_delay=0)) as (kubelet, _):
        await kubelet.admit(pod("a", wants(1, "i", INIT), wants(1)))
        await kubelet.restart()
        assert list(kubelet.rejections) == ["uid-a"]


async def test_a_stop_within_an_allocate_rejects_nothing_and_the_next_start_admits_again(directory: Path) -> None:
    async with node(directory, options=KubeletOptions(sync_delay=0.3)) as (kubelet, plugin):
        plugin.gate = asyncio.Event()
        admission = asyncio.create_task(kubelet.admit(pod("a", wants(2))))
        await eventually(lambda: bool(plugin.allocations))
        await kubelet.stop()
        with pytest.raises(KubeletStoppedError, match="under the admission of a"):
            await admission
        plugin.gate.set()
        restart = asyncio.create_task(kubelet.start())
        async with serving(again := RawPlugin(), directory.parent / f"{directory.name}-again.sock"):
            await eventually(lambda: is_served(directory / KUBELET_SOCKET))
            await register(directory, f"../{directory.name}-again.sock")
            await restart
            assert kubelet.rejections == {}
            assert len(again.allocations) == 1
            assert len(ids_of(await kubelet.start_container("uid-a", "c"))) == 2
