"""The resource names of Neuron hardware in Kubernetes, and lists of ids as text.

``neuron`` and ``neurondevice`` are two names of one unit, the device; ``neuroncore`` counts logical cores. An id is the
physical id in decimal, so the kubelet's records show which hardware is in use.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Self

from neuron_plugin.topology import Unit

HIGHEST_ID = 4095
"""More than the ids of 64 devices of 8 cores (the driver's limits), and low enough that no text can exhaust memory."""

_LONGEST_TEXT = 65_536
"""Characters of a list; a longer one is refused. A list of 512 single cores has some 2 000."""


class Resource(enum.StrEnum):
    """Extended resource names, as pods request them."""

    unit: Unit
    """What the resource counts."""
    short_name: str
    """The name without its domain, for socket names and messages."""

    NEURON = "aws.amazon.com/neuron"
    NEURONDEVICE = "aws.amazon.com/neurondevice"
    NEURONCORE = "aws.amazon.com/neuroncore"

    def __new__(cls, name: str) -> Self:
        """Give each name its unit, and its short form."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.unit = Unit.CORE if name.endswith("core") else Unit.DEVICE
        member.short_name = name.rpartition("/")[2]
        return member


class IdListError(ValueError):
    """A text that is no list of ids; the message names the wrong part and the expected form."""


def format_ids(ids: Iterable[int]) -> str:
    """Ids ascending, as ``2,3``; an empty list is the empty text."""
    return ",".join(str(number) for number in sorted(ids))


def ranges(ids: Iterable[int]) -> str:
    """Ids for people, ascending with runs joined: ``0-3,8``; ``-`` for none."""
    runs: list[tuple[int, int]] = []
    for number in sorted(set(ids)):
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs) or "-"


def parse_ids(text: str) -> tuple[int, ...]:
    """Read one list of ids or inclusive ranges, in any order, into ascending ids.

    Raises:
        IdListError: the list is empty, a part is no id or range, or an id is repeated or above ``HIGHEST_ID``.
    """
    if len(text) > _LONGEST_TEXT:
        raise IdListError(f"a list of {len(text)} characters, expected at most {_LONGEST_TEXT}")
    ids: set[int] = set()
    for word in map(str.strip, text.split(",")):
        first, dash, last = word.partition("-")
        low = _parse_id(first, word)
        high = _parse_id(last, word) if dash else low
        if high < low:
            raise IdListError(f"the range {word!r} runs backwards")
        more = range(low, high + 1)
        if twice := ids.intersection(more):
            raise IdListError(f"the id {min(twice)} is twice in the list")
        ids.update(more)
    return tuple(sorted(ids))


def _parse_id(text: str, word: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(HIGHEST_ID))):
        raise IdListError(f"{word[:40]!r} is no id: expected decimal ids from 0 to {HIGHEST_ID} such as 2,3 or 0-3")
    number = int(text)
    if number > HIGHEST_ID:
        raise IdListError(f"the id {number} is above {HIGHEST_ID}")
    return number
