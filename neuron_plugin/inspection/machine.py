"""A node's Neuron hardware, read once: this machine's, a mounted host's, or a simulated one's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from neuron_plugin.allocation import NodeInventory
from neuron_plugin.hardware import EVERY_DEVICE, Inventory, MachinePaths, Verdict, read_inventory
from neuron_plugin.inspection.text import Unknown
from neuron_plugin.instance_file import load_catalogue
from neuron_plugin.plugin.health import FILE_NAME, Baseline, load
from neuron_plugin.plugin.settings import PluginSettings
from neuron_plugin.topology import DeviceId, Geometry, InstanceType, Topology, geometry_of, links_of


@dataclass(frozen=True, slots=True)
class Machine:
    """The hardware. ``geometry`` is None without a device; ``instance`` is the instance type, where it is known.

    ``memory`` is what the daemon has recorded of the devices' old errors.
    """

    paths: MachinePaths
    inventory: Inventory
    geometry: Geometry | None
    instance: InstanceType | None
    verdicts: Mapping[DeviceId, Verdict]
    memory: Baseline | Unknown = field(default_factory=dict)

    @property
    def node_inventory(self) -> NodeInventory | None:
        """The machine as the plugin should publish it; None without a device."""
        if self.geometry is None:
            return None
        unhealthy = {int(device): "unhealthy" for device, verdict in self.verdicts.items() if not verdict.healthy}
        size = self.inventory.logical_core_size.size
        return NodeInventory(self.geometry, tuple(map(int, self.verdicts)), unhealthy, logical_core_size=size)

    @property
    def usable_mask(self) -> int:
        """Cores of the devices that are present and healthy."""
        return self.node_inventory.healthy_mask if self.node_inventory else 0

    @property
    def links_are_assumed(self) -> bool:
        """Whether the driver prints no link at all on a type that has some, as it does while one chip is missing."""
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


def look(settings: PluginSettings, environ: Mapping[str, str]) -> Machine:
    """Read the machine; health is judged by its daemon's policies and by the daemon's record of old errors.

    Raises:
        SettingsError: the file of instance types cannot be used.
    """
    from neuron_plugin.plugin.health import judge_once

    types = load_catalogue(settings.instance_types)
    paths = MachinePaths(settings.sysfs, settings.dev, settings.logical_core_file)
    inventory = read_inventory(paths, environ=environ, settled=EVERY_DEVICE, types=types)
    name = inventory.instance_type or settings.instance_type
    geometry = geometry_of(
        types,
        name,
        device_ids=inventory.device_ids,
        cores_per_device=inventory.cores_per_device,
        links={device: links for device, links in inventory.links.items()},  # noqa: C416 - widens the key's type
    )
    memory = _read_memory(settings)
    return Machine(
        paths=paths,
        inventory=inventory,
        geometry=geometry if inventory.devices else None,
        instance=types.get(name),
        verdicts=judge_once(inventory, settings.health, {} if isinstance(memory, Unknown) else memory),
        memory=memory,
    )


def _read_memory(settings: PluginSettings) -> Baseline | Unknown:
    if settings.state_dir is None:
        return Unknown("no state directory of the daemon is known", "give --config, the daemon's configuration")
    file = settings.state_dir / FILE_NAME
    try:
        file.read_bytes()
    except FileNotFoundError:
        return Unknown(f"{file} is not there", "the daemon writes it when it has seen a device")
    except OSError as error:
        return Unknown(f"{file} cannot be read ({error.strerror})", "run this as root")
    return load(file)
