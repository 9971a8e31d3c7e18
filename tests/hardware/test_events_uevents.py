"""Uevents from the kernel, without them, and after an overrun."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
import pyudev

from neuron_plugin.hardware import events as module
from neuron_plugin.hardware.events import open_uevents

SOON = 5.0
LIBRARY = "libumockdev.so.0"


@dataclass
class Event:
    """pyudev's Device, as far as it is read."""

    action: str = "add"
    sys_name: str = "neuron0"


@dataclass
class FakeMonitor:
    """pyudev's Monitor by its three methods, on a socket pair: a byte is an event, ``broken`` an overrun."""

    events: list[Event | OSError] = field(default_factory=list)
    ours: socket.socket = field(default_factory=socket.socket)
    theirs: socket.socket = field(default_factory=socket.socket)

    def __post_init__(self) -> None:
        self.ours.close()
        self.theirs.close()
        self.ours, self.theirs = socket.socketpair()
        self.ours.settimeout(0)

    def fileno(self) -> int:
        return self.ours.fileno()

    def poll(self, timeout: float) -> Event | None:
        assert timeout == 0  # anything else would block the loop
        try:
            self.ours.recv(1)
        except BlockingIOError:
            return None
        event = self.events.pop(0)
        if isinstance(event, OSError):
            raise event
        return event

    def happen(self, *events: Event | OSError) -> None:
        self.events.extend(events)
        self.theirs.send(b"." * len(events))

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


@pytest.fixture
def monitors(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeMonitor]]:
    """Every monitor that is opened, in order; opening takes from the list ``opened`` in turn."""
    opened: list[FakeMonitor] = []

    def start() -> FakeMonitor:
        opened.append(FakeMonitor())
        return opened[-1]

    monkeypatch.setattr(module, "_started_monitor", start)
    yield opened
    for monitor in opened:
        monitor.close()


async def event(changed: asyncio.Event) -> None:
    async with asyncio.timeout(SOON):
        await changed.wait()
    changed.clear()


async def nothing_comes(changed: asyncio.Event) -> bool:
    try:
        async with asyncio.timeout(0.01):
            await changed.wait()
    except TimeoutError:
        return True
    return False


async def test_a_burst_of_uevents_is_one_event(monitors: list[FakeMonitor]) -> None:
    changed = asyncio.Event()
    uevents = await open_uevents(changed)
    monitors[0].happen(*[Event(sys_name=f"neuron{device}") for device in range(16)])
    await event(changed)
    assert monitors[0].events == []
    assert await nothing_comes(changed)
    uevents.close()


async def test_closing_twice_is_harmless_and_silences(monitors: list[FakeMonitor]) -> None:
    changed = asyncio.Event()
    uevents = await open_uevents(changed)
    uevents.close()
    uevents.close()
    monitors[0].happen(Event())
    assert await nothing_comes(changed)


OVERRUN = OSError("Error while polling fd: 9")


async def test_however_often_the_socket_overruns_it_is_opened_again(
    monitors: list[FakeMonitor], caplog: pytest.LogCaptureFixture
) -> None:
    changed = asyncio.Event()
    uevents = await open_uevents(changed, reopen_seconds=0.0)
    for broken in range(10):
        monitors[broken].happen(OVERRUN)
        await event(changed)
        await event(changed)
    monitors[10].happen(Event())
    await event(changed)
    assert (uevents.problem, caplog.records) == ("", [])
    uevents.close()


async def test_a_socket_that_cannot_be_opened_again_is_a_problem_logged_once_and_tried_until_it_can(
    monitors: list[FakeMonitor], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    changed = asyncio.Event()
    uevents = await open_uevents(changed, reopen_seconds=0.0)
    refusals = iter(["Too many open files"] * 3)
    start = module._started_monitor

    def refuse_thrice() -> object:
        if why := next(refusals, ""):
            raise OSError(why)
        return start()

    monkeypatch.setattr(module, "_started_monitor", refuse_thrice)
    monitors[0].happen(OVERRUN)
    await event(changed)
    assert not uevents.problem
    await event(changed)
    assert not uevents.problem
    assert len(monitors) == 2
    assert [record.__dict__["error"] for record in caplog.records] == ["Too many open files"]
    uevents.close()


async def test_after_an_overrun_closing_ends_the_attempts(monitors: list[FakeMonitor]) -> None:
    changed = asyncio.Event()
    uevents = await open_uevents(changed)
    monitors[0].happen(OVERRUN)
    await event(changed)
    uevents.close()
    assert uevents._reopening
    assert uevents._reopening.cancelled()


async def test_p69_a_storm_that_does_not_end_leaves_the_loop_to_others(
    monitors: list[FakeMonitor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket that has always one more event: no other task would ever run."""
    changed = asyncio.Event()
    uevents = await open_uevents(changed)
    events = count(1)
    monkeypatch.setattr(monitors[0], "poll", lambda timeout: next(events) and Event())  # noqa: ARG005 - pyudev's name
    monitors[0].theirs.send(b".")
    await event(changed)
    await event(changed)
    assert next(events) < 1000
    uevents.close()


def test_libudev_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each search forks a child process, and after an overrun there are gRPC channels."""
    contexts: list[object] = []

    class Monitor:
        @classmethod
        def from_netlink(cls, context: object, source: str) -> Monitor:
            assert source == "kernel"
            contexts.append(context)
            return cls()

        def filter_by(self, subsystem: str) -> None:
            assert subsystem == "neuron_device"

        def start(self) -> None:
            """Nothing to start."""

    monkeypatch.setattr(pyudev, "Monitor", Monitor)
    monkeypatch.setattr(pyudev, "Context", object)
    module._context.cache_clear()
    try:
        assert module._started_monitor() is not module._started_monitor()
    finally:
        module._context.cache_clear()
    assert contexts[0] is contexts[1]


@pytest.mark.parametrize("error", [ImportError("No library named udev"), OSError("Could not create udev monitor")])
async def test_p70_without_libudev_or_netlink_uevents_are_lost_and_no_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def refuse() -> None:
        raise error

    monkeypatch.setattr(module, "_started_monitor", refuse)
    changed = asyncio.Event()
    uevents = await open_uevents(changed)
    assert uevents.problem == f"no uevents: {error}"
    assert await nothing_comes(changed)
    uevents.close()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.__dict__["error"] == str(error)


def played(scenario: str) -> list[str]:
    """The lines of a scenario of ``hotplug.py``, run under umockdev."""
    script = Path(__file__).with_name("hotplug.py")
    root = Path(__file__).parents[2]
    environment = {**os.environ, "LD_PRELOAD": "libumockdev-preload.so.0", "PYTHONPATH": str(root)}
    done = subprocess.run(  # noqa: S603 - our own script
        [sys.executable, str(script), scenario],
        env=environment,
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def umockdev() -> None:
    """Skip where the library is absent, but never in CI, where a skip would hide that nothing was tested."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        if os.environ.get("CI"):
            pytest.fail(f"{LIBRARY} is not installed: CI must install Debian's umockdev")
        pytest.skip(f"{LIBRARY} is not installed")


@pytest.mark.umockdev
@pytest.mark.usefixtures("umockdev")
def test_pyudev_hears_neuron_devices_come_and_go_and_no_others() -> None:
    assert played("uevents") == ["add neuron0", "changed", "remove neuron0", "changed", "add neuron1", "changed"]


@pytest.mark.umockdev
@pytest.mark.usefixtures("umockdev")
def test_p25_hot_plugged_devices_are_seen_long_before_the_next_rescan() -> None:
    assert played("hotplug") == ["devices []", "devices [5]", "devices [5, 6]", "devices [6]"]


@pytest.mark.umockdev
@pytest.mark.usefixtures("umockdev")
def test_p23_a_device_announced_before_its_attributes_is_offered_after_them() -> None:
    assert played("late") == ["devices [] incomplete [3]", "devices [3]"]
