"""The daemon's jobs one by one, in time that passes quickly."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from neuron_plugin.hardware import read_inventory
from neuron_plugin.kubelet import DevicePluginServer, PodDevices, PodResourcesError, WatchedPluginServer
from neuron_plugin.plugin import daemon as module
from neuron_plugin.plugin.container import CDI_FILE_NAME
from neuron_plugin.plugin.daemon import BLIND_SECONDS, EMPTY_SECONDS, QUIET_SECONDS, NodeDaemon
from neuron_plugin.plugin.node import Node, NodeOptions
from neuron_plugin.plugin.settings import PluginSettings, Registration
from neuron_plugin.simulation import write_node
from neuron_plugin.topology import catalogue
from tests.plugin.desk import FakeCgroups, LoopClock, MemoryKubelet
from tests.plugin.world import CORE, NEURON, STATIC_UID, app, inventory, pod, uid_of

A = uid_of("a")


@asynccontextmanager
async def running(job: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(job)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def test_p12_a_resource_is_registered_by_one_route_and_its_server_knows_the_other() -> None:
    socket = NodeDaemon(PluginSettings(node_name="n"), catalogue())
    watcher = NodeDaemon(PluginSettings(node_name="n", registration=Registration.WATCHER), catalogue())
    assert {type(server) for server in socket.servers} == {DevicePluginServer}
    assert {type(server) for server in watcher.servers} == {WatchedPluginServer}
    settings = PluginSettings()
    assert {server.other_route for server in socket.servers} == {settings.plugins_registry}
    assert {server.other_route for server in watcher.servers} == {settings.kubelet_dir}


# PodResources.


class FakePodResources:
    """``lists`` are the times at which it was listed."""

    def __init__(self) -> None:
        self.lists: list[float] = []
        self.answer: list[PodDevices] = []
        self.fails = False

    async def list(self) -> list[PodDevices]:
        self.lists.append(asyncio.get_running_loop().time())
        if self.fails:
            raise PodResourcesError("no answer")
        return self.answer


class Asking:
    """A daemon whose job asks a fake kubelet for its pods."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, cluster: bool = True) -> None:
        self.kubelet, self.cgroups, self.pod_resources = MemoryKubelet(), FakeCgroups(), FakePodResources()
        self.daemon = NodeDaemon(PluginSettings(node_name="n", cluster=cluster), catalogue())
        self.node = Node(self.kubelet, self.cgroups, NodeOptions(cluster=cluster), LoopClock())
        self.daemon.node = self.daemon.allocator._node = self.node
        client: Any = self.pod_resources
        self.daemon._pod_resources = client
        tree: Any = lambda _root: self.cgroups  # noqa: E731 - in place of a class
        monkeypatch.setattr(module, "CgroupTree", tree)

    def start(self) -> None:
        self.node.see_inventory(inventory())

    async def lists_within(self, seconds: float) -> int:
        before = len(self.pod_resources.lists)
        async with running(self.daemon._ask_pod_resources()):
            await asyncio.sleep(seconds)
        return len(self.pod_resources.lists) - before


@pytest.fixture
async def asking(monkeypatch: pytest.MonkeyPatch) -> Asking:
    return Asking(monkeypatch)


@pytest.mark.looptime
async def test_without_hardware_the_kubelet_is_left_alone(asking: Asking) -> None:
    assert await asking.lists_within(60) == 0


@pytest.mark.looptime
async def test_pods_whose_end_the_api_server_tells_are_no_reason_to_list(asking: Asking) -> None:
    asking.kubelet.record(A, "app", NEURON, [3])
    asking.node.see_pods(asking.node.pods.with_pod(pod("a", app(1))))
    asking.start()
    assert await asking.lists_within(60) == 0


@pytest.mark.looptime
async def test_a_static_pod_whose_cgroup_is_empty_is_a_reason_to_list(asking: Asking) -> None:
    asking.kubelet.record(STATIC_UID, "app", NEURON, [3])
    asking.start()
    asking.cgroups.alive = {STATIC_UID}
    assert await asking.lists_within(60) == 0
    asking.cgroups.alive = set()
    assert await asking.lists_within(EMPTY_SECONDS - 1) == 0
    assert await asking.lists_within(2 * EMPTY_SECONDS + 2 * QUIET_SECONDS) >= 1


@pytest.mark.looptime
async def test_where_cgroups_cannot_be_seen_the_kubelet_is_asked_now_and_then(asking: Asking) -> None:
    asking.kubelet.record(STATIC_UID, "app", NEURON, [3])
    asking.start()
    asking.cgroups.alive = None
    assert await asking.lists_within(2 * BLIND_SECONDS) == 2


@pytest.mark.looptime
async def test_without_an_api_server_the_kubelet_says_of_every_pod_when_it_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asking = Asking(monkeypatch, cluster=False)
    asking.kubelet.record(A, "app", NEURON, [3])
    asking.start()
    assert await asking.lists_within(2 * EMPTY_SECONDS) >= 1


@pytest.mark.looptime
async def test_p55_pod_resources_is_never_listed_within_a_second_of_a_call_of_the_kubelet(asking: Asking) -> None:
    asking.kubelet.unreadable = "a future format"
    asking.kubelet.write()
    asking.start()

    async def calls() -> None:
        while True:
            await asyncio.sleep(0.9 * QUIET_SECONDS)
            asking.daemon.allocator.last_call = asking.node.clock()

    async with running(calls()):
        assert await asking.lists_within(30) == 0
    asking.daemon.allocator.calls_under_way = 1
    assert await asking.lists_within(30) == 0
    asking.daemon.allocator.calls_under_way = 0
    assert await asking.lists_within(30) > 20


@pytest.mark.looptime
async def test_p62_a_kubelet_that_does_not_answer_is_asked_again(asking: Asking) -> None:
    asking.kubelet.unreadable = "a future format"
    asking.kubelet.write()
    asking.start()
    asking.pod_resources.fails = True
    assert await asking.lists_within(10) > 5


@pytest.mark.looptime
async def test_what_is_listed_counts_only_where_the_checkpoint_cannot_be_read(asking: Asking) -> None:
    asking.kubelet.record(STATIC_UID, "app", NEURON, [3])
    asking.start()
    await asking.daemon._list_pod_resources()
    assert set(asking.node.recorded.entries)
    asking.kubelet.unreadable = "a future format"
    asking.kubelet.write()
    asking.node.look_at_checkpoint()
    await asyncio.sleep(1)
    await asking.daemon._list_pod_resources()
    assert all(entry.gone for entry in asking.node.recorded.entries.values())


# CDI.


@pytest.mark.looptime
async def test_p53_the_specification_is_kept_and_a_directory_that_cannot_be_written_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    directory = tmp_path / "cdi"
    daemon = NodeDaemon(PluginSettings(node_name="n", cdi=True, cdi_dir=directory), catalogue())
    async with running(daemon._keep_cdi_specification()):
        await asyncio.sleep(1)
        assert not directory.exists()
        daemon.node.see_inventory(inventory())
        directory.write_text("in the way")
        await asyncio.sleep(60)
        assert sum("cannot write" in record.message for record in caplog.records) == 1
        directory.unlink()
        await asyncio.sleep(10)
        assert (directory / CDI_FILE_NAME).exists()


# NUMA hints.


@pytest.mark.parametrize("numa_hints", [True, False])
async def test_p21_numa_nodes_are_advertised_only_where_they_are_asked_for(tmp_path: Path, *, numa_hints: bool) -> None:
    daemon = NodeDaemon(msgspec.structs.replace(PluginSettings(node_name="n"), numa_hints=numa_hints), catalogue())
    known = catalogue()["inf2.48xlarge"]
    daemon.health.inventory = read_inventory(write_node(tmp_path, "inf2.48xlarge").paths)
    daemon._see_hardware()
    daemon.node.advertise()
    found = {one.id: one.numa_nodes for one in daemon.node.advertisements[NEURON].latest.devices}
    cores = {one.id: one.numa_nodes for one in daemon.node.advertisements[CORE].latest.devices}
    if numa_hints:
        assert found == {str(number): (node,) for number, node in enumerate(known.numa_nodes)}
        assert (cores["0"], cores["2"], cores["23"]) == (found["0"], found["1"], found["11"])
    else:
        assert set(found.values()) == {()}
