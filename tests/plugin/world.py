"""Pods, machines and a model of the kubelet for the tests of the node daemon."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from neuron_plugin.allocation import (
    ContainerKind,
    ContainerSet,
    ContainerSpec,
    Holder,
    PodReference,
    PodUid,
    Resource,
    mask_of,
    parse_ids,
    pod_request,
    write_assignment,
)
from neuron_plugin.kubelet import ContainerAllocation, PodDevices, PodResourcesError, RecordedDevices
from neuron_plugin.kubelet.pod_resources import ContainerDevices
from neuron_plugin.plugin.allocator import Allocator
from neuron_plugin.plugin.container import VISIBLE_CORES, ContainerStyle
from neuron_plugin.plugin.machine import Machine
from neuron_plugin.plugin.node import NodeState
from neuron_plugin.plugin.pods import NodePod, node_pod
from neuron_plugin.plugin.settings import Numbering, TopologyPolicy
from neuron_plugin.plugin.steering import LookAtHolders, LookAtPods, Steering
from neuron_plugin.topology import CoreMask, Geometry, Topology, Unit

NEURON = Resource.NEURON
DEVICE = Resource.NEURONDEVICE
CORE = Resource.NEURONCORE

TRN1 = Geometry("trn1.32xlarge", Topology.TORUS, 16, 2, (1, 4, 8, 16))
TRN2 = Geometry("trn2.48xlarge", Topology.TORUS, 16, 4, (1, 4, 8, 16))
INF2 = Geometry("inf2.48xlarge", Topology.RING, 12, 2)
LINE = Geometry("inf1.6xlarge", Topology.LINE, 4, 4)

T = TypeVar("T")


def app(count: int, resource: Resource = NEURON, name: str = "app") -> ContainerSpec:
    return ContainerSpec(name, ContainerKind.APP, {resource.value: str(count)})


def init(count: int, resource: Resource = NEURON, name: str = "init") -> ContainerSpec:
    return ContainerSpec(name, ContainerKind.INIT, {resource.value: str(count)})


def sidecar(count: int, resource: Resource = NEURON, name: str = "sidecar") -> ContainerSpec:
    return ContainerSpec(name, ContainerKind.SIDECAR, {resource.value: str(count)})


def ref(name: str, uid: str = "") -> PodReference:
    return PodReference(PodUid(uid or f"uid-{name}"), "default", name)


def pod(name: str, *containers: ContainerSpec, uid: str = "", annotations: Mapping[str, str] | None = None) -> NodePod:
    made = node_pod(ref(name, uid), containers, annotations or {})
    assert made is not None
    return made


def decided(
    name: str,
    *containers: ContainerSpec,
    sets: Sequence[Sequence[int]],
    time: int = 1,
    allocated: bool = False,
    geometry: Geometry = TRN1,
) -> NodePod:
    """A pod with a decision: one list of ids for each requesting container."""
    annotations = assignment(geometry, containers, sets, time)
    return pod(name, *containers, annotations=annotations | ({"NEURON_ALLOCATED": "true"} if allocated else {}))


def assignment(
    geometry: Geometry, containers: Sequence[ContainerSpec], sets: Sequence[Sequence[int]], time: int = 1
) -> dict[str, str]:
    request = pod_request(containers)
    masks = [mask_of(geometry, part.resource.unit, tuple(ids)) for part, ids in zip(request, sets, strict=True)]
    return write_assignment(
        geometry, tuple(ContainerSet(part, mask) for part, mask in zip(request, masks, strict=True)), time
    )


def devices(*ids: int, geometry: Geometry = TRN1) -> CoreMask:
    return geometry.devices_mask(ids)


def machine(geometry: Geometry = TRN1, **fields: Any) -> Machine:
    return Machine(geometry, tuple(range(geometry.device_count)), **fields)


@dataclass
class FakeClock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeReport:
    told: list[tuple[str, str, str]] = field(default_factory=list)

    def report(self, reason: str, text: str, pod: PodReference | None) -> None:
        self.told.append((reason, text, str(pod) if pod and pod.name else ""))

    @property
    def reasons(self) -> list[str]:
        return [reason for reason, _, _ in self.told]


@dataclass
class FakePodResources:
    """The kubelet's account of its pods; ``listed`` is what it says, ``trouble`` what it says instead."""

    listed: dict[tuple[str, str], PodDevices] = field(default_factory=dict)
    trouble: PodResourcesError | None = None
    get_trouble: PodResourcesError | None = None
    calls: list[str] = field(default_factory=list)

    def say(self, name: str, **containers: tuple[Resource, Sequence[int]]) -> None:
        entries = tuple(
            ContainerDevices(container, resource.value, tuple(str(number) for number in ids))
            for container, (resource, ids) in containers.items()
        )
        self.listed["default", name] = PodDevices("default", name, entries)

    def forget(self, name: str) -> None:
        del self.listed["default", name]

    async def get(self, namespace: str, name: str) -> PodDevices | None:
        self.calls.append(f"get {name}")
        if trouble := self.get_trouble or self.trouble:
            raise trouble
        return self.listed.get((namespace, name))

    async def list(self) -> tuple[PodDevices, ...]:
        self.calls.append("list")
        if self.trouble:
            raise self.trouble
        return tuple(self.listed.values())


def recorded(uid: str, container: str, resource: Resource, *ids: int) -> RecordedDevices:
    """An entry of the kubelet's own file."""
    return RecordedDevices(uid, container, resource.value, frozenset(texts(ids)))


async def no_look(disputed: Collection[Holder]) -> None:
    """Nobody to ask."""


def host_style(_machine: Machine) -> ContainerStyle:
    return ContainerStyle(Numbering.HOST)


def an_allocator(
    state: NodeState,
    *,
    report: FakeReport | None = None,
    policy: TopologyPolicy = TopologyPolicy.PREFERRED,
    look_at_pods: LookAtPods | None = None,
    look_at_holders: LookAtHolders = no_look,
) -> Allocator:
    steering = Steering(state, look_at_pods, look_at_holders)
    return Allocator(state, host_style, policy, report or FakeReport(), steering)


def a_state(geometry: Geometry = TRN1, *pods: NodePod, clock: FakeClock | None = None) -> NodeState:
    state = NodeState(clock=clock or FakeClock(), holders_known=True)
    state.see_machine(machine(geometry))
    for each in pods:
        state.see_pod(each)
    return state


def texts(ids: Iterable[int]) -> list[str]:
    return [str(number) for number in ids]


def given_mask(geometry: Geometry, allocation: ContainerAllocation) -> CoreMask:
    """The silicon a container was given, read from what it received in host numbering."""
    cores = allocation.envs.get(VISIBLE_CORES)
    if cores is not None:
        return geometry.cores_mask(parse_ids(cores))
    return geometry.devices_mask(int(node.host_path.removeprefix("/dev/neuron")) for node in allocation.devices)


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine, from where no loop runs."""
    return asyncio.run(coroutine)


def unit_ids(geometry: Geometry, unit: Unit) -> range:
    return range(geometry.device_count if unit is Unit.DEVICE else geometry.core_count)


def shuffled(chance: Random, items: Iterable[int]) -> list[int]:
    order = sorted(items)
    chance.shuffle(order)
    return order
