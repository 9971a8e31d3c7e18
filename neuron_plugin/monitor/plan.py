"""Plans: how to make room for waiting pods, how to drain a node, and how many more pods fit.

The extender's ``/plan``, the command line at an API server, and a cluster in a file are planned by this one function.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Container, Iterable

import msgspec

from neuron_plugin.allocation import NeuronPod, Placement, PodReference, PodUid
from neuron_plugin.allocation.node_rules import PodRules
from neuron_plugin.allocation.placement import placement_mask
from neuron_plugin.allocation.shapes import parse_shape, shape_text
from neuron_plugin.monitor.idle import IdleReport, idle_containers
from neuron_plugin.placement.state import ClusterState
from neuron_plugin.planning import (
    Cluster,
    Judgement,
    MoveRules,
    Relocation,
    Scene,
    Standing,
    drain,
    how_many_fit,
    judge_all,
)
from neuron_plugin.topology import Unit, cores_in

MOST_NAMES = 10
"""Nodes named when another one is not known."""


class UnknownNodeError(ValueError):
    """The node of a drain has no Neuron devices, or does not exist."""


class PlanOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What to plan: the waiting pods, a ``drain`` of a node, a pod of a ``shape`` such as ``neuron=4``, or nothing.

    ``idle``: list containers' unused devices. ``namespace``: report only its waiting pods and containers.
    ``most_victims`` of 0: no move is looked for.
    """

    namespace: str = ""
    idle: bool = False
    drain: str = ""
    shape: str = ""
    priority: int = 0
    by_priority: bool = False
    most_victims: int = MoveRules().most_victims


class MoveReport(msgspec.Struct, frozen=True, rename="camel"):
    """One pod that goes from a node to another, or to another set of the same, with its new ids.

    ``unit`` is what it asks for: ``device`` or ``core``.
    """

    pod: str
    source: str
    target: str
    devices: tuple[int, ...]
    cores: tuple[int, ...]
    unit: str = ""


class PodReport(msgspec.Struct, frozen=True, rename="camel"):
    """The planned place of a pod. Without a ``node``, ``reason`` says why there is none. ``lost`` is in device-hours.

    ``sentence`` begins the reason: why the pod waits, without what would help. ``in_the_way`` are pods, and ``lacks``
    is the number of its group's pods without room.
    """

    pod: str
    request: str
    standing: str
    node: str
    devices: tuple[int, ...]
    cores: tuple[int, ...]
    lost: float
    moves: tuple[MoveReport, ...]
    reason: str = ""
    unit: str = ""
    in_the_way: tuple[str, ...] = ()
    lacks: int = 0
    sentence: str = ""


class PlanReport(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The document. ``fitting`` is how many pods of the shape fit each node; ``stuck`` pods cannot be drained.

    ``reasons`` says why pods are stuck. ``warnings`` are those of ``kubectl drain``. ``idle`` are containers that use
    none of their devices, the most device-hours first; ``unknown`` is the number of containers with unknown use.
    """

    version: int = 1
    waiting: tuple[PodReport, ...] = ()
    drained: tuple[MoveReport, ...] = ()
    stuck: tuple[str, ...] = ()
    fitting: dict[str, int] = {}
    reasons: dict[str, str] = {}
    warnings: tuple[str, ...] = ()
    idle: tuple[IdleReport, ...] = ()
    unknown: int = 0

    @property
    def pods(self) -> Iterable[str]:
        """The pods in the report, each once, as NAMESPACE/NAME."""
        about = [pod.pod for pod in self.waiting] + [move.pod for move in self.drained]
        return dict.fromkeys([*about, *self.stuck, *(container.pod for container in self.idle)])

    @property
    def why_waiting(self) -> dict[str, str]:
        """Why pods without room wait, by NAMESPACE/NAME."""
        return {pod.pod: pod.sentence for pod in self.waiting if pod.sentence}

    def of(self, names: Container[str]) -> PlanReport:
        """The part of the report about these pods."""
        return msgspec.structs.replace(
            self,
            waiting=tuple(pod for pod in self.waiting if pod.pod in names),
            drained=tuple(move for move in self.drained if move.pod in names),
            stuck=tuple(name for name in self.stuck if name in names),
            reasons={name: why for name, why in self.reasons.items() if name in names},
            idle=tuple(container for container in self.idle if container.pod in names),
        )

    @property
    def without_place(self) -> int:
        """How many of the pods asked about fit nowhere now."""
        return len(self.stuck) + sum(pod.standing != Standing.FITS for pod in self.waiting)


async def plan(state: ClusterState, options: PlanOptions) -> PlanReport:
    """Plan with a state.

    Raises:
        DemandError: the shape is none. UnknownNodeError: the node of the drain does not exist.
    """
    if options.idle:
        idle, unmeasured = idle_containers(state, time.time(), options.namespace)
        return PlanReport(idle=tuple(idle), unknown=unmeasured)
    shape = parse_shape(options.shape) if options.shape else None
    cluster = state.snapshot()
    if options.drain:
        if options.drain not in state.nodes:
            raise unknown_node(state, options.drain)
        return await asyncio.to_thread(_drained, cluster, options.drain)
    waiting = state.waiting()
    if shape:
        neuron = tuple((container.resource.value, container.count * 1000) for container in shape)
        reference = PodReference(PodUid("new"), "", "new pod")
        waiting = [NeuronPod(reference, shape, priority=options.priority, rules=PodRules(neuron=neuron))]
    rules = MoveRules(options.most_victims, options.by_priority) if options.most_victims else None
    judged = await asyncio.to_thread(judge_all, Scene(cluster), waiting, now=time.time(), rules=rules)
    if options.namespace and not shape:  # all are judged: a set promised to one pod is not free for the next
        judged = [judgement for judgement in judged if judgement.pod.reference.namespace == options.namespace]
    return _reported(cluster, judged, how_many_fit(cluster, waiting[0]) if shape else {})


def unknown_node(state: ClusterState, name: str) -> UnknownNodeError:
    """The error about a node that does not exist, or has no Neuron devices; it names the existing ones."""
    names = sorted(name for name, info in state.nodes.items() if info.inventory)
    there = f"there are {', '.join(names[:MOST_NAMES])}{' and others' * (len(names) > MOST_NAMES)}"
    return UnknownNodeError(f"there is no node {name}: {there if names else 'none has Neuron devices'}")


def _drained(cluster: Cluster, name: str) -> PlanReport:
    outcome = drain(cluster, name)
    return PlanReport(
        drained=tuple(move_report(cluster, relocation) for relocation in outcome.moved),
        stuck=tuple(_name(pod) for pod, _ in outcome.stuck),
        reasons={_name(pod): reason for pod, reason in outcome.stuck},
        warnings=outcome.warnings,
    )


def _reported(cluster: Cluster, judged: Iterable[Judgement], fitting: dict[str, int]) -> PlanReport:
    reports = tuple(_pod_report(cluster, judgement) for judgement in judged)
    return PlanReport(waiting=reports, fitting=fitting)


def _pod_report(cluster: Cluster, judged: Judgement) -> PodReport:
    move = judged.move
    node, placement = (move.node, move.placement) if move else judged.place or ("", ())
    devices, cores, unit = _set_of(cluster, node, placement) if node else ((), (), "")
    return PodReport(
        _name(judged.pod),
        shape_text(judged.pod.requests),
        judged.standing.value,
        node,
        devices,
        cores,
        round(move.loss, 3) if move else 0.0,
        tuple(move_report(cluster, victim) for victim in move.victims) if move else (),
        "" if move else judged.text,
        unit,
        tuple(map(str, judged.in_the_way)),
        judged.lacks,
        judged.sentence,
    )


def move_report(cluster: Cluster, relocation: Relocation) -> MoveReport:
    """A relocation for people."""
    has = _set_of(cluster, relocation.target, relocation.placement)
    return MoveReport(_name(relocation.pod), relocation.source, relocation.target, *has)


def _name(pod: NeuronPod) -> str:
    return str(pod.reference) if pod.reference.namespace else pod.reference.name


def _set_of(cluster: Cluster, node: str, placement: Placement) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    """The devices that some sets touch, their cores, and the unit that was asked for."""
    inventory, mask = cluster.nodes[node].inventory, placement_mask(placement)
    if inventory is None:
        return (), (), ""
    devices, cores = inventory.geometry.devices_touched(mask), cores_in(mask)
    in_devices = all(container.request.resource.unit is Unit.DEVICE for container in placement)
    return tuple(map(int, devices)), tuple(map(int, cores)), Unit.DEVICE if in_devices else Unit.CORE
