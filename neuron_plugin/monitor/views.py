"""NeuronNode and NeuronPod: a node and a pod as the monitor API, ``/inspect`` and the command line show them.

The shapes are an interface: keys are added, and none is renamed or removed. All keys are always there; unknown values
are empty or 0, unknown times None. Ids are the host's, ascending; times are to the second and in UTC. A view is made
from immutable records, so any thread may make it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache, reduce
from operator import or_

import msgspec
from msgspec.structs import replace

from neuron_plugin.allocation import Assignment, NeuronPod, NodeInfo, NodeInventory, Rejection
from neuron_plugin.allocation.placement import is_constrained
from neuron_plugin.allocation.pod import assigned_allocations, mask_union
from neuron_plugin.allocation.utilization import ContainerUtilization, Utilization
from neuron_plugin.cluster import ApiResource
from neuron_plugin.placement.state import ClusterState
from neuron_plugin.planning.domains import domains_of
from neuron_plugin.topology import (
    MOST_SHAPES,
    CoreMask,
    Geometry,
    Topology,
    Unit,
    cores_in,
    free_sets,
    grids_of,
    links_of,
    valid_sets,
)
from neuron_plugin.wording import named

GROUP = "/apis/neuron-plugin.io/v1"
API_VERSION = "neuron-plugin.io/v1"
NODE_LABEL = "neuron-plugin.io/node"
NAMESPACE_LABEL = "neuron-plugin.io/namespace"
_MOST_MASKS = 8192
"""Masks whose ids are remembered."""
_LONGEST_ROW = 4
"""Of a drawing, where the topology leaves it open: the live page draws all devices in one size."""
_LATEST = datetime.max.replace(tzinfo=UTC).timestamp()
"""The end of year 9999; annotations can name later times."""


class _Part(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Base of all: names in JSON are camelCase."""


class ViewMetadata(_Part, frozen=True, omit_defaults=True):
    """``metadata``, with the labels ``neuron-plugin.io/node`` and, of a pod, ``neuron-plugin.io/namespace``."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] = {}


class _View(_Part, frozen=True):
    """An object of the monitor API, with the properties that a ``Reflector`` needs."""

    api_version: str = API_VERSION
    kind: str = ""
    metadata: ViewMetadata = ViewMetadata()

    @property
    def name(self) -> str:
        """The node's name, or the pod's in its namespace."""
        return self.metadata.name

    @property
    def uid(self) -> str:
        """The UID of the Kubernetes object."""
        return self.metadata.uid

    @property
    def resource_version(self) -> str:
        """The version of this state, in the count of the extender that shows it."""
        return self.metadata.resource_version


class NodeViewSpec(_Part, frozen=True):
    """A node's hardware; unknown values are empty. ``logical_core_size`` is the LNC in force.

    ``block_sizes`` are the device counts that are handed out as aligned blocks; if empty, any run is valid.
    ``core_block_sizes`` are the same for slices of cores, if they differ, as on Trn2 and Trn3. ``domains`` are the
    parts of the network in the node's labels, by level, the broadest first.

    ``places`` are the row and column of each device in a drawing. ``links`` are the devices that each device is linked
    to on a complete machine. Both are by device id.
    """

    instance_type: str = ""
    product: str = ""
    topology: str = ""
    devices: int = 0
    cores_per_device: int = 0
    physical_cores_per_device: int = 0
    logical_core_size: int = 0
    driver_version: str = ""
    block_sizes: tuple[int, ...] = ()
    core_block_sizes: tuple[int, ...] = ()
    domains: Mapping[str, str] = {}
    places: tuple[tuple[int, int], ...] = ()
    links: tuple[tuple[int, ...], ...] = ()


class UtilizationView(_Part, frozen=True):
    """How much a container uses its cores, or the containers of a device use it; empty if not ``known``.

    ``busy_percent``: how much of the last minutes the cores executed, on average over them; of a device over all its
    cores, held or not. ``idle_since`` is None while the cores executed lately.
    """

    known: bool = False
    busy_percent: int = 0
    memory_bytes: int = 0
    idle_since: datetime | None = None


class Holder(_Part, frozen=True):
    """A pod that has cores of the node, or is assumed to; it has cores of all these ``devices``."""

    namespace: str
    name: str
    uid: str
    cores: tuple[int, ...]
    devices: tuple[int, ...]


class ReservedCores(_Part, frozen=True):
    """Cores that are kept for a waiting pod, NAMESPACE/NAME, while others are moved away."""

    pod: str
    cores: tuple[int, ...]


class DeviceCounts(_Part, frozen=True):
    """The devices of a node by state. Each device counts once, so they add up, except ``used_broken``.

    ``used``: a pod has some of it, healthy or not; ``used_broken`` of them are unhealthy or missing. The others have no
    pods: ``free``, or ``closed`` if they would be free on an open node.
    """

    used: int = 0
    used_broken: int = 0
    free: int = 0
    closed: int = 0
    unhealthy: int = 0
    missing: int = 0
    held_down: int = 0
    disabled: int = 0
    reserved: int = 0


class NodeViewStatus(_Part, frozen=True):
    """The capacity of a node. ``open``: new pods are placed there; else ``reason`` and ``details`` say why not.

    ``free_devices`` are wholly free and healthy. ``free_sets`` has the number of free sets by count of devices; the
    sets overlap. ``largest_free_set`` are the devices of the largest one, the lowest if there are several.
    ``unhealthy_since`` has devices that became unhealthy while this extender runs. ``held_down_devices`` are unhealthy
    only until the processes of an ended pod are gone. ``last_renewal`` is when the plugin last renewed the node's
    Lease, by the plugin's clock, and ``stale``: it has stopped renewing. ``cordoned``: kube-scheduler puts no pod
    there, so it is not ``open``.

    ``reserved`` cores are not free. ``utilization`` has the pods' devices with known utilization; ``idle_devices`` are
    the unused ones among them.
    """

    open: bool = False
    reason: str = ""
    details: tuple[str, ...] = ()
    free_devices: tuple[int, ...] = ()
    free_cores: tuple[int, ...] = ()
    free_sets: Mapping[str, int] = {}
    largest_free_set: tuple[int, ...] = ()
    used_devices: tuple[int, ...] = ()
    used_cores: tuple[int, ...] = ()
    unhealthy_devices: Mapping[str, str] = {}
    unhealthy_since: Mapping[str, datetime | None] = {}
    missing_devices: tuple[int, ...] = ()
    disabled_devices: tuple[int, ...] = ()
    held_down_devices: tuple[int, ...] = ()
    reserved: tuple[ReservedCores, ...] = ()
    stale: bool = False
    last_renewal: str = ""
    cordoned: bool = False
    holders: tuple[Holder, ...] = ()
    utilization: Mapping[str, UtilizationView] = {}
    idle_devices: tuple[int, ...] = ()
    device_counts: DeviceCounts = DeviceCounts()


class NodeView(_View, frozen=True):
    """A NeuronNode: its hardware, its free devices, the holders of the others, and why it is closed."""

    kind: str = "NeuronNode"
    spec: NodeViewSpec = NodeViewSpec()
    status: NodeViewStatus = NodeViewStatus()


class ContainerDemand(_Part, frozen=True):
    """The request of one container. ``kind`` is ``init``, ``sidecar`` or ``app``."""

    name: str
    kind: str
    resource: str
    count: int


class PodViewSpec(_Part, frozen=True):
    """``containers`` are those that ask for Neuron, init containers first.

    ``constrained``: more than counts decides where the pod goes, or it is scheduled as one of a group. ``controller``
    is what made the pod, as KIND/NAME. ``movable``: the pod, or its namespace, says that it may be evicted to make
    room. An eviction would lose its work since ``work_since``. ``group`` is the PodGroup's name.
    """

    node_name: str = ""
    priority: int = 0
    containers: tuple[ContainerDemand, ...] = ()
    constrained: bool = False
    controller: str = ""
    movable: bool = False
    work_since: datetime | None = None
    group: str = ""
    created: datetime | None = None


class ContainerIds(_Part, frozen=True):
    """The assignment of one container: ``cores``, their ``devices``, and how much it uses them.

    While the pod's node is unknown, it has only the ids that the assignment names.
    """

    name: str
    devices: tuple[int, ...]
    cores: tuple[int, ...]
    utilization: UtilizationView = UtilizationView()


class PodViewStatus(_Part, frozen=True):
    """``phase`` is Waiting, Promised, Bound or Terminating; ``containers`` is empty until there is an assignment.

    Promised: the pod was placed on ``promised_node`` with these ids, which are kept for it, and is not bound yet.
    ``gated``: our scheduling gate holds it back. ``released_plainly`` says why this replica handed it to its scheduler
    without a place, if it did.

    ``allocated``: the kubelet's checkpoint shows the assigned ids; until then they are the scheduler's choice.
    ``state`` says all of these in one word: Waiting, Gated, Released, Promised, Bound (no assignment yet), Assigned,
    Allocated or Terminating. ``problem`` says why the request cannot be served or the assignment cannot be followed, or
    which of the pod's devices are unhealthy or missing, and why.
    """

    phase: str = ""
    allocated: bool = False
    containers: tuple[ContainerIds, ...] = ()
    problem: str = ""
    promised_node: str = ""
    gated: bool = False
    released_plainly: str = ""
    state: str = ""


class PodView(_View, frozen=True):
    """A NeuronPod: one live pod that asks for Neuron, its request, its node and its assignment."""

    kind: str = "NeuronPod"
    spec: PodViewSpec = PodViewSpec()
    status: PodViewStatus = PodViewStatus()

    @property
    def place(self) -> str:
        """The node where the pod is bound, or was promised its devices."""
        return self.spec.node_name or self.status.promised_node


NEURON_NODES = ApiResource(GROUP, "neuronnodes", NodeView)
NEURON_PODS = ApiResource(GROUP, "neuronpods", PodView)


def node_view(state: ClusterState, info: NodeInfo, version: int = 0) -> NodeView:
    """A node by ``info``; the last renewal of its Lease is read now, because a renewal is no change of the node."""
    metadata = ViewMetadata(info.name, uid=info.node.uid, resource_version=str(version), labels={NODE_LABEL: info.name})
    closed = info.closed.text if info.closed else ""
    renewed = state.history.renewals.get(info.name, "")
    inventory = info.node.inventory
    if isinstance(inventory, Rejection):
        details = tuple(filter(None, [inventory.detail]))
        status = NodeViewStatus(
            reason=closed, details=details, stale=info.stale, last_renewal=renewed, cordoned=info.node.cordoned
        )
        return NodeView(metadata=metadata, status=status)
    geometry = inventory.geometry
    holders = []
    for allocations in info.ledger.by_pod.values():
        pod, mask = allocations[0].pod, mask_union(allocations)
        holders.append(Holder(pod.namespace, pod.name, pod.uid, _cores(mask), _devices(geometry, mask)))
    spec = NodeViewSpec(
        instance_type=geometry.instance_type,
        product=inventory.device_name,
        topology=geometry.topology.value,
        devices=geometry.device_count,
        cores_per_device=geometry.cores_per_device,
        physical_cores_per_device=inventory.physical_cores_per_device,
        logical_core_size=inventory.logical_core_size,
        driver_version=inventory.driver_version,
        block_sizes=geometry.block_sizes,
        core_block_sizes=geometry.core_block_sizes,
        domains=domains_of(info.node.rules.labels, state.levels),
        places=_places(geometry.topology, geometry.device_count),
        links=_links(geometry.topology, geometry.device_count),
    )
    utilization = device_utilization(info, state.utilization_on(info.name))
    status = NodeViewStatus(
        open=not closed,
        reason=closed,
        details=info.details,
        free_devices=_whole_devices(geometry, info.free_mask),
        free_cores=_cores(info.free_mask),
        free_sets={str(count): number for count, number in free_sets(geometry, info.free_mask).items()},
        largest_free_set=_largest_free_set(geometry, info.free_mask),
        used_devices=_devices(geometry, info.used_mask),
        used_cores=_cores(info.used_mask),
        unhealthy_devices={str(device): why for device, why in inventory.unhealthy.items()},
        unhealthy_since={
            str(device): time_at(since) for device, since in state.history.unhealthy_since(info.name).items()
        },
        missing_devices=_ascending({*range(geometry.device_count)} - {*inventory.present}),
        disabled_devices=_ascending(inventory.disabled),
        held_down_devices=_ascending(inventory.held_down),
        reserved=tuple(ReservedCores(str(kept.pod), _cores(kept.mask)) for kept in info.reservations),
        stale=info.stale,
        last_renewal=renewed,
        cordoned=info.node.cordoned,
        holders=tuple(sorted(holders, key=lambda holder: (holder.namespace, holder.name, holder.uid))),
        utilization={str(device): use for device, use in utilization.items()},
        idle_devices=_ascending(device for device, use in utilization.items() if use.idle_since),
        device_counts=device_counts(info),
    )
    return NodeView(metadata=metadata, spec=spec, status=status)


def device_utilization(info: NodeInfo, utilization: Utilization) -> dict[int, UtilizationView]:
    """The utilization of each device whose held cores all have known utilization; idle since the last of them is.

    Plain init containers have no known utilization, because another container has their cores by then.
    """
    inventory = info.inventory
    if not (inventory and utilization):
        return {}
    geometry, by_device = inventory.geometry, dict[int, UtilizationView]()
    for device in geometry.devices_touched(info.used_mask):
        mask = geometry.device_mask(device)
        holders = [
            (allocation.mask, known)
            for allocation in info.ledger.overlapping(mask)
            if (known := utilization.get(allocation.pod.uid, {}).get(allocation.user))
        ]
        known_mask = reduce(or_, (held_mask for held_mask, _ in holders), 0)
        if mask & info.used_mask & ~known_mask:
            continue
        parts = [((held_mask & mask).bit_count(), held_mask.bit_count(), known) for held_mask, known in holders]
        busy = sum(cores * known.busy_percent for cores, _, known in parts) / geometry.cores_per_device
        idle = [known.idle_since for _, _, known in parts]
        memory = sum(known.memory_bytes * cores // of for cores, of, known in parts)
        by_device[int(device)] = UtilizationView(
            known=True,
            busy_percent=min(100, round(busy)),
            memory_bytes=memory,
            idle_since=time_at(max(idle) if all(idle) else 0),
        )
    return by_device


def _container_utilization(known: ContainerUtilization | None) -> UtilizationView:
    if known is None:
        return UtilizationView()
    return UtilizationView(
        known=True,
        busy_percent=known.busy_percent,
        memory_bytes=known.memory_bytes,
        idle_since=time_at(known.idle_since),
    )


def device_counts(info: NodeInfo) -> DeviceCounts:
    """The counts of a node's devices, the only ones for the page, the commands and the use over time."""
    inventory = info.inventory
    if inventory is None:
        return DeviceCounts()
    geometry = inventory.geometry
    devices, present, held_down = range(geometry.device_count), {*inventory.present}, {*inventory.held_down}
    used, free = {*geometry.devices_touched(info.used_mask)}, {*geometry.whole_devices(info.free_mask)}
    unused = [device for device in devices if device not in used and device not in free]
    states = dict.fromkeys(unused, "reserved")
    states |= dict.fromkeys((device for device in unused if device in inventory.disabled), "disabled")
    states |= dict.fromkeys((device for device in unused if device in inventory.unhealthy), "unhealthy")
    states |= dict.fromkeys((device for device in unused if device in held_down), "held_down")
    states |= dict.fromkeys((device for device in unused if device not in present), "missing")
    counted = Counter(states.values())
    counted["closed" if info.closed else "free"] = len(free)
    return DeviceCounts(used=len(used), used_broken=len(_broken(inventory, used)), **counted)


def _broken(inventory: NodeInventory, devices: Iterable[int]) -> dict[int, str]:
    """The unhealthy or missing devices among ``devices``, with the problem; a held-down device works."""
    broken = {}
    for device in devices:
        if device not in inventory.present:
            broken[device] = "missing"
        elif device in inventory.unhealthy and device not in inventory.held_down:
            broken[device] = "unhealthy"
        else:
            continue
        why = inventory.unhealthy.get(device, "").removeprefix(broken[device]).removeprefix(": ")
        broken[device] += f": {why}" if why else ""
    return broken


def pod_view(state: ClusterState, pod: NeuronPod, version: int = 0) -> PodView:
    """A pod; its cores and devices follow from the assignment and its node's present geometry."""
    namespace = pod.reference.namespace
    asked = (
        ContainerDemand(container.name, container.kind.value, container.resource.value, container.count)
        for container in pod.requests
    )
    info = state.nodes.get(pod.place)
    inventory = info.inventory if info else None
    containers, _ = _containers(pod, inventory.geometry if inventory else None)
    if used := state.utilization_of(pod.uid, pod.node):
        containers = tuple(
            replace(container, utilization=_container_utilization(used.get(container.name))) for container in containers
        )
    problem = pod_problem(state, pod)
    allocated = isinstance(pod.assignment, Assignment) and pod.assignment.allocated
    released = why_released(state, pod)
    word = _phase(pod)
    if word == "Waiting":
        word = "Gated" if pod.gated else "Released" if released else word
    elif word == "Bound" and containers:
        word = "Allocated" if allocated else "Assigned"
    return PodView(
        metadata=ViewMetadata(
            pod.reference.name,
            namespace,
            uid=pod.uid,
            resource_version=str(version),
            labels={NODE_LABEL: pod.node, NAMESPACE_LABEL: namespace},
        ),
        spec=PodViewSpec(
            pod.node,
            pod.priority,
            tuple(asked),
            constrained=is_constrained(pod.requests) or pod.group is not None,
            controller=pod.controller,
            movable=namespace in state.movable_namespaces if pod.movable is None else pod.movable,
            work_since=time_at(pod.work_since),
            group=pod.group[1] if pod.group else "",
            created=time_at(pod.created),
        ),
        status=PodViewStatus(
            phase=_phase(pod),
            allocated=allocated,
            containers=containers,
            problem=problem,
            promised_node=pod.promised,
            gated=pod.gated,
            released_plainly=released,
            state=word,
        ),
    )


def why_released(state: ClusterState, pod: NeuronPod) -> str:
    """Why a waiting pod was handed to its scheduler without a place; empty for any other pod.

    The pod itself says if nodes are left out for it; other reasons are known only to the replica that handed it over.
    """
    if pod.place:
        return ""
    known = state.history.released.get(pod.uid, "")
    return known or (state.scene().doubt(pod) if pod.released else "")


def pod_problem(state: ClusterState, pod: NeuronPod) -> str:
    """Why a pod's request or assignment cannot be followed, or the problem of its devices; empty if none."""
    info = state.nodes.get(pod.place)
    inventory = info.inventory if info else None
    containers, problem = _containers(pod, inventory.geometry if inventory else None)
    if info and pod.reference in info.void:
        return f"what it was promised on {info.name} is not free any more: the plugin chooses there"
    if not pod.place and (refusal := state.refusal(pod)):
        return str(refusal)
    return problem or (_broken_text(inventory, containers) if inventory else "")


def _phase(pod: NeuronPod) -> str:
    if pod.terminating:
        return "Terminating"
    return "Bound" if pod.node else "Promised" if pod.promised else "Waiting"


def _containers(pod: NeuronPod, geometry: Geometry | None) -> tuple[tuple[ContainerIds, ...], str]:
    """The assignment of each container, and the problem of the request or the assignment."""
    if isinstance(pod.request, Rejection):
        return (), pod.request.detail
    if not isinstance(pod.assignment, Assignment):
        return (), pod.assignment.detail if pod.assignment else ""
    if geometry is None:
        named = []
        for container in pod.assignment.containers:
            is_device, ids = container.request.resource.unit is Unit.DEVICE, _ascending(container.ids)
            named.append(ContainerIds(container.request.name, ids if is_device else (), () if is_device else ids))
        return tuple(named), ""
    assigned = assigned_allocations(pod, geometry)
    if isinstance(assigned, Rejection):
        return (), assigned.detail
    has = (ContainerIds(each.container, _devices(geometry, each.mask), _cores(each.mask)) for each in assigned)
    return tuple(has), ""


def _broken_text(inventory: NodeInventory, containers: Iterable[ContainerIds]) -> str:
    """The problem of a pod's devices; empty if none."""
    devices = {device for container in containers for device in container.devices}
    alike = defaultdict[str, list[int]](list)
    for device, why in sorted(_broken(inventory, devices).items()):
        alike[why].append(device)
    return "; ".join(f"{named('device', ids)} {why}" for why, ids in alike.items())


def time_at(unix_seconds: float) -> datetime | None:
    """The time to the second, as Kubernetes writes times; None for 0 (unknown) and for values that are no date."""
    return datetime.fromtimestamp(int(unix_seconds), UTC) if 0 < unix_seconds < _LATEST else None


def _ascending(ids: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(ids))


# A cluster of thousands of nodes has few different machines and masks: what follows from them is worked out once.


@lru_cache(maxsize=MOST_SHAPES)
def _places(topology: Topology, device_count: int) -> tuple[tuple[int, int], ...]:
    """By device id; a free row is between two tori."""
    places, first_row = dict[int, tuple[int, int]](), 0
    for grid in grids_of(topology, device_count, _LONGEST_ROW):
        places |= {device: (first_row + row, column) for device, (row, column) in grid.places.items()}
        first_row = 2 + max((row for row, _ in places.values()), default=0)
    return tuple(places[device] for device in range(device_count))


@lru_cache(maxsize=MOST_SHAPES)
def _links(topology: Topology, device_count: int) -> tuple[tuple[int, ...], ...]:
    return tuple(_ascending(links) for links in links_of(topology, device_count).values())


@lru_cache(maxsize=_MOST_MASKS)
def _devices(geometry: Geometry, mask: CoreMask) -> tuple[int, ...]:
    """The devices with any core in the mask."""
    return geometry.devices_touched(mask)


@lru_cache(maxsize=_MOST_MASKS)
def _whole_devices(geometry: Geometry, mask: CoreMask) -> tuple[int, ...]:
    return geometry.whole_devices(mask)


@lru_cache(maxsize=_MOST_MASKS)
def _largest_free_set(geometry: Geometry, free_mask: CoreMask) -> tuple[int, ...]:
    most = max((count for count, number in free_sets(geometry, free_mask).items() if number), default=0)
    sets = valid_sets(geometry, Unit.DEVICE, most)
    return next((_devices(geometry, mask) for mask in sets if mask & free_mask == mask), ())


@lru_cache(maxsize=_MOST_MASKS)
def _cores(mask: CoreMask) -> tuple[int, ...]:
    return cores_in(mask)
