"""One machine's Neuron hardware as sysfs, /dev and udev show it."""

from neuron_plugin.hardware.attributes import DriverVersion, ResetState, parse_driver_version
from neuron_plugin.hardware.device import SIMULATED_MARKER
from neuron_plugin.hardware.generations import GENERATIONS, Generation
from neuron_plugin.hardware.health import (
    Finding,
    Observation,
    Severity,
    Signal,
    Verdict,
    device_key,
    observe,
    unreadable,
    without_error_counters,
)
from neuron_plugin.hardware.hints import Hints
from neuron_plugin.hardware.inventory import EVERY_DEVICE, MachinePaths, read_inventory
from neuron_plugin.hardware.kmsg import KernelError, KernelRecord, parse_error, tells_of_reset
from neuron_plugin.hardware.kmsg_reader import KernelLog
from neuron_plugin.hardware.notices import HealthNotices
from neuron_plugin.hardware.processes import (
    Identity,
    Look,
    Process,
    device_processes,
    has_kernel_threads,
    identity_of,
    look_at_processes,
)
from neuron_plugin.hardware.records import Device, EccCounts, Inventory, SkippedDevice
from neuron_plugin.hardware.sysfs import DEVICE_NAME, Sysfs, SysfsError
from neuron_plugin.hardware.uevents import Uevents, open_uevents
from neuron_plugin.hardware.ultraserver import UltraServer
from neuron_plugin.hardware.watch import InventoryWatcher, WatchPeriods

__all__ = [
    "DEVICE_NAME",
    "EVERY_DEVICE",
    "GENERATIONS",
    "SIMULATED_MARKER",
    "Device",
    "DriverVersion",
    "EccCounts",
    "Finding",
    "Generation",
    "HealthNotices",
    "Hints",
    "Identity",
    "Inventory",
    "InventoryWatcher",
    "KernelError",
    "KernelLog",
    "KernelRecord",
    "Look",
    "MachinePaths",
    "Observation",
    "Process",
    "ResetState",
    "Severity",
    "Signal",
    "SkippedDevice",
    "Sysfs",
    "SysfsError",
    "Uevents",
    "UltraServer",
    "Verdict",
    "WatchPeriods",
    "device_key",
    "device_processes",
    "has_kernel_threads",
    "identity_of",
    "look_at_processes",
    "observe",
    "open_uevents",
    "parse_driver_version",
    "parse_error",
    "read_inventory",
    "tells_of_reset",
    "unreadable",
    "without_error_counters",
]
