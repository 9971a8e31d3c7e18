from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from asyncinotify import Inotify, Mask, Watch

from neuron_plugin.kubelet.watch import DirectoryWatch
from tests.kubelet.fakes import eventually

NEVER = 30.0


@asynccontextmanager
async def watched(directory: Path, period: float) -> AsyncIterator[asyncio.Event]:
    hint = asyncio.Event()
    watch = DirectoryWatch(directory, period_seconds=period)
    with watch.listening(hint.set):
        task = asyncio.create_task(watch.run())
        await hinted(hint)  # each beginning gives one
        yield hint
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def hinted(hint: asyncio.Event) -> None:
    async with asyncio.timeout(5):
        await hint.wait()
    hint.clear()


async def until_quiet(hint: asyncio.Event) -> None:
    """Take every hint that is still to come of what has happened."""
    with contextlib.suppress(TimeoutError):
        while True:
            await asyncio.wait_for(hint.wait(), 0.3)
            hint.clear()


async def test_a_new_file_is_hinted_at_by_an_event(directory: Path) -> None:
    async with watched(directory, NEVER) as hint:
        (directory / "kubelet.sock").touch()
        await hinted(hint)


async def test_a_removed_file_is_hinted_at_by_an_event(directory: Path) -> None:
    (directory / "own.sock").touch()
    async with watched(directory, NEVER) as hint:
        (directory / "own.sock").unlink()
        await hinted(hint)


async def test_a_file_moved_into_place_is_hinted_at_by_an_event(directory: Path) -> None:
    (directory / "sub").mkdir()
    (directory / "sub" / "new").touch()
    async with watched(directory, NEVER) as hint:
        (directory / "sub" / "new").rename(directory / "kubelet.sock")
        await hinted(hint)


async def test_a_file_moved_away_is_hinted_at_by_an_event(directory: Path) -> None:
    (directory / "sub").mkdir()
    (directory / "own.sock").touch()
    async with watched(directory, NEVER) as hint:
        (directory / "own.sock").rename(directory / "sub" / "own.sock")
        await hinted(hint)


async def test_every_listener_gets_the_hint(directory: Path) -> None:
    watch = DirectoryWatch(directory, period_seconds=NEVER)
    hints = [asyncio.Event(), asyncio.Event()]
    with watch.listening(hints[0].set), watch.listening(hints[1].set):
        task = asyncio.create_task(watch.run())
        for hint in hints:
            await hinted(hint)
        task.cancel()


async def test_a_listener_that_left_gets_none(directory: Path) -> None:
    gone = asyncio.Event()
    watch = DirectoryWatch(directory, period_seconds=NEVER)
    with watch.listening(gone.set):
        pass
    stays = asyncio.Event()
    with watch.listening(stays.set):
        task = asyncio.create_task(watch.run())
        await hinted(stays)
        task.cancel()
    assert not gone.is_set()


async def test_hints_come_without_events_too(directory: Path) -> None:
    async with watched(directory, 0.01) as hint:
        await hinted(hint)
        await hinted(hint)


@pytest.fixture
def watched_inodes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The inode number of each directory that a watch was put on."""
    inodes: list[int] = []

    class CountingInotify(Inotify):
        def add_watch(self, path: os.PathLike[str] | bytes | str, mask: Mask) -> Watch:
            inodes.append(Path(os.fsdecode(path)).stat().st_ino)
            return super().add_watch(path, mask)

    monkeypatch.setattr("neuron_plugin.kubelet.watch.Inotify", CountingInotify)
    return inodes


async def test_a_replaced_directory_is_watched_anew(directory: Path, watched_inodes: list[int]) -> None:
    plugins = directory / "device-plugins"
    plugins.mkdir()
    async with watched(plugins, 0.05):
        shutil.move(plugins, directory / "old")
        plugins.mkdir()
        await eventually(lambda: len(watched_inodes) == 2)
    assert watched_inodes[0] != watched_inodes[1]


async def test_p11_a_directory_made_anew_under_the_old_inode_number_is_watched_anew(
    directory: Path, watched_inodes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DirectoryWatch, "_directory_identity", lambda _watch: (1, 2))  # ext4 uses numbers again
    plugins = directory / "device-plugins"
    plugins.mkdir()
    async with watched(plugins, NEVER) as hint:
        plugins.rmdir()
        plugins.mkdir()
        await eventually(lambda: len(watched_inodes) == 2)
        hint.clear()
        (plugins / "kubelet.sock").touch()
        await hinted(hint)


async def test_more_events_than_the_kernel_keeps_are_a_hint_too(directory: Path) -> None:
    kept = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if kept > 50_000:  # pragma: no cover - a machine with another setting
        pytest.skip(f"fs.inotify.max_queued_events is {kept}, which takes long to fill")
    async with watched(directory, NEVER) as hint:
        for _ in range(kept // 2 + 10):  # two events each
            (directory / "s").touch()
            (directory / "s").unlink()
        await until_quiet(hint)
        (directory / "kubelet.sock").touch()
        await hinted(hint)


async def test_a_directory_that_does_not_exist_yet_is_waited_for(directory: Path) -> None:
    plugins = directory / "device-plugins"
    async with watched(plugins, 0.02) as hint:
        plugins.mkdir()
        await asyncio.sleep(0.1)  # by then the clock has found it
        hint.clear()
        (plugins / "kubelet.sock").touch()
        await hinted(hint)


async def test_a_node_without_inotify_instances_is_watched_by_the_clock_and_said_once(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A node has 128 of them by default (``fs.inotify.max_user_instances``)."""

    def none_left() -> Inotify:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("neuron_plugin.kubelet.watch.Inotify", none_left)
    async with watched(directory, 0.01) as hint:
        for _ in range(3):
            await hinted(hint)
    assert caplog.messages == ["a restarted kubelet is noticed late: no inotify"]
    assert "max_user_instances" in caplog.records[0].__dict__["remedy"]


async def test_cancelling_leaves_no_descriptor_behind(directory: Path) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    for _ in range(5):
        async with watched(directory, NEVER):
            pass
    assert descriptors() == before
