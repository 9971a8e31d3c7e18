"""The pages that show what became of manifests on a playground: their commands are typed there, in order.

A page begins on an empty playground with the nodes that it has by default; those that only add pods take turns on one.
What a page shows below a command must be in the command's output ("..." for what is left out), but for what a
controller's or the API server's names end with.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from neuron_plugin.cli.main import main
from tests.docs.test_commands import EXIT_STATUSES, OURS
from tests.docs.test_pages import DOCS, PLAYED, saved_files, steps
from tests.support.playground import REPOSITORY, Playground

SUFFIX = re.compile(r"-[0-9a-f]{5}(?=[ ,:]|$)")
"""Of a pod that a controller has made."""


@pytest.fixture
def playground() -> Iterator[Playground]:
    """In the directory that commands without --directory look at, if TMPDIR says so."""
    with Playground(in_tmpdir=True) as up:
        yield up


class Typed:
    """A shell in which the page's files are, and the playground is found."""

    def __init__(self, playground: Playground, directory: Path) -> None:
        self._directory, self._playground = directory, playground
        program = directory / "bin/neuron-plugin"
        program.parent.mkdir(parents=True)
        code = f"import sys; sys.argv[0] = '{program}'; from neuron_plugin.cli.main import main; sys.exit(main())"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{code}" "$@"\n', "utf-8")
        program.chmod(0o755)
        self._environment = {
            **os.environ,
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
            "TMPDIR": str(playground.directory.parent),
            "KUBECONFIG": str(playground.directory / "kubeconfig"),
        }

    def __call__(self, line: str) -> tuple[int, set[str]]:
        """The exit status and the lines that are printed."""
        done = subprocess.run(  # noqa: S603 - the page's own lines
            ["/bin/sh", "-c", line],
            cwd=self._directory, env=self._environment, capture_output=True, text=True, check=False, timeout=90,
        )  # fmt: skip
        printed = done.stdout + done.stderr
        if line.startswith("kubectl delete"):
            self._playground.wait_until_freed()  # a reader types more slowly than that
        return done.returncode, {plain(each) for each in printed.splitlines()}


def plain(line: str) -> str:
    """A line without what is different each time."""
    line = line.removesuffix(" from default namespace")  # kubectl says it from 1.34 on
    return re.sub(r"\s+", " ", SUFFIX.sub("-*", line)).strip()


def shows_what_happens(page: Path, playground: Playground, directory: Path) -> bool:
    """Type a page's commands; false if kubectl is missing, which ends the page early."""
    typed = Typed(playground, directory)
    for name, text in saved_files(page).items():
        (directory / name).write_text(text)
    for step in steps(page):
        if " kubectl " in f" {step.line} " and not shutil.which("kubectl"):
            return False
        status, lines = typed(step.line)
        assert status == step.status, f"{page.name}: {step.line}: {lines}"
        missing = [each for each in step.shown if plain(each) not in lines]
        assert not missing, f"{page.name}: {step.line}: {lines}"
    return True


BREAKING = [DOCS / "eks.md", DOCS / "repair.md"]
"""They cordon and break what the next page would find."""


@pytest.mark.timeout(300)  # real daemons on a machine that may be busy
@pytest.mark.parametrize(
    "pages",
    [[page for page in PLAYED if page not in BREAKING], *([page] for page in BREAKING)],
    ids=["platforms", *(page.stem for page in BREAKING)],
)
def test_pages_show_what_happens_on_a_playground(pages: list[Path], playground: Playground, tmp_path: Path) -> None:
    cut_short = []
    for page in pages:
        playground.clear()
        if not shows_what_happens(page, playground, tmp_path / page.stem):
            cut_short.append(page.name)
    if cut_short:
        pytest.skip(f"kubectl is not installed, which these pages need: {cut_short}")


FROM_A_DESK = {
    *("nodes", "pods", "plan", "usage", "explain", "describe", "repair", "gather"),
    *("cordon", "uncordon", "ungate", "uninstall-node"),
}
"""What asks a cluster; placeholders such as NODE are names that it does not have."""


@pytest.mark.timeout(180)
def test_every_command_that_asks_a_cluster_is_answered(
    playground: Playground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(playground.directory / "kubeconfig"))
    playground.run("run", "--ask", "neuron=16", "--ask", "neuron=13")
    asked = [each for each in OURS if each[0] in FROM_A_DESK and each[1:]]
    for arguments in asked:
        if not {"--watch", "--extender", "--kubeconfig", "--file"} & set(arguments):
            assert main(list(arguments)) in EXIT_STATUSES, f"{arguments}: {capsys.readouterr().err}"
    assert len(asked) >= 25
