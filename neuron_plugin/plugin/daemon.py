"""The node daemon: hardware in, devices out to the kubelet, assignments in from the cluster.

Each job reads one source, compares it with the last time, and puts what is new into ``LocalNode``; one publishes what
follows from all of them. ``every`` is the frame of those that look again and again. A pod needs the hardware first,
then the kubelet's record, then the registration: start-up has this order. The API server's client and the HTTP server
are slow to import and come after.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial

from neuron_plugin.backoff import NEVER, every, keep_running
from neuron_plugin.http_server import serve_status
from neuron_plugin.kubelet import KubeletCounters
from neuron_plugin.plugin.allocator import Allocator
from neuron_plugin.plugin.claims import ClaimPreparer, ClaimSource
from neuron_plugin.plugin.cluster_link import ClusterLink
from neuron_plugin.plugin.container import CDI_FILE_NAME, write_cdi_files
from neuron_plugin.plugin.failed_starts import failed_starts
from neuron_plugin.plugin.hardware_watch import HardwareWatch
from neuron_plugin.plugin.health import Action
from neuron_plugin.plugin.health_watch import HealthWatch
from neuron_plugin.plugin.kubelet_link import KubeletLink
from neuron_plugin.plugin.machine import DaemonTimes, Machine, machine_of
from neuron_plugin.plugin.metrics import new_counts
from neuron_plugin.plugin.node import LocalNode, NodeOptions
from neuron_plugin.plugin.publisher import Publisher
from neuron_plugin.plugin.settings import Mode, PluginSettings
from neuron_plugin.plugin.status import PluginStatus
from neuron_plugin.plugin.utilization_watch import UtilizationWatch
from neuron_plugin.telemetry import Problem
from neuron_plugin.topology import Catalogue

logger = logging.getLogger(__name__)


class NodeDaemon:
    """The daemon of one node; ``run`` ends when ``stop`` is set. ``cluster`` is None without an API server."""

    def __init__(
        self,
        settings: PluginSettings,
        types: Catalogue,
        *,
        machine: Machine | None = None,
        times: DaemonTimes = DaemonTimes(),  # noqa: B008 - frozen
    ) -> None:
        """``machine`` is by default the one that the settings describe."""
        machine = machine or machine_of(settings)
        by_claims = settings.mode is Mode.DRA
        resources = () if by_claims else tuple(name.resource for name in settings.resources)
        options = NodeOptions(resources, settings.cluster, settings.hold_down_seconds, settings.report_unhealthy_in_use)
        counts, kubelet_counters = new_counts(), KubeletCounters()
        self._settings = settings
        self._times = times
        self._now_ns = machine.now_ns
        self._rejudged = asyncio.Event()
        self.counts = counts
        self.node = node = LocalNode(
            machine.checkpoint, machine.cgroups, options, machine.clock, machine.dra_state, times.node
        )
        self.cluster = cluster = (
            ClusterLink(settings, node, self._rejudged, counts, machine, times) if settings.cluster else None
        )
        self.allocator = Allocator(node, settings, cluster.pods if cluster else None, counts)
        preparer = None
        if cluster and cluster.claims:
            source = ClaimSource(cluster.claims.read_claim, cluster.pods.list_pods)
            preparer = ClaimPreparer(node, settings, source, counts, times.prepare)
        self.kubelet = KubeletLink(settings, node, self.allocator, preparer, kubelet_counters, machine, times)
        self.health = HealthWatch(settings, self._rejudged, cluster.publisher if cluster else None, times.kernel_log)
        self.hardware = HardwareWatch(settings, types, node, self.health, cluster, counts)
        self.utilization = UtilizationWatch(settings, node, machine, cluster)
        decisions = self.allocator.log.decisions
        self.status = PluginStatus(
            node, self.kubelet.all_servers, self.health, decisions, counts, kubelet_counters, cluster, self.utilization
        )
        if cluster:
            node.disabled_known.clear()

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set; then close the node, serve the pods that are bound here already, and end.

        The kubelet would reject those pods without us.
        """
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(keep_running(name, job), name=name) for name, job in self.jobs.items()]
            await stop.wait()
            if self.cluster:
                await self.cluster.leave()
            await self.kubelet.stop()
            for task in tasks:
                task.cancel()

    @property
    def jobs(self) -> Mapping[str, Callable[[], Coroutine[None, None, None]]]:
        """All that runs until the end, by name."""
        settings, cluster, times = self._settings, self.cluster, self._times
        jobs: dict[str, Callable[[], Coroutine[None, None, None]]] = {
            "hardware": self.hardware.follow,
            "judgements": partial(every, NEVER, self.hardware.see, self._rejudged),
            "health": self.health.run,
            "kubelet": partial(self.kubelet.serve, self.hardware.found),
            "pod resources": partial(every, times.quiet, self.kubelet.ask_about_pods),
            "publish": partial(every, NEVER, self.publish_changes, self.node.changed),
            "turns": partial(every, times.turn, self.node.take_turn),
        }
        if settings.utilization_seconds:
            jobs["utilization"] = partial(every, settings.utilization_seconds, self.utilization.read)
        if settings.health.failed_starts.action is not Action.IGNORE:
            jobs["failed starts"] = partial(every, times.starts, self.count_failed_starts)
        if cluster:
            jobs["cluster"] = cluster.follow
            jobs["pods"] = partial(every, times.ask, cluster.ask_about_pods)
            jobs["disabled devices"] = partial(self.learn_disabled_devices, cluster)
        if cluster and settings.ready_condition:
            condition = settings.ready_condition
            jobs["condition"] = partial(keep_condition, condition, self.status, cluster.publisher, times)
        if settings.health_port:
            jobs["status"] = partial(serve_status, self.status, settings.health_address, settings.health_port)
        if settings.cdi or settings.mode is Mode.DRA:
            jobs["cdi"] = partial(keep_cdi_files, settings, self.node, times)
        return jobs

    async def learn_disabled_devices(self, cluster: ClusterLink) -> None:
        """Let the kubelet's calls wait until the Node object was read, so that no disabled device is given."""
        await cluster.node_read()
        self.hardware.see()
        self.node.disabled_known.set()
        self.node.changed.set()  # what is published names the Node object

    def count_failed_starts(self) -> None:
        """Count on which devices pods fail to start."""
        if snapshot := self.node.snapshot:
            self.health.see_starts(failed_starts(snapshot, self._now_ns() / 1e9))

    async def publish_changes(self) -> None:
        """Show the kubelet and the cluster what has changed; several changes of one moment go out once.

        A message makes the kubelet write its checkpoint. The kubelet's own write of the last answer has to come
        first: a message would delay it. If the pod has ended meanwhile, a message would even replace it unread.
        """
        node, changed = self.node, self.node.changed
        if self.cluster:
            self.cluster.lease.serve(serving=self.kubelet.follows)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._times.node.record):
                while node.record_is_awaited:
                    await changed.wait()
                    changed.clear()
        self.kubelet.show()
        if node.snapshot is None:
            return
        self.allocator.log.name_recorded(node.snapshot)
        if self.cluster:
            self.cluster.publish(node.snapshot, self.allocator)
        while self.allocator.events:
            event = self.allocator.events.popleft()
            logger.warning(event.text, extra={"reason": event.reason, "pod": str(event.pod)})


async def keep_condition(name: str, status: PluginStatus, publisher: Publisher, times: DaemonTimes) -> None:
    """Keep the Node's condition: True at once if pods can get devices here, False once they could not for some time."""
    loop = asyncio.get_running_loop()
    last_ready = loop.time()

    def look() -> None:
        nonlocal last_ready
        is_ready, reason, message = status.ready_condition()
        last_ready = loop.time() if is_ready else last_ready
        if is_ready or loop.time() - last_ready >= times.not_ready:
            publisher.write_condition(name, status=is_ready, reason=reason, message=message)

    await every(times.turn, look)


async def keep_cdi_files(settings: PluginSettings, node: LocalNode, times: DaemonTimes) -> None:
    """Keep the CDI specification as the hardware is; somebody may remove it."""
    problem = Problem(logger, "cannot write the CDI specification", OSError)

    def look() -> None:
        with problem:
            if node.snapshot and write_cdi_files(settings, node.snapshot.inventory, node.pods.pods.values()):
                logger.info("wrote the CDI specification", extra={"path": str(settings.cdi_dir / CDI_FILE_NAME)})

    await every(times.cdi, look)
