"""The node's hardware, as sysfs shows it and as health and an operator judge it, into the node's inputs."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Protocol

from neuron_plugin.allocation.resources import format_ids
from neuron_plugin.hardware import Inventory, MachinePaths, read_inventory
from neuron_plugin.hardware.events import InventoryWatcher, WatchPeriods, open_uevents
from neuron_plugin.metrics import MetricCounts
from neuron_plugin.plugin.cluster_link import ClusterLink
from neuron_plugin.plugin.node import LocalNode
from neuron_plugin.plugin.node_inventory import node_inventory
from neuron_plugin.plugin.settings import Mode, PluginSettings
from neuron_plugin.topology import Catalogue

logger = logging.getLogger(__name__)


class Judge(Protocol):
    """The rules of health."""

    inventory: Inventory | None
    """What was looked at last."""

    @property
    def unhealthy(self) -> Mapping[int, str]:
        """The devices that must not be handed out, and why."""

    def look(self, inventory: Inventory, uevents_problem: str) -> None:
        """Judge what sysfs shows now."""


class HardwareWatch:
    """Keeps ``node`` at what the machine has. ``found`` is set once there is a device."""

    def __init__(
        self,
        settings: PluginSettings,
        types: Catalogue,
        node: LocalNode,
        health: Judge,
        cluster: ClusterLink | None,
        counts: MetricCounts,
    ) -> None:
        self.found = asyncio.Event()
        self._settings = settings
        self._types = types
        self._node = node
        self._health = health
        self._own_node = cluster.own_node if cluster else None
        self._counts = counts

    async def follow(self) -> None:
        """Every look at the hardware that differs from the last, into the node."""
        settings, changed = self._settings, asyncio.Event()
        paths = MachinePaths(settings.sysfs, settings.dev, settings.logical_core_file)
        read = partial(read_inventory, paths, environ=os.environ, types=self._types)
        with closing(await open_uevents(changed)) as uevents:
            watcher = InventoryWatcher(read, changed, WatchPeriods(rescan_seconds=settings.rescan_seconds))
            async for inventory in watcher.changes():
                self._health.look(inventory, uevents.problem)
                self.see()

    def see(self) -> None:
        """Take in what was seen of the hardware and how it is judged now."""
        if self._health.inventory is None:
            return
        before = self._node.snapshot.inventory if self._node.snapshot else None
        after = node_inventory(
            before,
            self._health.inventory,
            self._types,
            self._settings.instance_type,
            self._health.unhealthy,
            self._own_node.disabled if self._own_node else (),
        )
        if after is None:
            return
        if self._settings.mode is Mode.DRA:
            after = replace(after, claim_driver=self._settings.dra_driver)
        if self._own_node:
            self._own_node.report(after)
        if after == before:
            return
        if self._settings.numa_hints:
            known = self._types.get(after.geometry.instance_type)
            self._node.numa_nodes = known.numa_nodes if known else ()
        was = before.unhealthy if before else {}
        changes = [(device, "unhealthy") for device in after.unhealthy.keys() - was.keys()]
        changes += [(device, "healthy") for device in was.keys() - after.unhealthy.keys()]
        for device, state in changes:
            self._counts.add("health_transitions_total", str(device), state)
        logger.info(
            "hardware",
            extra={
                "instance_type": after.geometry.instance_type,
                "devices": len(after.listed),
                "cores": after.geometry.devices_mask(after.listed).bit_count(),
                "unhealthy": dict(after.unhealthy) or "none",
                "disabled": format_ids(after.disabled) or "none",
            },
        )
        self._node.see_inventory(after)
        self.found.set()
