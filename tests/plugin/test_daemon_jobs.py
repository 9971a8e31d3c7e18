"""The daemon's jobs one by one, in time that passes quickly."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import msgspec
import pytest

from neuron_plugin.cluster.api import ConnectionSettingsError
from neuron_plugin.hardware import Process, read_inventory
from neuron_plugin.kubelet import (
    DevicePluginServer,
    PodDevices,
    PodResourcesAbsentError,
    PodResourcesError,
    WatchedPluginServer,
)
from neuron_plugin.kubelet_files import KUBELET_SOCKET
from neuron_plugin.plugin.cluster_link import ClusterLink
from neuron_plugin.plugin.container import CDI_FILE_NAME
from neuron_plugin.plugin.daemon import NodeDaemon, keep_cdi_files, keep_condition
from neuron_plugin.plugin.hardware_watch import HardwareWatch
from neuron_plugin.plugin.machine import DaemonTimes, Machine
from neuron_plugin.plugin.metrics import new_counts
from neuron_plugin.plugin.node import LocalNode
from neuron_plugin.plugin.settings import Mode, PluginSettings, RegistrationWay
from neuron_plugin.plugin.writes import PodEvent
from neuron_plugin.simulation import write_node
from neuron_plugin.topology import catalogue
from tests.plugin.desk import FakeCgroups, FakeLister, LoopClock, Story, running
from tests.plugin.world import CORE, NEURON, TRN1, app, inputs, inventory, pod, uid_of
from tests.support.model_kubelet import checkpoint_file
from tests.support.stories import rows

A = uid_of("a")
TIMES = DaemonTimes()


def test_p12_a_resource_is_registered_by_one_route_and_its_server_knows_the_other() -> None:
    own = NodeDaemon(PluginSettings(node_name="n"), catalogue())
    watcher = NodeDaemon(PluginSettings(node_name="n", registration=RegistrationWay.WATCHER), catalogue())
    assert {type(server) for server in own.kubelet.servers} == {DevicePluginServer}
    assert {type(server) for server in watcher.kubelet.servers} == {WatchedPluginServer}
    settings = PluginSettings()
    assert {server.other_route for server in own.kubelet.servers} == {settings.plugins_registry}
    assert {server.other_route for server in watcher.kubelet.servers} == {settings.kubelet_dir}


# PodResources.


class FakePodResources:
    """``lists`` are the times at which it was listed."""

    def __init__(self) -> None:
        self.lists: list[float] = []
        self.answer: list[PodDevices] = []
        self.error: PodResourcesError | None = None
        self.meanwhile: Callable[[], Awaitable[None]] | None = None

    async def list(self) -> list[PodDevices]:
        self.lists.append(asyncio.get_running_loop().time())
        if self.meanwhile:
            await self.meanwhile()
        if self.error:
            raise self.error
        return self.answer


class Asking(Story):
    """A daemon on a machine in memory."""

    def __init__(self, *, directory: Path | None = None, cluster: bool = True, users: Users | None = None) -> None:
        super().__init__(inputs(), {"unlisted"})
        self.pod_resources = FakePodResources()
        settings = PluginSettings(node_name="n", cluster=cluster, kubelet_dir=directory or Path("/nowhere"))
        machine = Machine(
            self.kubelet.file, self.cgroups, self.pod_resources, processes=users or no_users, clock=LoopClock()
        )
        self.daemon = NodeDaemon(settings, catalogue(), machine=machine)
        self.node, self.link = self.daemon.node, self.daemon.kubelet

    @property
    def cluster(self) -> ClusterLink:
        assert self.daemon.cluster
        return self.daemon.cluster

    def silent(self) -> None:
        """PodResources does not answer."""
        self.pod_resources.error = PodResourcesError("no answer")

    async def lists_within(self, seconds: float) -> int:
        before = len(self.pod_resources.lists)
        async with running(self.daemon.jobs["pod resources"]()):
            await asyncio.sleep(seconds)
        return len(self.pod_resources.lists) - before

    async def lists(self, seconds: str, expected: str) -> None:
        """How often PodResources is listed within so many seconds: ``2``, or ``1-9``."""
        least, _, most = expected.partition("-")
        assert int(least) <= await self.lists_within(float(seconds)) <= int(most or least)


Users = Callable[[list[Path], Path], Mapping[Path, tuple[Process, ...]]]


def no_users(_nodes: list[Path], _proc: Path) -> Mapping[Path, tuple[Process, ...]]:
    return {}


@pytest.fixture
async def asking() -> Asking:
    return Asking()


EMPTY = f"{TIMES.empty - 1}"
SOON = f"{2 * TIMES.empty + 2 * TIMES.quiet}"
STORIES = rows(f"""
    without hardware the kubelet is left alone: lists 60 -> 0
    pods whose end the API server tells are no reason: record a=3; pod a app:1; start; lists 60 -> 0
    a static pod whose cgroup is empty is a reason:
        record static=3; start; alive static; lists 60 -> 0; dead; lists {EMPTY} -> 0; lists {SOON} -> 1-9
    not if its next container starts in time:
        record static=3; start; alive static; later 1 dead; later {EMPTY} alive static; lists 60 -> 0
    where cgroups cannot be seen the kubelet is asked now and then:
        record static=3; start; alive unseen; lists {2 * TIMES.blind} -> 2
    without an API server the kubelet says of every pod when it is over:
        alone; record a=3; start; lists {2 * TIMES.empty} -> 1-9
    p62 a kubelet that does not answer is asked again: blind; start; silent; lists 10 -> 6-99
""")
"""What happens, and how often the kubelet is asked about pods then; ``alone`` is a node without an API server."""


@pytest.mark.parametrize("steps", STORIES)
@pytest.mark.looptime
async def test_when_the_kubelet_is_asked_about_pods(steps: str) -> None:
    await Asking(cluster=not steps.startswith("alone")).play(steps.removeprefix("alone; "))


@pytest.mark.looptime
async def test_p55_pod_resources_is_never_listed_within_a_second_of_a_call_of_the_kubelet(asking: Asking) -> None:
    asking.blind()
    asking.start()

    async def calls() -> None:
        while True:
            asking.daemon.allocator.last_call = asking.node.clock()
            await asyncio.sleep(0.9 * TIMES.quiet)

    async with running(calls()):
        assert await asking.lists_within(30) == 0
    asking.daemon.allocator.calls_under_way = 1
    assert await asking.lists_within(30) == 0
    asking.daemon.allocator.calls_under_way = 0
    assert await asking.lists_within(30) > 20


@pytest.mark.looptime
async def test_what_is_listed_counts_only_where_the_checkpoint_cannot_be_read(asking: Asking) -> None:
    asking.record("static=3")
    asking.start()
    await asking.link.list_pods()
    assert set(asking.node.recorded.entries)
    asking.blind()
    await asyncio.sleep(1)
    await asking.link.list_pods()
    assert all(entry.gone for entry in asking.node.recorded.entries.values())


@pytest.mark.looptime
async def test_a_list_says_nothing_of_a_pod_that_was_first_listed_after_it_began(asking: Asking) -> None:
    asking.blind()
    asking.start()

    async def meanwhile() -> None:
        assert asking.node.listing.locked(), "a preference waits"
        await asyncio.sleep(1)
        asking.listed("static=3")
        await asyncio.sleep(1)

    asking.pod_resources.meanwhile = meanwhile
    await asking.link.list_pods()
    assert [entry.gone for entry in asking.node.recorded.entries.values()] == [False]


@pytest.mark.parametrize(
    ("error", "is_up", "waited"),
    [
        (PodResourcesAbsentError("no socket"), True, TIMES.start_look),
        (PodResourcesAbsentError("no socket"), False, None),
        (PodResourcesError("rejected by rate limit"), True, None),
    ],
)
@pytest.mark.looptime
async def test_p61_only_a_kubelet_that_runs_and_serves_no_pod_resources_is_offered_devices_without_its_word(
    tmp_path: Path,
    error: PodResourcesError,
    is_up: bool,  # noqa: FBT001 - a table's column
    waited: float | None,
) -> None:
    asking = Asking(directory=tmp_path)
    asking.blind()
    asking.start()
    if is_up:
        with socket.socket(socket.AF_UNIX) as kubelet:
            kubelet.bind(str(tmp_path / KUBELET_SOCKET))
    asking.pod_resources.error = error
    loop, ended = asyncio.get_running_loop(), None
    began = loop.time()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(60):
            await asking.link.list_if_unreadable()
            ended = loop.time() - began
    assert ended == (waited and pytest.approx(waited, abs=0.2))


@pytest.mark.looptime
async def test_a_refusal_is_reported_on_its_pod(asking: Asking) -> None:
    asking.start()
    asking.daemon.allocator.events.append(PodEvent(pod("a").reference, "AllocationRefused", "why"))
    asking.node.changed.set()
    async with running(asking.daemon.jobs["publish"]()):
        await asyncio.sleep(1)
    assert any(subject.startswith("event AllocationRefused") for subject in asking.cluster.publisher.queue._unsent)


async def test_p60_each_unknown_pod_that_uses_a_device_at_the_start_is_held_down_and_one_that_only_probes_is_not() -> (
    None
):
    others = (Process(4, "on the host"), Process(5, "probes", uid_of("probes"), uses=False))

    def users(nodes: list[Path], _proc: Path) -> Mapping[Path, tuple[Process, ...]]:
        of_a, of_b = Process(1, "train", A), Process(2, "serve", uid_of("b"))
        return {nodes[3]: (of_a, *others), nodes[4]: (of_a,), nodes[7]: (of_b,)}

    asking = Asking(users=users)
    asking.start()
    asking.cgroups.alive = {uid_of(name) for name in ("a", "b", "probes")}
    await asking.link.look_for_unknown_pods()
    assert asking.node.snapshot
    held = {one.uid: one.mask for one in asking.node.snapshot.inputs.hold_downs}
    assert held == {A: TRN1.devices_mask((3, 4)), uid_of("b"): TRN1.devices_mask((7,))}


# The API server.


@pytest.mark.looptime
async def test_a_recorded_pod_that_the_watch_does_not_show_is_a_reason_for_a_list(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking.record("a=3")
    asking.start()
    lister = FakeLister(asking.node, [pod("a", app(1))])
    monkeypatch.setattr(asking.cluster.pods, "list_pods", lister.list_pods)
    async with running(asking.daemon.jobs["pods"]()):
        await asyncio.sleep(10 * TIMES.ask)
    assert lister.lists == 1, "then it is shown"


@pytest.mark.looptime
async def test_the_condition_says_that_a_node_is_not_ready_once_that_has_lasted_and_at_once_that_it_is() -> None:
    loop = asyncio.get_running_loop()
    began, said = loop.time(), list[tuple[float, bool]]()
    status: Any = SimpleNamespace(ready_condition=lambda: (not 100 <= loop.time() - began < 130, "R", "m"))
    publisher: Any = SimpleNamespace(write_condition=lambda _, *, status, **__: said.append((loop.time(), status)))
    async with running(keep_condition("C", status, publisher, TIMES)):
        await asyncio.sleep(200)
    unready = [at - began for at, is_ready in said if not is_ready]
    assert min(unready) == pytest.approx(100 + TIMES.not_ready, abs=2 * TIMES.turn)
    assert max(unready) == pytest.approx(130, abs=2 * TIMES.turn)


class Unusable:
    """Settings that become usable after so many looks at them; then a connection on which every call is an accident."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    async def connect(self, _kubeconfig: Path | None) -> Any:
        self.looks -= 1
        if self.looks >= 0:
            raise ConnectionSettingsError("no such file")
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def request(self, *_: object, **_named: object) -> None:
        raise OSError("unforeseen")


def link_through(settings: Unusable) -> ClusterLink:
    machine = Machine(checkpoint_file(), FakeCgroups(), FakePodResources(), connect=settings.connect)
    daemon = NodeDaemon(PluginSettings(node_name="n"), catalogue(), machine=machine)
    assert daemon.cluster
    return daemon.cluster


@pytest.mark.looptime
async def test_settings_that_cannot_be_used_are_logged_once_looked_at_again_and_hold_no_call_of_the_kubelet_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = Unusable(looks=999)
    link = link_through(settings)
    async with running(link.follow()):
        await asyncio.sleep(10 * TIMES.connect_retry)
    assert settings.looks < 999 - 5
    assert link.pods.tried.is_set()
    assert link.own_node.read.is_set()
    assert [record.message for record in caplog.records] == ["not connected to the API server"]


@pytest.mark.looptime
async def test_after_an_error_in_a_connections_jobs_there_is_a_new_connection() -> None:
    connection = Unusable(looks=0)
    link = link_through(connection)
    for connections in (1, 2):
        with pytest.raises(ExceptionGroup):
            await link.follow()
        assert connection.looks == -connections


@pytest.mark.looptime
async def test_the_lease_is_renewed_while_the_kubelet_follows_any_resource(asking: Asking) -> None:
    asking.start()
    async with running(asking.daemon.jobs["publish"]()):
        for followed, expected in (((), False), ((1,), True), ((0, 1, 2), True), ((), False)):
            for place, server in enumerate(asking.link.servers):
                (server.registered.set if place in followed else server.registered.clear)()
            asking.node.changed.set()
            await asyncio.sleep(1)
            assert asking.cluster.lease.serving is expected


# What is seen of the hardware.


class Seeing:
    """A daemon that sees a whole inf2.48xlarge, and on it what a test says."""

    def __init__(self, directory: Path) -> None:
        self.daemon = NodeDaemon(PluginSettings(node_name="n"), catalogue())
        self.counts = new_counts()
        seen = read_inventory(write_node(directory, "inf2.48xlarge").paths)
        self._health = SimpleNamespace(inventory=seen, unhealthy={})
        health: Any = self._health
        assert self.daemon.cluster
        self.cluster = self.daemon.cluster
        what = (PluginSettings(node_name="n"), catalogue(), self.daemon.node, health, self.cluster, self.counts)
        self.hardware = self.daemon.hardware = HardwareWatch(*what)

    def sees(self, *, sick: tuple[int, ...] = (), disabled: tuple[int, ...] = ()) -> list[str]:
        """The events that are written."""
        self._health.unhealthy = dict.fromkeys(sick, "sick")
        self.cluster.own_node.disabled = disabled
        self.hardware.see()
        unsent = self.cluster.publisher.queue._unsent
        events = [subject.partition(":")[0] for subject in unsent]
        unsent.clear()
        return events


async def test_an_id_that_no_device_has_is_said_though_nothing_else_has_changed(tmp_path: Path) -> None:
    seeing = Seeing(tmp_path)
    assert seeing.sees() == []
    assert seeing.sees(disabled=(57,)) == ["event InvalidDisabledDevices"]


async def test_a_disabled_device_is_taken_out_before_the_first_call_of_the_kubelet_is_answered(tmp_path: Path) -> None:
    seeing = Seeing(tmp_path)
    seeing.sees()
    daemon, cluster = seeing.daemon, seeing.cluster
    cluster.own_node.disabled = (3,)
    cluster.pods.tried.set()
    cluster.own_node.read.set()
    await daemon.learn_disabled_devices(cluster)
    assert daemon.node.disabled_known.is_set()
    assert daemon.node.snapshot
    assert daemon.node.snapshot.inventory.disabled == (3,)


@pytest.mark.looptime
async def test_a_driver_of_claims_answers_its_first_call_when_its_pods_claims_were_read() -> None:
    settings = PluginSettings(node_name="n", mode=Mode.DRA)
    cluster = NodeDaemon(settings, catalogue(), times=DaemonTimes(read_node=30.0)).cluster
    assert cluster
    assert cluster.claims
    cluster.pods.tried.set()
    cluster.own_node.read.set()
    asyncio.get_running_loop().call_later(5, cluster.claims.read.set)
    began = asyncio.get_running_loop().time()
    await cluster.node_read()
    assert asyncio.get_running_loop().time() - began == pytest.approx(5, abs=0.5)


async def test_each_change_of_a_devices_health_is_counted_once(tmp_path: Path) -> None:
    seeing = Seeing(tmp_path)
    for sick in ((3,), (3, 5), (5,), (), (3,)):
        seeing.sees(sick=sick)
    assert seeing.counts["health_transitions_total"] == {
        ("3", "unhealthy"): 2,
        ("5", "unhealthy"): 1,
        ("3", "healthy"): 1,
        ("5", "healthy"): 1,
    }


# CDI.


@pytest.mark.looptime
async def test_p53_the_specification_is_kept_and_a_directory_that_cannot_be_written_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    directory = tmp_path / "cdi"
    settings, node = PluginSettings(node_name="n", cdi_dir=directory), LocalNode(checkpoint_file(), FakeCgroups())
    async with running(keep_cdi_files(settings, node, TIMES)):
        await asyncio.sleep(1)
        assert not directory.exists()
        node.see_inventory(inventory())
        directory.write_text("in the way")
        await asyncio.sleep(60)
        assert sum("cannot write" in record.message for record in caplog.records) == 1
        directory.unlink()
        await asyncio.sleep(10)
        assert (directory / CDI_FILE_NAME).exists()
        (directory / CDI_FILE_NAME).unlink()
        directory.rmdir()
        directory.write_text("in the way again")
        await asyncio.sleep(60)
        assert sum("cannot write" in record.message for record in caplog.records) == 2


# NUMA hints.


@pytest.mark.parametrize("numa_hints", [True, False])
async def test_p21_numa_nodes_are_advertised_only_where_they_are_asked_for(tmp_path: Path, *, numa_hints: bool) -> None:
    daemon = NodeDaemon(msgspec.structs.replace(PluginSettings(node_name="n"), numa_hints=numa_hints), catalogue())
    known = catalogue()["inf2.48xlarge"]
    daemon.health.inventory = read_inventory(write_node(tmp_path, "inf2.48xlarge").paths)
    daemon.hardware.see()
    daemon.node.advertise()
    found = {one.id: one.numa_nodes for one in daemon.node.advertisements[NEURON].latest.devices}
    cores = {one.id: one.numa_nodes for one in daemon.node.advertisements[CORE].latest.devices}
    if numa_hints:
        assert found == {str(number): (node,) for number, node in enumerate(known.numa_nodes)}
        assert (cores["0"], cores["2"], cores["23"]) == (found["0"], found["1"], found["11"])
    else:
        assert set(found.values()) == {()}
