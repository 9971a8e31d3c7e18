"""The node daemon: hardware in, devices out to the kubelet, assignments in from the cluster.

Each job replaces one input of the node, or publishes what follows from all of them; they meet in ``Node``. Start-up is
in the order of what a pod needs: the hardware, what the kubelet has recorded, registration. The API server's client
and the HTTP server are slow to import and come after.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

from neuron_plugin.allocation import PodUid, format_ids
from neuron_plugin.backoff import keep_running
from neuron_plugin.cluster import ConnectionSettingsError, KubernetesApi, connect
from neuron_plugin.hardware import (
    InventoryWatcher,
    MachinePaths,
    WatchPeriods,
    device_processes,
    is_populated,
    open_uevents,
    read_inventory,
)
from neuron_plugin.http_server import serve_status
from neuron_plugin.kubelet import (
    CHECKPOINT,
    KUBELET_SOCKET,
    CheckpointFile,
    DevicePluginServer,
    DirectoryWatch,
    KubeletCounters,
    PodResourcesAbsentError,
    PodResourcesClient,
    PodResourcesError,
    WatchedPluginServer,
    identity_of,
)
from neuron_plugin.plugin.allocator import RECONSIDER_SECONDS, Allocator
from neuron_plugin.plugin.container import CDI_FILE_NAME, cdi_specification, container_style, write_cdi_specification
from neuron_plugin.plugin.counters import Counters
from neuron_plugin.plugin.health_watch import HealthWatch
from neuron_plugin.plugin.node import RECORD_SECONDS, REWRITE_SECONDS, Node, NodeOptions
from neuron_plugin.plugin.node_inventory import node_inventory
from neuron_plugin.plugin.node_lease import LeaseTimes, NodeLease
from neuron_plugin.plugin.node_watch import NodeWatch
from neuron_plugin.plugin.pod_watch import CONNECT_SECONDS, PodWatch
from neuron_plugin.plugin.publisher import Publisher
from neuron_plugin.plugin.settings import PluginSettings, Registration
from neuron_plugin.plugin.snapshot import pods_of_kubelet_alone
from neuron_plugin.plugin.status import PluginStatus
from neuron_plugin.topology import Catalogue, CoreMask

logger = logging.getLogger(__name__)

TURN_SECONDS = 0.25
"""Between two looks at what changes without an event: cgroups, time, a checkpoint on a file system without inotify."""
QUIET_SECONDS = 1.0
"""PodResources List makes the kubelet forget the reservations of an Allocate that is under way (kubernetes#137534), so
it is asked only when the kubelet has asked us nothing for so long."""
ASK_SECONDS = 5.0
"""Between two LISTs of pods that the watch does not explain."""
EMPTY_SECONDS = 5.0
"""How long a pod's cgroup must be empty before the kubelet is asked whether it still knows the pod."""
BLIND_SECONDS = 30.0
"""Between two such questions where cgroups cannot be seen."""
START_LOOK_SECONDS = 5.0
"""The longest wait for open devices, or for the kubelet's pods, before devices are offered: a node has to serve."""
NODE_SECONDS = 5.0
"""For reading the Node object before the first of the kubelet's calls is answered, once the client is loaded. Where the
API server is away longer than that, no pod comes from it either, and the kubelet's own pods need their devices."""
START_POLL_SECONDS = 0.1
"""Between two looks for a kubelet that can say who has what. A pod that it admits before we register is rejected."""
UNDER_WAY_SECONDS = 0.3
"""Until a binding that the extender sent before it heard of our end has reached us and the kubelet."""
LEAVE_SECONDS = 1.6
"""For closing the node and for admitting pods that are bound here already. The whole end takes less than two
seconds."""
CONNECT_RETRY_SECONDS = 10.0
"""Between two looks for usable API server settings: a service account's files may come late."""
NOT_READY_SECONDS = 10.0
"""How long the node must not be ready before its condition says so. Restarts of kubelet and plugin take less, and no
rule is to add a taint for them."""
CDI_SECONDS = 5.0
"""Between two looks at the CDI specification."""


class CgroupTree:
    """The pods' cgroups under one root."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def is_populated(self, uid: str) -> bool | None:
        """Whether a process of the pod lives; None where cgroups cannot be seen."""
        return is_populated(self._root, uid)


class NodeDaemon:
    """The daemon of one node; ``run`` ends when ``stop`` is set."""

    def __init__(self, settings: PluginSettings, types: Catalogue) -> None:
        self._settings = settings
        self._types = types
        resources = tuple(name.resource for name in settings.resources)
        self.counters = Counters()
        kubelet_counters = KubeletCounters()
        self.node = Node(
            CheckpointFile(settings.kubelet_dir / CHECKPOINT, [resource.value for resource in resources]),
            CgroupTree(settings.cgroup),
            NodeOptions(resources, settings.cluster, settings.hold_down_seconds),
        )
        self.publisher = Publisher(settings.node_name, label_unhealthy=settings.label_pods_on_sick_devices)
        deadline = settings.decision_deadline_seconds
        own_uid = os.environ.get("POD_UID", "")
        self.pods = (
            PodWatch(self.node, settings.node_name, own_uid, deadline, self.counters) if settings.cluster else None
        )
        self.lease = NodeLease(
            settings.lease_namespace,
            settings.node_name,
            LeaseTimes(settings.lease_duration_seconds, settings.lease_renew_seconds),
        )
        self.allocator = Allocator(self.node, settings, self.pods, self.counters)
        self._hardware_changed = asyncio.Event()
        self._found = asyncio.Event()
        self._rejudged = asyncio.Event()
        self.health = HealthWatch(settings, self._rejudged, self.publisher if settings.cluster else None)
        self.own_node = (
            NodeWatch(settings.node_name, self._rejudged, self.publisher, self.counters) if settings.cluster else None
        )
        if self.own_node:
            self.node.orders_known.clear()
        self._pod_resources = PodResourcesClient(settings.pod_resources_socket)
        self._kubelet_watch = DirectoryWatch(settings.kubelet_dir)
        watcher = settings.registration is Registration.WATCHER
        self._registry_watch = DirectoryWatch(settings.plugins_registry) if watcher else self._kubelet_watch
        waits = CONNECT_SECONDS + NODE_SECONDS + 2 * deadline + REWRITE_SECONDS + RECONSIDER_SECONDS
        server = WatchedPluginServer if watcher else DevicePluginServer
        self.servers = [
            server(
                resource.value,
                self.allocator,
                advertisement,
                self._registry_watch,
                counters=kubelet_counters,
                changed=self.node.changed,
                preference_deadline_seconds=waits + 0.5,
                other_route=settings.kubelet_dir if watcher else settings.plugins_registry,
            )
            for resource, advertisement in self.node.advertisements.items()
        ]
        self.status = PluginStatus(
            self.node,
            self.servers,
            self.health,
            self.allocator.decisions,
            self.counters,
            kubelet_counters,
            pods=self.pods,
            own_node=self.own_node,
            writes=self.publisher.queue if settings.cluster else None,
        )
        self._api: KubernetesApi | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set; then close the node, serve the pods that are bound here already, and end.

        The kubelet would reject those pods without us.
        """
        jobs: dict[str, Callable[[], Awaitable[None]]] = {
            "hardware": self._follow_hardware,
            "judgements": self._follow_judgements,
            "health": self.health.run,
            "kubelet": self._serve,
            "publish": self._publish_changes,
            "turns": self._take_turns,
            "pods": self._ask_api_server,
            "pod resources": self._ask_pod_resources,
        }
        if self._settings.cluster:
            jobs["cluster"] = self._follow_cluster
        if self._settings.health_port:
            jobs["status"] = partial(
                serve_status, self.status, self._settings.health_address, self._settings.health_port
            )
        if self.own_node:
            jobs["disabled devices"] = self._read_own_node
        if self._settings.cdi:
            jobs["cdi"] = self._keep_cdi_specification
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(keep_running(name, job), name=name) for name, job in jobs.items()]
            await stop.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_SECONDS):
                    # Where no Lease can be given up, new pods keep coming, and there is nothing to wait for.
                    if self._api and self._settings.node_lease and await self.lease.give_up(self._api):
                        await asyncio.sleep(UNDER_WAY_SECONDS)
                        while self.node.snapshot and self.node.snapshot.waiting:  # noqa: ASYNC110 - until the kubelet's calls
                            await asyncio.sleep(0.02)
            await asyncio.gather(*(server.stop() for server in self.servers))
            for task in tasks:
                task.cancel()

    # The inputs.

    async def _follow_hardware(self) -> None:
        """Every look at the hardware that differs from the last, into the node."""
        paths = MachinePaths(self._settings.sysfs, self._settings.dev, self._settings.logical_core_file)
        read = partial(read_inventory, paths, environ=os.environ, types=self._types)
        changed = self._hardware_changed
        with closing(await open_uevents(changed)) as uevents:
            watcher = InventoryWatcher(read, changed, WatchPeriods(rescan_seconds=self._settings.rescan_seconds))
            async for inventory in watcher.changes():
                self.health.look(inventory, uevents.problem)
                self._see_hardware()

    async def _follow_judgements(self) -> None:
        """Every change of what the rules of health, or an operator, say of the devices."""
        while True:
            await self._rejudged.wait()
            self._rejudged.clear()
            self._see_hardware()

    def _see_hardware(self) -> None:
        if self.health.inventory is None:
            return
        before = self.node.snapshot.inventory if self.node.snapshot else None
        after = node_inventory(
            before,
            self.health.inventory,
            self._types,
            self._settings.instance_type,
            self.health.unhealthy,
            self.own_node.disabled if self.own_node else (),
        )
        if after is None:
            return
        if self.own_node:
            self.own_node.report(after)
        if after == before:
            return
        if self._settings.numa_hints:
            known = self._types.get(after.geometry.instance_type)
            self.node.numa_nodes = known.numa_nodes if known else ()
        was = before.unhealthy if before else {}
        self.counters.health_transitions.update((device, "unhealthy") for device in after.unhealthy.keys() - was.keys())
        self.counters.health_transitions.update((device, "healthy") for device in was.keys() - after.unhealthy.keys())
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
        self.node.see_inventory(after)
        self._found.set()

    async def _follow_cluster(self) -> None:
        """Connect; then keep this node's pods, the Lease and the write queue going until cancelled."""
        if self.pods is None or self.own_node is None:
            return
        reported = ""
        while self._api is None:
            try:
                self._api = await connect(self._settings.kubeconfig)
            except ConnectionSettingsError as error:
                if str(error) != reported:
                    logger.warning("not connected to the API server", extra={"error": str(error)})
                reported = str(error)
                self.pods.tried.set()
                self.own_node.read.set()
                await asyncio.sleep(CONNECT_RETRY_SECONDS)
        try:
            async with self._api as api, asyncio.TaskGroup() as tasks:
                tasks.create_task(self.pods.run(api), name="pods")
                tasks.create_task(self.own_node.run(api), name="own node")
                tasks.create_task(self.publisher.queue.run(api), name="writes")
                if self._settings.node_lease:
                    tasks.create_task(self.lease.run(api), name="lease")
                if self._settings.ready_condition:
                    tasks.create_task(self._keep_ready_condition(), name="ready condition")
        finally:
            self._api = None

    async def _keep_ready_condition(self) -> None:
        """Say on the Node object that pods can get devices here at once, and that they cannot once that has lasted."""
        name, loop = self._settings.ready_condition, asyncio.get_running_loop()
        last_ready = loop.time()
        while True:
            is_ready, reason, message = self.status.ready_condition()
            last_ready = loop.time() if is_ready else last_ready
            if is_ready or loop.time() - last_ready >= NOT_READY_SECONDS:
                self.publisher.write_condition(name, status=is_ready, reason=reason, message=message)
            await asyncio.sleep(TURN_SECONDS)

    async def _take_turns(self) -> None:
        """What changes without an event, and what is due; some microseconds if nothing is."""
        while True:
            await asyncio.sleep(TURN_SECONDS)
            self.node.look_at_checkpoint()
            self.node.look_again()
            if self.node.rewrite_is_due:
                await self.node.rewrite()

    async def _ask_api_server(self) -> None:
        """Ask the API server about pods that the kubelet has recorded and that the watch does not show."""
        while True:
            await asyncio.sleep(ASK_SECONDS)
            if self.pods and self.node.list_is_due:
                await self.pods.list_pods()

    async def _ask_pod_resources(self) -> None:
        """Ask the kubelet for its pods: in place of a checkpoint that cannot be read, and about pods that seem over.

        The kubelet forgets an ended pod only when something is allocated or its pods are listed. A pod whose end no
        API server shows would stay in the checkpoint for ever.
        """
        empty_since: dict[PodUid, float] = {}
        listed_at = float("-inf")
        while True:
            await asyncio.sleep(QUIET_SECONDS)
            snapshot, now = self.node.snapshot, self.node.clock()
            if snapshot is None or self.allocator.calls_under_way or now - self.allocator.last_call < QUIET_SECONDS:
                continue
            alive = {uid: self.node.is_populated(uid) for uid in pods_of_kubelet_alone(snapshot.inputs)}
            empty_since = {uid: empty_since.get(uid, now) for uid, populated in alive.items() if populated is False}
            empty = any(now - since >= EMPTY_SECONDS for since in empty_since.values())
            blind = any(populated is None for populated in alive.values())
            unreadable = bool(snapshot.inputs.recorded.unreadable)
            if unreadable or ((empty or blind) and now - listed_at >= (EMPTY_SECONDS if empty else BLIND_SECONDS)):
                listed_at = now
                try:
                    await self._list_pod_resources()
                    if not unreadable:
                        await self.node.rewrite()
                except PodResourcesError as error:
                    logger.debug("PodResources not listed", extra={"error": str(error)})

    async def _list_pod_resources(self) -> None:
        """List the kubelet's pods; they count only where the checkpoint cannot be read."""
        async with self.node.listing:
            began = self.node.clock()
            listed = await self._pod_resources.list()
        if self.node.recorded.unreadable:
            self.node.see_listed(listed, began)

    # What goes out.

    async def _serve(self) -> None:
        """Once there is a device: learn who has what, advertise, and keep every resource registered."""
        await self._found.wait()
        await self._list_if_unreadable()
        await self._look_for_unknown_pods()
        self.node.advertise()
        kubelet, look = identity_of(self._settings.kubelet_dir / KUBELET_SOCKET), asyncio.Event()
        with self._kubelet_watch.listening(look):
            async with asyncio.TaskGroup() as tasks:
                for watch in {self._kubelet_watch, self._registry_watch}:
                    tasks.create_task(watch.run(), name=f"watch {watch.directory}")
                for server in self.servers:
                    tasks.create_task(server.run(), name=f"register {server.resource}")
                while True:
                    await look.wait()
                    look.clear()
                    seen = identity_of(self._settings.kubelet_dir / KUBELET_SOCKET)
                    if seen and seen != kubelet:
                        kubelet = seen
                        self.node.kubelet_restarted()
                    self.node.look_at_checkpoint()

    async def _list_if_unreadable(self) -> None:
        """Wait until PodResources has said who has what, where the checkpoint cannot be read.

        A kubelet that serves kubelet.sock and no PodResources is waited for no longer than a moment.
        """
        reported, loop = "", asyncio.get_running_loop()
        given_up_at = float("inf")
        while self.node.recorded.unreadable:
            try:
                await self._list_pod_resources()
            except PodResourcesError as error:
                text, absent = str(error), isinstance(error, PodResourcesAbsentError)
            else:
                return
            if text != reported:
                logger.warning("nothing is offered until the kubelet says who has what", extra={"error": text})
            reported = text
            is_up = absent and identity_of(self._settings.kubelet_dir / KUBELET_SOCKET) is not None
            given_up_at = min(given_up_at, loop.time() + START_LOOK_SECONDS) if is_up else float("inf")
            if loop.time() >= given_up_at:
                return
            await asyncio.sleep(START_POLL_SECONDS)

    async def _read_own_node(self) -> None:
        """Let the kubelet's calls wait until the Node object was read, so that no disabled device is given."""
        if self.own_node is None or self.pods is None:
            return
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self.pods.tried.wait()
            async with asyncio.timeout(NODE_SECONDS):
                await self.own_node.read.wait()
        except TimeoutError:
            logger.warning("serving before the Node object could be read")
        self._see_hardware()
        self.node.orders_known.set()

    async def _look_for_unknown_pods(self) -> None:
        """Hold down what processes of pods have open that neither the API server nor the checkpoint names.

        Such a pod may have been deleted by force while the plugin was away. A pod that only watches devices is known
        to the API server, and is no longer held down when the pods are listed.
        """
        snapshot, settings = self.node.snapshot, self._settings
        if snapshot is None:
            return
        nodes = {settings.dev / f"neuron{device}": device for device in snapshot.inventory.listed}
        try:
            async with asyncio.timeout(START_LOOK_SECONDS):
                users = await asyncio.to_thread(device_processes, list(nodes), settings.proc)
        except TimeoutError:
            logger.warning("offering devices without a look at who has them open")
            return
        opened: Counter[str] = Counter()
        for node, processes in users.items():
            for process in processes:
                if process.uses and process.pod_uid:
                    opened[process.pod_uid] |= snapshot.inventory.geometry.devices_mask((nodes[node],))
        for uid, mask in opened.items():
            self.node.hold_down(PodUid(uid), CoreMask(mask), f"processes of the unknown pod with UID {uid} use it")

    async def _publish_changes(self) -> None:
        """Show the kubelet and the cluster what has changed; several changes of one moment go out once.

        A message makes the kubelet write its checkpoint. The kubelet's own write of the last answer has to come
        first: a message would delay it. If the pod has ended meanwhile, a message would even replace it unread.
        """
        while True:
            await self.node.changed.wait()
            self.node.changed.clear()
            self.lease.serve(serving=any(server.registered.is_set() for server in self.servers))
            with suppress(TimeoutError):
                async with asyncio.timeout(RECORD_SECONDS):
                    while self.node.record_is_awaited:
                        await self.node.changed.wait()
                        self.node.changed.clear()
            self.node.advertise()
            snapshot = self.node.snapshot
            if snapshot is None:
                continue
            self.allocator.name_decisions()
            if self._settings.cluster:
                for write in self.publisher.publish(snapshot):
                    self.counters.corrections += 1
                    self.allocator.log_correction(write)
            while self.allocator.events:
                self.publisher.report([self.allocator.events.popleft()])

    async def _keep_cdi_specification(self) -> None:
        reported = ""
        while True:
            snapshot = self.node.snapshot
            try:
                if snapshot:
                    has = snapshot.inventory
                    style = container_style(self._settings, has.driver_version, has.device_name, has.logical_core_size)
                    specification = cdi_specification(has.geometry, style)
                    if write_cdi_specification(self._settings.cdi_dir, specification):
                        path = str(self._settings.cdi_dir / CDI_FILE_NAME)
                        logger.info("wrote the CDI specification", extra={"path": path})
                reported = ""
            except OSError as error:
                if str(error) != reported:
                    logger.warning("cannot write the CDI specification", extra={"error": str(error)})
                reported = str(error)
            await asyncio.sleep(CDI_SECONDS)
