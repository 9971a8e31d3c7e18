"""The node daemon about itself: probes, metrics, decisions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from neuron_plugin.allocation.inventory import write_inventory
from neuron_plugin.allocation.keys import INVENTORY_KEY
from neuron_plugin.build import build
from neuron_plugin.decision_log import DecisionLog, decisions_document
from neuron_plugin.http_server import ProbeAnswer
from neuron_plugin.kubelet import DevicePluginServer, KubeletCounters
from neuron_plugin.kubelet.dra_service import DraServer
from neuron_plugin.metrics import MetricCounts, Samples
from neuron_plugin.plugin.cluster_link import ClusterLink
from neuron_plugin.plugin.health_watch import HealthWatch
from neuron_plugin.plugin.metrics import METRICS, snapshot_samples, utilization_samples
from neuron_plugin.plugin.node import LocalNode
from neuron_plugin.plugin.utilization_watch import UtilizationWatch

if TYPE_CHECKING:
    from prometheus_client import Metric

DIAL_SECONDS = 2.0
"""Below a probe's usual time-out of some seconds, so that the reason reaches the kubelet's event."""

_NO_DEVICE = "no Neuron device has been found: is the driver loaded?"


class PluginStatus:
    """Probes, metrics and decisions of one node daemon; ``http_server`` serves them.

    Alive is what a restart would mend: our own sockets, dialled as the kubelet dials them. Ready is what a rollout
    waits for: the kubelet follows every resource, and the API server, if there is one, knows the node by its name.
    """

    def __init__(
        self,
        node: LocalNode,
        servers: Sequence[DevicePluginServer | DraServer],
        health: HealthWatch,
        decisions: DecisionLog,
        counts: MetricCounts,
        kubelet_counters: KubeletCounters,
        cluster: ClusterLink | None,
        utilization: UtilizationWatch,
    ) -> None:
        """``cluster`` is None without an API server."""
        self._node = node
        self._servers = servers
        self._health = health
        self._decisions = decisions
        self._counts = counts
        self._kubelet_counters = kubelet_counters
        self._cluster = cluster
        self._utilization = utilization
        self._own_node = cluster.own_node if cluster else None

    async def liveness(self) -> ProbeAnswer:
        """``/healthz``: whether every socket of ours answers."""
        faults = await asyncio.gather(*map(self._fault_of, self._servers))
        return ProbeAnswer({server.resource: fault for server, fault in zip(self._servers, faults, strict=True)})

    async def readiness(self) -> ProbeAnswer:
        """``/readyz``: whether the kubelet follows every resource and the Node is there, or what is missing."""
        notes = [f"{source} is not running: {why}" for source, why in self._health.silent_sources.items()]
        snapshot = self._node.snapshot
        checks = {"node": self._own_node.problem} if self._own_node else {}
        if snapshot is None:
            return ProbeAnswer({"devices": _NO_DEVICE, **checks}, tuple(notes))
        if self._own_node and self._own_node.unreadable:
            notes.append(f"disabled devices are those of before: {self._own_node.unreadable}")
        if snapshot.inputs.recorded.unreadable:
            notes.append(f"allocations come from PodResources: {snapshot.inputs.recorded.unreadable}")
        checks |= {
            server.resource: "" if server.registered.is_set() else f"{server.resource}: {server.state.value}"
            for server in self._servers
        }
        return ProbeAnswer(checks, tuple(notes))

    def ready_condition(self) -> tuple[bool, str, str]:
        """Status, reason and message of the condition ``--ready-condition``: whether pods can get devices here.

        The extender knows a node by its inventory, so registered resources alone are not enough.
        """
        snapshot = self._node.snapshot
        if snapshot is None:
            return False, "NoDevices", _NO_DEVICE
        if missing := [server.resource for server in self._servers if not server.registered.is_set()]:
            return False, "NotRegistered", f"the kubelet does not follow {', '.join(missing)}"
        if self._own_node is None or self._own_node.inventory != write_inventory(snapshot.published_inventory):
            return False, "InventoryNotPublished", f"the node's annotation {INVENTORY_KEY} is not the plugin's last one"
        count = len(snapshot.inventory.listed)
        return True, "DevicesReady", f"{count} Neuron devices are registered, and the inventory is published"

    def decisions(self) -> bytes:
        """``/decisions``: all that is remembered, oldest first, each with its candidates."""
        return decisions_document(self._decisions)

    def collect(self) -> Iterable[Metric]:
        """``/metrics``."""
        return METRICS.families(self._samples())

    async def _fault_of(self, server: DevicePluginServer | DraServer) -> str:
        socket = server.socket_path
        fault = await server.fault(DIAL_SECONDS)
        if fault and server.socket_path == socket:  # else the socket was being replaced just now
            return f"{server.resource} does not answer on {socket}: {fault}"
        return ""

    def _samples(self) -> dict[str, Samples]:
        snapshot, counts, kubelet = self._node.snapshot, self._counts.samples(), self._kubelet_counters
        transitions = "health_transitions_total"
        age = self._cluster.pods.age_seconds if self._cluster else None
        return {
            **counts,
            "build_info": {tuple(build()): 1},
            **(snapshot_samples(snapshot, self._node.options.counted) if snapshot else {}),
            **utilization_samples(self._utilization.use, self._utilization.unix_seconds),
            "ecc_errors": {
                (str(device.id), kind): count
                for device in (self._health.inventory.devices if self._health.inventory else ())
                if (ecc := device.health.ecc)
                for kind, count in (("sram", ecc.sram), ("memory", ecc.memory), ("repairable", ecc.repairable))
            },
            "registered": {(server.resource,): server.registered.is_set() for server in self._servers},
            "silent_sources": {(source,): 1 for source in self._health.silent_sources},
            "claims_readable": {(): not self._node.dra_unreadable},
            "slice_published": {(): self._cluster.slices.published} if self._cluster and self._cluster.slices else {},
            "disable_devices_readable": {(): not self._own_node.unreadable} if self._own_node else {},
            "watch_age_seconds": {} if age is None else {(): age},
            "pending_writes": {(): len(self._cluster.publisher.queue)} if self._cluster else {},
            "refusals_total": kubelet.refused_requests,
            "preferences_replaced_total": {(name,): count for name, count in kubelet.preferences_replaced.items()},
            "registrations_total": kubelet.registrations,
            transitions: {
                labels: count
                for labels, count in counts[transitions].items()
                if snapshot and int(labels[0]) in snapshot.inventory.listed
            },
        }
