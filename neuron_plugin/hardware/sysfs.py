"""The driver's sysfs tree, one attribute at a time.

Where each attribute lies and which failure means what: an attribute that is not there (yet, or no more), one that
may not be read, one that fails, one that reads as nonsense. Nothing is retried or decided here.

Layout: ``class/neuron_device/neuronN`` links to ``devices/virtual/neuron_device/neuronN``; the class directory holds
plain files, too, so only names of that form count. Devices are virtual: there is no PCI parent to ask. The paths below
a device are those of drivers before 2.31; what is not there is looked for by its name (``relocated``).
``core_count`` and ``connected_devices`` are root's alone (0400) before driver 2.28, ``reset`` always (0600).
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from neuron_plugin.hardware.attributes import (
    DriverVersion,
    ResetState,
    parse_components,
    parse_connected_devices,
    parse_core_count,
    parse_counter,
    parse_device_numbers,
    parse_driver_version,
    parse_elected,
    parse_product_name,
    parse_reset,
    parse_serial_number,
    parse_word,
)
from neuron_plugin.hardware.relocated import by_name
from neuron_plugin.topology import DeviceId

PAGE_BYTES = 4096
"""No sysfs attribute is longer; what is, is none."""

UNHEALTHY_COMPONENTS = "unhealthy_components"

_CHANGES_IN_HEALTH = re.compile(r"heartbeat|(?<!un)corrected")

DEVICE_NAME = re.compile(r"neuron(0|[1-9][0-9]{0,3})\Z")
_CORE_NAME = re.compile(r"neuron_core(0|[1-9][0-9]?)\Z")

Value = TypeVar("Value")


class SysfsError(Exception):
    """An attribute gave no value. ``path`` is the file."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path} {problem}")
        self.path = path


class AttributeMissingError(SysfsError):
    """The attribute is not there: the driver makes it after the device's ``add``, or the device is going."""


class AttributeDeniedError(SysfsError):
    """The attribute may not be read by this user: run as root, or with CAP_DAC_READ_SEARCH."""


class AttributeReadError(SysfsError):
    """The driver failed while it was asked, as with EIO."""


class SysfsFormatError(SysfsError):
    """The attribute reads as something that it cannot mean; ``text`` is what it read."""

    def __init__(self, path: Path, text: str, expected: str) -> None:
        super().__init__(path, f"reads {text[:80]!r}, expected {expected}")
        self.text = text


def read_text(path: Path) -> str:
    """The text of one attribute; bytes that are no UTF-8 come back escaped.

    Raises:
        AttributeMissingError: ENOENT, ENOTDIR, ENODEV or ENXIO.
        AttributeDeniedError: EACCES or EPERM.
        AttributeReadError: any other failure.
    """
    try:
        with path.open("rb", buffering=0) as attribute:
            return (attribute.read(PAGE_BYTES) or b"").decode("utf-8", "backslashreplace")
    except OSError as error:
        raise _classified(path, error) from error


def tells_of_errors(name: str) -> bool:
    """Whether a file of ``health_status`` changes only when something is wrong; others change on a sound device."""
    return _CHANGES_IN_HEALTH.search(name) is None


def read_attribute(path: Path, parse: Callable[[str], Value]) -> Value:
    """The value of one attribute.

    Raises:
        SysfsFormatError: ``parse`` refused the text; names file, text and what was expected.
        SysfsError: as ``read_text``.
    """
    text = read_text(path)
    try:
        return parse(text)
    except ValueError as error:
        raise SysfsFormatError(path, text, str(error)) from None


@dataclass(frozen=True, slots=True)
class DeviceTree:
    """The attributes of one device, below ``path``, as one look finds them. Every method raises SysfsError."""

    path: Path
    _found: dict[Path, Mapping[str, Path]] = field(default_factory=dict, init=False, repr=False, compare=False)

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
        core_path = self._usual_or_found(f"neuron_core{core}")
        status = core_path / "stats/status"
        there = os.path.lexists(status)  # a counter that is not in it, this driver does not have
        counter = status / name if there else self._by_name(core_path).get(name, status / name)
        return read_attribute(counter / "total", parse_counter)

    @property
    def health_status(self) -> Path:
        """Directory of what firmware says itself, since driver 2.28; its files can be waited for, see ``notices``."""
        return self._usual_or_found("stats/hardware/health_status")

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
        matches = matches or [match for match in map(_CORE_NAME.match, self._by_name(self.path)) if match]
        return frozenset(int(match[1]) for match in matches)

    def _read(self, usual: str, parse: Callable[[str], Value]) -> Value:
        try:
            return read_attribute(self.path / usual, parse)
        except AttributeMissingError:
            moved = self._usual_or_found(usual)
            if moved == self.path / usual or os.path.isdir(moved):  # noqa: PTH112 - Path.is_dir raises on EACCES
                raise
            return read_attribute(moved, parse)

    def _usual_or_found(self, usual: str) -> Path:
        path = self.path / usual
        return path if os.path.lexists(path) else self._by_name(self.path).get(path.name, path)

    def _by_name(self, directory: Path) -> Mapping[str, Path]:
        if directory not in self._found:
            self._found[directory] = by_name(directory)
        return self._found[directory]


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
        """What a plain file beside the devices says of the UltraServer, such as ``node_id_4``."""
        return read_attribute(self.class_dir / name, parse_elected)


def _names(directory: Path) -> list[str]:
    try:
        return [entry.name for entry in directory.iterdir()]
    except OSError as error:
        raise _classified(directory, error) from error


def _classified(path: Path, error: OSError) -> SysfsError:
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR | errno.ENODEV | errno.ENXIO:
            return AttributeMissingError(path, "does not exist")
        case errno.EACCES | errno.EPERM:
            return AttributeDeniedError(path, f"may not be read ({error.strerror}): root can")
        case _:
            return AttributeReadError(path, f"cannot be read: {error.strerror or error}")
