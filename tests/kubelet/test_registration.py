"""One resource, registered with a kubelet that comes and goes (P1 to P14), by its own call or through the watcher."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from neuron_plugin.kubelet.advertisement import Advertisement
from neuron_plugin.kubelet.device_plugin import DevicePluginService
from neuron_plugin.kubelet.registration import (
    DevicePluginServer,
    RegistrationState,
    RegistrationTimes,
    WatchedPluginServer,
)
from neuron_plugin.kubelet.socket_watch import DirectoryWatch, endpoint_path
from neuron_plugin.kubelet_files import KUBELET_SOCKET
from neuron_plugin.simulation import KubeletContainer, KubeletPod
from tests.kubelet.fakes import CORE, DEVICE, QUICK, FakeHandler, eventually, running_plugin, seeded
from tests.kubelet.registering import Story, advertised_again, sockets_of
from tests.support.kubelet import StandInKubelet
from tests.support.stories import rows

State = RegistrationState

BY_CALL = rows(f"""
    a registered resource is advertised and says so:
        kubelet; plugin; until ADVERTISED; offered 4; passed REGISTERING REGISTERED ADVERTISED; says
    without a kubelet it waits and binds nothing: plugin; until WAITING; sockets 0; kubelet; offered 4
    without a directory it waits for one: remove; plugin clock; until WAITING; make; kubelet; offered 4
    a rewrite reaches the kubelet as a message with the same devices:
        kubelet; plugin; offered 4; rewrite; offered 4; again 1
    p3 strays of a killed predecessor are removed: kubelet; stray; plugin; until ADVERTISED; sockets 1
    p6 a regular file named kubelet.sock is no kubelet: file; plugin; until WAITING; sockets 0
    p6 a kubelet.sock that is not served is tried again, and why is readable until it is:
        dead; plugin; failed 2; says Connection refused): is the kubelet running?; kubelet; until ADVERTISED; says
    p6 a refused registration is tried again:
        answers no such name; plugin; failed 3; unready; says refused aws.amazon.com/neuroncore: no such name
    p6 readiness falls with the kubelet and comes back with it:
        kubelet; plugin; until ADVERTISED; leaves; unready; kubelet; until ADVERTISED
    p7 no stream after a Register that succeeded means another socket and registration:
        answers deaf; plugin; accepted 1; remember; accepted 2; unready; moved
    p8 a new kubelet.sock is not kept waiting by a back-off:
        dead; plugin slow; until BACKING_OFF; kubelet; offered 4; took 0-2
    p9 our own socket is deleted: kubelet; plugin; offered 4; unlink; again 2; moved
    p9 our own socket is replaced, and the other one left alone: kubelet; plugin; offered 4; replace; again 2; kept
    p10 a stream that the kubelet ended means a registration from another server:
        kubelet; plugin; offered 4; disconnects; again 2; moved
    p11 two restarts within a second: kubelet; plugin; offered 4; restarts; restarts; again 2
    p11 a restart while it registers: answers hangs; plugin; asked; leaves; kubelet; again 1
    p11 a hung kubelet that was replaced is not waited for:
        answers hangs; plugin; asked; unlink kubelet.sock; kubelet; again 1; says
    p11 a kubelet that is away for long is met when it returns:
        kubelet; plugin; offered 4; leaves; failed 5; kubelet; again 2
    p11 a replaced directory is noticed by the clock: kubelet; plugin clock; offered 4; remove; make; kubelet; again 1
    p11 a directory behind a symbolic link is followed by events:
        link real; kubelet; plugin; offered 4; restarts; again 2
    p11 a symbolic link that turns to another directory is noticed by the clock:
        link real; kubelet; plugin clock; offered 4; link other; kubelet; again 1; sockets 1
    p12 capacity survives many registrations in a row:
        kubelet; plugin; {"; ".join(f"offered 4; disconnects; again {count}" for count in range(2, 6))}; wait 0.1;
        offered 4
    p13 stopping ends the stream and removes the socket quickly:
        kubelet; plugin; offered 4; stop; took 0-2; sockets 0; until STOPPED; offered 0; stop
    p13 stopping interrupts the wait for a kubelet: plugin slow; until WAITING; stop; took 0-2
    p13 stopping interrupts a back-off: dead; plugin slow; until BACKING_OFF; stop; took 0-2
    p13 stopping interrupts a Register call: answers hangs; plugin; asked; stop; took 0-2; sockets 0
""")
BY_WATCHER = rows("""
    the watcher finds and follows it: plugin; kubelet; offered 4; until ADVERTISED; breaks 2; offered 3; says
    p9 a socket that was deleted is recreated: plugin; kubelet; offered 4; unlink; again 2; renewed
    p10 a lost stream recreates the socket and brings the devices back:
        plugin; kubelet; offered 4; disconnects; renewed; again 2; disconnects; renewed; again 3
    p11 a kubelet that starts later finds the same socket:
        plugin; until REGISTERING; wait 0.1; remember; kubelet; offered 4; same
    p11 a kubelet restart brings the devices back: plugin; kubelet; offered 4; restarts; offered 4; restarts; offered 4
    p13 stopping while no kubelet has come is clean, and nobody has accepted:
        plugin; until REGISTERING; stop; until STOPPED; sockets 0; passed REGISTERING ENDING STOPPED
""")
"""Steps are methods of `Story`."""


@pytest.mark.parametrize(
    ("route", "steps"),
    [
        pytest.param(route, *row.values, id=row.id)
        for route, stories in ((DevicePluginServer, BY_CALL), (WatchedPluginServer, BY_WATCHER))
        for row in stories
    ],
)
async def test_a_resource_stays_registered(directory: Path, route: type[DevicePluginServer], steps: str) -> None:
    async with AsyncExitStack() as stack:
        await Story(directory, route, stack).play(steps)


# What is logged, and when.


@pytest.mark.parametrize(("patience", "warnings"), [(0.0, 1), (60.0, 0)], ids=["that last", "that do not last"])
async def test_attempts_that_fail_are_worth_a_warning_only_if_they_last(
    directory: Path, caplog: pytest.LogCaptureFixture, patience: float, warnings: int
) -> None:
    """A kubelet that restarts is back within some tenths of a second, and each resource of each node would say so."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(directory / KUBELET_SOCKET))
    async with running_plugin(directory, times=replace(QUICK, patience=patience)) as plugin:
        await plugin.observer.until(lambda: plugin.observer.counters.registrations[CORE, "failed"] >= 1)
        assert "not registered" not in caplog.messages, "it may listen after the first attempt"
        await plugin.observer.until(lambda: plugin.observer.counters.registrations[CORE, "failed"] >= 3)
    assert caplog.messages.count("not registered") == warnings


async def test_p6_the_same_failure_is_logged_again_after_a_success(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def refusals() -> int:
        reasons = [record.__dict__.get("reason", "") for record in caplog.records]
        return sum("Connection refused" in reason for reason in reasons)

    async with StandInKubelet(directory) as kubelet, running_plugin(directory) as plugin:
        for outages in (1, 2):
            await plugin.observer.until(lambda: plugin.server.state is State.ADVERTISED)
            await kubelet.stop()
            await eventually(lambda wanted=outages: refusals() >= wanted)  # type: ignore[misc]  # a default binds the loop's value
            await kubelet.start()


async def test_why_a_registration_ended_is_logged(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with AsyncExitStack() as stack:
        story = Story(directory, DevicePluginServer, stack)
        await story.play("kubelet; plugin; offered 4; disconnects; again 2; unlink; again 3; stop")
    cues = [record.__dict__["cue"] for record in caplog.records if record.message == "registration ended"]
    for cue, said in zip(cues, ("ended the ListAndWatch stream", "removed or replaced", "is stopping"), strict=True):
        assert said in cue


async def test_p14_one_resource_refused_does_not_touch_another(directory: Path) -> None:
    async with (
        StandInKubelet(directory) as kubelet,
        running_plugin(directory, "dummy") as refused,
        running_plugin(directory, DEVICE) as accepted,
    ):
        await refused.observer.until(lambda: len(refused.observer.registrations) >= 3)
        await kubelet.wait_for_capacity(DEVICE, 4)
        assert refused.observer.registrations[0] == 'the kubelet refused dummy: the ResourceName "dummy" is invalid'
        assert accepted.observer.registrations == [None]


@pytest.mark.parametrize(
    ("accident", "message", "times"),
    [(KeyError("a bug"), "registration failed", 3), (OSError(28, "No space left on device"), "not registered", 1)],
)
async def test_p14_an_accident_in_one_resource_is_logged_and_retried(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    accident: Exception,
    message: str,
    times: int,
) -> None:
    accidents = [accident] * 3

    def clear(_directory: Path, _resource: str) -> None:
        if accidents:
            raise accidents.pop()

    monkeypatch.setattr("neuron_plugin.kubelet.registration.clear_strays", clear)
    async with StandInKubelet(directory) as kubelet, running_plugin(directory):
        await kubelet.wait_for_capacity(CORE, 4)
    assert caplog.messages.count(message) == times


async def test_p14_a_directory_that_takes_no_socket_is_logged_once(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each attempt has a socket name of its own, which is no news."""
    monkeypatch.setattr(
        "neuron_plugin.kubelet.registration.endpoint_path",
        lambda parent, resource, token: endpoint_path(parent / "absent", resource, token),
    )
    async with StandInKubelet(directory), running_plugin(directory) as plugin:
        await plugin.observer.until(lambda: plugin.observer.states.count(State.BACKING_OFF) >= 3)
    (logged,) = (record for record in caplog.records if record.message == "not registered")
    assert logged.__dict__["reason"].startswith(f"no socket can be made in {directory}/absent: is it writable")


WITHOUT_DESCRIPTORS = """
import asyncio, logging, os, pathlib, resource, sys
from tests.support.kubelet import StandInKubelet
from tests.kubelet.fakes import CORE, running_plugin

class Reasons(logging.Handler):
    def emit(self, record):
        print(record.getMessage(), getattr(record, "reason", ""), sep=": ")

def take_all(taken):
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass

async def main():
    logging.getLogger("neuron_plugin.kubelet").addHandler(Reasons())
    directory, taken = pathlib.Path(sys.argv[1]), []
    async with StandInKubelet(directory) as kubelet, running_plugin(directory) as plugin:
        await kubelet.wait_for_capacity(CORE, 4)
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 4, most))
        take_all(taken)
        plugin.server.socket_path.unlink()
        while [state.name for state in plugin.observer.states].count("BACKING_OFF") < 4:
            take_all(taken)
            await asyncio.sleep(0.01)
        for each in taken:
            os.close(each)
        await asyncio.wait_for(plugin.server.registered.wait(), 20)
        await kubelet.wait_for_capacity(CORE, 4)
        print("back", plugin.server.state.name, sep=": ")

asyncio.run(main())
"""


def test_a_process_without_file_descriptors_says_so_once_and_is_back_when_it_has_some(directory: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_DESCRIPTORS, str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=55, check=False)  # noqa: S603 - our own interpreter and text
    printed = done.stdout.splitlines()
    assert printed == [f"not registered: [Errno 24] Too many open files: '{directory}'", "back: ADVERTISED"], (
        done.stderr
    )


# One server at a time.


async def test_p3_p12_a_second_plugin_for_the_resource_waits_until_the_first_is_gone(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with StandInKubelet(directory) as kubelet, running_plugin(directory) as first:
        await first.server.registered.wait()
        async with running_plugin(directory, count=3) as second:
            await second.observer.until(lambda: second.observer.states.count(State.BACKING_OFF) >= 2)
            assert kubelet.registration_count(CORE) == 1
            await first.server.stop()
            await kubelet.wait_for_capacity(CORE, 3)
    reasons = [record.__dict__.get("reason", "") for record in caplog.records]
    assert any("a second plugin offers" in reason for reason in reasons)


async def test_p3_a_file_at_the_very_path_is_left_alone_and_another_name_is_taken(directory: Path) -> None:
    token = f"{seeded(7).getrandbits(32):08x}"
    blocked = endpoint_path(directory, CORE, token)
    blocked.write_text("precious")
    async with StandInKubelet(directory), running_plugin(directory, random=seeded(7)) as plugin:
        await plugin.server.registered.wait()
        assert State.BACKING_OFF in plugin.observer.states
        assert plugin.server.socket_path != blocked
    assert blocked.read_text() == "precious"


async def test_p12_no_server_starts_before_the_last_one_has_stopped_fully(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    start, stop = DevicePluginService.start, DevicePluginService.stop

    async def logged_start(self: DevicePluginService, path: Path, *, watcher: None) -> None:
        events.append("start")
        await start(self, path, watcher=watcher)

    async def slow_stop(self: DevicePluginService) -> None:
        events.append("stop")
        await asyncio.sleep(0.1)
        await stop(self)
        events.append("stopped")

    monkeypatch.setattr(DevicePluginService, "start", logged_start)
    monkeypatch.setattr(DevicePluginService, "stop", slow_stop)
    async with StandInKubelet(directory) as kubelet, running_plugin(directory) as plugin:
        for count in range(2, 4):
            await kubelet.wait_for_capacity(CORE, 4)
            await kubelet.disconnect(CORE)
            await advertised_again(kubelet, plugin, count)
    assert events == ["start", "stop", "stopped"] * 3


async def test_p12_no_register_call_begins_before_the_last_one_has_ended(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way: set[object] = set()
    at_most: list[int] = []

    async def slow_to_end(*_: object) -> None:
        under_way.add(call := object())
        at_most.append(len(under_way))
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.3)  # far longer than the back-off
            under_way.remove(call)

    monkeypatch.setattr("neuron_plugin.kubelet.registration.register", slow_to_end)
    async with StandInKubelet(directory), running_plugin(directory):
        for calls in (1, 2):
            await eventually(lambda wanted=calls: len(at_most) == wanted)  # type: ignore[misc]  # a default binds the loop's value
            sockets_of(directory)[0].unlink()
        await eventually(lambda: len(at_most) == 3)
    assert at_most == [1, 1, 1]


# How soon it is back.


async def test_p8_a_recreated_kubelet_sock_is_answered_at_once_for_every_resource(directory: Path) -> None:
    """The goal is 100 ms; typically it takes under 20. The bound here leaves room for a busy machine."""
    resources = (CORE, DEVICE, "aws.amazon.com/neuron")
    async with (
        StandInKubelet(directory) as kubelet,
        running_plugin(directory, resources[0], watch_seconds=60, times=RegistrationTimes()),
        running_plugin(directory, resources[1], watch_seconds=60, times=RegistrationTimes()),
        running_plugin(directory, resources[2], watch_seconds=60, times=RegistrationTimes()),
    ):
        for resource in resources:
            await kubelet.wait_for_capacity(resource, 4)
        await kubelet.stop()
        await asyncio.sleep(0.3)  # long enough for a back-off to have begun
        begun = time.monotonic()
        await kubelet.start()
        for resource in resources:
            await kubelet.wait_for_capacity(resource, 4)
        assert time.monotonic() - begun < 2


async def test_p8_a_new_kubelet_sock_that_does_not_listen_yet_is_tried_again_soon(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is there from bind(2) on, so its identity says nothing about the listen(2) that follows."""

    class LongUnlessReset:
        def __init__(self, *_: object, **_named: object) -> None:
            self.delay = 60.0

        def next_seconds(self) -> float:
            return self.delay

        def reset(self) -> None:
            self.delay = 0.01

    monkeypatch.setattr("neuron_plugin.kubelet.registration.Backoff", LongUnlessReset)
    path = directory / KUBELET_SOCKET
    with socket.socket(socket.AF_UNIX) as dead, socket.socket(socket.AF_UNIX) as not_yet:
        dead.bind(str(path))
        async with running_plugin(directory, watch_seconds=60) as plugin:
            await plugin.observer.until(lambda: plugin.server.state is State.BACKING_OFF)
            path.unlink()
            not_yet.bind(str(path))
            await plugin.observer.until(lambda: len(plugin.observer.registrations) >= 4)


async def test_p11_a_kubelet_sock_replaced_between_the_look_and_the_call_means_another_registration(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sock, other = directory / KUBELET_SOCKET, directory / "other"
    looked = 0

    def replace(_directory: Path, _resource: str) -> None:
        nonlocal looked
        looked += 1
        if looked == 1:
            other.hardlink_to(sock)  # the same socket with another ctime, so not the one that was looked at
            other.unlink()

    monkeypatch.setattr("neuron_plugin.kubelet.registration.clear_strays", replace)
    async with StandInKubelet(directory) as kubelet, running_plugin(directory, watch_seconds=60) as plugin:
        await advertised_again(kubelet, plugin, 1)
        await plugin.observer.until(lambda: plugin.server.state is State.ADVERTISED)
        assert looked == 2
        assert len(sockets_of(directory)) == 1


@pytest.mark.parametrize(("settled", "least", "most"), [(60.0, 0.75 / 2, 60.0), (0.0, 0.0, 8.0)])
async def test_pushing_each_other_out_slows_down_and_a_registration_that_held_does_not(
    directory: Path, settled: float, least: float, most: float
) -> None:
    """Registrations that never settle back off, so two plugins cannot fight at full speed."""
    times = RegistrationTimes(settled=settled, first_delay=0.05, longest_delay=30)
    lives = 4 if settled else 9  # the ninth back-off would be one of some 13 s
    async with StandInKubelet(directory) as kubelet, running_plugin(directory, times=times):
        begun = time.monotonic()
        for _ in range(lives):
            await kubelet.wait_for_capacity(CORE, 4)
            await kubelet.disconnect(CORE)
        await kubelet.wait_for_capacity(CORE, 4)
        assert least < time.monotonic() - begun < most


# The end.


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
