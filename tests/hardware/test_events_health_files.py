"""Firmware's notices. A socket's urgent data is the POLLPRI of a file that cannot give one here."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from neuron_plugin.hardware import notices
from neuron_plugin.hardware.events import HealthNotices
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
    monkeypatch.setattr(notices, "open_file", played.open_file)
    monkeypatch.setattr(notices, "read_again", played.read_again)
    yield played
    played.close()


async def hint(event: asyncio.Event) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        await event.wait()
    event.clear()


async def quiet(event: asyncio.Event) -> bool:
    for _ in range(20):
        await asyncio.sleep(0)
    return not event.is_set()


async def test_p67_a_change_of_a_health_file_is_a_hint_each_time(make_node: MakeNode, firmware: Firmware) -> None:
    node, hinted = make_node(driver_version="2.28.0.0"), asyncio.Event()
    with closing(HealthNotices(Sysfs(node.paths.sysfs), hinted.set)) as followed:
        assert followed.follow([FIRST, SECOND]) == ""
        assert len(followed._followed) == 2
        assert await quiet(hinted)
        firmware.notify(1)
        await hint(hinted)
        assert await quiet(hinted)
        firmware.notify(1)
        await hint(hinted)


async def test_a_device_that_is_not_followed_any_more_gives_none(make_node: MakeNode, firmware: Firmware) -> None:
    node, hinted = make_node(driver_version="2.28.0.0"), asyncio.Event()
    with closing(HealthNotices(Sysfs(node.paths.sysfs), hinted.set)) as followed:
        followed.follow([FIRST, SECOND])
        followed.follow([FIRST])
        assert len(followed._followed) == 1
        firmware.notify(0)
        await hint(hinted)


async def test_p25_after_a_driver_reload_the_new_files_are_followed(make_node: MakeNode, firmware: Firmware) -> None:
    node, hinted = make_node(driver_version="2.28.0.0"), asyncio.Event()
    with closing(HealthNotices(Sysfs(node.paths.sysfs), hinted.set)) as followed:
        followed.follow([FIRST])
        old = firmware.writers["neuron0"]
        node.unload_driver()
        node.load_driver()
        followed.follow([FIRST])
        assert firmware.writers["neuron0"] is not old
        firmware.notify(0)
        await hint(hinted)
        old.close()


async def test_files_that_change_on_a_sound_device_are_not_waited_for(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heartbeat would have the whole machine read at each beat."""
    opened: list[str] = []

    def refuse(path: Path) -> int:
        opened.append(path.name)
        raise PermissionError(errno.EPERM, "a plain file")

    monkeypatch.setattr(notices, "open_file", refuse)
    node = make_node("trn2.3xlarge", driver_version="2.30.2.0")
    with closing(HealthNotices(Sysfs(node.paths.sysfs), lambda: None)) as followed:
        followed.follow([FIRST])
    assert opened == ["hw_error_events", "unhealthy_components"]


async def test_a_file_that_died_is_let_go_and_does_not_spin(make_node: MakeNode, firmware: Firmware) -> None:
    node, hinted = make_node(driver_version="2.28.0.0"), asyncio.Event()
    with closing(HealthNotices(Sysfs(node.paths.sysfs), hinted.set)) as followed:
        followed.follow([FIRST])
        firmware.dead = True
        firmware.notify(0)
        await hint(hinted)
        assert len(followed._followed) == 0
        assert await quiet(hinted)


async def test_an_older_driver_gives_no_notices_and_no_trouble(make_node: MakeNode) -> None:
    node = make_node(driver_version="2.26.5.0")
    with closing(HealthNotices(Sysfs(node.paths.sysfs), lambda: None)) as followed:
        assert followed.follow([FIRST]) == ""
        assert len(followed._followed) == 0


async def test_plain_files_of_a_simulated_machine_cannot_be_waited_for_which_is_no_trouble(make_node: MakeNode) -> None:
    node = make_node()
    with closing(HealthNotices(Sysfs(node.paths.sysfs), lambda: None)) as followed:
        assert followed.follow([FIRST]) == ""
        assert len(followed._followed) == 0


async def test_p70_a_file_that_may_not_be_opened_is_named(make_node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node = make_node()

    def refuse(path: Path) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(notices, "open_file", refuse)
    with closing(HealthNotices(Sysfs(node.paths.sysfs), lambda: None)) as followed:
        trouble = followed.follow([FIRST])
    assert "health_status" in trouble
    assert trouble.endswith("cannot be waited for: Permission denied")


async def test_closing_twice_is_harmless(make_node: MakeNode) -> None:
    followed = HealthNotices(Sysfs(make_node().paths.sysfs), lambda: None)
    followed.close()
    followed.close()
