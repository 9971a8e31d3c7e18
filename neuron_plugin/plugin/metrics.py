"""What the node daemon measures, as Prometheus reads it.

``METRICS`` is the whole list: name, labels and meaning of every metric there can be. Gauges are read off the state at
the moment of a scrape, so what is gone (a pod, a device, a source) leaves no series behind; counters have no label
that can go.

Imported when the first scrape comes: a node whose metrics nobody reads does not pay for the library.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from neuron_plugin import __version__
from neuron_plugin.allocation.resources import Resource, ids_of, mask_of
from neuron_plugin.hardware.records import Inventory
from neuron_plugin.plugin.counts import Latencies
from neuron_plugin.plugin.machine import Machine
from neuron_plugin.plugin.moment import Moment
from neuron_plugin.plugin.node import NodeState
from neuron_plugin.plugin.responder import Page
from neuron_plugin.plugin.truth import stands_in

PREFIX = "neuron_plugin_"

METRICS: Mapping[str, tuple[tuple[str, ...], str]] = {
    # State, now.
    "info": (("version", "driver_version", "device_name", "instance_type"), "Always 1; says what runs on what."),
    "devices": (("resource", "state"), "Ids of a resource: free, held, held_elsewhere (another name), unhealthy."),
    "device_healthy": (("device",), "1 if a device may be handed out, else 0."),
    "ecc_errors": (("device", "kind"), "Errors since power-up: sram, memory (uncorrected), repairable."),
    "holding_pods": ((), "Pods that hold devices or cores."),
    "held": (("namespace", "pod", "container", "resource"), "Ids that a container holds."),
    "unconfirmed_holders": ((), "Holders whose pod the kubelet or the API server has not named yet."),
    "waiting_decisions": ((), "Decided sets whose container has not asked yet."),
    "registered": (("resource",), "1 while the kubelet follows a resource, else 0."),
    "silent_sources": (("source",), "1 for each source of news about the hardware that is not running."),
    "watch_age_seconds": ((), "Seconds since the API server was last heard of."),
    "outbox_requests": ((), "What waits to be told to the API server."),
    # Events, since the start.
    "allocations": (("resource",), "Allocate calls that were served, by container."),
    "refusals": (("resource", "method"), "Calls of the kubelet that were answered with an error."),
    "preferences_replaced": (("resource",), "GetPreferredAllocation calls answered without a decision or a choice."),
    "registrations": (("resource", "result"), "Register calls: accepted or failed."),
    "corrections": ((), "Pods whose annotation was corrected to what the kubelet had given them."),
    "health_transitions": (("device", "to"), "How often a listed device became unhealthy or healthy."),
    "lists": (("kind",), "Whole lists read from the API server."),
    "watch_restarts": (("kind", "cause"), "Lists and watches that ended: end, expired, refused, unreachable, ..."),
    # Latencies.
    "allocate_seconds": (("resource",), "Time of our own to answer an Allocate, gRPC not counted."),
    "preference_seconds": (("resource",), "Time of our own to answer a GetPreferredAllocation, waits included."),
}
"""Every metric without its prefix ``neuron_plugin_``: labels and meaning. Counters get ``_total`` behind their name."""

_Labelled: TypeAlias = Mapping[tuple[str, ...], float]


def metrics_page(moment: Moment) -> Page:
    """The page Prometheus scrapes."""
    registry = CollectorRegistry()
    registry.register(_MomentCollector(moment))
    return Page(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)


class _MomentCollector(Collector):
    def __init__(self, moment: Moment) -> None:
        self._moment = moment

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily]:
        moment = self._moment
        gauges = {**_of_machine(moment), **_of_pods(moment.state), **_of_links(moment)}
        for name, values in gauges.items():
            yield _filled(GaugeMetricFamily(PREFIX + name, METRICS[name][1], labels=METRICS[name][0]), values)
        for name, values in _counters(moment).items():
            yield _filled(CounterMetricFamily(PREFIX + name, METRICS[name][1], labels=METRICS[name][0]), values)
        yield _histogram("allocate_seconds", moment.counts.allocate_seconds)
        yield _histogram("preference_seconds", moment.counts.preference_seconds)


def _of_machine(moment: Moment) -> dict[str, _Labelled]:
    machine, inventory = moment.state.machine, moment.inventory
    driver = machine.driver_version.text if machine and machine.driver_version else ""
    name, instance_type = (machine.device_name, machine.geometry.instance_type) if machine else ("", "")
    return {
        "info": {(__version__, driver, name, instance_type): 1},
        "devices": _devices(moment, machine) if machine else {},
        "device_healthy": {(str(one),): one not in machine.unhealthy for one in machine.listed} if machine else {},
        "ecc_errors": dict(_ecc_errors(inventory)) if inventory else {},
        "silent_sources": {(source,): 1 for source in moment.silent_sources},
    }


def _devices(moment: Moment, machine: Machine) -> _Labelled:
    """Ids of every registered resource by state; each id is in exactly one."""
    ledger, listed = moment.state.ledger, machine.geometry.devices_mask(machine.listed)
    found: Counter[tuple[str, ...]] = Counter()
    for resource in map(Resource, moment.registered):
        own, elsewhere = ledger.held_as(resource), ledger.used_mask & ~ledger.held_as(resource)
        found.update({(resource.value, state): 0 for state in ("free", "held", "held_elsewhere", "unhealthy")})
        for number in ids_of(machine.geometry, resource.unit, listed):
            mask = mask_of(machine.geometry, resource.unit, (number,))
            state = "unhealthy" if mask & ~machine.healthy_mask else "free"
            found[resource.value, "held" if mask & own else "held_elsewhere" if mask & elsewhere else state] += 1
    return found


def _ecc_errors(inventory: Inventory) -> Iterator[tuple[tuple[str, ...], float]]:
    for device in inventory.devices:
        if ecc := device.health.ecc:
            for kind, count in (("sram", ecc.sram), ("memory", ecc.memory), ("repairable", ecc.repairable)):
                yield (str(device.id), kind), count


def _of_pods(state: NodeState) -> dict[str, _Labelled]:
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
    }


def _of_links(moment: Moment) -> dict[str, _Labelled]:
    age, unsent = moment.watch_age_seconds, moment.outbox_requests
    return {
        "registered": {(resource,): now for resource, now in moment.registered.items()},
        "watch_age_seconds": {} if age is None else {(): age},
        "outbox_requests": {} if unsent is None else {(): unsent},
    }


def _counters(moment: Moment) -> dict[str, _Labelled]:
    counts, machine = moment.counts, moment.state.machine
    listed = machine.listed if machine else ()
    return {
        "allocations": {(resource,): count for resource, count in counts.allocations.items()},
        "refusals": counts.refusals,
        "preferences_replaced": {(resource,): count for resource, count in counts.preferences_replaced.items()},
        "registrations": counts.registrations,
        "corrections": {(): counts.corrections},
        "health_transitions": {
            (str(device), to): count for (device, to), count in counts.health_transitions.items() if device in listed
        },
        "lists": {(kind,): count for kind, count in counts.lists.items()},
        "watch_restarts": counts.watch_restarts,
    }


def _filled(
    family: GaugeMetricFamily | CounterMetricFamily, values: _Labelled
) -> GaugeMetricFamily | CounterMetricFamily:
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def _histogram(name: str, by_resource: Mapping[str, Latencies]) -> HistogramMetricFamily:
    family = HistogramMetricFamily(PREFIX + name, METRICS[name][1], labels=METRICS[name][0])
    for resource, latencies in by_resource.items():
        family.add_metric((resource,), buckets=list(latencies.cumulative()), sum_value=latencies.sum_seconds)
    return family
