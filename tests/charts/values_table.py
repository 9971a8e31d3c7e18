"""The table of values in the chart's README, made from ``values.yaml`` and its comments."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from tests.charts.rendering import CHART, Manifest, default_values

README = CHART / "README.md"
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


if __name__ == "__main__":
    README.write_text(readme(), encoding="utf-8")
