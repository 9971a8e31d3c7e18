"""The health of a node's devices over time: what each signal means, and one state machine, as values.

``health_after`` takes the last state, the inventory and new kernel errors, and gives the next state. It reads no file
and no clock. Each signal on a device is a condition, in Prometheus' words:

    (none) --seen--> pending --for--> firing --cause gone, keep-firing-for--> resolved --flapping window--> (none)
                       | ^                                                       |
       (none) <--gone--+ +------------------ seen again: fires for longer -------+

``HealthRules`` say what a firing condition means for its device. Unhealthy stops new allocations only: pods keep the
devices they have. ``load`` and ``save`` keep the baseline (which errors are old) over a restart.
"""

from __future__ import annotations

import enum
import logging
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import msgspec
from msgspec import Meta

from neuron_plugin.hardware import Device, Inventory
from neuron_plugin.hardware.health_signals import (
    MISSING,
    Observation,
    Severity,
    Signal,
    Symptom,
    Verdict,
    observe,
    unreadable,
)
from neuron_plugin.hardware.kernel_log import KernelError
from neuron_plugin.topology import DeviceId

logger = logging.getLogger(__name__)

KERNEL_SIGNALS = frozenset({Signal.KERNEL_MESSAGE, Signal.KERNEL_MESSAGE_UNNAMED})
COUNTERS = frozenset(signal for signal in Signal if signal.counted)

Seconds = Annotated[float, Meta(ge=0, le=1e9)]
_HOUR = 3600.0


class Action(enum.StrEnum):
    """The consequence of a firing condition."""

    IGNORE = "ignore"
    WARN = "warn"
    """Reported in log, event, node condition and metric; the device is handed out."""
    UNHEALTHY = "unhealthy"
    """Not handed out; pods that have the device keep it."""


FIRST_HOLD_SECONDS, LONGEST_HOLD_SECONDS = 10.0, 900.0
"""How long a condition that has come back is held at least and at most, where its rule does not say longer."""


class SignalRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """The rule of one signal.

    It fires once it has been seen for ``for_seconds``, and until its cause has been gone for
    ``keep_firing_for_seconds``. The rest is for counters: the signal is seen from ``threshold`` errors on. With
    ``only_new_errors``, errors from before the daemon first saw the device do not count, and the cause of a firing
    condition is gone as soon as no further error comes: once it is resolved, its errors are old. Without it, the cause
    is gone when the counter is zeroed: of ECC errors by a power cycle.
    """

    action: Action = Action.UNHEALTHY
    for_seconds: Seconds = 0.0
    threshold: Annotated[int, Meta(ge=1)] = 1
    only_new_errors: bool = False
    keep_firing_for_seconds: Seconds = 0.0


_NEW_ERRORS = SignalRule(only_new_errors=True, keep_firing_for_seconds=_HOUR)
_FAILED_STARTS = SignalRule(threshold=3, for_seconds=30.0, keep_firing_for_seconds=_HOUR)
_RESET_FAILURES = msgspec.structs.replace(_NEW_ERRORS, for_seconds=30.0)
_NEW_ERRORS_WARN = msgspec.structs.replace(_NEW_ERRORS, action=Action.WARN)


class HealthRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """The section ``health:`` of the configuration file: a rule for each signal, and how flapping is damped.

        health:
          sram-ecc: {threshold: 5}
          hw-error: {action: unhealthy, keep-firing-for-seconds: 600}

    What is not named keeps its default. The defaults are strict with reports of the hardware and careful with the
    kernel log: a pod that has any Neuron device can write there about every device. A line that names a device stops
    new pods on that device for an hour. A line that names none is a warning, because one line must not empty a node. A
    device that is missing cannot be handed out, so there is no rule for that.

    A condition that returns within ``flapping_window_seconds`` keeps firing for at least ``FIRST_HOLD_SECONDS`` after
    its cause has gone, twice as long each further time, up to ``LONGEST_HOLD_SECONDS``: however fast a signal flaps,
    the number of transitions grows like the logarithm of time. A window of 0 turns that off. ``trust_user_messages``
    believes kernel log lines that processes have written, too.

    ``failed_starts`` counts starts of different pods in a row on one device that have failed (``failed_starts.py``).
    """

    node: SignalRule = SignalRule()
    reset_failed: SignalRule = SignalRule()
    components: SignalRule = SignalRule()
    sram_ecc: SignalRule = SignalRule()
    memory_ecc: SignalRule = SignalRule()
    hw_nc_ue_error: SignalRule = _NEW_ERRORS
    hw_hbm_ue_error: SignalRule = _NEW_ERRORS
    kernel_message: SignalRule = SignalRule(keep_firing_for_seconds=_HOUR)
    failed_starts: SignalRule = _FAILED_STARTS
    reset_failures: SignalRule = _RESET_FAILURES
    resetting: SignalRule = SignalRule(for_seconds=120.0)
    hw_dma_abort_error: SignalRule = _NEW_ERRORS_WARN
    hw_error: SignalRule = _NEW_ERRORS_WARN
    health_status: SignalRule = _NEW_ERRORS_WARN
    repairable_ecc: SignalRule = SignalRule(action=Action.WARN)
    kernel_message_unnamed: SignalRule = SignalRule(action=Action.WARN, keep_firing_for_seconds=_HOUR)
    flapping_window_seconds: Seconds = 600.0
    trust_user_messages: bool = False


def rule_of(rules: HealthRules, signal: Signal) -> SignalRule:
    """What ``signal`` means. A kernel message is an event: it cannot last, so it fires at once."""
    if signal is Signal.MISSING:
        return SignalRule()
    rule: SignalRule = getattr(rules, signal.value.replace("-", "_"))
    return msgspec.structs.replace(rule, for_seconds=0.0) if signal in KERNEL_SIGNALS and rule.for_seconds else rule


def hold_seconds(rule: SignalRule, times_fired: int) -> float:
    """How long a cause must be gone until its condition is resolved; ``times_fired``: how often it fired lately."""
    if times_fired <= 1:
        return rule.keep_firing_for_seconds
    first = max(rule.keep_firing_for_seconds, FIRST_HOLD_SECONDS)
    doubled = first * 2.0 ** min(times_fired - 2, 32)
    return max(rule.keep_firing_for_seconds, min(doubled, LONGEST_HOLD_SECONDS))


class Phase(enum.Enum):
    """Where a condition is."""

    PENDING = "pending"
    FIRING = "firing"
    RESOLVED = "resolved"
    """Kept for the flapping window only, to recognise a signal that comes back."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A signal as it is seen, in words, and when; ``count`` is a counter's, which is not 0 then."""

    text: str
    at: float
    count: int = 0


@dataclass(frozen=True, slots=True)
class Condition:
    """The memory of one signal on one device. ``since``: when its phase began.

    ``text`` stays as it was when the signal appeared until a counter has doubled: errors that go on are no news.
    """

    phase: Phase
    text: str
    since: float
    last_seen: float
    times_fired: int = 0
    count: int = 0
    reported_count: int = 0


def step(
    before: Condition | None, seen: Sighting | None, rule: SignalRule, rules: HealthRules, now: float
) -> Condition | None:
    """The condition after a reading at ``now``. None, as ``before``: nothing to remember."""
    firing = before is not None and before.phase is Phase.FIRING
    if seen and before and firing and rule.only_new_errors and 0 < seen.count <= before.count:
        seen = None  # errors that are only counted still are no further errors
    within_window = before is not None and now < before.since + rules.flapping_window_seconds
    if seen is None:
        if before is None or (before.phase is Phase.PENDING and not before.times_fired):
            return None
        if before.phase is Phase.RESOLVED:
            return before if within_window else None
        if firing and now < resolves_at(before, rule):
            return before
        return replace(before, phase=Phase.RESOLVED, since=now)
    if before is None or before.phase is Phase.RESOLVED:
        times_fired = before.times_fired if before and within_window else 0
        after = Condition(Phase.PENDING, seen.text, now, seen.at, times_fired, seen.count, seen.count)
    else:
        after = replace(before, last_seen=seen.at, count=seen.count)
        if seen.count and seen.count >= 2 * before.reported_count:
            after = replace(after, text=seen.text, reported_count=seen.count)
    if after.phase is Phase.PENDING and now - after.since >= rule.for_seconds:
        return replace(after, phase=Phase.FIRING, times_fired=after.times_fired + 1)
    return after


def resolves_at(firing: Condition, rule: SignalRule) -> float:
    """When a firing condition is resolved if its cause is not seen any more."""
    return firing.last_seen + hold_seconds(rule, firing.times_fired)


def next_change(condition: Condition, rule: SignalRule, *, seen: bool) -> float:
    """When ``step`` could give something else though all stays as it is ``seen`` now; infinity for never."""
    if condition.phase is Phase.PENDING:
        return condition.since + rule.for_seconds
    still_seen = seen and not (rule.only_new_errors and condition.count)
    if condition.phase is Phase.FIRING and not still_seen:
        return resolves_at(condition, rule)
    return float("inf")  # forgetting changes nothing that is visible


FILE_NAME = "health.json"
_VERSION = 2
"""Of the file's form."""
MOST_DEVICES = 256
"""Of devices that were here once; the oldest are forgotten."""

Baseline = Mapping[str, Mapping[str, int]]
"""How many errors of each counter are old, by serial number, as a chip may be replaced, else by the device's name.

Losing it costs little: errors from before the restart are old then."""


class _File(msgspec.Struct, frozen=True):
    version: int
    devices: dict[str, dict[str, int]]


def load(path: Path) -> Baseline:
    """What was kept; nothing where there is no usable file."""
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=_File)
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        logger.warning("cannot read the health file, starting without", extra={"file": str(path), "why": str(error)})
        return {}
    return kept.devices if kept.version == _VERSION else {}


def save(path: Path, baseline: Baseline) -> None:
    """Replace the file as a whole.

    Raises:
        OSError: the directory cannot be made or written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_bytes(msgspec.json.encode({"version": _VERSION, "devices": baseline}))
    aside.replace(path)


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """The memory of one device, and its verdict. ``key`` is what its baseline is kept under.

    ``conditions`` are by ``Observation.label``. ``present``: it was in the last inventory.
    """

    key: str
    present: bool = True
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    verdict: Verdict = field(default_factory=Verdict)
    next_change: float = float("inf")


@dataclass(frozen=True, slots=True)
class HealthState:
    """The health of every device that was seen by this daemon, and the baseline of every device that ever was."""

    baseline: Baseline = field(default_factory=dict)
    devices: Mapping[int, DeviceHealth] = field(default_factory=dict)

    @property
    def unhealthy(self) -> dict[int, str]:
        """Devices that must not be handed out, and why."""
        return {number: health.verdict.reason for number, health in self.devices.items() if not health.verdict.healthy}

    @property
    def next_change(self) -> float:
        """When to call ``health_after`` again if nothing happens before; infinity for never."""
        return min((health.next_change for health in self.devices.values()), default=float("inf"))


def health_after(
    state: HealthState,
    inventory: Inventory,
    now: float,
    rules: HealthRules,
    errors: Iterable[KernelError] = (),
    starts: Mapping[int, Observation] = MappingProxyType({}),
) -> HealthState:
    """The state at ``now`` (CLOCK_MONOTONIC, as kernel messages), given the last inventory and new kernel errors.

    ``starts`` are the failed starts on each device, as they were counted last.

    Call it for every new inventory, for new errors once there is a device, and at ``next_change``. A device that was
    here once and is not in the inventory is missing.
    """
    devices, baseline = dict(state.devices), dict(state.baseline)
    uses = Counter(device.serial_number for device in inventory.devices)
    for device in inventory.devices:
        serial = device.serial_number if uses[device.serial_number] == 1 else ""  # given twice, it identifies no chip
        last = devices.get(device.id)
        if last is None or (serial and serial != last.key):  # else it is the same chip, also with no serial just now
            devices[device.id] = DeviceHealth(serial or f"neuron{device.id}")
    messages = _messages(errors, devices, rules, now)
    present = {device.id: device for device in inventory.devices}
    skipped = {device.id: device.reason for device in inventory.skipped}
    for number, last in sorted(devices.items()):
        present_device = present.get(DeviceId(number))
        missing = Observation(Signal.MISSING, skipped.get(DeviceId(number), MISSING))
        counted = (starts[number],) if number in starts else ()
        observed = (*observe(present_device), *counted) if present_device else (missing,)
        accepted = dict(baseline.pop(last.key, {}))
        devices[number] = _judged(last, present_device, observed, messages.get(number, {}), accepted, rules, now)
        baseline[last.key] = accepted  # those that are here come last
    return HealthState(dict(list(baseline.items())[-MOST_DEVICES:]), dict(sorted(devices.items())))


def _messages(
    errors: Iterable[KernelError], devices: Mapping[int, DeviceHealth], rules: HealthRules, now: float
) -> dict[int, dict[str, Sighting]]:
    """Sightings of kernel errors by device: on the devices that they name, else on all."""
    messages: dict[int, dict[str, Sighting]] = {}
    for error in errors:
        if error.serial_number:  # says more than any number
            named = {number for number, device in devices.items() if device.key == error.serial_number}
        else:
            named = devices.keys() & {int(device) for device in error.devices}
        signal = Signal.KERNEL_MESSAGE if named and error.proves else Signal.KERNEL_MESSAGE_UNNAMED
        rule = rule_of(rules, signal)
        believed = rule.action is not Action.IGNORE and (error.by_kernel or rules.trust_user_messages)
        if believed and now - error.at < rule.keep_firing_for_seconds:  # else it is over already
            text = f"kernel message NEURON_HW_ERR={error.kind}" + ("" if named else ", naming no device of this node")
            for number in named or devices:
                messages.setdefault(number, {})[signal.value] = Sighting(text, error.at)
    return messages


def _judged(
    last: DeviceHealth,
    device: Device | None,
    observed: Sequence[Observation],
    messages: Mapping[str, Sighting],
    accepted: dict[str, int],
    rules: HealthRules,
    now: float,
) -> DeviceHealth:
    """The health of a device after a reading; ``device`` is None where it is missing. Updates ``accepted``."""
    counts = {seen.label: seen.count for seen in observed if seen.count is not None}
    conditions: dict[str, Condition] = {}
    for label, condition in last.conditions.items():
        outlives_it = _signal_of(label) in COUNTERS | KERNEL_SIGNALS | {Signal.MISSING}
        if last.present and device is None and not outlives_it:
            continue  # a device's node goes and comes a moment apart from it: no flapping
        was_zeroed = counts.get(label, condition.count) < condition.count
        conditions[label] = replace(condition, count=0, reported_count=0) if was_zeroed else condition
    sightings = {**_sightings(observed, accepted, rules, now), **messages}
    unread, due = unreadable(device) if device else frozenset(), float("inf")
    for label in dict.fromkeys([*conditions, *sightings]):
        signal = _signal_of(label)
        if label not in counts if signal in COUNTERS else signal in unread:
            continue
        before, seen, rule = conditions.pop(label, None), sightings.get(label), rule_of(rules, signal)
        after = step(before, seen, rule, rules, now)
        if after is None:
            continue
        conditions[label] = after
        due = min(due, next_change(after, rule, seen=seen is not None and label not in messages))
        resolved = before and before.phase is Phase.FIRING and after.phase is Phase.RESOLVED
        if resolved and rule.only_new_errors and label in counts:
            accepted[label] = counts[label]
    findings: list[Symptom] = []
    for label, condition in conditions.items():
        signal = _signal_of(label)
        if severity := _SEVERITIES.get((condition.phase, rule_of(rules, signal).action)):
            findings.append(Symptom(signal, severity, condition.text))
    order = list(Signal).index
    verdict = Verdict(
        tuple(sorted(findings, key=lambda finding: (-finding.severity, order(finding.signal), finding.text)))
    )
    return DeviceHealth(last.key, device is not None, conditions, verdict, due)


def _sightings(
    observed: Iterable[Observation], accepted: dict[str, int], rules: HealthRules, now: float
) -> dict[str, Sighting]:
    """Present faults; counters only above their baseline, which is brought up to date in ``accepted``."""
    sightings: dict[str, Sighting] = {}
    for seen in observed:
        rule = rule_of(rules, seen.signal)
        if seen.count is not None:
            if rule.only_new_errors:
                accepted.setdefault(seen.label, seen.count)
            if seen.count < accepted.get(seen.label, 0):  # zeroed by a power cycle or driver reload: all it has are new
                accepted[seen.label] = 0
        old = accepted.get(seen.label, 0)
        if rule.action is not Action.IGNORE and (seen.count is None or seen.count - old >= rule.threshold):
            sightings[seen.label] = Sighting(seen.worded(old), now, seen.count or 0)
    return sightings


_SEVERITIES = {
    (Phase.FIRING, Action.UNHEALTHY): Severity.UNHEALTHY,
    (Phase.FIRING, Action.WARN): Severity.WARNING,
    (Phase.PENDING, Action.UNHEALTHY): Severity.PASSING,
}


def _signal_of(label: str) -> Signal:
    return Signal(label.partition("/")[0])


@dataclass(frozen=True, slots=True)
class Transition:
    """Devices whose health changed in the same way, for the same reason (empty when they are healthy again)."""

    devices: tuple[int, ...]
    before: Severity
    after: Severity
    reason: str


def transitions(before: HealthState, after: HealthState) -> tuple[Transition, ...]:
    """The changes between two states, devices with the same news together.

    Conditions that are only pending are left out: they would be reported each time they come and go.
    """
    news: dict[tuple[Severity, Severity, str], list[int]] = {}
    for number, health in after.devices.items():
        last = before.devices[number].verdict if number in before.devices else Verdict()
        was, now = last.lasting, health.verdict.lasting
        if (was.severity, was.reason) != (now.severity, now.reason):
            news.setdefault((was.severity, now.severity, now.reason), []).append(number)
    return tuple(Transition(tuple(devices), *change) for change, devices in news.items())


def judge_once(inventory: Inventory, rules: HealthRules, baseline: Baseline) -> dict[DeviceId, Verdict]:
    """Judge every device by one reading, for the command line; ``baseline`` is what the daemon has saved, if known.

    A condition that has to last before it fires is only passing here. Errors are a warning where only new ones count
    and no earlier count is known.
    """
    state = health_after(HealthState(baseline), inventory, 0.0, rules)
    verdicts: dict[DeviceId, Verdict] = {}
    for device in inventory.devices:
        judged = state.devices[device.id]
        findings = list(judged.verdict.findings)
        for seen in observe(device):
            rule, is_known = rule_of(rules, seen.signal), seen.label in baseline.get(judged.key, {})
            if seen.count and rule.only_new_errors and rule.action is not Action.IGNORE and not is_known:
                findings.append(Symptom(seen.signal, Severity.WARNING, f"{seen.worded()}, which may be old"))
        verdicts[device.id] = Verdict(tuple(sorted(findings, key=lambda finding: -finding.severity)))
    return verdicts
