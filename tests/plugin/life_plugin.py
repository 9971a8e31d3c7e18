"""The daemon of a node in a random life: one process of it, without its sockets and its hardware."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from neuron_plugin.allocation import PodUid, Resource
from neuron_plugin.kubelet.device_plugin import DevicePluginService
from neuron_plugin.plugin.daemon import NodeDaemon
from neuron_plugin.plugin.hardware_watch import HardwareWatch
from neuron_plugin.plugin.machine import Machine
from neuron_plugin.plugin.settings import Numbering, PluginSettings
from neuron_plugin.plugin.settle import is_explained
from neuron_plugin.topology import Geometry, catalogue
from tests.plugin.life_cluster import LifePod, follow_pods
from tests.plugin.life_kubelet import Connection

if TYPE_CHECKING:
    from tests.plugin.life import Life


@dataclass(frozen=True)
class Mode:
    """What kind of node it is, and what can be seen of it."""

    geometry: Geometry
    cluster: bool = True
    extender: bool = True
    lag_seconds: float = 0.02
    sees_cgroups: bool = True
    sees_processes: bool = True
    inotify: bool = True
    numa: bool = False
    logical_core_size: int = 1


class Plugin:
    """One process of the node daemon, without its sockets and its hardware."""

    def __init__(self, life: Life) -> None:
        mode, loop = life.mode, asyncio.get_running_loop()
        settings = PluginSettings(node_name="worker-1", cluster=mode.cluster, numbering=Numbering.HOST, health_port=0)
        machine = Machine(life.kubelet.file, life, life.kubelet, clock=loop.time, now_ns=lambda: int(loop.time() * 1e9))
        self.daemon = daemon = NodeDaemon(settings, catalogue(), machine=machine)
        self.node = daemon.node
        daemon.hardware = HardwareWatch(settings, catalogue(), self.node, life.hardware, daemon.cluster, daemon.counts)
        if mode.numa:
            half = mode.geometry.device_count // 2
            self.node.numa_nodes = tuple(int(device >= half) for device in range(mode.geometry.device_count))
        self._life = life
        self._services = {
            server.resource: DevicePluginService(
                server.resource,
                self.daemon.allocator,
                self.node.advertisements[Resource(server.resource)],
                preference_deadline_seconds=server.preference_deadline_seconds,
            )
            for server in self.daemon.kubelet.servers
        }
        jobs = {
            "serve": self._serve,
            "publish": daemon.jobs["publish"],
            "turns": daemon.jobs["turns"],
            "pod resources": daemon.jobs["pod resources"],
        }
        if cluster := self.daemon.cluster:
            jobs["list"] = daemon.jobs["pods"]
            jobs["pods"] = partial(follow_pods, life.api, cluster.pods, life.chance)
            jobs["writes"] = partial(cluster.publisher.queue.run, life.api)
            jobs["own node"] = partial(cluster.own_node.run, life.api)
            jobs["lease"] = partial(cluster.lease.run, life.api)
            jobs |= {name: daemon.jobs[name] for name in ("disabled devices", "judgements")}
        self._tasks = [asyncio.create_task(job(), name=name) for name, job in jobs.items()]
        for task in self._tasks:
            task.add_done_callback(life.task_ended)

    def knows(self, pod: LifePod) -> bool:
        snapshot = self.node.snapshot
        return snapshot is not None and is_explained(snapshot.inputs, PodUid(pod.uid))

    def knows_what_it_has(self, pod: LifePod, mask: int) -> bool:
        """Whether these logical cores are on record for the pod."""
        snapshot, found = self.node.snapshot, 0
        for key, entry in self.node.recorded.entries.items():
            if snapshot and key.uid == pod.uid:
                found |= entry.on(snapshot.inventory, snapshot.inputs.reference(key.uid)).mask
        return not mask & ~found

    def kill(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _serve(self) -> None:
        """What the daemon does from its start on: look, offer, register, and register with each new kubelet."""
        life, chance, node = self._life, self._life.chance, self.node
        await asyncio.sleep(chance.uniform(0.1, 0.5))
        self.daemon.hardware.see()
        await self.daemon.kubelet.list_if_unreadable()
        snapshot = node.snapshot
        assert snapshot is not None
        for pod in life.pods:
            if life.mode.sees_processes and pod.opened:
                devices = life.inventory.geometry.devices_touched(life.logical(pod.mask))
                node.hold_down(PodUid(pod.uid), life.inventory.geometry.devices_mask(devices), "unknown pod")
            elif (pod.used or (pod.removed and pod.given)) and not self.knows(pod):
                pod.unseen = True  # a removed one may start all the same, and has no process yet that says so
            if life.kubelet.file.fault and not pod.initialized and len(pod.containers) > 1:
                pod.unseen = True  # PodResources does not list what plain init containers have
        node.advertise()
        kubelet, registered_with = life.kubelet.process, -1
        while True:
            life.kubelet.started.clear()
            if life.kubelet.up and life.kubelet.process != registered_with:
                if life.kubelet.process != kubelet:
                    await asyncio.sleep(chance.random() * 0.1)
                    kubelet = life.kubelet.process
                    node.kubelet_restarted()
                await asyncio.sleep(chance.choice((0.02, 0.1, 0.5)))
                if life.kubelet.up:
                    registered_with = kubelet = life.kubelet.process
                    life.kubelet.connect(Connection(self._services, self._disconnected))
                    for server in self.daemon.kubelet.servers:
                        server.registered.set()
                    node.changed.set()
            await life.kubelet.started.wait()

    def _disconnected(self) -> None:
        for server in self.daemon.kubelet.servers:
            server.registered.clear()
