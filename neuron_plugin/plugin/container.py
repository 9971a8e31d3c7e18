"""What a container gets for its cores: device nodes and environment, or CDI names and the file they refer to.

Each reply also carries, in an annotation, what was given: the kubelet records it, and the daemon reads it there.

From driver 2.12.14 on the runtime finds its devices as ``/dev/neuron0`` and up, and the driver adds the host index of
the first one to every core it marks; before, both sides used host numbers. So the numbering inside a container
follows the driver: from that version on, cores are given relative to the container's first device.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, combinations_with_replacement
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import msgspec

from neuron_plugin.allocation import NeuronPod, NodeInventory, Resource
from neuron_plugin.allocation.resources import format_ids, parse_ids
from neuron_plugin.hardware import GENERATIONS, parse_driver_version
from neuron_plugin.plugin.settings import Mode, Numbering, PluginSettings
from neuron_plugin.topology import CoreMask, Geometry, Unit, cores_in, sets_by_count

if TYPE_CHECKING:  # the room loads gRPC, and what a reply says is read by commands, too
    from neuron_plugin.kubelet import ContainerAllocation, DeviceNode

VISIBLE_CORES = "NEURON_RT_VISIBLE_CORES"
VISIBLE_DEVICES = "AWS_NEURON_VISIBLE_DEVICES"
LOGICAL_CORE_CONFIG = "NEURON_LOGICAL_NC_CONFIG"
LOGICAL_CORE_SIZES = (1, 2)
CDI_KIND = "neuron-plugin.io/device"

FIRST_OFFSET_DRIVER = (2, 12, 14)
"""First driver that adds the offset of the first device (SDK 2.13.2; required by the vendor's plugin 2.16.18)."""

CDI_FILE_NAME = "neuron-plugin.io-device.json"
CDI_VARIABLES_FILE_NAME = "neuron-plugin.io-device-variables.json"
"""Beside it: the variables of single pods, by ``cdi_variables``."""

_PERMISSIONS = "rw"

ALLOCATION_KEY = "neuron-plugin.io/allocation"
"""Annotation in each reply to Allocate. The kubelet keeps replies in its checkpoint, so a container's cores can be read
there, also if the kubelet drew other ids. The annotation reaches the container runtime, never the Pod object."""


@dataclass(frozen=True, slots=True)
class ContainerStyle:
    """How sets are presented on this node.

    ``numbering`` is resolved, never AUTO. ``logical_core_size`` is None where the hardware has no LNC to choose.
    """

    numbering: Numbering
    dev: Path = Path("/dev")
    logical_core_size: int | None = None
    visible_devices_env: bool = True
    cdi: bool = False

    def numbers_inside(self, hosts: Iterable[int]) -> dict[int, int]:
        """The number of each device inside a container that has exactly these, given ascending."""
        renumber = self.numbering is Numbering.CONTAINER
        return {host: place if renumber else host for place, host in enumerate(hosts)}


def container_style(settings: PluginSettings, inventory: NodeInventory) -> ContainerStyle:
    """How sets are presented on a node. A driver of an unknown version (empty) numbers like an old one."""
    generation, numbering, driver = GENERATIONS.get(inventory.device_name), settings.numbering, inventory.driver_version
    has_lnc = generation is not None and generation.largest_logical_core_size > 1
    if numbering is Numbering.AUTO:
        adds_offset = bool(driver) and parse_driver_version(driver).at_least(*FIRST_OFFSET_DRIVER)
        numbering = Numbering.CONTAINER if adds_offset else Numbering.HOST
    return ContainerStyle(
        numbering=numbering,
        dev=settings.dev,
        logical_core_size=inventory.logical_core_size if has_lnc else None,
        visible_devices_env=settings.visible_devices_env,
        cdi=settings.cdi,
    )


@lru_cache(maxsize=1024)
def container_allocation(
    geometry: Geometry, resource: Resource, mask: int, style: ContainerStyle
) -> ContainerAllocation:
    """Nodes and environment for exactly the cores of ``mask``, requested as ``resource``.

    Remembered, because Allocate waits for it and a node has few sets. Do not change what is returned.
    """
    hosts = tuple(map(int, geometry.devices_touched(mask)))
    inside = style.numbers_inside(hosts)
    envs = {}
    if style.logical_core_size is not None:
        envs[LOGICAL_CORE_CONFIG] = str(style.logical_core_size)
    if resource.unit is Unit.CORE:
        size = geometry.cores_per_device  # the runtime counts cores from the first device that it sees
        cores = [inside[core // size] * size + core % size for core in cores_in(mask)]
        envs[VISIBLE_CORES] = ",".join(map(str, cores))
    elif style.visible_devices_env:  # host ids in both numberings: only the vendor's OCI hook reads it
        envs[VISIBLE_DEVICES] = ",".join(map(str, hosts))
    from neuron_plugin.kubelet import ContainerAllocation

    return ContainerAllocation(
        envs=envs,
        devices=() if style.cdi else tuple(_node(style, *numbers) for numbers in inside.items()),
        cdi_devices=tuple(f"{CDI_KIND}={cdi_device_name(*numbers)}" for numbers in inside.items()) if style.cdi else (),
    )


def ultraserver_variables(pod: NeuronPod | None, inventory: NodeInventory) -> Mapping[str, str]:
    """The variables of UltraServers for the containers of a pod whose group has these whole.

    The kubelet puts a container's own variables behind those of a reply, so they win.
    """
    return pod.ultraserver.variables(inventory.ultraserver) if pod and pod.ultraserver else {}


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply to Allocate: physical ids, ascending; ``cores`` count in the logical core size ``lnc``."""

    id: str
    devices: tuple[int, ...]
    cores: tuple[int, ...]
    lnc: int

    def annotation(self) -> str:
        """The value of ``ALLOCATION_KEY``."""
        devices, cores = ",".join(map(str, self.devices)), ",".join(map(str, self.cores))
        return f'{{"id":"{self.id}","devices":"{devices}","cores":"{cores}","lnc":{self.lnc}}}'


def reply_for(inventory: NodeInventory, reply_id: str, mask: CoreMask) -> Reply:
    """The reply that gives the cores of ``mask``."""
    devices, cores = inventory.geometry.devices_touched(mask), cores_in(mask)
    return Reply(reply_id, tuple(map(int, devices)), tuple(map(int, cores)), inventory.logical_core_size)


def read_reply(text: str) -> Reply | None:
    """Read the value of ``ALLOCATION_KEY``; None if it is not one of ours."""
    try:
        fields = msgspec.json.decode(text, type=_Annotation)
        return Reply(fields.id, parse_ids(fields.devices), parse_ids(fields.cores), fields.lnc)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


class _Annotation(msgspec.Struct, frozen=True):
    id: str
    devices: str
    cores: str
    lnc: int


@lru_cache(maxsize=8)
def core_windows(geometry: Geometry) -> frozenset[tuple[int, int]]:
    """First and last core of every set of cores that a container may have.

    Relative to the first device of a container they are among these, too: every device can be the first one. So is
    every window inside a device: earlier versions did not align cores, and what they gave stays its pod's.
    """
    sets = map(cores_in, chain.from_iterable(sets_by_count(geometry, Unit.CORE).values()))
    inside = (combinations_with_replacement(cores_in(own), 2) for own in geometry.device_masks)
    return frozenset(chain(((cores[0], cores[-1]) for cores in sets), *inside))


@lru_cache(maxsize=8)
def cdi_specification(geometry: Geometry, style: ContainerStyle, *, claims: bool = False) -> dict[str, object]:
    """A CDI specification of every device under every number it can have in a container.

    ``13-0`` is host device 13 as ``/dev/neuron0``. Version 0.5.0 is the first with ``hostPath``. For ``claims`` there
    is also ``cores-2-3``, which makes these cores visible, and ``lnc-2``, which sets the logical core size. The kubelet
    remembers names for as long as a pod lives, so what is there follows from the machine alone and never changes. Do
    not change what is returned: it is remembered.
    """
    pairs = [
        (host, inside)
        for host in range(geometry.device_count)
        for inside in (range(host + 1) if claims or style.numbering is Numbering.CONTAINER else (host,))
    ]
    devices: list[dict[str, object]] = [
        {
            "name": cdi_device_name(host, inside),
            "containerEdits": {
                "deviceNodes": [
                    {"path": node.container_path, "hostPath": node.host_path, "permissions": node.permissions}
                ]
            },
        }
        for host, inside in pairs
        for node in [_node(style, host, inside)]
    ]
    if claims:  # Allocate says the same by variables of its own answer
        cores = {
            cdi_cores_name(*window): format_ids(range(window[0], window[1] + 1)) for window in core_windows(geometry)
        }
        variables = {name: f"{VISIBLE_CORES}={text}" for name, text in sorted(cores.items())}
        variables |= {cdi_size_name(size): f"{LOGICAL_CORE_CONFIG}={size}" for size in LOGICAL_CORE_SIZES}
        devices += [{"name": name, "containerEdits": {"env": [text]}} for name, text in variables.items()]
    return {"cdiVersion": "0.5.0", "kind": CDI_KIND, "devices": devices}


def _node(style: ContainerStyle, host: int, inside: int) -> DeviceNode:
    from neuron_plugin.kubelet import DeviceNode

    return DeviceNode(
        host_path=str(style.dev / f"neuron{host}"),
        container_path=str(PurePosixPath("/dev") / f"neuron{inside}"),
        permissions=_PERMISSIONS,
    )


def cdi_device_name(host: int, inside: int) -> str:
    """The CDI device that shows a device of the host under a number inside a container."""
    return f"{host}-{inside}"


def cdi_cores_name(first: int, last: int) -> str:
    """The CDI device that makes cores visible, as they are numbered inside a container."""
    return f"cores-{first}-{last}"


def cdi_size_name(logical_core_size: int) -> str:
    """The CDI device that sets the logical core size."""
    return f"lnc-{logical_core_size}"


def cdi_ultraserver_name(pod: NeuronPod) -> str:
    """The CDI device that sets a pod's variables of UltraServers."""
    return f"ultraserver-{pod.reference.uid}"


def cdi_variables(pods: Iterable[NeuronPod], inventory: NodeInventory) -> dict[str, object]:
    """A CDI specification of the variables of UltraServers that pods with claims get; empty if there are none."""
    variables = {cdi_ultraserver_name(pod): ultraserver_variables(pod, inventory) for pod in pods if pod.claims}
    devices = [
        {"name": device, "containerEdits": {"env": [f"{name}={value}" for name, value in edits.items()]}}
        for device, edits in variables.items()
        if edits
    ]
    return {"cdiVersion": "0.5.0", "kind": CDI_KIND, "devices": devices} if devices else {}


def write_cdi_files(settings: PluginSettings, inventory: NodeInventory, pods: Iterable[NeuronPod]) -> bool:
    """Write the CDI files of this node and of its ``pods``; whether the file of the devices was written.

    Raises:
        OSError: the directory cannot be made or written.
    """
    by_claims = settings.mode is Mode.DRA
    specification = cdi_specification(inventory.geometry, container_style(settings, inventory), claims=by_claims)
    if by_claims:
        write_cdi_specification(settings.cdi_dir, cdi_variables(pods, inventory), CDI_VARIABLES_FILE_NAME)
    return write_cdi_specification(settings.cdi_dir, specification)


def write_cdi_specification(directory: Path, specification: dict[str, object], name: str = CDI_FILE_NAME) -> bool:
    """Write the file as a whole, by a rename, unless it says this already; whether it was written.

    An empty specification writes nothing: the pods may only not be known yet, and a container that starts again needs
    what was there. Runtimes read the directory again at each container. It is on tmpfs and other programs write there,
    so the daemon calls this every few seconds.

    Raises:
        OSError: the directory cannot be made or written.
    """
    path, text = directory / name, msgspec.json.encode(specification)
    if not specification or (path.is_file() and path.read_bytes() == text):
        return False
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_bytes(text)
    unfinished.replace(path)
    return True
