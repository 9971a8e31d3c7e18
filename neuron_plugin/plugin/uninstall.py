"""Taking back what plugins have said about their nodes: annotation, labels, Lease, condition.

A daemon that ends cannot know whether it will be back, and a preStop hook cannot either: both run at every rollout.
Taken back then, the extender would close the node at each of them. So it is a step of its own, after the plugin is
gone for good, from anywhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from neuron_plugin.allocation.claims import pool_of
from neuron_plugin.cluster import ApiError, ApiRequest, ApiServer, Node, Scope
from neuron_plugin.cluster.api import PAGE_SECONDS, send
from neuron_plugin.cluster.claims import RESOURCE_CLAIMS
from neuron_plugin.cluster.leases import LEASE_PREFIX
from neuron_plugin.cluster.objects import LEASES, NODES, pages
from neuron_plugin.cluster.writes import delete_lease, read_node, remove_node_condition
from neuron_plugin.plugin.node_lease import node_lease
from neuron_plugin.plugin.publisher import withdrawal


async def uninstall_nodes(
    api: ApiServer, names: Iterable[str], namespace: str, conditions: Collection[str] = ()
) -> list[str]:
    """Take back what was said of these nodes; those where there was something. A node that is gone is no error.

    ``conditions`` are the node conditions that the plugins kept, if any: their names are settings, so nothing else
    shows that they are the plugins'.

    Raises:
        ClusterError: the API server refused or did not answer; what was done is done, and doing it again is harmless.
    """
    done = []
    for name in names:
        body = await _answer(api, read_node(name))
        patches = _patches(NODES.decode(body), conditions) if body is not None else []
        for patch in patches:
            await send(api, patch, timeout_seconds=PAGE_SECONDS)
        lease = await _answer(api, delete_lease(node_lease(namespace, name)))
        if lease is not None or patches:
            done.append(name)
    return done


async def claims_in_use(api: ApiServer, names: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
    """The claims with devices of these nodes, by node; such a pod cannot end without its driver.

    A claim names its devices by their pool, which is the node's, whatever the driver is called.

    Raises:
        ClusterError: as above. An API server without claims is no error.
    """
    claims_by_node, pools = defaultdict[str, set[str]](set), {pool_of(name): name for name in names}
    try:
        async for page in pages(api, RESOURCE_CLAIMS, page_timeout_seconds=PAGE_SECONDS):
            for claim in page.records:
                allocation = claim.status.allocation if claim.status.reserved_for else None
                for result in (allocation.devices.results if allocation else None) or ():
                    if result.pool in pools:
                        claims_by_node[pools[result.pool]].add(f"{claim.namespace}/{claim.name}")
    except ApiError as error:
        if not error.missing:
            raise
    return {name: tuple(sorted(claims)) for name, claims in claims_by_node.items()}


async def installed_nodes(api: ApiServer, namespace: str, conditions: Collection[str] = ()) -> list[str]:
    """Every node that a plugin has said something about; ``conditions`` as above.

    Raises:
        ClusterError: as above.
    """
    described: dict[str, bool] = {}
    async for nodes in pages(api, NODES, page_timeout_seconds=PAGE_SECONDS):
        described |= {node.name: bool(_patches(node, conditions)) for node in nodes.records}
    installed = {name for name, is_described in described.items() if is_described}
    async for leases in pages(api, LEASES, Scope(namespace), page_timeout_seconds=PAGE_SECONDS):
        for lease in leases.records:
            name = lease.name.removeprefix(LEASE_PREFIX)
            given_up = not lease.holder and name in described  # such a Lease may only have a similar name
            if lease.name != name and (lease.holder == name or given_up):
                installed.add(name)
    return sorted(installed)


def _patches(node: Node, conditions: Collection[str]) -> list[ApiRequest]:
    """The requests that take back everything written about a node; nothing where nothing is."""
    removals = [
        remove_node_condition(node.name, condition) for condition in conditions if condition in node.condition_types
    ]
    patch = withdrawal(node)
    return [patch, *removals] if patch else removals


async def _answer(api: ApiServer, request: ApiRequest) -> bytes | None:
    """The API server's answer; None where the object is gone."""
    try:
        return await send(api, request, timeout_seconds=PAGE_SECONDS)
    except ApiError as error:
        if error.missing:
            return None
        raise
