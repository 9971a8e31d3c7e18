"""One look at the cluster for a caller who waits for the answer.

Only a watch of its Lease for the Lease's whole duration shows for certain that a plugin is silent: this compares no
clocks of two machines. A single look compares clocks if they leave no doubt, and watches only if they do.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import datetime

from neuron_plugin.cluster import ApiServer, Lease
from neuron_plugin.cluster.leases import LEASE_PREFIX
from neuron_plugin.placement.informers import Informers, nodes_of
from neuron_plugin.placement.state import ClusterState
from neuron_plugin.topology import Catalogue, product_names

SKEW_SECONDS = 30.0
"""By how much clocks may differ before a look has to watch."""


async def look(api: ApiServer, types: Catalogue, *, lease_namespace: str = "", judge: bool = True) -> ClusterState:
    """The state of an extender that starts now. To ``judge`` plugins takes seconds if clocks leave a doubt.

    Raises:
        ClusterError: the API server refused, did not answer, or its answer cannot be read.
    """
    state = ClusterState(products=product_names(types))
    informers = Informers(api, state, types, lease_namespace=lease_namespace)
    await informers.list_once()
    silent = silent_plugins(informers.leases, time.time()) if judge else frozenset[str]()
    state.set_stale(await informers.watch_leases() if silent is None else silent)
    return state


def silent_plugins(leases: Iterable[Lease], now: float) -> frozenset[str] | None:
    """The nodes whose plugins no longer renew their Leases; None if the clocks leave a doubt.

    ``leases`` are all of the namespace: their newest renewal gives the cluster's time. A plugin is alive by our clock,
    ``now``, or by the cluster's time. It is silent only by both, with room for differences of clocks.
    """
    renewed = [(lease, _seconds(lease.renewed_at)) for lease in leases if lease.renewed_at]
    newest, silent = max((at for _, at in renewed), default=0.0), list[Lease]()
    for lease, at in renewed:  # a plugin makes its Lease before it holds it: not judged until then
        age, by_newest = now - at, newest - at
        if not lease.name.startswith(LEASE_PREFIX):
            continue
        if not lease.holder:
            silent.append(lease)
            continue
        if min(age, by_newest) >= lease.duration_seconds + SKEW_SECONDS:
            silent.append(lease)
        elif not -SKEW_SECONDS <= age < lease.duration_seconds:
            return None
    return nodes_of(silent)


def _seconds(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0
