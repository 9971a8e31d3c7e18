"""One device's health: its traces, the errors that are accepted, and what the kernel log said of it."""

from __future__ import annotations

from dataclasses import dataclass

from neuron_plugin.hardware import Observation, Signal
from neuron_plugin.plugin.health.memory import DeviceMemory
from neuron_plugin.plugin.health.policy import Action, Baseline, HealthSettings, Recovery, policy_of
from neuron_plugin.plugin.health.status import DeviceHealth, device_health
from neuron_plugin.plugin.health.trace import Rules, Sight, Stage, Trace, lowered, next_change, reloaded, step

COUNTERS = frozenset(
    {
        *(Signal.SRAM_ECC, Signal.MEMORY_ECC, Signal.REPAIRABLE_ECC, Signal.HEALTH_STATUS),
        *(Signal.NC_UNCORRECTABLE, Signal.HBM_UNCORRECTABLE, Signal.DMA_ABORT, Signal.HW_ERROR),
    }
)
"""Signals that sysfs counts. One that cannot be read tells nothing, so its trace stays as it is."""

_LASTING = COUNTERS | {Signal.MISSING, Signal.KERNEL_MESSAGE, Signal.KERNEL_MESSAGE_UNNAMED}

Name = tuple[Signal, str]
"""A signal, and its part if several can be seen at once."""


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at the machine says of a device. ``present``: the driver lists it and it is completely known."""

    observations: tuple[Observation, ...]
    unreadable: frozenset[Signal] = frozenset()
    present: bool = True


class DeviceRecord:
    """The memory of one device; ``key`` is its serial number or name."""

    def __init__(self, key: str, known: DeviceMemory, settings: HealthSettings, now: float) -> None:
        self.key = key
        self.health = DeviceHealth()
        self.next_change = float("inf")
        self._settings = settings
        self._look = Look(())
        self._counted: frozenset[Name] = frozenset()
        self._accepted = dict(known.accepted)
        self._messages: dict[Signal, Sight] = {}
        self._traces: dict[Name, Trace] = {}
        self._recall(known, now)

    def identified(self, key: str, known: DeviceMemory, now: float) -> None:
        """Go on under the serial number, and by what is known under that."""
        self.key = key
        self._accepted |= known.accepted
        self._recall(known, now)

    def _recall(self, known: DeviceMemory, now: float) -> None:
        """Take up what waits for a driver reload since before this daemon's start."""
        for text, why in known.latched.items():
            name = _parsed(text)
            if name and self._rules(name).policy.recovery is Recovery.RELOAD:
                self._traces[name] = Trace(name[0], Stage.ACTING, why, now, now, falls=1)

    @property
    def memory(self) -> DeviceMemory:
        """What to know of it after a restart."""
        latched = {
            memory_name(name): trace.text
            for name, trace in self._traces.items()
            if trace.acting and self._rules(name).policy.recovery is Recovery.RELOAD
        }
        return DeviceMemory(dict(self._accepted), latched)

    def looked(self, look: Look, now: float) -> None:
        """Take in a look; that a device is gone ends what waits for a reload."""
        if not look.present:
            self._gone(now)
        self._look = look
        self._counted = frozenset((seen.signal, seen.part) for seen in look.observations if seen.count is not None)

    def _gone(self, now: float) -> None:
        """A device that comes back begins anew, but for what is counted.

        Its node comes and goes a moment apart from it, which is no flapping of the node.
        """
        for name, trace in list(self._traces.items()):
            self._settle(name, trace, reloaded(trace, self._rules(name), now))
            if name[0] not in _LASTING:
                del self._traces[name]

    def told(self, signal: Signal, text: str, where: str, at: float) -> None:
        """Take in a message of the kernel log; one after a long quiet is the first again."""
        known = self._messages.get(signal)
        if known and at - known.at > policy_of(self._settings, signal).recover_after_seconds:
            known = None
        count = (known.observation.count or 0) + 1 if known else 1
        self._messages[signal] = Sight(Observation(signal, text, count=count, where=where), at)

    def judge(self, now: float) -> None:
        """Bring traces, health and the time of the next change up to date."""
        for seen in self._look.observations:
            name = (seen.signal, seen.part)
            if name in self._traces and seen.count is not None:
                self._traces[name] = lowered(self._traces[name], seen.count)
        sights = {name: sight for name, sight in self._sights(now).items() if not self._ignored(name)}
        for name in self._traces.keys() | sights.keys():
            if not self._unknown(name):
                before = self._traces.get(name)
                self._settle(name, before, step(before, sights.get(name), self._rules(name), now))
        self.health = device_health([(trace, self._rules(name).policy) for name, trace in self._traces.items()])
        self.next_change = min(
            (
                next_change(trace, self._rules(name), seen=name in sights)
                for name, trace in self._traces.items()
                if not self._unknown(name)
            ),
            default=float("inf"),
        )

    def _sights(self, now: float) -> dict[Name, Sight]:
        found: dict[Name, Sight] = {}
        for seen in self._look.observations:
            name = (seen.signal, seen.part)
            accepted = self._accepted_count(name, seen)
            if seen.count is None or seen.count - accepted >= self._rules(name).policy.threshold:
                found[name] = Sight(seen, now, accepted)
        for signal, sight in self._messages.items():
            if (sight.observation.count or 0) >= self._rules((signal, "")).policy.threshold:
                found[signal, ""] = sight
        return found

    def _accepted_count(self, name: Name, seen: Observation) -> int:
        """Errors that do not count. A counter that fell was zeroed (power cycle, driver reload): all it has are new."""
        if seen.count is None:
            return 0
        text = memory_name(name)
        if text not in self._accepted:
            if self._rules(name).policy.baseline is Baseline.ZERO:
                return 0
            self._accepted[text] = seen.count
        if seen.count < self._accepted[text]:
            self._accepted[text] = 0
        return self._accepted[text]

    def _settle(self, name: Name, before: Trace | None, after: Trace | None) -> None:
        """Keep the next trace; what was counted is accepted where a signal ends though its counter still stands."""
        if after is None:
            self._traces.pop(name, None)
            return
        self._traces[name] = after
        ended = before is not None and before.acting and not after.acting
        if ended and self._rules(name).policy.recovery is not Recovery.GONE:
            self._accept(name)

    def _accept(self, name: Name) -> None:
        self._messages.pop(name[0], None)
        counts = [seen.count for seen in self._look.observations if (seen.signal, seen.part) == name]
        if name[0] in COUNTERS and counts and counts[0] is not None:
            self._accepted[memory_name(name)] = counts[0]

    def _unknown(self, name: Name) -> bool:
        """Whether the last look cannot say if the signal is there."""
        signal = name[0]
        if signal in COUNTERS:
            return name not in self._counted
        return signal in self._look.unreadable

    def _ignored(self, name: Name) -> bool:
        return self._rules(name).policy.action is Action.IGNORE

    def _rules(self, name: Name) -> Rules:
        return Rules(self._settings, policy_of(self._settings, name[0]))


def memory_name(name: Name) -> str:
    """What a signal is remembered under."""
    return f"{name[0].value}/{name[1]}" if name[1] else name[0].value


def _parsed(text: str) -> Name | None:
    signal, _, part = text.partition("/")
    return (Signal(signal), part) if signal in set(Signal) else None
