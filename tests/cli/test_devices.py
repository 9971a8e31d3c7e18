from __future__ import annotations

import json
from itertools import takewhile

import pytest

from neuron_plugin.cli.devices import changes
from tests.cli.doubles import Cli, CliProcess, Hold
from tests.inspection.doubles import MakeNode


def test_a_row_a_device_with_its_holders(cli: Cli, make_node: MakeNode, hold: Hold) -> None:
    hold(("train", "main", "neurondevice", "2,3"), ("infer", "serve", "neuroncore", "9"))
    shown = cli("devices", "--root", make_node("inf2.24xlarge").root)
    assert (shown.status, shown.err) == (0, "")
    assert shown.rows == [
        ["DEVICE", "CORES", "PRODUCT", "ARCH", "LINKS", "NUMA", "HEALTH", "HOLDERS"],
        ["0", "0-1", "Inferentia2", "NDv3", "1", "1", "healthy", "-"],
        ["1", "2-3", "Inferentia2", "NDv3", "0,2", "1", "healthy", "-"],
        ["2", "4-5", "Inferentia2", "NDv3", "1,3", "0", "healthy", "default/train/main"],
        ["3", "6-7", "Inferentia2", "NDv3", "2,4", "0", "healthy", "default/train/main"],
        ["4", "8-9", "Inferentia2", "NDv3", "3,5", "0", "healthy", "default/infer/serve[9]"],
        ["5", "10-11", "Inferentia2", "NDv3", "4", "1", "healthy", "-"],
    ]


def test_without_a_kubelet_holders_are_unknown_and_that_is_said_once(cli: Cli, make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    shown = cli("devices", "--root", node.root)
    assert shown.status == 0
    assert {row[-1] for row in shown.rows[1:]} == {"?"}
    socket = node.root / "var/lib/kubelet/pod-resources/kubelet.sock"
    assert shown.err.splitlines() == [
        (
            f"neuron-plugin: note: holders are not known: no kubelet at {socket}; "
            "if it is elsewhere, give --pod-resources-socket"
        )
    ]


def test_wide_adds_what_one_needs_to_replace_a_device(cli: Cli, make_node: MakeNode) -> None:
    node = make_node("trn1.2xlarge")
    header, row = cli("devices", "-o", "wide", "--root", node.root).rows
    shown = dict(zip(header, row, strict=True))
    assert shown["SERIAL"].startswith("00000b1c2d3e")
    assert shown["NODE"] == str(node.root / "dev/neuron0")
    assert (shown["MEMORY"], shown["RESET"], shown["DRIVER"]) == ("32Gi", "ready", "2.30.2.0")


def test_the_logical_core_size_decides_the_core_ids(cli: Cli, make_node: MakeNode) -> None:
    rows = cli("devices", "--root", make_node("trn2.48xlarge", logical_core_size=1).root).rows
    assert [row[1] for row in rows[1:3]] == ["0-7", "8-15"]


def test_one_of_sixteen_missing_keeps_every_other_id(cli: Cli, make_node: MakeNode) -> None:
    shown = cli("devices", "--root", make_node("trn1.32xlarge", missing=[3]).root)
    assert shown.rows[4][:7] == ["3", "-", "-", "-", "-", "-", "missing"]
    assert shown.rows[5][:2] == ["4", "8-9"]
    assert "the driver prints no links" in shown.err


@pytest.mark.parametrize("form", ["text", "wide", "neuron-ls"])
def test_no_driver_is_status_one_and_an_empty_stdout(cli: Cli, make_node: MakeNode, form: str) -> None:
    node = make_node("inf2.xlarge")
    node.unload_driver()
    shown = cli("devices", "-o", form, "--root", node.root)
    assert (shown.status, shown.out) == (1, "")
    assert shown.err.startswith("neuron-plugin: no Neuron device: ")
    assert shown.err.count("\n") == 1


def test_json_without_a_driver_is_still_a_document(cli: Cli, make_node: MakeNode) -> None:
    node = make_node("inf2.xlarge")
    node.unload_driver()
    shown = cli("devices", "-o", "json", "--root", node.root)
    assert shown.status == 1
    assert json.loads(shown.out)["devices"] == []


def test_sysfs_and_device_nodes_may_lie_apart(cli: Cli, make_node: MakeNode) -> None:
    node = make_node("inf2.xlarge")
    shown = cli("devices", "--sysfs", node.root / "sys", "--dev", node.root / "dev", "--root", node.root / "sys")
    assert shown.rows[1][6] == "healthy"


def test_a_broken_file_of_types_is_unusable_settings(cli: Cli, make_node: MakeNode) -> None:
    shown = cli("devices", "--root", make_node("inf2.xlarge").root, "--instance-types", "/nowhere.yaml")
    assert (shown.status, shown.out) == (2, "")
    assert "cannot read /nowhere.yaml" in shown.err


def test_only_changes_are_seen() -> None:
    found = iter(["a", "a", "b", "b", "b", "a", "end"])
    pauses: list[None] = []
    seen = takewhile(lambda each: each != "end", changes(lambda: next(found), lambda: pauses.append(None)))
    assert list(seen) == ["a", "b", "a"]
    assert len(pauses) == 6


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
    assert len(out.splitlines()) == 7
    assert "x" * 70 in out.splitlines()[2]
    assert "…" not in out
