"""How many devices of the cluster are used, now and in the hours before.

A replica counts for itself and forgets when it ends. The same counts are a metric, so a Prometheus that scrapes it can
give the counts from before this replica's start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import aiohttp
import msgspec
from prometheus_client import Metric
from yarl import URL

from neuron_plugin.allocation import NodeInfo
from neuron_plugin.metrics import Table
from neuron_plugin.monitor.views import device_counts
from neuron_plugin.topology import free_sets

USE_METRIC = "neuron_extender_devices"
ASK_SECONDS = 10.0
"""Time limit for an answer of Prometheus."""

_HELP = (
    "Devices by state, each in one: used (of pods that work), broken (of pods, and unhealthy or missing); without pods "
    "are free (in the largest free linked set of their node), unlinked (free beside it) and other (not available)."
)
METRICS = Table("", {USE_METRIC: ("gauge", ("state",), _HELP)})


class UseError(Exception):
    """Prometheus did not give the counts; the text says why."""


class Use(NamedTuple):
    """How many devices of the cluster are in use at a time (Unix seconds). Each device counts once.

    Pods have ``used`` devices that work, and ``broken`` ones that are unhealthy or missing. ``free`` are healthy and in
    the largest free set of their node, ``unlinked`` are free outside it. ``other`` are without pods and may not be
    used: unhealthy, missing, disabled, reserved, or on a closed node.
    """

    at: int
    used: int
    free: int
    unlinked: int
    other: int
    broken: int = 0


_STATES = Use._fields[1:]


def use_of(infos: Iterable[NodeInfo], at: int) -> Use:
    """Count the devices of all nodes."""
    used = free = unlinked = other = broken = 0
    for info in infos:
        if info.inventory is None:
            continue
        geometry, counts, linked = info.inventory.geometry, device_counts(info), 0
        if counts.free:
            linked = max(count for count, number in free_sets(geometry, info.free_mask).items() if number)
        used, broken = used + counts.used - counts.used_broken, broken + counts.used_broken
        free, unlinked = free + linked, unlinked + counts.free - linked
        other += geometry.device_count - counts.used - counts.free
    return Use(at, used, free, unlinked, other, broken)


def use_metric(infos: Iterable[NodeInfo]) -> Iterator[Metric]:
    """The present counts as a metric; without ``infos`` there is none."""
    counts = zip(_STATES, use_of(nodes, 0)[1:], strict=True) if (nodes := list(infos)) else ()
    return METRICS.families({USE_METRIC: {(state,): count for state, count in counts}})


class _Series(msgspec.Struct):
    metric: dict[str, str]
    values: list[tuple[float, str]]


class _Matrix(msgspec.Struct):
    result: list[_Series]


class _Answer(msgspec.Struct):
    data: _Matrix


async def past_use(prometheus_url: str, since: float, until: float, step_seconds: float) -> list[Use]:
    """The values of the metric in Prometheus between two times (Unix seconds), oldest first.

    Raises:
        UseError: it did not answer, or its answer cannot be read.
    """
    query = {"query": f"max by (state) ({USE_METRIC})", "start": since, "end": until, "step": step_seconds}
    url = f"{prometheus_url.rstrip('/')}/api/v1/query_range"
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(ASK_SECONDS)) as session,
            session.get(url, params={key: str(value) for key, value in query.items()}) as answer,
        ):
            answer.raise_for_status()
            found = msgspec.json.decode(await answer.read(), type=_Answer)
        counts: dict[int, dict[str, int]] = {}
        for series in found.data.result:
            for at, value in series.values:
                counts.setdefault(int(at), {})[series.metric.get("state", "")] = int(float(value))
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:  # DecodeError is a ValueError
        shown = URL(url).with_user(None)  # no password in a log
        raise UseError(f"{shown}: {str(error) or type(error).__name__}") from error
    return [Use(at, *(by_state.get(state, 0) for state in _STATES)) for at, by_state in sorted(counts.items())]
