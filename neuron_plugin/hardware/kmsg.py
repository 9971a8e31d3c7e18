"""Hardware errors that the Neuron runtime writes into the kernel log.

The runtime has the driver print ``NEURON_HW_ERR=<kind>``. The one documented form goes on with ``nd-id=0 nc-id=0
serial-num=19fcda00f5ff6eb9``: the serial number tells the device. ``nd-id`` does not, as a runtime in a container
counts from the first device that it was given. In a line without a serial number, a device's number is looked for in
every way the driver and its tools write one; a line without any may mean any device.

Lines can be forged. Whatever a process writes into ``/dev/kmsg`` the kernel marks as a user's (its facility is never 0:
``kernel/printk/printk.c``, ``devkmsg_write``), and such a line is not believed unless asked for. A process that may
open a Neuron device can still have the driver print what it likes, under any device's number. What a line may bring
about is for the policy to say. Source: kernel ABI document ``dev-kmsg``; the SDK's troubleshooting guide for the
runtime; patterns of NPD and EKS's monitoring agent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from neuron_plugin.topology import MOST_DEVICES, DeviceId

_RECORD = re.compile(r"(\d{1,10}),\d{1,20},(\d{1,20}),[^;\n]*;(.*)\Z")
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
_RESET = re.compile(r"\bnd\d{1,2}: .*\breset\b")
_KERNEL_FACILITY = 0
_FACILITY_BITS = 3

NO_PROOF = frozenset({"HANG_ON_COLLECTIVES"})
"""Kinds that something other than this machine's hardware may cause; the vendor stopped watching for this one."""


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """One message. ``at`` is in seconds of CLOCK_MONOTONIC; ``by_kernel``: not written by a process."""

    at: float
    text: str
    by_kernel: bool


@dataclass(frozen=True, slots=True)
class KernelError:
    """A hardware error of a ``kind`` such as ``DMA_ERROR``. No ``devices`` and no ``serial_number``: none is named."""

    at: float
    kind: str
    devices: frozenset[DeviceId]
    by_kernel: bool
    serial_number: str = ""

    @property
    def proves(self) -> bool:
        """Whether it names devices and speaks of nothing but hardware."""
        return bool(self.devices or self.serial_number) and self.kind not in NO_PROOF


def parse_record(line: str) -> KernelRecord | None:
    """One line as ``/dev/kmsg`` gives it: ``priority,sequence,microseconds,flags;text``. None for any other line."""
    match = _RECORD.match(line)
    if match is None:
        return None
    return KernelRecord(int(match[2]) / 1e6, match[3], by_kernel=by_kernel(int(match[1])))


def by_kernel(priority: int) -> bool:
    """Whether the kernel itself has written a message of this priority: what a process writes has another facility."""
    return priority >> _FACILITY_BITS == _KERNEL_FACILITY


def parse_error(record: KernelRecord) -> KernelError | None:
    """The hardware error that a message tells of, if it does."""
    match = _ERROR.search(record.text)
    if match is None:
        return None
    rest = record.text[: match.start()] + " " + record.text[match.end() :]
    serial = _SERIAL.search(rest)
    if serial:
        return KernelError(record.at, match[1].upper(), frozenset(), record.by_kernel, serial[1].lower())
    named = frozenset(DeviceId(int(number)) for number in _DEVICE.findall(rest) if int(number) < MOST_DEVICES)
    return KernelError(record.at, match[1].upper(), named, record.by_kernel)


def tells_of_reset(record: KernelRecord) -> bool:
    """Whether the driver says something about a reset, of which there is no other sign than the ``reset`` attribute."""
    return record.by_kernel and _RESET.search(record.text) is not None


class RecordSplitter:
    """Takes what was read, in whatever pieces, and gives records; the dictionary lines after a message are left out."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[KernelRecord]:
        """The records that are complete now."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            record = parse_record(line.decode("utf-8", "backslashreplace"))
            if record:
                yield record

    def drop_rest(self) -> None:
        """Forget half a line: what comes next is not its end."""
        self._rest = b""
