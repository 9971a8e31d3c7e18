"""The cluster as the scheduler's verbs see it: nodes, Neuron pods, and what binds have reserved.

One event loop owns it and every method is synchronous, so "choose and reserve" is one step without a lock, and a
slow API server can stop nobody. Pods are the only store: a node's record is a function of the pods bound there and
of reservations that the watch has not shown yet. Freeing is forgetting a UID.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol

from neuron_plugin.allocation import Holder, PodReference, PodUid
from neuron_plugin.extender.claims import PodRecord
from neuron_plugin.extender.hardware import NodeFacts, hardware_of
from neuron_plugin.extender.nodes import NodeRecord, node_record
from neuron_plugin.extender.reasons import UNKNOWN_NODE
from neuron_plugin.extender.shapes import AnyShape, Shape, closed_shape
from neuron_plugin.topology import Catalogue


@dataclass(frozen=True, slots=True)
class Reservation:
    """Silicon that a bind has chosen, until the watch shows the pod bound or the bind is known to have failed.

    ``since`` is the monotonic time of the last write that may still land; ``confirmed`` says the API server has the
    binding. ``chosen_from`` is the node as it was at the choice; None where nothing had to be chosen.
    """

    pod: PodReference
    node: str
    holder: Holder
    annotations: Mapping[str, str]
    since: float
    confirmed: bool = False
    chosen_from: Shape | None = None


class Observer(Protocol):
    """Hears of each changed record after the change; None stands for no record before, or none any more."""

    def node_changed(self, before: NodeRecord | None, after: NodeRecord | None) -> None:
        """A node came, changed or went."""

    def pod_changed(self, before: PodRecord | None, after: PodRecord | None) -> None:
        """A live Neuron pod came, changed or went."""


class _Shapes(dict[str, AnyShape]):
    """Shape by node name; a name that is not known has a shape, too, so that a look-up never fails."""

    def __missing__(self, name: str) -> AnyShape:
        return closed_shape(UNKNOWN_NODE)


class ClusterState:
    """Everything the verbs look at. Observers hear of each changed record, after the change."""

    def __init__(self, types: Catalogue) -> None:
        self._types = types
        self._nodes: dict[str, NodeRecord] = {}
        self._shapes = _Shapes()
        self._pods: dict[PodUid, PodRecord] = {}
        self._reservations: dict[PodUid, Reservation] = {}
        self._by_node: defaultdict[str, dict[PodUid, None]] = defaultdict(dict)
        self._stale: frozenset[str] = frozenset()
        self._observers: list[Observer] = []

    @property
    def nodes(self) -> Mapping[str, NodeRecord]:
        """Node records by name, as they are now."""
        return MappingProxyType(self._nodes)

    @property
    def shapes(self) -> Mapping[str, AnyShape]:
        """Shapes by node name; subscripting an unknown name gives a closed shape instead of KeyError."""
        return self._shapes

    @property
    def pods(self) -> Mapping[PodUid, PodRecord]:
        """Live pods that ask for Neuron, as the watch shows them."""
        return MappingProxyType(self._pods)

    @property
    def reservations(self) -> Mapping[PodUid, Reservation]:
        """What binds hold that the watch has not confirmed."""
        return MappingProxyType(self._reservations)

    def observe(self, observer: Observer) -> None:
        """Tell ``observer`` of every change from now on."""
        self._observers.append(observer)

    def put_node(self, facts: NodeFacts) -> None:
        """A node was added or changed."""
        known = self._nodes.get(facts.name)
        if known is None or known.facts != facts:
            self._rebuild(facts.name, facts)

    def remove_node(self, name: str, uid: str) -> None:
        """A node is gone, unless another one has its name by now; its pods are remembered until they go, too."""
        before = self._nodes.get(name)
        if before is not None and before.facts.uid == uid:
            del self._nodes[name], self._shapes[name]
            self._tell_node(before, None)

    def put_pod(self, record: PodRecord) -> None:
        """A live pod that asks for Neuron was added or changed."""
        before = self._pods.get(record.uid)
        if before == record:
            return
        touched = self._touched(record.uid)
        self._pods[record.uid] = record
        self._dissolve(record)
        self._index(record.uid, touched)
        self._tell_pod(before, record)

    def remove_pod(self, uid: PodUid) -> None:
        """A pod is gone or terminal: whatever it held or was to get is free."""
        touched = self._touched(uid)
        before = self._pods.pop(uid, None)
        self._reservations.pop(uid, None)
        self._index(uid, touched)
        if before is not None:
            self._tell_pod(before, None)

    def reserve(self, reservation: Reservation) -> None:
        """Hold silicon for a bind, or replace what is held for the same pod."""
        uid = reservation.pod.uid
        touched = self._touched(uid)
        self._reservations[uid] = reservation
        self._index(uid, touched)

    def confirm(self, uid: PodUid) -> None:
        """The API server has this pod's binding. Nothing happens if the pod has ended meanwhile."""
        if held := self._reservations.get(uid):
            self._reservations[uid] = replace(held, confirmed=True)

    def release(self, uid: PodUid) -> None:
        """This pod's bind is known to have failed. A second time changes nothing."""
        if uid in self._reservations:
            touched = self._touched(uid)
            del self._reservations[uid]
            self._index(uid, touched)

    def set_stale(self, names: frozenset[str]) -> None:
        """The nodes whose plugin has stopped renewing its lease."""
        changed, self._stale = self._stale ^ names, names
        for name in changed & self._nodes.keys():
            self._rebuild(name)

    def bound_to(self, uid: PodUid) -> str:
        """The node a pod is bound to or is being bound to; empty when it is free to go anywhere."""
        record, held = self._pods.get(uid), self._reservations.get(uid)
        return (record.node if record else "") or (held.node if held else "")

    def _dissolve(self, record: PodRecord) -> None:
        """What the watch shows replaces what was reserved, once it shows where the pod is and what it was given."""
        held = self._reservations.get(record.uid)
        if held and record.node and (record.decision is not None or record.node != held.node):
            del self._reservations[record.uid]

    def _touched(self, uid: PodUid) -> set[str]:
        record, held = self._pods.get(uid), self._reservations.get(uid)
        return {name for name in (record.node if record else "", held.node if held else "") if name}

    def _index(self, uid: PodUid, before: set[str]) -> None:
        after = self._touched(uid)
        for name in before - after:
            del self._by_node[name][uid]
            if not self._by_node[name]:
                del self._by_node[name]
        for name in after - before:
            self._by_node[name][uid] = None
        for name in (before | after) & self._nodes.keys():
            self._rebuild(name)

    def _rebuild(self, name: str, facts: NodeFacts | None = None) -> None:
        before = self._nodes.get(name)
        if facts is None:
            before = self._nodes[name]
            facts, hardware = before.facts, before.hardware
        else:
            hardware = hardware_of(facts, self._types)
        holders, pods = self._claimants(name)
        after = node_record(facts, hardware, pods, holders, stale=name in self._stale)
        self._nodes[name] = after
        self._shapes[name] = after.shape
        if after != before:
            self._tell_node(before, after)

    def _claimants(self, name: str) -> tuple[list[Holder], list[PodRecord]]:
        """What binds have reserved on a node, and the pods bound there that no reservation speaks for."""
        uids = self._by_node.get(name, {})
        reserved = [held for uid in uids if (held := self._reservations.get(uid)) and held.node == name]
        spoken_for = {held.pod.uid for held in reserved}
        bound = [pod for uid in uids if uid not in spoken_for and (pod := self._pods.get(uid))]
        return [held.holder for held in reserved], bound

    def _tell_node(self, before: NodeRecord | None, after: NodeRecord | None) -> None:
        for observer in self._observers:
            observer.node_changed(before, after)

    def _tell_pod(self, before: PodRecord | None, after: PodRecord | None) -> None:
        for observer in self._observers:
            observer.pod_changed(before, after)
