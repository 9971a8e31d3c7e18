"""docs/compared.md: no cell without a source that is listed, and the figures of the README are its own."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from tests.charts.rendering import CHART
from tests.charts.test_goldens import TRIED, VERSIONS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/compared.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
SECTIONS = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")[1:]}
SOURCES = set(re.findall(r"\*\*([A-Z]\d?)\*\*:", SECTIONS["Sources"]))
OF_OTHERS = ("Other ways to hand out Neuron", "Other accelerators, and queues")
WITHOUT_SOURCE = re.compile(r"-|no(?:ne)?|not .*|one name|that operator|by host|by count|AWS's plugin|tiles, .*")
"""What a cell may say of another project without a source: that there is nothing, or what its column says already."""


def rows(section: str) -> list[list[str]]:
    """The cells of a section's first table, without its head."""
    lines = SECTIONS[section].partition("\n|")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def named(text: str) -> set[str]:
    return {source for found in re.findall(r"\(([A-Z]\d?(?:, [A-Z]\d?)*)\)", text) for source in found.split(", ")}


def test_every_source_that_is_named_is_listed_and_no_other() -> None:
    assert named(PAGE) == SOURCES


def test_what_is_said_of_another_project_has_a_source() -> None:
    bare = [
        cell
        for section in OF_OTHERS
        for row in rows(section)
        for cell in row[1:-1]
        if not named(cell) and not WITHOUT_SOURCE.fullmatch(cell) and row[0] != "is"
    ]
    assert bare == []


def test_the_figures_of_the_readme_are_those_of_the_page() -> None:
    refused = {row[0]: row[1] for row in rows("How much is refused")}
    alone, extension, ours, moves = (f"{float(share.removesuffix('%')):.0f} %" for share in refused.values())
    (line,) = (line for line in README.splitlines() if "how-much-is-refused" in line)
    assert re.findall(r"\d+ %", line) == [extension, "85 %", alone, ours, moves]


def test_supported_versions_are_those_that_the_chart_is_held_against() -> None:
    supported = [row[0] for row in rows("What is supported")]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert supported[0].startswith(VERSIONS[0])
    assert supported[-1] == VERSIONS[-1]
    assert chart["kubeVersion"] == f">={VERSIONS[0]}.0-0"
    assert [row[0] for row in rows("What is supported") if "**run**" in "".join(row)] == [TRIED]
