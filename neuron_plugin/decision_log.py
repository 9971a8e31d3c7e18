"""What was decided lately on a node or for a pod, kept so that it can be explained.

A decision leaves no time to explain: a container waits for the answer. So an entry keeps only references to immutable
values, which costs about a microsecond. What else could have been chosen, and at what cost, is worked out when somebody
asks. The same functions that decide are asked then, so an explanation is the decision's own.
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
"""Candidates shown of one entry, the best ones; how many there were is shown, too."""


class Step(enum.StrEnum):
    """Which part of a pod's way an entry is about."""

    PREFERRED = "preferred"
    """The kubelet asked which ids to take (GetPreferredAllocation)."""
    ALLOCATED = "allocated"
    REFUSED = "refused"
    CORRECTED = "corrected"
    """The kubelet gave the pod other ids than were decided, and the pod's annotation says so now."""
    BOUND = "bound"
    """The extender has written a node and a set on the pod."""
    EVICTED = "evicted"
    """The extender has evicted the pod, to make room for another."""


class LoggedDecision(NamedTuple):  # not a frozen dataclass: those take four times as long to make, in every Allocate
    """One decision.

    ``chosen`` are the cores of the set, or of the ids that were refused; ``reason`` says why them. ``offered`` and
    ``must_include`` are the cores the caller allowed and demanded, where it did. ``usable`` gives the cores that the
    choice could be made from; it has to be a function of immutable values, because it is asked later.
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
    """The latest entries; older ones make room."""

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._entries: deque[LoggedDecision] = deque(maxlen=remembered)
        self.record = self._entries.append

    def replace(self, entry: LoggedDecision, by: LoggedDecision) -> None:
        """Put ``by`` in the place of ``entry``, if that is still remembered."""
        for place, other in enumerate(self._entries):
            if other is entry:
                self._entries[place] = by
                return

    def entries(self) -> tuple[LoggedDecision, ...]:
        """Everything remembered, oldest first."""
        return tuple(self._entries)


def explain_decision(entry: LoggedDecision) -> dict[str, object]:
    """An entry in plain values, as JSON has them, with the sets that could have been chosen instead.

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
    """All that is remembered as a JSON document, oldest first. Takes some 10 ms: not for an event loop."""
    explained = (json.dumps(explain_decision(entry)).encode() for entry in log.entries())  # one at a time: flat memory
    return b'{"decisions": [' + b", ".join(explained) + b"]}\n"
