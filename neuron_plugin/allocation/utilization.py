"""The utilization of containers' cores, as the text of an annotation on the Lease of their node's plugin.

The plugin measures and writes it; the placement controller and the commands show it. The only decision that depends on
it is to move idle pods first. So a text that is unreadable or of a newer version is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from neuron_plugin.allocation.pod import PodUid

VERSION = 1
"""Version of the annotation's format."""
_MIB = 2**20
_LONGEST_TEXT = 262_144
"""Characters; the limit for all annotations of an object, in bytes (apimachinery/pkg/api/validation)."""


@dataclass(frozen=True, slots=True)
class ContainerUtilization:
    """The utilization of one container's cores.

    ``busy_percent`` is the share of the last minutes in which its cores executed, on average over the cores.
    ``memory_bytes`` is the device memory allocated on them. ``idle_since`` is the time since when none of them has
    executed anything, in unix seconds; 0 while the container is not idle. ``busy_seconds`` is the executed time of all
    cores since the driver began to count: two values show whether anything ran in between.
    """

    busy_percent: int
    memory_bytes: int
    idle_since: int = 0
    busy_seconds: int = 0


Utilization = Mapping[PodUid, Mapping[str, ContainerUtilization]]
"""By pod and container; unknown ones are left out."""

_MOST = 2**53
"""JSON numbers below this are exact."""
_PARTS = 4
"""Numbers of one container: busy percent, idle since, MiB, busy seconds."""
_MINUTES_OF_HOUR, _HOURS_OF_DAY = 60, 24


def write_utilization(utilization: Utilization) -> str:
    """The annotation's text, some 80 bytes a container; equal values give equal texts.

    A container's numbers are an array, because a Lease is written often: percent, unix seconds, MiB, seconds.
    """
    pods = {
        uid: {
            name: [use.busy_percent, use.idle_since, use.memory_bytes // _MIB, use.busy_seconds]
            for name, use in sorted(containers.items())
        }
        for uid, containers in sorted(utilization.items())
    }
    return json.dumps({"version": VERSION, "pods": pods}, separators=(",", ":"))


def read_utilization(text: str) -> Utilization:
    """Read the annotation's text; empty if it has another form."""
    try:
        value = json.loads(text) if 0 < len(text) <= _LONGEST_TEXT else None
    except (ValueError, RecursionError):
        value = None
    pods = value.get("pods") if isinstance(value, dict) and value.get("version") == VERSION else None
    utilization: dict[PodUid, dict[str, ContainerUtilization]] = {}
    for uid, containers in pods.items() if isinstance(pods, dict) else ():
        for name, numbers in containers.items() if isinstance(containers, dict) else ():
            if _are_numbers(numbers):
                percent, since, mib, seconds = numbers
                use = ContainerUtilization(min(percent, 100), mib * _MIB, since, seconds)
                utilization.setdefault(PodUid(uid), {})[name] = use
    return utilization


def _are_numbers(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) == _PARTS
        and all(type(number) is int and 0 <= number < _MOST for number in value)
    )


def duration_text(seconds: float) -> str:
    """A duration for people, of at most two parts: ``45s``, ``12m``, ``2h5m``, ``3d4h``."""
    minutes, rest = divmod(int(max(0.0, seconds)), 60)
    if not minutes:
        return f"{rest}s"
    hours, minutes = divmod(minutes, _MINUTES_OF_HOUR)
    days, hours = divmod(hours, _HOURS_OF_DAY)
    parts = [(days, "d"), (hours, "h")] if days else [(hours, "h"), (minutes, "m")]
    return "".join(f"{count}{unit}" for count, unit in parts if count)
