"""Refusals: why a request gets nothing, as a value with one of a few fixed texts.

kube-scheduler counts nodes by text, so a text names neither node, pod nor ids; ``detail`` does. It joins texts by
commas and adds a full stop (pkg/scheduler/framework/types.go, FitError), so our texts end with neither. The vendor's
sentence is unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from neuron_plugin.allocation.resources import ranges
from neuron_plugin.topology import Geometry, Unit, sets_by_count

_PLURALS = {Unit.DEVICE: "devices", Unit.CORE: "cores"}


@dataclass(frozen=True, slots=True)
class Rejection:
    """A refusal: a code for metrics, a text for kube-scheduler, and whether the end of other pods can change it.

    ``detail`` is for people who read a log or an event: the pod, the annotation, the value. ``of_node`` is the
    ``predicate`` if it cannot be derived from the text.
    """

    code: str
    text: str
    may_pass: bool = False
    detail: str = field(default="", compare=False)
    of_node: str = field(default="", compare=False)

    def __str__(self) -> str:
        return self.detail or self.text

    @property
    def predicate(self) -> str:
        """The text as a predicate of a node, such as ``has no Neuron devices``, for counts of nodes."""
        for beginning, verb in _OF_A_NODE:
            if not self.of_node and self.text.startswith(beginning):
                return f"{verb}{self.text.removeprefix(beginning)}"
        return self.of_node or self.text


_OF_A_NODE = (("The node's ", "has a "), ("The node ", ""), ("No ", "has no "), ("Fewer ", "has fewer "))


# Why a node takes no Neuron pod, whatever the pod asks for. Log, event and /inspect name the pod or value.
UNKNOWN_NODE = Rejection("unknown-node", "The node is not known to the Neuron extender yet")
NO_NEURON = Rejection("no-neuron", "The node has no Neuron devices")
NO_INVENTORY = Rejection(
    "no-inventory", "The node has no Neuron inventory and its instance type does not say what it has"
)
UNREADABLE_INVENTORY = Rejection(
    "unreadable-inventory",
    "The node's Neuron inventory cannot be read",
    of_node="has a Neuron inventory that cannot be read",
)
UNKNOWN_HEALTH = Rejection(
    "unknown-health",
    "Some of the node's Neuron devices are missing or unhealthy and no inventory says which",
    of_node="has devices that are missing or unhealthy, and no inventory that says which",
)
STALE_PLUGIN = Rejection(
    "stale-plugin",
    "The node's Neuron plugin does not renew its lease",
    of_node="has a Neuron plugin that does not renew its Lease",
)
PREFLIGHT_DUE = Rejection("preflight-due", "The node has not passed the pre-flight check yet")
PREFLIGHT_FAILED = Rejection("preflight-failed", "The node has failed the pre-flight check")
PREFLIGHT_UNABLE = Rejection("preflight-unable", "The node has a pre-flight check that cannot run")
UNREADABLE_ASSIGNMENT = Rejection(
    "unreadable-assignment",
    "A pod on the node has a Neuron assignment that cannot be read",
    may_pass=True,
    of_node="has a pod whose Neuron assignment cannot be read",
)
NO_ASSIGNMENT = Rejection(
    "no-assignment",
    "A pod on the node uses Neuron and its assignment is not known yet",
    may_pass=True,
    of_node="has a pod whose Neuron assignment is not known yet",
)
OVERLAPPING_ASSIGNMENTS = Rejection(
    "overlapping-assignments",
    "Two pods on the node are assigned the same Neuron devices",
    may_pass=True,
    of_node="has two pods with the same Neuron devices",
)
BOUND_ELSEWHERE = Rejection(
    "bound-elsewhere", "The pod is bound to another node or a bind to one is not decided yet", may_pass=True
)
LEFT_TO_OTHERS = Rejection(
    "left-to-others", "The node is left to a pod that was handed to its scheduler without a node", may_pass=True
)
CORDONED = Rejection("cordoned", "The node is cordoned")

NODE_REFUSALS = (
    *(UNKNOWN_NODE, NO_NEURON, NO_INVENTORY, UNREADABLE_INVENTORY, UNKNOWN_HEALTH, STALE_PLUGIN),
    *(PREFLIGHT_DUE, PREFLIGHT_FAILED, PREFLIGHT_UNABLE),
    *(UNREADABLE_ASSIGNMENT, NO_ASSIGNMENT, OVERLAPPING_ASSIGNMENTS, BOUND_ELSEWHERE, LEFT_TO_OTHERS),
)
"""All refusals that do not depend on the pod's request, except ``CORDONED``."""

# Refusals that depend on the pod's request.
INVALID_REQUEST = Rejection("invalid-request", "The pod's request for Neuron cannot be served")
INVALID_CONSTRAINT = Rejection("invalid-constraint", "An annotation that constrains the pod's devices cannot be read")
WRONG_PRODUCT = Rejection(
    "wrong-product",
    "The node's Neuron devices are not of a product that the pod asks for",
    of_node="has devices of another product than the pod asks for",
)
UNKNOWN_PRODUCT = Rejection(
    "unknown-product",
    "The product of the node's Neuron devices is not known",
    of_node="has devices whose product is not known",
)
WRONG_ATTRIBUTES = Rejection(
    "wrong-attributes", "The node's Neuron devices do not have the attributes that a claim of the pod asks for"
)
SHARED_DEVICE = Rejection(
    "no-shared-device", "No Neuron device has free cores for all containers that share one", may_pass=True
)
TOO_LARGE_TO_SHARE = Rejection(
    "no-shared-device", "The containers that share one Neuron device ask for more cores than one of the node has"
)


def set_kind(geometry: Geometry, unit: Unit) -> str:
    """The word for a valid set: "aligned" for cores with block sizes, else "linked"."""
    return "aligned" if unit is Unit.CORE and geometry.core_block_sizes else "linked"


def unsupported_count(geometry: Geometry, unit: Unit, count: int) -> Rejection:
    """The vendor's sentences for a count that can never be met on this type, and the possible counts."""
    supported = ranges(sets_by_count(geometry, unit)).replace(",", " or ")
    return Rejection(
        "unsupported-count",
        f"Instance type {geometry.instance_type} does not support requests for {unit}: {count}. "
        f"Please request a different number of {_PLURALS[unit]}. It supports {supported}",
    )


def too_many(geometry: Geometry, unit: Unit, count: int) -> Rejection:
    """A count that is larger than on any node of this type."""
    has = geometry.device_count if unit is Unit.DEVICE else geometry.core_count
    return Rejection(
        "too-many",
        f"Instance type {geometry.instance_type} has {has} Neuron {_PLURALS[unit]} and {count} were requested",
    )


def too_many_together(geometry: Geometry) -> Rejection:
    """Each container could be served alone, but never all together."""
    return Rejection(
        "too-many", f"Instance type {geometry.instance_type} has no room for all containers of the pod at once"
    )


def unhealthy(unit: Unit, count: int) -> Rejection:
    """The node has enough devices, but some are missing or unhealthy."""
    if count == 1:
        return Rejection("unhealthy", f"No healthy Neuron {unit} on the node")
    return Rejection("unhealthy", f"No set of {count} healthy linked Neuron {_PLURALS[unit]} on the node")


def disabled(unit: Unit, count: int) -> Rejection:
    """The node has enough devices, but an operator has disabled some."""
    return Rejection("disabled", f"The node's disabled Neuron devices leave no linked set of {count} {_PLURALS[unit]}")


def not_free(unit: Unit, count: int) -> Rejection:
    """Fewer are free than requested."""
    text = f"Fewer than {count} free Neuron {_PLURALS[unit]}" if count > 1 else f"No free Neuron {unit}"
    return Rejection("not-free", text, may_pass=True)


def fragmented(geometry: Geometry, unit: Unit, count: int) -> Rejection:
    """Enough are free, but no linked set, or no aligned set of cores."""
    return Rejection(
        "fragmented", f"No free {set_kind(geometry, unit)} set of {count} Neuron {_PLURALS[unit]}", may_pass=True
    )


def not_allowed(unit: Unit, count: int) -> Rejection:
    """It would fit, but not on the devices that the pod's annotations allow."""
    return Rejection(
        "not-allowed",
        f"No free linked set of {count} Neuron {_PLURALS[unit]} among the devices that the pod allows",
        may_pass=True,
    )


def amount_used(name: str, per_device: int) -> Rejection:
    """It would fit, but too little of an amount is left on the free devices."""
    return Rejection(
        "amount-used", f"No free linked Neuron devices with {per_device} {name} left on each", may_pass=True
    )


def amount_used_together(name: str, *, on_one_device: bool) -> Rejection:
    """An amount is enough for each container alone, but not for all together."""
    where = "a free Neuron device for all containers that share one" if on_one_device else "free Neuron devices"
    text = f"Too little {name} is left on {where}"
    return Rejection("amount-used", text if on_one_device else f"{text} for all containers of the pod", may_pass=True)


def amount_too_large(name: str, per_device: int, has: int) -> Rejection:
    """More of an amount than a device has without any pod."""
    return Rejection(
        "amount-too-large", f"The node's Neuron devices have {has} {name} each and {per_device} of each were requested"
    )


def amount_not_divisible(name: str, amount: int, devices: int) -> Rejection:
    """The devices of a container cannot share the amount evenly."""
    return Rejection("amount-not-divisible", f"{amount} {name} cannot be shared evenly by {devices} Neuron devices")


def amount_unknown(name: str) -> Rejection:
    """The amount of a device is unknown."""
    return Rejection("amount-unknown", f"How much {name} the node's Neuron devices have is not known")
