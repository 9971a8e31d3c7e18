"""What a plan says: what would make room for waiting pods, what a drain takes, and how many more pods fit.

The extender's ``/plan``, the command line at an API server, and a cluster in a file are planned by this one function.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable

import msgspec

from neuron_plugin.allocation import NeuronPod, Placement, PodReference, PodUid
from neuron_plugin.allocation.placement import placement_mask
from neuron_plugin.allocation.resources import format_ids, ranges
from neuron_plugin.cluster import ApiServer
from neuron_plugin.monitor.idle import IdleReport, idle_containers
from neuron_plugin.planning import (
    RULES,
    Cluster,
    MoveRules,
    Prospect,
    Relocation,
    Standing,
    drain,
    how_many_more,
    parse_shape,
    prospects,
    shape_text,
)
from neuron_plugin.scheduling.state import ClusterState
from neuron_plugin.scheduling.volumes import ClaimedVolumes
from neuron_plugin.topology import Unit, cores_in

MOST_NAMES = 10
"""Nodes named when another one is not known."""
_MOST_LOOKS = 5
"""Plans until all volumes of their victims are known."""


class UnknownNodeError(ValueError):
    """The node of a drain has no Neuron devices, or is not there."""


class PlanOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What to plan: the waiting pods, a ``drain`` of a node, a pod of a ``shape`` such as ``neuron=4``, or nothing.

    ``idle``: list what containers have and do not use.
    """

    idle: bool = False
    drain: str = ""
    shape: str = ""
    priority: int = 0
    by_priority: bool = False
    most_victims: int = RULES.most_victims


class MoveReport(msgspec.Struct, frozen=True, rename="camel"):
    """One pod that goes from a node to another, or to another set of the same, with its new ids.

    ``ids`` is a text for people: whole devices, or cores.
    """

    pod: str
    source: str
    target: str
    devices: str
    cores: str
    ids: str = ""


class PodReport(msgspec.Struct, frozen=True, rename="camel"):
    """The prospects of a pod. Without a ``node`` there are none, and ``reason`` says why. ``lost`` in device-hours."""

    pod: str
    request: str
    standing: str
    node: str
    devices: str
    cores: str
    lost: float
    moves: tuple[MoveReport, ...]
    reason: str = ""
    ids: str = ""


class PlanReport(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The document. ``more`` is how many more pods of the shape fit each node, and ``stuck`` what cannot be drained.

    ``left_out`` are waiting pods that cannot be judged. ``reasons`` says why, of these and of the stuck ones.
    ``idle`` are containers that use nothing of what they have, the most device-hours first, and ``unknown`` is of how
    many containers it is not known.
    """

    version: int = 1
    waiting: tuple[PodReport, ...] = ()
    left_out: tuple[str, ...] = ()
    drained: tuple[MoveReport, ...] = ()
    stuck: tuple[str, ...] = ()
    more: dict[str, int] = {}
    reasons: dict[str, str] = {}
    idle: tuple[IdleReport, ...] = ()
    unknown: int = 0

    @property
    def without_place(self) -> int:
        """How many of the pods asked about fit nowhere now."""
        return len(self.stuck) + len(self.left_out) + sum(pod.standing != Standing.FITS for pod in self.waiting)


async def plan(api: ApiServer | None, state: ClusterState, options: PlanOptions) -> PlanReport:
    """Plan with a state; ``api`` is asked for volumes, which are not known without it.

    Raises:
        DemandError: the shape is none.
        UnknownNodeError: the node of the drain is not there.
        ClusterError: the server did not answer, or could not this time.
    """
    if options.idle:
        idle, unmeasured = idle_containers(state, time.time())
        return PlanReport(idle=tuple(idle), unknown=unmeasured)
    shape = parse_shape(options.shape) if options.shape else None
    waiting = [] if shape or options.drain else state.waiting()
    if shape:
        reference = PodReference(PodUid("new"), "", "new pod")
        waiting = [NeuronPod(reference, shape, priority=options.priority)]
    elif options.drain and options.drain not in state.nodes:
        names = sorted(name for name, info in state.nodes.items() if info.inventory)
        there = f"there are {', '.join(names[:MOST_NAMES])}{' and others' * (len(names) > MOST_NAMES)}"
        raise UnknownNodeError(f"there is no node {options.drain}: {there if names else 'none has Neuron devices'}")
    about = [pod for pod in state.pods.values() if pod.node == options.drain] if options.drain else waiting
    volumes, asked = ClaimedVolumes(api) if api else None, dict[PodUid, NeuronPod]()
    while True:
        asked |= {pod.uid: pod for pod in about if pod.rules.claims}
        if volumes:
            await volumes.read(asked.values())
        known = {
            uid: pod_volumes for uid, pod in asked.items() if volumes and (pod_volumes := volumes.of(pod)) is not None
        }
        unknown = asked.keys() - known.keys() if volumes else ()
        cluster = state.cluster(volumes=known, left_alone=unknown)
        if options.drain:
            return await asyncio.to_thread(_drained, cluster, options.drain)
        judged = [pod for pod in waiting if pod.uid not in unknown]
        rules = MoveRules(options.most_victims, options.by_priority)
        expected = await asyncio.to_thread(prospects, cluster, judged, now=time.time(), rules=rules)
        about = [victim.pod for prospect in expected if prospect.move for victim in prospect.move.victims]
        if not any(pod.rules.claims and pod.uid not in asked for pod in about):
            break  # no victim of which the volumes were not looked at
    more = how_many_more(cluster, waiting[0]) if shape else {}
    return _reported(cluster, expected, more, [pod for pod in waiting if pod.uid in unknown])


def _drained(cluster: Cluster, name: str) -> PlanReport:
    outcome = drain(cluster, name)
    return PlanReport(
        drained=tuple(_move_report(cluster, relocation) for relocation in outcome.moved),
        stuck=tuple(_name(pod) for pod, _ in outcome.stuck),
        reasons={_name(pod): reason for pod, reason in outcome.stuck},
    )


def _reported(
    cluster: Cluster, expected: Collection[Prospect], more: dict[str, int], unread: Iterable[NeuronPod]
) -> PlanReport:
    judged = [prospect for prospect in expected if prospect.standing is not Standing.UNKNOWN]
    reasons = {_name(prospect.pod): prospect.reason for prospect in expected if prospect.standing is Standing.UNKNOWN}
    reasons |= {_name(pod): "the volumes of its claims cannot be read" for pod in unread}
    reports = tuple(_pod_report(cluster, prospect) for prospect in judged)
    return PlanReport(waiting=reports, left_out=tuple(reasons), more=more, reasons=reasons)


def _pod_report(cluster: Cluster, prospect: Prospect) -> PodReport:
    move = prospect.move
    node, placement = (move.node, move.placement) if move else (prospect.node, prospect.placement)
    devices, cores, ids = _id_texts(cluster, node, placement) if node else ("", "", "")
    return PodReport(
        _name(prospect.pod),
        shape_text(prospect.pod.requests),
        prospect.standing.value,
        node,
        devices,
        cores,
        round(move.loss, 3) if move else 0.0,
        tuple(_move_report(cluster, victim) for victim in move.victims) if move else (),
        prospect.reason,
        ids,
    )


def _move_report(cluster: Cluster, relocation: Relocation) -> MoveReport:
    texts = _id_texts(cluster, relocation.target, relocation.placement)
    return MoveReport(_name(relocation.pod), relocation.source, relocation.target, *texts)


def _name(pod: NeuronPod) -> str:
    return str(pod.reference) if pod.reference.namespace else pod.reference.name


def _id_texts(cluster: Cluster, node: str, placement: Placement) -> tuple[str, str, str]:
    """The devices that some sets touch, their cores, and a text for people."""
    inventory, mask = cluster.nodes[node].inventory, placement_mask(placement)
    if inventory is None:
        return "", "", ""
    devices, cores = inventory.geometry.devices_touched(mask), cores_in(mask)
    in_devices = all(container.request.resource.unit is Unit.DEVICE for container in placement)
    unit, ids = (Unit.DEVICE, list[int](devices)) if in_devices else (Unit.CORE, list[int](cores))
    return format_ids(devices), format_ids(cores), f"{unit}{'s' if len(ids) > 1 else ''} {ranges(ids)}"
