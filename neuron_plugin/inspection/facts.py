"""Everything the checks of ``doctor`` judge, as values.

Gathering and judging are apart: what is gathered here may be missing, refused or too late, and is then ``Unknown``
with the reason; the checks are functions of these values and touch nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from neuron_plugin.allocation import HolderLedger, PodReference, Resource
from neuron_plugin.inspection.holders import holders_of
from neuron_plugin.inspection.machine import Machine
from neuron_plugin.inspection.unknown import NO_DEVICE, Unknown
from neuron_plugin.kubelet import endpoint_prefix
from neuron_plugin.plugin.pods import NodePod

if TYPE_CHECKING:
    from neuron_plugin.kubelet import PodDevices

VENDOR_SOCKETS = ("neuron-devplugin.sock", "neuroncore-devplugin.sock")
"""The vendor's device plugin, by the names its sockets have (2.16 to 2.32)."""

DRA_DRIVER = "neuron.aws.com"
"""The vendor's DRA driver; its sockets and directories carry the name."""


_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class NodeFile:
    """What stands at ``/dev/neuronN``. ``numbers`` are major and minor, ``mode`` the permission bits."""

    device: int
    is_character: bool
    mode: int
    numbers: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class PciFunction:
    """A Neuron chip as the PCI bus knows it, driver or not."""

    address: str
    product: str


@dataclass(frozen=True, slots=True)
class Host:
    """The machine outside the driver's own tree.

    ``simulated``: plain files may stand for device nodes. ``major`` is what the kernel gave the driver, None while it
    has none. ``numbers`` are sysfs's major and minor of every device it lists, None where it does not tell.
    ``hook_files`` are the OCI hook's, ``runtime_files`` the texts of the container runtimes' configurations.
    """

    simulated: bool = False
    driver_loaded: bool = True
    major: int | Unknown | None = field(default_factory=lambda: Unknown("/proc/devices is another machine's"))
    nodes: tuple[NodeFile, ...] | Unknown = ()
    numbers: Mapping[int, tuple[int, int] | None] = field(default_factory=dict)
    pci: tuple[PciFunction, ...] | Unknown = field(default_factory=lambda: Unknown("there is no PCI bus here"))
    hook_files: tuple[str, ...] = ()
    runtime_files: Mapping[str, str | Unknown] | Unknown = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SocketSeen:
    """A socket file. ``served``: somebody accepts connections; ``fault``: why it did not answer our question."""

    path: Path
    served: bool
    fault: str = ""

    @property
    def name(self) -> str:
        """Its file name."""
        return self.path.name


@dataclass(frozen=True, slots=True)
class Kubelet:
    """The kubelet's side. ``trouble`` says why its directory could not be listed.

    ``own_socket`` is kubelet.sock, ``plugins`` the other sockets beside it and in the directories of drivers;
    ``drivers_seen`` is whether those could be looked into.
    """

    directory: Path
    trouble: Unknown | None = None
    missing: bool = False
    own_socket: SocketSeen | None = None
    plugins: tuple[SocketSeen, ...] = ()
    drivers_seen: bool = True
    allocatable: Mapping[str, tuple[str, ...]] | Unknown = field(default_factory=dict)
    pods: tuple[PodDevices, ...] | Unknown = ()


@dataclass(frozen=True, slots=True)
class ApiPod:
    """A pod of this node as the API server has it; ``neuron`` is what it asks for and was given, if it lives.

    ``uids`` are the UIDs its cgroups may carry: a static pod's is not the API object's.
    """

    pod: PodReference
    phase: str
    neuron: NodePod | None = None
    uids: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Cluster:
    """The node and its pods as the API server has them."""

    node_name: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)
    pods: tuple[ApiPod, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceUser:
    """A process with devices open. ``pod_uid`` is empty outside of pods.

    ``inside`` maps the numbers of the device nodes it sees to the host's, None where that could not be seen;
    ``visible_cores`` is its NEURON_RT_VISIBLE_CORES.
    """

    pid: int
    command: str
    devices: tuple[int, ...]
    pod_uid: str = ""
    inside: Mapping[int, int] | None = None
    visible_cores: str = ""


@dataclass(frozen=True, slots=True)
class DeviceUsers:
    """All processes with devices open; ``unseen`` says why some may have been missed, if so."""

    users: tuple[DeviceUser, ...] = ()
    unseen: Unknown | None = None


@dataclass(frozen=True, slots=True)
class Daemon:
    """What the daemon says of itself. ``file`` is its configuration, if one is known; ``trouble`` why that is no use.

    ``resources`` are those it is told to offer, where that is known; ``silent`` its complaints of sources that do not
    work, ``held_back`` the devices that it does not hand out.
    """

    file: Path | None = None
    trouble: str | Unknown = ""
    resources: frozenset[Resource] | None = None
    silent: tuple[str, ...] | Unknown = ()
    held_back: tuple[int, ...] | Unknown = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """What was gathered at one moment, ``now_ns`` in unix nanoseconds."""

    machine: Machine
    host: Host
    kubelet: Kubelet
    cluster: Cluster | Unknown
    users: DeviceUsers | Unknown
    now_ns: int = 0
    daemon: Daemon = field(default_factory=Daemon)

    @property
    def holders(self) -> tuple[PodDevices, ...] | Unknown:
        """The kubelet's list without pods that have ended by the API server: before 1.34 kubelets list those, too."""
        if isinstance(self.kubelet.pods, Unknown):
            return self.kubelet.pods
        known = self.cluster.pods if isinstance(self.cluster, Cluster) else ()
        ended = {(each.pod.namespace, each.pod.name) for each in known if each.phase in _ENDED}
        return tuple(pod for pod in self.kubelet.pods if (pod.namespace, pod.name) not in ended)

    @property
    def ledger(self) -> HolderLedger | Unknown:
        """Who holds what by the kubelet."""
        holders = self.holders
        if isinstance(holders, Unknown):
            return holders
        if self.machine.geometry is None:
            return NO_DEVICE
        return holders_of(self.machine.geometry, holders).ledger or HolderLedger()

    def sockets_of(self, resource: Resource) -> tuple[SocketSeen, ...]:
        """Sockets of this project's plugin for one resource."""
        prefix = endpoint_prefix(resource.value)
        return tuple(socket for socket in self.kubelet.plugins if socket.name.startswith(prefix))

    def is_served(self, resource: Resource) -> bool:
        """Whether some plugin of ours serves the resource."""
        return any(socket.served for socket in self.sockets_of(resource))

    @property
    def we_serve(self) -> bool:
        """Whether this project's plugin runs here."""
        return any(self.is_served(resource) for resource in Resource)

    @property
    def vendor_sockets(self) -> tuple[SocketSeen, ...]:
        """Sockets of the vendor's device plugin."""
        return tuple(socket for socket in self.kubelet.plugins if socket.name in VENDOR_SOCKETS)

    @property
    def dra_sockets(self) -> tuple[SocketSeen, ...]:
        """Sockets of the vendor's DRA driver."""
        return tuple(socket for socket in self.kubelet.plugins if DRA_DRIVER in str(socket.path))
