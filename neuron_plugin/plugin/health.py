"""The health of a node's devices over time: one state machine, as values.

``health_after`` takes the last state, the inventory and new kernel errors, and gives the next state. It reads no file
and no clock. Each signal on a device is a condition, in Prometheus' words:

    (none) --seen--> pending --for--> firing --cause gone, keep-firing-for--> resolved --flapping window--> (none)
                        |                ^                                        |
                        +--gone--> (none)+----------- seen again, held longer ----+

``health_rules`` say what a firing condition means for its device. Unhealthy stops new allocations only: pods keep the
devices they have. ``load`` and ``save`` keep the baseline (which errors are old, what waits for a driver reload) over a
restart.
"""

from __future__ import annotations

import enum
import logging
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from neuron_plugin.hardware import (
    MISSING,
    Device,
    Finding,
    Inventory,
    KernelError,
    Observation,
    Severity,
    Signal,
    Verdict,
    device_key,
    observe,
    unreadable,
)
from neuron_plugin.plugin.health_rules import (
    KERNEL_SIGNALS,
    Action,
    Baseline,
    HealthRules,
    Recovery,
    SignalRule,
    hold_seconds,
    rule_of,
)
from neuron_plugin.topology import DeviceId

logger = logging.getLogger(__name__)

COUNTERS = frozenset(
    {
        *(Signal.SRAM_ECC, Signal.MEMORY_ECC, Signal.REPAIRABLE_ECC, Signal.HEALTH_STATUS),
        *(Signal.NC_UNCORRECTABLE, Signal.HBM_UNCORRECTABLE, Signal.DMA_ABORT, Signal.HW_ERROR),
    }
)
"""Signals that sysfs counts. One that cannot be read says nothing, so its condition stays as it is."""
_SURVIVES_A_RELOAD = COUNTERS | KERNEL_SIGNALS | {Signal.MISSING}

Name = tuple[Signal, str]
"""A signal, and its part if several can be seen at once."""


class Phase(enum.Enum):
    """Where a condition is."""

    PENDING = "pending"
    FIRING = "firing"
    RESOLVED = "resolved"
    """Kept for the flapping window only, to recognise a signal that comes back."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A signal as it is seen, and when (a message may be older than its reading); ``accepted`` errors are old ones."""

    observation: Observation
    at: float
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class Condition:
    """What is remembered of one signal on one device. ``since``: when its phase began.

    ``text`` stays as it was when the signal appeared until a counter has doubled: errors that go on are no news.
    """

    phase: Phase
    text: str
    since: float
    last_seen: float
    times_fired: int = 0
    count: int | None = None
    reported_count: int = 0


def step(
    before: Condition | None, seen: Sighting | None, rule: SignalRule, rules: HealthRules, now: float
) -> Condition | None:
    """The condition after a reading at ``now``. None, as ``before``: nothing to remember."""
    counted = before.count if before and before.phase is Phase.FIRING and rule.recovery is Recovery.QUIET else None
    if seen and counted is not None and (seen.observation.count or 0) <= counted:
        seen = None  # errors that are only counted still are no further errors
    within_window = before is not None and now < before.since + rules.flapping_window_seconds
    if seen is None:
        if before is None or (before.phase is Phase.PENDING and not before.times_fired):
            return None
        if before.phase is Phase.RESOLVED:
            return before if within_window else None
        if before.phase is Phase.FIRING and now < resolves_at(before, rule, rules):
            return before
        return replace(before, phase=Phase.RESOLVED, since=now)
    observed = seen.observation
    if before is None or before.phase is Phase.RESOLVED:
        times_fired = before.times_fired if before and within_window else 0
        text, count = observed.worded(seen.accepted), observed.count
        after = Condition(Phase.PENDING, text, now, seen.at, times_fired, count, count or 0)
    else:
        after = replace(before, last_seen=seen.at, count=observed.count)
        if observed.count is not None and observed.count >= 2 * before.reported_count:
            after = replace(after, text=observed.worded(seen.accepted), reported_count=observed.count)
    if after.phase is Phase.PENDING and now - after.since >= rule.for_seconds:
        return replace(after, phase=Phase.FIRING, times_fired=after.times_fired + 1)
    return after


def resolves_at(firing: Condition, rule: SignalRule, rules: HealthRules) -> float:
    """When a firing condition is resolved if its cause is not seen any more; infinity for one that needs a reload."""
    if rule.recovery is Recovery.RELOAD:
        return float("inf")
    return firing.last_seen + hold_seconds(rules, rule, firing.times_fired)


def next_change(condition: Condition, rule: SignalRule, rules: HealthRules, *, seen: bool) -> float:
    """When ``step`` could give something else though all stays as it is ``seen`` now; infinity for never."""
    if condition.phase is Phase.PENDING:
        return condition.since + rule.for_seconds
    quiet = rule.recovery is Recovery.QUIET and condition.count is not None
    if condition.phase is Phase.FIRING and (quiet or not seen):
        return resolves_at(condition, rule, rules)
    return float("inf")  # forgetting changes nothing that is visible


FILE_NAME = "health.json"
_VERSION = 1
MOST_DEVICES = 256
"""Of devices that were here once; the oldest are forgotten."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class DeviceMemory(msgspec.Struct, frozen=True, omit_defaults=True):
    """Accepted counts, and the texts of conditions that need a driver reload, each by the name of its signal."""

    accepted: Mapping[str, int] = {}
    latched: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Memory:
    """What outlives a restart, by serial number, as a chip may be replaced; else by the device's name.

    Losing it costs little: accepted errors count again where they count from zero, and elsewhere errors from before the
    restart are accepted.
    """

    devices: Mapping[str, DeviceMemory] = field(default_factory=dict)

    def of(self, key: str) -> DeviceMemory:
        """What is known of one device."""
        return self.devices.get(key, DeviceMemory())


class _File(msgspec.Struct, frozen=True):
    version: int
    boot: str
    devices: dict[str, DeviceMemory]


def boot_id() -> str:
    """The kernel's id of this boot; empty where it cannot be read."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def load(path: Path, boot: str) -> Memory:
    """What was kept; nothing where there is no usable file. A boot ends what waits for a driver reload."""
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=_File)
    except FileNotFoundError:
        return Memory()
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        logger.warning("cannot read the health file, starting without", extra={"file": str(path), "why": str(error)})
        return Memory()
    if kept.version != _VERSION:
        return Memory()
    if kept.boot == boot:
        return Memory(kept.devices)
    return Memory({key: DeviceMemory(accepted=known.accepted) for key, known in kept.devices.items()})


def save(path: Path, memory: Memory, boot: str) -> None:
    """Replace the file as a whole.

    Raises:
        OSError: the directory cannot be made or written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_bytes(msgspec.json.encode(_File(_VERSION, boot, dict(memory.devices))))
    aside.replace(path)


_NAMED = "neuron"
"""How the key of a device without a serial number begins; serial numbers are hexadecimal."""
_MOST_WAITING = 1000
"""Kernel errors that may wait for the first device."""


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """All that is remembered of one device, and its verdict. ``key`` is its serial number or name.

    ``present``: it was in the last inventory. ``counts`` are those of its counters that could be read last.
    ``held_until``: until then nothing but flapping keeps the device unhealthy. ``next_change``: infinity for never.
    """

    key: str
    present: bool = True
    counts: Mapping[Name, int] = field(default_factory=dict)
    memory: DeviceMemory = field(default_factory=DeviceMemory)
    messages: Mapping[Signal, Sighting] = field(default_factory=dict)
    conditions: Mapping[Name, Condition] = field(default_factory=dict)
    verdict: Verdict = field(default_factory=Verdict)
    next_change: float = float("inf")
    held_until: float | None = None


@dataclass(frozen=True, slots=True)
class HealthState:
    """The health of every device that was ever seen. ``started``: when the daemon was, by CLOCK_MONOTONIC.

    ``known`` is the memory of devices that are not here; ``waiting`` are kernel errors from before the first device.
    """

    started: float
    known: Memory = field(default_factory=Memory)
    devices: Mapping[int, DeviceHealth] = field(default_factory=dict)
    waiting: tuple[KernelError, ...] = ()

    @property
    def unhealthy(self) -> dict[int, str]:
        """Devices that must not be handed out, and why."""
        return {number: one.verdict.reason for number, one in self.devices.items() if not one.verdict.healthy}

    @property
    def flapping(self) -> dict[int, float]:
        """Those of the unhealthy whose cause has gone and that are held down as they keep coming back, until when."""
        return {number: one.held_until for number, one in self.devices.items() if one.held_until is not None}

    @property
    def next_change(self) -> float | None:
        """When to call ``health_after`` again if nothing happens before; None for never."""
        soonest = min((one.next_change for one in self.devices.values()), default=float("inf"))
        return None if soonest == float("inf") else soonest

    @property
    def memory(self) -> Memory:
        """What to save: of devices that were here once, and of those that are here, last."""
        here = {one.key: one.memory for one in self.devices.values()}
        others = [(key, known) for key, known in self.known.devices.items() if key not in here]
        return Memory(dict([*others, *here.items()][-MOST_DEVICES:]))


def health_after(
    state: HealthState, inventory: Inventory, now: float, rules: HealthRules, errors: Iterable[KernelError] = ()
) -> HealthState:
    """The state at ``now`` (CLOCK_MONOTONIC, as kernel messages), given the last inventory and new kernel errors.

    Call it for every new inventory, for new errors (with an empty ``Inventory`` before the first), and at
    ``next_change``. A device that was here once and is not in the inventory is missing.
    """
    rule = {signal: rule_of(rules, signal) for signal in Signal}
    known, devices = _identified(state, inventory, rule, now)
    waiting = (*state.waiting, *(error for error in errors if error.by_kernel or rules.trust_user_messages))
    if devices:
        for error in waiting:
            _take_in(error, devices, rule, now, state.started)
        waiting = ()
    present = {int(device.id): device for device in inventory.devices}
    skipped = {int(device.id): device.reason for device in inventory.skipped}
    for number, last in sorted(devices.items()):
        device = present.get(number)
        missing = Observation(Signal.MISSING, skipped.get(number, MISSING))
        observed = tuple(observe(device)) if device else (missing,)
        devices[number] = _judged(last, device, observed, rule, rules, now)
    return HealthState(state.started, known, dict(sorted(devices.items())), waiting[-_MOST_WAITING:])


def _identified(
    state: HealthState, inventory: Inventory, rule: Mapping[Signal, SignalRule], now: float
) -> tuple[Memory, dict[int, DeviceHealth]]:
    """The memory of devices that are not here, and the devices by number, each under its key and with its memory."""
    known, devices = state.known, dict(state.devices)
    keys = {int(device.id): device_key(device) for device in inventory.devices}
    uses = Counter(keys.values())
    for number, named in keys.items():
        key = named if uses[named] == 1 else f"{_NAMED}{number}"  # a serial number given twice identifies none
        last = devices.get(number)
        if last and key != last.key and not last.key.startswith(_NAMED) and not key.startswith(_NAMED):
            last, known = None, state.memory  # another chip; the one that was here may return under another number
        if last and (key == last.key or key.startswith(_NAMED)):
            continue  # a serial number that cannot be read just now means nothing
        base, remembered = last or DeviceHealth(key), known.of(key)
        latched = {
            name: Condition(Phase.FIRING, text, now, now, times_fired=1)
            for label, text in remembered.latched.items()
            if (name := _parsed(label)) and rule[name[0]].recovery is Recovery.RELOAD
        }
        accepted = {**base.memory.accepted, **remembered.accepted}
        conditions = {**base.conditions, **latched}
        devices[number] = replace(base, key=key, memory=DeviceMemory(accepted), conditions=conditions)
    return known, devices


def _take_in(
    error: KernelError, devices: dict[int, DeviceHealth], rule: Mapping[Signal, SignalRule], now: float, started: float
) -> None:
    """Count a kernel error as a message on the devices it names, else on all; one after a long quiet is the first."""
    if error.serial_number:  # says more than any number
        named = {number for number, one in devices.items() if one.key == error.serial_number}
    else:
        named = devices.keys() & {int(device) for device in error.devices}
    signal = Signal.KERNEL_MESSAGE if error.proves and named else Signal.KERNEL_MESSAGE_UNNAMED
    keep_firing = rule[signal].keep_firing_for_seconds
    quiet = rule[signal].recovery is Recovery.QUIET
    if now - error.at >= keep_firing if quiet else error.at < started:
        return  # too old; what waits for a driver reload may have been reloaded before our start
    where = f" of NEURON_HW_ERR={error.kind}" + ("" if named else ", naming no device of this node")
    for number in named or list(devices):
        last = devices[number].messages.get(signal)
        count = (last.observation.count or 0) + 1 if last and error.at - last.at <= keep_firing else 1
        message = Sighting(Observation(signal, "kernel message", count=count, where=where), error.at)
        devices[number] = replace(devices[number], messages={**devices[number].messages, signal: message})


def _judged(
    last: DeviceHealth,
    device: Device | None,
    observed: Sequence[Observation],
    rule: Mapping[Signal, SignalRule],
    rules: HealthRules,
    now: float,
) -> DeviceHealth:
    """The health of one device after a reading that shows ``observed``; ``device`` is None where it is missing."""
    accepted, messages, conditions = dict(last.memory.accepted), dict(last.messages), dict(last.conditions)
    counts = {(seen.signal, seen.part): seen.count for seen in observed if seen.count is not None}
    last_counts = {**last.counts, **counts}
    has_gone = last.present and device is None
    for name, condition in last.conditions.items():
        if has_gone and name[0] not in _SURVIVES_A_RELOAD:  # its node goes a moment apart from it: no flapping
            del conditions[name]
        elif has_gone and rule[name[0]].recovery is Recovery.RELOAD and condition.phase is not Phase.RESOLVED:
            conditions[name] = replace(condition, phase=Phase.RESOLVED, since=now)
            messages.pop(name[0], None)
        elif condition.count is not None and counts.get(name, condition.count) < condition.count:  # it was zeroed
            conditions[name] = replace(condition, count=0, reported_count=0)
    sightings = _sightings(observed, accepted, rule, now)
    sightings |= {
        (signal, ""): message
        for signal, message in messages.items()
        if (message.observation.count or 0) >= rule[signal].threshold
    }
    sightings = {name: seen for name, seen in sightings.items() if rule[name[0]].action is not Action.IGNORE}
    unread = unreadable(device) if device else frozenset()
    readable = [
        name
        for name in dict.fromkeys([*conditions, *sightings])
        if (name in counts if name[0] in COUNTERS else name[0] not in unread)
    ]
    for name in readable:
        after = step(conditions.pop(name, None), sightings.get(name), rule[name[0]], rules, now)
        if after is not None:
            conditions[name] = after
    for name, condition in conditions.items():
        before = last.conditions.get(name)
        resolved = before and before.phase is Phase.FIRING and condition.phase is Phase.RESOLVED
        if before and resolved and rule[name[0]].recovery is not Recovery.GONE:  # what was counted is accepted
            messages.pop(name[0], None)
            if name[0] in COUNTERS and name in last_counts:
                accepted[_label(name)] = last_counts[name]
    due = [
        next_change(conditions[name], rule[name[0]], rules, seen=name in sightings)
        for name in readable
        if name in conditions
    ]
    latched = {
        _label(name): condition.text
        for name, condition in conditions.items()
        if condition.phase is Phase.FIRING and rule[name[0]].recovery is Recovery.RELOAD
    }
    return DeviceHealth(
        key=last.key,
        present=device is not None,
        counts=last_counts,
        memory=DeviceMemory(accepted, latched),
        messages=messages,
        conditions=conditions,
        verdict=_verdict(conditions, rule),
        next_change=min(due, default=float("inf")),
        held_until=_held_until(conditions, sightings, rule, rules),
    )


def _sightings(
    observed: Iterable[Observation], accepted: dict[str, int], rule: Mapping[Signal, SignalRule], now: float
) -> dict[Name, Sighting]:
    """What is wrong now: counters only above their baseline, which is brought up to date in ``accepted``."""
    found: dict[Name, Sighting] = {}
    for seen in observed:
        name, baseline = (seen.signal, seen.part), 0
        if seen.count is not None:
            label = _label(name)
            if rule[seen.signal].baseline is Baseline.FIRST_SIGHT:
                accepted.setdefault(label, seen.count)
            if seen.count < accepted.get(label, 0):  # zeroed by a power cycle or driver reload: all it has are new
                accepted[label] = 0
            baseline = accepted.get(label, 0)
            if seen.count - baseline < rule[seen.signal].threshold:
                continue
        found[name] = Sighting(seen, now, baseline)
    return found


_ORDER = {signal: number for number, signal in enumerate(Signal)}
_SEVERITIES = {
    (Phase.FIRING, Action.UNHEALTHY): Severity.UNHEALTHY,
    (Phase.FIRING, Action.WARN): Severity.WARNING,
    (Phase.PENDING, Action.UNHEALTHY): Severity.PASSING,
}


def _verdict(conditions: Mapping[Name, Condition], rule: Mapping[Signal, SignalRule]) -> Verdict:
    findings = [
        Finding(name[0], severity, condition.text)
        for name, condition in conditions.items()
        if (severity := _SEVERITIES.get((condition.phase, rule[name[0]].action)))
    ]
    findings.sort(key=lambda finding: (-finding.severity, _ORDER[finding.signal], finding.text))
    return Verdict(tuple(findings))


def _held_until(
    conditions: Mapping[Name, Condition],
    sightings: Mapping[Name, Sighting],
    rule: Mapping[Signal, SignalRule],
    rules: HealthRules,
) -> float | None:
    """Until when flapping alone keeps a device unhealthy; None where another condition does, or none."""
    until: list[float] = []
    for name, condition in conditions.items():
        own = rule[name[0]]
        if condition.phase is Phase.FIRING and own.action is Action.UNHEALTHY:
            longer = hold_seconds(rules, own, condition.times_fired) > own.keep_firing_for_seconds
            if name in sightings or own.recovery is Recovery.RELOAD or not longer:
                return None
            until.append(resolves_at(condition, own, rules))
    return max(until, default=None)


def _label(name: Name) -> str:
    """What a signal is remembered under."""
    return f"{name[0].value}/{name[1]}" if name[1] else name[0].value


def _parsed(label: str) -> Name | None:
    signal, _, part = label.partition("/")
    return (Signal(signal), part) if signal in set(Signal) else None


@dataclass(frozen=True, slots=True)
class Transition:
    """Devices whose health changed in the same way, for the same reason (empty when they are healthy again)."""

    devices: tuple[int, ...]
    before: Severity
    after: Severity
    reason: str


def transitions(before: HealthState, after: HealthState) -> tuple[Transition, ...]:
    """What changed between two states, devices with the same news together.

    Conditions that are only pending are left out: they would be reported each time they come and go.
    """

    def lasting(state: HealthState, number: int) -> tuple[Severity, str]:
        findings = state.devices[number].verdict.findings if number in state.devices else ()
        verdict = Verdict(tuple(finding for finding in findings if finding.severity is not Severity.PASSING))
        return verdict.severity, verdict.reason

    news: dict[tuple[Severity, Severity, str], list[int]] = {}
    for number in after.devices:
        was, now = lasting(before, number), lasting(after, number)
        if was != now:
            news.setdefault((was[0], *now), []).append(number)
    return tuple(Transition(tuple(devices), *change) for change, devices in news.items())


def judge_once(inventory: Inventory, rules: HealthRules, memory: Memory) -> dict[DeviceId, Verdict]:
    """Judge every device by one reading, for the command line; ``memory`` is what the daemon has saved, if known.

    A condition that has to last before it fires is only passing here. Errors of which only the rise would count, and of
    which no earlier count is known, are a warning.
    """
    state = health_after(HealthState(0.0, memory), inventory, 0.0, rules)
    verdicts: dict[DeviceId, Verdict] = {}
    for device in inventory.devices:
        findings = list(state.devices[int(device.id)].verdict.findings)
        known = memory.of(device_key(device)).accepted
        for seen in observe(device):
            rule = rule_of(rules, seen.signal)
            rising = rule.baseline is Baseline.FIRST_SIGHT and rule.action is not Action.IGNORE
            if rising and seen.count and _label((seen.signal, seen.part)) not in known:
                findings.append(Finding(seen.signal, Severity.WARNING, f"{seen.worded()}, which may be old"))
        verdicts[device.id] = Verdict(tuple(sorted(findings, key=lambda finding: -finding.severity)))
    return verdicts
