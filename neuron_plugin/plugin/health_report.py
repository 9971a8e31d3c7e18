"""Health in words: log lines, events on the node, and a node condition if one is wanted.

The condition is True when all is well, like the node's ``Ready``: True with every device healthy, False with one that
is not handed out, Unknown before any device was seen. ``--node-condition`` names it, and the name may not be that of a
condition that another program writes. In particular it is not the node problem detector's ``NeuronHealth``, which is
True when something is *wrong*; ``NeuronDevicesHealthy`` says what it means.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime

from neuron_plugin.allocation import format_ids
from neuron_plugin.cluster import ApiRequest, ObjectReference, create_event
from neuron_plugin.hardware import Severity
from neuron_plugin.plugin.health import HealthState, Transition
from neuron_plugin.plugin.publisher import REPORTER

logger = logging.getLogger(__name__)

_MOST_MESSAGE = 1024


def log_transition(transition: Transition) -> None:
    """One line for each change."""
    fields = {"devices": format_ids(transition.devices), "was": transition.before.name.lower()}
    if transition.after is Severity.HEALTHY:
        logger.info("Neuron devices are healthy again", extra=fields)
    else:
        state = {"is": transition.after.name.lower(), "reason": transition.reason}
        logger.warning("the health of Neuron devices has changed", extra=fields | state)


def health_event(transition: Transition, node_name: str, now: datetime) -> ApiRequest:
    """An event on the node. It is found under the node's name as UID, as the kubelet writes its own."""
    reasons = {Severity.HEALTHY: "NeuronDeviceHealthy", Severity.UNHEALTHY: "NeuronDeviceUnhealthy"}
    return create_event(
        ObjectReference("Node", node_name, node_name, "v1"),
        reason=reasons.get(transition.after, "NeuronDeviceWarning"),
        note=_sentence(transition),
        action="HealthCheck",
        reporter=REPORTER,
        instance=node_name,
        now=now,
        warning=transition.after is not Severity.HEALTHY,
    )


def _sentence(transition: Transition) -> str:
    subject = f"{_named(transition.devices)} {'is' if len(transition.devices) == 1 else 'are'}"
    match transition.after:
        case Severity.HEALTHY if transition.before is Severity.UNHEALTHY:
            return f"{subject} healthy again and given to new pods"
        case Severity.HEALTHY:
            return f"{subject} healthy again, the warning is over"
        case Severity.UNHEALTHY:
            return f"{subject} not given to new pods: {transition.reason}"
        case _:
            return f"{subject} still given to pods, with a warning: {transition.reason}"


def node_condition(state: HealthState) -> tuple[bool | None, str, str]:
    """Status, reason and message of the node condition."""
    if not state.devices:
        return None, "NoDevices", "no Neuron device has been seen on this node yet"
    if unhealthy := _listed(state, Severity.UNHEALTHY):
        return False, "UnhealthyDevices", unhealthy[:_MOST_MESSAGE]
    if warnings := _listed(state, Severity.WARNING):
        return True, "DevicesWithWarnings", warnings[:_MOST_MESSAGE]
    return True, "AllDevicesHealthy", f"all {len(state.devices)} Neuron devices are healthy"


def _listed(state: HealthState, severity: Severity) -> str:
    by_reason: dict[str, list[int]] = {}
    for number, one in state.devices.items():
        if one.verdict.severity is severity:
            by_reason.setdefault(one.verdict.reason, []).append(number)
    return ". ".join(f"{_named(numbers)}: {reason}" for reason, numbers in by_reason.items())


def _named(numbers: Sequence[int]) -> str:
    return f"neuron device{'' if len(numbers) == 1 else 's'} {format_ids(tuple(numbers))}"
