from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from neuron_plugin.allocation import Holding, PodUid, Resource
from neuron_plugin.kubelet import Advertisement, SocketIdentity
from neuron_plugin.plugin import device_users
from neuron_plugin.plugin.device_users import DeviceUsers
from neuron_plugin.plugin.machine import advertised, told_machine
from neuron_plugin.plugin.node import NodeState
from neuron_plugin.plugin.quarantine import Quarantine, Users
from neuron_plugin.plugin.standins import is_nameless, named_stand_in
from neuron_plugin.topology import CoreMask
from tests.plugin.world import LINE, TRN1, FakeClock, app, devices, machine, pod, ref

STRANGER_UID = "99999999-4a5b-6c7d-8e9f-001122334455"
GONE_UID = "0f1c2d3e-4a5b-6c7d-8e9f-001122334455"
SCRIPT = "import os, sys; os.open(sys.argv[1], os.O_RDWR); print('open', flush=True); sys.stdin.read()"


class Node:
    """A machine with its /dev and /proc as plain files, and pod ``gone`` on devices 2 and 3."""

    def __init__(self, root: Path) -> None:
        self.root = root
        with socket.socket(socket.AF_UNIX) as kubelet:
            kubelet.bind(str(root / "kubelet.sock"))
        self.dev, self.proc = root / "dev", root / "proc"
        self.dev.mkdir()
        for device in range(TRN1.device_count):
            (self.dev / f"neuron{device}").touch()
        (self.proc / "2").mkdir(parents=True)
        (self.proc / "2/comm").write_text("kthreadd\n")
        self.clock = FakeClock()
        self.state = NodeState(clock=self.clock, quarantine=Quarantine(30.0))
        self.state.see_machine(machine(TRN1))
        self.gone = pod("gone", app(2), uid=GONE_UID)
        self.state.see_pod(self.gone)
        self.hold(self.gone.pod.uid, devices(2, 3))
        self.users = DeviceUsers(self.state, self.dev, self.proc, root / "kubelet.sock")

    def hold(self, uid: str, mask: CoreMask, resource: Resource = Resource.NEURON) -> None:
        self.state.confirm(self.state.pods[PodUid(uid)].pod, [Holding("app", resource, mask)])

    def open_device(self, device: int, pid: int = 40, uid: str = GONE_UID) -> None:
        process = self.proc / str(pid)
        (process / "fd").mkdir(parents=True)
        (process / "fd/3").symlink_to(self.dev / f"neuron{device}")
        (process / "cmdline").write_bytes(b"train\0")
        (process / "cgroup").write_text(f"0::/kubepods/pod{uid}/aa\n")

    def close_device(self, pid: int = 40) -> None:
        (self.proc / str(pid) / "fd/3").unlink()

    def unhealthy(self, resource: Resource) -> list[str]:
        assert self.state.machine is not None
        listed = advertised(self.state.machine, self.state.ledger, resource, self.state.quarantine)
        return [device.id for device in listed if not device.healthy]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(device_users, "SETTLED_SECONDS", 0.0)
    return Node(tmp_path)


async def test_p60_force_deleted_silicon_is_unhealthy_under_every_name_until_its_process_ends(node: Node) -> None:
    node.open_device(3)
    node.state.lose_pod(node.gone.pod.uid)
    for _ in range(3):
        assert node.unhealthy(Resource.NEURON) == node.unhealthy(Resource.NEURONDEVICE) == ["2", "3"]
        assert node.unhealthy(Resource.NEURONCORE) == ["4", "5", "6", "7"]
        await node.users.look()
        node.clock.now += 100
    node.close_device()
    await node.users.look()
    assert all(node.unhealthy(resource) == [] for resource in Resource)


async def test_p60_a_pod_that_was_seen_to_end_is_free_at_once(node: Node) -> None:
    node.state.forget_pod(node.gone.pod.uid)
    assert all(node.unhealthy(resource) == [] for resource in Resource)


async def test_p60_no_set_is_chosen_from_what_is_suspect(node: Node) -> None:
    node.state.lose_pod(node.gone.pod.uid)
    assert node.state.machine is not None
    assert not node.state.free_mask(node.state.machine) & devices(2, 3)


async def test_p60_where_proc_shows_another_namespace_the_quarantine_ends_by_the_clock(node: Node) -> None:
    (node.proc / "2/comm").write_text("bash\n")
    node.state.lose_pod(node.gone.pod.uid)
    await node.users.look()
    assert node.unhealthy(Resource.NEURON) == ["2", "3"]
    node.clock.now += 30
    await node.users.look()
    assert node.unhealthy(Resource.NEURON) == []


async def test_a_kubelet_whose_process_is_seen_makes_a_namespace_good_enough(node: Node, tmp_path: Path) -> None:
    """A kubelet in a container (kind) sees no kernel threads, but all its containers' processes."""
    (node.proc / "2/comm").write_text("bash\n")
    (node.proc / str(os.getpid())).mkdir()
    with socket.socket(socket.AF_UNIX) as kubelet:
        (tmp_path / "kubelet.sock").unlink()
        kubelet.bind(str(tmp_path / "kubelet.sock"))
        kubelet.listen()
        users = await node.users.users((2, 3))
    assert users.complete


async def test_pods_gone_while_nobody_watched_are_suspect(node: Node) -> None:
    node.open_device(2)
    node.state.see_all_pods(set())
    await node.users.look()
    assert node.unhealthy(Resource.NEURON) == ["2", "3"]


async def test_p60_gone_from_pod_resources_is_enough_for_a_pod_no_watch_has_shown(node: Node) -> None:
    stand_in = named_stand_in("default", "static")
    node.state.confirm(stand_in, [Holding("app", Resource.NEURON, devices(9))])
    node.open_device(9, uid="")
    node.state.release(stand_in.uid)
    await node.users.look()
    assert node.unhealthy(Resource.NEURON) == ["9"]
    node.close_device()
    await node.users.look()
    assert node.unhealthy(Resource.NEURON) == []


async def test_a_pod_the_kubelet_gave_up_is_free_after_one_look_unless_its_process_is_seen(node: Node) -> None:
    (node.proc / "2/comm").write_text("bash\n")
    node.state.end(node.gone.pod.uid)
    await node.users.look()
    assert node.unhealthy(Resource.NEURON) == []
    node.state.see_pod(node.gone)
    node.hold(GONE_UID, devices(2, 3))
    node.open_device(2)
    node.state.end(node.gone.pod.uid)
    await node.users.look()
    assert node.unhealthy(Resource.NEURON) == ["2", "3"]


async def test_a_neighbour_on_the_same_device_keeps_its_cores_healthy(node: Node) -> None:
    one, other = pod("one", app(1, Resource.NEURONCORE)), pod("other", app(1, Resource.NEURONCORE))
    for each, core in ((one, 8), (other, 9)):
        node.state.see_pod(each)
        node.hold(each.pod.uid, TRN1.cores_mask((core,)), Resource.NEURONCORE)
    node.state.lose_pod(one.pod.uid)
    assert "8" in node.unhealthy(Resource.NEURONCORE)
    assert "9" not in node.unhealthy(Resource.NEURONCORE)
    assert "4" in node.unhealthy(Resource.NEURON)


async def test_p60_a_process_proves_that_a_stand_in_was_the_vanished_pods(node: Node) -> None:
    """An equal pod may have been given what was noted for this one, so somebody stands in for it."""
    vanished, equal = pod("vanished", app(1), uid=STRANGER_UID), pod("equal", app(1))
    for each in (vanished, equal):
        node.state.see_pod(each)
    node.state.hold(vanished.pod, Holding("app", Resource.NEURON, devices(5)))
    node.state.lose_pod(vanished.pod.uid)
    assert [is_nameless(holder) for holder in node.state.ledger] == [False, True]
    assert "5" not in node.unhealthy(Resource.NEURON)
    node.open_device(5, pid=50, uid=STRANGER_UID)
    await node.users.look()
    assert [is_nameless(holder) for holder in node.state.ledger] == [False]
    assert "5" in node.unhealthy(Resource.NEURON)


async def test_what_the_kubelet_gave_out_meanwhile_keeps_its_health(node: Node) -> None:
    """An unhealthy device would cost the new pod its next admission, and prevents nothing any more."""
    node.state.lose_pod(node.gone.pod.uid)
    node.state.hold(ref("new"), Holding("app", Resource.NEURON, devices(2)))
    assert node.unhealthy(Resource.NEURON) == ["3"]
    assert node.unhealthy(Resource.NEURONDEVICE) == ["2", "3"]


async def test_the_cluster_is_told_while_a_process_runs_on(node: Node) -> None:
    node.open_device(3)
    node.state.lose_pod(node.gone.pod.uid)
    assert node.state.machine is not None
    assert told_machine(node.state.machine, node.state.quarantine).inventory().unhealthy == {}
    await node.users.look()
    told = told_machine(node.state.machine, node.state.quarantine).inventory().unhealthy
    assert "process 40 (train)" in told[3]


async def test_core_ids_keep_their_meaning_while_anything_is_suspect(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.state.lose_pod(node.gone.pod.uid)
    assert not node.state.see_machine(machine(LINE))
    assert node.state.machine is not None
    assert node.state.machine.geometry == TRN1
    node.state.see_users(Users({}, complete=True, moment=node.clock.now))
    assert node.state.machine.geometry == LINE


async def test_nothing_is_read_while_nothing_is_suspect(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node.users, "users", None)
    await node.users.look()


async def test_the_look_follows_the_loss_by_itself(node: Node) -> None:
    """As the daemon has it: a change of the state wakes the looking task."""
    offered = Advertisement()

    def refresh() -> None:
        assert node.state.machine is not None
        offered.publish(advertised(node.state.machine, node.state.ledger, Resource.NEURON, node.state.quarantine))
        node.users.notify()

    node.state.on_change = refresh
    looking = asyncio.create_task(node.users.run(), name="quarantine")
    await asyncio.sleep(0)
    node.state.lose_pod(node.gone.pod.uid)
    async with asyncio.timeout(5):
        assert [device.healthy for device in offered.latest.devices].count(False) == 2
        await offered.changed()
        assert all(device.healthy for device in offered.latest.devices)
    looking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await looking


async def test_p60_at_the_start_what_a_pod_has_open_that_nobody_knows_is_not_offered(node: Node) -> None:
    node.open_device(5, pid=50, uid=STRANGER_UID)
    node.open_device(3)
    await node.users.look_at_start(())
    assert node.unhealthy(Resource.NEURON) == ["5"]
    assert node.unhealthy(Resource.NEURONDEVICE) == ["2", "3", "5"]
    assert node.unhealthy(Resource.NEURONCORE) == ["4", "5", "6", "7", "10", "11"]


async def test_p60_a_pod_that_the_kubelet_is_known_to_list_is_no_stranger(node: Node) -> None:
    node.open_device(5, pid=50, uid=STRANGER_UID)
    await node.users.look_at_start({STRANGER_UID})
    assert node.unhealthy(Resource.NEURON) == []


async def test_a_kubelet_that_has_just_started_is_given_time_to_know_its_pods(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An Unhealthy device would cost a live pod its re-admission."""
    monkeypatch.setattr(device_users, "SETTLED_SECONDS", 3600.0)
    node.open_device(5, pid=50, uid=STRANGER_UID)
    assert not await node.users.look_at_start(())
    (node.root / "kubelet.sock").unlink()
    monkeypatch.setattr(device_users, "SETTLED_SECONDS", 0.0)
    assert not await node.users.look_at_start(())
    assert node.unhealthy(Resource.NEURON) == []


@pytest.mark.parametrize(
    ("age_seconds", "settled"),
    [(14.0, False), (20.0, True), (1e9, False), (-3600.0, False)],
    ids=["just started", "for long", "the clock was set forward meanwhile", "the clock was set back meanwhile"],
)
async def test_a_kubelet_is_as_old_as_its_socket_or_as_we_have_known_it_where_the_clock_was_set(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    age_seconds: float,
    settled: bool,  # noqa: FBT001 - a table's column
) -> None:
    node, now = Node(tmp_path), time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    monkeypatch.setattr(time, "clock_gettime", lambda _clock: 3600.0)
    kubelet = SocketIdentity(1, 1, int((now - age_seconds) * 1e9))
    monkeypatch.setattr(device_users, "identity_of", lambda _path: kubelet)
    assert await node.users.look_at_start(()) is settled
    node.clock.now += 15
    assert await node.users.look_at_start(())
    kubelet = SocketIdentity(1, 2, int((now + 3600) * 1e9))
    assert not await node.users.look_at_start(()), "this is another kubelet"


async def test_a_look_at_the_start_that_takes_too_long_is_given_up(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def never(devices: object) -> Users:
        raise TimeoutError(devices)

    monkeypatch.setattr(node.users, "users", never)
    assert await node.users.look_at_start(())
    assert "offering devices without a look" in caplog.text


async def test_without_hardware_there_is_nothing_to_look_at(tmp_path: Path) -> None:
    assert not await DeviceUsers(NodeState(), tmp_path, tmp_path, tmp_path / "kubelet.sock").look_at_start(())


@pytest.mark.parametrize(("live", "left"), [({STRANGER_UID}, []), (set(), ["5"])])
async def test_p60_the_api_server_is_asked_about_strangers_until_it_tells(
    node: Node, monkeypatch: pytest.MonkeyPatch, live: set[str], left: list[str]
) -> None:
    monkeypatch.setattr(device_users, "PERIOD_SECONDS", 0.001)
    answers: list[set[str] | None] = [None, None, live]

    async def live_pods() -> set[str] | None:
        return answers.pop(0)

    users = DeviceUsers(node.state, node.dev, node.proc, node.root / "kubelet.sock", live_pods)
    node.open_device(5, pid=50, uid=STRANGER_UID)
    looking = asyncio.create_task(users.run(), name="quarantine")
    await users.look_at_start(())
    async with asyncio.timeout(10):
        while answers:
            assert node.unhealthy(Resource.NEURON) == ["5"]
            await asyncio.sleep(0.001)
        node.clock.now += 1000
        await asyncio.sleep(0.01)
    assert node.unhealthy(Resource.NEURON) == left
    looking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await looking


@pytest.fixture
def running_on(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A real process with device 3 of ``tmp_path/dev`` open."""
    node = tmp_path / "dev/neuron3"
    node.parent.mkdir(exist_ok=True)
    node.touch()
    arguments = [sys.executable, "-c", SCRIPT, str(node)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:  # noqa: S603 - our own
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


async def test_p60_a_real_process_is_seen_in_the_real_proc(tmp_path: Path, running_on: subprocess.Popen[bytes]) -> None:
    state = NodeState(clock=FakeClock(), quarantine=Quarantine(30.0))
    state.see_machine(machine(TRN1))
    users = DeviceUsers(state, tmp_path / "dev", Path("/proc"), tmp_path / "kubelet.sock")
    seen = await users.users((2, 3))
    assert [process.pid for process in seen.processes[3]] == [running_on.pid]
    assert 2 not in seen.processes
