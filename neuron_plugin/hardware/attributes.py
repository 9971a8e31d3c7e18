"""What the texts of the driver's sysfs attributes mean.

Pure functions from text to value, strict where the driver's bytes are known and liberal where they are not published
(``health_status``). Each raises ValueError with what it had expected; the reader adds file and text. A value outside
what hardware can have is refused here: a core count of 10^9 would later be that many bits, and a name of a page's
length would stand in the node's annotation.
Source of the formats: Neuron driver 2.24.7, 2.25.4.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from neuron_plugin.topology import MOST_CORES_PER_DEVICE, MOST_DEVICES, DeviceId

_DECIMAL = re.compile(r"[0-9]{1,20}\Z")
_WORD = re.compile(r"[A-Za-z0-9_.+-]{1,64}\Z")
_VERSION = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,9}){1,5})(?:[-+~_][A-Za-z0-9.+~_-]{1,40})?\Z")
_EC2_TYPE = re.compile(r"[a-z][a-z0-9-]{0,40}\.[a-z0-9-]{1,20}\Z")
_ELECTED = re.compile(r"[A-Za-z0-9,_-]{1,64}\Z")

_NO_COMPONENT = frozenset({"", "none", "null", "nil", "na", "n/a", "-", "0", "0x0", "ok", "healthy"})


class ResetState(enum.IntEnum):
    """The driver's ``reset`` attribute, cached there: reading it never blocks."""

    RESETTING = 0
    READY = 1
    FAILED = 2


@dataclass(frozen=True, slots=True)
class DriverVersion:
    """A driver version such as ``2.26.5.0-dirty``: its text for people, the numbers it begins with to compare."""

    text: str
    numbers: tuple[int, ...]

    def at_least(self, *numbers: int) -> bool:
        """Whether this version is ``numbers`` or newer; numbers left out count as zero."""
        width = max(len(numbers), len(self.numbers))
        return _padded(self.numbers, width) >= _padded(numbers, width)


def parse_core_count(text: str) -> int:
    """Physical cores of a device. The driver prints no newline here; one is accepted."""
    count = _decimal(text, "a decimal number of cores")
    if not 1 <= count <= MOST_CORES_PER_DEVICE:
        raise ValueError(f"1 to {MOST_CORES_PER_DEVICE} cores")
    return count


def parse_connected_devices(text: str) -> frozenset[DeviceId]:
    """A device's neighbours: decimal ids joined by ", ", then a newline; a newline alone means none.

    A set, because the order differs between products. No text at all counts as none, too: the driver prints nothing
    where the list would take 20 bytes or more.
    """
    stripped = text.removesuffix("\n")
    if not stripped:
        return frozenset()
    expected = 'device ids joined by ", "'
    ids = frozenset(_decimal(part.strip(" "), expected) for part in stripped.split(","))
    if max(ids) >= MOST_DEVICES:
        raise ValueError(f"device ids below {MOST_DEVICES}")
    return frozenset(DeviceId(device) for device in ids)


def parse_reset(text: str) -> ResetState:
    """The state of a device's reset: 0, 1 or 2 and a newline."""
    expected = "0 (resetting), 1 (ready) or 2 (failed)"
    state = _decimal(text, expected)
    if state > ResetState.FAILED:
        raise ValueError(expected)
    return ResetState(state)


def parse_counter(text: str) -> int:
    """A count that fits 64 bits."""
    return _decimal(text, "a decimal count")


def parse_word(text: str) -> str:
    """One word and a newline, as in ``info/architecture``."""
    word = text.removesuffix("\n")
    if not _WORD.match(word):
        raise ValueError("one word")
    return word


def parse_serial_number(text: str) -> str:
    """A serial number of 16 hexadecimal digits, in lower case; a newline alone means firmware gave none."""
    serial = text.removesuffix("\n").lower()
    if serial and not re.match(r"[0-9a-f]{1,32}\Z", serial):
        raise ValueError("hexadecimal digits")
    return serial


def parse_device_numbers(text: str) -> tuple[int, int]:
    """Major and minor of ``dev``: ``243:3`` and a newline."""
    major, _, minor = text.removesuffix("\n").partition(":")
    return _decimal(major, "major:minor"), _decimal(minor, "major:minor")


def parse_components(text: str) -> frozenset[str]:
    """Names out of ``health_status/unhealthy_components``; nothing but blanks means healthy.

    The exact bytes are unpublished, so commas, blanks and newlines all separate, and a word for "none" is no component:
    taken for one it would close every device of the cluster.
    """
    names = frozenset(re.split(r"[,\s\0]+", text.strip()))
    names = frozenset(name for name in names if name.lower() not in _NO_COMPONENT)
    if not all(_WORD.match(name) for name in names):
        raise ValueError("component names joined by commas")
    return names


def parse_driver_version(text: str) -> DriverVersion:
    """Dotted numbers of ``/sys/module/neuron/version``; who builds it may add a suffix, as in ``2.26.5.0-dirty``."""
    version = text.strip()
    match = _VERSION.match(version)
    if match is None:
        raise ValueError("a version such as 2.26.5.0")
    return DriverVersion(version, tuple(int(part) for part in match[1].split(".")))


def parse_elected(text: str) -> str:
    """What the election of an UltraServer has found: an id, a node's number or a list of modes; empty for nothing."""
    found = text.strip()
    if found and not _ELECTED.match(found):
        raise ValueError("an id, a number or a list of modes")
    return found


def parse_product_name(text: str) -> str:
    """The EC2 type out of DMI's ``product_name``, without HyperPod's ``ml.``; empty where it names no EC2 type.

    Never an error: on other machines this file holds whatever the vendor wrote, such as ``HVM domU``.
    """
    name = text.strip().removeprefix("ml.")
    return name if _EC2_TYPE.match(name) else ""


def _decimal(text: str, expected: str) -> int:
    digits = text.removesuffix("\n")
    if not _DECIMAL.match(digits):
        raise ValueError(expected)
    return int(digits)


def _padded(numbers: tuple[int, ...], width: int) -> tuple[int, ...]:
    return numbers + (0,) * (width - len(numbers))
