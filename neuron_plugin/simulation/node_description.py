"""What a simulated machine is and which faults it has, as one small file in its directory.

The tree follows from the description alone, so a fault is a change of the description, and another process can make
one without knowing who wrote the machine.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from neuron_plugin.allocation import format_ids
from neuron_plugin.hardware import GENERATIONS, DriverVersion, Generation, parse_driver_version

DESCRIPTION_FILE = "node.json"

NEWEST_DRIVER = "2.30.2.0"
NEWEST_DRIVER_FOR_INF1 = "2.24.7.0"
_WITHOUT_INF1 = (2, 25)
_WITH_TRN3 = (2, 25, 4)


class SimulationError(Exception):
    """A simulated machine cannot be as asked, or is not there; says what to do."""


class SimulatedDevice(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The state of one device.

    ``core_errors`` are counts by physical core and the driver's name. ``overrides`` are attributes by path below the
    device; None: the file is missing.
    """

    loaded: bool = True
    node: bool = True
    reset: int = 1
    sram_ecc: int = 0
    memory_ecc: int = 0
    repairable_ecc: int = 0
    unhealthy_components: tuple[str, ...] = ()
    error_events: int = 0
    core_errors: dict[int, dict[str, int]] = {}
    overrides: dict[str, str | None] = {}


class NodeDescription(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A simulated machine. ``devices`` holds those that are not as new; ``missing`` chips never came up at boot."""

    instance_type: str
    device_name: str
    device_count: int
    driver_version: str
    logical_core_size: int | None = None
    missing: tuple[int, ...] = ()
    char_nodes: bool = False
    major: int = 243
    usage_counters: bool = True
    driver_loaded: bool = True
    devices: dict[int, SimulatedDevice] = {}

    @property
    def generation(self) -> Generation:
        """The product of its devices."""
        return GENERATIONS[self.device_name]

    @property
    def driver(self) -> DriverVersion:
        """The driver's version, comparable."""
        return parse_driver_version(self.driver_version)

    @property
    def chips(self) -> tuple[int, ...]:
        """Devices that the machine has."""
        return tuple(device for device in range(self.device_count) if device not in self.missing)

    @property
    def in_words(self) -> str:
        """What devices there are: a machine that misses some has the others under their own numbers."""
        last = self.device_count - 1
        nominal = f"devices 0 to {last}" if last else "device 0"
        without = f" without {format_ids(self.missing)}" if self.missing else ""
        return f"{self.instance_type} has {nominal}{without}"

    @property
    def loaded(self) -> tuple[int, ...]:
        """Devices that the driver lists now."""
        return tuple(device for device in self.chips if self.driver_loaded and self.device(device).loaded)

    def device(self, device: int) -> SimulatedDevice:
        """State of one device."""
        return self.devices.get(device, _AS_NEW)


_AS_NEW = SimulatedDevice()


def check(description: NodeDescription) -> None:
    """Refuse what no real machine could be.

    Raises:
        SimulationError: names the value, what was expected and what to do.
    """
    try:
        driver = description.driver
    except ValueError as error:
        raise SimulationError(f"driver version {description.driver_version!r}: expected {error}") from None
    if description.device_name == "Inferentia" and driver.at_least(*_WITHOUT_INF1):
        raise SimulationError(f"driver {driver.text} has no Inf1 any more: use {NEWEST_DRIVER_FOR_INF1} or older")
    if description.device_name == "Trainium3" and not driver.at_least(*_WITH_TRN3):
        raise SimulationError(f"driver {driver.text} does not know Trn3 yet: use 2.25.4 or newer")
    strangers = sorted(set(description.missing) - set(range(description.device_count)))
    if strangers:
        last = description.device_count - 1
        raise SimulationError(f"missing device {strangers[0]}: {description.instance_type} has devices 0 to {last}")
    if description.logical_core_size is not None and description.logical_core_size < 1:
        raise SimulationError(f"logical core size {description.logical_core_size}: expected 1 or more")


def read_description(root: Path) -> NodeDescription:
    """The description of the machine in ``root``.

    Raises:
        SimulationError: there is none, or it is not one of ours.
    """
    path = root / DESCRIPTION_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=NodeDescription)
    except OSError as error:
        raise SimulationError(f"{root} holds no simulated node ({error.strerror}): write one there first") from error
    except msgspec.DecodeError as error:
        raise SimulationError(f"{path} does not describe a simulated node: {error}") from error
