"""Pods that were gone without having been seen to end.

Most were deleted by force. The kubelet goes on telling of such a pod by its name for a while, and a stand-in may hold
what it had: what was confirmed of nobody may have been the vanished pod's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from neuron_plugin.allocation import Holder, HolderLedger, PodReference, PodUid
from neuron_plugin.plugin.pods import NodePod, demanded_cores
from neuron_plugin.plugin.standins import is_nameless
from neuron_plugin.topology import Geometry

LOST_NAME_SECONDS = 60.0
"""How long the name of a vanished pod is remembered: longer than the kubelet goes on telling of it."""


@dataclass(frozen=True, slots=True)
class Vanished:
    """``names`` are those of vanished pods, and when; ``left_by`` are pods that a stand-in may have stood for."""

    names: Mapping[tuple[str, str], float] = field(default_factory=dict)
    left_by: Mapping[PodUid, tuple[PodReference, ...]] = field(default_factory=dict)

    def with_name(self, pod: PodReference, now: float) -> Vanished:
        """A pod has vanished."""
        lately = {name: since for name, since in self.names.items() if since >= now - LOST_NAME_SECONDS}
        return Vanished({**lately, (pod.namespace, pod.name): now}, self.left_by)

    def with_left(self, geometry: Geometry, pod: NodePod, ledger: HolderLedger) -> Vanished:
        """A pod of which nobody knew what it held has vanished: a stand-in for as much as it asks for may be its."""
        left_by = {uid: pods for uid, pods in self.left_by.items() if uid in ledger.holders}
        for holder in ledger:
            if is_nameless(holder) and _may_be_of(geometry, holder, pod):
                left_by[holder.pod.uid] = (*left_by.get(holder.pod.uid, ()), pod.pod)
        return Vanished(self.names, left_by)

    def has_name(self, pod: PodReference, now: float) -> bool:
        """Whether a pod of this name has vanished lately."""
        return now - self.names.get((pod.namespace, pod.name), float("-inf")) <= LOST_NAME_SECONDS


def _may_be_of(geometry: Geometry, holder: Holder, pod: NodePod) -> bool:
    """Whether a container of a pod asks for just as much as somebody was given."""
    asked = {(part.resource, demanded_cores(geometry, part)) for part in pod.request}
    return any((holding.resource, holding.mask.bit_count()) in asked for holding in holder.holdings)
