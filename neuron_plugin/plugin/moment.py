"""One moment of the daemon, as metrics and probes see it.

Apart from both, because metrics load a library that a node whose metrics nobody reads should not pay for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from neuron_plugin.hardware.records import Inventory
from neuron_plugin.plugin.counts import Counts
from neuron_plugin.plugin.node import NodeState


@dataclass(frozen=True)
class Moment:
    """All that a scrape shows. ``watch_age_seconds`` and ``outbox_requests`` are None without an API server."""

    state: NodeState
    counts: Counts
    registered: Mapping[str, bool]
    inventory: Inventory | None = None
    silent_sources: Mapping[str, str] = field(default_factory=dict)
    watch_age_seconds: float | None = None
    outbox_requests: int | None = None
