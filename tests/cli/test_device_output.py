from __future__ import annotations

import json
import sys

import msgspec
import pytest
import yaml

from neuron_plugin.cli.command import CommandError
from neuron_plugin.cli.device_output import Form, Sight, show, watch
from neuron_plugin.inspection.devices import report_of
from neuron_plugin.inspection.holders import Holders
from neuron_plugin.simulation import SimulatedNode
from tests.inspection.cases import looked
from tests.inspection.doubles import MakeNode

NOTE = "the kubelet is away"


def sight(node: SimulatedNode) -> Sight:
    seen = looked(node)
    return Sight(seen, report_of(seen, Holders(None, NOTE)))


@pytest.fixture
def three_sights(make_node: MakeNode) -> list[Sight]:
    """A device breaks, then the driver goes."""
    node = make_node("inf2.24xlarge")
    sights = [sight(node)]
    node.set_ecc(4, sram=1)
    sights.append(sight(node))
    node.unload_driver()
    return [*sights, sight(node)]


@pytest.mark.parametrize("form", Form)
def test_every_form_shows_every_device(make_node: MakeNode, capsys: pytest.CaptureFixture[str], form: Form) -> None:
    shown = sight(make_node("inf2.24xlarge"))
    assert show(form, shown) == 0
    out = capsys.readouterr().out
    match form:
        case Form.JSON:
            assert json.loads(out) == json.loads(msgspec.json.encode(shown.report))
        case Form.YAML:
            assert yaml.safe_load(out) == json.loads(msgspec.json.encode(shown.report))
        case Form.NEURON_LS:
            assert [device["neuron_device"] for device in json.loads(out)] == [0, 1, 2, 3, 4, 5]
        case _:
            assert [line.split()[0] for line in out.splitlines()] == ["DEVICE", "0", "1", "2", "3", "4", "5"]


@pytest.mark.parametrize("form", [Form.TEXT, Form.WIDE, Form.NEURON_LS])
def test_notes_go_to_standard_error_where_the_form_has_no_place_for_them(
    make_node: MakeNode, capsys: pytest.CaptureFixture[str], form: Form
) -> None:
    show(form, sight(make_node("inf2.xlarge")))
    captured = capsys.readouterr()
    assert NOTE not in captured.out
    assert captured.err == f"neuron-plugin: note: {NOTE}\n"


@pytest.mark.parametrize("form", [Form.JSON, Form.YAML])
def test_notes_are_inside_the_documents(make_node: MakeNode, capsys: pytest.CaptureFixture[str], form: Form) -> None:
    show(form, sight(make_node("inf2.xlarge")))
    captured = capsys.readouterr()
    assert yaml.safe_load(captured.out)["notes"] == [NOTE]
    assert captured.err == ""


@pytest.mark.parametrize("form", Form)
def test_no_device_is_trouble_in_every_form(
    three_sights: list[Sight], capsys: pytest.CaptureFixture[str], form: Form
) -> None:
    with pytest.raises(CommandError, match=r"no Neuron device: .*the Neuron driver is not loaded"):
        show(form, three_sights[-1])
    out = capsys.readouterr().out
    if form in {Form.JSON, Form.YAML}:
        assert yaml.safe_load(out)["devices"] == []
    else:
        assert out == "", "neuron-ls, too, prints nothing without a device"


def test_devices_that_cannot_be_used_are_shown_though_there_is_none(
    make_node: MakeNode, capsys: pytest.CaptureFixture[str]
) -> None:
    node = make_node("inf2.xlarge")
    node.set_attribute(0, "core_count", "x")
    with pytest.raises(CommandError, match="none of 1 devices can be used"):
        show(Form.TEXT, sight(node))
    assert "skipped" in capsys.readouterr().out


def test_a_watch_prints_one_json_document_a_line(three_sights: list[Sight], capsys: pytest.CaptureFixture[str]) -> None:
    watch(Form.JSON, three_sights)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [len(line["devices"]) for line in lines] == [6, 6, 0]
    assert [line["devices"][4]["health"] for line in lines[:2]] == ["healthy", "unhealthy"]
    assert "not loaded" in lines[2]["absence"]


def test_a_watch_prints_yaml_documents(three_sights: list[Sight], capsys: pytest.CaptureFixture[str]) -> None:
    watch(Form.YAML, three_sights)
    assert [len(each["devices"]) for each in yaml.safe_load_all(capsys.readouterr().out)] == [6, 6, 0]


def test_a_watch_in_the_shape_of_neuron_ls_shows_that_all_are_gone(
    three_sights: list[Sight], capsys: pytest.CaptureFixture[str]
) -> None:
    watch(Form.NEURON_LS, three_sights)
    assert [len(json.loads(line)) for line in capsys.readouterr().out.splitlines()] == [6, 6, 0]


def test_tables_of_a_watch_are_a_blank_line_apart(
    three_sights: list[Sight], capsys: pytest.CaptureFixture[str]
) -> None:
    watch(Form.TEXT, three_sights[:2])
    first, second = capsys.readouterr().out.split("\n\n")
    assert first.startswith("DEVICE")
    assert "1 uncorrected SRAM error" in second


def test_a_watch_tells_a_note_once_and_again_after_it_was_gone(
    make_node: MakeNode, capsys: pytest.CaptureFixture[str]
) -> None:
    noted = sight(make_node("inf2.xlarge"))
    quiet = Sight(noted.machine, msgspec.structs.replace(noted.report, notes=()))
    watch(Form.TEXT, [noted, noted, quiet, noted])
    assert capsys.readouterr().err.count(NOTE) == 2


def test_a_watch_on_a_terminal_draws_over_the_last_table(
    three_sights: list[Sight], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    watch(Form.TEXT, three_sights)
    screens = capsys.readouterr().out.split("\x1b[2J\x1b[H")
    assert len(screens) == 4
    assert all(screen.endswith("Ctrl-C ends.\n") for screen in screens[1:])
    assert "DEVICE" not in screens[3]
