"""Keeps the health state of the node's devices: its sources, its timer, its file, and where it is reported.

A source that cannot start is named, in readiness and metrics, and the others go on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Protocol

from neuron_plugin.allocation import format_ids
from neuron_plugin.cluster import ApiRequest, report_node_condition, utc_now
from neuron_plugin.hardware import HealthFiles, Inventory, KernelLog, Sysfs, Uevents, blind_spots
from neuron_plugin.hardware import KernelError as Error
from neuron_plugin.plugin.health import (
    FILE_NAME,
    HealthState,
    Memory,
    boot_id,
    health_after,
    load,
    save,
    transitions,
)
from neuron_plugin.plugin.health_report import health_event, log_transition, node_condition
from neuron_plugin.plugin.health_rules import reads_kernel_log
from neuron_plugin.plugin.settings import PluginSettings

logger = logging.getLogger(__name__)

UEVENTS, NOTICES, KERNEL_LOG, SYSFS, MEMORY = "uevents", "notices", "kernel-log", "sysfs", "memory"
"""Sources of what is known about health, by the names under which their problems are reported."""


class Cluster(Protocol):
    """Where requests to the API server go. Neither method blocks; the newest on a subject counts."""

    def tell(self, subject: str, request: ApiRequest) -> None:
        """Have a request sent to the API server."""

    def tell_of_node(self, subject: str, request: ApiRequest) -> None:
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
                self._cluster.tell(subject, health_event(transition, self._settings.node_name, self._now()))
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
        cluster.tell_of_node("health condition", request)

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
