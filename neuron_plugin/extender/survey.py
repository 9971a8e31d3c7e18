"""The cluster's state from a short look at the API server, for explanations without an extender at hand."""

from __future__ import annotations

from neuron_plugin.cluster import CLOCK, LEASES, NODES, PODS, ApiError, ApiServer, Clock, Lease, Scope, pages
from neuron_plugin.extender.feeds import keep_pod
from neuron_plugin.extender.observation import node_facts
from neuron_plugin.extender.staleness import PluginLeases, keep_plugin_lease, node_of
from neuron_plugin.extender.state import ClusterState
from neuron_plugin.topology import Catalogue

PAGE_SECONDS = 30.0
LOOK_SECONDS = 1.0
PATIENCE_SECONDS = 20.0
"""How long a plugin may keep its lease unrenewed before nobody waits to see whether it runs out; it lasts 8 s."""


async def survey(api: ApiServer, types: Catalogue, *, lease_namespace: str = "", clock: Clock = CLOCK) -> ClusterState:
    """What an extender that starts now would know; without a ``lease_namespace`` no plugin is judged by its lease.

    Raises:
        ClusterError: the API server refused, did not answer, or its answer cannot be read.
    """
    state = ClusterState(types)
    async for page in pages(api, PODS, page_timeout_seconds=PAGE_SECONDS):
        for pod in page.records:
            if record := keep_pod(pod):
                state.put_pod(record)
    async for nodes in pages(api, NODES, page_timeout_seconds=PAGE_SECONDS):
        for node in nodes.records:
            state.put_node(node_facts(node))
    if lease_namespace:
        state.set_stale(await _silent(api, lease_namespace, clock))
    return state


async def _silent(api: ApiServer, namespace: str, clock: Clock) -> frozenset[str]:
    """The nodes whose plugin's lease is given up, or runs out under our eyes: one look cannot tell the latter.

    So it takes until every lease was renewed, some two seconds, or has run out. As in an extender, plugins go unjudged
    without the right to read leases.
    """
    leases, first_versions, began = PluginLeases(), dict[str, str](), clock.now()
    while True:
        now = clock.now()
        try:
            found = await _plugin_leases(api, namespace)
        except ApiError:
            return frozenset()
        for lease in found:
            leases.changed(lease.uid, lease, now)
            first_versions.setdefault(lease.uid, lease.resource_version)
        stale = leases.stale(now)
        renewed = {node_of(lease) for lease in found if lease.resource_version != first_versions[lease.uid]}
        if now - began >= PATIENCE_SECONDS or renewed | stale >= {node_of(lease) for lease in found}:
            return stale
        await clock.sleep(LOOK_SECONDS)


async def _plugin_leases(api: ApiServer, namespace: str) -> list[Lease]:
    leases = pages(api, LEASES, Scope(namespace), page_timeout_seconds=PAGE_SECONDS)
    return [lease async for page in leases for lease in page.records if keep_plugin_lease(lease)]
