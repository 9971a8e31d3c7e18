"""Field selectors, as the real server reads them.

A selector is a function from an object to whether it is meant. What the real server refuses is refused here, too: a
field that is not selectable would otherwise silently select nothing on a real cluster. Label selectors are not served:
none of this project's programs sends one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from neuron_plugin.simulation.api_server_status import JsonObject, bad_request

if TYPE_CHECKING:
    from neuron_plugin.simulation.api_server_kinds import ServedKind

Selector = Callable[[JsonObject], bool]

_TERM = re.compile(r"^\s*([^\s!=,()]+)\s*(=|==|!=)\s*([^\s!=,()]*)\s*$")


def selector(kind: ServedKind, fields: str) -> Selector:
    """Read a field selector; an empty text selects everything.

    Raises:
        Refusal: 400, with the real server's text.
    """
    tests = [_test(kind, term) for term in fields.split(",") if term.strip()]
    return lambda candidate: all(test(candidate) for test in tests)


def _test(kind: ServedKind, term: str) -> Selector:
    match = _TERM.match(term)
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
