"""One machine's Neuron hardware, read from sysfs, /dev, /proc, the kernel log and cgroups."""

from neuron_plugin.hardware.device import GENERATIONS, SIMULATED_MARKER, Device, EccCounts, Generation, joined_by_device
from neuron_plugin.hardware.inventory import EVERY_DEVICE, Inventory, MachinePaths, read_inventory
from neuron_plugin.hardware.processes import Process, device_processes, has_kernel_threads, is_populated
from neuron_plugin.hardware.sysfs import DEVICE_NAME, DriverVersion, ResetState, Sysfs, SysfsError, parse_driver_version
