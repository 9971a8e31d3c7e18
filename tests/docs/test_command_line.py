"""docs/command-line.md promises the keys that the documents have, and all of them (P82)."""

from __future__ import annotations

import argparse
import io
import json
import re
from collections.abc import Iterable
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest

from neuron_plugin.allocation import Resource
from neuron_plugin.cli import nodes, pods
from neuron_plugin.cli.command import Exit
from neuron_plugin.cli.main import build_parser, main
from neuron_plugin.decision_log import LoggedDecision, Step, explain_decision
from neuron_plugin.inspection.findings import Finding, Report
from neuron_plugin.inspection.reports import (
    DeviceReport,
    DeviceSets,
    HolderReport,
    LinkedDevice,
    MachineReport,
    ProcessReport,
    TopologyReport,
)
from neuron_plugin.monitor.explain import Explanation, GroupDomain, NodeExplanation, SetView
from neuron_plugin.monitor.idle import IdleReport
from neuron_plugin.monitor.plan import MoveReport, PlanReport, PodReport
from neuron_plugin.monitor.repair import DevicePod, RepairReport
from neuron_plugin.monitor.usage import UsageReport, UsageRow
from neuron_plugin.monitor.views import NodeView, PodView
from tests.topology.oracle import TRN1

TEXT = (Path(__file__).resolve().parents[2] / "docs/command-line.md").read_text(encoding="utf-8")
TABLE = TEXT.partition("| command | forms | keys |\n")[2].partition("\n\n")[0].splitlines()[1:]


def keys(document: type[msgspec.Struct]) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(document)]


DECISION = explain_decision(LoggedDecision(0, Step.BOUND, "n", TRN1, Resource.NEURON, TRN1.device_mask(0), "why"))


def printed(*arguments: str) -> Any:
    """The document that a command prints."""
    with redirect_stdout(io.StringIO()) as out:
        assert main([*arguments, "-o", "json"]) == Exit.SUCCESS
    return json.loads(out.getvalue())


TYPES = printed("simulate", "types")
with TemporaryDirectory() as directory:
    NODE = printed("simulate", "node", f"{directory}/node", "--type", "inf2.xlarge", "--no-usage-counters")

CLUSTER = printed("simulate", "cluster", "--pods", "1", "--seeds", "1")
POLICY = CLUSTER["policies"]["neuron-plugin"]

PROMISED: list[tuple[str, Iterable[str]]] = [
    ("devices", keys(MachineReport)),
    ("devices", keys(DeviceReport)),
    ("holders", keys(HolderReport)),
    ("processes", keys(ProcessReport)),
    ("topology", keys(TopologyReport)),
    ("devices", keys(LinkedDevice)),
    ("deviceSets", keys(DeviceSets)),
    ("decisions", ["version", "decisions"]),
    ("decisions", DECISION),
    ("doctor", keys(Report)),
    ("findings", keys(Finding)),
    ("nodes", keys(nodes.NodesReport)),
    ("nodes", keys(NodeView)),
    ("totals", keys(nodes.NodeTotals)),
    ("pods", keys(pods.PodsReport)),
    ("pods", keys(PodView)),
    ("totals", keys(pods.PodTotals)),
    ("gather", ["version", "archive", "files", "notGathered"]),
    ("explain", ["version", *keys(Explanation)]),
    ("nodes", keys(NodeExplanation)),
    ("blocked", keys(SetView)),
    ("domains", keys(GroupDomain)),
    ("plan", keys(PlanReport)),
    ("waiting", keys(PodReport)),
    ("moves", keys(MoveReport)),
    ("idle", keys(IdleReport)),
    ("usage", keys(UsageReport)),
    ("rows", keys(UsageRow)),
    ("simulate types", TYPES),
    ("types", TYPES["types"][0]),
    ("simulate node", NODE),
    ("simulate cluster", CLUSTER),
    ("policies", POLICY),
    ("byShape", next(iter(POLICY["byShape"].values()))),
    ("repair", keys(RepairReport)),
    ("pods", keys(DevicePod)),
    ("cordon", ["version", "node", "disabledBefore", "disabled"]),
    ("ungate", ["version", "released", "refused"]),
    ("version", ["version", "build"]),
    ("uninstall-node", ["version", "cleared", "kept"]),
]


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_p82_the_keys_on_the_page_are_those_of_the_documents_in_their_order() -> None:
    stated = [(re.findall(r"`([^`]+)`", cells(row)[0])[0], re.findall(r"`([^`]+)`", cells(row)[2])) for row in TABLE]
    assert [row for row in stated if row[1]] == [(name, list(promised)) for name, promised in PROMISED]


def outputs(parser: argparse.ArgumentParser, above: str = "") -> dict[str, list[str]]:
    """The forms of every command that has some."""
    found: dict[str, list[str]] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, nested in action.choices.items():
                found |= outputs(nested, f"{above} {name}".strip())
        elif "--output" in action.option_strings:
            found[above] = list(action.choices or ())
    return found


def test_p82_the_page_has_every_command_with_its_forms() -> None:
    stated = {cells(row)[0].strip("`"): cells(row)[1].split(", ") for row in TABLE if cells(row)[1]}
    assert stated == outputs(build_parser())


@pytest.mark.parametrize("status", Exit)
def test_every_exit_status_has_its_row(status: Exit) -> None:
    assert f"\n| {status.value} | " in TEXT.partition("## Exit statuses")[2]
