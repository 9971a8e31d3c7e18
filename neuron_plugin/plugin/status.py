"""What the node daemon says about itself: probes, metrics, decisions.

``METRICS`` is the whole list of metrics and so their documentation. Gauges are read off the snapshot at each scrape, so
what is gone (a pod, a device, a source) leaves no series behind; counters have no label that can go.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from neuron_plugin import __version__
from neuron_plugin.allocation import Resource
from neuron_plugin.allocation.inventory import write_inventory
from neuron_plugin.allocation.keys import DISABLE_KEY, INVENTORY_KEY
from neuron_plugin.build import Build, build
from neuron_plugin.decision_log import DecisionLog, decisions_document
from neuron_plugin.http_server import ProbeAnswer
from neuron_plugin.kubelet import DevicePluginServer, KubeletCounters
from neuron_plugin.kubelet.dra_service import DraServer
from neuron_plugin.plugin.cluster_link import ClusterLink
from neuron_plugin.plugin.counters import Counters
from neuron_plugin.plugin.health_watch import HealthWatch
from neuron_plugin.plugin.node import LocalNode
from neuron_plugin.plugin.snapshot import Snapshot
from neuron_plugin.plugin.utilization_watch import UtilizationWatch, utilization_samples
from neuron_plugin.topology import cores_in

if TYPE_CHECKING:
    from prometheus_client import Metric

PREFIX = "neuron_plugin_"
DIAL_SECONDS = 2.0
"""Below a probe's usual time-out of some seconds, so that the reason reaches the kubelet's event."""

_STATES = ("free", "allocated", "allocated_as_other", "unhealthy", "disabled", "cooling_down")

METRICS: Mapping[str, tuple[str, Sequence[str], str]] = {
    "build_info": ("gauge", Build._fields, "Always 1; which build this is."),
    "info": ("gauge", ("version", "driver_version", "device_name", "instance_type"), "Always 1; what runs on what."),
    "devices": ("gauge", ("resource", "state"), f"Ids of a resource: {', '.join(_STATES)}."),
    "device_healthy": ("gauge", ("device",), "1 if a device is present and healthy, else 0."),
    "device_disabled": ("gauge", ("device",), f"1 if the node's annotation {DISABLE_KEY} disables a device, else 0."),
    "claims_readable": ("gauge", (), "1 unless the kubelet's file of prepared claims cannot be read."),
    "slice_published": ("gauge", (), "1 if the API server shows the node's ResourceSlice as it should be."),
    "disable_devices_readable": (
        "gauge",
        (),
        f"1 unless {DISABLE_KEY} cannot be read and its last value holds.",
    ),
    "ecc_errors": ("gauge", ("device", "kind"), "Errors since power-up: sram, memory (both uncorrected), repairable."),
    "allocated_claims": ("gauge", (), "Claims of DRA by which pods have devices or cores."),
    "allocated_pods": ("gauge", (), "Pods that have devices or cores."),
    "allocated": (
        "gauge",
        ("namespace", "pod", "container", "resource"),
        "Ids that a container has. Ids that a later container of the pod re-uses count for that one only.",
    ),
    "core_holder": (
        "gauge",
        ("neuroncore", "neuron_device", "namespace", "pod", "container"),
        "Always 1; which container has a logical core. Joins neuron-monitor's metrics by core to pods.",
    ),
    "container_busy_ratio": (
        "gauge",
        ("namespace", "pod", "container"),
        "Part of the last 5 minutes in which a container's cores executed, from 0 to 1, on average over its cores.",
    ),
    "container_idle_seconds": (
        "gauge",
        ("namespace", "pod", "container"),
        "For how long a container's cores have executed nothing; 0 while they do.",
    ),
    "container_device_memory_bytes": (
        "gauge",
        ("namespace", "pod", "container"),
        "Device memory that is allocated on a container's cores.",
    ),
    "unconfirmed_allocations": ("gauge", (), "Answers to Allocate that the kubelet's checkpoint does not show yet."),
    "cooling_down_cores": ("gauge", (), "Cores that are not offered because an ended pod's processes may use them."),
    "waiting_assignments": ("gauge", (), "Assigned sets whose container has not been admitted yet."),
    "checkpoint_readable": ("gauge", (), "1 while the kubelet's checkpoint is the source of allocations, else 0."),
    "registered": ("gauge", ("resource",), "1 while the kubelet follows a resource, else 0."),
    "silent_sources": ("gauge", ("source",), "1 for each source of hardware events that is not running."),
    "watch_age_seconds": ("gauge", (), "Seconds since the API server was last heard from."),
    "pending_writes": ("gauge", (), "Requests that wait for the API server."),
    "allocations_total": ("counter", ("resource",), "Allocate calls that were served, by container."),
    "refusals_total": ("counter", ("resource", "method"), "Calls of the kubelet that were answered with an error."),
    "preferences_replaced_total": ("counter", ("resource",), "Preferences that failed and got a plain valid answer."),
    "registrations_total": ("counter", ("resource", "result"), "Register calls: accepted or failed."),
    "corrections_total": ("counter", (), "Pods whose assignment was corrected to what the kubelet had given them."),
    "health_transitions_total": ("counter", ("device", "to"), "How often a device became unhealthy or healthy."),
    "lists_total": ("counter", ("kind",), "Complete lists read from the API server."),
    "watch_restarts_total": (
        "counter",
        ("kind", "cause"),
        "Ended watches: end, expired, refused, unreachable, unreadable.",
    ),
    "allocate_seconds": ("histogram", ("resource",), "Our own time to answer an Allocate, gRPC not counted."),
    "preference_seconds": (
        "histogram",
        ("resource",),
        "Our own time to answer a GetPreferredAllocation, waits included.",
    ),
    "prepare_seconds": (
        "histogram",
        ("resource",),
        "Our own time to prepare the claims of a pod, waits included, by the name of the driver.",
    ),
}
"""Every metric by its name without the prefix: kind, labels, meaning."""

_NO_DEVICE = "no Neuron device has been found: is the driver loaded?"

Samples = Mapping[tuple[str, ...], float]


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
        counters: Counters,
        kubelet_counters: KubeletCounters,
        cluster: ClusterLink | None,
        utilization: UtilizationWatch,
    ) -> None:
        """``cluster`` is None without an API server."""
        self._node = node
        self._servers = servers
        self._health = health
        self._decisions = decisions
        self._counters = counters
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
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        families = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}
        for name, samples in self._samples().items():
            kind, labels, meaning = METRICS[name]
            family = families[kind](PREFIX + name, meaning, labels=labels)
            for values, sample in samples.items():
                family.add_metric(values, sample)
            if samples:
                yield family
        for name, by_resource in (
            ("allocate_seconds", self._counters.allocate_seconds),
            ("preference_seconds", self._counters.preference_seconds),
            ("prepare_seconds", self._counters.prepare_seconds),
        ):
            _, labels, meaning = METRICS[name]
            histogram = HistogramMetricFamily(PREFIX + name, meaning, labels=labels)
            for resource, latencies in list(by_resource.items()):
                histogram.add_metric([resource], list(latencies.cumulative()), latencies.sum_seconds)
            if by_resource:
                yield histogram

    async def _fault_of(self, server: DevicePluginServer | DraServer) -> str:
        socket = server.socket_path
        fault = await server.fault(DIAL_SECONDS)
        if fault and server.socket_path == socket:  # else the socket was being replaced just now
            return f"{server.resource} does not answer on {socket}: {fault}"
        return ""

    def _samples(self) -> dict[str, Samples]:
        snapshot, counters, kubelet = self._node.snapshot, self._counters, self._kubelet_counters
        age = self._cluster.pods.age_seconds if self._cluster else None
        return {
            "build_info": {tuple(build()): 1},
            **(_of_snapshot(snapshot, self._node.options.counted) if snapshot else {}),
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
            "allocations_total": {(resource,): count for resource, count in counters.allocations.items()},
            "refusals_total": kubelet.refused_requests,
            "preferences_replaced_total": {(name,): count for name, count in kubelet.preferences_replaced.items()},
            "registrations_total": kubelet.registrations,
            "corrections_total": {(): counters.corrections},
            "health_transitions_total": {
                (str(device), to): count
                for (device, to), count in counters.health_transitions.items()
                if snapshot and device in snapshot.inventory.listed
            },
            "lists_total": {(kind,): count for kind, count in counters.lists.items()},
            "watch_restarts_total": counters.watch_restarts,
        }


def _of_snapshot(snapshot: Snapshot, resources: Sequence[Resource]) -> dict[str, Samples]:
    inventory, inputs = snapshot.inventory, snapshot.inputs
    geometry = inventory.geometry
    allocated: Counter[tuple[str, ...]] = Counter()
    core_holders: dict[tuple[str, ...], float] = {}
    size = geometry.cores_per_device
    for allocation in snapshot.counted_once:
        container = (allocation.pod.namespace, allocation.pod.name, allocation.user)
        allocated[*container, allocation.resource.value] += len(
            geometry.ids_of(allocation.resource.unit, allocation.mask)
        )
        core_holders |= {(str(core), str(core // size), *container): 1 for core in cores_in(allocation.mask)}
    return {
        "info": {(__version__, inventory.driver_version, inventory.device_name, geometry.instance_type): 1},
        "devices": _devices(snapshot, resources),
        "device_healthy": {(str(device),): device not in inventory.unhealthy for device in inventory.listed},
        "device_disabled": {(str(device),): device in inventory.disabled for device in inventory.listed},
        "allocated_pods": {(): len(snapshot.ledger.by_pod)},
        "allocated": allocated,
        "core_holder": core_holders,
        "unconfirmed_allocations": {(): len(inputs.pending)},
        "cooling_down_cores": {(): inputs.held_down_mask.bit_count()},
        "waiting_assignments": {(): len(snapshot.waiting)},
        "checkpoint_readable": {(): not inputs.recorded.unreadable},
        "allocated_claims": {(): len({key.claim for key in inputs.recorded.entries if key.claim})},
    }


def _devices(snapshot: Snapshot, resources: Sequence[Resource]) -> Samples:
    """Ids of every resource by state; each id is in exactly one. A pod's unhealthy device counts as allocated."""
    inventory, ledger = snapshot.inventory, snapshot.ledger
    geometry, held_down = inventory.geometry, snapshot.inputs.held_down_mask
    listed = geometry.devices_mask(inventory.listed)
    counts: Counter[tuple[str, ...]] = Counter()
    for resource in resources:
        own = ledger.used_as(resource)
        other = ledger.used_mask & ~own
        counts.update({(resource.value, state): 0 for state in _STATES})
        for number in geometry.ids_of(resource.unit, listed):
            mask = geometry.mask_of(resource.unit, (number,))
            state = "cooling_down" if mask & held_down else "free"
            state = "unhealthy" if mask & ~inventory.healthy_mask else state
            state = "disabled" if mask & inventory.disabled_mask else state
            state = "allocated" if mask & own else "allocated_as_other" if mask & other else state
            counts[resource.value, state] += 1
    return counts
