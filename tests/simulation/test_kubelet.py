"""The simulated kubelet, checked against what kubelet 1.36 was seen to do: admission, containers, its own restarts.

What the conformance suite shows on a real kubelet, too, is not repeated.
"""

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
from tests.kubelet.fakes import CORE, DEVICE, eventually
from tests.simulation.kubelet_node import INIT, RawPlugin, ids_of, node, pod, register, rejection, serving, wants
from tests.support.kubelet import KubeletOptions, KubeletStoppedError, StandInKubelet

# Admission.


async def test_a_slow_allocate_delays_every_pod_and_a_stream_that_ends_under_it_rejects_its_own(
    directory: Path,
) -> None:
    async with node(directory) as (kubelet, plugin):
        plugin.gate = asyncio.Event()
        slow = asyncio.create_task(kubelet.admit(pod("slow", wants(1))))
        await eventually(lambda: bool(plugin.allocations))
        plain = asyncio.create_task(kubelet.admit(pod("plain", KubeletContainer("c"))))
        await asyncio.sleep(0.02)
        assert not plain.done()
        plugin.end_stream()
        with pytest.raises(PodRejectedError, match="code = Canceled"):
            await slow
        await plain
        plugin.gate.set()


@pytest.mark.parametrize(
    ("attribute", "said"),
    [
        ("preference_error", "device plugin GetPreferredAllocation rpc failed with err: rpc error: code = Internal"),
        ("allocate_error", "rpc error: code = FailedPrecondition"),
    ],
)
async def test_an_error_of_the_plugin_rejects_the_pod_in_the_kubelet_s_words_and_leaks_nothing(
    directory: Path, attribute: str, said: str
) -> None:
    async with node(directory) as (kubelet, plugin):
        setattr(plugin, attribute, "held by ns/b")
        text = await rejection(kubelet, pod("a", wants(2)))
        setattr(plugin, attribute, None)
        await kubelet.admit(pod("b", wants(4)))
    assert text == (
        f"Pod was rejected: Allocate failed due to {said} desc = held by ns/b, which is unexpected"
    )  # fmt: skip


async def test_a_device_of_any_other_health_is_not_given_and_a_plugin_may_have_no_preference(directory: Path) -> None:
    async with node(directory, RawPlugin(prefers=False)) as (kubelet, plugin):
        plugin.set_health("d1", "healthy")
        await kubelet.wait_for_capacity(CORE, 3)
        admitted = await kubelet.admit(pod("a", wants(3)))
        assert (ids_of(admitted.container("c")), plugin.preferences) == ({"d0", "d2", "d3"}, [])


# Containers.


async def test_a_container_receives_all_the_plugin_answered(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        plugin.preference = ["d0", "d1"]
        received = (await kubelet.admit(pod("a", wants(2)))).container("c")
    assert (received.envs, received.annotations) == ({"IDS": "d0,d1"}, {"by": "plugin"})
    assert {(node.host_path, node.permissions) for node in received.devices} == {("/dev/d0", "rw"), ("/dev/d1", "rw")}
    assert set(received.cdi_devices) == {"example.com/dummy=d0", "example.com/dummy=d1"}
    assert [(mount.host_path, mount.container_path, mount.read_only) for mount in received.mounts] == [
        ("/h", "/c", True)
    ]


async def test_two_resources_that_set_one_variable_flip_between_starts(directory: Path) -> None:
    other = RawPlugin(["e0"])
    other.envs = {"WHO": "other"}
    async with node(directory) as (kubelet, plugin), serving(other, directory / "other.sock"):
        plugin.envs = {"WHO": "plugin"}
        await register(directory, "other.sock", DEVICE)
        await kubelet.wait_for_capacity(DEVICE, 1)
        await kubelet.admit(pod("a", KubeletContainer("c", {CORE: 1, DEVICE: 1})))
        values = {(await kubelet.start_container("uid-a", "c")).envs["WHO"] for _ in range(20)}
    assert values == {"plugin", "other"}


async def test_pre_start_comes_before_every_start_and_its_failure_holds_the_container_alone(directory: Path) -> None:
    plugin = RawPlugin()
    plugin.options.pre_start_required = True
    plugin.start_error = "reset under way"
    async with node(directory, plugin) as (kubelet, _):
        held = (await kubelet.admit(pod("a", wants(2)))).container("c")
        plugin.start_error = None
        started = await kubelet.start_container("uid-a", "c")
        assert kubelet.rejections == {}
    assert held.waiting == (
        "device plugin PreStartContainer rpc failed with err: rpc error: code = Unavailable desc = reset under way"
    )
    assert started.waiting is None
    assert [sorted(ids) for ids in plugin.starts] == [["d0", "d1"]] * 2


@pytest.mark.parametrize(
    ("pre_start", "grace", "waiting"),
    [
        (False, 300.0, ""),
        (True, 300.0, "has been stopped"),
        (False, 0.02, f"endpoint not found in cache for a registered resource: {CORE}"),
    ],
)
async def test_a_container_starts_again_without_its_plugin_in_the_grace_if_no_call_is_needed(
    directory: Path, *, pre_start: bool, grace: float, waiting: str
) -> None:
    plugin = RawPlugin()
    plugin.options.pre_start_required = pre_start
    async with node(directory, plugin, options=KubeletOptions(grace_seconds=grace)) as (kubelet, _):
        await kubelet.admit(pod("a", wants(1)))
        plugin.end_stream()
        left = ResourceCapacity(0, 0) if grace < 1 else ResourceCapacity(4, 0)
        await eventually(lambda: kubelet.capacity(CORE) == left)
        assert waiting in ((await kubelet.start_container("uid-a", "c")).waiting or "")
        unregistered = "unregistered device" if grace < 1 else "no healthy devices present"
        assert unregistered in await rejection(kubelet, pod("b", wants(1)))


# Its own restarts.


async def test_a_start_wipes_sockets_directly_in_the_directory_and_a_stop_leaves_a_dead_one(directory: Path) -> None:
    (directory / "sub").mkdir()
    (directory / "kubelet_internal_checkpoint").write_text("{}")
    for path in (directory / "stray.sock", directory / "sub" / "kept.sock", directory / KUBELET_SOCKET):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
    async with StandInKubelet(directory):
        names = sorted(path.name for path in directory.iterdir())
    assert names == ["kubelet.sock", "kubelet_internal_checkpoint", "sub"]
    assert (directory / "sub" / "kept.sock").is_socket()
    assert (directory / KUBELET_SOCKET).is_socket()
    with pytest.raises(grpc.aio.AioRpcError, match="Connection refused"):
        await register(directory, "e")


async def test_a_pod_with_devices_in_init_and_app_dies_at_a_restart(directory: Path) -> None:
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
            assert (kubelet.rejections, len(again.allocations)) == ({}, 1)
            assert len(ids_of(await kubelet.start_container("uid-a", "c"))) == 2
