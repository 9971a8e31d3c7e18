"""The inspected node: its settings, its Neuron hardware, read once, and how much its cores execute.

Settings are read as the daemon reads them: flags win over the environment, the environment over the daemon's file, the
file over the defaults. In the plugin's pod file and environment are the daemon's own, so no flag is needed there.
A node given by ``--root`` is another machine: its paths lie below the root, and neither the environment nor the usual
file here applies to it. A file that is named with ``--config`` applies, but only its health policies: its paths are
those of that machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from neuron_plugin.allocation import NodeInventory, PodReference, PodUid
from neuron_plugin.hardware import EVERY_DEVICE, Inventory, MachinePaths, read_inventory
from neuron_plugin.hardware.core_counters import HAS_LIVE_TIME, CoreCounterReader
from neuron_plugin.hardware.health_signals import Verdict
from neuron_plugin.inspection.findings import Unknown, known_or
from neuron_plugin.instance_file import load_catalogue
from neuron_plugin.plugin.health import FILE_NAME, Baseline, judge_once
from neuron_plugin.plugin.health import load as load_baseline
from neuron_plugin.plugin.node_inventory import node_inventory
from neuron_plugin.plugin.settings import PluginSettings
from neuron_plugin.settings import SettingsError, load
from neuron_plugin.topology import Catalogue, DeviceId, Geometry, InstanceType, Topology, links_of

if TYPE_CHECKING:
    from neuron_plugin.plugin.utilization import Reading

_PATHS = ("sysfs", "dev", "logical_core_file", "kubelet_dir", "pod_resources_socket", "cgroup")


@dataclass(frozen=True, slots=True)
class InspectedNode:
    """``root`` is None for this machine."""

    settings: PluginSettings
    root: Path | None = None

    @property
    def proc(self) -> Path:
        """The host's /proc where it is mounted: below the root, or where the daemon looks; else this machine's."""
        mounted = self.root / "proc" if self.root else self.settings.proc
        return mounted if os.path.isdir(mounted) else Path("/proc")  # noqa: PTH112 - Path.is_dir raises on EACCES


def node_of(flags: Mapping[str, object], environ: Mapping[str, str], file: Path | None) -> InspectedNode:
    """The node that ``flags`` mean: ``root``, and settings of the daemon by their fields' names.

    ``file`` is the daemon's configuration, see ``configuration_file``.

    Raises:
        SettingsError: the root is not a directory, the type is not known, or the settings cannot be used.
    """
    root = Path(str(flags["root"])) if flags.get("root") else None
    if root is None:
        settings = load(PluginSettings, flags, environ, file)
    elif not root.is_dir():
        raise SettingsError(f"--root {root} is no directory: expected one with sys/ and dev/ in it")
    else:
        defaults = PluginSettings()
        below = {name: str(root / str(getattr(defaults, name)).lstrip("/")) for name in _PATHS}
        given = {name: value for name, value in flags.items() if value is not None}
        health = load(PluginSettings, {}, {}, file).health
        settings = msgspec.structs.replace(load(PluginSettings, below | given, {}), health=health)
    # The daemon starts with a type that it does not know; on a command line an unknown type is a typing error.
    if (name := flags.get("instance_type")) and name not in load_catalogue(settings.instance_types):
        raise SettingsError(
            f"--instance-type {name} is not known: see 'neuron-plugin simulate types', "
            "or describe it in a file for --instance-types"
        )
    return InspectedNode(settings, root)


@dataclass(frozen=True)
class InspectedMachine:
    """The hardware, as the plugin would take it in.

    ``named_type`` is the instance type where the machine does not name its own. ``memory`` is what the daemon has
    recorded of the devices' old errors, ``disabled`` which devices an operator has taken out of service.
    """

    paths: MachinePaths
    inventory: Inventory
    types: Catalogue
    named_type: str
    verdicts: Mapping[DeviceId, Verdict]
    memory: Baseline | Unknown = field(default_factory=dict)
    disabled: tuple[int, ...] = ()

    @cached_property
    def node_inventory(self) -> NodeInventory | None:
        """The machine as the plugin should publish it; None without a device."""
        unhealthy = {int(device): verdict.reason for device, verdict in self.verdicts.items() if not verdict.healthy}
        return node_inventory(None, self.inventory, self.types, self.named_type, unhealthy, self.disabled)

    @property
    def geometry(self) -> Geometry | None:
        """Devices, cores and links; None without a device."""
        return self.node_inventory.geometry if self.node_inventory else None

    @property
    def instance(self) -> InstanceType | None:
        """The instance type, where it is known."""
        return self.types.get(self.inventory.instance_type or self.named_type)

    @property
    def usable_mask(self) -> int:
        """Cores of the devices that are present, healthy and in service."""
        return self.node_inventory.healthy_mask if self.node_inventory else 0

    @property
    def links_are_assumed(self) -> bool:
        """Whether the driver prints no link on a type that has links, which it does while a chip is missing."""
        linked = self.geometry is not None and self.geometry.topology not in {Topology.SINGLE, Topology.UNLINKED}
        return linked and not any(self.inventory.links.values())

    @property
    def links(self) -> dict[int, frozenset[int]]:
        """Links between the devices that are present: the driver's, else the type's."""
        present = frozenset(self.inventory.device_ids)
        if self.geometry is not None and self.links_are_assumed:
            nominal = links_of(self.geometry.topology, self.geometry.device_count)
            return {device: nominal[device] & present for device in present}
        return {device: links & present for device, links in self.inventory.links.items()}

    @property
    def missing(self) -> tuple[int, ...]:
        """Devices that the type has and the driver does not list."""
        listed = {*self.inventory.device_ids, *(device.id for device in self.inventory.skipped)}
        return tuple(sorted(set(range(self.geometry.device_count if self.geometry else 0)) - listed))


def look(settings: PluginSettings, environ: Mapping[str, str], disabled: tuple[int, ...] = ()) -> InspectedMachine:
    """Read the machine; health is judged by its daemon's policies and by the daemon's record of old errors.

    ``disabled`` are devices that an operator has taken out of service, as the daemon says.

    Raises:
        SettingsError: the file of instance types cannot be used.
    """
    types = load_catalogue(settings.instance_types)
    paths = MachinePaths(settings.sysfs, settings.dev, settings.logical_core_file)
    inventory = read_inventory(paths, environ=environ, settled=EVERY_DEVICE, types=types)
    memory: Baseline | Unknown
    if settings.state_dir is None:
        memory = Unknown("no state directory of the daemon is known", "give --config, the daemon's configuration")
    else:
        file = settings.state_dir / FILE_NAME
        try:
            file.read_bytes()
            memory = load_baseline(file)
        except FileNotFoundError:
            memory = Unknown(f"{file} is not there", "the daemon writes it when it has seen a device")
        except OSError as error:
            memory = Unknown(f"{file} cannot be read ({error.strerror})", "run this as root")
    return InspectedMachine(
        paths=paths,
        inventory=inventory,
        types=types,
        named_type=settings.instance_type,
        verdicts=judge_once(inventory, settings.health, known_or(memory, {})),
        memory=memory,
        disabled=disabled,
    )


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """One device: the share of its cores' time in percent, and its allocated memory; None where it is not known."""

    busy_percent: int | None = None
    memory_bytes: int | None = None


def read_counters(settings: PluginSettings, inventory: Inventory) -> Reading:
    """Read the counters of every core that the machine lists."""
    from neuron_plugin.plugin.utilization import Reading

    cores = [(int(device.id), core) for device in inventory.devices for core in range(device.cores)]
    counters = CoreCounterReader(settings.sysfs).read(cores, inventory.driver_version)
    return Reading(time.monotonic(), time.time(), counters)


def device_use(first: Reading, last: Reading) -> dict[int, DeviceUse]:
    """The use of the devices between two readings: the plugin's account of a container that has the whole device."""
    from neuron_plugin.plugin.utilization import ContainerKey, UseByContainer, use_after

    devices = {device: ContainerKey(PodReference(PodUid(""), "", ""), str(device)) for device, _ in last.cores}
    has = {key: frozenset(core for core in last.cores if core[0] == device) for device, key in devices.items()}
    use: UseByContainer = {}
    for reading in (first, last):
        use = use_after(use, has, reading, {})
    return {
        device: DeviceUse(round(100 * use[key].busy_share) if use[key].known else None, use[key].memory_bytes)
        for device, key in devices.items()
    }


def use_note(inventory: Inventory) -> str:
    """Why no device's use is known; empty where it can be."""
    driver = inventory.driver_version
    if driver is None or driver.at_least(*HAS_LIVE_TIME):
        return ""
    return (
        f"driver {driver.text} counts the time of a process only when the process ends: the use is not known before "
        f"driver {'.'.join(map(str, HAS_LIVE_TIME))}"
    )
