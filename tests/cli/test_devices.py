from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import yaml

from neuron_plugin.cli.command import CommandError, Form
from neuron_plugin.cli.devices import device_lines, show_once, title_of, watch
from neuron_plugin.inspection.holders import Holders
from neuron_plugin.inspection.reports import (
    DeviceReport,
    Health,
    HolderReport,
    MachineReport,
    machine_report,
)
from neuron_plugin.simulation import SimulatedNode
from tests.cli.doubles import Cli, CliProcess
from tests.inspection.cases import looked
from tests.inspection.doubles import MakeNode


def test_a_watch_shows_the_next_fault(cli_process: CliProcess, make_node: MakeNode) -> None:
    node = make_node("inf2.xlarge")
    with cli_process("devices", "--root", node.root, "-o", "json", "--watch") as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        node.set_ecc(0, sram=1)
        second = json.loads(process.stdout.readline())
        process.terminate()
    assert [each["devices"][0]["health"] for each in (first, second)] == ["healthy", "unhealthy"]


def test_a_pipe_gets_plain_columns_of_any_width(cli_process: CliProcess, make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    node.set_attribute(1, "core_count", "x" * 70)
    with cli_process("devices", "-o", "wide", "--root", node.root) as process:
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert len(out.splitlines()) == 8
    assert "x" * 70 in out.splitlines()[3]
    assert "…" not in out


NOTE = "the kubelet is away"


def report_on(node: SimulatedNode) -> MachineReport:
    return machine_report(looked(node), Holders(None, NOTE))


@pytest.fixture
def three_reports(make_node: MakeNode) -> list[MachineReport]:
    """A device breaks, then the driver goes."""
    node = make_node("inf2.24xlarge")
    reports = [report_on(node)]
    node.set_ecc(4, sram=1)
    reports.append(report_on(node))
    node.unload_driver()
    return [*reports, report_on(node)]


@pytest.mark.parametrize("form", Form)
def test_documents_have_devices_and_notes_and_tables_the_devices_alone(
    three_reports: list[MachineReport], capsys: pytest.CaptureFixture[str], form: Form
) -> None:
    is_document = form in {Form.JSON, Form.YAML}
    show_once(form, three_reports[0])
    shown = capsys.readouterr()
    if is_document:
        assert yaml.safe_load(shown.out) == json.loads(msgspec.json.encode(three_reports[0]))
        assert (yaml.safe_load(shown.out)["notes"], shown.err) == ([NOTE], "")
    else:
        title, *rows = shown.out.splitlines()
        assert title.startswith("inf2.24xlarge: 6 devices (Inferentia2), ")
        assert [row.split()[0] for row in rows] == ["DEVICE", "0", "1", "2", "3", "4", "5"]
        assert NOTE not in shown.out
        assert shown.err == f"neuron-plugin: note: {NOTE}\n" or form not in {Form.TEXT, Form.WIDE}

    with pytest.raises(CommandError, match=r"no Neuron device: .*the Neuron driver is not loaded"):
        show_once(form, three_reports[-1])
    out = capsys.readouterr().out
    assert yaml.safe_load(out)["devices"] == [] if is_document else out == ""


def test_devices_that_cannot_be_used_are_shown_though_there_is_none(
    make_node: MakeNode, capsys: pytest.CaptureFixture[str]
) -> None:
    node = make_node("inf2.xlarge")
    node.set_attribute(0, "core_count", "x")
    with pytest.raises(CommandError, match="none of 1 devices can be used"):
        show_once(Form.TEXT, report_on(node))
    assert "skipped" in capsys.readouterr().out


def test_a_watch_prints_one_json_document_a_line(
    three_reports: list[MachineReport], capsys: pytest.CaptureFixture[str]
) -> None:
    watch(Form.JSON, three_reports)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [len(line["devices"]) for line in lines] == [6, 6, 0]
    assert [line["devices"][4]["health"] for line in lines[:2]] == ["healthy", "unhealthy"]
    assert "not loaded" in lines[2]["absence"]


def test_a_watch_prints_changes_only(three_reports: list[MachineReport], capsys: pytest.CaptureFixture[str]) -> None:
    one, other, _ = three_reports
    watch(Form.JSON, [one, one, other, other, other, one])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["devices"][4]["health"] for line in lines] == ["healthy", "unhealthy", "healthy"]


def test_a_watch_prints_yaml_documents(three_reports: list[MachineReport], capsys: pytest.CaptureFixture[str]) -> None:
    watch(Form.YAML, three_reports)
    assert [len(each["devices"]) for each in yaml.safe_load_all(capsys.readouterr().out)] == [6, 6, 0]


def test_tables_of_a_watch_are_a_blank_line_apart(
    three_reports: list[MachineReport], capsys: pytest.CaptureFixture[str]
) -> None:
    watch(Form.TEXT, three_reports[:2])
    first, second = capsys.readouterr().out.split("\n\n")
    assert first.startswith("inf2.24xlarge: 6 devices")
    assert "1 uncorrected SRAM error" in second


def test_a_watch_prints_a_note_once_and_again_after_it_was_gone(
    make_node: MakeNode, capsys: pytest.CaptureFixture[str]
) -> None:
    noted = report_on(make_node("inf2.xlarge"))
    quiet = msgspec.structs.replace(noted, notes=())
    watch(Form.TEXT, [noted, noted, quiet, noted])
    assert capsys.readouterr().err.count(NOTE) == 2


def test_a_watch_on_a_terminal_draws_over_the_last_table(
    three_reports: list[MachineReport], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    watch(Form.TEXT, three_reports)
    screens = capsys.readouterr().out.split("\x1b[2J\x1b[H")
    assert len(screens) == 4
    assert all(screen.endswith("Ctrl-C ends.\n") for screen in screens[1:])
    assert "DEVICE" not in screens[3]


DEVICE = DeviceReport(id=1, node="/dev/neuron1", health=Health.HEALTHY, cores=(2, 3), holders=())


def machine(*devices: DeviceReport, **changes: object) -> MachineReport:
    report = MachineReport(
        instance_type="inf2.24xlarge",
        topology="line",
        device_count=6,
        cores_per_device=2,
        logical_core_size=1,
        driver_version="2.26.5.0",
        links_from="driver",
        devices=devices,
        holders_known=True,
    )
    return msgspec.structs.replace(report, **changes)


def rows_of(report: MachineReport) -> list[dict[str, str]]:
    headings, *rows = ["".join(text for text, _ in line).split() for line in device_lines(Form.TEXT, report)[1:]]
    return [dict(zip(headings, row, strict=True)) for row in rows]


def shown(device: DeviceReport, form: Form = Form.WIDE) -> dict[str, tuple[str, str]]:
    """Each cell with its style, by heading; ``-`` is an empty cell."""
    _, headings, cells = device_lines(form, machine(device))
    filled = [segment for segment in cells if segment[0].strip()]
    return dict(zip((text for text, _ in headings if text.strip()), filled, strict=True))


def cell(heading: str, device: DeviceReport) -> str:
    text = shown(device)[heading][0]
    return "" if text == "-" else text


def holder(container: str, *cores: int) -> HolderReport:
    return HolderReport("ml", "train", container, "aws.amazon.com/neuroncore", cores)


def test_the_reasons_come_last_and_only_where_there_are_any() -> None:
    broken = msgspec.structs.replace(DEVICE, reasons=("a", "b"))
    assert device_lines(Form.TEXT, machine(DEVICE, broken))[1][-1][0] == "REASON"
    assert cell("REASON", broken) == "a; b"


def test_a_device_that_is_not_there_has_no_unknown_holders() -> None:
    assert cell("HOLDERS", DeviceReport(id=1, node="/dev/neuron1", health=Health.MISSING)) == ""


def test_every_state_of_health_has_a_colour() -> None:
    styles = {health: shown(msgspec.structs.replace(DEVICE, health=health))["HEALTH"][1] for health in Health}
    assert styles[Health.HEALTHY] == "green"
    assert all("red" in styles[health] for health in (Health.UNHEALTHY, Health.SKIPPED, Health.MISSING))


CHANGES: list[dict[str, Any]] = [
    {},
    {"holders": (holder("a", 2),)},
    {"holders": (holder("a", 2, 3), holder("b", 3))},
    {"health": Health.UNHEALTHY},
    {"disabled": True},
]
"""One device is free as a whole and one in part; the others are taken or not to be had."""
FIVE = [msgspec.structs.replace(DEVICE, product="Inferentia2", **change) for change in CHANGES]
COMMON = "2 cores each (LNC 1), line, driver 2.26.5.0"


@pytest.mark.parametrize(
    ("report", "title"),
    [
        (
            machine(DEVICE),
            "inf2.24xlarge: 1 of 6 devices, 2 cores each (LNC 1), line, driver 2.26.5.0; 1 device and 2 cores free",
        ),
        (
            machine(*FIVE, device_count=5),
            f"inf2.24xlarge: 5 devices (Inferentia2), {COMMON}; 1 device and 3 cores free",
        ),
        (
            machine(DEVICE, device_count=1, holders_known=False),
            "inf2.24xlarge: 1 device, 2 cores each (LNC 1), line, driver 2.26.5.0",
        ),
        (
            machine(DEVICE, instance_type="", driver_version=None, device_count=1, cores_per_device=1),
            "unknown type: 1 device, 1 core each (LNC 1), line, driver unknown; 1 device and 2 cores free",
        ),
    ],
)
def test_the_title_is_the_machine_in_one_line(report: MachineReport, title: str) -> None:
    assert title_of(report) == title


def test_a_device_out_of_service_is_called_disabled_unless_it_is_broken(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    node.set_ecc(1, sram=1)
    report = machine_report(replace(looked(node), disabled=(1, 3)), Holders(None))
    shown = {row[0][0]: [text for text, _ in row] for row in device_lines(Form.TEXT, report)}
    headings = shown["DEVICE"]
    assert shown["1"][headings.index("HEALTH")] == "unhealthy"
    assert shown["3"][headings.index("HEALTH")] == "disabled"
    assert shown["3"][-1] == "disabled by the node's annotation neuron-plugin.io/disable-devices"
    assert [device.id for device in report.devices if device.disabled] == [1, 3]


def test_processes_that_have_a_device_open_are_shown_when_asked_for(cli: Cli, make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    with (node.root / "dev/neuron1").open("rb"):
        asked = cli("devices", "--processes", "--root", node.root, "-o", "json")
        table = cli("devices", "--processes", "--root", node.root)
    plain = cli("devices", "--root", node.root, "-o", "json")

    devices = json.loads(asked.out)["devices"]
    assert [len(device["processes"]) for device in devices] == [0, 1, 0, 0, 0, 0]
    assert (devices[1]["processes"][0]["pid"], devices[1]["processes"][0]["podUid"]) == (os.getpid(), "")
    assert table.rows[1][-1] == "PROCESSES"
    assert table.rows[3][-1].startswith(f"{os.getpid()}:")
    assert table.rows[2][-1] == "-"
    assert {device["processes"] for device in json.loads(plain.out)["devices"]} == {None}


def test_use_is_measured_and_memory_shown_if_that_is_asked_for(
    cli: Cli, make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make_node("inf2.xlarge", work_counters=True)
    node.set_busy(0, 50)
    monkeypatch.setattr("time.sleep", lambda seconds: node.work(1e6 * seconds, held={0}))
    shown = cli("devices", "--use", "--root", node.root)
    header, row = shown.rows[1:]
    measured = dict(zip(header, row, strict=True))
    assert measured["USE"] == "100%", "as much was executed while no time went by"
    assert measured["USED-MEMORY"] == "12.0Gi"
    assert "USE" not in cli("devices", "--root", node.root).rows[1]


def test_with_an_older_driver_the_use_is_unknown_and_the_memory_is_not(
    cli: Cli, make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make_node("inf2.xlarge", work_counters=True, driver_version="2.28.0.0")
    node.work(1, held={0})
    monkeypatch.setattr("time.sleep", lambda _: None)
    shown = cli("devices", "--use", "--root", node.root)
    header, row = shown.rows[1:]
    measured = dict(zip(header, row, strict=True))
    assert (measured["USE"], measured["USED-MEMORY"]) == ("?", "12.0Gi")
    assert "the use is not known before driver 2.30.2" in shown.err


def test_the_use_of_a_device_that_no_pod_has_is_no_riddle() -> None:
    held = msgspec.structs.replace(DEVICE, holders=(holder("main", 2, 3),))
    report = machine(msgspec.structs.replace(held, busy_percent=5, used_memory_bytes=2**30), DEVICE, held)
    uses = [row["USE"] for row in rows_of(report)]
    assert uses == ["5%", "-", "?"]
