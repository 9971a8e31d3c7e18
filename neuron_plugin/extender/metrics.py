"""What the extender measures. Names and labels here are those of the documentation.

Node series are made at scrape time from the records of the moment, so a node that is gone leaves none behind.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from prometheus_client import CollectorRegistry, Counter, Histogram, Info
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from neuron_plugin.build import build
from neuron_plugin.extender.hardware import Hardware
from neuron_plugin.extender.nodes import NodeRecord
from neuron_plugin.extender.shapes import ClosedShape
from neuron_plugin.extender.state import ClusterState
from neuron_plugin.topology import Geometry, Unit, valid_counts, valid_sets

_BUCKETS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class ExtenderMetrics:
    """Counters that the parts of the extender write; also the reflectors' observer."""

    def __init__(self, registry: CollectorRegistry) -> None:
        Info("neuron_plugin_build", "Always 1; which build this is.", registry=registry).info(build()._asdict())
        self._verb_seconds = Histogram(
            "neuron_extender_verb_seconds",
            "Time to answer a verb, from its whole body to its answer.",
            ["verb"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self._verbs = Counter(
            "neuron_extender_verbs", "Verbs answered, by result: ok or error.", ["verb", "result"], registry=registry
        )
        self._refused = Counter(
            "neuron_extender_refused_nodes", "Nodes turned away by filter, by reason.", ["reason"], registry=registry
        )
        self._binds = Counter("neuron_extender_binds", "Bind calls by how they ended.", ["ending"], registry=registry)
        self._lists = Counter("neuron_extender_lists", "Whole lists read, by kind.", ["kind"], registry=registry)
        self._restarts = Counter(
            "neuron_extender_watch_restarts",
            "Lists and watches that ended, by kind and cause.",
            ["kind", "cause"],
            registry=registry,
        )
        self._events = Counter(
            "neuron_extender_unclear_claims",
            "Pods whose claim closed their node, by reason.",
            ["reason"],
            registry=registry,
        )

    def answered(self, verb: str, seconds: float, *, ok: bool) -> None:
        """A verb was answered."""
        self._verb_seconds.labels(verb).observe(seconds)
        self._verbs.labels(verb, "ok" if ok else "error").inc()

    def refused(self, reasons: Mapping[str, int]) -> None:
        """A filter turned nodes away; counts by reason code."""
        for code, count in reasons.items():
            self._refused.labels(code).inc(count)

    def bound(self, ending: str) -> None:
        """A bind call ended."""
        self._binds.labels(ending).inc()

    def unclear(self, code: str) -> None:
        """A pod's claim has closed its node."""
        self._events.labels(code).inc()

    def listed(self, kind: str, records: int, seconds: float) -> None:  # noqa: ARG002 - the reflector's observer protocol
        """A whole list was read."""
        self._lists.labels(kind).inc()

    def interrupted(self, kind: str, cause: str, wait_seconds: float) -> None:  # noqa: ARG002 - as above
        """A list or watch ended."""
        self._restarts.labels(kind, cause).inc()


class StateCollector(Collector):
    """Gauges read off the state at scrape time."""

    def __init__(
        self,
        state: ClusterState,
        ages: Mapping[str, Callable[[], float]],
        drift: Callable[[], int],
        under_way: Callable[[], int],
        leading: Callable[[], bool],
    ) -> None:
        self._state = state
        self._ages = ages
        self._drift = drift
        self._under_way = under_way
        self._leading = leading

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Every gauge, from one look at the state; of nodes only the leader tells, or sums would count them twice."""
        leading = self._leading()
        nodes = list(self._state.nodes.values()) if leading else []
        yield _single("neuron_extender_leader", "1 on the replica that may bind, 0 on the others.", leading)
        yield from _node_families(nodes)
        yield _by_label(
            "neuron_extender_closed_nodes", "Nodes that take no Neuron pod, by reason.", "reason", _closed(nodes)
        )
        ages = {kind: age() for kind, age in self._ages.items()}
        yield _by_label(
            "neuron_extender_watch_age_seconds", "Seconds since a watch was last heard of, by kind.", "kind", ages
        )
        yield _single("neuron_extender_pods", "Live pods that ask for Neuron.", len(self._state.pods))
        yield _single(
            "neuron_extender_reservations",
            "Silicon held by binds that the watch has not shown.",
            len(self._state.reservations),
        )
        yield _single("neuron_extender_binds_under_way", "Binds that have not ended.", self._under_way())
        yield _single(
            "neuron_extender_cache_drift",
            "Confirmed bindings that the watch should have shown and has not.",
            self._drift(),
        )


@lru_cache(maxsize=16_384)
def fragmentation(geometry: Geometry, free_mask: int) -> float:
    """Share of the free whole devices outside the largest free linked set: 0 is whole, near 1 is scattered."""
    free = len(geometry.whole_devices(free_mask))
    for count in reversed(valid_counts(geometry, Unit.DEVICE)):
        if any(mask & free_mask == mask for mask in valid_sets(geometry, Unit.DEVICE, count)):
            return 1 - count / free
    return 0.0


def _node_families(nodes: list[NodeRecord]) -> Iterable[GaugeMetricFamily]:
    cores = GaugeMetricFamily(
        "neuron_extender_node_cores", "Logical cores of a node by state.", labels=["node", "state"]
    )
    scattered = GaugeMetricFamily(
        "neuron_extender_node_fragmentation",
        "Share of free devices outside the largest free linked set.",
        labels=["node"],
    )
    for node in nodes:
        if isinstance(node.hardware, Hardware):
            all_mask, healthy = node.hardware.geometry.all_mask, node.hardware.healthy_mask
            cores.add_metric([node.name, "free"], node.free_mask.bit_count())
            cores.add_metric([node.name, "used"], node.used_mask.bit_count())
            cores.add_metric([node.name, "unhealthy"], (all_mask & ~healthy).bit_count())
            scattered.add_metric([node.name], fragmentation(node.hardware.geometry, node.free_mask))
    return cores, scattered


def _closed(nodes: list[NodeRecord]) -> Mapping[str, float]:
    return Tally(node.shape.refusal.code for node in nodes if isinstance(node.shape, ClosedShape))


def _by_label(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=[label])
    for value, number in values.items():
        family.add_metric([value], number)
    return family


def _single(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)
