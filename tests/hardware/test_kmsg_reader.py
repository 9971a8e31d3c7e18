"""The kernel log as it grows, from a log that can be waited for and from a plain file."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from neuron_plugin.hardware import kmsg_reader
from neuron_plugin.hardware.kmsg import KernelRecord
from neuron_plugin.hardware.kmsg_reader import KernelLog

DEADLINE_SECONDS = 5


class Heard:
    """What a log has told."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.troubles: list[str] = []
        self.news = asyncio.Event()

    def record(self, record: KernelRecord) -> None:
        self.texts.append(record.text)
        self.news.set()

    def trouble(self, text: str) -> None:
        if not self.troubles or self.troubles[-1] != text:
            self.troubles.append(text)
            self.news.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not condition():
                self.news.clear()
                await self.news.wait()


@asynccontextmanager
async def following(path: Path, ring: Callable[[], bytes] = lambda: b"") -> AsyncIterator[Heard]:
    heard = Heard()
    task = asyncio.create_task(KernelLog(path, heard.record, heard.trouble, ring).run(), name="log under test")
    try:
        yield heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> socket.socket:
    """The writing end of a stand-in for ``/dev/kmsg``: one record a read, and poll(2) says when."""
    reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reader.settimeout(0)
    descriptor = reader.detach()
    monkeypatch.setattr(os, "open", lambda *_arguments: descriptor)
    return writer


async def test_what_is_there_and_what_comes_is_heard(device: socket.socket) -> None:
    device.send(b"6,1,1000000,-;before\n")
    async with following(Path("/dev/kmsg")) as heard:
        await heard.until(lambda: heard.texts == ["before"])
        device.send(b"6,2,2000000,-;after\n KEY=value\n")
        await heard.until(lambda: heard.texts == ["before", "after"])
        assert heard.troubles == [""]
    device.close()


async def test_records_that_were_overwritten_do_not_end_the_reading(
    device: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_read, failures = os.read, [OSError(errno.EPIPE, "overwritten")]

    def read(descriptor: int, size: int) -> bytes:
        if failures:
            raise failures.pop()
        return really_read(descriptor, size)

    monkeypatch.setattr(os, "read", read)
    device.send(b"6,7,1000000,-;the oldest there is\n")
    async with following(Path("/dev/kmsg")) as heard:
        await heard.until(lambda: heard.texts == ["the oldest there is"])
        assert heard.troubles == [""]
    device.close()


async def test_a_long_history_lets_others_have_their_turn(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text("".join(f"6,{number},1000000,-;{'x' * 500}\n" for number in range(20_000)))
    turns = 0
    async with following(path) as heard:
        while len(heard.texts) < 20_000:
            turns += 1
            await asyncio.sleep(0)
    assert turns > 2


async def test_p70_a_log_that_is_not_there_is_named_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    async with following(path) as heard:
        await heard.until(lambda: bool(heard.troubles))
        assert heard.troubles == [
            f"{path} cannot be opened: No such file or directory: mount the host's /dev/kmsg here"
        ]


async def test_p70_a_log_that_may_not_be_read_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kmsg"
    path.touch()

    def refuse(_descriptor: int, _size: int) -> bytes:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "read", refuse)
    async with following(path) as heard:
        await heard.until(lambda: bool(heard.troubles))
        (trouble,) = heard.troubles
        assert trouble.startswith(f"{path} cannot be read: Operation not permitted; ")
        assert "CAP_SYSLOG" in trouble
        assert "device cgroup" in trouble


async def test_a_log_that_comes_late_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kmsg_reader, "RETRY_SECONDS", 0.01)
    path = tmp_path / "kmsg"
    async with following(path) as heard:
        await heard.until(lambda: bool(heard.troubles))
        path.write_text("6,1,1000000,-;at last\n")
        await heard.until(lambda: heard.texts == ["at last"])
        assert heard.troubles[-1] == ""


async def test_a_plain_file_that_grows_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kmsg_reader, "LOOK_SECONDS", 0.01)
    path = tmp_path / "kmsg"
    path.touch()
    async with following(path) as heard:
        await heard.until(lambda: heard.troubles == [""])
        with path.open("a") as log:
            log.write("6,1,1000000,-;half")
            log.flush()
            await asyncio.sleep(0.03)
            log.write(" and half\n")
        await heard.until(lambda: heard.texts == ["half and half"])


async def test_a_log_that_has_to_be_opened_anew_tells_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kmsg_reader, "RETRY_SECONDS", 0.01)
    path = tmp_path / "kmsg"
    path.write_text("6,1,1000000,-;first\n")
    really_read, failures = os.read, [OSError(errno.EIO, "Input/output error")]

    def read(descriptor: int, size: int) -> bytes:
        data = really_read(descriptor, size)
        if not data and failures:
            raise failures.pop()
        return data

    monkeypatch.setattr(os, "read", read)
    monkeypatch.setattr(kmsg_reader, "LOOK_SECONDS", 0.01)
    async with following(path) as heard:
        await heard.until(lambda: heard.troubles == [f"{path} cannot be read: Input/output error", ""])
        with path.open("a") as log:
            log.write("6,2,2000000,-;second\n")
        await heard.until(lambda: heard.texts == ["first", "second"])


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The kernel's own log, as it is in a container: there, and not to be opened."""
    monkeypatch.setattr(kmsg_reader, "RING_SECONDS", 0.01)
    monkeypatch.setattr(kmsg_reader, "RETRY_SECONDS", 0.01)
    really_open = os.open

    def refuse(path: str | Path, flags: int, mode: int = 0o777) -> int:
        if path == Path("/dev/kmsg"):
            raise PermissionError(errno.EPERM, "Operation not permitted")
        return really_open(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    return Path("/dev/kmsg")


async def test_p67_a_log_that_may_not_be_opened_is_asked_for_by_syslog(closed: Path) -> None:
    rings = [b"<3>[    1.000000] before\n", b"<3>[    1.000000] before\n<3>[    2.000000] after\n"]
    async with following(closed, lambda: rings.pop(0) if len(rings) > 1 else rings[0]) as heard:
        await heard.until(lambda: heard.texts == ["before", "after"])
        assert heard.troubles == [""]


async def test_p70_where_neither_way_is_open_both_are_named(closed: Path) -> None:
    def refuse() -> bytes:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    async with following(closed, refuse) as heard:
        await heard.until(lambda: bool(heard.troubles))
        (trouble,) = heard.troubles
        assert trouble == (
            "/dev/kmsg cannot be opened: Operation not permitted, and syslog(2) says: Operation not permitted; "
            "give this process CAP_SYSLOG (devicePlugin.kernelLog in the chart); with the device 1:11 in its device "
            "cgroup, too, the file is read"
        )


async def test_p70_a_ring_that_fails_is_named_and_asked_again_and_tells_nothing_twice(closed: Path) -> None:
    answers: list[bytes | OSError] = [b"<3>[    1.000000] a\n", OSError(errno.EPERM, "no"), b"<3>[    1.000000] a\n"]
    last = b"<3>[    1.000000] a\n<3>[    2.000000] b\n"

    def ring() -> bytes:
        answer = answers.pop(0) if answers else last
        if isinstance(answer, OSError):
            raise answer
        return answer

    async with following(closed, ring) as heard:
        await heard.until(lambda: heard.texts == ["a", "b"])
        assert len(heard.troubles) == 3
        assert heard.troubles[::2] == ["", ""]


async def test_a_simulated_machine_never_hears_the_real_ones_log(tmp_path: Path) -> None:
    def ring() -> bytes:
        raise AssertionError("the ring is this machine's")

    async with following(tmp_path / "kmsg", ring) as heard:
        await heard.until(lambda: bool(heard.troubles))


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="the kernel's own log may not be read here")
async def test_the_kernels_own_log_is_understood() -> None:
    async with following(Path("/dev/kmsg")) as heard:
        await heard.until(lambda: bool(heard.texts or "".join(heard.troubles)))
        assert not "".join(heard.troubles) or "CAP_SYSLOG" in heard.troubles[-1]
