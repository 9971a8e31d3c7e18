"""The node daemon: hardware in, devices out to the kubelet, decisions in from the cluster.

The parts know nothing of each other; they meet in the node's state. Start-up is in the order of what a pod needs:
the hardware, what live pods hold already, registration; the API server's client, slow to import, comes after.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from functools import partial

from neuron_plugin.hardware import (
    GENERATIONS,
    InventoryWatcher,
    MachinePaths,
    WatchPeriods,
    open_uevents,
    read_inventory,
)
from neuron_plugin.kubelet import (
    CHECKPOINT,
    KUBELET_SOCKET,
    KubeletCounters,
    PodResourcesClient,
    read_checkpoint,
)
from neuron_plugin.plugin.allocator import Allocator
from neuron_plugin.plugin.cdi import Specification, keep_written
from neuron_plugin.plugin.cluster_link import CONNECT_SECONDS, ClusterLink
from neuron_plugin.plugin.confirm import LOOK_SECONDS, Confirmation
from neuron_plugin.plugin.container import ContainerStyle, cdi_specification, resolve_numbering
from neuron_plugin.plugin.counts import Counts
from neuron_plugin.plugin.device_users import DeviceUsers
from neuron_plugin.plugin.gate import StartGate
from neuron_plugin.plugin.health.report import HealthReport
from neuron_plugin.plugin.health.watch import HealthWatch
from neuron_plugin.plugin.machine import Machine, describe, seen_machine, told_machine
from neuron_plugin.plugin.moment import Moment
from neuron_plugin.plugin.node import NodeState
from neuron_plugin.plugin.offering import Offering, route
from neuron_plugin.plugin.pages import pages
from neuron_plugin.plugin.quarantine import Quarantine
from neuron_plugin.plugin.report import Reporter
from neuron_plugin.plugin.responder import Responder
from neuron_plugin.plugin.settings import PluginSettings
from neuron_plugin.plugin.steering import Steering
from neuron_plugin.plugin.supervision import keep_going
from neuron_plugin.plugin.timed import Timed
from neuron_plugin.plugin.witness import Witness
from neuron_plugin.topology import Catalogue

logger = logging.getLogger(__name__)

PREFERENCE_SLACK_SECONDS = LOOK_SECONDS + 0.5
"""A preference may take connecting, the decision deadline and a look at the kubelet's account, before it is answered
without us."""

UNDER_WAY_SECONDS = 0.3
"""Until a binding that the extender sent before it heard of our end has come to us and to the kubelet."""
LEAVE_SECONDS = 1.6
"""For closing the node and for the admission of pods that are bound here already, some tenths of a second each on a
busy node. A plugin that is told to end has ended within two seconds."""


class NodeDaemon:
    """The daemon of one node; ``run`` ends when ``stop`` is set."""

    def __init__(self, settings: PluginSettings, types: Catalogue) -> None:
        self._settings = settings
        self._types = types
        self._found = asyncio.Event()
        self._change = asyncio.Event()
        self._refreshing = False
        self._waits = False
        self.state = NodeState(
            on_change=self._changed,
            quarantine=Quarantine(settings.quarantine_seconds),
            asked_for_all=not settings.numa_hints,
        )
        self.witness = Witness(settings.node_name, self.state, Counts())
        self._link = self._cluster_link() if settings.cluster else None
        self._users = DeviceUsers(
            self.state,
            settings.dev,
            settings.proc,
            settings.kubelet_dir / KUBELET_SOCKET,
            self._link.live_pods if self._link else None,
        )
        told = HealthReport(settings.node_name, settings.node_condition, self._link)
        self.health = HealthWatch(settings, self._judged, told.judged)
        report = self._link.report if self._link else Reporter()
        self._confirmation = Confirmation(
            self.state,
            PodResourcesClient(settings.pod_resources_socket),
            self._link.write_assignment if self._link else lambda _pod, _holdings: None,
            cluster=settings.cluster,
            look_at_users=self._users.look,
            read_records=partial(read_checkpoint, settings.kubelet_dir / CHECKPOINT),
            look_at_strangers=self._users.look_at_start,
        )
        steering = Steering(self.state, self._link.look_again if self._link else None, self._confirmation.look_again)
        counts = self.witness.counts
        gate = StartGate(self.state, self._users, settings.sysfs, counts=counts) if settings.pre_start_gate else None
        handler = Allocator(
            self.state,
            self._style,
            settings.topology_policy,
            report,
            steering,
            witness=self.witness,
            later=lambda work: asyncio.get_running_loop().call_soon(work),
            gate=gate,
        )
        self.offering = Offering(
            self.state,
            Timed(handler, self.witness),
            [name.resource for name in settings.resources],
            route(settings),
            KubeletCounters(counts.registrations, counts.preferences_replaced, counts.refusals),
            on_advertised=self._serving_began,
            preference_deadline_seconds=CONNECT_SECONDS + settings.decision_deadline_seconds + PREFERENCE_SLACK_SECONDS,
            numa_hints=settings.numa_hints,
        )
        self.responder = Responder(pages(self.offering, self._moment, self.witness.journal))

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set; then give the node's Lease up, serve whom that comes too late for, and end.

        In the end streams are ended and sockets removed.
        """
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(keep_going(name, job), name=name) for name, job in self._jobs().items()]
            await stop.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_SECONDS):
                    await self._close_the_node()
            await self.offering.stop()
            for task in tasks:
                task.cancel()

    async def _close_the_node(self) -> None:
        """Give the Lease up; then serve the pods bound here before, which the kubelet would reject without us."""
        if self._link and await self._link.serving_ends():
            await asyncio.sleep(UNDER_WAY_SECONDS)
            while self.state.waiting():
                self._change.clear()
                await self._change.wait()

    def _jobs(self) -> dict[str, Callable[[], Awaitable[None]]]:
        jobs: dict[str, Callable[[], Awaitable[None]]] = {
            "hardware": self._follow_hardware,
            "health": self.health.run,
            "offer": self._offer,
            "confirm": self._confirmation.run,
            "quarantine": self._users.run,
        }
        if self._link:
            jobs["cluster"] = self._link.run
        if self._settings.health_port:
            jobs["probes"] = partial(self.responder.run, self._settings.health_address, self._settings.health_port)
        if self._settings.cdi:
            jobs["cdi"] = partial(keep_written, self._settings.cdi_dir, self._cdi_specification)
        return jobs

    async def _follow_hardware(self) -> None:
        """Every look at the hardware that differs from the last, into the state."""
        paths = MachinePaths(self._settings.sysfs, self._settings.dev, self._settings.logical_core_file)
        read = partial(read_inventory, paths, environ=os.environ, types=self._types)
        with closing(await open_uevents()) as uevents, self.health.listening(paths.sysfs, uevents) as hints:
            watcher = InventoryWatcher(read, hints, WatchPeriods(rescan_seconds=self._settings.rescan_seconds))
            async for inventory in watcher.changes():
                self.health.look(inventory)
                self._judged()

    def _judged(self) -> None:
        """The last look at the hardware, or what is thought of it, has changed."""
        if self.health.inventory:
            self._see(
                seen_machine(self.health.inventory, self._types, self._settings.instance_type, self.health.unhealthy)
            )

    def _see(self, machine: Machine | None) -> None:
        before, waited = self.state.machine, self._waits
        self._waits = not self.state.see_machine(machine)
        if self._waits and not waited:
            logger.warning("the logical core size has changed while pods hold cores: it counts once they have ended")
        if self.state.machine and self.state.machine != before:
            logger.info("hardware", extra=describe(self.state.machine))
            self._found.set()

    async def _offer(self) -> None:
        """Once there is a device: learn who holds what and who uses it, then register."""
        await self._found.wait()
        await self._confirmation.rebuild()
        self._refresh()
        await self.offering.run()

    def _changed(self) -> None:
        """The state has changed: tell whom it concerns, once Allocate has its answer and for several changes once."""
        self._change.set()
        if not self._refreshing:
            self._refreshing = True
            asyncio.get_running_loop().call_soon(self._refresh)

    def _refresh(self) -> None:
        self._refreshing = False
        self.offering.refresh()
        self._confirmation.notify()
        if self.state.machine:
            self.witness.saw(self.state.machine)
        self._users.notify()
        if self._link and self.state.machine:
            self._link.publish(told_machine(self.state.machine, self.state.quarantine))

    def _pod_came(self) -> None:
        self._confirmation.notify()

    def _cluster_link(self) -> ClusterLink:
        return ClusterLink(
            self._settings,
            self.state,
            self._pod_came,
            witness=self.witness,
            serving=lambda: self.offering.serving,
        )

    def _serving_began(self) -> None:
        self._confirmation.notify()  # where it could not be asked before, the kubelet is there now
        if self._link:
            self._link.serving_began()

    def _moment(self) -> Moment:
        """What metrics and readiness are made of, as of now."""
        return Moment(
            self.state,
            self.witness.counts,
            {server.resource: server.registered.is_set() for server in self.offering.servers},
            self.health.inventory,
            self.health.silent_sources,
            self._link.age_seconds if self._link else None,
            self._link.unsent if self._link else None,
        )

    def _style(self, machine: Machine) -> ContainerStyle:
        """How sets are presented in containers on this machine."""
        generation = GENERATIONS.get(machine.device_name)
        has_lnc = generation is not None and generation.largest_logical_core_size > 1
        return ContainerStyle(
            numbering=resolve_numbering(self._settings.numbering, machine.driver_version),
            dev=self._settings.dev,
            logical_core_size=machine.logical_core_size if has_lnc else None,
            visible_devices_env=self._settings.visible_devices_env,
            cdi=self._settings.cdi,
        )

    def _cdi_specification(self) -> Specification | None:
        machine = self.state.machine
        return cdi_specification(machine.geometry, self._style(machine)) if machine else None
