"""Sections of settings: of the file only, over their defaults, shown whole."""

from __future__ import annotations

import argparse
import enum
from pathlib import Path

import msgspec
import pytest
import yaml

from neuron_plugin.settings import SettingsError, add_flags, as_text, as_yaml, load


class Action(enum.StrEnum):
    WARN = "warn"
    STOP = "stop"


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    most_errors: int = 1
    action: Action = Action.WARN


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    first_one: Limits = Limits(most_errors=5, action=Action.STOP)
    second: Limits = Limits()
    seconds: float = 2.0


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    name: str = "n"
    section: Section = Section()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "settings.yaml"


def test_what_a_section_does_not_name_keeps_its_own_default(file: Path) -> None:
    file.write_text("section: {first-one: {most-errors: 9}, seconds: 1}\n")
    section = load(Settings, {}, {}, file).section
    assert section == Section(first_one=Limits(most_errors=9, action=Action.STOP), seconds=1)


@pytest.mark.parametrize("text", ["section:\n", "section: {}\n", "name: n\n"])
def test_an_empty_section_is_its_default(file: Path, text: str) -> None:
    file.write_text(text)
    assert load(Settings, {}, {}, file).section == Section()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("section: 3\n", r"section in .* is 3: Expected `object`"),
        ("section: {third: {}}\n", r"is {'third': {}}: Object contains unknown field `third`; known keys: .*second"),
        ("section: {second: {most-errors: few}}\n", r"expected a whole number.* - at `\$.second.most-errors`"),
        (
            "section: {second: {action: x}}\n",
            r"Invalid enum value 'x'; choose among warn, stop - at `\$.second.action`",
        ),
        ("section: {second: []}\n", r"Expected `object`, got `array` - at `\$.second`"),
    ],
)
def test_a_wrong_section_is_named_with_what_the_file_says(file: Path, text: str, complaint: str) -> None:
    file.write_text(text)
    with pytest.raises(SettingsError, match=complaint):
        load(Settings, {}, {}, file)


def test_a_section_has_no_flag_and_no_variable() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser, Settings)
    assert "--name" in parser.format_help()
    assert "section" not in parser.format_help()
    assert load(Settings, {"section": "x"}, {"NEURON_PLUGIN_SECTION": "x"}).section == Section()


def test_a_printed_section_is_whole_and_reads_back(file: Path) -> None:
    settings = Settings(section=Section(second=Limits(7, Action.STOP)))
    file.write_text(as_yaml(settings))
    assert yaml.safe_load(file.read_text())["section"]["first-one"] == {"most-errors": 5, "action": "stop"}
    assert load(Settings, {}, {}, file) == settings


def test_in_a_log_line_a_section_is_what_differs_from_its_default() -> None:
    assert as_text(Section()) == "{}"
    assert as_text(Section(first_one=Limits(9, Action.STOP))) == '{"first-one":{"most-errors":9,"action":"stop"}}'
