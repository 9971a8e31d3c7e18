"""docs/logs.md quotes lines that the daemons write, at the levels at which they write them (P82, P84)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from neuron_plugin.placement.extender.server import VERBS
from neuron_plugin.telemetry import LogLevel

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/logs.md").read_text(encoding="utf-8")
LINES = re.findall(r"^\| `([^`]+)` \| (\w+) \| ", TEXT, re.MULTILINE)
SOURCE = {file: file.read_text(encoding="utf-8") for file in (ROOT / "neuron_plugin").rglob("*.py")}


@pytest.mark.parametrize(("message", "level"), LINES, ids=[message for message, _ in LINES])
def test_p84_a_line_on_the_page_is_written_at_its_level(message: str, level: str) -> None:
    written = {"error": "(?:error|exception)"}.get(level, level)
    said = f'"{re.escape(message)}"' if message not in VERBS else f'(?:"{message}"|verb)'
    problem = r"|Problem\(logger, " if level == "warning" else ""
    as_said = re.compile(rf"(?:\.{written}\(|\.log\(level, {problem})\s*{said}", re.DOTALL)
    assert any(as_said.search(text) for text in SOURCE.values())


def test_the_page_explains_every_level() -> None:
    named = re.findall(r"^\| `(\w+)` \| (?!\w+ \| )", TEXT, re.MULTILINE)
    assert sorted(named) == sorted(LogLevel)
    assert len(LINES) >= 15
