"""How ids, counts, and facts that could not be learned are written, everywhere in the output."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unknown:
    """A fact that could not be learned: why not, and what would help. The inspection goes on without it."""

    why: str
    action: str = ""


def ranges(ids: Iterable[int]) -> str:
    """Ids ascending with runs joined: ``0-3,8``; ``-`` for none."""
    runs: list[tuple[int, int]] = []
    for number in sorted(set(ids)):
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs) or "-"


def named(noun: str, ids: Iterable[int]) -> str:
    """``device 3``, ``devices 0-2,5``."""
    numbers = set(ids)
    return f"{noun}{'' if len(numbers) == 1 else 's'} {ranges(numbers)}"


def plural(count: int, noun: str, several: str = "") -> str:
    """``1 device``, ``2 devices``."""
    return f"{count} {noun}" if count == 1 else f"{count} {several or noun + 's'}"
