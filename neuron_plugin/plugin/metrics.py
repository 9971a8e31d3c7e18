"""The metrics of the node daemon: the table, which is their documentation, and the samples of a snapshot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

from neuron_plugin import __version__
from neuron_plugin.allocation import Resource
from neuron_plugin.allocation.keys import DISABLE_KEY
from neuron_plugin.build import Build
from neuron_plugin.metrics import MetricCounts, MetricRow, Samples, Table
from neuron_plugin.plugin.snapshot import Snapshot
from neuron_plugin.plugin.utilization import UseByContainer
from neuron_plugin.topology import cores_in

_STATES = ("free", "allocated", "allocated_as_other", "unhealthy", "disabled", "cooling_down")

_ROWS: Mapping[str, MetricRow] = {
    "build_info": ("gauge", Build._fields, "Always 1; which build this is."),
    "info": (
        "gauge",
        ("version", "driver_version", "device_name", "instance_type"),
        "Always 1; what runs on what.",
    ),
    "devices": ("gauge", ("resource", "state"), f"Ids of a resource: {', '.join(_STATES)}."),
    "device_healthy": ("gauge", ("device",), "1 if a device is present and healthy, else 0."),
    "device_disabled": (
        "gauge",
        ("device",),
        f"1 if the node's annotation {DISABLE_KEY} disables a device, else 0.",
    ),
    "claims_readable": ("gauge", (), "1 unless the kubelet's file of prepared claims cannot be read."),
    "slice_published": (
        "gauge",
        (),
        "1 if the API server shows the node's ResourceSlice as it should be.",
    ),
    "disable_devices_readable": (
        "gauge",
        (),
        f"1 unless {DISABLE_KEY} cannot be read and its last value holds.",
    ),
    "ecc_errors": (
        "gauge",
        ("device", "kind"),
        "Errors since power-up: sram, memory (both uncorrected), repairable.",
    ),
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
    "unconfirmed_allocations": (
        "gauge",
        (),
        "Answers to Allocate that the kubelet's checkpoint does not show yet.",
    ),
    "cooling_down_cores": (
        "gauge",
        (),
        "Cores that are not offered because an ended pod's processes may use them.",
    ),
    "waiting_assignments": ("gauge", (), "Assigned sets whose container has not been admitted yet."),
    "checkpoint_readable": (
        "gauge",
        (),
        "1 while the kubelet's checkpoint is the source of allocations, else 0.",
    ),
    "registered": ("gauge", ("resource",), "1 while the kubelet follows a resource, else 0."),
    "silent_sources": ("gauge", ("source",), "1 for each source of hardware events that is not running."),
    "watch_age_seconds": ("gauge", (), "Seconds since the API server was last heard from."),
    "pending_writes": ("gauge", (), "Requests that wait for the API server."),
    "allocations_total": ("counter", ("resource",), "Allocate calls that were served, by container."),
    "refusals_total": (
        "counter",
        ("resource", "method"),
        "Calls of the kubelet that were answered with an error.",
    ),
    "preferences_replaced_total": (
        "counter",
        ("resource",),
        "Preferences that failed and got a plain valid answer.",
    ),
    "registrations_total": ("counter", ("resource", "result"), "Register calls: accepted or failed."),
    "corrections_total": (
        "counter",
        (),
        "Pods whose assignment was corrected to what the kubelet had given them.",
    ),
    "health_transitions_total": (
        "counter",
        ("device", "to"),
        "How often a device became unhealthy or healthy.",
    ),
    "lists_total": ("counter", ("kind",), "Complete lists read from the API server."),
    "watch_restarts_total": (
        "counter",
        ("kind", "cause"),
        "Ended watches: end, expired, refused, unreachable, unreadable.",
    ),
    "allocate_seconds": (
        "histogram",
        ("resource",),
        "Our own time to answer an Allocate, gRPC not counted.",
    ),
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


METRICS = Table("neuron_plugin_", _ROWS)
new_counts = partial(MetricCounts, METRICS)
"""The counts of a daemon that starts."""


def snapshot_samples(snapshot: Snapshot, resources: Sequence[Resource]) -> dict[str, Samples]:
    """The samples of a snapshot; ``resources`` are the names under which ids are counted."""
    inventory, inputs = snapshot.inventory, snapshot.inputs
    geometry = inventory.geometry
    allocated: Counter[tuple[str, ...]] = Counter()
    holders: dict[int, tuple[str, str, str]] = {}
    """By core, one container: two series of one core would break every join with it."""
    size = geometry.cores_per_device
    for allocation in snapshot.counted_once:
        container = (allocation.pod.namespace, allocation.pod.name, allocation.user)
        allocated[*container, allocation.resource.value] += len(
            geometry.ids_of(allocation.resource.unit, allocation.mask)
        )
        holders |= dict.fromkeys(cores_in(allocation.mask), container)
    return {
        "info": {(__version__, inventory.driver_version, inventory.device_name, geometry.instance_type): 1},
        "devices": _devices(snapshot, resources),
        "device_healthy": {(str(device),): device not in inventory.unhealthy for device in inventory.listed},
        "device_disabled": {(str(device),): device in inventory.disabled for device in inventory.listed},
        "allocated_pods": {(): len(snapshot.ledger.by_pod)},
        "allocated": allocated,
        "core_holder": {(str(core), str(core // size), *container): 1 for core, container in holders.items()},
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


def utilization_samples(use: UseByContainer, unix_seconds: float) -> dict[str, Samples]:
    """The metrics of a reading. A container without a known share has none."""
    labels = {key: (key.pod.namespace, key.pod.name, key.container) for key in use}
    known = [(labels[key], container_use) for key, container_use in use.items() if container_use.known]
    memory = [(labels[key], container_use.memory_bytes) for key, container_use in use.items()]
    return {
        "container_busy_ratio": {label: container_use.busy_share for label, container_use in known},
        "container_idle_seconds": {label: container_use.idle_seconds(unix_seconds) for label, container_use in known},
        "container_device_memory_bytes": {label: count for label, count in memory if count is not None},
    }
