"""One look at the machine that a command is about: this one, a host mounted somewhere, or a simulated one."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from neuron_plugin.cli.command import CommandError
from neuron_plugin.hardware.health import Verdict, assess_all
from neuron_plugin.hardware.inventory import EVERY_DEVICE, MachinePaths, read_inventory
from neuron_plugin.hardware.records import Inventory
from neuron_plugin.instance_file import load_catalogue
from neuron_plugin.topology.geometry import DeviceId, Geometry, Topology
from neuron_plugin.topology.instances import InstanceType, geometry_of
from neuron_plugin.topology.links import links_of

_POD_RESOURCES = Path("var/lib/kubelet/pod-resources/kubelet.sock")


@dataclass(frozen=True, slots=True)
class Machine:
    """What was found. ``geometry`` is None where no device is; ``instance`` is the type, where it is a known one."""

    paths: MachinePaths
    inventory: Inventory
    geometry: Geometry | None
    instance: InstanceType | None
    verdicts: Mapping[DeviceId, Verdict]

    @property
    def links_are_assumed(self) -> bool:
        """Whether the driver prints no link at all on a type that has some, as it does while one chip is missing."""
        linked = self.geometry is not None and self.geometry.topology not in {Topology.SINGLE, Topology.UNLINKED}
        return linked and not any(self.inventory.links.values())

    @property
    def links(self) -> dict[int, frozenset[int]]:
        """Links between the devices that are there: the driver's, else the type's."""
        present = frozenset(self.inventory.device_ids)
        if self.geometry is not None and self.links_are_assumed:
            nominal = links_of(self.geometry.topology, self.geometry.device_count)
            return {device: nominal[device] & present for device in present}
        return {device: links & present for device, links in self.inventory.links.items()}

    @property
    def usable_mask(self) -> int:
        """Cores of the devices that are there and healthy."""
        healthy = (device for device, verdict in self.verdicts.items() if verdict.healthy)
        return self.geometry.devices_mask(healthy) if self.geometry else 0

    @property
    def missing(self) -> tuple[int, ...]:
        """Devices the type has and the driver does not list."""
        listed = {*self.inventory.device_ids, *(device.id for device in self.inventory.skipped)}
        return tuple(
            device for device in range(self.geometry.device_count if self.geometry else 0) if device not in listed
        )


def add_path_flags(parser: ArgumentParser) -> None:
    """Flags that say where the machine is to be read."""
    group = parser.add_argument_group("which machine")
    group.add_argument(
        "--root", type=Path, metavar="DIR", help="a simulated machine, or a host mounted at DIR (default: this machine)"
    )
    group.add_argument("--sysfs", type=Path, metavar="DIR", help="where sysfs is mounted (default: ROOT/sys)")
    group.add_argument("--dev", type=Path, metavar="DIR", help="directory of the device nodes (default: ROOT/dev)")
    group.add_argument(
        "--logical-core-file",
        type=Path,
        metavar="FILE",
        help="the host's LNC setting (default: ROOT/opt/aws/neuron/logical_nc_config)",
    )


def add_flags(parser: ArgumentParser) -> None:
    """Flags for a look at the machine and at who holds what."""
    add_path_flags(parser)
    group = parser.add_argument_group("what is known about it")
    group.add_argument("--instance-types", type=Path, metavar="FILE", help="YAML file of further instance types")
    group.add_argument("--instance-type", metavar="TYPE", help="EC2 instance type, where the machine does not tell it")
    group.add_argument(
        "--pod-resources-socket",
        type=Path,
        metavar="PATH",
        help=f"the kubelet's PodResources socket, which tells the holders (default: ROOT/{_POD_RESOURCES})",
    )


def paths_of(arguments: Namespace) -> MachinePaths:
    """Where to read.

    Raises:
        CommandError: --root is no directory.
    """
    root: Path | None = arguments.root
    if root is not None and not root.is_dir():
        raise CommandError(f"--root {root} is no directory: expected one with sys/ and dev/ in it")
    usual = MachinePaths.under(root) if root else MachinePaths()
    return MachinePaths(
        sysfs=arguments.sysfs or usual.sysfs,
        dev=arguments.dev or usual.dev,
        logical_nc_config=arguments.logical_core_file or usual.logical_nc_config,
    )


def pod_resources_socket_of(arguments: Namespace) -> Path:
    """Where the machine's kubelet serves PodResources."""
    given: Path | None = arguments.pod_resources_socket
    return given or (arguments.root or Path("/")) / _POD_RESOURCES


def look(arguments: Namespace) -> Machine:
    """Read the machine.

    Raises:
        CommandError: --root is no directory, or --instance-type is unknown.
        SettingsError: --instance-types cannot be used.
    """
    types = load_catalogue(arguments.instance_types)
    paths = paths_of(arguments)
    inventory = read_inventory(paths, environ=os.environ, settled=EVERY_DEVICE, types=types)
    name = inventory.instance_type or arguments.instance_type or ""
    if arguments.instance_type and arguments.instance_type not in types:
        raise CommandError(
            f"--instance-type {arguments.instance_type} is not known: see 'neuron-plugin simulate types', "
            "or describe it in a file for --instance-types"
        )
    geometry = geometry_of(
        types,
        name,
        device_ids=inventory.device_ids,
        cores_per_device=inventory.cores_per_device,
        links={device: links for device, links in inventory.links.items()},  # noqa: C416 - widens the key's type
    )
    return Machine(
        paths=paths,
        inventory=inventory,
        geometry=geometry if inventory.devices else None,
        instance=types.get(name),
        verdicts=assess_all(inventory),
    )
