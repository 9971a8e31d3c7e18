"""The metrics of the placement controller: the table, which is their documentation, and the samples of its state."""

from __future__ import annotations

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Mapping
from functools import lru_cache, partial

from neuron_plugin.allocation import ContainerKind, NeuronPod, NodeInfo, NodeInventory
from neuron_plugin.allocation.group import GroupName
from neuron_plugin.allocation.preflight import PreflightState
from neuron_plugin.allocation.rejection import PREFLIGHT_DUE
from neuron_plugin.build import Build
from neuron_plugin.metrics import MetricCounts, MetricRow, Samples, Table
from neuron_plugin.placement.account import PARTS, Share
from neuron_plugin.placement.state import ClusterState
from neuron_plugin.topology import Geometry, Unit, sets_by_count

MOST_SIZED_DEVICES = 16
"""Pods that ask for more devices than this share one size in metrics."""

_ROWS: Mapping[str, MetricRow] = {
    "plugin_build_info": ("gauge", Build._fields, "Always 1; which build this is."),
    "extender_leader": ("gauge", (), "1 on the replica that may bind, 0 on the others."),
    "extender_verb_seconds": (
        "histogram",
        ("verb",),
        "Time to answer a verb, from its whole body to its answer.",
    ),
    "extender_verbs_total": ("counter", ("verb", "result"), "Verbs answered, by result: ok or error."),
    "extender_refused_nodes_total": ("counter", ("reason",), "Nodes rejected by filter, by reason."),
    "extender_binds_total": ("counter", ("ending",), "Bind calls by how they ended."),
    "extender_binds_under_way": ("gauge", (), "Binds that have not ended."),
    "extender_unclear_assignments_total": (
        "counter",
        ("reason",),
        "Pods whose assignment closed their node, by reason.",
    ),
    "extender_waiting_pods": (
        "gauge",
        ("standing",),
        "Pods that have waited for longer than make-room-after, by how they stand, as explain says it.",
    ),
    "extender_waiting_pods_by_move": (
        "gauge",
        (),
        "Waiting pods that a move of other pods, which fit elsewhere now, would give room.",
    ),
    "extender_moves_total": (
        "counter",
        ("ending",),
        "Moves made or tried for waiting pods, by how they ended.",
    ),
    "extender_devices_opened_total": (
        "counter",
        (),
        "Devices of the sets that were reserved for waiting pods once others were evicted.",
    ),
    "extender_evictions_total": ("counter", (), "Pods evicted to make room for waiting ones."),
    "extender_released_plainly_total": (
        "counter",
        (),
        "Gated pods that were handed to their schedulers without a place.",
    ),
    "extender_rejected_admissions_total": (
        "counter",
        (),
        "Pods that a kubelet got no devices for; each closes its node until the plugin renews its Lease.",
    ),
    "extender_lists_total": ("counter", ("kind",), "Whole lists read, by kind."),
    "extender_watch_restarts_total": (
        "counter",
        ("kind", "cause"),
        "Lists and watches that ended, by kind and cause.",
    ),
    "extender_watch_age_seconds": ("gauge", ("kind",), "Seconds since a watch was last heard of, by kind."),
    "extender_node_cores": (
        "gauge",
        ("node", "state"),
        (
            "Logical cores of a node by state, each in one: used and used-unhealthy are those of pods; without pods "
            "are free, closed (free on a node that takes no pods), unhealthy, disabled and reserved."
        ),
    ),
    "extender_node_fragmentation": (
        "gauge",
        ("node",),
        "Share of free devices outside the largest free linked set.",
    ),
    "extender_closed_nodes": ("gauge", ("reason",), "Nodes that take no Neuron pod, by reason."),
    "extender_pods": ("gauge", (), "Live pods that ask for Neuron."),
    "extender_gated_pods": (
        "gauge",
        ("state",),
        "Pods that our scheduling gate holds back (waiting), and pods that were placed and are not bound (promised).",
    ),
    "extender_gated_oldest_seconds": (
        "gauge",
        (),
        "Age of the oldest pod that our scheduling gate holds back and that has no place; 0 without one.",
    ),
    "extender_groups": (
        "gauge",
        ("level",),
        "Groups with two or more placed pods, by the lowest level of the network that all of these share; or none.",
    ),
    "extender_group_members_outside": (
        "gauge",
        (),
        "Placed pods of groups outside the domain of most of their group, at the level that the group asks for.",
    ),
    "extender_waiting_oldest_seconds": (
        "gauge",
        ("devices",),
        "Age of the oldest pod without a place, by the devices it asks for: 1 to 16, more, or cores.",
    ),
    "extender_assumed_pods": (
        "gauge",
        (),
        "Pods placed by filter or binds that the watch has not shown yet.",
    ),
    "extender_assumption_age_seconds": (
        "gauge",
        (),
        "Age of the oldest assumption for which no bind has come, or that waits for its turn on a node; or 0.",
    ),
    "extender_assumptions_total": ("counter", ("ending",), "Assumptions of filter by how they ended."),
    "extender_cache_drift": ("gauge", (), "Confirmed bindings that the watch should have shown and has not."),
    "preflight_nodes": (
        "gauge",
        ("state",),
        "Nodes by how their pre-flight check stands: passed, pending, unhealthy, failed, unable or unchecked.",
    ),
    "preflight_group_checks_total": (
        "counter",
        ("result",),
        "Pre-flight checks of groups that have ended, by result: passed, failed or unable.",
    ),
    "device_seconds_total": (
        "counter",
        Share._fields,
        (
            "Devices times seconds by owner and state: busy, idle or unknown of pods; held (kept for a pod, held down, "
            "or on a node that takes no pods), free, broken. Of the leader, as written down every two minutes."
        ),
    ),
}

METRICS = Table("neuron_", _ROWS)
new_counts = partial(MetricCounts, METRICS, "extender_")
"""The counts of a controller that starts."""

_Values = dict[tuple[str, ...], float]


def state_samples(
    state: ClusterState,
    *,
    leading: bool,
    ages: Mapping[str, float],
    unseen: int,
    under_way: int,
    endings: Mapping[str, int],
    now: float,
    unix_now: float,
) -> dict[str, Samples]:
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
    checked = Tally(_preflight_state(info) for info in nodes if info.inventory and state.checked.covers(info.inventory))
    pods = list(state.pods.values())
    gated = [pod for pod in pods if pod.gated and not (pod.place or pod.terminating)]
    promised = sum(bool(pod.promised and not pod.node) for pod in pods)
    by_level, outside = _groups(state) if leading else ({}, 0)
    ages_by_size = _Values()
    for pod in pods:
        if pod.request and not (pod.place or pod.terminating or pod.uid in state.assumed):
            size = (_size(pod),)
            ages_by_size[size] = max(ages_by_size.get(size, 0.0), _age(pod, unix_now))
    assumed = list(state.assumed.values())
    waiting = [now - pod.since for pod in assumed if pod.expected]
    return {
        "extender_leader": {(): leading},
        "extender_node_cores": cores,
        "extender_node_fragmentation": scattered,
        "extender_closed_nodes": closed,
        "preflight_nodes": {(standing,): count for standing, count in checked.items()},
        "extender_watch_age_seconds": {(kind,): age for kind, age in ages.items()},
        "extender_pods": {(): len(pods)},
        "extender_gated_pods": {("waiting",): len(gated), ("promised",): promised},
        "extender_gated_oldest_seconds": {(): max((_age(pod, unix_now) for pod in gated), default=0.0)},
        "extender_groups": by_level,
        "extender_group_members_outside": {(): outside},
        "extender_waiting_oldest_seconds": ages_by_size,
        "extender_assumed_pods": {(): len(assumed)},
        "extender_assumption_age_seconds": {(): max(waiting, default=0.0)},
        "extender_assumptions_total": {(ending,): count for ending, count in endings.items()},
        "extender_binds_under_way": {(): under_way},
        "extender_cache_drift": {(): unseen},
    }


def device_seconds(written: Mapping[Share, int]) -> dict[tuple[str, ...], float]:
    """The written account of device-hours."""
    return {share: amount / PARTS for share, amount in written.items()}


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


@lru_cache(maxsize=16_384)
def fragmentation(geometry: Geometry, free_mask: int) -> float:
    """Share of the free whole devices outside the largest free linked set: 0 is whole, near 1 is scattered."""
    free = len(geometry.whole_devices(free_mask))
    for count, masks in reversed([*sets_by_count(geometry, Unit.DEVICE).items()]):
        if any(mask & free_mask == mask for mask in masks):
            return 1 - count / free
    return 0.0
