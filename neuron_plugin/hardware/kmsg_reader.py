"""Reading the kernel log as it grows.

``/dev/kmsg`` gives one record a read and says by poll(2) when there is more. A file that cannot be waited for (a
simulated machine's) is looked at every second. Where the kernel's own file cannot be opened, as in a container, the
same log is asked for by syslog(2) every few seconds. Whatever fails is told by name and tried again: nothing else may
stop because the log cannot be read.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

from neuron_plugin.hardware.kmsg import KernelRecord, RecordSplitter
from neuron_plugin.hardware.ring import RingNews, read_ring

logger = logging.getLogger(__name__)

RECORD_BYTES = 16_384
"""More than the kernel's longest record (8 KiB): a smaller buffer is refused with EINVAL."""

_RECORDS_A_TURN = 200
"""The log's whole history comes at the start; others get their turn in between."""

LOOK_SECONDS = 1.0
RING_SECONDS = 5.0
"""A look at a ring of 128 KiB costs about a millisecond; errors in it are judged by the hour."""
RETRY_SECONDS = 60.0

_KMSG = Path("/dev/kmsg")


class KernelLog:
    """Follows one log from its oldest record on."""

    def __init__(
        self,
        path: Path,
        on_record: Callable[[KernelRecord], None],
        on_trouble: Callable[[str], None],
        ring: Callable[[], bytes] = read_ring,
    ) -> None:
        """``on_trouble`` is told why the log cannot be read, and the empty text once it can.

        ``ring`` is asked for the kernel's ring where ``path`` is the kernel's and cannot be opened.
        """
        self._path = path
        self._on_record = on_record
        self._on_trouble = on_trouble
        self._ring = ring
        self._newest = float("-inf")
        self._heard_until = float("-inf")

    async def run(self) -> None:
        """Follow the log until cancelled."""
        while True:
            try:
                descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                await self._do_without(error)
            else:
                try:
                    await self._follow(descriptor)
                finally:
                    os.close(descriptor)
            self._heard_until = self._newest  # the next reading begins with the oldest record there is
            await asyncio.sleep(RETRY_SECONDS)

    async def _do_without(self, error: OSError) -> None:
        """Ask for the ring, until that fails, where the file cannot be opened."""
        trouble = f"{self._path} cannot be opened: {error.strerror}"
        if not _is_kernels(self._path):
            missing = error.errno == errno.ENOENT
            self._on_trouble(f"{trouble}: mount the host's /dev/kmsg here" if missing else trouble)
            return
        news = RingNews()
        try:
            await self._look_at_ring(news)
            logger.info("the kernel log is read by syslog(2)", extra={"why": trouble})
            while True:
                await asyncio.sleep(RING_SECONDS)
                await self._look_at_ring(news)
        except OSError as failure:
            self._on_trouble(f"{trouble}, and syslog(2) says: {failure.strerror}; {_REMEDY}")

    async def _look_at_ring(self, news: RingNews) -> None:
        records = await asyncio.to_thread(lambda: news.records(self._ring(), time.clock_gettime(time.CLOCK_MONOTONIC)))
        self._on_trouble("")
        for number, record in enumerate(records):
            self._tell(record)
            if number % _RECORDS_A_TURN == 0:
                await asyncio.sleep(0)

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
            remedy = f"; {_REMEDY}" if error.errno in {errno.EPERM, errno.EACCES} else ""
            self._on_trouble(f"{self._path} cannot be read: {error.strerror}{remedy}")

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
                self._tell(record)
        return True

    def _tell(self, record: KernelRecord) -> None:
        """Pass a record on, unless it was heard before the log had to be opened anew."""
        self._newest = max(self._newest, record.at)
        if record.at > self._heard_until:
            self._on_record(record)


_REMEDY = (
    "give this process CAP_SYSLOG (devicePlugin.kernelLog in the chart); with the device 1:11 in its device "
    "cgroup, too, the file is read"
)


def _is_kernels(path: Path) -> bool:
    """Whether this is the kernel's own log, and not a simulated machine's: only then has syslog(2) the same to say."""
    try:
        return stat.S_ISCHR(path.stat().st_mode)
    except OSError:
        return path == _KMSG


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
