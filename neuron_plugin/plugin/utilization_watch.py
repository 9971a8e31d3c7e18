"""Reads how much the node's containers use their cores, every now and then, and says it where people look.

The result goes into metrics, onto the node's Lease with its next renewal, and into an event if that is wanted. Nothing
is decided by it, so nothing waits for it: a reading that fails is left out.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from neuron_plugin.allocation.event_reasons import EventReason
from neuron_plugin.allocation.utilization import Utilization, duration_text, read_utilization, write_utilization
from neuron_plugin.hardware import parse_driver_version
from neuron_plugin.hardware.core_counters import CoreCounterReader
from neuron_plugin.plugin.cluster_link import ClusterLink
from neuron_plugin.plugin.machine import Machine
from neuron_plugin.plugin.node import LocalNode
from neuron_plugin.plugin.settings import PluginSettings
from neuron_plugin.plugin.utilization import (
    ContainerKey,
    Reading,
    UseByContainer,
    holders_of,
    idle_for,
    is_news,
    use_after,
    utilization_of,
)
from neuron_plugin.plugin.writes import PodEvent

logger = logging.getLogger(__name__)

_NANOSECONDS = 1e9


class UtilizationWatch:
    """Keeps ``use`` at what the last reading shows.

    If readings are turned off, it only removes what was published before.
    """

    def __init__(
        self, settings: PluginSettings, node: LocalNode, machine: Machine, cluster: ClusterLink | None
    ) -> None:
        """Without a ``cluster`` only the metrics show it."""
        self.use: UseByContainer = {}
        self.unix_seconds = 0.0
        """When the last reading was made."""
        self._settings = settings
        self._node = node
        self._machine = machine
        self._cluster = cluster
        self._reader = CoreCounterReader(settings.sysfs)
        self._published: Utilization = {}
        self._published_at = float("-inf")
        self._reported: frozenset[ContainerKey] = frozenset()
        if cluster and not settings.utilization_seconds:
            cluster.lease.utilization = ""

    async def read(self) -> None:
        """Read once, in a thread: an attribute may wait for the driver's lock."""
        snapshot = self._node.snapshot
        if snapshot is None:
            return
        holders = holders_of(snapshot)
        cores = sorted({core for cores in holders.values() for core in cores})
        driver = None
        with suppress(ValueError):
            driver = parse_driver_version(snapshot.inventory.driver_version)
        counters = await asyncio.to_thread(self._reader.read, cores, driver)
        self.unix_seconds = self._machine.now_ns() / _NANOSECONDS
        reading, cluster, settings = (
            Reading(self._machine.clock(), self.unix_seconds, counters),
            self._cluster,
            self._settings,
        )
        restored = read_utilization(cluster.lease.found_utilization or "") if cluster else {}
        self.use = use_after(self.use, holders, reading, restored)
        if cluster is None:
            return
        now = utilization_of(self.use, reading.unix, settings.idle_after_seconds)
        if is_news(self._published, now, reading.at - self._published_at):
            self._published, self._published_at = now, reading.at
            cluster.lease.utilization = write_utilization(now)
        if seconds := settings.idle_event_after_seconds:
            idle = frozenset(idle_for(self.use, reading.unix, seconds))
            for key in sorted(idle - self._reported, key=str):
                idle_text = f"has executed nothing on its Neuron cores for {duration_text(seconds)}"
                text = f"container {key.container} {idle_text}; it keeps them"
                cluster.publisher.write_pod_event(PodEvent(key.pod, EventReason.CORES_IDLE, text), action="Measuring")
            self._reported = idle
