"""A machine with Neuron hardware, as a directory: ``sys/``, ``dev/`` and the host's LNC file.

For the demo, tests, planning, and a real kubelet without hardware. What is written has the driver's bytes, names and
modes, so that everything that reads a real machine reads this one without noticing. Faults are changes of the machine's
description; readers may scan meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from neuron_plugin.hardware import GENERATIONS, MachinePaths, ResetState
from neuron_plugin.simulation.node_tree import (
    CORE_ERRORS,
    DEVICE_MEMORY,
    HEALTH_STATUS,
    LIVE_TIME,
    NEWEST_DRIVER,
    NEWEST_DRIVER_FOR_INF1,
    TIME_IN_USE,
    UNHEALTHY_COMPONENTS,
    NodeDescription,
    SimulationError,
    check,
    work_file,
)
from neuron_plugin.simulation.node_writer import (
    KMSG,
    TreeWriter,
    add_to_counter,
    append_record,
    exclusively,
    read_description,
    set_counter,
)
from neuron_plugin.topology import Catalogue, catalogue

HELD_PERCENT = 60
"""How busy the cores of a held device are, where nothing else was said."""
HELD_MEMORY = 6 * 2**30
"""What the cores of a device that a pod has do by themselves, and have allocated each."""


def write_node(
    root: Path,
    instance_type: str,
    *,
    driver_version: str = "",
    logical_core_size: int | None = None,
    missing: Iterable[int] = (),
    char_nodes: bool = False,
    usage_counters: bool = True,
    work_counters: bool = False,
    ultraserver: Mapping[str, str] | None = None,
    types: Catalogue | None = None,
) -> SimulatedNode:
    """Write a machine of ``instance_type`` into ``root``, which must be empty or not exist.

    ``driver_version`` is by default the newest that has this product. ``logical_core_size`` (LNC) goes into the
    host's file, which is not written without. ``missing`` chips never came up. ``char_nodes`` makes real character
    devices, which takes root and which a real container runtime needs; else plain files take their place.
    ``usage_counters=False`` leaves out the counters of memory and of the cores' work, which hardly any program but a
    monitor reads: 100 files for each core, 13 000 on a Trn2. ``work_counters`` leaves those three in that tell how much
    a core is used, and whether its resets fail. ``ultraserver`` are the driver's class attributes of one.

    Raises:
        SimulationError: an unknown type, a directory in use, or a machine that cannot be.
    """
    known = catalogue() if types is None else types
    instance = known.get(instance_type)
    if instance is None:
        raise SimulationError(f"instance type {instance_type!r} is not known: choose among {', '.join(sorted(known))}")
    if instance.device_name not in GENERATIONS:
        raise SimulationError(f"{instance_type} has devices named {instance.device_name!r}, which no known driver has")
    default_driver = NEWEST_DRIVER_FOR_INF1 if instance.device_name == "Inferentia" else NEWEST_DRIVER
    description = NodeDescription(
        instance_type=instance.name,
        device_name=instance.device_name,
        device_count=instance.devices,
        driver_version=driver_version or default_driver,
        logical_core_size=logical_core_size,
        missing=tuple(sorted(set(missing))),
        char_nodes=char_nodes,
        usage_counters=usage_counters,
        work_counters=work_counters,
        ultraserver=dict(ultraserver or {}),
    )
    check(description)
    root.mkdir(parents=True, exist_ok=True)
    if any(root.iterdir()):
        raise SimulationError(f"{root} is not empty: choose another directory or empty it")
    with exclusively(root):
        TreeWriter(root).build(description)
    return SimulatedNode(root)


@dataclass(frozen=True, slots=True)
class SimulatedNode:
    """A simulated machine in ``root``. It keeps nothing in memory: any process may change it at any time."""

    root: Path

    @classmethod
    def open(cls, root: Path) -> SimulatedNode:
        """The machine that is already in ``root``.

        Raises:
            SimulationError: there is none.
        """
        read_description(root)
        return cls(root)

    @property
    def paths(self) -> MachinePaths:
        """Where a reader finds this machine."""
        return MachinePaths.under(self.root)

    @property
    def description(self) -> NodeDescription:
        """What the machine is, and its faults, at this moment."""
        return read_description(self.root)

    def set_ecc(
        self, device: int, *, sram: int | None = None, memory: int | None = None, repairable: int | None = None
    ) -> None:
        """Set counters of uncorrected ECC errors; those not given stay."""
        if self.description.generation.device_arch == "NDv1":
            raise SimulationError("Inferentia has no ECC counters in sysfs: take another type")
        given = {"sram_ecc": sram, "memory_ecc": memory, "repairable_ecc": repairable}
        self._change(device, **{name: count for name, count in given.items() if count is not None})

    def set_reset(self, device: int, state: ResetState) -> None:
        """Let a reset run, succeed or fail. The node stays, and there is no uevent."""
        self._change(device, reset=int(state))

    def set_unhealthy_components(self, device: int, components: Collection[str]) -> None:
        """Let firmware report broken parts; none: all are well again."""
        self._check_has("unhealthy_components", UNHEALTHY_COMPONENTS)
        self._change(device, unhealthy_components=tuple(components))

    def set_error_events(self, device: int, count: int) -> None:
        """Set firmware's counter of hardware error events below ``health_status``."""
        self._check_has("health_status", HEALTH_STATUS)
        self._change(device, error_events=count)

    def set_core_errors(self, device: int, core: int, **counts: int) -> None:
        """Set counters of hardware errors of a physical core, such as ``hw_nc_ue_error``; those not given stay."""
        if not self.description.usage_counters:
            raise SimulationError("this node was written without usage counters, which those of errors are among")
        cores = range(self.description.generation.cores_per_device)
        unknown = sorted(set(counts) - set(CORE_ERRORS))
        if unknown or core not in cores:
            said = f"core {core}, counter {', '.join(unknown or counts)}"
            raise SimulationError(f"{said}: expected a core from 0 to {cores[-1]} and one of {', '.join(CORE_ERRORS)}")
        errors = self.description.device(device).core_errors
        self._change(device, core_errors={**errors, core: {**errors.get(core, {}), **counts}})

    def set_busy(self, device: int, percent: int | None) -> None:
        """How much of the time the cores of a device execute from now on; None: as is usual."""
        self._check_counts_work()
        self._change(device, busy_percent=percent)

    def set_reset_failures(self, device: int, count: int) -> None:
        """Set the counter of failed resets, which the driver keeps for each core of the device."""
        self._check_counts_work()
        self._change(device, reset_failures=count)

    def work(self, seconds: float, held: Collection[int]) -> None:
        """Let so much time pass for the cores: what pods ``held`` is busy unless it was set otherwise.

        Its files alone are changed. They are no part of the description, as the counters of a driver are not.
        """
        with exclusively(self.root):
            there = read_description(self.root)
            counts_live = there.driver.at_least(*LIVE_TIME)
            for device in there.loaded:
                usual = HELD_PERCENT if device in held else 0
                percent = there.device(device).busy_percent
                executed = int(seconds * 1e4 * (usual if percent is None else percent)) if counts_live else 0
                memory = HELD_MEMORY if device in held else 0
                for core in range(there.generation.cores_per_device):
                    add_to_counter(self.root, device, work_file(core, TIME_IN_USE), executed)
                    set_counter(self.root, device, work_file(core, DEVICE_MEMORY), memory)

    def log_kernel_message(self, text: str, *, by_kernel: bool = True, age_seconds: float = 0.0) -> None:
        """Write a line into the machine's kernel log, as the kernel would or as a process may."""
        append_record(self.root, text, by_kernel=by_kernel, age_seconds=age_seconds)

    def remove_device(self, device: int) -> None:
        """Take a device away, with its node, as when its PCI function is removed."""
        self._change(device, loaded=False)

    def restore_device(self, device: int) -> None:
        """Bring a device back."""
        self._change(device, loaded=True)

    def remove_node(self, device: int) -> None:
        """Delete ``/dev/neuronN`` only."""
        self._change(device, node=False)

    def restore_node(self, device: int) -> None:
        """Make ``/dev/neuronN`` again."""
        self._change(device, node=True)

    def set_attribute(self, device: int, name: str, text: str | None) -> None:
        """Let one sysfs attribute (a path below the device) read ``text``, or not be there, as while it is made."""
        self._override(device, name, {name: text})

    def restore_attribute(self, device: int, name: str) -> None:
        """Let one sysfs attribute read as it should."""
        self._override(device, name, {})

    def unload_driver(self) -> None:
        """Take the module away: no class directory, no nodes."""
        self._change(driver_loaded=False)

    def load_driver(self) -> None:
        """Load the module again; the devices come back with the counters they had."""
        self._change(driver_loaded=True)

    def reboot(self) -> None:
        """Start the machine again: devices that came up at its start are back and well, and the kernel log is empty."""
        self._change(devices={}, driver_loaded=True)
        (self.paths.dev / KMSG).write_bytes(b"")

    def set_logical_core_size(self, size: int | None) -> None:
        """Change LNC in the host's file; None removes the file."""
        self._change(logical_core_size=size)

    def _override(self, device: int, name: str, override: dict[str, str | None]) -> None:
        relative = Path(name)
        if relative.is_absolute() or ".." in relative.parts:
            raise SimulationError(f"attribute {name!r}: expected a path below the device, such as core_count")
        kept = {path: text for path, text in self.description.device(device).overrides.items() if path != name}
        self._change(device, overrides=kept | override)

    def _check_counts_work(self) -> None:
        if not (self.description.usage_counters or self.description.work_counters):
            raise SimulationError("this node was written without usage counters, which those of work are among")

    def _check_has(self, what: str, since: tuple[int, ...]) -> None:
        description = self.description
        if description.generation.device_arch == "NDv1" or not description.driver.at_least(*since):
            raise SimulationError(
                f"driver {description.driver_version} on {description.device_name} has no {what}: "
                f"write the node with driver {NEWEST_DRIVER}, not Inf1"
            )

    def _change(self, device: int | None = None, **fields: object) -> None:
        """Change fields of one device, or of the machine."""
        with exclusively(self.root):
            before = read_description(self.root)
            if device is not None:
                if device not in before.chips:
                    raise SimulationError(f"device {device}: {before.in_words}")
                state = msgspec.structs.replace(before.device(device), **fields)
                fields = {"devices": {**before.devices, device: state}}
            after = msgspec.structs.replace(before, **fields)
            check(after)
            TreeWriter(self.root).change(before, after)
