from __future__ import annotations

import argparse
import enum
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from neuron_plugin.plugin.settings import Numbering, PluginSettings, ResourceName, TopologyPolicy
from neuron_plugin.settings import SettingsError, add_flags, as_text, as_yaml, load, read_yaml


class Colour(enum.StrEnum):
    RED = "red"
    LIGHT_BLUE = "light-blue"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    node_name: Annotated[str, Meta(description="name of the node")] = ""
    cdi: Annotated[bool, Meta(description="use 100% CDI")] = False
    colour: Annotated[Colour, Meta(description="a colour")] = Colour.RED
    colours: Annotated[tuple[Colour, ...], Meta(min_length=1, description="colours")] = (Colour.RED,)
    rescan_seconds: Annotated[float, Meta(ge=1, description="how often")] = 10.0
    port: Annotated[int, Meta(ge=1, le=65535, description="a port")] = 12345
    patience: Annotated[float, Meta(gt=0, le=60, description="how long")] = 4.0
    file: Annotated[Path | None, Meta(description="a file")] = None


def flags(*arguments: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    add_flags(parser, Settings)
    return vars(parser.parse_args(arguments))


def from_file(tmp_path: Path, text: str) -> Settings:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    return load(Settings, {}, {}, file)


def test_nothing_given_is_the_defaults() -> None:
    assert load(Settings, flags(), {}) == Settings()


EVERYTHING = Settings(
    node_name="n1",
    cdi=True,
    colour=Colour.LIGHT_BLUE,
    colours=(Colour.LIGHT_BLUE, Colour.RED),
    rescan_seconds=2.5,
    port=80,
    file=Path("/x"),
)


def test_every_field_is_a_flag() -> None:
    given = flags(
        *("--node-name", "n1", "--cdi", "--colour", "light-blue", "--colours", "light-blue, red"),
        *("--rescan-seconds", "2.5", "--port", "80", "--file", "/x"),
    )
    assert load(Settings, given, {}) == EVERYTHING


def test_every_field_is_an_environment_variable() -> None:
    environment = {
        "NEURON_PLUGIN_NODE_NAME": "n1",
        "NEURON_PLUGIN_CDI": "true",
        "NEURON_PLUGIN_COLOUR": "light-blue",
        "NEURON_PLUGIN_COLOURS": "light-blue,red",
        "NEURON_PLUGIN_RESCAN_SECONDS": "2.5",
        "NEURON_PLUGIN_PORT": "80",
        "NEURON_PLUGIN_FILE": "/x",
    }
    assert load(Settings, {}, environment) == EVERYTHING


def test_every_field_is_a_key_of_the_file_and_is_printed_as_such(tmp_path: Path) -> None:
    assert from_file(tmp_path, as_yaml(EVERYTHING)) == EVERYTHING
    assert from_file(tmp_path, as_yaml(Settings())) == Settings()


def test_flags_win_over_environment_over_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("port: 1\nnode-name: of-file\nrescan-seconds: 3\n")
    environment = {"NEURON_PLUGIN_PORT": "2", "NEURON_PLUGIN_NODE_NAME": "of-environment"}
    effective = load(Settings, flags("--port", "3"), environment, file)
    assert (effective.port, effective.node_name, effective.rescan_seconds) == (3, "of-environment", 3.0)


def test_a_switch_can_be_turned_off_against_the_environment() -> None:
    assert not load(Settings, flags("--no-cdi"), {"NEURON_PLUGIN_CDI": "true"}).cdi


@pytest.mark.parametrize("name", ["NODE_NAME", "CDI", "COLOURS", "PORT", "FILE"])
def test_an_empty_environment_variable_is_as_good_as_none(name: str) -> None:
    assert load(Settings, {}, {f"NEURON_PLUGIN_{name}": ""}) == Settings()


def test_other_environment_variables_and_arguments_are_passed_over() -> None:
    assert load(Settings, {"command": "run", "config": None}, {"PORT": "1", "NEURON_PLUGIN_OTHER": "1"}) == Settings()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("CDI", "maybe", "NEURON_PLUGIN_CDI is 'maybe': Expected `bool`"),
        ("PORT", "x", "NEURON_PLUGIN_PORT is 'x': expected a whole number from 1 to 65535"),
        ("PORT", "0", "NEURON_PLUGIN_PORT is '0': expected a whole number from 1 to 65535"),
        ("PORT", "65536", "expected a whole number from 1 to 65535"),
        ("RESCAN_SECONDS", "0.5", "expected a number of at least 1"),
        ("RESCAN_SECONDS", "nan", "NEURON_PLUGIN_RESCAN_SECONDS is 'nan': expected a number of at least 1"),
        ("PATIENCE", "0", "expected a number above 0, of at most 60"),
        ("COLOUR", "green", "Invalid enum value 'green'; choose among red, light-blue"),
        ("COLOURS", "red,green", "; choose among red, light-blue"),
        ("COLOURS", "red,,", "; choose among red, light-blue"),
    ],
)
def test_an_unusable_environment_variable_is_named_with_its_value_and_what_was_expected(
    name: str, value: str, said: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        load(Settings, {}, {f"NEURON_PLUGIN_{name}": value})
    assert said in str(refused.value)


def test_an_unusable_flag_is_named() -> None:
    with pytest.raises(SettingsError, match="--port is 'x'"):
        load(Settings, flags("--port", "x"), {})


def test_an_unknown_choice_is_refused_by_the_parser(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        flags("--colour", "green")
    assert "choose from 'red', 'light-blue'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot: 1", "has the unknown key 'prot'; known keys: cdi, colour, colours, file"),
        ("node_name: x", "has the unknown key 'node_name'"),
        ("1: x", "has the unknown key '1'"),
        ("port: '80'", "port in "),
        ("port: '80'", "is '80': expected a whole number from 1 to 65535"),
        ("cdi: 1", "cdi in "),
        ("colour: green", "choose among red, light-blue"),
        ("colours: red", "Expected `array`"),
        ("colours: []", "Expected `array` of length >= 1"),
        ("file: 3", "file in "),
        ("file: ''", "is '': expected a Path"),
        ("- port", "holds list, expected settings by name"),
        ("just text", "holds str"),
        ("a: [", "cannot read"),
        ("a: 2026-13-45", "cannot read"),
        ("port: \x00", "cannot read"),
        ("[" * 5000, "cannot read"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_key_and_value(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SettingsError) as refused:
        from_file(tmp_path, text)
    assert said in str(refused.value)
    assert str(tmp_path / "settings.yaml") in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}"])
def test_an_empty_file_sets_nothing(tmp_path: Path, text: str) -> None:
    assert from_file(tmp_path, text) == Settings()


@pytest.mark.parametrize("number", ["3", "3.0", "3e0"])
def test_a_whole_number_of_seconds_is_fine(tmp_path: Path, number: str) -> None:
    environment = {"NEURON_PLUGIN_RESCAN_SECONDS": number}
    assert load(Settings, {}, environment).rescan_seconds == 3.0
    assert from_file(tmp_path, "rescan-seconds: 3").rescan_seconds == 3.0


def test_a_missing_file_and_one_that_is_no_text_are_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot read .*nowhere"):
        read_yaml(tmp_path / "nowhere")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match=r"cannot read .*binary"):
        read_yaml(tmp_path / "binary")


def test_help_gives_description_and_default_and_survives_a_percent_sign(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        flags("--help")
    out = " ".join(capsys.readouterr().out.split())
    assert "use 100% CDI (default: false)" in out
    assert "a file (default: none)" in out
    assert "--rescan-seconds SECONDS how often (default: 10.0)" in out


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (True, "true"), (("a", "b"), "a,b"), (2.5, "2.5"), (Colour.RED, "red"), (Path("/x"), "/x")],
)
def test_a_value_is_written_as_one_would_give_it(value: object, text: str) -> None:
    assert as_text(value) == text


SETTINGS = st.builds(
    Settings,
    node_name=st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=20),
    cdi=st.booleans(),
    colour=st.sampled_from(Colour),
    colours=st.lists(st.sampled_from(Colour), min_size=1).map(tuple),
    rescan_seconds=st.floats(1, 1e9),
    port=st.integers(1, 65535),
    file=st.sampled_from([None, Path("/a b"), Path("x: y")]),
)


@given(SETTINGS)
def test_whatever_is_printed_reads_back_as_the_same(tmp_path_factory: pytest.TempPathFactory, given: Settings) -> None:
    assert from_file(tmp_path_factory.getbasetemp(), as_yaml(given)) == given


def test_the_daemons_defaults_are_those_of_a_node() -> None:
    settings = load(PluginSettings, {}, {})
    assert (settings.cluster, settings.numbering, settings.topology_policy) == (
        True,
        Numbering.AUTO,
        TopologyPolicy.PREFERRED,
    )
    assert [name.resource.value for name in settings.resources] == [
        "aws.amazon.com/neuron",
        "aws.amazon.com/neurondevice",
        "aws.amazon.com/neuroncore",
    ]


def test_the_daemons_resources_are_given_by_their_short_names() -> None:
    settings = load(PluginSettings, {"resources": "neuroncore,neuron"}, {})
    assert settings.resources == (ResourceName.NEURONCORE, ResourceName.NEURON)
