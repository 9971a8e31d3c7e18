"""Taking back what plugins have said about their nodes: annotation, labels, Lease, condition.

A daemon that ends cannot know whether it will be back, and a preStop hook cannot either: both run at every rollout.
Taken back then, the extender would close the node at each of them. So it is a step of its own, after the plugin is
gone for good, from anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable

from neuron_plugin.cluster import (
    LEASES,
    NODES,
    ApiError,
    ApiRequest,
    ApiServer,
    Node,
    Scope,
    delete_lease,
    pages,
    read_node,
    remove_node_condition,
    send,
)
from neuron_plugin.plugin.node_lease import LEASE_PREFIX, node_lease
from neuron_plugin.plugin.publisher import withdrawal

TIMEOUT_SECONDS = 30.0


async def uninstall_nodes(api: ApiServer, names: Iterable[str], namespace: str, condition: str = "") -> list[str]:
    """Take back what was said of these nodes; those where there was something. A node that is gone is no error.

    ``condition`` is the node condition that the plugins kept, if any: its name is one of their settings, so nothing
    else shows that it is theirs.

    Raises:
        ClusterError: the API server refused or did not answer; what was done is done, and doing it again is harmless.
    """
    done = []
    for name in names:
        found = await _answer(api, read_node(name))
        patches = _patches(NODES.decode(found), condition) if found is not None else []
        for patch in patches:
            await send(api, patch, timeout_seconds=TIMEOUT_SECONDS)
        lease = await _answer(api, delete_lease(node_lease(namespace, name)))
        if lease is not None or patches:
            done.append(name)
    return done


async def installed_nodes(api: ApiServer, namespace: str, condition: str = "") -> list[str]:
    """Every node that a plugin has said something about; ``condition`` as above.

    Raises:
        ClusterError: as above.
    """
    described: dict[str, bool] = {}
    async for nodes in pages(api, NODES, page_timeout_seconds=TIMEOUT_SECONDS):
        described |= {node.name: bool(_patches(node, condition)) for node in nodes.records}
    found = {name for name, is_described in described.items() if is_described}
    async for leases in pages(api, LEASES, Scope(namespace), page_timeout_seconds=TIMEOUT_SECONDS):
        for lease in leases.records:
            name = lease.name.removeprefix(LEASE_PREFIX)
            given_up = not lease.holder and name in described  # such a Lease may only have a similar name
            if lease.name != name and (lease.holder == name or given_up):
                found.add(name)
    return sorted(found)


def _patches(node: Node, condition: str) -> list[ApiRequest]:
    """What takes back all that is said of a node; nothing where nothing is."""
    removal = [remove_node_condition(node.name, condition)] if condition in node.condition_types else []
    patch = withdrawal(node)
    return [patch, *removal] if patch else removal


async def _answer(api: ApiServer, request: ApiRequest) -> bytes | None:
    """The API server's answer; None where the object is gone."""
    try:
        return await send(api, request, timeout_seconds=TIMEOUT_SECONDS)
    except ApiError as error:
        if error.missing:
            return None
        raise
