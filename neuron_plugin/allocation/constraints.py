"""Constraints on a pod's devices beyond their number, read from annotations.

Constraints only narrow the choice among free devices, so every author of a pod may set them. Annotations can change
while the pod runs: they affect where a pod is placed, never the devices that it already has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from neuron_plugin.allocation.keys import (
    ALLOW_KEY,
    CONSTRAINT_KEYS,
    DENY_KEY,
    DEVICE_NAME_KEY,
    PREFER_KEY,
    PREFER_NUMA_KEY,
    SAME_DEVICE_KEY,
)
from neuron_plugin.allocation.rejection import INVALID_CONSTRAINT, Rejection
from neuron_plugin.allocation.resources import IdListError, parse_ids
from neuron_plugin.topology import MOST_DEVICES, Unit

LONGEST_CONSTRAINT = 1024
"""Characters of one annotation: all device ids and some dozen names. Texts are cached, so this bounds memory."""

ANY_DEVICE = (1 << MOST_DEVICES) - 1

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Constraints:
    """The constraints that hold for all containers of a pod.

    ``products`` are names of products or families in lower case; empty means any. ``allowed_devices`` and
    ``preferred_devices`` have bit N for device N. ``same_device`` are the containers that share one device, by their
    index in the pod's request. With ``balance``, the device with most left of that amount goes first.
    """

    products: frozenset[str] = frozenset()
    allowed_devices: int = ANY_DEVICE
    preferred_devices: int = 0
    same_device: tuple[int, ...] = ()
    prefer_numa: bool = False
    balance: str = ""

    @property
    def has_preference(self) -> bool:
        """Whether anything besides cost decides between the remaining sets."""
        return bool(self.preferred_devices or self.prefer_numa or self.balance)


def read_constraints(
    annotations: Mapping[str, str], asked: Sequence[tuple[str, Unit]]
) -> Constraints | Rejection | None:
    """The constraints of a pod, None without any; a ``Rejection`` names the annotation that cannot be read.

    ``asked`` has the name and the requested unit of each container.
    """
    texts = {key: annotations[key] for key in CONSTRAINT_KEYS if key in annotations}
    for key, text in texts.items():
        if len(text) > LONGEST_CONSTRAINT:
            return _refused(key, text, f"expected at most {LONGEST_CONSTRAINT} characters")
    constraints = Constraints()
    for key, text in texts.items():
        try:
            constraints = _with(constraints, key, text.strip(), asked)
        except ValueError as error:
            return _refused(key, text, str(error))
    return constraints if texts else None


def _with(constraints: Constraints, key: str, text: str, asked: Sequence[tuple[str, Unit]]) -> Constraints:
    """The constraints with one more annotation; a ValueError names the expected value."""
    if key == DEVICE_NAME_KEY:
        return replace(constraints, products=frozenset(name.lower() for name in _names(text)))
    if key == ALLOW_KEY:
        return replace(constraints, allowed_devices=constraints.allowed_devices & _devices(text))
    if key == DENY_KEY:
        return replace(constraints, allowed_devices=constraints.allowed_devices & ~_devices(text))
    if key == PREFER_KEY:
        return replace(constraints, preferred_devices=_devices(text))
    if key == SAME_DEVICE_KEY:
        places, names = {name: place for place, (name, unit) in enumerate(asked) if unit is Unit.CORE}, _names(text)
        if wrong := next((name for name in names if name not in places), None):
            raise ValueError(f"{wrong!r} is no container that asks for neuroncore")
        if len(set(names)) < max(2, len(names)):
            raise ValueError("expected two or more containers, each once")
        return replace(constraints, same_device=tuple(sorted(places[name] for name in names)))
    if key == PREFER_NUMA_KEY:
        if text not in {"true", "false"}:
            raise ValueError("expected true or false")
        return replace(constraints, prefer_numa=text == "true")
    if not _NAME.fullmatch(text):
        raise ValueError("expected the name of an amount, such as memory")
    return replace(constraints, balance=text)


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name[:40]!r} is no name, expected names joined by commas")
    return names


def _devices(text: str) -> int:
    ids = parse_ids(text)
    if ids[-1] >= MOST_DEVICES:
        raise IdListError(f"the id {ids[-1]} is above {MOST_DEVICES - 1}, expected ids of devices on the host")
    return sum(1 << device for device in ids)


def _refused(key: str, text: str, expected: str) -> Rejection:
    return replace(INVALID_CONSTRAINT, detail=f"annotation {key} is {text[:80]!r}: {expected}")
