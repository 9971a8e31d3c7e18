"""The latest decisions on a node or for pods, kept to be explained.

While a decision is made, a container waits. So an entry keeps only references to immutable values, which takes about a
microsecond. The alternatives and their costs are computed on request, by the same functions that decide.
"""

from __future__ import annotations

import enum
import json
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from neuron_plugin.allocation import PodReference, Resource
from neuron_plugin.allocation.cost import costs
from neuron_plugin.allocation.placement import candidates
from neuron_plugin.topology import NO_CORES, Geometry

REMEMBERED = 300
"""Entries kept, some 100 KB: on a busy node about the last hundred pods."""
MOST_CANDIDATES = 5
"""Shown candidates of one entry, the best ones; the number of all is shown, too."""


class Step(enum.StrEnum):
    """The step of a pod that an entry is about."""

    PREFERRED = "preferred"
    """The kubelet asked which ids to take (GetPreferredAllocation)."""
    ALLOCATED = "allocated"
    REFUSED = "refused"
    CORRECTED = "corrected"
    """The kubelet gave the pod other ids than decided, and the pod's annotation was corrected."""
    BOUND = "bound"
    """The extender has written a node and a set on the pod."""
    EVICTED = "evicted"
    """The extender has evicted the pod, to make room for another."""


class LoggedDecision(NamedTuple):  # not a frozen dataclass: those take four times as long to make, in every Allocate
    """One decision.

    ``chosen`` are the cores of the chosen set, or of the refused ids; ``reason`` says why. ``offered`` and
    ``must_include`` are the cores that the caller allowed and demanded, if it did. ``usable`` returns the cores that
    could be chosen; it is called later, so it must only use immutable values.
    """

    at_ns: int
    step: Step
    node: str
    geometry: Geometry
    resource: Resource
    chosen: int
    reason: str
    pod: PodReference | None = None
    container: str = ""
    usable: Callable[[], int] = int
    offered: int = NO_CORES
    must_include: int = NO_CORES


class DecisionLog:
    """The latest entries; older ones are dropped."""

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._entries: deque[LoggedDecision] = deque(maxlen=remembered)
        self.record = self._entries.append

    def replace(self, entry: LoggedDecision, by: LoggedDecision) -> None:
        """Replace ``entry`` by ``by``, if it is still remembered."""
        for place, other in enumerate(self._entries):
            if other is entry:
                self._entries[place] = by
                return

    def entries(self) -> tuple[LoggedDecision, ...]:
        """All remembered entries, oldest first."""
        return tuple(self._entries)


def explain_decision(entry: LoggedDecision) -> dict[str, object]:
    """An entry in plain values for JSON, with the sets that could have been chosen instead.

    The keys and their order are an interface: the command line and scripts read them.
    """
    geometry, unit = entry.geometry, entry.resource.unit
    chosen, usable = geometry.ids_of(unit, entry.chosen), entry.usable()
    sets = candidates(geometry, usable, unit, len(chosen), entry.must_include) if chosen else ()
    shown = sets[:MOST_CANDIDATES]
    return {
        "time": _rfc_3339(entry.at_ns),
        "step": entry.step.value,
        "node": entry.node,
        "pod": str(entry.pod) if entry.pod and entry.pod.name else "",
        "uid": entry.pod.uid if entry.pod else "",
        "container": entry.container,
        "resource": entry.resource.value,
        "count": len(chosen),
        "ids": sorted(chosen),
        "reason": entry.reason,
        "offered": sorted(geometry.ids_of(unit, entry.offered)),
        "mustInclude": sorted(geometry.ids_of(unit, entry.must_include)),
        "usable": sorted(geometry.ids_of(unit, usable)),
        "candidates": [
            {"ids": sorted(geometry.ids_of(unit, mask)), "cost": cost}
            for mask, cost in zip(shown, costs(geometry, usable, shown), strict=True)
        ],
        "candidateCount": len(sets),
    }


def _rfc_3339(unix_ns: int) -> str:
    seconds, nanoseconds = divmod(unix_ns, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{nanoseconds // 1000:06}Z"


def decisions_document(log: DecisionLog) -> bytes:
    """All entries as a JSON document, oldest first. Takes some 10 ms: not for an event loop."""
    explained = (json.dumps(explain_decision(entry)).encode() for entry in log.entries())  # one by one saves memory
    return b'{"decisions": [' + b", ".join(explained) + b"]}\n"
