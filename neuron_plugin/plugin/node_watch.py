"""This node's own Node object: whether it exists, its inventory annotation, and the devices that an operator disabled.

A watch of the one object by its name. The API server has an index for that, because each kubelet does the same. The
disabled devices stand in an annotation, not in the plugin's settings, so that they are changed without a restart and go
with the node. They are read before the first of the kubelet's calls is answered. A Node without our inventory was
created again, or somebody removed it, so all that we say of the node is written again.

A value that cannot be read changes nothing: the last one that could be read holds. An id that the node does not have
disables nothing, and takes nothing from the other ids of the list.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from neuron_plugin.allocation import IdListError, NodeInventory, Resource
from neuron_plugin.allocation.event_reasons import EventReason
from neuron_plugin.allocation.inventory import disabled_devices
from neuron_plugin.allocation.keys import DISABLE_KEY, INVENTORY_KEY
from neuron_plugin.allocation.resources import format_ids
from neuron_plugin.cluster import ApiServer, Node, Reflector, Scope
from neuron_plugin.cluster.objects import NODES
from neuron_plugin.metrics import MetricCounts
from neuron_plugin.plugin.publisher import Publisher

logger = logging.getLogger(__name__)

_MOST_QUOTED = 60
"""Characters of an annotation, in an error's text."""


@dataclass(frozen=True, slots=True)
class SeenNode:
    """The parts of the Node object that are read: two annotations, and counts of its status."""

    disabled: str
    inventory: str
    allocatable: Mapping[str, int]


def seen_node(node: Node) -> SeenNode:
    """Read the Node object."""
    counts = {resource.value: node.allocatable.get(resource.value, "") for resource in Resource}
    return SeenNode(
        node.annotations.get(DISABLE_KEY, ""),
        node.annotations.get(INVENTORY_KEY, ""),
        {name: int(count) for name, count in counts.items() if count.isascii() and count.isdecimal()},
    )


class NodeWatch:
    """Follows the Node object for as long as ``run`` runs. A change of the disabled devices sets ``changed``.

    ``unreadable`` says why the annotation cannot be read. ``missing``: the API server has no such node. ``inventory``
    is the annotation with the inventory as the API server has it. ``uid`` is the Node's, ``allocatable`` how much of
    our resources can be allocated on it, by its status; a change of that sets ``counted``.
    """

    def __init__(
        self,
        node_name: str,
        changed: asyncio.Event,
        counted: asyncio.Event,
        publisher: Publisher,
        counts: MetricCounts,
    ) -> None:
        self._counts = counts
        self.interrupted = counts.interrupted
        self.read = asyncio.Event()
        """Set once the API server has shown the Node object, or that there is none, or where there is no API server."""
        self.disabled: tuple[int, ...] = ()
        self.unreadable = ""
        self.missing = False
        self.inventory = ""
        self.uid = ""
        self.allocatable: Mapping[str, int] = {}
        self._node_name = node_name
        self._changed = changed
        self._counted = counted
        self._publisher = publisher
        self._reported: tuple[tuple[int, ...], tuple[int, ...]] = (), ()
        self._text = ""

    @property
    def problem(self) -> str:
        """Why nothing can be written about this node, and no pod of it is known; empty if all is well."""
        if not self.missing:
            return ""
        return f"the API server has no node {self._node_name!r}: expected --node-name or NODE_NAME to be its name"

    async def run(self, api: ApiServer) -> None:
        """Follow the Node object until cancelled."""
        scope = Scope(field_selector=f"metadata.name={self._node_name}")
        reflector = Reflector(api, NODES, seen_node, scope=scope, observer=self)
        reflector.subscribe(self._see)
        await reflector.run()

    def report(self, inventory: NodeInventory) -> None:
        """Say once, in the log and on the node, which devices are disabled now, and which ids are no device's."""
        unknown = tuple(sorted(set(self.disabled) - set(inventory.disabled)))
        (was_disabled, was_unknown), self._reported = self._reported, (inventory.disabled, unknown)
        if unknown and unknown != was_unknown:
            has = f"this node has devices 0 to {inventory.geometry.device_count - 1}"
            self._say(EventReason.INVALID_DISABLED, f"{DISABLE_KEY} names devices {format_ids(unknown)}; {has}")
        if disabled := set(inventory.disabled) - set(was_disabled):
            self._say(EventReason.DEVICE_DISABLED, f"neuron devices {format_ids(disabled)} are not given to new pods")
        if enabled := set(was_disabled) - set(inventory.disabled):
            self._say(EventReason.DEVICE_ENABLED, f"neuron devices {format_ids(enabled)} are given to new pods again")

    def _say(self, reason: str, text: str) -> None:
        is_fault = reason == EventReason.INVALID_DISABLED
        level = logging.WARNING if is_fault else logging.INFO
        logger.log(level, "the node's annotation disables devices", extra={"reason": reason, "note": text})
        self._publisher.write_node_event(reason, text, action="DisableDevices", warning=is_fault)

    def listed(self, kind: str, records: int, seconds: float) -> None:
        """A complete list is in, says the reflector."""
        self._counts.listed(kind, records, seconds)
        if not records and not self.missing:
            self.missing = True
            logger.warning("the Node object is not there", extra={"why": self.problem})
        self.read.set()

    def _see(self, uid: str, old: SeenNode | None, new: SeenNode | None) -> None:
        """The Node object was added, changed or deleted. The values of a deleted one hold until there is another."""
        self.missing = new is None
        if new is None:
            return
        text, self.inventory = new.disabled, new.inventory
        self.uid = uid
        if new.allocatable != self.allocatable:
            self.allocatable = new.allocatable
            self._counted.set()
        if not self.inventory and (old is None or old.inventory):  # it was created, or somebody removed what we wrote
            self._publisher.write_on_node_again()
        if text == self._text:
            return
        self._text = text
        try:
            self.disabled, self.unreadable = disabled_devices(text), ""
        except IdListError as error:
            self.unreadable = f"{DISABLE_KEY} reads {text[:_MOST_QUOTED]!r}: {error}"
            self._say(EventReason.INVALID_DISABLED, f"{self.unreadable}. The last value that could be read holds")
        self._changed.set()
