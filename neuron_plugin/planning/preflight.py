"""What is due of a node that is checked before it takes pods: begin, wait, or end the check, and what is then so.

A new node, one that was rebooted, and one whose devices are all healthy again after one was not, is checked by a pod
that has all of its devices. No pod is moved for it: it begins once the node is empty. What keeps a check from running
ends by itself or in ``unable``, so nothing waits for ever.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, replace
from typing import NamedTuple

from neuron_plugin.allocation import NeuronNode, NodeInventory, Rejection
from neuron_plugin.allocation.preflight import LONGEST_MESSAGE, Preflight, PreflightState, broken_devices
from neuron_plugin.topology import MOST_DEVICES
from neuron_plugin.wording import named

_LAST_LINES = 20
"""Of what a check has said are looked at for the devices that it names."""
_DEVICE = re.compile(r"\bdevice=(\d{1,3})\b", re.ASCII)


@dataclass(frozen=True, slots=True)
class PreflightRules:
    """Seconds: ``timeout`` is how long a check may take, and how long one may be kept from running.

    ``retry`` is after how long a check that has not passed is made again; 0 for by hand only. ``again`` is the pause
    before a check that its kubelet refused is tried again, ``late`` how much longer than ``timeout`` a kubelet may need
    to end one. ``closes``: a node stays closed whose check cannot run.
    """

    timeout: float = 600.0
    retry: float = 3600.0
    closes: bool = False
    again: float = 20.0
    late: float = 60.0


class CheckEnd(enum.Enum):
    """What became of the pod of a check."""

    RUNS = enum.auto()
    PASSED = enum.auto()
    FAILED = enum.auto()
    NOT_RUN = enum.auto()
    """Nothing was checked: it was not started, or was ended by others."""


@dataclass(frozen=True, slots=True)
class CheckPod:
    """The pod of a check. ``ran``: its container has started. ``said`` is its last lines, or why it does not run."""

    name: str
    uid: str
    node: str
    boot_id: str
    created: float
    end: CheckEnd = CheckEnd.RUNS
    ran: bool = False
    said: str = ""
    terminating: bool = False


class CheckStep(NamedTuple):
    """What is done about a node: a pod is made (``begin``) or deleted (``delete``), a ``record`` is written."""

    record: Preflight | None = None
    begin: bool = False
    delete: bool = False


NOTHING = CheckStep()


def next_step(
    node: NeuronNode, check: CheckPod | None, rules: PreflightRules, now: float, *, busy: bool, ready: bool
) -> CheckStep:
    """What is due of a node at ``now``, in unix seconds.

    ``busy``: it has pods that ask for Neuron, besides that of the check. ``ready``: pods can start there.
    """
    inventory, record = node.inventory, node.preflight
    if isinstance(inventory, Rejection) or inventory.claim_driver:
        return CheckStep(delete=True) if check else NOTHING
    pending = Preflight(PreflightState.PENDING, node.boot_id, now)
    if check:
        return _judged(node, check, rules, now, record.at if record else now)
    if record is None:
        return NOTHING if busy else CheckStep(pending)
    if record.boot_id != node.boot_id:
        return CheckStep(pending)
    if record.at > now + rules.late:  # by a clock that was wrong
        return CheckStep(replace(record, at=now))
    is_retried = bool(rules.retry) and now - record.at >= rules.retry
    match record.state:
        case PreflightState.UNHEALTHY if not broken_devices(inventory):
            return CheckStep(pending)
        case PreflightState.UNHEALTHY if not record.at:  # seen, and not written
            return CheckStep(replace(record, at=now))
        case PreflightState.FAILED if is_retried:
            return CheckStep(pending)
        case PreflightState.UNABLE if is_retried and not _hindrance(inventory, busy=busy):
            return CheckStep(pending)
        case PreflightState.UNABLE if record.closes is not rules.closes:
            return CheckStep(unable(node, rules, record.at, record.message))
        case PreflightState.PENDING if why := _hindrance(inventory, busy=busy):
            return CheckStep(unable(node, rules, now, why)) if now - record.at >= rules.timeout else NOTHING
        case PreflightState.PENDING if ready and inventory.healthy_mask == inventory.geometry.all_mask:
            return CheckStep(begin=True)
    return NOTHING


def _hindrance(inventory: NodeInventory, *, busy: bool) -> str:
    """What keeps a check from all devices of a node, other than a pod that has ended just now."""
    if busy:
        return "pods on the node have its devices, and none is moved for a check"
    if broken := broken_devices(inventory):
        return f"{named('device', broken)} {'is' if len(broken) == 1 else 'are'} missing or unhealthy"
    return f"{named('device', inventory.disabled)} disabled" if inventory.disabled else ""


def _judged(node: NeuronNode, check: CheckPod, rules: PreflightRules, now: float, since: float) -> CheckStep:
    """What follows from the pod of a check; ``since`` is when the check became due."""
    if check.terminating:
        return NOTHING
    if check.boot_id != node.boot_id:
        return CheckStep(delete=True)
    age = now - check.created
    match check.end:
        case CheckEnd.PASSED if not isinstance(node.inventory, Rejection) and broken_devices(node.inventory):
            return CheckStep(delete=True)  # a device has become unhealthy meanwhile
        case CheckEnd.PASSED:
            return CheckStep(Preflight(PreflightState.PASSED, node.boot_id, now), delete=True)
        case CheckEnd.FAILED:
            return CheckStep(_failed(node, now, check.said), delete=True)
        case CheckEnd.NOT_RUN if now - since >= rules.timeout:
            return CheckStep(unable(node, rules, now, check.said), delete=True)
        case CheckEnd.NOT_RUN:
            return CheckStep(delete=True) if age >= rules.again else NOTHING
        case CheckEnd.RUNS if age >= rules.timeout + rules.late:
            if check.ran:
                return CheckStep(_failed(node, now, timed_out(rules.timeout)), delete=True)
            why = check.said or "its kubelet has not started it"
            return CheckStep(unable(node, rules, now, why), delete=True)
    return NOTHING


def timed_out(seconds: float) -> str:
    """What is said of a check that was ended by its deadline."""
    return f"it did not end within {seconds:g} s"


def unable(node: NeuronNode, rules: PreflightRules, at: float, why: str) -> Preflight:
    """The record of a check that cannot run."""
    message = why[-LONGEST_MESSAGE:]
    return Preflight(PreflightState.UNABLE, node.boot_id, at, message=message, closes=rules.closes)


def _failed(node: NeuronNode, now: float, said: str) -> Preflight:
    """The devices are those that the last lines name as ``device=3``."""
    lines = said.splitlines()[-_LAST_LINES:]
    devices = {int(number) for line in lines for number in _DEVICE.findall(line)}
    known = tuple(sorted(device for device in devices if device < MOST_DEVICES))
    return Preflight(PreflightState.FAILED, node.boot_id, now, known, said.strip()[-LONGEST_MESSAGE:])
