"""Taking back what plugins have said about their nodes: annotation, labels, Lease, condition.

A daemon that ends cannot know whether it will be back, and a preStop hook cannot either: both run at every rollout.
Taken back then, the extender would close the node at each of them. So it is a step of its own, after the plugin is
gone for good, from anywhere.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator

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

    ``condition`` is the node condition that the plugins kept, if any: they are told its name, so nothing else shows
    that it is theirs.

    Raises:
        ClusterError: the API server refused or did not answer; what was done is done, and doing it again is harmless.
    """
    done = []
    for name in names:
        node = await _read(api, name)
        said = await _withdraw(api, node, condition) if node else False
        if await _delete_lease(api, namespace, name) or said:
            done.append(name)
    return done


async def installed_nodes(api: ApiServer, namespace: str, condition: str = "") -> list[str]:
    """Every node that a plugin has said something about; ``condition`` as above.

    Raises:
        ClusterError: as above.
    """
    described = {node.name: any(_patches(node, condition)) async for node in _nodes(api)}
    leased = {node async for node, held in _leased(api, namespace) if held or node in described}
    return sorted(leased.union(name for name, is_described in described.items() if is_described))


async def _nodes(api: ApiServer) -> AsyncIterator[Node]:
    async for page in pages(api, NODES, page_timeout_seconds=TIMEOUT_SECONDS):
        for node in page.records:
            yield node


async def _leased(api: ApiServer, namespace: str) -> AsyncIterator[tuple[str, bool]]:
    """Nodes by the name of a Lease, and whether that is held: one that was given up may be only called alike."""
    async for page in pages(api, LEASES, Scope(namespace), page_timeout_seconds=TIMEOUT_SECONDS):
        for lease in page.records:
            node = lease.name.removeprefix(LEASE_PREFIX)
            if lease.name != node and lease.holder in {"", node}:
                yield node, bool(lease.holder)


async def _read(api: ApiServer, name: str) -> Node | None:
    try:
        return NODES.decode(await send(api, read_node(name), timeout_seconds=TIMEOUT_SECONDS))
    except ApiError as error:
        if error.missing:
            return None
        raise


def _patches(node: Node, condition: str) -> Iterator[ApiRequest]:
    """What takes back all that is said of a node; nothing where nothing is."""
    patch = withdrawal(node)
    if patch:
        yield patch
    if condition in node.condition_types:
        yield remove_node_condition(node.name, condition)


async def _withdraw(api: ApiServer, node: Node, condition: str) -> bool:
    said = False
    for patch in _patches(node, condition):
        await send(api, patch, timeout_seconds=TIMEOUT_SECONDS)
        said = True
    return said


async def _delete_lease(api: ApiServer, namespace: str, name: str) -> bool:
    try:
        await send(api, delete_lease(node_lease(namespace, name)), timeout_seconds=TIMEOUT_SECONDS)
    except ApiError as error:
        if error.missing:
            return False
        raise
    return True
