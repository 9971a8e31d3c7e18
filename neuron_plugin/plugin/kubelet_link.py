"""All that the daemon has to do with its kubelet: who has what, registration, and asking for the kubelet's pods.

No device is offered before the holder of each device is known. Then every resource is kept registered, by one server
each, through every restart of the kubelet.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from neuron_plugin.allocation import PodUid
from neuron_plugin.backoff import NEVER, every
from neuron_plugin.kubelet import (
    DevicePluginServer,
    DirectoryWatch,
    KubeletCounters,
    PodResourcesAbsentError,
    PodResourcesError,
    WatchedPluginServer,
    identity_of,
)
from neuron_plugin.kubelet.dra_service import DraServer
from neuron_plugin.kubelet_files import KUBELET_SOCKET
from neuron_plugin.plugin.allocator import RECONSIDER_SECONDS, Allocator
from neuron_plugin.plugin.claims import ClaimPreparer, health_of
from neuron_plugin.plugin.machine import DaemonTimes, Machine
from neuron_plugin.plugin.node import LocalNode
from neuron_plugin.plugin.settings import PluginSettings, RegistrationWay
from neuron_plugin.plugin.settle import pods_of_kubelet_alone
from neuron_plugin.telemetry import Problem
from neuron_plugin.topology import CoreMask

logger = logging.getLogger(__name__)


class KubeletLink:
    """The servers of one node's resources, and what is asked of its kubelet."""

    def __init__(
        self,
        settings: PluginSettings,
        node: LocalNode,
        allocator: Allocator,
        preparer: ClaimPreparer | None,
        counters: KubeletCounters,
        machine: Machine,
        times: DaemonTimes,
    ) -> None:
        """With a ``preparer`` devices are offered by claims, else as extended resources."""
        self._settings = settings
        self._node = node
        self._allocator = allocator
        self._machine = machine
        self._times = times
        self._socket = settings.kubelet_dir / KUBELET_SOCKET
        self._empty_since: dict[PodUid, float] = {}
        self._listed_at = float("-inf")
        by_watcher = settings.registration is RegistrationWay.WATCHER or preparer is not None
        self._kubelet_watch = DirectoryWatch(settings.kubelet_dir)
        self._registry_watch = DirectoryWatch(settings.plugins_registry) if by_watcher else self._kubelet_watch
        waits = times.connect + times.read_node + 2 * settings.decision_deadline_seconds
        server = WatchedPluginServer if by_watcher else DevicePluginServer
        self.dra: DraServer | None = None
        if preparer:
            self.dra = DraServer(
                settings.dra_driver, self._registry_watch, preparer, counters=counters, changed=node.changed
            )
        self.servers = [
            server(
                resource.value,
                self._registry_watch,
                allocator,
                advertisement,
                counters=counters,
                changed=node.changed,
                preference_deadline_seconds=waits + times.node.rewrite + RECONSIDER_SECONDS + 0.5,
                other_route=settings.kubelet_dir if by_watcher else settings.plugins_registry,
            )
            for resource, advertisement in node.advertisements.items()
        ]

    @property
    def follows(self) -> bool:
        """Whether the kubelet follows any resource, or the driver."""
        return any(server.registered.is_set() for server in self.all_servers)

    @property
    def all_servers(self) -> tuple[DevicePluginServer | DraServer, ...]:
        """All that the kubelet may follow here: the resources, or the driver of claims."""
        return (self.dra,) if self.dra else tuple(self.servers)

    async def serve(self, device_found: asyncio.Event) -> None:
        """Once there is a device (``found``): learn who has what, advertise, and keep every resource registered."""
        await device_found.wait()
        await self.list_if_unreadable()
        await self.look_for_unknown_pods()
        self.show()
        kubelet, woken = identity_of(self._socket), asyncio.Event()

        def look() -> None:
            nonlocal kubelet
            seen = identity_of(self._socket)
            if seen and seen != kubelet:
                kubelet = seen
                self._node.kubelet_restarted()
            self._node.look_at_checkpoint()

        with self._kubelet_watch.listening(woken):
            async with asyncio.TaskGroup() as tasks:
                for watch in {self._kubelet_watch, self._registry_watch}:
                    tasks.create_task(watch.run(), name=f"watch {watch.directory}")
                for server in self.all_servers:
                    tasks.create_task(server.run(), name=f"register {server.resource}")
                await every(NEVER, look, woken)

    def show(self) -> None:
        """Show the kubelet the devices as they are now."""
        self._node.advertise()
        if self.dra and (snapshot := self._node.snapshot):
            self.dra.show_health(health_of(snapshot, self._settings.node_name))

    async def stop(self) -> None:
        """End every stream and remove every socket."""
        await asyncio.gather(*(server.stop() for server in self.all_servers))

    async def list_if_unreadable(self) -> None:
        """If the checkpoint cannot be read, wait for PodResources to list who has what.

        A kubelet that serves kubelet.sock and no PodResources is waited for no longer than a moment.
        """
        problem = Problem(logger, "nothing is offered until the kubelet says who has what")
        loop = asyncio.get_running_loop()
        given_up_at = float("inf")
        while self._node.recorded.unreadable:
            try:
                await self.list_pods()
            except PodResourcesError as error:
                problem.say(error)
                absent = isinstance(error, PodResourcesAbsentError)
            else:
                return
            is_up = absent and identity_of(self._socket) is not None
            given_up_at = min(given_up_at, loop.time() + self._times.start_look) if is_up else float("inf")
            if loop.time() >= given_up_at:
                return
            await asyncio.sleep(self._times.start_poll)

    async def look_for_unknown_pods(self) -> None:
        """Hold down devices that are open in processes of pods unknown to both the API server and the checkpoint.

        Such a pod may have been deleted by force while the plugin was away. A pod that only watches devices is known
        to the API server, and is no longer held down when the pods are listed.
        """
        snapshot, settings = self._node.snapshot, self._settings
        if snapshot is None:
            return
        geometry = snapshot.inventory.geometry
        nodes = {settings.dev / f"neuron{device}": device for device in snapshot.inventory.listed}
        try:
            async with asyncio.timeout(self._times.start_look):
                users = await asyncio.to_thread(self._machine.processes, list(nodes), settings.proc)
        except TimeoutError:
            logger.warning("offering devices without a look at who has them open")
            return
        opened: Counter[str] = Counter()
        for node, processes in users.items():
            for process in processes:
                if process.uses and process.pod_uid:
                    opened[process.pod_uid] |= geometry.devices_mask((nodes[node],))
        for uid, mask in opened.items():
            self._node.hold_down(PodUid(uid), CoreMask(mask), f"processes of the unknown pod with UID {uid} use it")

    async def ask_about_pods(self) -> None:
        """Ask the kubelet for its pods: in place of a checkpoint that cannot be read, and about pods that seem over.

        The kubelet forgets an ended pod only when something is allocated or its pods are listed. A pod whose end no
        API server shows would stay in the checkpoint for ever.
        """
        times, snapshot, now = self._times, self._node.snapshot, self._node.clock()
        if snapshot is None or self._allocator.calls_under_way or now - self._allocator.last_call < times.quiet:
            return
        alive = {uid: self._node.is_populated(uid) for uid in pods_of_kubelet_alone(snapshot.inputs)}
        before = self._empty_since
        self._empty_since = {uid: before.get(uid, now) for uid, populated in alive.items() if populated is False}
        empty = any(now - since >= times.empty for since in self._empty_since.values())
        blind = any(populated is None for populated in alive.values())
        unreadable = bool(snapshot.inputs.recorded.unreadable)
        if unreadable or ((empty or blind) and now - self._listed_at >= (times.empty if empty else times.blind)):
            self._listed_at = now
            try:
                await self.list_pods()
                if not unreadable:
                    await self._node.rewrite()
            except PodResourcesError as error:
                logger.debug("PodResources not listed", extra={"error": str(error)})

    async def list_pods(self) -> None:
        """List the kubelet's pods; they count only where the checkpoint cannot be read.

        Raises:
            PodResourcesError: the kubelet did not answer, or refused.
        """
        async with self._node.listing:
            began = self._node.clock()
            listed = await self._machine.pod_resources.list()
        if self._node.recorded.unreadable:
            self._node.see_listed(listed, began)
