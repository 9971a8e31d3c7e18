"""The extender's metrics. Names and labels are as documented.

The parts that count write the counters. Gauges are made at scrape time from the present state, so a deleted node leaves
no series behind.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import lru_cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from neuron_plugin.allocation import ContainerKind, NeuronPod, NodeInfo, NodeInventory
from neuron_plugin.allocation.group import GroupName
from neuron_plugin.allocation.preflight import PreflightState
from neuron_plugin.allocation.rejection import PREFLIGHT_DUE
from neuron_plugin.build import build
from neuron_plugin.placement.account import PARTS, Share
from neuron_plugin.placement.state import ClusterState
from neuron_plugin.topology import Geometry, Unit, sets_by_count

MOST_SIZED_DEVICES = 16
"""Pods that ask for more devices than this share one size in metrics."""

_Values = dict[tuple[str, ...], float]
_BUCKETS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class ExtenderMetrics:
    """Counters that the parts of the extender write; also the reflectors' observer."""

    def __init__(self) -> None:
        self.registry = own = CollectorRegistry()
        Info("neuron_plugin_build", "Always 1; which build this is.", registry=own).info(build()._asdict())
        self.verb_seconds = Histogram(
            "neuron_extender_verb_seconds",
            "Time to answer a verb, from its whole body to its answer.",
            ["verb"],
            buckets=_BUCKETS,
            registry=own,
        )
        self.verbs = Counter(
            "neuron_extender_verbs", "Verbs answered, by result: ok or error.", ["verb", "result"], registry=own
        )
        self.rejected_nodes = Counter(
            "neuron_extender_refused_nodes", "Nodes rejected by filter, by reason.", ["reason"], registry=own
        )
        self.binds = Counter("neuron_extender_binds", "Bind calls by how they ended.", ["ending"], registry=own)
        self.unclear_assignments = Counter(
            "neuron_extender_unclear_assignments",
            "Pods whose assignment closed their node, by reason.",
            ["reason"],
            registry=own,
        )
        self.waiting_pods = Gauge(
            "neuron_extender_waiting_pods",
            "Pods that have waited for longer than make-room-after, by how they stand, as explain says it.",
            ["standing"],
            registry=own,
        )
        self.waiting_pods_by_move = Gauge(
            "neuron_extender_waiting_pods_by_move",
            "Waiting pods that a move of other pods, which fit elsewhere now, would give room.",
            registry=own,
        )
        self.moves = Counter(
            "neuron_extender_moves",
            "Moves made or tried for waiting pods, by how they ended.",
            ["ending"],
            registry=own,
        )
        self.group_checks = Counter(
            "neuron_preflight_group_checks",
            "Pre-flight checks of groups that have ended, by result: passed, failed or unable.",
            ["result"],
            registry=own,
        )
        self.devices_opened = Counter(
            "neuron_extender_devices_opened",
            "Devices of the sets that were reserved for waiting pods once others were evicted.",
            registry=own,
        )
        self.evictions = Counter(
            "neuron_extender_evictions", "Pods evicted to make room for waiting ones.", registry=own
        )
        self.released_plainly = Counter(
            "neuron_extender_released_plainly",
            "Gated pods that were handed to their schedulers without a place.",
            registry=own,
        )
        self.rejected_admissions = Counter(
            "neuron_extender_rejected_admissions",
            "Pods that a kubelet got no devices for; each closes its node until the plugin renews its Lease.",
            registry=own,
        )
        self._lists = Counter("neuron_extender_lists", "Whole lists read, by kind.", ["kind"], registry=own)
        self._restarts = Counter(
            "neuron_extender_watch_restarts",
            "Lists and watches that ended, by kind and cause.",
            ["kind", "cause"],
            registry=own,
        )

    def listed(self, kind: str, records: int, seconds: float) -> None:  # noqa: ARG002 - the reflector's observer protocol
        """A whole list was read."""
        self._lists.labels(kind).inc()

    def interrupted(self, kind: str, cause: str, wait_seconds: float) -> None:  # noqa: ARG002 - as above
        """A list or watch ended."""
        self._restarts.labels(kind, cause).inc()


def state_metrics(
    state: ClusterState,
    *,
    leading: bool,
    ages: Mapping[str, float],
    unseen: int,
    under_way: int,
    endings: Mapping[str, int],
    now: float,
    unix_now: float,
) -> Iterator[Metric]:
    """Every gauge, from one look at the state. Only the leader reports nodes, or sums would count them twice.

    ``ages`` are the seconds since each watch was last heard of, by kind. ``unseen`` are the confirmed bindings that the
    watch should have shown, and ``under_way`` the binds that have not ended. ``endings`` says how filter's assumptions
    have ended. ``now`` is by the clock of assumptions, ``unix_now`` the time of day.
    """
    nodes = list(state.nodes.values()) if leading else []
    cores, scattered, closed = _Values(), _Values(), _Values()
    for info in nodes:
        if info.closed:
            closed[info.closed.code,] = closed.get((info.closed.code,), 0) + 1
        if info.inventory:
            cores |= {(info.name, state): count for state, count in _cores_by_state(info, info.inventory).items()}
            scattered[info.name,] = fragmentation(info.inventory.geometry, info.free_mask)
    heard: _Values = {(kind,): age for kind, age in ages.items()}
    yield _gauge("leader", "1 on the replica that may bind, 0 on the others.", {(): leading})
    text = (
        "Logical cores of a node by state, each in one: used and used-unhealthy are those of pods; without pods are "
        "free, closed (free on a node that takes no pods), unhealthy, disabled and reserved."
    )
    yield _gauge("node_cores", text, cores, "node", "state")
    yield _gauge("node_fragmentation", "Share of free devices outside the largest free linked set.", scattered, "node")
    yield _gauge("closed_nodes", "Nodes that take no Neuron pod, by reason.", closed, "reason")
    text = "Nodes by how their pre-flight check stands: passed, pending, unhealthy, failed, unable or unchecked."
    checked = GaugeMetricFamily("neuron_preflight_nodes", text, labels=["state"])
    judged = [info for info in nodes if info.inventory and state.checked.covers(info.inventory)]
    for standing, count in Tally(map(_preflight_state, judged)).items():
        checked.add_metric([standing], count)
    yield checked
    yield _gauge("watch_age_seconds", "Seconds since a watch was last heard of, by kind.", heard, "kind")
    pods = list(state.pods.values())
    yield _gauge("pods", "Live pods that ask for Neuron.", {(): len(pods)})
    gated = [pod for pod in pods if pod.gated and not (pod.place or pod.terminating)]
    promised = sum(bool(pod.promised and not pod.node) for pod in pods)
    text = "Pods that our scheduling gate holds back (waiting), and pods that were placed and are not bound (promised)."
    yield _gauge("gated_pods", text, {("waiting",): len(gated), ("promised",): promised}, "state")
    text = "Age of the oldest pod that our scheduling gate holds back and that has no place; 0 without one."
    yield _gauge("gated_oldest_seconds", text, {(): max((_age(pod, unix_now) for pod in gated), default=0.0)})
    by_level, outside = _groups(state) if leading else ({}, 0)
    text = "Groups with two or more placed pods, by the lowest level of the network that all of these share; or none."
    yield _gauge("groups", text, by_level, "level")
    text = "Placed pods of groups outside the domain of most of their group, at the level that the group asks for."
    yield _gauge("group_members_outside", text, {(): outside})
    ages_by_size = _Values()
    for pod in pods:
        if pod.request and not (pod.place or pod.terminating or pod.uid in state.assumed):
            size = (_size(pod),)
            ages_by_size[size] = max(ages_by_size.get(size, 0.0), _age(pod, unix_now))
    text = "Age of the oldest pod without a place, by the devices it asks for: 1 to 16, more, or cores."
    yield _gauge("waiting_oldest_seconds", text, ages_by_size, "devices")
    assumed = list(state.assumed.values())
    waiting = [now - pod.since for pod in assumed if pod.expected]
    yield _gauge("assumed_pods", "Pods placed by filter or binds that the watch has not shown yet.", {(): len(assumed)})
    text = "Age of the oldest assumption for which no bind has come, or that waits for its turn on a node; or 0."
    yield _gauge("assumption_age_seconds", text, {(): max(waiting, default=0.0)})
    ended = CounterMetricFamily(
        "neuron_extender_assumptions", "Assumptions of filter by how they ended.", labels=["ending"]
    )
    for ending, count in endings.items():
        ended.add_metric([ending], count)
    yield ended
    yield _gauge("binds_under_way", "Binds that have not ended.", {(): under_way})
    yield _gauge("cache_drift", "Confirmed bindings that the watch should have shown and has not.", {(): unseen})


def device_seconds(written: Mapping[Share, int]) -> CounterMetricFamily:
    """The written account of device-hours."""
    text = (
        "Devices times seconds by owner and state: busy, idle or unknown of pods; held (kept for a pod, held down, or "
        "on a node that takes no pods), free, broken. Of the leader, as written down every two minutes."
    )
    family = CounterMetricFamily("neuron_device_seconds", text, labels=Share._fields)
    for share, amount in written.items():
        family.add_metric(share, amount / PARTS)
    return family


def _groups(state: ClusterState) -> tuple[_Values, int]:
    """The number of groups by the level they share, and of pods outside the level that their group asks for."""
    cluster, domains = state.scene().cluster, state.choices.domains
    by_level, outside, members = _Values(), 0, defaultdict[GroupName, list[NeuronPod]](list)
    for pod in state.pods.values():
        if pod.group and pod.place in state.nodes and not pod.terminating:
            members[pod.group].append(pod)
    for pods in members.values():
        paths = [domains.path(pod.place) for pod in pods]
        if len(paths) > 1:
            depth, wish = len(domains.shared(pod.place for pod in pods)), cluster.wish_of(pods[0])
            level = domains.levels[depth - 1].name if depth else "none"
            by_level[level,] = by_level.get((level,), 0) + 1
            if wished := domains.depth_of(wish.required or wish.preferred):
                outside += len(paths) - max(Tally(path[:wished] for path in paths).values())
    return by_level, outside


def _age(pod: NeuronPod, unix_now: float) -> float:
    return max(unix_now - pod.created, 0.0) if pod.created else 0.0


def _size(pod: NeuronPod) -> str:
    """How many devices a pod asks for, as one of few values; init containers use theirs before the others run."""
    counts = [
        (container.kind is ContainerKind.INIT, container.count)
        for container in pod.requests
        if container.resource.unit is Unit.DEVICE
    ]
    together = sum(count for is_init, count in counts if not is_init)
    devices = max([together, *(count for is_init, count in counts if is_init)])
    return "cores" if not devices else str(devices) if devices <= MOST_SIZED_DEVICES else "more"


def _cores_by_state(info: NodeInfo, inventory: NodeInventory) -> dict[str, int]:
    """The number of a node's cores by state. Use and health are separate facts, so cores can be ``used-unhealthy``."""
    used_mask, healthy_mask, disabled_mask = info.used_mask, inventory.healthy_mask, inventory.disabled_mask
    broken_mask = inventory.geometry.all_mask & ~(healthy_mask | disabled_mask)
    works_mask = inventory.geometry.devices_mask(inventory.held_down)  # held down for another pod that has ended
    masks = {
        "used": used_mask & (~broken_mask | works_mask),
        "used-unhealthy": used_mask & broken_mask & ~works_mask,
        "closed" if info.closed else "free": info.free_mask,
        "unhealthy": broken_mask & ~used_mask,
        "disabled": disabled_mask & ~used_mask,
        "reserved": info.reserved_mask & healthy_mask & ~used_mask,
    }
    return {"free": 0, "closed": 0} | {state: mask.bit_count() for state, mask in masks.items()}


def _preflight_state(info: NodeInfo) -> str:
    """The check state of a node: pending after a reboot; unchecked if it has pods and was never checked."""
    record = info.node.preflight
    if record and record.boot_id == info.node.boot_id and info.unchecked is not PREFLIGHT_DUE:
        return record.state.value
    return PreflightState.PENDING.value if info.unchecked else "unchecked"


def _gauge(name: str, text: str, values: Mapping[tuple[str, ...], float], *labels: str) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"neuron_extender_{name}", text, labels=labels)
    for label_values, value in values.items():
        family.add_metric(label_values, value)
    return family


@lru_cache(maxsize=16_384)
def fragmentation(geometry: Geometry, free_mask: int) -> float:
    """Share of the free whole devices outside the largest free linked set: 0 is whole, near 1 is scattered."""
    free = len(geometry.whole_devices(free_mask))
    for count, masks in reversed([*sets_by_count(geometry, Unit.DEVICE).items()]):
        if any(mask & free_mask == mask for mask in masks):
            return 1 - count / free
    return 0.0
