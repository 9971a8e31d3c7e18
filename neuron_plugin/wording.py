"""How counts and ids are written for people."""

from __future__ import annotations

from collections.abc import Iterable

from neuron_plugin.allocation.resources import ranges


def named(noun: str, ids: Iterable[int]) -> str:
    """``device 3``, ``devices 0-2,5``."""
    numbers = set(ids)
    return f"{noun}{'' if len(numbers) == 1 else 's'} {ranges(numbers)}"


def plural(count: int, noun: str, several: str = "") -> str:
    """``1 device``, ``2 devices``."""
    return f"{count} {noun}" if count == 1 else f"{count} {several or noun + 's'}"
