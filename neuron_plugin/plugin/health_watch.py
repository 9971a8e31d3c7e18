"""Keeps the health state of the node's devices: its sources, its timer, its file, and where it is reported.

A source that cannot start is named, in readiness and metrics, and the others go on. Every change is logged and becomes
an event on the node. A node condition is written if ``--node-condition`` names one. It is True when all is well, like
the node's ``Ready``: True with every device healthy, False with one that is not handed out, Unknown before any device
was seen. Choose a name that no other program writes, such as ``NeuronDevicesHealthy``. The node problem detector writes
``NeuronHealth``, which is True when something is *wrong*.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping

from neuron_plugin.allocation.event_reasons import EventReason
from neuron_plugin.allocation.resources import format_ids
from neuron_plugin.backoff import every
from neuron_plugin.hardware import Inventory
from neuron_plugin.hardware.health_signals import Observation, Severity, blind_spots
from neuron_plugin.hardware.kernel_log import PERIODS, KernelError, KernelLog, LogPeriods
from neuron_plugin.plugin.health import (
    FILE_NAME,
    KERNEL_SIGNALS,
    Action,
    HealthState,
    Transition,
    health_after,
    load,
    rule_of,
    save,
    transitions,
)
from neuron_plugin.plugin.publisher import Publisher
from neuron_plugin.plugin.settings import PluginSettings

logger = logging.getLogger(__name__)

UEVENTS, KERNEL_LOG, SYSFS, MEMORY = "uevents", "kernel-log", "sysfs", "memory"
"""The sources of health, by the names in reports of their problems."""

_MOST_MESSAGE = 1024
"""Characters of a node condition's message that are shown."""


class HealthWatch:
    """The health of one node's devices. ``look`` feeds it, ``run`` keeps it going, the rest reads it.

    ``silent_sources`` are those that do not work, and why.
    """

    def __init__(
        self,
        settings: PluginSettings,
        changed: asyncio.Event,
        publisher: Publisher | None = None,
        log_periods: LogPeriods = PERIODS,
    ) -> None:
        """``changed`` is set when health has changed without a look; no ``publisher`` means no API server."""
        self.inventory: Inventory | None = None
        self.silent_sources: dict[str, str] = {}
        self._settings = settings
        self._changed = changed
        self._publisher = publisher
        self._log_periods = log_periods
        self._file = settings.state_dir / FILE_NAME if settings.state_dir else None
        self._saved = load(self._file) if self._file else {}
        self.state = HealthState(self._saved)
        self._starts: Mapping[int, Observation] = {}
        self._found = asyncio.Event()
        self._news = asyncio.Event()

    @property
    def unhealthy(self) -> dict[int, str]:
        """Devices that must not be handed out, and why."""
        return self.state.unhealthy

    def see_starts(self, starts: Mapping[int, Observation]) -> None:
        """Take in how many pods have failed to start on each device."""
        if starts != self._starts:
            self._starts = starts
            if self.inventory and self._advance(self.inventory):
                self._changed.set()
            self._news.set()

    def look(self, inventory: Inventory, uevents_problem: str = "") -> None:
        """Take in a reading of the hardware, and why there are no uevents."""
        first, self.inventory = self.inventory is None, inventory
        self._report(UEVENTS, uevents_problem)
        self._report(SYSFS, blind_spots(inventory))
        self._advance(inventory, first=first)
        self._news.set()  # times may have changed
        if inventory.devices:
            self._found.set()

    async def run(self) -> None:
        """Read the kernel log and advance when it is time, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            if any(rule_of(self._settings.health, signal).action is not Action.IGNORE for signal in KERNEL_SIGNALS):
                tasks.create_task(self._follow_log(), name="kernel log")
            clock = asyncio.get_running_loop().time
            looks = every(lambda: self.state.next_change - clock(), self._look_again, self._news)
            tasks.create_task(looks, name="health")

    async def _follow_log(self) -> None:
        await self._found.wait()  # what was logged before is about devices that are not known yet
        log = KernelLog(self._settings.kmsg or self._settings.dev / "kmsg", self._log_periods)
        async for errors in log.news():
            self._report(KERNEL_LOG, log.problem)
            if errors and self.inventory and self._advance(self.inventory, errors):
                self._changed.set()
            self._news.set()

    async def _look_again(self) -> None:
        """Advance, and save the baseline if it has changed."""
        if self.inventory and self._advance(self.inventory):
            self._changed.set()
        baseline = self.state.baseline
        if self._file and baseline != self._saved:
            try:
                await asyncio.to_thread(save, self._file, baseline)
            except OSError as error:  # costs little, and is reported
                self._report(MEMORY, f"{self._file} cannot be written: {error.strerror}")
            else:
                self._saved = baseline
                self._report(MEMORY, "")

    def _advance(self, inventory: Inventory, errors: Iterable[KernelError] = (), *, first: bool = False) -> bool:
        """Bring the state up to date; whether something changed, which is reported."""
        before, now = self.state, asyncio.get_running_loop().time()  # CLOCK_MONOTONIC
        self.state = health_after(before, inventory, now, self._settings.health, errors, self._starts)
        changes = transitions(before, self.state)
        for transition in changes:
            log_transition(transition)
            if self._publisher:
                subject = f"health event {transition.after.name} of {format_ids(transition.devices)}"
                sick, event = transition.after is not Severity.HEALTHY, health_event(transition)
                self._publisher.write_node_event(*event, action="HealthCheck", warning=sick, subject=subject)
        if (changes or first) and self._publisher and self._settings.node_condition:
            status, reason, message = node_condition(self.state)
            name = self._settings.node_condition
            self._publisher.write_condition(name, status=status, reason=reason, message=message)
        return bool(changes)

    def _report(self, source: str, problem: str) -> None:
        """Note whether a source works; a change is logged once."""
        if self.silent_sources.get(source, "") == problem:
            return
        if problem:
            self.silent_sources[source] = problem
            logger.warning("a source of health does not work", extra={"source": source, "why": problem})
        else:
            del self.silent_sources[source]
            logger.info("a source of health works again", extra={"source": source})


def log_transition(transition: Transition) -> None:
    """One line for each change."""
    fields = {"devices": format_ids(transition.devices), "was": transition.before.name.lower()}
    if transition.after is Severity.HEALTHY:
        logger.info("Neuron devices are healthy again", extra=fields)
    else:
        fields |= {"is": transition.after.name.lower(), "reason": transition.reason}
        logger.warning("the health of Neuron devices has changed", extra=fields)


def health_event(transition: Transition) -> tuple[str, str]:
    """Reason and note of the event on the node."""
    match transition.after:
        case Severity.HEALTHY:
            over = " and given to new pods" if transition.before is Severity.UNHEALTHY else ", the warning is over"
            reason, note = EventReason.DEVICE_HEALTHY, f"healthy again{over}"
        case Severity.UNHEALTHY:
            reason, note = EventReason.DEVICE_UNHEALTHY, f"not given to new pods: {transition.reason}"
        case _:
            reason, note = EventReason.DEVICE_WARNING, f"still given to pods, with a warning: {transition.reason}"
    return reason, f"{_named(transition.devices)} {'is' if len(transition.devices) == 1 else 'are'} {note}"


def node_condition(state: HealthState) -> tuple[bool | None, str, str]:
    """Status, reason and message of the node condition."""
    if not state.devices:
        return None, "NoDevices", "no Neuron device has been seen on this node yet"
    for severity, status, name in (
        (Severity.UNHEALTHY, False, "UnhealthyDevices"),
        (Severity.WARNING, True, "DevicesWithWarnings"),
    ):
        by_reason: dict[str, list[int]] = {}
        for number, health in state.devices.items():
            if health.verdict.severity is severity:
                by_reason.setdefault(health.verdict.reason, []).append(number)
        if by_reason:
            message = ". ".join(f"{_named(numbers)}: {reason}" for reason, numbers in by_reason.items())
            return status, name, message[:_MOST_MESSAGE]
    return True, "AllDevicesHealthy", f"all {len(state.devices)} Neuron devices are healthy"


def _named(numbers: Iterable[int]) -> str:
    ids = tuple(numbers)
    return f"neuron device{'' if len(ids) == 1 else 's'} {format_ids(ids)}"
