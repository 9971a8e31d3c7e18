"""One structured line per verb, in the spirit of the vendor's scheduler log.

The vendor's lines are what operators search for when a pod does not start: which nodes fitted, which ids a bind
chose, what is used afterwards. The same facts stand here as fields of one line; nothing is written per node.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from neuron_plugin.allocation import PodReference, PodRequest, format_ids
from neuron_plugin.extender.attempts import SUCCESSES, Outcome
from neuron_plugin.extender.hardware import Hardware
from neuron_plugin.extender.nodes import NodeRecord
from neuron_plugin.extender.verbs import Filtered
from neuron_plugin.topology import cores_in

_log = logging.getLogger("neuron_plugin.extender.flow")
_MOST_REASONS = 8


def request_text(request: PodRequest) -> str:
    """What a pod asks for, short: ``neuroncore:9`` or ``neuron:1|neuron:4``."""
    return "|".join(f"{part.resource.short_name}:{part.count}" for part in request)


def log_filter(pod: PodReference, request: PodRequest, filtered: Filtered, microseconds: int) -> None:
    """A filter's result: counts, and how many nodes each text turned away."""
    texts = filtered.texts
    fields = {
        **_asked(pod, request),
        "nodes": len(filtered.passed) + texts.total(),
        "passed": len(filtered.passed),
        "refused": dict(texts.most_common(_MOST_REASONS)),
        "us": microseconds,
    }
    _log.info("filter", extra=fields)


def log_prioritize(pod: PodReference, request: PodRequest, scores: list[int], microseconds: int) -> None:
    """How many nodes were scored and how many share the best score."""
    best = max(scores, default=0)
    fields = {
        **_asked(pod, request),
        "nodes": len(scores),
        "best": scores.count(best),
        "us": microseconds,
    }
    _log.info("prioritize", extra=fields)


def log_preempt(
    pod: PodReference, request: PodRequest, offered: int, victims: Mapping[str, int], microseconds: int
) -> None:
    """How many nodes were offered and kept, and how many victims they cost."""
    fields = {
        **_asked(pod, request),
        "nodes": offered,
        "passed": len(victims),
        "fewest_victims": min(victims.values(), default=0),
        "us": microseconds,
    }
    _log.info("preempt", extra=fields)


def log_bind(pod: PodReference, node: str, outcome: Outcome, record: NodeRecord | None, microseconds: int) -> None:
    """What a bind chose, and what is used on the node afterwards."""
    fields = {"pod": str(pod), "uid": pod.uid, "node": node, "result": outcome.ending.value, **outcome.annotations}
    if record and isinstance(record.hardware, Hardware):
        geometry = record.hardware.geometry
        fields["used_cores"] = format_ids(cores_in(record.used_mask))
        fields["used_devices"] = format_ids(geometry.devices_touched(record.used_mask))
    if outcome.error:
        fields["error"] = outcome.error
    level = logging.INFO if outcome.ending in SUCCESSES else logging.WARNING
    _log.log(level, "bind", extra={**fields, "us": microseconds})


def log_error(verb: str, error: str, microseconds: int) -> None:
    """A verb that could not be decided."""
    _log.warning(verb, extra={"error": error, "us": microseconds})


def _asked(pod: PodReference, request: PodRequest) -> dict[str, object]:
    return {"pod": str(pod), "uid": pod.uid, "request": request_text(request)}
