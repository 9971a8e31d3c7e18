"""Devices that containers have and do not use: their owners could be asked for them. They are never taken away."""

from __future__ import annotations

from datetime import datetime

import msgspec

from neuron_plugin.allocation import Allocation, ContainerKind, NeuronPod
from neuron_plugin.allocation.utilization import ContainerUtilization
from neuron_plugin.monitor.views import time_at
from neuron_plugin.placement.state import ClusterState
from neuron_plugin.topology import Geometry, cores_in
from neuron_plugin.wording import unit_of

_HOUR = 3600


class IdleReport(msgspec.Struct, frozen=True, rename="camel"):
    """The devices of one container that are idle since ``idle_since``.

    ``device_hours`` is the idle amount: devices, or parts of them, times hours. ``controller`` makes the pod again, as
    KIND/NAME; empty without one. ``unit`` is ``device`` of whole devices, else ``core``.
    """

    pod: str
    container: str
    node: str
    devices: tuple[int, ...]
    cores: tuple[int, ...]
    unit: str
    idle_since: datetime
    device_hours: float
    memory_bytes: int
    controller: str


def idle_containers(state: ClusterState, now: float, namespace: str = "") -> tuple[list[IdleReport], int]:
    """The idle containers, the most device-hours first, and the number of containers with unknown use.

    Only of ``namespace``, if given. Plain init containers do not count: they have ended by the time of a look.
    """
    reports, unknown = list[IdleReport](), 0
    for name, info in state.nodes.items():
        known = state.utilization_on(name)
        for allocation in info.ledger.allocations if info.inventory else ():
            pod, used = state.pods.get(allocation.pod.uid), known.get(allocation.pod.uid, {}).get(allocation.user)
            if not pod or namespace not in {"", pod.reference.namespace}:
                continue
            if pod.node and info.inventory and allocation.kind is not ContainerKind.INIT:
                unknown += used is None
                if used and (since := time_at(used.idle_since)):
                    reports.append(_report(pod, allocation, used, info.inventory.geometry, since, now))
    return sorted(reports, key=lambda report: (-report.device_hours, report.pod, report.container)), unknown


def _report(
    pod: NeuronPod, allocation: Allocation, used: ContainerUtilization, geometry: Geometry, since: datetime, now: float
) -> IdleReport:
    devices, cores = geometry.devices_touched(allocation.mask), cores_in(allocation.mask)
    hours = max(0.0, now - used.idle_since) / _HOUR
    return IdleReport(
        pod=str(pod.reference),
        container=allocation.user,
        node=pod.node,
        devices=tuple(devices),
        cores=tuple(cores),
        unit=unit_of(geometry, allocation.mask),
        idle_since=since,
        device_hours=round(hours * len(cores) / geometry.cores_per_device, 3),
        memory_bytes=used.memory_bytes,
        controller=pod.controller,
    )
