from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.cli.doubles import Cli, CliProcess

FEW = ("--pods", "400", "--seeds", "2")
SMALL = ("simulate", "cluster", "--nodes", "trn1.32xlarge=4", *FEW)


def report(cli: Cli, *arguments: object) -> Any:
    shown = cli(*SMALL, "-o", "json", *arguments)
    assert shown.status == 0, shown.err
    return json.loads(shown.out)


def test_policies_are_compared_side_by_side_on_the_same_pods(cli: Cli) -> None:
    found = report(cli, "--mix", "train", "--load", "0.85", "--policy", "spread,fgd,ours,ours+moves")
    assert (found["version"], found["pods"], found["runs"], found["load"]) == (1, 400, 2, 0.85)
    assert found["nodes"] == {"trn1.32xlarge": 4}
    assert list(found["policies"]) == ["spread", "fgd", "ours", "ours+moves"]
    refused = {name: each["refused"] for name, each in found["policies"].items()}
    assert refused["ours+moves"] < refused["ours"] < refused["spread"]
    for each in found["policies"].values():
        assert each["refused"] == pytest.approx(sum(each["refusedByRun"]) / 2)
        assert sum(size["pods"] for size in each["byShape"].values()) == 800
        assert 0 < each["utilisation"] < 1
        assert 0 <= each["emptyNodes"] <= 4
    assert found["policies"]["ours"]["movedPods"] == 0 < found["policies"]["ours+moves"]["movedPods"]


def test_a_row_for_each_policy_in_the_order_given(cli: Cli) -> None:
    shown = cli(*SMALL, "--policy", "ours,bound")
    assert [row[0] for row in shown.rows[1:]] == ["POLICY", "ours", "bound"]


def test_equal_seeds_give_equal_documents_in_every_process(
    cli_process: CliProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = []
    for seed in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        documents.append(cli_process(*SMALL, "--policy", "ours-any,ours+moves", "-o", "json").communicate()[0])
    assert documents[0] == documents[1]
    assert "ours+moves" in documents[0]


def test_waiting_pods_are_not_refused_and_their_waiting_is_shown(cli: Cli) -> None:
    each = report(cli, "--waiting", "--policy", "ours")["policies"]["ours"]
    assert each["refused"] == 0 < each["wait"]


def test_a_trace_takes_the_place_of_the_mix(cli: Cli, tmp_path: Path) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text("time,duration,devices\n0,2,16\n1,1,16\n1,1,32\n")
    found = report(cli, "--nodes", "trn1.32xlarge=1", "--trace", trace, "--policy", "ours")
    assert (found["load"], found["mix"], found["pods"], found["runs"]) == (None, {}, 3, 1)
    assert found["policies"]["ours"]["byShape"] == {
        "neuron=16": {"pods": 2, "asked": 48.0, "refusedPods": 1, "refused": 1 / 3, "wait": 0.0},
        "neuron=32": {"pods": 1, "asked": 32.0, "refusedPods": 1, "refused": 1.0, "wait": 0.0},
    }


def test_a_mix_of_ones_own_is_read_from_a_file(cli: Cli, tmp_path: Path) -> None:
    mix = tmp_path / "mix.yaml"
    mix.write_text("neuron=4: 3\nneuroncore=2: 1\n")
    assert set(report(cli, "--mix", mix, "--policy", "ours")["policies"]["ours"]["byShape"]) == {
        "neuron=4",
        "neuroncore=2",
    }


def test_the_drawing_has_a_bar_for_every_policy(cli: Cli, tmp_path: Path) -> None:
    found = report(cli, "--policy", "spread,ours", "--plot", tmp_path / "plot.svg")
    drawing = ET.fromstring((tmp_path / "plot.svg").read_text())  # noqa: S314 - written just now
    texts = [each.text for each in drawing.iter("{http://www.w3.org/2000/svg}text")]
    for name in ("spread", "ours"):
        shapes = found["policies"][name]["byShape"].values()
        share = sum(each["refused"] * each["asked"] for each in shapes) / sum(each["asked"] for each in shapes)
        assert texts[texts.index(name) + 1] == f"{share:.4f}"
    assert "neuron=16" in texts


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--nodes", "trn9.xlarge=2"), "--nodes trn9.xlarge=2: the type is not known"),
        (("--nodes", "trn1.32xlarge"), "expected TYPE=N with N from 1"),
        (("--nodes", "trn1.32xlarge=0"), "expected TYPE=N with N from 1"),
        (("--policy", "best"), "--policy best is not known: expected one of spread, first-fit"),
        (("--policy", "ours+moves=0"), "--policy ours+moves=0 is not known"),
        (("--policy", "ours+"), "--policy ours+ is not known"),
        (("--policy", "bound", "--save", "x"), "--save needs a policy"),
        (
            ("--policy", "bound", "--nodes", "trn1.32xlarge=1,inf2.48xlarge=1"),
            "--policy bound is for nodes of one type",
        ),
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
