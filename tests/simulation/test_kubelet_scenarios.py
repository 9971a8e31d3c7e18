"""What upstream's node tests expect of a device plugin (``test/e2e_node/device_plugin*_test.go``), of ours.

The simulated kubelet and our own server, together, over their sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from neuron_plugin.allocation import ContainerKind
from neuron_plugin.kubelet import ContainerAllocation
from neuron_plugin.simulation.kubelet_plugins import ResourceCapacity
from neuron_plugin.simulation.kubelet_pods import KubeletContainer, KubeletPod, PodRejectedError
from tests.kubelet.fakes import CORE, DEVICE, devices, eventually, running_plugin
from tests.support.kubelet import KubeletOptions, KubeletStoppedError, StandInKubelet
from tests.support.pod_resources import get_pod


def pod(name: str, count: int = 1) -> KubeletPod:
    return KubeletPod(f"uid-{name}", "ns", name, (KubeletContainer("c", {CORE: count}),))


# device_plugin_test.go


async def test_p72_a_pod_sees_exactly_its_device_and_pod_resources_agrees(directory: Path) -> None:
    (directory / "pr").mkdir()
    async with StandInKubelet(directory, directory / "pr") as kubelet, running_plugin(directory):
        await kubelet.wait_for_capacity(CORE, 4)
        received = (await kubelet.admit(pod("a"))).container("c")
        listed = await get_pod(directory / "pr" / "kubelet.sock", "ns", "a")
    assert [node.host_path for node in received.devices] == ["/dev/neuron0"]
    assert listed is not None
    assert [(each.container, each.resource, each.ids) for each in listed.containers] == [("c", CORE, ("0",))]


async def test_a_cdi_name_reaches_the_container(directory: Path) -> None:
    async def by_cdi(_resource: str, ids: Sequence[str]) -> ContainerAllocation:
        return ContainerAllocation(cdi_devices=(f"aws.amazon.com/neuron={ids[0]}",))

    async with StandInKubelet(directory) as kubelet, running_plugin(directory) as plugin:
        plugin.handler.allocation = by_cdi
        await kubelet.wait_for_capacity(CORE, 4)
        assert (await kubelet.admit(pod("a"))).container("c").cdi_devices == ("aws.amazon.com/neuron=0",)


async def test_p72_a_container_restart_keeps_the_id_and_a_second_pod_gets_another(directory: Path) -> None:
    async with StandInKubelet(directory) as kubelet, running_plugin(directory) as plugin:
        await kubelet.wait_for_capacity(CORE, 4)
        first = (await kubelet.admit(pod("a"))).container("c")
        kubelet.stop_container("uid-a", "c")
        assert await kubelet.start_container("uid-a", "c") == first
        assert (await kubelet.admit(pod("b"))).container("c").ids != first.ids
        assert len(plugin.handler.allocations) == 2


@pytest.mark.parametrize("container_stops", [False, True])
async def test_p72_a_kubelet_restart_keeps_pod_and_id(directory: Path, *, container_stops: bool) -> None:
    options = KubeletOptions(sync_delay=0.5)
    async with StandInKubelet(directory, options=options) as kubelet, running_plugin(directory) as plugin:
        await kubelet.wait_for_capacity(CORE, 4)
        first = (await kubelet.admit(pod("a"))).container("c")
        if container_stops:
            kubelet.stop_container("uid-a", "c")
        await kubelet.restart()
        assert await kubelet.wait_for_capacity(CORE, 4) == ResourceCapacity(4, 4)
        assert kubelet.rejections == {}
        assert await kubelet.start_container("uid-a", "c") == first
        assert len(plugin.handler.allocations) == 1


async def test_p72_a_plugin_restart_keeps_the_assignment(directory: Path) -> None:
    async with StandInKubelet(directory) as kubelet:
        async with running_plugin(directory):
            await kubelet.wait_for_capacity(CORE, 4)
            first = (await kubelet.admit(pod("a", 3))).container("c")
        assert await kubelet.wait_for_capacity(CORE, 0) == ResourceCapacity(4, 0)
        async with running_plugin(directory):
            await kubelet.wait_for_capacity(CORE, 4)
            assert await kubelet.start_container("uid-a", "c") == first
            with pytest.raises(PodRejectedError, match="Requested: 2, Available: 1"):
                await kubelet.admit(pod("b", 2))


async def test_p72_a_kubelet_restart_and_then_a_plugin_restart(directory: Path) -> None:
    async with StandInKubelet(directory) as kubelet:
        async with running_plugin(directory):
            await kubelet.wait_for_capacity(CORE, 4)
            first = (await kubelet.admit(pod("a", 2))).container("c")
            await kubelet.restart()
            await kubelet.wait_for_capacity(CORE, 4)
        async with running_plugin(directory):
            await kubelet.wait_for_capacity(CORE, 4)
            assert await kubelet.start_container("uid-a", "c") == first
            assert kubelet.rejections == {}


async def test_p73_a_pod_deleted_while_the_kubelet_is_down_leaves_its_device_free(directory: Path) -> None:
    async with StandInKubelet(directory) as kubelet, running_plugin(directory):
        await kubelet.wait_for_capacity(CORE, 4)
        await kubelet.admit(pod("a", 4))
        await kubelet.stop()
        kubelet.finish("uid-a")
        await kubelet.start()
        await kubelet.wait_for_capacity(CORE, 4)
        await kubelet.admit(pod("b", 4))


async def test_a_spoilt_checkpoint_makes_the_kubelet_believe_every_device_free(directory: Path) -> None:
    async with StandInKubelet(directory) as kubelet, running_plugin(directory):
        await kubelet.wait_for_capacity(CORE, 4)
        await kubelet.admit(pod("a", 4))
        await kubelet.stop()
        kubelet.spoil_checkpoint()
        await kubelet.start()
        await kubelet.wait_for_capacity(CORE, 4)
        assert len((await kubelet.admit(pod("b", 4))).container("c").ids[CORE]) == 4
        assert kubelet.rejections == {}


async def test_p77_a_resize_is_refused_while_a_device_is_bad_and_the_pod_goes_on_with_it(directory: Path) -> None:
    async with StandInKubelet(directory) as kubelet, running_plugin(directory) as plugin:
        await kubelet.wait_for_capacity(CORE, 4)
        ids = (await kubelet.admit(pod("a", 4))).container("c").ids
        plugin.advertisement.publish(devices(4, 0))
        await kubelet.wait_for_capacity(CORE, 3)
        with pytest.raises(PodRejectedError, match="previously allocated devices are no longer healthy"):
            await kubelet.resize("uid-a")
        assert kubelet.rejections == {}
        assert (await kubelet.start_container("uid-a", "c")).ids == ids
        plugin.advertisement.publish(devices(4))
        await kubelet.wait_for_capacity(CORE, 4)
        await kubelet.resize("uid-a")
        assert len(plugin.handler.allocations) == 1


async def test_p74_init_and_sidecar_share_one_device_and_the_app_has_another(directory: Path) -> None:
    shared = KubeletPod(
        "uid",
        "ns",
        "a",
        (
            KubeletContainer("init", {CORE: 1}, ContainerKind.INIT),
            KubeletContainer("side", {CORE: 1}, ContainerKind.SIDECAR),
            KubeletContainer("app", {CORE: 1}),
        ),
    )
    async with StandInKubelet(directory) as kubelet, running_plugin(directory):
        await kubelet.wait_for_capacity(CORE, 4)
        init, side, app = (each.ids[CORE] for each in (await kubelet.admit(shared)).containers)
    assert init == side != app


async def test_p75_pods_admitted_again_before_the_plugin_fail_and_hold_nothing(directory: Path) -> None:
    async with StandInKubelet(directory, options=KubeletOptions(sync_delay=0)) as kubelet:
        async with running_plugin(directory):
            await kubelet.wait_for_capacity(CORE, 4)
            await kubelet.admit(pod("a", 4))
            kubelet.stop_container("uid-a", "c")
        await kubelet.restart()
        assert "no healthy devices present" in str(kubelet.rejections["uid-a"])
        async with running_plugin(directory):
            await kubelet.wait_for_capacity(CORE, 4)
            await kubelet.admit(pod("b", 4))


# device_plugin_failures_test.go


async def test_p76_one_device_flips_under_a_running_pod(directory: Path) -> None:
    async with StandInKubelet(directory) as kubelet, running_plugin(directory, count=1) as plugin:
        await kubelet.wait_for_capacity(CORE, 1)
        await kubelet.admit(pod("a"))
        plugin.advertisement.publish(devices(1, 0))
        assert await kubelet.wait_for_capacity(CORE, 0) == ResourceCapacity(1, 0)
        assert kubelet.device_health("uid-a", "c") == {"0": "Unhealthy"}
        assert (await kubelet.start_container("uid-a", "c")).waiting is None
        plugin.advertisement.publish(devices(1))
        await kubelet.wait_for_capacity(CORE, 1)
        assert kubelet.rejections == {}


async def test_p76_some_of_four_flip(directory: Path) -> None:
    async with StandInKubelet(directory) as kubelet, running_plugin(directory) as plugin:
        for unhealthy in [(), (1,), (), (0, 3), (3,), ()]:
            plugin.advertisement.publish(devices(4, *unhealthy))
            assert await kubelet.wait_for_capacity(CORE, 4 - len(unhealthy)) == ResourceCapacity(4, 4 - len(unhealthy))


async def test_p76_a_stopped_plugin_leaves_capacity_for_the_grace_and_nothing_after_it(directory: Path) -> None:
    async with StandInKubelet(directory, options=KubeletOptions(grace_seconds=0.1)) as kubelet:
        async with running_plugin(directory):
            await kubelet.wait_for_capacity(CORE, 4)
        assert await kubelet.wait_for_capacity(CORE, 0) == ResourceCapacity(4, 0)
        await eventually(lambda: kubelet.capacity(CORE) == ResourceCapacity(0, 0))


# Beyond upstream's cases


async def test_p33_a_broken_choice_still_gives_the_pod_its_devices(directory: Path) -> None:
    async with StandInKubelet(directory) as kubelet, running_plugin(directory) as plugin:
        await kubelet.wait_for_capacity(CORE, 4)
        plugin.handler.prefer = _broken
        admitted = await kubelet.admit(pod("a", 2))
        assert admitted.container("c").ids[CORE] == ("0", "1")  # P33: our fallback, not the kubelet's chance
        assert plugin.observer.counters.preferences_replaced == {CORE: 1}


async def _broken(*_: object) -> list[str]:
    raise LookupError("no decision")


async def test_two_resources_each_have_a_server_of_their_own(directory: Path) -> None:
    both = KubeletPod("uid", "ns", "a", (KubeletContainer("x", {CORE: 2}), KubeletContainer("y", {DEVICE: 1})))
    async with (
        StandInKubelet(directory) as kubelet,
        running_plugin(directory, CORE) as cores,
        running_plugin(directory, DEVICE) as whole,
    ):
        await kubelet.wait_for_capacity(CORE, 4)
        await kubelet.wait_for_capacity(DEVICE, 4)
        await kubelet.admit(both)
    assert cores.handler.allocations == [(CORE, ["0", "1"])]
    assert whole.handler.allocations == [(DEVICE, ["0"])]


async def test_devices_found_later_appear_without_a_new_registration(directory: Path) -> None:
    async with StandInKubelet(directory) as kubelet, running_plugin(directory, count=0) as plugin:
        await plugin.server.registered.wait()
        plugin.advertisement.publish(devices(128))
        await kubelet.wait_for_capacity(CORE, 128)
        assert kubelet.registration_count(CORE) == 1


async def test_a_kubelet_restart_inside_an_admission_admits_the_pod_again(directory: Path) -> None:
    reached, release = asyncio.Event(), asyncio.Event()

    async def slow(*_: object) -> list[str]:
        reached.set()
        await release.wait()
        return ["0"]

    options = KubeletOptions(sync_delay=0.5)  # time for the plugin to be back
    async with StandInKubelet(directory, options=options) as kubelet, running_plugin(directory) as plugin:
        await kubelet.wait_for_capacity(CORE, 4)
        plugin.handler.prefer = slow
        admission = asyncio.create_task(kubelet.admit(pod("a")))
        await reached.wait()
        await kubelet.stop()
        with pytest.raises(KubeletStoppedError):
            await admission
        release.set()
        await kubelet.start()
        assert kubelet.rejections == {}
        assert (await kubelet.start_container("uid-a", "c")).ids[CORE] == ("0",)
        assert (await kubelet.admit(pod("b"))).container("c").ids[CORE] != ("0",)
