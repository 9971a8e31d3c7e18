"""Every command on a page or in a help text can be typed as it stands there.

What needs no cluster is run: ``console`` blocks by ``test_pages``, the README's lines by ``test_readme``, the examples
of the help texts here. Of what needs a cluster as much is tried as goes without: our own arguments are parsed, Helm's
values go through the chart's schema and templates, targets, scripts and paths have to exist.
"""

from __future__ import annotations

import argparse
import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from neuron_plugin.cli.main import build_parser, main
from neuron_plugin.placement.settings import ExtenderSettings
from tests.charts.rendering import CHART, coalesced, render
from tests.docs.shell import Typed, typed

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yaml"))
PAGES = [*ROOT.glob("*.md"), CHART / "README.md", *sorted((ROOT / "docs").glob("*.md")), *WORKFLOWS]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^|\n\n)((?:    \S.*\n)+)")
INLINE = re.compile(r"`((?:neuron-plugin|helm|make|nox|kubectl) [^`]+)`")

ELSEWHERE = {
    *("kubectl", "docker", "source", "jq", "torchrun", "aws", "eksctl", "cosign", "kind", "sudo", "gh", "bash"),
    *("echo", "mkdir"),
}
"""Programs that need a cluster, an account or a host, or are not ours to try."""

EXIT_STATUSES = {0, 1}
"""An example may show a failure; it must not be wrong usage."""

QUICK_SIMULATION = ("--pods", "100", "--seeds", "1")
"""What a simulation of a cluster is given after its arguments: how well it simulates is tried elsewhere."""

NEEDS_MORE = {
    *("run", "extender", "decisions", "gather", "nodes", "pods", "plan", "usage", "explain", "describe", "ungate"),
    *("uninstall-node", "repair", "cordon", "uncordon", "demo", "playground"),
}
"""Commands that need a cluster or a running daemon, or take long and are run elsewhere: their arguments are parsed."""


def shown(page: Path) -> Iterator[Typed]:
    """What a page shows to be typed: in blocks, indented, and inside its sentences; and what a workflow runs."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".yaml":
        jobs = yaml.safe_load(text)["jobs"].values()
        yield from (each for job in jobs for step in job.get("steps", ()) for each in typed(step.get("run", "")))
        return
    prose = FENCE.sub("", text)
    commands = re.compile(r"^(?:\$ )?(?:\.venv/bin/)?(?:\w+=\S+ )?(neuron-plugin|helm|make|nox|kubectl)\b")
    yield from (each for language, block in FENCE.findall(text) if language == "sh" for each in typed(block))
    for block in INDENTED.findall(prose):
        lines = block.replace("\\\n", " ").splitlines()
        yield from (each for line in lines if commands.match(line.strip()) for each in typed(line.strip()))
    yield from (each for command in INLINE.findall(prose) for each in typed(" ".join(command.split())))


COMMANDS = sorted(
    {(each.program, each) for page in PAGES for each in shown(page)},
    key=lambda found: (found[0], found[1].arguments),
)


def of_program(*names: str) -> list[Typed]:
    return [each for program, each in COMMANDS if program in names]


PARSER = build_parser()
OURS = sorted({each.ours() or () for _, each in COMMANDS} - {()})


def test_every_program_on_a_page_is_known_here() -> None:
    tried = {"neuron-plugin", "helm", "make", "nox", "python", "pytest", ".ci/run"}
    assert {program for program, _ in COMMANDS} == tried | ELSEWHERE


@pytest.mark.parametrize("arguments", OURS, ids=" ".join)
def test_p82_our_arguments_on_a_page_are_accepted(arguments: tuple[str, ...]) -> None:
    accepted(arguments)


def accepted(arguments: tuple[str, ...]) -> None:
    """Parse the arguments; a command alone may be a name in a sentence, and lacks what it cannot do without."""
    try:
        PARSER.parse_args([re.sub(r"^ADDRESS$", "10.96.100.45", word) for word in arguments])
    except SystemExit as ended:
        named = len(arguments) == 1 and arguments[0] in commands(PARSER)
        assert named or ended.code == 0, f"neuron-plugin {' '.join(arguments)}"  # noqa: PT017 - --help ends with 0


def commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (action,) = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    return dict(action.choices)


def values_of(arguments: tuple[str, ...]) -> dict[str, Any]:
    """What ``--set`` and ``--set-json`` make, as Helm reads them."""
    values: dict[str, Any] = {}
    for flag, assignment in itertools.pairwise(arguments):
        if flag not in {"--set", "--set-json"}:
            continue
        for part in re.split(r",(?![^{]*\})", assignment):
            path, _, text = part.partition("=")
            *above, last = path.split(".")
            within = values
            for key in above:
                within = within.setdefault(key, {})
            listed = flag == "--set" and text.startswith("{")
            within[last] = text.strip("{}").split(",") if listed else yaml.safe_load(text) if text else text
    return values


HELM = [each for each in of_program("helm") if {"install", "upgrade", "template"} & set(each.arguments)]


@pytest.mark.parametrize("command", HELM, ids=lambda command: command.line[:60])
def test_helm_s_values_on_a_page_are_values_of_the_chart(command: Typed) -> None:
    schema = yaml.safe_load((CHART / "values.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft7Validator(schema).validate(coalesced(values_of(command.arguments)))


RENDERED = [each for each in HELM if "charts/neuron-plugin" in each.arguments]


@pytest.mark.parametrize("command", RENDERED, ids=lambda command: command.line[:60])
def test_the_chart_renders_what_a_page_installs(command: Typed) -> None:
    assert "kind: " in render(values_of(command.arguments))


@pytest.mark.parametrize(
    "command", [each for each in RENDERED if "install" in each.arguments], ids=lambda each: each.line
)
def test_an_installation_on_a_page_names_its_image(command: Typed) -> None:
    assert "image.repository=" in " ".join(command.arguments), "none is published"


@pytest.mark.parametrize("target", sorted({each.arguments[0] for each in of_program("make")} - {"PYTHON=python3.11"}))
def test_targets_of_make_on_a_page_exist(target: str) -> None:
    line = ["make", "--dry-run", "--directory", str(ROOT), target]
    done = subprocess.run(line, capture_output=True, text=True, check=False)  # noqa: S603 - the page's own words
    assert done.returncode == 0, done.stderr


def test_sessions_of_nox_on_a_page_exist() -> None:
    text = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    for command in of_program("nox"):
        session = command.arguments[command.arguments.index("-s") + 1].replace("-", "_")
        assert re.search(rf"^def {session}\(", text, re.MULTILINE), command.line


@pytest.mark.parametrize("command", of_program("python"), ids=lambda command: command.line)
def test_scripts_on_a_page_take_what_they_are_given(command: Typed) -> None:
    line = [sys.executable, *command.arguments, "--help"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603 - the page's own words
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", of_program("pytest"), ids=lambda command: command.line[:60])
def test_what_pytest_is_given_on_a_page_exists(command: Typed) -> None:
    options = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("conftest.py"))
    for word in command.arguments:
        if word.startswith("--"):
            assert f'"{word}"' in options, command.line
        elif word.startswith("tests/"):
            assert (ROOT / word).exists(), command.line


def examples() -> Iterator[Typed]:
    """The lines to copy of every command's help, in their order."""
    for parser in _all_parsers(PARSER):
        after = (parser.epilog or "").partition("examples:\n")[2].partition("\n\n")[0]
        yield from (each for line in after.splitlines() for each in typed(line.strip()))


def _all_parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for nested in action.choices.values():
                yield from _all_parsers(nested)


def test_p82_an_extender_is_asked_on_the_port_that_wants_no_certificate() -> None:
    ports = {port for page in PAGES for port in re.findall(r"--extender https?://[\w.-]+:(\d+)", page.read_text())}
    assert ports == {str(ExtenderSettings().health_port)}


@pytest.mark.timeout(180)  # writes four machines with all their files
def test_p82_the_examples_of_every_help_text_can_be_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["simulate", "node", "./trn1", "--type", "trn1.32xlarge"]) == 0
    (tmp_path / "demo").symlink_to(tmp_path)  # what 'demo --keep ./demo' leaves
    (tmp_path / "node-1").symlink_to("trn1")
    ran = 0
    for example in examples():
        arguments = example.ours()
        if arguments is None or arguments[:4] == ("simulate", "node", "./trn1", "--type"):
            continue
        accepted(arguments)
        if arguments[0] in NEEDS_MORE or {"--watch", "--client-ca", "--config", "trn1-2"} & set(arguments):
            continue
        less = QUICK_SIMULATION if arguments[:2] == ("simulate", "cluster") else ()
        assert main([*arguments, *less]) in EXIT_STATUSES, f"{example.line}: {capsys.readouterr().err}"
        ran += 1
    assert ran >= 25
