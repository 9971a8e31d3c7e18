"""What is made of other files in the chart: the table of values in its README, and parts of the schema of values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import msgspec

from neuron_plugin.plugin.health import Action, HealthRules, SignalRule
from neuron_plugin.settings import _kind_of
from neuron_plugin.topology import Topology
from tests.charts.rendering import CHART, Manifest, default_values

README = CHART / "README.md"
SCHEMA = CHART / "values.schema.json"
BEGIN, END = "<!-- values: begin -->\n", "<!-- values: end -->\n"

MAPS = {"labels", "resources", "settings"}
"""Values that are maps of the user's own keys, or shown as one."""

_KEY = re.compile(r"^( *)([A-Za-z]\w*):")
_LONGEST = 60


def comments() -> dict[str, str]:
    """What stands above each key of values.yaml, by the key's dotted path."""
    found: dict[str, str] = {}
    path: list[str] = []
    said: list[str] = []
    for line in (CHART / "values.yaml").read_text(encoding="utf-8").splitlines():
        key = _KEY.match(line)
        if line.strip().startswith("#"):
            said.append(line.strip().removeprefix("#").strip())
            continue
        if key:
            path = [*path[: len(key[1]) // 2], key[2]]
            found[".".join(path)] = " ".join(said)
        said = []
    return found


def leaves(values: Manifest, above: str = "") -> Iterator[tuple[str, object]]:
    """Every value that is not a group of values, by its dotted path."""
    for key, value in values.items():
        path = f"{above}.{key}".lstrip(".")
        if isinstance(value, dict) and value and key not in MAPS:
            yield from leaves(value, path)
        else:
            yield path, value


def table() -> str:
    """The table, with a heading row."""
    said = comments()
    rows = ["| value | default | meaning |", "|---|---|---|"]
    for path, value in leaves(default_values()):
        default = json.dumps(value)
        shown = f"`{default}`" if len(default) <= _LONGEST else "see values.yaml"
        meaning = said[path].replace("|", r"\|")  # else a column of its own
        rows.append(f"| `{path}` | {shown} | {meaning} |")
    return "\n".join(rows) + "\n"


def readme() -> str:
    """The README with the table of today."""
    head, rest = README.read_text(encoding="utf-8").split(BEGIN)
    return head + BEGIN + table() + END + rest.split(END)[1]


def schema() -> str:
    """The schema of values with the health rules and topologies of today: a new one stands there by itself."""
    known = json.loads(SCHEMA.read_text(encoding="utf-8"))
    structs: dict[str, type[msgspec.Struct]] = {"signalPolicy": SignalRule, "healthSettings": HealthRules}
    for name, struct in structs.items():
        properties = {field.encode_name: _property(_kind_of(field)) for field in msgspec.structs.fields(struct)}
        known["definitions"][name] = {"type": "object", "additionalProperties": False, "properties": properties}
    known["definitions"]["instanceType"]["properties"]["topology"]["enum"] = [topology.value for topology in Topology]
    return json.dumps(known, indent=2, ensure_ascii=False) + "\n"


def _property(kind: object) -> Manifest:
    simple: dict[object, Manifest] = {
        bool: {"type": "boolean"},
        int: {"type": "integer", "minimum": 1},
        Action: {"type": "string", "enum": [action.value for action in Action]},
    }
    return simple.get(kind) or {"$ref": f"#/definitions/{'signalPolicy' if kind is SignalRule else 'seconds'}"}


if __name__ == "__main__":
    README.write_text(readme(), encoding="utf-8")
    SCHEMA.write_text(schema(), encoding="utf-8")
