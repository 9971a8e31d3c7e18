"""A newcomer's path: the README's own lines, typed into a shell in a checkout, lead to a placed and a refused pod."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")

SEE_IT = README.partition("\n## See it\n")[2].partition("\n## ")[0]
COMMANDS = re.findall(r"^    (\S.*)$", SEE_IT, re.MULTILINE)

MOST_COMMANDS = 5
"""Until a newcomer has seen a pod placed and one refused."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """As after ``make venv``, which takes the network: these tests' environment stands in for what it installs."""
    for file in ("Makefile", "pyproject.toml", "locks/dev.txt"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    scripts = tmp_path / ".venv/bin"
    scripts.mkdir(parents=True)
    _script(scripts / "neuron-plugin", f'exec "{sys.executable}" -m neuron_plugin.cli.main "$@"')
    _script(scripts / "pytest", 'echo "pytest was asked to run $# arguments"')
    (tmp_path / ".venv/.ready").touch()
    return tmp_path


def _script(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
    path.chmod(0o755)


def typed(command: str, directory: Path) -> str:
    """What a shell prints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}
    with (directory / "printed").open(
        "w+", encoding="utf-8"
    ) as printed:  # no pipe, which a process left behind could keep open
        done = subprocess.run(  # noqa: S603 - the README's own lines
            ["/bin/sh", "-c", command], cwd=directory, env=environment, stdout=printed, stderr=printed, check=False
        )
    output = (directory / "printed").read_text(encoding="utf-8")
    assert done.returncode == 0, f"{command}: {output[-2000:]}"
    return output


@pytest.mark.timeout(300)  # real daemons, twice, on a machine that may be busy
def test_a_newcomer_sees_a_placed_and_a_refused_pod_within_five_commands(checkout: Path) -> None:
    placed, refused = [], []
    for number, command in enumerate(COMMANDS, 1):
        printed = typed(command, checkout)
        placed += [number] * ("the containers receive:\n" in printed)
        refused += [number] * ("does not support requests for device: 7." in printed)
    assert min(placed) <= MOST_COMMANDS
    assert min(refused) <= MOST_COMMANDS


def test_make_test_runs_the_tests(checkout: Path) -> None:
    assert "make test" in COMMANDS
    assert "pytest was asked to run 0 arguments" in typed("make test", checkout)
