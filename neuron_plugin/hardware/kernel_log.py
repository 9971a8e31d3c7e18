"""Hardware errors that the Neuron runtime writes into the kernel log.

The runtime makes the driver print ``NEURON_HW_ERR=<kind>``. The documented form continues with ``nd-id=0 nc-id=0
serial-num=19fcda00f5ff6eb9``: the serial number identifies the device. ``nd-id`` does not, as a runtime in a container
numbers devices from the first one that it has. A line without a serial number is searched for a device number in all
forms that the driver and its tools use. A line without either may mean any device.

Lines can be forged. The kernel gives lines that a process writes into ``/dev/kmsg`` a user's facility, never 0
(``kernel/printk/printk.c``, ``devkmsg_write``). Such a line is ignored unless ``trust-user-messages`` is set. A process
that may open a Neuron device can still make the driver print anything about any device. So the health rules limit the
consequences of a line.

The log is read by syslog(2), every few seconds. That needs no device node: no container runtime lets an unprivileged
container open ``/dev/kmsg`` (1:11). CAP_SYSLOG is enough for the call, and with it the default seccomp profiles of
containerd, CRI-O and Docker allow it. The call has no cursor and returns the whole ring each time, so new lines are
found by comparison. Nothing is ever written or cleared. A simulated machine's log is a plain file of records in the
form of ``/dev/kmsg``, read in the same way.

Source: kernel ABI document ``dev-kmsg``; ``kernel/printk/printk.c``, ``do_syslog`` and ``info_print_prefix``; the SDK's
troubleshooting guide for the runtime; patterns of NPD and EKS's monitoring agent.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from neuron_plugin.topology import MOST_DEVICES, DeviceId

_KMSG = Path("/dev/kmsg")
_READ_ALL, _SIZE_BUFFER = 3, 10

_SYSLOG_LINE = re.compile(rb"<(\d{1,10})>(?:\[ *(\d{1,10}\.\d{6})\])?(?:\[ *[TC]\d{1,10}\])? ?(.*)\Z", re.DOTALL)
"""``<priority>[seconds][thread or processor] text``: seconds unless printk's are off, the third if so configured."""
_RECORD = re.compile(rb"(\d{1,10}),\d{1,20},(\d{1,20}),[^;\n]*;(.*)\Z")
"""``priority,sequence,microseconds,flags;text``; lines of a record's dictionary do not match."""
_KERNEL_FACILITY = 0
"""The kernel's own messages (LOG_KERN of syslog)."""
_FACILITY_BITS = 3
"""The lower bits of a message's prefix are its level."""

_ERROR = re.compile(r"(?:\A|\s)NEURON_HW_ERR=([A-Za-z0-9_]{1,64})(?=\s|[,;:.]|\Z)")
_DEVICE = re.compile(
    r"""(?<![a-z0-9_]) (?:
        nd                                             # the driver: "nd3:"
      | (?:/dev/)? neuron [ _-]? (?:device|dev)? s?    # "neuron3", "neuron device 3", "neuron_device=3"
      | device (?:[ _-]? (?:id|index))?                # "device 3", "device_id=3"
    ) [ ]? [=:#]? [ ]? (\d{1,2}) (?![a-z0-9_.])""",
    re.IGNORECASE | re.VERBOSE,
)
_SERIAL = re.compile(r"(?<![a-z0-9_-])serial-num=([0-9a-f]{1,32})(?![a-z0-9_])", re.IGNORECASE)

NO_PROOF = frozenset({"HANG_ON_COLLECTIVES"})
"""Kinds that may have other causes than this machine's hardware; the vendor has stopped watching for this one."""


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """One message. ``at`` is in seconds of CLOCK_MONOTONIC; ``by_kernel``: not written by a process."""

    at: float
    text: str
    by_kernel: bool


@dataclass(frozen=True, slots=True)
class KernelError:
    """A hardware error of a ``kind`` such as ``DMA_ERROR``.

    Without ``devices`` and ``serial_number`` it names no device.
    """

    at: float
    kind: str
    devices: frozenset[DeviceId]
    by_kernel: bool
    serial_number: str = ""

    @property
    def proves(self) -> bool:
        """Whether it names devices and can only come from their hardware."""
        return bool(self.devices or self.serial_number) and self.kind not in NO_PROOF


@dataclass(frozen=True, slots=True)
class LogPeriods:
    """Seconds between two reads of a plain ``file``, by ``syslog``, or of a log that could not be read (``retry``).

    A read of a ring of 128 KiB costs about a millisecond; errors in it are judged by the hour.
    """

    file: float = 1.0
    syslog: float = 5.0
    retry: float = 60.0


PERIODS = LogPeriods()


class KernelLog:
    """One kernel log from its oldest record on. ``problem`` says why it cannot be read now; empty while it can."""

    def __init__(self, path: Path = _KMSG, periods: LogPeriods = PERIODS) -> None:
        """``path`` is the plain file of a simulated machine; ``/dev/kmsg`` means the kernel's log, by syslog(2)."""
        self._path = path
        self._periods = periods
        self._new_lines = NewLines()
        self.problem = ""

    async def news(self) -> AsyncIterator[tuple[KernelError, ...]]:
        """Yield new errors at once, then whenever there are some or ``problem`` has changed. Endless."""
        first = True
        while True:
            problem, by_syslog = "", self._path == _KMSG
            errors: tuple[KernelError, ...] = ()
            try:
                by_syslog = by_syslog or self._path.is_char_device()
                errors = await asyncio.to_thread(self._new, by_syslog=by_syslog)
            except OSError as error:
                what = "the kernel log cannot be read by syslog(2)" if by_syslog else f"{self._path} cannot be read"
                problem = f"{what}: {error.strerror}"
                if by_syslog and isinstance(error, PermissionError):
                    problem += "; give this process CAP_SYSLOG (devicePlugin.kernelLog in the chart)"
            if first or errors or problem != self.problem:
                first, self.problem = False, problem
                yield errors
            periods = self._periods
            await asyncio.sleep(periods.retry if problem else periods.syslog if by_syslog else periods.file)

    def _new(self, *, by_syslog: bool) -> tuple[KernelError, ...]:
        text = read_syslog() if by_syslog else self._path.read_bytes()
        records = self._new_lines.records(text, time.clock_gettime(time.CLOCK_MONOTONIC))
        return tuple(error for record in records if (error := parse_error(record)))


def read_syslog() -> bytes:
    """Everything in the kernel's ring since it was last cleared (``dmesg -c``), oldest first.

    Raises:
        OSError: EPERM without CAP_SYSLOG, ENOSYS where the C library or the kernel has no such call.
    """
    try:
        klogctl = ctypes.CDLL(None, use_errno=True).klogctl
    except AttributeError:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None

    def call(action: int, buffer: ctypes.Array[ctypes.c_char] | None, size: int) -> int:
        result = int(klogctl(action, buffer, size))
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return result

    size = call(_SIZE_BUFFER, None, 0)
    buffer = ctypes.create_string_buffer(size)
    length = call(_READ_ALL, buffer, size)  # before the buffer is looked at
    return buffer.raw[:length]


class NewLines:
    """Finds the lines that were logged between two reads of a log.

    A ring only loses its oldest lines and gains new ones, whether it wraps around or is cleared. So a read begins with
    an end part of the last read, and the lines after the longest such part are new. Without printk's times one case
    cannot be recognised: the first line after a clearing has the same text as the last line before it.
    """

    def __init__(self) -> None:
        self._last: list[bytes] | None = None

    def records(self, text: bytes, now: float) -> list[KernelRecord]:
        """The new lines of ``text``; ``now`` is in seconds of CLOCK_MONOTONIC.

        Lines without a time are dated ``now``. In the first read they are left out: they may be days old, and an old
        fault must not be news each time this process starts.
        """
        complete = text.split(b"\n")[:-1]  # the last line may be incomplete, the first may have lost its beginning
        lines = [line for line in complete if _SYSLOG_LINE.match(line) or _RECORD.match(line)]
        last, self._last = self._last, lines
        if last is None:
            return [record for line in lines if (record := parse_line(line, None))]
        begins = (place for place, line in enumerate(last) if lines and line == lines[0])
        known = next((len(last) - place for place in begins if last[place:] == lines[: len(last) - place]), 0)
        return [record for line in lines[known:] if (record := parse_line(line, now))]


def parse_line(line: bytes, now: float | None) -> KernelRecord | None:
    """A line of syslog(2) or a record of ``/dev/kmsg``; None for any other, and for one without a time or ``now``."""
    if match := _SYSLOG_LINE.match(line):
        at = float(match[2]) if match[2] else now
    elif match := _RECORD.match(line):
        at = int(match[2]) / 1e6
    if match is None or at is None:
        return None
    by_kernel = int(match[1]) >> _FACILITY_BITS == _KERNEL_FACILITY  # lines of a process have another facility
    return KernelRecord(at, match[3].decode("utf-8", "backslashreplace"), by_kernel)


def parse_error(record: KernelRecord) -> KernelError | None:
    """The hardware error in a message; None if there is none."""
    match = _ERROR.search(record.text)
    if match is None:
        return None
    rest = record.text[: match.start()] + " " + record.text[match.end() :]
    serial = _SERIAL.search(rest)
    if serial:
        return KernelError(record.at, match[1].upper(), frozenset(), record.by_kernel, serial[1].lower())
    named = frozenset(DeviceId(int(number)) for number in _DEVICE.findall(rest) if int(number) < MOST_DEVICES)
    return KernelError(record.at, match[1].upper(), named, record.by_kernel)
