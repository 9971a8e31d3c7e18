"""A newcomer's path: the README's own lines, typed into a shell in a checkout, lead to a placed and a refused pod."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.inspection.doubles import short_directory

__all__ = ["short_directory"]

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")

COMMAND = re.compile(r"^    (\S.*)$", re.MULTILINE)
LOCKS = sorted((ROOT / "locks").glob("*.txt"))

SEE_IT = README.partition("\n## See it\n")[2].partition("\n## ")[0]
COMMANDS = COMMAND.findall(SEE_IT)
START, *PLAY = COMMAND.findall(README.partition("\n## A cluster to play with\n")[2].partition("\n## ")[0])

MOST_COMMANDS = 5
"""Until a newcomer has seen a pod placed and one refused."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """As after ``make venv``, which takes the network: these tests' environment stands in for what it installs."""
    for file in ("Makefile", "pyproject.toml", *(f"locks/{lock.name}" for lock in LOCKS)):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    scripts = tmp_path / ".venv/bin"
    scripts.mkdir(parents=True)
    _script(scripts / "neuron-plugin", f'exec "{sys.executable}" -m neuron_plugin.cli.main "$@"')
    _script(scripts / "pytest", 'echo "pytest was asked to run $# arguments"')
    (tmp_path / ".venv/.runtime").touch()
    (tmp_path / ".venv/.ready").touch()
    return tmp_path


def _script(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
    path.chmod(0o755)


def environment_of(temporary: Path | None) -> dict[str, str]:
    directory = {"TMPDIR": str(temporary)} if temporary else {}
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", **directory}


def typed(command: str, directory: Path, temporary: Path | None = None) -> str:
    """What a shell prints."""
    environment = environment_of(temporary)
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


def wait_for(log: Path, text: str) -> None:
    ends = time.monotonic() + 90
    while text not in log.read_text("utf-8"):
        assert time.monotonic() < ends, log.read_text("utf-8")
        time.sleep(0.1)


@pytest.mark.timeout(300)
def test_five_commands_lead_to_a_placed_a_refused_and_a_healed_pod_on_the_playground(
    checkout: Path, short_directory: Path
) -> None:
    assert len([START, *PLAY]) <= MOST_COMMANDS
    before = sorted(checkout.rglob("*"))
    log = short_directory / "log"
    with log.open("wb") as output:
        playground = subprocess.Popen(  # noqa: S603 - the README's own line
            ["/bin/sh", "-c", f"exec {START}"], cwd=checkout, env=environment_of(short_directory), stdout=output
        )
    try:
        wait_for(log, "Ready after")
        printed = [typed(command, checkout, short_directory) for command in PLAY]
        (checkout / "printed").unlink()
        assert "pod default/pod-1 runs on trn1-1, NEURON_DEVS: 0,1," in printed[0]
        assert "pod default/pod-2 waits: " in printed[0]
        assert "does not support requests for device: 13." in printed[0]
        assert "device 5 is unhealthy: missing" in printed[1]
        assert "pod default/pod-3 waits: " in printed[2]
        assert "all devices are healthy" in printed[3]
        wait_for(log, "pod default/pod-3: bound to trn1-2")
        assert sorted(checkout.rglob("*")) == before, "nothing is written into the checkout"
    finally:
        playground.send_signal(signal.SIGTERM)
        playground.wait(60)


def test_make_test_runs_the_tests(checkout: Path) -> None:
    assert "make test" in COMMANDS
    assert "pytest --numprocesses auto" in (shown := typed("make test", checkout))
    assert "pytest was asked to run 4 arguments" in shown


def test_make_demo_installs_what_the_program_runs_on_and_not_the_tools(checkout: Path) -> None:
    shutil.rmtree(checkout / ".venv")
    planned = typed("make --dry-run demo", checkout)
    assert {Path(lock).name for lock in re.findall(r"--requirement (\S+)", planned)} == {"runtime.txt", "build.txt"}
    assert "dev.txt" in typed("make --dry-run test", checkout)


def test_a_failing_installation_fails_make(checkout: Path) -> None:
    (checkout / ".venv/.ready").unlink()
    _script(checkout / ".venv/bin/python", "exit 3")
    with pytest.raises(AssertionError, match="Adding the tools of development"):
        typed("make test", checkout)
    assert not (checkout / ".venv/.ready").exists()


def locked(lock: Path) -> set[str]:
    """Each package with its version, its marker and its hashes."""
    return set(re.split(r"\n(?! )", lock.read_text(encoding="utf-8").strip()))


@pytest.mark.parametrize("lock", [lock for lock in LOCKS if lock.name != "dev.txt"], ids=lambda lock: lock.stem)
def test_the_lock_of_development_only_adds_to_what_the_demo_installs(lock: Path) -> None:
    assert len(locked(lock)) > 3
    assert locked(lock) <= locked(ROOT / "locks/dev.txt")
