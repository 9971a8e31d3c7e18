"""Telling people which pod keeps a node closed: one event and one log line per pod and reason.

Scheduling texts must not name pods, so whoever wonders why a node takes nothing looks here, or at the pod itself. A
pod of another scheduler has no assignment for the second until its plugin has written one, and two pods that the
kubelet swapped overlap for as long: what ends by itself within the patience given is not reported.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from neuron_plugin.allocation import PodReference, PodUid
from neuron_plugin.extender.claims import UnclearClaim
from neuron_plugin.extender.nodes import NodeRecord

_log = logging.getLogger(__name__)

PATIENCE_SECONDS = 10.0

EVENT_REASONS = {
    "unreadable-claim": "NeuronAssignmentUnreadable",
    "untold-claim": "NeuronAssignmentMissing",
    "overlapping-claims": "NeuronAssignmentOverlaps",
}
"""The reason of the event on the pod, by refusal code."""


class ClosingsObserver(Protocol):
    """Who counts, for metrics."""

    def unclear(self, code: str) -> None:
        """A pod's claim closes its node, for a reason with this code."""


@dataclass(frozen=True, slots=True)
class Report:
    """One thing to say about one pod."""

    pod: PodReference
    node: str
    reason: str
    note: str


class Closings:
    """Which claims close nodes, since when, and which of them have been reported."""

    def __init__(self, observer: ClosingsObserver) -> None:
        self._observer = observer
        self._since: dict[tuple[PodUid, str], float] = {}
        self._reported: set[tuple[PodUid, str]] = set()

    def due(self, nodes: Mapping[str, NodeRecord], now: float) -> list[Report]:
        """What is to be reported at ``now``; each pod and reason once, and anew after it had ended."""
        unclear = {
            (claim.pod.uid, claim.refusal.code): (claim, node.name) for node in nodes.values() for claim in node.unclear
        }
        self._since = {key: self._since.get(key, now) for key in unclear}
        self._reported &= unclear.keys()
        ripe = [key for key, since in self._since.items() if now - since >= _patience(key[1])]
        fresh = [key for key in ripe if key not in self._reported]
        self._reported.update(fresh)
        return [self._report(*unclear[key]) for key in fresh]

    def _report(self, claim: UnclearClaim, node: str) -> Report:
        code = claim.refusal.code
        self._observer.unclear(code)
        fields = {"pod": str(claim.pod), "uid": claim.pod.uid, "node": node, "reason": code, "detail": claim.detail}
        _log.warning("node closed for new Neuron pods", extra=fields)
        note = f"{claim.detail}. Node {node} takes no new Neuron pod until this one ends or is assigned."
        return Report(claim.pod, node, EVENT_REASONS[code], note)


def _patience(code: str) -> float:
    """An unreadable assignment does not mend itself; the others usually do, within moments."""
    return 0.0 if code == "unreadable-claim" else PATIENCE_SECONDS
