"""Everything that the checks of ``doctor`` judge, as values.

``gathering`` and ``host`` fill them in; what was missing, refused or too late is ``Unknown`` with the reason. The
checks are functions of these values and do no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from neuron_plugin.allocation import NeuronPod, Resource
from neuron_plugin.allocation.claims import DRA_DRIVER
from neuron_plugin.inspection.findings import Unknown
from neuron_plugin.inspection.holders import Holders, PodRecords, holders_of
from neuron_plugin.inspection.machine import InspectedMachine
from neuron_plugin.topology import Geometry

if TYPE_CHECKING:
    from neuron_plugin.plugin.snapshot import Snapshot

OUR_SOCKETS = "neuron-plugin."
VENDOR_SOCKETS = ("neuron-devplugin.sock", "neuroncore-devplugin.sock")
"""The vendor's device plugin, by the names of its sockets (2.16 to 2.32)."""
VENDOR_DRIVER = DRA_DRIVER
"""The vendor's DRA driver; its socket in the kubelet's plugin registry carries the name."""
OCI_HOOK = "oci_neuron_hook"
"""Part of the names of all files of the vendor's OCI hook."""
NO_DEVICE = Unknown("there is no device", "fix what the checks 'driver' and 'devices' report first")


@dataclass(frozen=True, slots=True)
class NodeFile:
    """The file at ``/dev/neuronN``. ``numbers`` are major and minor, ``mode`` the permission bits."""

    device: int
    is_character: bool
    mode: int
    numbers: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Host:
    """The machine outside the driver's own tree.

    ``simulated``: plain files may be there for device nodes. ``numbers`` are sysfs's major and minor of every listed
    device, None where it has none. ``pci`` are the products of the Neuron chips on the PCI bus. ``hook_files`` are the
    OCI hook's, ``runtime_files`` the texts of the container runtimes' configurations.
    """

    simulated: bool
    driver_loaded: bool
    nodes: tuple[NodeFile, ...] | Unknown
    numbers: Mapping[int, tuple[int, int] | None]
    pci: tuple[str, ...] | Unknown
    hook_files: tuple[str, ...]
    runtime_files: Mapping[str, str | Unknown] | Unknown


@dataclass(frozen=True, slots=True)
class SocketSeen:
    """A socket file. ``served``: a process accepts connections; ``fault``: why it did not answer our question."""

    path: Path
    served: bool
    fault: str = ""

    @property
    def name(self) -> str:
        """Its file name."""
        return self.path.name


@dataclass(frozen=True, slots=True)
class Kubelet(PodRecords):
    """The kubelet's side. ``unreadable`` says why its directory could not be listed; ``missing``: it does not exist.

    ``own_socket`` is kubelet.sock. ``plugins`` are the other sockets beside it, and Neuron's sockets in the plugin
    registry; ``registry_seen`` is whether that could be listed. ``allocatable`` are ids by resource, as PodResources
    has them.
    """

    directory: Path
    unreadable: Unknown | None = None
    missing: bool = False
    own_socket: SocketSeen | None = None
    plugins: tuple[SocketSeen, ...] = ()
    registry_seen: bool = True
    allocatable: Mapping[str, tuple[str, ...]] | Unknown = field(default_factory=dict)


class NoSuchNode(Unknown):
    """The API server does not know the node by the name that it is to have."""


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """The node and all its pods, with Neuron or without, as the API server has them.

    ``slice`` are the devices of the driver's slices of this node by name, each with the keys of its taints. It is None
    where there is no slice, or the daemon is no driver.
    """

    node_name: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)
    pods: tuple[NeuronPod, ...] = ()
    slice: Mapping[str, frozenset[str]] | Unknown | None = None


@dataclass(frozen=True, slots=True)
class DeviceUser:
    """A process with devices open. ``pod_uid`` is empty outside of pods."""

    pid: int
    command: str
    devices: tuple[int, ...]
    pod_uid: str = ""


@dataclass(frozen=True, slots=True)
class DeviceUsers:
    """All processes with devices open; ``hidden`` says why some may have been missed, if so."""

    users: tuple[DeviceUser, ...] = ()
    hidden: Unknown | None = None


@dataclass(frozen=True, slots=True)
class Daemon:
    """The daemon's own statements. ``file`` is its configuration, if known; ``fault`` why that cannot be used.

    ``resources`` are those in its settings; None if they are not known. ``visible_devices_env``: it sets the variable
    that the OCI hook reads. ``silent`` are its lines about sources that do not work. ``unhealthy`` are the devices that
    it reports unhealthy, ``disabled`` those that an operator has taken out of service.

    ``driver`` is its name as a driver of claims, empty where it is a device plugin. Then ``placed_claims`` is whether
    the placement controller allocates, ``cdi`` the names of the devices in its CDI file, and ``registered`` whether the
    kubelet follows it.
    """

    file: Path | None = None
    fault: str | Unknown = ""
    resources: frozenset[Resource] | None = None
    visible_devices_env: bool = True
    silent: tuple[str, ...] | Unknown = ()
    unhealthy: tuple[int, ...] | Unknown = ()
    disabled: tuple[int, ...] | Unknown = ()
    driver: str = ""
    placed_claims: bool = False
    cdi: frozenset[str] | Unknown = frozenset()
    registered: bool | Unknown = False

    def without_answer(self, why: Unknown) -> Daemon:
        """The settings alone, because the daemon gave no answer."""
        return replace(self, silent=why, unhealthy=why, disabled=why, registered=why)


@dataclass(frozen=True)
class Facts:
    """All facts of one moment, ``now_ns`` in unix nanoseconds."""

    machine: InspectedMachine
    host: Host
    kubelet: Kubelet
    cluster: ClusterFacts | Unknown
    users: DeviceUsers | Unknown
    now_ns: int = 0
    daemon: Daemon = field(default_factory=Daemon)

    @property
    def geometry(self) -> Geometry | Unknown:
        """The machine's devices, cores and links."""
        return self.machine.geometry or NO_DEVICE

    @cached_property
    def holders(self) -> Holders:
        """Who holds what, and what is uncertain about it."""
        pods = None if isinstance(self.cluster, Unknown) else self.cluster.pods
        return holders_of(self.machine.node_inventory, self.kubelet, pods)

    @property
    def snapshot(self) -> Snapshot | Unknown:
        """The plugin's snapshot of this node: allocations, offered devices, hold-downs."""
        unknown = self.kubelet.pods if isinstance(self.kubelet.pods, Unknown) else NO_DEVICE
        return self.holders.snapshot or unknown

    def sockets_of(self, resource: Resource) -> list[SocketSeen]:
        """Sockets on which this project's plugin serves one resource."""
        prefix = f"{OUR_SOCKETS}{resource.short_name}."
        return [socket for socket in self.kubelet.plugins if socket.served and socket.name.startswith(prefix)]

    @property
    def driver_sockets(self) -> list[SocketSeen]:
        """Sockets on which this project's plugin serves claims."""
        ours = [socket for socket in self.kubelet.plugins if socket.served and socket.name.startswith(OUR_SOCKETS)]
        return [socket for socket in ours if serves_claims(socket.name)]

    @property
    def we_serve(self) -> bool:
        """Whether this project's plugin runs here."""
        return bool(self.driver_sockets) or any(self.sockets_of(resource) for resource in Resource)


def serves_claims(name: str) -> bool:
    """Whether a socket of ours by this name serves a driver of claims, and no resource."""
    return not any(name.startswith(f"{OUR_SOCKETS}{resource.short_name}.") for resource in Resource)
