from __future__ import annotations

import argparse
import json

import msgspec
import pytest
import yaml

from neuron_plugin.cli.main import build_parser
from neuron_plugin.cli.output import Form, ObjectForm, add_output_flag, document

WITHOUT_DOCUMENTS = {
    "neuron-plugin completion",  # a script for a shell
    "neuron-plugin demo",  # a story; its log and machine are kept with --keep
    "neuron-plugin extender",  # a daemon: --log-format, --print-config
    "neuron-plugin run",  # as above
    "neuron-plugin simulate",  # its actions have them
    "neuron-plugin simulate fault",  # prints nothing: see what became of it with devices
}


class Told(msgspec.Struct, rename="camel"):
    some_ids: tuple[int, ...]
    who: str | None


@pytest.mark.parametrize("content", [Told((1, 2), None), {"someIds": [1, 2], "who": None}])
def test_json_and_yaml_say_the_same(content: object) -> None:
    assert json.loads(document(Form.JSON, content)) == yaml.safe_load(document(Form.YAML, content))
    assert document(ObjectForm.JSON, content) == document(Form.JSON, content)
    assert document(Form.JSON, content).endswith("\n}\n")


@pytest.mark.parametrize(("forms", "expected"), [(Form, "text"), (ObjectForm, "yaml")])
def test_the_first_form_is_the_default_and_an_unknown_one_is_refused(
    forms: type[Form | ObjectForm], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    add_output_flag(parser, forms)
    assert parser.parse_args([]).output == expected
    with pytest.raises(SystemExit):
        parser.parse_args(["-o", "xml"])
    assert "json" in capsys.readouterr().err


def commands(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """Every command below ``parser`` but the many kinds of a fault."""
    found = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                found += [command, *([] if command.prog.endswith(" DIR") else commands(command))]
    return found


def test_every_command_with_something_to_tell_tells_it_to_scripts() -> None:
    without = {
        command.prog.removesuffix(" DIR")
        for command in commands(build_parser())
        if not any("--output" in action.option_strings for action in command._actions)
    }
    assert {
        command for command in without if not command.startswith("neuron-plugin simulate fault ")
    } == WITHOUT_DOCUMENTS
