"""The driver's sysfs tree, one attribute at a time: where it lies, what its text means, how reading it can fail.

Nothing is retried or decided here. An attribute can be missing (not yet made, or going), unreadable, or hold a text
that it cannot mean. The parsers are strict where the driver's bytes are known and liberal where they are not published
(``health_status``). They refuse values that hardware cannot have: a core count of 10^9 would later be that many bits.

Layout: ``class/neuron_device/neuronN`` links to ``devices/virtual/neuron_device/neuronN``; the class directory also
holds plain files, so only names of that form are devices. Devices are virtual and have no PCI parent. The paths below
a device are those of drivers before 2.31. Driver 2.31 moved attributes to other directories and kept their names (SDK
2.33's sysfs guide), so an attribute that is missing at its usual path is looked up by its name below the device.
``core_count`` and ``connected_devices`` are root's alone (0400) before driver 2.28, ``reset`` always (0600).
Source of the formats: Neuron driver 2.24.7, 2.25.4.
"""

from __future__ import annotations

import enum
import errno
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import TypeVar

from neuron_plugin.topology import MOST_CORES_PER_DEVICE, MOST_DEVICES, DeviceId

PAGE_BYTES = 4096
"""No sysfs attribute is longer."""

UNHEALTHY_COMPONENTS = "unhealthy_components"

DEVICE_NAME = re.compile(r"neuron(0|[1-9][0-9]{0,3})\Z")
_CORE_NAME = re.compile(r"neuron_core(0|[1-9][0-9]?)\Z")
_CHANGES_IN_HEALTH = re.compile(r"heartbeat|(?<!un)corrected")

_DECIMAL = re.compile(r"[0-9]{1,20}\Z")
_WORD = re.compile(r"[A-Za-z0-9_.+-]{1,64}\Z")
_VERSION = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,9}){1,5})(?:[-+~_][A-Za-z0-9.+~_-]{1,40})?\Z")
_EC2_TYPE = re.compile(r"[a-z][a-z0-9-]{0,40}\.[a-z0-9-]{1,20}\Z")
_ELECTED = re.compile(r"[A-Za-z0-9,_-]{1,64}\Z")
_NO_COMPONENT = frozenset({"", "none", "null", "nil", "na", "n/a", "-", "0", "0x0", "ok", "healthy"})

_DEEPEST = 5
"""How many directories below the device's to search by name; the deepest known file (a core's) is at four."""
_NOT_SEARCHED = re.compile(r"(neuron_core\d+|memory_usage)\Z")
"""A core has attributes of the same names as its device, and counters of memory are half the tree."""
_KERNELS_OWN = frozenset({"power"})
"""Directly below a device: every device of the kernel has it."""

Value = TypeVar("Value")


class SysfsError(Exception):
    """An attribute gave no value: this user may not read it, or the driver failed (EIO). ``path`` is the file."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path} {problem}")
        self.path = path


class AttributeMissingError(SysfsError):
    """The attribute is not there: the driver makes it after the device's ``add``, or the device is going."""


class SysfsFormatError(SysfsError):
    """The attribute's ``text`` cannot be a value of it."""

    def __init__(self, path: Path, text: str, expected: str) -> None:
        super().__init__(path, f"reads {text[:80]!r}, expected {expected}")
        self.text = text


def read_text(path: Path) -> str:
    """The text of one attribute; bytes that are no UTF-8 come back escaped.

    Raises:
        AttributeMissingError: ENOENT, ENOTDIR, ENODEV or ENXIO.
        SysfsError: any other failure.
    """
    try:
        with path.open("rb", buffering=0) as attribute:
            return (attribute.read(PAGE_BYTES) or b"").decode("utf-8", "backslashreplace")
    except OSError as error:
        raise _sysfs_error(path, error) from error


def counts_errors(name: str) -> bool:
    """Whether a file of ``health_status`` changes only when something is wrong; others change on a healthy device."""
    return _CHANGES_IN_HEALTH.search(name) is None


def read_attribute(path: Path, parse: Callable[[str], Value]) -> Value:
    """The value of one attribute.

    Raises:
        SysfsFormatError: ``parse`` refused the text; names the file, the text and what was expected.
        SysfsError: as ``read_text``.
    """
    text = read_text(path)
    try:
        return parse(text)
    except ValueError as error:
        raise SysfsFormatError(path, text, str(error)) from None


@dataclass(frozen=True, slots=True)
class DeviceTree:
    """The attributes of one device, below ``path``. Every method reads, and raises SysfsError."""

    path: Path
    _by_name: dict[Path, Mapping[str, Path]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def core_count(self) -> int:
        """Physical cores."""
        return self._read("core_count", parse_core_count)

    def connected_devices(self) -> frozenset[DeviceId]:
        """Linked devices; all are empty when the driver counts a chip too few. Since driver 2.13.4."""
        return self._read("connected_devices", parse_connected_devices)

    def device_name(self) -> str:
        """The product, such as ``Trainium1``."""
        return self._read("info/architecture/device_name", parse_word)

    def architecture(self) -> str:
        """The device's architecture, such as ``NDv2``."""
        return self._read("info/architecture/arch_type", parse_word)

    def numbers(self) -> tuple[int, int]:
        """Major and minor of the device node."""
        return read_attribute(self.path / "dev", parse_device_numbers)

    def reset(self) -> ResetState:
        """State of the last reset; a reset sends no uevent."""
        return self._read("reset", parse_reset)

    def serial_number(self) -> str:
        """Sixteen hexadecimal digits, or nothing. Not on Inf1."""
        return self._read("info/serial_number", parse_serial_number)

    def hardware_counter(self, name: str) -> int:
        """A counter of ``stats/hardware``, such as ``mem_ecc_uncorrected``. Not on Inf1; since driver 2.14.5."""
        return self._read(f"stats/hardware/{name}", parse_counter)

    def core_error_count(self, core: int, name: str) -> int:
        """How often work on a core ended in an error, such as ``hw_nc_ue_error``."""
        core_path = self._located(f"neuron_core{core}")
        status = core_path / "stats/status"
        counter = status / name
        if not os.path.lexists(status):  # else this driver does not have a counter that is missing in it
            counter = self._names_below(core_path).get(name, counter)
        return read_attribute(counter / "total", parse_counter)

    @property
    def health_status(self) -> Path:
        """The directory that firmware reports in, since driver 2.28; ``events`` waits for changes of its files."""
        return self._located("stats/hardware/health_status")

    def health_status_names(self) -> list[str]:
        """Files of ``health_status``, in order of their names."""
        return sorted(_names(self.health_status))

    def health_status_count(self, name: str) -> int:
        """A counter of ``health_status``."""
        return read_attribute(self.health_status / name, parse_counter)

    def unhealthy_components(self) -> frozenset[str]:
        """Parts that firmware reports broken, such as ``hbm``. Since driver 2.30.2."""
        return self._read(f"stats/hardware/health_status/{UNHEALTHY_COMPONENTS}", parse_components)

    def core_ids(self) -> frozenset[int]:
        """Physical cores that have a directory: the module parameter ``dev_nc_map`` leaves some out."""
        matches = [match for match in map(_CORE_NAME.match, _names(self.path)) if match]
        matches = matches or [match for match in map(_CORE_NAME.match, self._names_below(self.path)) if match]
        return frozenset(int(match[1]) for match in matches)

    def _read(self, usual: str, parse: Callable[[str], Value]) -> Value:
        try:
            return read_attribute(self.path / usual, parse)
        except AttributeMissingError:
            moved = self._located(usual)
            if moved == self.path / usual or os.path.isdir(moved):  # noqa: PTH112 - Path.is_dir raises on EACCES
                raise
            return read_attribute(moved, parse)

    def _located(self, usual: str) -> Path:
        path = self.path / usual
        return path if os.path.lexists(path) else self._names_below(self.path).get(path.name, path)

    def _names_below(self, directory: Path) -> Mapping[str, Path]:
        """As ``by_name``, searched once."""
        if directory not in self._by_name:
            self._by_name[directory] = by_name(directory)
        return self._by_name[directory]


@dataclass(frozen=True, slots=True)
class Sysfs:
    """A sysfs mounted at ``root``: the driver, its devices, and which machine this is."""

    root: Path

    @property
    def class_dir(self) -> Path:
        """Where the driver lists its devices; gone while the module is unloaded."""
        return self.root / "class/neuron_device"

    def device_ids(self) -> list[DeviceId]:
        """Devices the driver has made, ascending.

        Raises:
            SysfsError: the class directory is not there or cannot be listed.
        """
        ids = (int(match[1]) for match in map(DEVICE_NAME.match, _names(self.class_dir)) if match)
        return [DeviceId(device) for device in sorted(ids)]

    def device(self, device: DeviceId) -> DeviceTree:
        """The attributes of ``neuronN``."""
        return DeviceTree(self.class_dir / f"neuron{device}")

    def driver_version(self) -> DriverVersion:
        """Version of the loaded module."""
        return read_attribute(self.root / "module/neuron/version", parse_driver_version)

    def instance_type(self) -> str:
        """EC2 type by DMI, or empty."""
        return read_attribute(self.root / "class/dmi/id/product_name", parse_product_name)

    def elected(self, name: str) -> str:
        """A plain file beside the devices, about the UltraServer, such as ``node_id_4``."""
        return read_attribute(self.class_dir / name, parse_elected)


def by_name(root: Path) -> Mapping[str, Path]:
    """Every file and directory below ``root`` by its name, the least deep of each.

    Links are skipped and cores are not searched. A name that exists twice at one depth is left out: nothing is guessed.
    """
    found: dict[str, Path | None] = {}
    level = [root]
    for depth in range(1, _DEEPEST + 1):
        here: dict[str, Path | None] = {}
        below: list[Path] = []
        for directory in level:
            try:
                entries = list(os.scandir(directory))
            except OSError:
                continue  # gone meanwhile, or closed to us: as good as empty
            for entry in entries:
                if entry.is_symlink() or (depth == 1 and entry.name in _KERNELS_OWN):
                    continue
                here[entry.name] = None if entry.name in here else directory / entry.name
                if entry.is_dir() and not _NOT_SEARCHED.match(entry.name):
                    below.append(directory / entry.name)
        found = here | found
        level = below
    return {name: path for name, path in found.items() if path is not None}


def _names(directory: Path) -> list[str]:
    try:
        return [entry.name for entry in directory.iterdir()]
    except OSError as error:
        raise _sysfs_error(directory, error) from error


def _sysfs_error(path: Path, error: OSError) -> SysfsError:
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR | errno.ENODEV | errno.ENXIO:
            return AttributeMissingError(path, "does not exist")
        case errno.EACCES | errno.EPERM:
            return SysfsError(path, f"may not be read ({error.strerror}): root can")
        case _:
            return SysfsError(path, f"cannot be read: {error.strerror or error}")


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
        pairs = list(zip_longest(self.numbers, numbers, fillvalue=0))
        return [own for own, _ in pairs] >= [other for _, other in pairs]


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

    The exact bytes are unpublished, so commas, blanks and newlines all separate. A word for "none" is no component:
    read as one, it would make every device of the cluster unhealthy.
    """
    names = frozenset(re.split(r"[,\s\0]+", text.strip()))
    names = frozenset(name for name in names if name.lower() not in _NO_COMPONENT)
    if not all(_WORD.match(name) for name in names):
        raise ValueError("component names joined by commas")
    return names


def parse_driver_version(text: str) -> DriverVersion:
    """Dotted numbers of ``/sys/module/neuron/version``; a build may add a suffix, as in ``2.26.5.0-dirty``."""
    version = text.strip()
    match = _VERSION.match(version)
    if match is None:
        raise ValueError("a version such as 2.26.5.0")
    return DriverVersion(version, tuple(int(part) for part in match[1].split(".")))


def parse_elected(text: str) -> str:
    """The result of an UltraServer's election: an id, a node's number or a list of modes; empty for none."""
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
