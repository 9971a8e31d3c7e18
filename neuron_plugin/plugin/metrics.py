"""What the node daemon measures.

``METRICS`` is the whole list: name, labels and meaning of every metric there can be, and so its documentation. Gauges
are read off the state at the moment of a scrape, so what is gone (a pod, a device, a source) leaves no series behind;
counters have no label that can go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from neuron_plugin import __version__
from neuron_plugin.allocation import Resource, ids_of, mask_of
from neuron_plugin.build import Build, build
from neuron_plugin.hardware import Inventory
from neuron_plugin.plugin.exposition import (
    CONTENT_TYPE,
    Metric,
    MetricKind,
    Samples,
    exposed,
    exposed_latencies,
)
from neuron_plugin.plugin.machine import Machine
from neuron_plugin.plugin.moment import Moment
from neuron_plugin.plugin.node import NodeState
from neuron_plugin.plugin.responder import Page
from neuron_plugin.plugin.standins import stands_in

PREFIX = "neuron_plugin_"
_STATES = ("free", "held", "held_elsewhere", "unhealthy", "suspect")

_GAUGES = (
    ("build_info", Build._fields, "Always 1; which build this is."),
    ("info", ("version", "driver_version", "device_name", "instance_type"), "Always 1; says what runs on what."),
    ("devices", ("resource", "state"), f"Ids of a resource: {', '.join(_STATES)}."),
    ("device_healthy", ("device",), "1 if a device may be handed out, else 0."),
    ("ecc_errors", ("device", "kind"), "Errors since power-up: sram, memory (both uncorrected), repairable."),
    ("holding_pods", (), "Pods that hold devices or cores."),
    ("held", ("namespace", "pod", "container", "resource"), "Ids that a container holds."),
    ("unconfirmed_holders", (), "Holders whose pod the kubelet or the API server has not named yet."),
    ("suspect_cores", ("evidence",), "Cores of vanished pods: not_looked, process, doubtful_process, hidden."),
    ("held_starts", ("resource",), "Container starts that wait at this moment for a process or a reset to end."),
    ("waiting_decisions", (), "Decided sets whose container has not asked for them yet."),
    ("registered", ("resource",), "1 while the kubelet follows a resource, else 0."),
    ("silent_sources", ("source",), "1 for each source of news about the hardware that is not running."),
    ("watch_age_seconds", (), "Seconds since the API server was last heard of."),
    ("outbox_requests", (), "Requests that wait for the API server."),
)
_COUNTERS = (
    ("allocations_total", ("resource",), "Allocate calls that were served, by container."),
    ("refusals_total", ("resource", "method"), "Calls of the kubelet that were answered with an error."),
    ("preferences_replaced_total", ("resource",), "Preferences that failed and were answered with plain valid ids."),
    ("held_starts_total", ("resource",), "PreStartContainer calls in which a container had to wait."),
    ("registrations_total", ("resource", "result"), "Register calls: accepted or failed."),
    ("corrections_total", (), "Pods whose annotation was corrected to what the kubelet had given them."),
    ("health_transitions_total", ("device", "to"), "How often a device became unhealthy or healthy."),
    ("lists_total", ("kind",), "Whole lists read from the API server."),
    ("watch_restarts_total", ("kind", "cause"), "Ended watches: end, expired, refused, unreachable, unreadable."),
)
_HISTOGRAMS = (
    ("allocate_seconds", ("resource",), "Our own time to answer an Allocate, gRPC not counted."),
    ("preference_seconds", ("resource",), "Our own time to answer a GetPreferredAllocation, waits included."),
)

METRICS = {
    name: Metric(PREFIX + name, kind, labels, meaning)
    for kind, metrics in (
        (MetricKind.GAUGE, _GAUGES),
        (MetricKind.COUNTER, _COUNTERS),
        (MetricKind.HISTOGRAM, _HISTOGRAMS),
    )
    for name, labels, meaning in metrics
}
"""Every metric, by its name without the prefix."""


def metrics_page(moment: Moment) -> Page:
    """The page Prometheus scrapes."""
    return Page("".join(f"{line}\n" for line in _lines(moment)).encode(), content_type=CONTENT_TYPE)


def _lines(moment: Moment) -> Iterator[str]:
    samples = {**_of_machine(moment), **_of_pods(moment.state), **_of_links(moment), **_counters(moment)}
    for name, values in samples.items():
        yield from exposed(METRICS[name], values)
    yield from exposed_latencies(METRICS["allocate_seconds"], moment.counts.allocate_seconds)
    yield from exposed_latencies(METRICS["preference_seconds"], moment.counts.preference_seconds)


def _of_machine(moment: Moment) -> dict[str, Samples]:
    machine, inventory = moment.state.machine, moment.inventory
    driver = machine.driver_version.text if machine and machine.driver_version else ""
    name, instance_type = (machine.device_name, machine.geometry.instance_type) if machine else ("", "")
    return {
        "build_info": {build(): 1},
        "info": {(__version__, driver, name, instance_type): 1},
        "devices": _devices(moment, machine) if machine else {},
        "device_healthy": {(str(one),): one not in machine.unhealthy for one in machine.listed} if machine else {},
        "ecc_errors": dict(_ecc_errors(inventory)) if inventory else {},
        "silent_sources": {(source,): 1 for source in moment.silent_sources},
    }


def _devices(moment: Moment, machine: Machine) -> Samples:
    """Ids of every resource by state; each id is in exactly one. A holder's sick device counts as held."""
    ledger, listed = moment.state.ledger, machine.geometry.devices_mask(machine.listed)
    suspect = moment.state.quarantine.mask if moment.state.quarantine else 0
    found: Counter[tuple[str, ...]] = Counter()
    for resource in map(Resource, moment.registered):
        own = ledger.held_as(resource)
        elsewhere, healthy = ledger.used_mask & ~own, machine.healthy_mask
        found.update({(resource.value, state): 0 for state in _STATES})
        for number in ids_of(machine.geometry, resource.unit, listed):
            mask = mask_of(machine.geometry, resource.unit, (number,))
            state = "unhealthy" if mask & ~healthy else "suspect" if mask & suspect else "free"
            found[resource.value, "held" if mask & own else "held_elsewhere" if mask & elsewhere else state] += 1
    return found


def _ecc_errors(inventory: Inventory) -> Iterator[tuple[tuple[str, ...], float]]:
    for device in inventory.devices:
        if ecc := device.health.ecc:
            for kind, count in (("sram", ecc.sram), ("memory", ecc.memory), ("repairable", ecc.repairable)):
                yield (str(device.id), kind), count


def _of_pods(state: NodeState) -> dict[str, Samples]:
    holders = list(state.ledger)
    held: Counter[tuple[str, ...]] = Counter()
    for holder in holders:
        for holding in holder.holdings:
            if holder.pod.name and state.machine:
                where = (holder.pod.namespace, holder.pod.name, holding.container, holding.resource.value)
                held[where] += len(ids_of(state.machine.geometry, holding.resource.unit, holding.mask))
    return {
        "holding_pods": {(): len(holders)},
        "held": held,
        "unconfirmed_holders": {(): sum(stands_in(holder) for holder in holders)},
        "waiting_decisions": {(): len(state.waiting())},
        "suspect_cores": _suspect_cores(state),
    }


def _suspect_cores(state: NodeState) -> Samples:
    """By the evidence there is; a kind that nothing is suspect by any more leaves no series."""
    found: Counter[tuple[str, ...]] = Counter()
    for suspect in state.quarantine.suspects if state.quarantine else ():
        found[(suspect.evidence.value,)] += suspect.mask.bit_count()
    return found


def _of_links(moment: Moment) -> dict[str, Samples]:
    age, unsent = moment.watch_age_seconds, moment.outbox_requests
    return {
        "registered": {(resource,): now for resource, now in moment.registered.items()},
        "watch_age_seconds": {} if age is None else {(): age},
        "outbox_requests": {} if unsent is None else {(): unsent},
        "held_starts": {(resource,): count for resource, count in moment.counts.starts_held_now.items() if count},
    }


def _counters(moment: Moment) -> dict[str, Samples]:
    counts, machine = moment.counts, moment.state.machine
    listed = machine.listed if machine else ()
    return {
        "allocations_total": {(resource,): count for resource, count in counts.allocations.items()},
        "refusals_total": counts.refusals,
        "preferences_replaced_total": {(resource,): count for resource, count in counts.preferences_replaced.items()},
        "held_starts_total": {(resource,): count for resource, count in counts.starts_held.items()},
        "registrations_total": counts.registrations,
        "corrections_total": {(): counts.corrections},
        "health_transitions_total": {
            (str(device), to): count for (device, to), count in counts.health_transitions.items() if device in listed
        },
        "lists_total": {(kind,): count for kind, count in counts.lists.items()},
        "watch_restarts_total": counts.watch_restarts,
    }
