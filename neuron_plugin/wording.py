"""How counts and ids are written for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from neuron_plugin.allocation.resources import ranges
from neuron_plugin.topology import Geometry, Unit


def named(noun: str, ids: Iterable[int]) -> str:
    """``device 3``, ``devices 0-2,5``."""
    numbers = set(ids)
    return f"{noun}{'' if len(numbers) == 1 else 's'} {ranges(numbers)}"


def unit_of(geometry: Geometry, mask: int) -> Unit:
    """The unit to name a set by: devices if it has whole devices only, else cores."""
    return Unit.DEVICE if geometry.devices_mask(geometry.whole_devices(mask)) == mask else Unit.CORE


def named_set(unit: str, devices: Iterable[int], cores: Iterable[int]) -> str:
    """The text of a set by its unit; empty without a unit."""
    return named(unit, devices if unit == Unit.DEVICE else cores) if unit else ""


def first_of(names: Sequence[object], most: int) -> str:
    """The first names and the number of others: ``a, b and 2 others``."""
    listed = ", ".join(map(str, names[:most]))
    return f"{listed} and {plural(len(names) - most, 'other')}" if len(names) > most else listed


def plural(count: int, noun: str, several: str = "") -> str:
    """``1 device``, ``2 devices``; ``1 is``, ``2 are``."""
    return f"{count} {noun}" if count == 1 else f"{count} {several or noun + 's'}"
