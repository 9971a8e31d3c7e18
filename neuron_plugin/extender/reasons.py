"""Why a node takes no Neuron pod at all, as the fixed texts that kube-scheduler counts nodes by.

What a *request* lacks on a healthy, well-described node is said by `allocation.rejection`; here stands what is wrong
with the node itself. A text never names the node or a pod: the scheduler prints one count per distinct text, so a
name in it would print every node (kube-scheduler 1.36, events of an unschedulable pod). It joins them by commas and
sets the full stop itself, so they have neither. Which pod and which text stood in the way is said by the log, the event
on that pod and ``/inspect``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeRefusal:
    """A node that takes no Neuron pod, and whether the end of pods there could change that."""

    code: str
    text: str
    may_pass: bool = False


UNKNOWN_NODE = NodeRefusal("unknown-node", "The node is not known to the Neuron extender yet")
NO_NEURON = NodeRefusal("no-neuron", "The node has no Neuron devices")
NO_INVENTORY = NodeRefusal(
    "no-inventory", "The node has no Neuron inventory and its instance type does not say what it has"
)
UNREADABLE_INVENTORY = NodeRefusal("unreadable-inventory", "The node's Neuron inventory cannot be read")
UNKNOWN_HEALTH = NodeRefusal(
    "unknown-health", "Some of the node's Neuron devices are missing or unhealthy and no inventory says which"
)
STALE = NodeRefusal("stale-plugin", "The node's Neuron plugin does not renew its lease")

UNREADABLE_CLAIM = NodeRefusal(
    "unreadable-claim", "A pod on the node has a Neuron assignment that cannot be read", may_pass=True
)
UNTOLD_CLAIM = NodeRefusal(
    "untold-claim", "A pod on the node uses Neuron and its assignment is not known yet", may_pass=True
)
OVERLAPPING_CLAIMS = NodeRefusal(
    "overlapping-claims", "Two pods on the node claim the same Neuron devices", may_pass=True
)
BOUND_ELSEWHERE = NodeRefusal(
    "bound-elsewhere", "The pod is bound to another node or a bind to one is not decided yet", may_pass=True
)

NODE_REFUSALS = (
    UNKNOWN_NODE,
    NO_NEURON,
    NO_INVENTORY,
    UNREADABLE_INVENTORY,
    UNKNOWN_HEALTH,
    STALE,
    UNREADABLE_CLAIM,
    UNTOLD_CLAIM,
    OVERLAPPING_CLAIMS,
    BOUND_ELSEWHERE,
)
