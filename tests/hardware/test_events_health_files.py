"""Changes of firmware's health files. A socket's urgent data is the POLLPRI of a file that cannot give one here."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from neuron_plugin.hardware import events
from neuron_plugin.hardware.events import HealthFiles
from neuron_plugin.hardware.sysfs import Sysfs
from neuron_plugin.simulation import SimulatedNode
from neuron_plugin.topology import DeviceId

MakeNode = Callable[..., SimulatedNode]

DEADLINE_SECONDS = 5
FIRST, SECOND = DeviceId(0), DeviceId(1)


class Firmware:
    """Gives every health file that is opened a descriptor that can notify."""

    def __init__(self) -> None:
        self.writers: dict[str, socket.socket] = {}
        self.dead = False

    def open_file(self, path: Path) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        writer = socket.create_connection(listener.getsockname())
        reader, _ = listener.accept()
        listener.close()
        reader.settimeout(0)
        self.writers[path.parents[3].name] = writer
        return reader.detach()

    def read_again(self, descriptor: int) -> None:
        if self.dead:
            raise OSError(errno.ENODEV, "No such device")
        with closing(socket.socket(fileno=os.dup(descriptor))) as reader, suppress(OSError):
            reader.recv(1, socket.MSG_OOB)

    def notify(self, device: int) -> None:
        self.writers[f"neuron{device}"].send(b"!", socket.MSG_OOB)

    def close(self) -> None:
        for writer in self.writers.values():
            writer.close()


@pytest.fixture
def firmware(monkeypatch: pytest.MonkeyPatch) -> Iterator[Firmware]:
    played = Firmware()
    monkeypatch.setattr(events, "open_file", played.open_file)
    monkeypatch.setattr(events, "read_again", played.read_again)
    yield played
    played.close()


async def event_of(event: asyncio.Event) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        await event.wait()
    event.clear()


async def quiet(event: asyncio.Event) -> bool:
    for _ in range(20):
        await asyncio.sleep(0)
    return not event.is_set()


async def test_p67_a_change_of_a_health_file_is_an_event_each_time(make_node: MakeNode, firmware: Firmware) -> None:
    node, changed = make_node(driver_version="2.28.0.0"), asyncio.Event()
    with closing(HealthFiles(Sysfs(node.paths.sysfs), changed)) as followed:
        assert followed.follow([FIRST, SECOND]) == ""
        assert len(followed._open) == 2
        assert await quiet(changed)
        firmware.notify(1)
        await event_of(changed)
        assert await quiet(changed)
        firmware.notify(1)
        await event_of(changed)


async def test_a_device_that_is_not_followed_any_more_gives_none(make_node: MakeNode, firmware: Firmware) -> None:
    node, changed = make_node(driver_version="2.28.0.0"), asyncio.Event()
    with closing(HealthFiles(Sysfs(node.paths.sysfs), changed)) as followed:
        followed.follow([FIRST, SECOND])
        followed.follow([FIRST])
        assert len(followed._open) == 1
        firmware.notify(0)
        await event_of(changed)


async def test_p25_after_a_driver_reload_the_new_files_are_followed(make_node: MakeNode, firmware: Firmware) -> None:
    node, changed = make_node(driver_version="2.28.0.0"), asyncio.Event()
    with closing(HealthFiles(Sysfs(node.paths.sysfs), changed)) as followed:
        followed.follow([FIRST])
        old = firmware.writers["neuron0"]
        node.unload_driver()
        node.load_driver()
        followed.follow([FIRST])
        assert firmware.writers["neuron0"] is not old
        firmware.notify(0)
        await event_of(changed)
        old.close()


async def test_files_that_change_on_a_sound_device_are_not_waited_for(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heartbeat would have the whole machine read at each beat."""
    opened: list[str] = []

    def refuse(path: Path) -> int:
        opened.append(path.name)
        raise PermissionError(errno.EPERM, "a plain file")

    monkeypatch.setattr(events, "open_file", refuse)
    node = make_node("trn2.3xlarge", driver_version="2.30.2.0")
    with closing(HealthFiles(Sysfs(node.paths.sysfs), asyncio.Event())) as followed:
        followed.follow([FIRST])
    assert opened == ["hw_error_events", "unhealthy_components"]


async def test_a_file_that_died_is_closed_and_does_not_spin(make_node: MakeNode, firmware: Firmware) -> None:
    node, changed = make_node(driver_version="2.28.0.0"), asyncio.Event()
    with closing(HealthFiles(Sysfs(node.paths.sysfs), changed)) as followed:
        followed.follow([FIRST])
        firmware.dead = True
        firmware.notify(0)
        await event_of(changed)
        assert len(followed._open) == 0
        assert await quiet(changed)


async def test_an_older_driver_gives_no_events_and_no_problem(make_node: MakeNode) -> None:
    node = make_node(driver_version="2.26.5.0")
    with closing(HealthFiles(Sysfs(node.paths.sysfs), asyncio.Event())) as followed:
        assert followed.follow([FIRST]) == ""
        assert len(followed._open) == 0


async def test_plain_files_of_a_simulated_machine_cannot_be_waited_for_which_is_no_problem(make_node: MakeNode) -> None:
    node = make_node()
    with closing(HealthFiles(Sysfs(node.paths.sysfs), asyncio.Event())) as followed:
        assert followed.follow([FIRST]) == ""
        assert len(followed._open) == 0


async def test_p70_a_file_that_may_not_be_opened_is_named(make_node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node = make_node()

    def refuse(path: Path) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(events, "open_file", refuse)
    with closing(HealthFiles(Sysfs(node.paths.sysfs), asyncio.Event())) as followed:
        problem = followed.follow([FIRST])
    assert "health_status" in problem
    assert problem.endswith("cannot be waited for: Permission denied")


async def test_closing_twice_is_harmless(make_node: MakeNode) -> None:
    followed = HealthFiles(Sysfs(make_node().paths.sysfs), asyncio.Event())
    followed.close()
    followed.close()
