"""The kernel's ring of messages by syslog(2), for where ``/dev/kmsg`` cannot be opened.

A container opens no device that its device cgroup does not allow, and no container runtime allows ``/dev/kmsg`` (1:11)
to an unprivileged one. syslog(2) needs no device: CAP_SYSLOG is enough, and with that capability the default seccomp
profiles of containerd, CRI-O and Docker let the call through. It has no cursor and cannot be waited for: it gives the
whole ring each time, so what is new is found by comparing. Nothing is ever written or cleared here.

Source: ``kernel/printk/printk.c``, ``do_syslog`` and ``info_print_prefix``.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re

from neuron_plugin.hardware.kmsg import KernelRecord, by_kernel

_READ_ALL, _SIZE_BUFFER = 3, 10

_LINE = re.compile(rb"<(\d{1,10})>(?:\[ *(\d{1,10}\.\d{6})\])?(?:\[ *[TC]\d{1,10}\])? ?(.*)\Z", re.DOTALL)
"""``<priority>[seconds][thread or processor] text``: seconds unless printk's are off, the third if so configured."""


def read_ring() -> bytes:
    """Everything in the ring since somebody cleared it last (``dmesg -c``), oldest first.

    Raises:
        OSError: EPERM without CAP_SYSLOG, ENOSYS where the C library or the kernel has no such call.
    """
    size = _klogctl(_SIZE_BUFFER, None, 0)
    buffer = ctypes.create_string_buffer(size)
    length = _klogctl(_READ_ALL, buffer, size)  # before the buffer is looked at
    return buffer.raw[:length]


class RingNews:
    """Tells what was logged between one sight of the ring and the next.

    A ring only loses its oldest lines and gains new ones, whether it wraps around or is cleared: what follows on the
    longest end of the last sight that this one begins with is new. Where printk's times are off, one case cannot be
    told apart: after a clearing, a line of the very text that was the last before it passes for that one.
    """

    def __init__(self) -> None:
        self._lines: list[bytes] | None = None

    def records(self, ring: bytes, now: float) -> list[KernelRecord]:
        """What is new in ``ring``, at ``now`` in seconds of CLOCK_MONOTONIC.

        Lines without a time are dated ``now``; those of the first sight are left out, as they may be days old, and a
        fault of days ago must not be news each time that this process starts.
        """
        lines = [line for line in ring.split(b"\n") if _LINE.match(line)]  # the first may have lost its beginning
        last, self._lines = self._lines, lines
        if last is None or {_is_dated(last), _is_dated(lines)} == {True, False}:
            return [record for line in lines if (record := _parsed(line, None))]
        return [record for line in _new(last, lines) if (record := _parsed(line, now))]


def _new(last: list[bytes], lines: list[bytes]) -> list[bytes]:
    start = -1
    while lines and last:
        try:
            start = last.index(lines[0], start + 1)
        except ValueError:
            return lines
        if last[start:] == lines[: len(last) - start]:
            return lines[len(last) - start :]
    return lines


def _is_dated(lines: list[bytes]) -> bool | None:
    """Whether the newest line has a time: that can be switched while the kernel runs. None without a line."""
    match = _LINE.match(lines[-1]) if lines else None
    return match[2] is not None if match else None


def _parsed(line: bytes, now: float | None) -> KernelRecord | None:
    match = _LINE.match(line)
    if match is None:
        return None
    at = float(match[2]) if match[2] else now
    text = match[3].decode("utf-8", "backslashreplace")
    return None if at is None else KernelRecord(at, text, by_kernel=by_kernel(int(match[1])))


def _klogctl(action: int, buffer: ctypes.Array[ctypes.c_char] | None, size: int) -> int:
    try:
        call = ctypes.CDLL(None, use_errno=True).klogctl
    except AttributeError:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None
    result = int(call(action, buffer, size))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
