"""The next step of a node's pre-flight check: begin, wait, or end the check, and record the result.

A node is checked by a pod that has all of its devices: when it is new, after a reboot, and when all its devices have
recovered. No pod is moved for it: it begins once the node is empty. An obstacle ends by itself or in ``unable``, so
nothing waits for ever.

A group may ask to be checked as a whole before it starts: by a pod at each of its places, which run together.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from neuron_plugin.allocation import NeuronNode, NodeInventory, Rejection
from neuron_plugin.allocation.preflight import LONGEST_MESSAGE, Preflight, PreflightState, broken_devices
from neuron_plugin.topology import MOST_DEVICES
from neuron_plugin.wording import named

_LAST_LINES = 20
"""The last lines of a check's output that are searched for device names."""
_DEVICE = re.compile(r"\bdevice=(\d{1,3})\b", re.ASCII)


@dataclass(frozen=True, slots=True)
class PreflightRules:
    """Seconds: ``timeout`` bounds a check's run, and the time that it may be kept from running.

    A check that has not passed is made again after ``retry``; 0 for by hand only. ``again`` is the pause after a check
    that its kubelet refused. A kubelet may need ``late`` longer than ``timeout`` to end a check. ``closes``: a node
    whose check cannot run stays closed.
    """

    timeout: float = 600.0
    retry: float = 3600.0
    closes: bool = False
    again: float = 20.0
    late: float = 60.0


class CheckEnd(enum.Enum):
    """How the pod of a check ended."""

    RUNS = enum.auto()
    PASSED = enum.auto()
    FAILED = enum.auto()
    NOT_RUN = enum.auto()
    """Nothing was checked: it was not started, or was ended by others."""


@dataclass(frozen=True, slots=True)
class CheckPod:
    """The pod of a check. ``ran``: its container has started. ``said`` has its last lines, or why it does not run."""

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
    """An action for a node: make a pod (``begin``), delete it (``delete``), or write a ``record``."""

    record: Preflight | None = None
    begin: bool = False
    delete: bool = False


NOTHING = CheckStep()


def next_step(
    node: NeuronNode, check: CheckPod | None, rules: PreflightRules, now: float, *, busy: bool, ready: bool
) -> CheckStep:
    """The step that is due for a node at ``now``, in unix seconds.

    ``busy``: it has pods that ask for Neuron, besides the check's. ``ready``: pods can start there.
    """
    inventory, record = node.inventory, node.preflight
    if isinstance(inventory, Rejection):
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
    """Why a check cannot get all devices of a node, other than a pod that has ended just now."""
    if busy:
        return "pods on the node have its devices, and none is moved for a check"
    if broken := broken_devices(inventory):
        return f"{named('device', broken)} {'is' if len(broken) == 1 else 'are'} missing or unhealthy"
    return f"{named('device', inventory.disabled)} disabled" if inventory.disabled else ""


def _judged(node: NeuronNode, check: CheckPod, rules: PreflightRules, now: float, since: float) -> CheckStep:
    """The step that follows from the pod of a check; ``since`` is when the check became due."""
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
    """The text for a check that its deadline ended."""
    return f"it did not end within {seconds:g} s"


def unable(node: NeuronNode, rules: PreflightRules, at: float, why: str) -> Preflight:
    """The record of a check that cannot run."""
    message = why[-LONGEST_MESSAGE:]
    return Preflight(PreflightState.UNABLE, node.boot_id, at, message=message, closes=rules.closes)


def _failed(node: NeuronNode, now: float, said: str) -> Preflight:
    message = said.strip()[-LONGEST_MESSAGE:]
    return Preflight(PreflightState.FAILED, node.boot_id, now, named_devices(said), message)


def named_devices(said: str) -> tuple[int, ...]:
    """The devices that the last lines of a check name as ``device=3``."""
    lines = said.splitlines()[-_LAST_LINES:]
    devices = {int(number) for line in lines for number in _DEVICE.findall(line)}
    return tuple(sorted(device for device in devices if device < MOST_DEVICES))


# Groups.


class GroupVerdict(NamedTuple):
    """The result of a group's check: ``blamed`` are the pods that failed, ``why`` says why it could not run.

    ``again`` are refused pods that are made once more while it runs.
    """

    end: CheckEnd
    blamed: tuple[CheckPod, ...] = ()
    why: str = ""
    again: tuple[CheckPod, ...] = ()


def group_verdict(checks: Sequence[CheckPod | None], begun: float, rules: PreflightRules, now: float) -> GroupVerdict:
    """The result of a check that began at ``begun``, in unix seconds; a pod that was not made yet is None.

    Pods that wait for a pod that never started fail, too, and say nothing about their nodes. So a failure counts once
    all have started, or if it names a device. Among several, the ones that name a device are blamed.
    """
    made = [check for check in checks if check]
    if len(made) == len(checks) and all(check.end is CheckEnd.PASSED for check in made):
        return GroupVerdict(CheckEnd.PASSED)
    failed = tuple(check for check in made if check.end is CheckEnd.FAILED)
    never = [check for check in checks if check is None or not (check.ran or check.end is CheckEnd.PASSED)]
    if blamed := tuple(check for check in failed if named_devices(check.said)) or (() if never else failed):
        return GroupVerdict(CheckEnd.FAILED, blamed)
    may_start = any(check and check.end is CheckEnd.RUNS for check in never)
    age = now - begun
    if never and age >= rules.timeout + (rules.late if may_start else 0.0):
        said = (f"{check.node}: {check.said or 'its kubelet has not started it'}" for check in never if check)
        return GroupVerdict(CheckEnd.NOT_RUN, why=next(said, "its pods could not be made"))
    if age >= rules.timeout + rules.late:
        late = (check for check in made if check.end is CheckEnd.RUNS)
        return GroupVerdict(CheckEnd.FAILED, tuple(replace(check, said=timed_out(rules.timeout)) for check in late))
    refused = (check for check in made if check.end is CheckEnd.NOT_RUN and now - check.created >= rules.again)
    return GroupVerdict(CheckEnd.RUNS, again=tuple(refused))


CHECKED_FIRST = "Its group is checked before it starts"
"""The beginning of the reason why a pod of such a group waits."""


def running_text(ended: int, size: int) -> str:
    """Why a group waits while its check runs."""
    return f"{CHECKED_FIRST}: {ended} of {size} pods of its check have ended"
