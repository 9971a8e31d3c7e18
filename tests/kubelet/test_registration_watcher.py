"""What is special about registering through the kubelet's plugin watcher; the rest is in ``test_registration.py``."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import grpc
import pytest

from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as plugin_pb
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2_grpc as plugin_grpc
from neuron_plugin.kubelet._proto.pluginregistration.v1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.pluginregistration.v1 import api_pb2_grpc as pb_grpc
from neuron_plugin.kubelet.registration import STANDING, RegistrationState, WatchedPluginServer
from neuron_plugin.kubelet.socket_watch import channel_to, endpoint_path, identity_of
from tests.kubelet.fakes import CORE, DEVICE, QUICK, RunningPlugin, eventually, running_plugin
from tests.support.kubelet import KubeletOptions, StandInKubelet

State = RegistrationState


@pytest.fixture
def registry(directory: Path) -> Iterator[Path]:
    path = directory / "registry"
    path.mkdir()
    yield path
    assert not list(path.iterdir()), "a clean stop leaves no socket"


def watched(registry: Path, resource: str = CORE) -> AbstractAsyncContextManager[RunningPlugin]:
    return running_plugin(registry, resource, kind=WatchedPluginServer)


@asynccontextmanager
async def kubelet_on(registry: Path) -> AsyncIterator[StandInKubelet]:
    sockets = registry.parent / "sockets"
    sockets.mkdir(exist_ok=True)
    options = KubeletOptions(sync_delay=0.0, watcher_seconds=0.05)
    async with StandInKubelet(sockets, plugins_registry=registry, options=options) as kubelet:
        yield kubelet


def standing_path(registry: Path, resource: str) -> Path:
    return endpoint_path(registry, resource, STANDING)


async def test_p12_each_resource_has_one_path_of_its_own_for_all_its_lives(registry: Path) -> None:
    async with watched(registry), watched(registry, DEVICE), kubelet_on(registry) as kubelet:
        await kubelet.wait_for_capacity(CORE, 4)
        await kubelet.wait_for_capacity(DEVICE, 4)
        await kubelet.disconnect(CORE)
        await eventually(lambda: kubelet.registration_count(CORE) == 2)
        assert {path.name for path in registry.iterdir()} == {
            standing_path(registry, each).name for each in (CORE, DEVICE)
        }
        assert kubelet.registration_count(DEVICE) == 1


async def test_p12_a_plugin_that_registers_the_other_way_is_not_joined(registry: Path) -> None:
    """Two registrations of one resource: when either ends the kubelet disconnects the other."""
    sockets = registry.parent / "sockets"
    sockets.mkdir()
    async with running_plugin(registry, kind=WatchedPluginServer, other_route=sockets) as first:
        await eventually(standing_path(registry, CORE).exists)
        async with StandInKubelet(sockets), running_plugin(sockets, other_route=registry) as second:
            await second.observer.until(lambda: State.BACKING_OFF in second.observer.states)
            assert second.server.socket_path is None
            assert first.server.socket_path == standing_path(registry, CORE)


async def test_a_dead_socket_left_by_the_other_way_is_removed(registry: Path) -> None:
    left = endpoint_path(registry.parent, CORE, "deadbeef")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(left))
    async with running_plugin(registry, kind=WatchedPluginServer, other_route=registry.parent):
        await eventually(standing_path(registry, CORE).exists)
        assert not left.exists()


@asynccontextmanager
async def called(registry: Path) -> AsyncIterator[tuple[RunningPlugin, Path, grpc.aio.Channel]]:
    """A plugin, its socket, and a channel to it, by which a test plays the kubelet."""
    async with watched(registry) as plugin:
        path = standing_path(registry, CORE)
        await eventually(path.exists)
        async with channel_to(path) as channel:
            yield plugin, path, channel


async def notify(channel: grpc.aio.Channel, error: str = "") -> None:
    """The kubelet has taken the plugin, or says why it has not."""
    status = pb.RegistrationStatus(plugin_registered=not error, error=error)
    await pb_grpc.RegistrationStub(channel).NotifyRegistrationStatus(status, timeout=5)


async def test_the_socket_says_what_it_is_and_serves_devices_itself(registry: Path) -> None:
    async with called(registry) as (_, _, channel):
        info = await pb_grpc.RegistrationStub(channel).GetInfo(pb.InfoRequest(), timeout=5)
        assert (info.type, info.name, info.endpoint) == ("DevicePlugin", CORE, "")
        assert list(info.supported_versions) == ["v1beta1"]
        options = await plugin_grpc.DevicePluginStub(channel).GetDevicePluginOptions(plugin_pb.Empty())
        assert options.get_preferred_allocation_available


async def test_a_refusal_is_logged_and_the_kubelet_tries_again(registry: Path) -> None:
    async with called(registry) as (plugin, path, channel):
        before = identity_of(path)
        await notify(channel, "the ResourceName is invalid")
        assert plugin.observer.registrations == [f"the kubelet refused {CORE}: the ResourceName is invalid"]
        assert not plugin.server.registered.is_set()
        async with kubelet_on(registry) as kubelet:
            await kubelet.wait_for_capacity(CORE, 4)
            assert identity_of(path) == before


async def test_p7_registered_without_a_stream_is_no_registration(registry: Path) -> None:
    async with called(registry) as (plugin, path, channel):
        before = identity_of(path)
        await notify(channel)
        await plugin.observer.until(lambda: State.BACKING_OFF in plugin.observer.states)
        await eventually(lambda: identity_of(path) not in (before, None))


async def test_a_stream_says_that_the_kubelet_has_taken_it_though_no_word_of_it_came(registry: Path) -> None:
    async with called(registry) as (plugin, _, channel):
        stream = plugin_grpc.DevicePluginStub(channel).ListAndWatch(plugin_pb.Empty())
        await stream.read()
        await plugin.observer.until(lambda: plugin.server.state is State.ADVERTISED)
        stream.cancel()


async def test_p10_after_a_lost_stream_the_kubelets_old_word_counts_no_more(registry: Path) -> None:
    async with called(registry) as (plugin, _, channel):
        stream = plugin_grpc.DevicePluginStub(channel).ListAndWatch(plugin_pb.Empty())
        await notify(channel)
        await stream.read()
        stream.cancel()
        await plugin.observer.until(lambda: plugin.observer.states.count(State.REGISTERING) == 2)
        await asyncio.sleep(2 * QUICK.stream_deadline)
        assert plugin.server.state is State.REGISTERING
        assert plugin.observer.registrations == [None]
