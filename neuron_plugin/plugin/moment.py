"""One moment of the daemon, as metrics and probes show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from neuron_plugin.hardware import Inventory
from neuron_plugin.plugin.counts import Counts
from neuron_plugin.plugin.node import NodeState


@dataclass(frozen=True)
class Moment:
    """``registered`` says of each resource whether the kubelet follows it now.

    ``silent_sources`` are sources of news about the hardware that are not running, and why. ``watch_age_seconds`` and
    ``outbox_requests`` are None without an API server.
    """

    state: NodeState
    counts: Counts
    registered: Mapping[str, bool]
    inventory: Inventory | None = None
    silent_sources: Mapping[str, str] = field(default_factory=dict)
    watch_age_seconds: float | None = None
    outbox_requests: int | None = None
