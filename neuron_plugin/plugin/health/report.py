"""What people are told of devices' health: the log, events on the node, and a node condition if one is wanted.

The condition is True when all is well, like the node's ``Ready``: True with every device healthy, False with one that
is not handed out, Unknown before any device was seen. It has the name that ``--node-condition`` gives it, which may not
be that of a condition somebody else writes. In particular it is not the node problem detector's ``NeuronHealth``, which
is True when something is *wrong*; ``NeuronDevicesHealthy`` says what it means.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from neuron_plugin.allocation import format_ids
from neuron_plugin.cluster import ApiRequest, ObjectReference, create_event, report_node_condition, utc_now
from neuron_plugin.plugin.health.keeper import Transition
from neuron_plugin.plugin.health.status import DeviceHealth, Status
from neuron_plugin.plugin.report import REPORTER

logger = logging.getLogger(__name__)


class Cluster(Protocol):
    """Where to say it. Neither blocks; the newest on a subject counts."""

    def tell(self, subject: str, request: ApiRequest) -> None:
        """Have a request sent to the API server."""

    def tell_of_node(self, subject: str, request: ApiRequest) -> None:
        """Have something written on the Node object, and again when that was made anew."""


_MOST_MESSAGE = 1024

_EVENT_REASONS = {
    Status.HEALTHY: "NeuronDeviceHealthy",
    Status.WARNING: "NeuronDeviceWarning",
    Status.UNHEALTHY: "NeuronDeviceUnhealthy",
}


class HealthReport:
    """Tells what changed, each change once; how often health may change is bounded where it is judged."""

    def __init__(
        self, node_name: str, condition: str, cluster: Cluster | None, now: Callable[[], datetime] = utc_now
    ) -> None:
        """No ``cluster`` means no API server; an empty ``condition`` that none is wanted."""
        self._node_name = node_name
        self._condition = condition
        self._cluster = cluster
        self._now = now
        self._since: tuple[bool | None, datetime] | None = None
        self._said: tuple[bool | None, str] | None = None

    def judged(self, devices: Mapping[int, DeviceHealth], transitions: Sequence[Transition]) -> None:
        """Log and tell every transition, and the state of all."""
        for transition in transitions:
            self._log(transition)
            if self._cluster:
                subject = f"health event {transition.after} of {format_ids(transition.devices)}"
                self._cluster.tell(subject, self._event(transition))
        if self._cluster and self._condition:
            self._report_condition(self._cluster, devices)

    def _log(self, transition: Transition) -> None:
        fields = {"devices": format_ids(transition.devices), "was": transition.before.value}
        if transition.after is Status.HEALTHY:
            logger.info("Neuron devices are healthy again", extra=fields)
        else:
            state = {"is": transition.after.value, "reason": transition.reason}
            logger.warning("the health of Neuron devices has changed", extra=fields | state)

    def _event(self, transition: Transition) -> ApiRequest:
        # A node's events are found under its name as UID, as the kubelet writes them (kubectl describe asks for both).
        return create_event(
            ObjectReference("Node", self._node_name, self._node_name, "v1"),
            reason=_EVENT_REASONS[transition.after],
            note=_sentence(transition),
            action="HealthCheck",
            reporter=REPORTER,
            instance=self._node_name,
            now=self._now(),
            warning=transition.after is not Status.HEALTHY,
        )

    def _report_condition(self, cluster: Cluster, devices: Mapping[int, DeviceHealth]) -> None:
        status, reason, message = condition_of(devices)
        if self._said == (status, message):
            return
        self._said = (status, message)
        now = self._now()
        if self._since is None or self._since[0] != status:
            self._since = (status, now)
        request = report_node_condition(
            self._node_name,
            condition=self._condition,
            status=status,
            reason=reason,
            message=message,
            since=self._since[1],
            now=now,
        )
        cluster.tell_of_node("health condition", request)


def condition_of(devices: Mapping[int, DeviceHealth]) -> tuple[bool | None, str, str]:
    """Status, reason and message of the node condition."""
    if not devices:
        return None, "NoDevices", "no Neuron device has been seen on this node yet"
    bad = _listed(devices, Status.UNHEALTHY)
    if bad:
        return False, "UnhealthyDevices", bad[:_MOST_MESSAGE]
    doubtful = _listed(devices, Status.WARNING)
    if doubtful:
        return True, "DevicesWithWarnings", doubtful[:_MOST_MESSAGE]
    return True, "AllDevicesHealthy", f"all {len(devices)} Neuron devices are healthy"


def _listed(devices: Mapping[int, DeviceHealth], status: Status) -> str:
    by_reason: dict[str, list[int]] = {}
    for device, health in sorted(devices.items()):
        if health.status is status:
            by_reason.setdefault(health.reason, []).append(device)
    return ". ".join(f"{_devices(ids)}: {reason}" for reason, ids in by_reason.items())


def _sentence(transition: Transition) -> str:
    whose, are = _devices(transition.devices), "is" if len(transition.devices) == 1 else "are"
    match transition.after:
        case Status.HEALTHY if transition.before is Status.UNHEALTHY:
            return f"{whose} {are} healthy again and given to new pods"
        case Status.HEALTHY:
            return f"nothing is wrong with {whose} any more"
        case Status.UNHEALTHY:
            return f"{whose} {are} not given to new pods: {transition.reason}"
        case _:
            return f"{whose} {are} still given to pods, but: {transition.reason}"


def _devices(ids: Sequence[int]) -> str:
    return f"neuron device{'' if len(ids) == 1 else 's'} {format_ids(tuple(ids))}"
