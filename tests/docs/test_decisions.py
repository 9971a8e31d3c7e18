"""The decision records are numbered without gaps, and the index has a line for each."""

from __future__ import annotations

import re
from pathlib import Path

DIRECTORY = Path(__file__).parents[2] / "docs/decisions"
RECORDS = sorted(file for file in DIRECTORY.glob("*.md") if file.name != "README.md")
INDEX = (DIRECTORY / "README.md").read_text(encoding="utf-8")


def test_numbers_have_no_gaps() -> None:
    assert [file.name[:5] for file in RECORDS] == [f"{number:04}-" for number in range(1, len(RECORDS) + 1)]


def test_the_index_has_one_line_for_each_with_its_title() -> None:
    titles = [file.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ") for file in RECORDS]
    listed = re.findall(r"^- \[(\d+)\]\((.*?)\)\. (.*?)(?:; replaced by \d+)?$", INDEX, re.MULTILINE)
    assert [f"{number}. {title}" for number, _, title in listed] == titles
    assert [name for _, name, _ in listed] == [file.name for file in RECORDS]


def test_a_record_that_was_replaced_says_so_in_the_index_too() -> None:
    replaced = dict(re.findall(r"^- \[(\d+)\].*; replaced by (\d+)$", INDEX, re.MULTILINE))
    by_record = {
        str(number): found[1]
        for number, file in enumerate(RECORDS, 1)
        if (found := re.search(r"^Replaced by \[(\d+)\]", file.read_text(encoding="utf-8"), re.MULTILINE))
    }
    assert replaced == by_record
    for number, successor in replaced.items():
        text = RECORDS[int(successor) - 1].read_text(encoding="utf-8")
        assert f"[{number}]({RECORDS[int(number) - 1].name})" in text
