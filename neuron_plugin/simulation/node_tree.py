"""The description of a simulated machine with its faults, and the files that the driver makes for it. No I/O.

The files follow from the description alone, so a fault is a change of the description, and any process can make one.
Sources: Neuron driver 2.24.7 and 2.25.4 (names, formats, modes), SDK documentation to 2.32 for later drivers, and
captures of inf1.6xlarge, inf2.24xlarge and trn2.48xlarge. The files below ``health_status`` are unpublished: a
comma-separated line and a counter ``hw_error_events`` are assumed. The kernel's own ``power/*`` files are omitted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

import msgspec

from neuron_plugin.allocation.resources import format_ids
from neuron_plugin.hardware import (
    GENERATIONS,
    SIMULATED_MARKER,
    DriverVersion,
    Generation,
    MachinePaths,
    parse_driver_version,
)

NEWEST_DRIVER = "2.30.2.0"
NEWEST_DRIVER_FOR_INF1 = "2.24.7.0"
DESCRIPTION_FILE = "node.json"
KMSG = "kmsg"
_MAJOR = 243
"""Major number of the device nodes."""
_WITHOUT_INF1 = (2, 25)
_WITH_TRN3 = (2, 25, 4)


class SimulationError(Exception):
    """A simulated machine is impossible or does not exist. The text says what to do."""


class SimulatedDevice(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The state of a device.

    ``core_errors`` are counts by physical core and counter name. ``overrides`` are attribute texts by path below the
    device; None means that the file is missing. ``busy_percent`` None means busy if a pod has the device.
    ``reset_failures`` are counted on each core.
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
    busy_percent: int | None = None
    reset_failures: int = 0
    overrides: dict[str, str | None] = {}


class NodeDescription(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A simulated machine. ``devices`` holds the devices with a fault. See `write_node` for the options."""

    instance_type: str
    device_name: str
    device_count: int
    driver_version: str
    logical_core_size: int | None = None
    missing: tuple[int, ...] = ()
    char_nodes: bool = False
    usage_counters: bool = True
    work_counters: bool = False
    driver_loaded: bool = True
    ultraserver: dict[str, str] = {}
    devices: dict[int, SimulatedDevice] = {}

    @property
    def generation(self) -> Generation:
        """The generation of its devices."""
        return GENERATIONS[self.device_name]

    @property
    def driver(self) -> DriverVersion:
        """The driver version."""
        return parse_driver_version(self.driver_version)

    @property
    def chips(self) -> tuple[int, ...]:
        """Devices that came up at boot."""
        return tuple(device for device in range(self.device_count) if device not in self.missing)

    @property
    def in_words(self) -> str:
        """A text that names the machine's devices."""
        last = self.device_count - 1
        nominal = f"devices 0 to {last}" if last else "device 0"
        without = f" without {format_ids(self.missing)}" if self.missing else ""
        return f"{self.instance_type} has {nominal}{without}"

    @property
    def loaded(self) -> tuple[int, ...]:
        """Devices that the driver lists."""
        return tuple(device for device in self.chips if self.driver_loaded and self.device(device).loaded)

    def device(self, device: int) -> SimulatedDevice:
        """The state of a device."""
        return self.devices.get(device, _AS_NEW)


_AS_NEW = SimulatedDevice()


def check(description: NodeDescription) -> None:
    """Check that a real machine could be like this.

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
    unknown = sorted(set(description.missing) - set(range(description.device_count)))
    if unknown:
        last = description.device_count - 1
        raise SimulationError(f"missing device {unknown[0]}: {description.instance_type} has devices 0 to {last}")
    if description.logical_core_size is not None and description.logical_core_size < 1:
        raise SimulationError(f"logical core size {description.logical_core_size}: expected 1 or more")


# Files.

_CONNECTED_DEVICES = (2, 13, 4)
_ECC_COUNTERS = (2, 14, 5)
_POWER = (2, 21, 37)
UNHEALTHY_COMPONENTS = (2, 30, 2)
HEALTH_STATUS = (2, 28)
_READABLE_BY_ALL = (2, 28)

_HOST_MEMORY = (
    *("dma_buffers", "tensors", "constants", "application_memory"),
    *("driver_memory", "notifications", "dma_rings", "uncategorized"),
)
_DEVICE_MEMORY = (
    *("model_code", "tensors", "constants", "model_shared_scratchpad", "runtime_memory", "driver_memory"),
    *("collectives", "nonshared_scratchpad", "notifications", "dma_rings", "uncategorized"),
)
_STATUS = (
    *("success", "failure", "timeout", "exec_bad_input", "hw_error", "execute_completed_with_error"),
    *("execute_completed_with_num_error", "generic_error", "resource_error", "resource_nc_error"),
    *("execute_failed_to_queue", "invalid_error", "unsupported_neff_version", "oob_error", "hw_collectives_error"),
    *("hw_hbm_ue_error", "hw_nc_ue_error", "hw_dma_abort_error", "execute_sw_nq_overflow"),
    *("execute_sw_semaphore_error", "execute_sw_event_error", "execute_sw_psum_collision"),
    *("execute_sw_sequencer_fatal", "hw_repairable_hbm_ue_error"),
)
_SWITCHED_FAMILIES = frozenset({"trn2es", "trn3s", "trn3s-es", "trn3-dev0", "trn3-dev1"})
"""Types with a switch between devices (Trn3pds), which have other class attributes (driver 2.27.4)."""
_OTHER = ("model_load_count", "reset_req_count", "reset_fail_count", "inference_count", "flop_count", "nc_time_in_use")
_COUNTER = ("total", "present")
TIME_IN_USE, DEVICE_MEMORY = "other_info/nc_time_in_use", "memory_usage/device_mem"
RESET_FAILURES = "other_info/reset_fail_count"
WORK_COUNTERS = (TIME_IN_USE, DEVICE_MEMORY, RESET_FAILURES)
LIVE_TIME = (2, 30, 2)
"""Older drivers add a process's time only when it ends (release notes of SDK 2.32)."""
_MEMORY_COUNTER = ("total", "present", "peak")


@dataclass(frozen=True, slots=True)
class File:
    """Content and mode of a file."""

    text: str
    mode: int = 0o644


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link."""

    target: str


@dataclass(frozen=True, slots=True)
class CharNode:
    """A character device of mode 0666."""

    major: int
    minor: int


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory that appears and disappears as a whole. ``links`` are link targets by name."""

    files: Mapping[str, File]
    links: Mapping[str, str]


Entry: TypeAlias = File | Link | CharNode | Directory


def entries(root: Path, description: NodeDescription) -> dict[Path, Entry]:
    """All entries below ``root``, in the driver's order: module, device, device node. The description is last."""
    paths, found = MachinePaths.under(root), dict[Path, Entry]()
    class_dir, device_dir = (paths.sysfs / where / "neuron_device" for where in ("class", "devices/virtual"))
    found[paths.sysfs / "devices/virtual/dmi/id/product_name"] = File(description.instance_type + "\n", 0o444)
    found[paths.sysfs / "class/dmi/id"] = Link("../../devices/virtual/dmi/id")
    found[paths.dev / SIMULATED_MARKER] = File("plain files stand for device nodes here\n")
    found[paths.dev / KMSG] = File("")
    if description.driver_loaded:
        version = File(description.driver_version + "\n", 0o444)
        found[paths.sysfs / "module/neuron"] = Directory({"version": version}, {})
        found[device_dir] = Directory({}, {})
        found[class_dir] = Directory(class_files(description), {})
    for device in description.loaded:
        name, subsystem = f"neuron{device}", {"subsystem": "../../../../class/neuron_device"}
        found[device_dir / name] = Directory(device_files(description, device), subsystem)
        found[class_dir / name] = Link(f"../../devices/virtual/neuron_device/{name}")
        if description.device(device).node:
            found[paths.dev / name] = CharNode(_MAJOR, device) if description.char_nodes else File("", 0o666)
    if description.logical_core_size is not None:
        found[paths.logical_nc_config] = File(f"NEURON_LOGICAL_NC_CONFIG={description.logical_core_size}\n")
    described = msgspec.json.format(msgspec.json.encode(description), indent=2).decode()
    found[root / DESCRIPTION_FILE] = File(described + "\n")
    return found


def device_files(description: NodeDescription, device: int) -> dict[str, File]:
    """The files of a device, by path below its directory."""
    state = description.device(device)
    files = {**_identity(description, device, state), **_hardware(description, state)}
    if description.usage_counters:
        files.update(_memory("stats/memory_usage/host_mem", _HOST_MEMORY))
    arch = description.generation.core_arch
    for core in range(description.generation.cores_per_device):
        files[f"neuron_core{core}/info/architecture/arch_type"] = File(arch + "\n")
        if description.usage_counters:
            files.update(_core_counters(core, tensor_engine=arch != "NCv1"))
            for name, count in state.core_errors.get(core, {}).items():
                files |= {f"neuron_core{core}/stats/status/{name}/{figure}": File(f"{count}\n") for figure in _COUNTER}
        elif description.work_counters:
            files |= {work_file(core, name): File("0\n") for name in WORK_COUNTERS}
        if (failed := work_file(core, RESET_FAILURES)) in files:
            files[failed] = File(f"{state.reset_failures}\n")
    for path, text in state.overrides.items():
        if text is None:
            files.pop(path, None)
        else:
            files[path] = File(text, files[path].mode if path in files else 0o644)
    return files


def work_file(core: int, name: str) -> str:
    """The path of one of ``WORK_COUNTERS`` of a core, below its device."""
    return f"neuron_core{core}/stats/{name}/total"


def class_files(description: NodeDescription) -> dict[str, File]:
    """The class attributes, which say whether the machine is in an UltraServer."""
    if description.instance_type.partition(".")[0] in _SWITCHED_FAMILIES:
        ids = {"node_id": "-1", "node_cnt": "-1", "reservation_id": "0" * 16}
    else:
        ids = dict.fromkeys(("node_id_2", "node_id_4"), "-1") | dict.fromkeys(("server_id_2", "server_id_4"), "0" * 16)
    said = {**ids, "ultraserver_mode": "", **description.ultraserver}
    return {name: File(f"{text}\n", 0o444) for name, text in said.items()}


def serial_number(device: int) -> str:
    """An invented serial number, always the same for a device."""
    return f"00000b1c2d3e{0x4F50 + device:04x}"


def _identity(description: NodeDescription, device: int, state: SimulatedDevice) -> dict[str, File]:
    generation, driver = description.generation, description.driver
    mode = 0o444 if driver.at_least(*_READABLE_BY_ALL) else 0o400
    files = {
        "dev": File(f"{_MAJOR}:{device}\n", 0o444),
        "uevent": File(f"MAJOR={_MAJOR}\nMINOR={device}\nDEVNAME=neuron{device}\n"),
        "core_count": File(str(generation.cores_per_device), mode),
        "reset": File(f"{state.reset}\n", 0o600),
        "info/notify_delay": File("-1\n"),
        "info/architecture/arch_type": File(generation.device_arch + "\n"),
        "info/architecture/instance_type": File(generation.family + "\n"),
        "info/architecture/device_name": File(generation.device_name + "\n"),
    }
    if driver.at_least(*_CONNECTED_DEVICES):
        text = connected_devices_text(generation.device_name, device, description.loaded, description.device_count)
        files["connected_devices"] = File(text, mode)
    if generation.device_arch != "NDv1":
        files["info/serial_number"] = File(serial_number(device) + "\n")
    return files


def _hardware(description: NodeDescription, state: SimulatedDevice) -> dict[str, File]:
    driver, files = description.driver, dict[str, File]()
    if driver.at_least(*_POWER):
        files["stats/power/utilization"] = File("POWER_STATUS_VALID,1789180860,0.00,0.00,0.00\n")
    if description.generation.device_arch == "NDv1":
        return files
    if driver.at_least(*_ECC_COUNTERS):
        files["stats/hardware/sram_ecc_uncorrected"] = File(f"{state.sram_ecc}\n")
        files["stats/hardware/mem_ecc_uncorrected"] = File(f"{state.memory_ecc}\n")
        files["stats/hardware/mem_ecc_repairable_uncorrected"] = File(f"{state.repairable_ecc}\n")
    if driver.at_least(*HEALTH_STATUS):
        files["stats/hardware/health_status/hw_error_events"] = File(f"{state.error_events}\n")
    if driver.at_least(*UNHEALTHY_COMPONENTS):
        files["stats/hardware/sram_ecc_corrected"] = File("0\n")
        files["stats/hardware/mem_ecc_corrected"] = File("0\n")
        components = ",".join(state.unhealthy_components)
        files["stats/hardware/health_status/unhealthy_components"] = File(components + "\n")
        if description.device_name in {"Trainium2", "Trainium3"}:
            files["stats/hardware/health_status/healthcheck_heartbeat"] = File("0\n")
    return files


@lru_cache(maxsize=64)
def _core_counters(core: int, *, tensor_engine: bool) -> Mapping[str, File]:
    stats = f"neuron_core{core}/stats"
    files = {f"{stats}/status/{name}/{figure}": File("0\n") for name in _STATUS for figure in _COUNTER}
    files |= {f"{stats}/other_info/{name}/{figure}": File("0\n") for name in _OTHER for figure in _COUNTER}
    files |= {f"{stats}/memory_usage/host_mem/{figure}": File("0\n") for figure in _MEMORY_COUNTER}
    files |= {f"{stats}/memory_usage/device_mem/{figure}": File("0\n") for figure in _MEMORY_COUNTER}
    files |= _memory(f"{stats}/memory_usage/device_mem", _DEVICE_MEMORY)
    if tensor_engine:
        files[f"{stats}/tensor_engine/pe_cntrs"] = File("xrow_grp,mm_active,wl_active,idle\n")
    return files


def _memory(directory: str, kinds: tuple[str, ...]) -> dict[str, File]:
    return {f"{directory}/{kind}/{figure}": File("0\n") for kind in kinds for figure in _MEMORY_COUNTER}


# Links.

_TORUS_SIZE = 16
"""Devices of a four by four torus."""
_INF2_RING = 12
"""Devices of an inf2.48xlarge."""
_INF2_LINE = 6
"""Devices of an inf2.24xlarge."""

# Up, left, down, right: the order for Trainium1.
_TRN1 = tuple(
    (
        (device - 4) % 16,
        device - device % 4 + (device - 1) % 4,
        (device + 4) % 16,
        device - device % 4 + (device + 1) % 4,
    )
    for device in range(_TORUS_SIZE)
)

# Trainium2 and later: the firmware's port order, different for each place.
_TRN2 = (
    (12, 1, 3, 4),
    (0, 13, 5, 2),
    (14, 3, 1, 6),
    (2, 15, 7, 0),
    (8, 5, 7, 0),
    (4, 9, 1, 6),
    (10, 7, 5, 2),
    (6, 11, 3, 4),
    (4, 9, 11, 12),
    (8, 5, 13, 10),
    (6, 11, 9, 14),
    (10, 7, 15, 8),
    (0, 13, 15, 8),
    (12, 1, 9, 14),
    (2, 15, 13, 10),
    (14, 3, 11, 12),
)


def connected_devices_text(device_name: str, device: int, present: Collection[int], device_count: int) -> str:
    """The driver's ``connected_devices`` of a device while the devices ``present`` exist.

    ``device_count`` is the machine's nominal number of devices. From Inferentia2 and Trainium1 on, the driver chooses a
    table by the number of present devices, so one missing chip empties every list. Inferentia reads firmware.
    """
    east, west, count = device + 1, device - 1, len(present)
    neighbours: tuple[int, ...] = ()
    if device_name == "Inferentia":  # east first; inf1.6xlarge is a line [captured], inf1.24xlarge a ring [documented]
        if device_count == _TORUS_SIZE:
            east, west = east % device_count, west % device_count
        neighbours = tuple(neighbour for neighbour in (east, west) if neighbour in present and neighbour != device)
    elif device_name == "Inferentia2" and count == _INF2_RING:
        neighbours = (west % _INF2_RING, east % _INF2_RING)
    elif device_name == "Inferentia2" and count == _INF2_LINE:
        neighbours = tuple(neighbour for neighbour in (west, east) if 0 <= neighbour < _INF2_LINE)
    elif device_name != "Inferentia2" and count and not count % _TORUS_SIZE:
        place = device % _TORUS_SIZE
        table = _TRN1 if device_name == "Trainium1" else _TRN2
        neighbours = tuple(device - place + neighbour for neighbour in table[place])
    return ", ".join(map(str, neighbours)) + "\n"
