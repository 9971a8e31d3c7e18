"""Reading the kernel log as it grows.

``/dev/kmsg`` gives one record a read and says by poll(2) when there is more. A file that cannot be waited for (a
simulated machine's) is looked at every second. Whatever fails is told by name and tried again: nothing else may stop
because the log cannot be read.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path

from neuron_plugin.hardware.kmsg import KernelRecord, RecordSplitter

RECORD_BYTES = 16_384
"""More than the kernel's longest record (8 KiB): a smaller buffer is refused with EINVAL."""

_RECORDS_A_TURN = 200
"""The log's whole history comes at the start; others get their turn in between."""

LOOK_SECONDS = 1.0
RETRY_SECONDS = 60.0


class KernelLog:
    """Follows one log from its oldest record on."""

    def __init__(
        self, path: Path, on_record: Callable[[KernelRecord], None], on_trouble: Callable[[str], None]
    ) -> None:
        """``on_trouble`` is told why the log cannot be read, and the empty text once it can."""
        self._path = path
        self._on_record = on_record
        self._on_trouble = on_trouble

    async def run(self) -> None:
        """Follow the log until cancelled."""
        while True:
            try:
                descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                self._on_trouble(f"{self._path} cannot be opened: {error.strerror}{_remedy(error)}")
            else:
                try:
                    await self._follow(descriptor)
                finally:
                    os.close(descriptor)
            await asyncio.sleep(RETRY_SECONDS)

    async def _follow(self, descriptor: int) -> None:
        """Read until it fails for good."""
        splitter = RecordSplitter()
        try:
            while True:
                while self._read_some(descriptor, splitter):
                    self._on_trouble("")
                    await asyncio.sleep(0)
                self._on_trouble("")
                await _more(descriptor)
        except OSError as error:
            self._on_trouble(f"{self._path} cannot be read: {error.strerror}{_remedy(error)}")

    def _read_some(self, descriptor: int, splitter: RecordSplitter) -> bool:
        """Read until nothing is left (False) or others should have their turn (True)."""
        for _ in range(_RECORDS_A_TURN):
            try:
                data = os.read(descriptor, RECORD_BYTES)
            except BlockingIOError:
                return False
            except OSError as error:
                if error.errno != errno.EPIPE:
                    raise
                splitter.drop_rest()  # overwritten before we came; the next read goes on with the oldest there is
                continue
            if not data:
                return False
            for record in splitter.feed(data):
                self._on_record(record)
        return True


async def _more(descriptor: int) -> None:
    """Return when there may be more to read. No deadline: a healthy machine may say nothing for ever."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(descriptor, ready.set)
    except PermissionError:  # epoll takes no plain file
        await asyncio.sleep(LOOK_SECONDS)
        return
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


def _remedy(error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return ": mount the host's /dev/kmsg here"
    return ": it takes CAP_SYSLOG" if error.errno in {errno.EPERM, errno.EACCES} else ""
