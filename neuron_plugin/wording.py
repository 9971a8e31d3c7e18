"""How counts and ids are written for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from neuron_plugin.allocation.resources import ranges
from neuron_plugin.topology import Geometry, Unit, cores_in


def named(noun: str, ids: Iterable[int]) -> str:
    """``device 3``, ``devices 0-2,5``."""
    numbers = set(ids)
    return f"{noun}{'' if len(numbers) == 1 else 's'} {ranges(numbers)}"


def named_ids(geometry: Geometry, mask: int) -> str:
    """The devices of a mask if it has whole devices only, else its cores."""
    devices = geometry.whole_devices(mask)
    is_whole = geometry.devices_mask(devices) == mask
    return named(Unit.DEVICE, devices) if is_whole else named(Unit.CORE, cores_in(mask))


def first_of(names: Sequence[object], most: int) -> str:
    """The first names and the number of others: ``a, b and 2 others``."""
    listed = ", ".join(map(str, names[:most]))
    return f"{listed} and {plural(len(names) - most, 'other')}" if len(names) > most else listed


def plural(count: int, noun: str, several: str = "") -> str:
    """``1 device``, ``2 devices``; ``1 is``, ``2 are``."""
    return f"{count} {noun}" if count == 1 else f"{count} {several or noun + 's'}"
