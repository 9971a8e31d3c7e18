from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.doubles import Cli, CliProcess

FEW = ("--pods", "400", "--seeds", "2")
SMALL = ("simulate", "cluster", "--nodes", "trn1.32xlarge=4", *FEW)


def report(cli: Cli, *arguments: object) -> Any:
    shown = cli(*SMALL, "-o", "json", *arguments)
    assert shown.status == 0, shown.err
    return json.loads(shown.out)


def test_aws_s_ways_and_ours_are_compared_on_the_same_pods(cli: Cli) -> None:
    found = report(cli, "--mix", "train", "--load", "0.85")
    assert (found["version"], found["pods"], found["runs"], found["load"]) == (1, 400, 2, 0.85)
    assert found["nodes"] == {"trn1.32xlarge": 4}
    assert list(found["policies"]) == ["aws-plugin", "aws-extension", "neuron-plugin", "neuron-plugin+moves"]
    refused = [each["refused"] for each in found["policies"].values()]
    assert refused == sorted(refused, reverse=True)
    for each in found["policies"].values():
        assert each["refused"] == pytest.approx(sum(each["refusedByRun"]) / 2)
        assert sum(size["pods"] for size in each["byShape"].values()) == 800
        assert 0 < each["utilisation"] < 1
        assert 0 <= each["emptyNodes"] <= 4
    assert found["policies"]["neuron-plugin"]["movedPods"] == 0 < found["policies"]["neuron-plugin+moves"]["movedPods"]


def test_all_figures_have_one_unit_and_one_run_has_no_error(cli: Cli) -> None:
    rows = cli(*SMALL, "--seeds", "1").rows[1:]
    assert rows[0][:3] == ["POLICY", "REFUSED", "+-"]
    assert {row[2] for row in rows[1:]} == {"-"}
    assert all(cell.endswith("%") for row in rows[1:] for cell in (*row[1:2], *row[3:]))
    assert report(cli, "--seeds", "1")["policies"]["neuron-plugin"]["refusedStandardError"] is None


def test_equal_seeds_give_equal_documents_in_every_process(
    cli_process: CliProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = []
    for seed in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        documents.append(cli_process(*SMALL, "-o", "json").communicate()[0])
    assert documents[0] == documents[1]
    assert "+moves" in documents[0]


def test_waiting_pods_are_not_refused_and_their_waiting_is_shown(cli: Cli) -> None:
    each = report(cli, "--waiting")["policies"]["neuron-plugin"]
    assert each["refused"] == 0 < each["wait"]


def test_a_trace_takes_the_place_of_the_mix(cli: Cli, tmp_path: Path) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text("time,duration,devices\n0,2,16\n1,1,16\n1,1,32\n")
    found = report(cli, "--nodes", "trn1.32xlarge=1", "--trace", trace)
    assert (found["load"], found["mix"], found["pods"], found["runs"]) == (None, {}, 3, 1)
    assert found["policies"]["neuron-plugin"]["byShape"] == {
        "neuron=16": {"pods": 2, "asked": 48.0, "refusedPods": 1, "refused": 1 / 3, "wait": 0.0},
        "neuron=32": {"pods": 1, "asked": 32.0, "refusedPods": 1, "refused": 1.0, "wait": 0.0},
    }


def test_a_mix_of_ones_own_is_read_from_a_file(cli: Cli, tmp_path: Path) -> None:
    mix = tmp_path / "mix.yaml"
    mix.write_text("neuron=4: 3\nneuroncore=2: 1\n")
    assert set(report(cli, "--mix", mix)["policies"]["neuron-plugin"]["byShape"]) == {"neuron=4", "neuroncore=2"}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--nodes", "trn9.xlarge=2"), "--nodes trn9.xlarge=2: the type is not known"),
        (("--nodes", "trn1.32xlarge"), "expected TYPE=N with N from 1"),
        (("--nodes", "trn1.32xlarge=0"), "expected TYPE=N with N from 1"),
        (("--nodes", "inf2.48xlarge=2"), "--mix train: neuron=16 never fits inf2.48xlarge"),
        (("--mix", "/dev/null"), "--mix /dev/null"),
        (("--trace", "/dev/null", "--nodes", "inf2.48xlarge=2"), "--trace /dev/null: the heading is ''"),
        (("--load", "0"), "'0' is no share above 0"),
        (("--load", "nan"), "'nan' is no share above 0"),
        (("--pods", "0"), "'0' is no count of 1 or more"),
    ],
)
def test_what_cannot_be_simulated_is_said_in_one_line(cli: Cli, arguments: tuple[str, ...], complaint: str) -> None:
    shown = cli(*SMALL, *arguments)
    assert shown.status == 2
    assert complaint in shown.err
    assert len(shown.err.splitlines()) == 1


@pytest.mark.parametrize("text", ["neuron=4: x", "[1]", "gpu=1: 1", "neuron=4: -1", "neuron=4: 0"])
def test_a_mix_that_cannot_be_used_is_refused(cli: Cli, tmp_path: Path, text: str) -> None:
    mix = tmp_path / "mix.yaml"
    mix.write_text(text)
    shown = cli(*SMALL, "--mix", mix)
    assert shown.status == 2
    assert f"--mix {mix}" in shown.err
