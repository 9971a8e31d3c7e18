"""Field and label selectors, as the real server reads them.

A selector is a function from an object to whether it is meant. What the real server refuses is refused here, too: a
field that is not selectable would otherwise silently select nothing on a real cluster.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from neuron_plugin.simulation.api_server_status import JsonObject, bad_request

if TYPE_CHECKING:
    from neuron_plugin.simulation.api_server_kinds import ServedKind

Selector = Callable[[JsonObject], bool]

_SET_BASED = re.compile(r"^\s*([^\s!=,()]+)\s+(in|notin)\s*\(([^()]*)\)\s*$")
_EQUALITY = re.compile(r"^\s*([^\s!=,()]+)\s*(=|==|!=)\s*([^\s!=,()]*)\s*$")
_EXISTENCE = re.compile(r"^\s*(!?)\s*([^\s!=,()]+)\s*$")
_COMMA_OUTSIDE_PARENTHESES = re.compile(r",(?![^(]*\))")


def selector(kind: ServedKind, *, fields: str, labels: str) -> Selector:
    """Read both selectors; an empty text selects everything.

    Raises:
        Refusal: 400, with the real server's text.
    """
    tests = [_field_test(kind, term) for term in _terms(fields)] + [_label_test(term) for term in _terms(labels)]
    return lambda candidate: all(test(candidate) for test in tests)


def _terms(text: str) -> list[str]:
    return [term for term in _COMMA_OUTSIDE_PARENTHESES.split(text) if term.strip()]


def _field_test(kind: ServedKind, term: str) -> Selector:
    match = _EQUALITY.match(term)
    if match is None:
        raise bad_request(f"invalid selector: '{term}'; can't understand '{term}'")
    field, operator, wanted = match.groups()
    if field not in {"metadata.name", "metadata.namespace", *kind.fields}:
        raise bad_request(f"field label not supported: {field}")
    return lambda candidate: (_field(candidate, field) == wanted) != (operator == "!=")


def _field(candidate: JsonObject, path: str) -> str:
    value: Any = candidate
    for step in path.split("."):
        value = value.get(step, "") if isinstance(value, dict) else ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _label_test(term: str) -> Selector:
    if match := _SET_BASED.match(term):
        key, operator, listed = match.groups()
        chosen = {value.strip() for value in listed.split(",")}
        return lambda candidate: (_labels(candidate).get(key) in chosen) == (operator == "in")
    if match := _EQUALITY.match(term):
        key, operator, wanted = match.groups()
        return lambda candidate: (_labels(candidate).get(key) == wanted) != (operator == "!=")
    if match := _EXISTENCE.match(term):
        absent, key = match.groups()
        return lambda candidate: (key in _labels(candidate)) != bool(absent)
    raise bad_request(f"unable to parse requirement: couldn't parse the selector string {term!r}")


def _labels(candidate: JsonObject) -> dict[str, str]:
    return candidate["metadata"].get("labels") or {}
