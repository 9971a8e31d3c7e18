"""What a verdict depends on, shared by all nodes that are in the same state.

A cluster of thousands of nodes is in few distinct states. Each is one interned object compared by identity, so a
verdict for a node costs two dictionary look-ups and equal nodes share it.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakValueDictionary

from neuron_plugin.extender.reasons import NodeRefusal
from neuron_plugin.topology import CoreMask, Geometry


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Shape:
    """An open node's geometry, healthy and free cores. Compared and hashed by identity: make one by ``open_shape``."""

    geometry: Geometry
    healthy_mask: CoreMask
    free_mask: CoreMask


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class ClosedShape:
    """A node that takes no Neuron pod, whatever it asks for."""

    refusal: NodeRefusal


AnyShape = Shape | ClosedShape

_open: WeakValueDictionary[tuple[Geometry, int, int], Shape] = WeakValueDictionary()
_closed: dict[NodeRefusal, ClosedShape] = {}


def open_shape(geometry: Geometry, healthy_mask: CoreMask, free_mask: CoreMask) -> Shape:
    """The one shape of these values; it lives as long as a node or a verdict refers to it."""
    key = (geometry, healthy_mask, free_mask)
    shape = _open.get(key)
    if shape is None:
        shape = _open[key] = Shape(geometry, healthy_mask, free_mask)
    return shape


def closed_shape(refusal: NodeRefusal) -> ClosedShape:
    """The one shape of nodes closed for this reason."""
    return _closed.setdefault(refusal, ClosedShape(refusal))
