"""A pod's place in the whole UltraServers of its group, and the variables for Neuron's runtime.

The placement controller writes the place on the pod before the pod starts. The plugin knows the ids of its node, and
makes the container's variables from both.

Source of names and values: k8s-ultraserver-init-script.sh (SDK 2.32), which finds them by ssh from pod to pod.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

MODE_VARIABLE = "NEURON_RT_ULTRASERVER_MODE"
SERVER_VARIABLE = "NEURON_RT_ULTRASERVER_SERVER_ID"
NODE_VARIABLE = "NEURON_RT_ULTRASERVER_NODE_ID"
INDEX_VARIABLE = "NEURON_GLOBAL_TOPOID"
FIRST_HOST_VARIABLE = "NEURON_GLOBAL_TOPOID0_HOST"
VARIABLES = frozenset({MODE_VARIABLE, SERVER_VARIABLE, NODE_VARIABLE, INDEX_VARIABLE, FIRST_HOST_VARIABLE})

_MODES = {4: ("1",), 2: ("3", "2")}
"""The modes by number of linked nodes, the better one first: X4; X2V, X2H."""
SIZES = tuple(_MODES)
"""The sizes of linked nodes that a group may fill, largest first."""
_TEXT = re.compile(r"nodes=([24]),index=([0-9]{1,5}),first=([a-z0-9]([a-z0-9.-]{0,250}[a-z0-9])?)")

UltraServerIds = Mapping[str, str]
"""A node's ids in its UltraServer, as ``NodeInventory.ultraserver`` has them."""


@dataclass(frozen=True, slots=True)
class NodeIds:
    """A node's ids among its linked nodes."""

    mode: str
    server: str
    node: int


def node_ids(ids: UltraServerIds, nodes: int) -> NodeIds | None:
    """A node's ids among ``nodes`` linked nodes; None if the driver offers no such mode."""
    offered, node = ids.get("mode", "").split(","), ids.get(f"nodeId{nodes}", "")
    mode = next((mode for mode in _MODES[nodes] if mode in offered), "")
    server = ids.get(f"serverId{nodes}", "")
    return NodeIds(mode, server, int(node)) if mode and server and node.isdecimal() else None


@dataclass(frozen=True, slots=True)
class UltraServerPlace:
    """A pod's place in a group that fills UltraServers, or pairs if ``nodes`` is 2, with a pod on each node.

    ``index`` numbers the group's pods, within an UltraServer by node id. ``first_host`` is the DNS name of the pod with
    index 0.
    """

    nodes: int
    index: int
    first_host: str

    def __str__(self) -> str:
        """The value of the annotation ``ULTRASERVER_KEY``."""
        return f"nodes={self.nodes},index={self.index},first={self.first_host}"

    def variables(self, ids: UltraServerIds) -> dict[str, str]:
        """A container's variables on a node with these ids; empty if the node is no longer in an UltraServer."""
        own = node_ids(ids, self.nodes)
        if own is None:
            return {}
        server, node = own.server, str(own.node)
        reservation = ids.get("serverId4", "")
        if self.nodes < SIZES[0] and reservation and server.startswith(f"{reservation}-"):
            server, node = reservation, ids.get("nodeId4", "")  # for a pair of Trn3pds the id is ours, not the driver's
        return {
            MODE_VARIABLE: own.mode,
            SERVER_VARIABLE: server,
            NODE_VARIABLE: node,
            INDEX_VARIABLE: str(self.index),
            FIRST_HOST_VARIABLE: self.first_host,
        }


def read_ultraserver_place(text: str) -> UltraServerPlace | None:
    """Read the annotation's value; None if it is not one of ours."""
    if not (match := _TEXT.fullmatch(text)):
        return None
    return UltraServerPlace(int(match[1]), int(match[2]), match[3])
