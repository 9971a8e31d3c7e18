"""Saying no, as a value with one of a few fixed texts.

kube-scheduler counts nodes per distinct text, so a text names neither node nor ids. It joins them by commas and sets
the full stop (pkg/scheduler/framework/types.go, FitError), so ours have neither; the vendor's sentence stays as it is.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from neuron_plugin.topology import Geometry, Unit

_PLURALS = {Unit.DEVICE: "devices", Unit.CORE: "cores"}


class Reason(enum.Enum):
    """Why a request gets no set."""

    UNSUPPORTED_COUNT = "unsupported-count"
    """The topology never hands out that many."""
    TOO_MANY = "too-many"
    """More than the node has, in one container or in all of them together."""
    UNHEALTHY = "unhealthy"
    """It would fit if every device were present and healthy."""
    NOT_FREE = "not-free"
    """Too few are free now."""
    FRAGMENTED = "fragmented"
    """Enough are free, but no linked set of them."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that gets nothing, why, and whether pods going away could mend it."""

    reason: Reason
    text: str

    @property
    def can_pass(self) -> bool:
        """True when the set may come free; False when no pod's end can help on this node."""
        return self.reason in (Reason.NOT_FREE, Reason.FRAGMENTED)


def unsupported_count(geometry: Geometry, unit: Unit, count: int) -> Refusal:
    """The vendor's own sentence for a count that can never be met on this type."""
    text = (
        f"Instance type {geometry.instance_type} does not support requests for {unit}: {count}. "
        f"Please request a different number of {_PLURALS[unit]}."
    )
    return Refusal(Reason.UNSUPPORTED_COUNT, text)


def too_many(geometry: Geometry, unit: Unit, count: int) -> Refusal:
    """More than every node of this type has."""
    has = geometry.device_count if unit is Unit.DEVICE else geometry.core_count
    text = f"Instance type {geometry.instance_type} has {has} Neuron {_PLURALS[unit]} and {count} were requested"
    return Refusal(Reason.TOO_MANY, text)


def crowded(geometry: Geometry) -> Refusal:
    """Each container could be served alone, but never all of them together."""
    text = f"Instance type {geometry.instance_type} has no room for all containers of the pod at once"
    return Refusal(Reason.TOO_MANY, text)


def unhealthy(unit: Unit, count: int) -> Refusal:
    """Enough hardware, but part of it is missing or unhealthy."""
    return Refusal(Reason.UNHEALTHY, f"No set of {count} healthy linked Neuron {_PLURALS[unit]} on the node")


def not_free(unit: Unit, count: int) -> Refusal:
    """Fewer are free than requested."""
    return Refusal(Reason.NOT_FREE, f"Fewer than {count} free Neuron {_PLURALS[unit]}")


def fragmented(unit: Unit, count: int) -> Refusal:
    """Enough are free, but not linked."""
    return Refusal(Reason.FRAGMENTED, f"No free linked set of {count} Neuron {_PLURALS[unit]}")
