"""All that the daemon has to do with an API server; without one there is no such object.

It follows this node's pods and its Node object, renews the node's Lease, and writes what snapshots say. The client is
slow to import, so the daemon registers with the kubelet first, and connects then.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress

from neuron_plugin.cluster import KubernetesApi
from neuron_plugin.cluster.api import ConnectionSettingsError
from neuron_plugin.metrics import MetricCounts
from neuron_plugin.plugin.allocatable import AllocatableKeeper
from neuron_plugin.plugin.allocator import Allocator
from neuron_plugin.plugin.machine import DaemonTimes, Machine
from neuron_plugin.plugin.node import LocalNode
from neuron_plugin.plugin.node_lease import LeaseTimes, NodeLease
from neuron_plugin.plugin.node_watch import NodeWatch
from neuron_plugin.plugin.pod_watch import ClaimWatch, PodWatch
from neuron_plugin.plugin.publisher import Publisher
from neuron_plugin.plugin.settings import Mode, PluginSettings
from neuron_plugin.plugin.slices import SliceKeeper, slice_spec
from neuron_plugin.plugin.snapshot import Snapshot
from neuron_plugin.telemetry import Problem

logger = logging.getLogger(__name__)


class ClusterLink:
    """The node in its cluster. ``rejudged`` is set when an operator has disabled other devices."""

    def __init__(
        self,
        settings: PluginSettings,
        node: LocalNode,
        rejudged: asyncio.Event,
        counts: MetricCounts,
        machine: Machine,
        times: DaemonTimes,
    ) -> None:
        name = settings.node_name
        self.publisher = Publisher(
            name,
            machine.now_ns,
            label_unhealthy=settings.label_pods_on_sick_devices,
            label_present=settings.present_label,
        )
        own_uid = os.environ.get("POD_UID", "")
        self.pods = PodWatch(
            node, name, own_uid, settings.decision_deadline_seconds, counts, connect_seconds=times.connect
        )
        self.own_node = NodeWatch(name, rejudged, node.changed, self.publisher, counts)
        self._allocatable = AllocatableKeeper(name, node, self.publisher)
        periods = LeaseTimes(settings.lease_duration_seconds, settings.lease_renew_seconds)
        self.lease = NodeLease(settings.lease_namespace, name, periods)
        self.claims: ClaimWatch | None = None
        self.slices: SliceKeeper | None = None
        if settings.mode is Mode.DRA:
            self.claims = ClaimWatch(node, settings.dra_driver)
            self.slices = SliceKeeper(name, settings.dra_driver, counts)
        self._settings = settings
        self._node = node
        self._counts = counts
        self._machine = machine
        self._times = times
        self._api: KubernetesApi | None = None

    async def follow(self) -> None:
        """Connect; then keep this node's pods, the Lease and the write queue going until cancelled."""
        problem = Problem(logger, "not connected to the API server")
        while self._api is None:
            try:
                self._api = await self._machine.connect(self._settings.kubeconfig)
            except ConnectionSettingsError as error:
                problem.say(error)
                self.pods.tried.set()
                self.own_node.read.set()
                await asyncio.sleep(self._times.connect_retry)
        try:
            async with self._api as api, asyncio.TaskGroup() as tasks:
                tasks.create_task(self.pods.run(api), name="pods")
                tasks.create_task(self.own_node.run(api), name="own node")
                tasks.create_task(self.publisher.queue.run(api), name="writes")
                if self.claims and self.slices:
                    tasks.create_task(self.claims.run(api), name="claims")
                    tasks.create_task(self.slices.run(api), name="slice")
                if self._settings.node_lease:
                    tasks.create_task(self.lease.run(api), name="lease")
        finally:
            self._api = None

    async def ask_about_pods(self) -> None:
        """Ask the API server about pods that the kubelet has recorded and that the watch does not show."""
        if self._node.list_is_due:
            await self.pods.list_pods()

    async def node_read(self) -> None:
        """Return when the Node object was read, so that no disabled device is given, or not within the time for it."""
        try:
            async with asyncio.timeout(self._times.connect):
                await self.pods.tried.wait()
            async with asyncio.timeout(self._times.read_node):
                await self.own_node.read.wait()
                if self.claims:
                    await self.claims.read.wait()
        except TimeoutError:
            logger.warning("serving before the Node object could be read")

    def publish(self, snapshot: Snapshot, allocator: Allocator) -> None:
        """Queue what the API server does not know yet."""
        self._allocatable.look(snapshot, self.own_node.allocatable)
        for correction in self.publisher.publish(snapshot):
            self._counts.add("corrections_total")
            allocator.log.corrected(snapshot, correction)
        if self.slices and self.own_node.uid:
            settings = self._settings
            placed, inventory = settings.placed_claims, snapshot.published_inventory
            spec = slice_spec(inventory, settings.node_name, settings.dra_driver, placed=placed)
            self.slices.want(spec, self.own_node.uid)
        while allocator.events:
            self.publisher.report([allocator.events.popleft()])

    async def leave(self) -> None:
        """Close the node, and return when the pods that are bound here already are served, or after a moment.

        Where no Lease can be given up, new pods keep coming, and there is nothing to wait for.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(self._times.leave):
                if self._api and self._settings.node_lease and await self.lease.give_up(self._api):
                    await asyncio.sleep(self._times.under_way)
                    while self._node.snapshot and self._node.snapshot.waiting:  # noqa: ASYNC110 - until the kubelet's calls
                        await asyncio.sleep(0.02)
