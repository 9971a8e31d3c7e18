"""Nodes whose plugin has fallen silent.

A node's plugin renews a Lease of its own. When it stops, what the node says about its devices is a memory: no new pod
goes there, and nothing that pods hold is freed. A node without such a Lease is not judged: the vendor's plugin has
none.
"""

from __future__ import annotations

from neuron_plugin.cluster import Lease, ObservedLease

LEASE_PREFIX = "neuron-plugin-"


def keep_plugin_lease(lease: Lease) -> Lease | None:
    """The leases of plugins, of all leases of their namespace."""
    return lease if lease.name.startswith(LEASE_PREFIX) else None


def node_of(lease: Lease) -> str:
    """The node whose plugin renews this lease."""
    return lease.name.removeprefix(LEASE_PREFIX)


class PluginLeases:
    """The plugins' leases, and when each was last seen to be renewed, by our own clock."""

    def __init__(self) -> None:
        self._leases: dict[str, tuple[Lease, ObservedLease]] = {}

    def changed(self, uid: str, lease: Lease | None, now: float) -> None:
        """A lease was seen at ``now``, or is gone."""
        if lease is None:
            self._leases.pop(uid, None)
            return
        _, observed = self._leases.get(uid) or (lease, ObservedLease())
        observed.observe(lease, now)
        self._leases[uid] = (lease, observed)

    def stale(self, now: float) -> frozenset[str]:
        """The nodes whose lease has not been renewed for its whole duration, or was given up."""
        return frozenset(node_of(lease) for lease, observed in self._leases.values() if observed.expired(lease, now))
