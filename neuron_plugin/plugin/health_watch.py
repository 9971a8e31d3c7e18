"""Keeps the health state of the node's devices: its sources, its timer, its file, and how it is reported.

A source that cannot start is named, in readiness and metrics, and the others go on.

Health is reported in log lines, in events on the node, and in a node condition if one is wanted. The condition is True
when all is well, like the node's ``Ready``: True with every device healthy, False with one that is not handed out,
Unknown before any device was seen. ``--node-condition`` names it, and the name may not be that of a condition that
another program writes. In particular it is not the node problem detector's ``NeuronHealth``, which is True when
something is *wrong*; ``NeuronDevicesHealthy`` says what it means.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Protocol

from neuron_plugin.allocation import format_ids
from neuron_plugin.cluster import ApiRequest, ObjectReference, create_event, report_node_condition, utc_now
from neuron_plugin.hardware import HealthFiles, Inventory, KernelLog, Severity, Sysfs, Uevents, blind_spots
from neuron_plugin.hardware import KernelError as Error
from neuron_plugin.plugin.health import (
    FILE_NAME,
    HealthState,
    Memory,
    Transition,
    boot_id,
    health_after,
    load,
    save,
    transitions,
)
from neuron_plugin.plugin.health_rules import reads_kernel_log
from neuron_plugin.plugin.publisher import REPORTER
from neuron_plugin.plugin.settings import PluginSettings

logger = logging.getLogger(__name__)

UEVENTS, NOTICES, KERNEL_LOG, SYSFS, MEMORY = "uevents", "notices", "kernel-log", "sysfs", "memory"
"""Sources of what is known about health, by the names under which their problems are reported."""


class Cluster(Protocol):
    """Where requests to the API server go. Neither method blocks; the newest on a subject counts."""

    def write(self, subject: str, request: ApiRequest) -> None:
        """Have a request sent to the API server."""

    def write_on_node(self, subject: str, request: ApiRequest) -> None:
        """Have a write on the Node object sent, and again when that was created again."""


class HealthWatch:
    """The health of one node's devices. ``look`` feeds it, ``run`` keeps it going, the rest reads it."""

    def __init__(
        self,
        settings: PluginSettings,
        on_change: Callable[[], None],
        cluster: Cluster | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """``on_change`` is called when health has changed without a look; no ``cluster`` means no API server."""
        self._settings = settings
        self._file = settings.state_dir / FILE_NAME if settings.state_dir else None
        self._boot = boot_id()
        self._saved = load(self._file, self._boot) if self._file else Memory()
        self._clock = clock
        self._now = now
        self._on_change = on_change
        self._cluster = cluster
        self._condition: tuple[tuple[bool | None, str], datetime] | None = None
        self._news = asyncio.Event()
        self._problems: dict[str, str] = {}
        self._changed: asyncio.Event | None = None
        self._uevents: Uevents | None = None
        self._files: HealthFiles | None = None
        self.state = HealthState(clock(), self._saved)
        self.inventory: Inventory | None = None

    @property
    def unhealthy(self) -> dict[int, str]:
        """Devices that must not be handed out, and why."""
        return self.state.unhealthy

    @property
    def silent_sources(self) -> Mapping[str, str]:
        """Sources that do not work, and why."""
        return dict(self._problems)

    @contextmanager
    def listening(self, sysfs: Path, changed: asyncio.Event, uevents: Uevents) -> Iterator[None]:
        """For the length of the block: ``changed`` is set for firmware's changes and the driver's resets, too."""
        with closing(HealthFiles(Sysfs(sysfs), changed)) as files:
            self._changed, self._uevents, self._files = changed, uevents, files
            try:
                yield
            finally:
                self._changed = self._uevents = self._files = None

    def look(self, inventory: Inventory) -> None:
        """Take in a reading of the hardware."""
        first, self.inventory = self.inventory is None, inventory
        if self._files:
            self._report(NOTICES, self._files.follow(inventory.device_ids))
        if self._uevents:
            self._report(UEVENTS, self._uevents.problem)
        self._report(SYSFS, blind_spots(inventory))
        self._advance(first=first)
        self._news.set()  # times may have changed

    async def run(self) -> None:
        """Read the kernel log and advance when it is time, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            if reads_kernel_log(self._settings.health):
                tasks.create_task(self._follow_log(), name="kernel log")
            tasks.create_task(self._keep_advancing(), name="health")

    async def _follow_log(self) -> None:
        log = KernelLog(self._settings.kmsg or self._settings.dev / "kmsg")
        async for news in log.news():
            self._report(KERNEL_LOG, log.problem)
            if news.reset and self._changed:
                self._changed.set()
            if news.errors and self._advance(news.errors):
                self._on_change()
            self._news.set()

    async def _keep_advancing(self) -> None:
        while True:
            due = self.state.next_change
            try:
                async with asyncio.timeout(None if due is None else max(due - self._clock(), 0.0)):
                    await self._news.wait()
            except TimeoutError:
                pass
            self._news.clear()
            if self._advance():
                self._on_change()
            await self._remember()

    def _advance(self, errors: tuple[Error, ...] = (), *, first: bool = False) -> bool:
        """Bring the state up to date; whether something changed, which is reported."""
        before, rules = self.state, self._settings.health
        self.state = health_after(before, self.inventory or Inventory(), self._clock(), rules, errors)
        changes = transitions(before, self.state)
        for transition in changes:
            log_transition(transition)
            if self._cluster:
                subject = f"health event {transition.after.name} of {format_ids(transition.devices)}"
                self._cluster.write(subject, health_event(transition, self._settings.node_name, self._now()))
        if (changes or first) and self._cluster and self._settings.node_condition:
            self._write_condition(self._cluster)
        return bool(changes)

    def _write_condition(self, cluster: Cluster) -> None:
        status, reason, message = node_condition(self.state)
        said, since = self._condition or ((None, ""), self._now())
        if self._condition and said == (status, message):
            return
        now = self._now()
        if said[0] != status:
            since = now
        self._condition = (status, message), since
        request = report_node_condition(
            self._settings.node_name,
            condition=self._settings.node_condition,
            status=status,
            reason=reason,
            message=message,
            since=since,
            now=now,
        )
        cluster.write_on_node("health condition", request)

    def _report(self, source: str, problem: str) -> None:
        """Note whether a source works; a change is logged once."""
        if self._problems.get(source, "") == problem:
            return
        if problem:
            self._problems[source] = problem
            logger.warning("a source of health does not work", extra={"source": source, "why": problem})
        else:
            del self._problems[source]
            logger.info("a source of health works again", extra={"source": source})

    async def _remember(self) -> None:
        """Save what changed. That it cannot be written costs little, and is reported."""
        memory = self.state.memory
        if self._file is None or memory == self._saved:
            return
        try:
            await asyncio.to_thread(save, self._file, memory, self._boot)
        except OSError as error:
            self._report(MEMORY, f"{self._file} cannot be written: {error.strerror}")
            return
        self._saved = memory
        self._report(MEMORY, "")


# How it is reported.

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
