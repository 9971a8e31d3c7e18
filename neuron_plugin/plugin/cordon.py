"""Taking devices of a node out of service, and putting them back, by the annotation that the node's plugin follows.

The annotation is read, changed and written with the version that was read, so that two operators at the same moment do
not undo each other's change. A value that cannot be read is removed on request only: which devices it was to disable is
not known.
"""

from __future__ import annotations

from collections.abc import Collection

from neuron_plugin.allocation import IdListError, InventoryError
from neuron_plugin.allocation.inventory import disabled_devices, read_inventory
from neuron_plugin.allocation.keys import DISABLE_KEY, INVENTORY_KEY
from neuron_plugin.allocation.resources import format_ids
from neuron_plugin.cluster import ApiError, ApiServer, Node
from neuron_plugin.cluster.api import PAGE_SECONDS, send
from neuron_plugin.cluster.objects import NODES
from neuron_plugin.cluster.writes import describe_node, read_node
from neuron_plugin.wording import named

ATTEMPTS = 5
"""Writes in a row that others may overtake: the kubelet writes its status, an operator another annotation."""

Ids = tuple[int, ...]


class CordonError(Exception):
    """The annotation is not changed; the text names the node, the value, what was expected and what to do."""


async def change_disabled(api: ApiServer, node_name: str, ids: Collection[int], *, disable: bool) -> tuple[Ids, Ids]:
    """Disable devices of a node, or enable them; which are disabled before and after. No ``ids`` enable all.

    Raises:
        CordonError: there is no such node, ``ids`` do not fit it, or its annotation cannot be read.
        ClusterError: the API server refused or did not answer.
    """
    attempt = 0
    while True:
        attempt += 1
        try:
            node = NODES.decode(await send(api, read_node(node_name), timeout_seconds=PAGE_SECONDS))
            before, after = with_disabled(node, ids) if disable else without_disabled(node, ids)
            value = format_ids(after) or None
            if node.annotations.get(DISABLE_KEY) != value:
                change = describe_node(node_name, annotations={DISABLE_KEY: value}, version=node.resource_version)
                await send(api, change, timeout_seconds=PAGE_SECONDS)
        except ApiError as error:
            if error.missing:
                raise CordonError(f"there is no node {node_name}: see 'kubectl get nodes' for the names") from error
            if not error.conflict or attempt == ATTEMPTS:
                raise
        else:
            return before, after


def with_disabled(node: Node, ids: Collection[int]) -> tuple[Ids, Ids]:
    """The disabled devices, before and with ``ids``.

    Raises:
        CordonError: the node lacks one of ``ids``, by its plugin's inventory, or its annotation cannot be read.
    """
    try:
        count = read_inventory(node.annotations.get(INVENTORY_KEY, "")).geometry.device_count
    except InventoryError:
        count = max(ids) + 1
    if unknown := [number for number in ids if number >= count]:
        raise CordonError(f"node {node.name} has no {named('device', unknown)}: its devices are 0 to {count - 1}")
    before = _disabled(node)
    return before, tuple(sorted({*before, *ids}))


def without_disabled(node: Node, ids: Collection[int]) -> tuple[Ids, Ids]:
    """The disabled devices, before and without ``ids``; none without any ids.

    Raises:
        CordonError: one of ``ids`` is not disabled, or the annotation cannot be read.
    """
    try:
        before = _disabled(node)
    except CordonError:
        if ids:
            raise
        return (), ()
    if unknown := set(ids) - set(before):
        has = f"disabled: {named('device', before)}" if before else "no device of it is disabled"
        raise CordonError(f"{named('device', unknown)} of node {node.name}: not disabled; {has}")
    return before, tuple(sorted(set(before) - set(ids))) if ids else ()


def _disabled(node: Node) -> Ids:
    text = node.annotations.get(DISABLE_KEY, "")
    try:
        return disabled_devices(text)
    except IdListError as error:
        raise CordonError(
            f"annotation {DISABLE_KEY} of node {node.name} reads {text[:60]!r}: {error}; correct it, or remove it by "
            f"'neuron-plugin uncordon {node.name}'"
        ) from error
