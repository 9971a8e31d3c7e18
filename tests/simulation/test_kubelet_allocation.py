"""Which devices a simulated kubelet gives to which container, and what the container receives."""

from __future__ import annotations

from pathlib import Path

from neuron_plugin.simulation.kubelet_plugins import ResourceCapacity
from neuron_plugin.simulation.kubelet_pods import KubeletContainer
from tests.kubelet.fakes import CORE, DEVICE, eventually
from tests.simulation.kubelet_node import (
    RawPlugin,
    node,
    pod,
    register,
    rejection,
    serving,
    wants,
)
from tests.support.kubelet import KubeletOptions


async def test_no_preference_is_asked_for_without_the_option(directory: Path) -> None:
    async with node(directory, RawPlugin(prefers=False)) as (kubelet, plugin):
        await kubelet.admit(pod("a", wants(2)))
    assert plugin.preferences == []
    assert len(plugin.allocations[0]) == 2


async def test_an_error_of_the_preference_rejects_the_pod_and_leaks_nothing(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        plugin.preference_error = "thinking failed"
        text = await rejection(kubelet, pod("a", wants(2)))
        plugin.preference_error = None
        await kubelet.admit(pod("b", wants(4)))
    assert text == (
        "Pod was rejected: Allocate failed due to device plugin GetPreferredAllocation rpc failed with err: "
        "rpc error: code = Internal desc = thinking failed, which is unexpected"
    )


async def test_an_error_of_allocate_rejects_the_pod_and_restores_the_devices(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        plugin.allocate_error = "held by ns/b"
        text = await rejection(kubelet, pod("a", wants(4)))
        plugin.allocate_error = None
        await kubelet.admit(pod("b", wants(4)))
    assert text == (
        "Pod was rejected: Allocate failed due to rpc error: code = FailedPrecondition desc = held by ns/b, "
        "which is unexpected"
    )


# Init containers


# What a container receives


async def test_a_container_receives_all_the_plugin_answered(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        plugin.preference = ["d0", "d1"]
        received = (await kubelet.admit(pod("a", wants(2)))).container("c")
    assert received.envs == {"IDS": "d0,d1"}
    assert {node.host_path for node in received.devices} == {"/dev/d0", "/dev/d1"}
    assert {node.permissions for node in received.devices} == {"rw"}
    assert set(received.cdi_devices) == {"example.com/dummy=d0", "example.com/dummy=d1"}
    assert [(mount.host_path, mount.container_path, mount.read_only) for mount in received.mounts] == [
        ("/h", "/c", True)
    ]
    assert received.annotations == {"by": "plugin"}


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


# Starts and restarts of containers


async def test_pre_start_comes_before_every_start_if_asked_for(directory: Path) -> None:
    plugin = RawPlugin()
    plugin.options.pre_start_required = True
    async with node(directory, plugin) as (kubelet, _):
        await kubelet.admit(pod("a", wants(2)))
        await kubelet.start_container("uid-a", "c")
    assert [sorted(ids) for ids in plugin.starts] == [["d0", "d1"]] * 2


async def test_a_failed_pre_start_holds_the_container_and_fails_no_pod(directory: Path) -> None:
    plugin = RawPlugin()
    plugin.options.pre_start_required = True
    plugin.start_error = "reset under way"
    async with node(directory, plugin) as (kubelet, _):
        held = (await kubelet.admit(pod("a", wants(1)))).container("c")
        plugin.start_error = None
        started = await kubelet.start_container("uid-a", "c")
        assert kubelet.rejections == {}
    assert held.waiting == (
        "device plugin PreStartContainer rpc failed with err: rpc error: code = Unavailable desc = reset under way"
    )
    assert started.waiting is None


async def test_a_restart_with_the_plugin_away_works_only_without_pre_start(directory: Path) -> None:
    for required in (False, True):
        plugin = RawPlugin()
        plugin.options.pre_start_required = required
        async with node(directory, plugin) as (kubelet, _):
            await kubelet.admit(pod("a", wants(1)))
            plugin.end_stream()
            await kubelet.wait_for_capacity(CORE, 0)
            waiting = (await kubelet.start_container("uid-a", "c")).waiting
        assert ("has been stopped" in (waiting or "")) is required


async def test_after_the_grace_a_restart_fails_even_without_pre_start(directory: Path) -> None:
    async with node(directory, options=KubeletOptions(grace_seconds=0.02)) as (kubelet, plugin):
        await kubelet.admit(pod("a", wants(1)))
        plugin.end_stream()
        await eventually(lambda: kubelet.capacity(CORE) == ResourceCapacity(0, 0))
        held = await kubelet.start_container("uid-a", "c")
        assert "cannot allocate unregistered device" in await rejection(kubelet, pod("b", wants(1)))
    assert held.waiting == f"endpoint not found in cache for a registered resource: {CORE}"
