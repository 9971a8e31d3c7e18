"""The attributes of the driver's sysfs tree: paths, formats, and errors.

Nothing is retried or decided here. An attribute can be missing (not made yet, or being removed), unreadable, or
malformed. The parsers are strict where the driver's format is known and liberal where it is unpublished
(``health_status``). They refuse values that hardware cannot have: a core count of 10^9 would later become so many bits.

Layout: ``class/neuron_device/neuronN`` links to ``devices/virtual/neuron_device/neuronN``; the class directory also
contains plain files, so only names of that form are devices. Devices are virtual and have no PCI parent. The paths
below a device here are of drivers before 2.31. Driver 2.31 moved attributes to other directories and kept their names
(SDK 2.33's sysfs guide). So an attribute that is missing at its usual path is looked up by its name below the device.
Only root can read ``core_count`` and ``connected_devices`` before driver 2.28 (0400), and ``reset`` with any driver
(0600). Source of the formats: Neuron driver 2.24.7, 2.25.4.
"""

from __future__ import annotations

import enum
import errno
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import TypeVar

from neuron_plugin.topology import MOST_CORES_PER_DEVICE, MOST_DEVICES, DeviceId

PAGE_BYTES = 4096
"""The longest sysfs attribute."""

HEALTH_STATUS = "stats/hardware/health_status"
"""The directory of firmware's reports, since driver 2.28."""
UNHEALTHY_COMPONENTS = "unhealthy_components"

DEVICE_NAME = re.compile(r"neuron(0|[1-9][0-9]{0,3})\Z")
_CHANGES_IN_HEALTH = re.compile(r"heartbeat|(?<!un)corrected")

_DECIMAL = re.compile(r"[0-9]{1,20}\Z")
_WORD = re.compile(r"[A-Za-z0-9_.+-]{1,64}\Z")
_SERIAL = re.compile(r"([0-9a-f]{1,32})?\Z")
_VERSION = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,9}){1,5})(?:[-+~_][A-Za-z0-9.+~_-]{1,40})?\Z")
_EC2_TYPE = re.compile(r"[a-z][a-z0-9-]{0,40}\.[a-z0-9-]{1,20}\Z")
_ELECTED = re.compile(r"([A-Za-z0-9,_-]{1,64})?\Z")
_NO_COMPONENT = frozenset({"", "none", "null", "nil", "na", "n/a", "-", "0", "0x0", "ok", "healthy"})

_NOT_SEARCHED = re.compile(r"(neuron_core\d+|memory_usage|power)\Z")
"""Cores have attributes with the same names as their device, memory counters are half the tree, power is the
kernel's."""

SysfsValue = TypeVar("SysfsValue")


class SysfsError(Exception):
    """An attribute at ``path`` gave no value.

    ``missing``: it does not exist: the driver makes it after the device's ``add``, or the device is being removed.
    ``empty``: it exists without text, as for a moment on a new device. Otherwise this user may not read it, the driver
    failed (EIO), or the text is malformed.
    """

    def __init__(self, path: Path, problem: str, *, missing: bool = False, empty: bool = False) -> None:
        super().__init__(f"{path} {problem}")
        self.path = path
        self.missing = missing
        self.empty = empty


def read_text(path: Path) -> str:
    """The text of one attribute; bytes that are no UTF-8 are escaped.

    Raises:
        SysfsError: missing with ENOENT, ENOTDIR, ENODEV or ENXIO.
    """
    try:
        with path.open("rb", buffering=0) as attribute:
            return (attribute.read(PAGE_BYTES) or b"").decode("utf-8", "backslashreplace")
    except OSError as error:
        raise _sysfs_error(path, error) from error


def read_attribute(path: Path, parse: Callable[[str], SysfsValue]) -> SysfsValue:
    """The value of one attribute.

    Raises:
        SysfsError: as ``read_text``, or ``parse`` refused the text; it then names the expected value.
    """
    text = read_text(path)
    try:
        return parse(text)
    except ValueError as error:
        problem = f"reads {text[:80]!r}, expected {error}"
        raise SysfsError(path, problem, empty=not text.strip("\n")) from None


def read_or(read: Callable[[], SysfsValue], default: SysfsValue, problems: list[str]) -> SysfsValue:
    """The result of ``read``, or ``default`` on an error; ``problems`` gets errors of attributes that exist."""
    try:
        return read()
    except SysfsError as error:
        if not error.missing:
            problems.append(str(error))
        return default


def names_in(directory: Path) -> list[str]:
    """The names in a directory, in order.

    Raises:
        SysfsError: as ``read_text``.
    """
    try:
        return sorted(entry.name for entry in directory.iterdir())
    except OSError as error:
        raise _sysfs_error(directory, error) from error


def counts_errors(name: str) -> bool:
    """Whether a file of ``health_status`` changes only if something is wrong; others change on a healthy device."""
    return _CHANGES_IN_HEALTH.search(name) is None


@dataclass(frozen=True, slots=True)
class DeviceTree:
    """The attributes of one device, below ``path``. One that is missing at its usual path is looked up by its name."""

    path: Path
    _by_name: dict[str, Path] = field(default_factory=dict, init=False, repr=False, compare=False)

    def read(self, usual: str, parse: Callable[[str], SysfsValue]) -> SysfsValue:
        """The value of the attribute whose usual path is ``usual``, such as ``info/serial_number``.

        Raises:
            SysfsError: it has no value; names the usual path if the attribute is not found.
        """
        try:
            return read_attribute(self.path / usual, parse)
        except SysfsError as error:
            moved = self.located(usual)
            if not error.missing or moved == self.path / usual or os.path.isdir(moved):  # noqa: PTH112 - EACCES
                raise
            return read_attribute(moved, parse)

    def located(self, usual: str) -> Path:
        """The real path of the file or directory whose usual path is ``usual``; that path if it is not found."""
        path = self.path / usual
        if os.path.lexists(path):
            return path
        if not self._by_name:  # searched once
            self._by_name.update(by_name(self.path))
        return self._by_name.get(path.name, path)


def by_name(root: Path) -> dict[str, Path]:
    """Every file and directory below ``root`` by its name; ambiguous names are left out."""
    candidates: dict[str, list[str]] = {}
    for directory, directories, files in os.walk(root):  # links are not followed; unreadable directories are empty
        for name in (*directories, *files):
            candidates.setdefault(name, []).append(directory)
        directories[:] = [name for name in directories if not _NOT_SEARCHED.match(name)]
    return {name: Path(places[0], name) for name, places in candidates.items() if len(places) == 1}


@dataclass(frozen=True, slots=True)
class Sysfs:
    """The sysfs mounted at ``root``: the driver, its devices, and the machine's type. Reading raises SysfsError."""

    root: Path

    @property
    def class_dir(self) -> Path:
        """The directory where the driver lists its devices; missing while the module is unloaded."""
        return self.root / "class/neuron_device"

    def device_ids(self) -> list[DeviceId]:
        """Devices the driver has made, ascending."""
        return sorted(DeviceId(int(match[1])) for match in map(DEVICE_NAME.match, names_in(self.class_dir)) if match)

    def device(self, device: DeviceId) -> DeviceTree:
        """The attributes of ``neuronN``."""
        return DeviceTree(self.class_dir / f"neuron{device}")

    def numbers(self, device: DeviceId) -> tuple[int, int]:
        """Major and minor of the device node."""
        return read_attribute(self.class_dir / f"neuron{device}/dev", parse_device_numbers)

    def driver_version(self) -> DriverVersion:
        """Version of the loaded module."""
        return read_attribute(self.root / "module/neuron/version", parse_driver_version)

    def instance_type(self) -> str:
        """EC2 type by DMI, or empty."""
        return read_attribute(self.root / "class/dmi/id/product_name", parse_product_name)


def _sysfs_error(path: Path, error: OSError) -> SysfsError:
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR | errno.ENODEV | errno.ENXIO:
            return SysfsError(path, "does not exist", missing=True)
        case errno.EACCES | errno.EPERM:
            return SysfsError(path, f"may not be read ({error.strerror}): root can")
        case _:
            return SysfsError(path, f"cannot be read: {error.strerror or error}")


class ResetState(enum.IntEnum):
    """The driver's ``reset`` attribute. The driver caches it, so reading never blocks."""

    RESETTING = 0
    READY = 1
    FAILED = 2


@dataclass(frozen=True, slots=True)
class DriverVersion:
    """A driver version such as ``2.26.5.0-dirty``: its text for people, its leading numbers to compare."""

    text: str
    numbers: tuple[int, ...]

    def at_least(self, *numbers: int) -> bool:
        """Whether this version is ``numbers`` or newer; omitted numbers count as zero."""
        pairs = list(zip_longest(self.numbers, numbers, fillvalue=0))
        return [own for own, _ in pairs] >= [other for _, other in pairs]


def parse_core_count(text: str) -> int:
    """Physical cores of a device. The driver prints no newline; one is accepted."""
    count = _decimal(text, "a decimal number of cores")
    if not 1 <= count <= MOST_CORES_PER_DEVICE:
        raise ValueError(f"1 to {MOST_CORES_PER_DEVICE} cores")
    return count


def parse_connected_devices(text: str) -> frozenset[DeviceId]:
    """A device's neighbours: decimal ids joined by ", ", then a newline; a newline alone means none.

    A set, because the order differs between products. An empty text means none, too: the driver prints nothing if the
    list would take 20 bytes or more. All lists are empty if the driver counts a chip too few.
    """
    stripped = text.removesuffix("\n")
    if not stripped:
        return frozenset()
    ids = frozenset(
        DeviceId(_decimal(number.strip(" "), 'device ids joined by ", "')) for number in stripped.split(",")
    )
    if max(ids) >= MOST_DEVICES:
        raise ValueError(f"device ids below {MOST_DEVICES}")
    return ids


def parse_reset(text: str) -> ResetState:
    """The state of a device's reset: 0, 1 or 2 and a newline."""
    try:
        return ResetState(_decimal(text, ""))
    except ValueError:
        raise ValueError("0 (resetting), 1 (ready) or 2 (failed)") from None


def parse_counter(text: str) -> int:
    """A count that fits 64 bits."""
    return _decimal(text, "a decimal count")


def parse_word(text: str) -> str:
    """One word and a newline, as in ``info/architecture``."""
    return _matching(_WORD, text.removesuffix("\n"), "one word")


def parse_serial_number(text: str) -> str:
    """A serial number of 16 hexadecimal digits, in lower case; a newline alone means that firmware has none."""
    return _matching(_SERIAL, text.removesuffix("\n").lower(), "hexadecimal digits")


def parse_device_numbers(text: str) -> tuple[int, int]:
    """Major and minor of ``dev``: ``243:3`` and a newline."""
    major, _, minor = text.removesuffix("\n").partition(":")
    return _decimal(major, "major:minor"), _decimal(minor, "major:minor")


def parse_components(text: str) -> frozenset[str]:
    """Names in ``health_status/unhealthy_components``; only blanks means healthy.

    The format is unpublished, so commas, blanks and newlines all separate names. A word for "none" is no component:
    otherwise every device of the cluster would be unhealthy.
    """
    names = [name for name in re.split(r"[,\s\0]+", text) if name.lower() not in _NO_COMPONENT]
    return frozenset(_matching(_WORD, name, "component names joined by commas") for name in names)


def parse_driver_version(text: str) -> DriverVersion:
    """Dotted numbers of ``/sys/module/neuron/version``; a build may add a suffix, as in ``2.26.5.0-dirty``."""
    version = text.strip()
    match = _VERSION.match(version)
    if match is None:
        raise ValueError("a version such as 2.26.5.0")
    return DriverVersion(version, tuple(int(number) for number in match[1].split(".")))


def parse_elected(text: str) -> str:
    """The result of an UltraServer's election: an id, a node's number or a list of modes; empty for none."""
    return _matching(_ELECTED, text.strip(), "an id, a number or a list of modes")


def parse_product_name(text: str) -> str:
    """The EC2 type in DMI's ``product_name``, without HyperPod's ``ml.``; empty if it names no EC2 type.

    Never an error: on other machines this file holds any text of the vendor, such as ``HVM domU``.
    """
    name = text.strip().removeprefix("ml.")
    return name if _EC2_TYPE.match(name) else ""


def _decimal(text: str, expected: str) -> int:
    return int(_matching(_DECIMAL, text.removesuffix("\n"), expected))


def _matching(pattern: re.Pattern[str], text: str, expected: str) -> str:
    if not pattern.match(text):
        raise ValueError(expected)
    return text
