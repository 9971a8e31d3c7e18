"""The workflows of .github: nothing floats, nothing may more than it needs, and what they call exists.

The commands in them are tried with those of the pages (``tests/docs/test_commands.py``).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yaml"))
CI, RELEASE = (ROOT / f".github/workflows/{name}.yaml" for name in ("ci", "release"))

WORKFLOW_KEYS = {"name", "on", "permissions", "concurrency", "jobs"}
JOB_KEYS = {
    "name", "needs", "permissions", "strategy", "runs-on", "timeout-minutes", "container", "steps", "uses",
}  # fmt: skip
STEP_KEYS = {"name", "uses", "with", "run", "env"}
"""Those in use, of the ones that GitHub knows; it refuses or ignores a key that is misspelt."""

WRITES = {("release.yaml", "release"): {"contents", "packages", "id-token"}}
"""Which job may write what: to the release, to the registry, to the signing service."""


def read(file: Path) -> dict[str, Any]:
    """A workflow; YAML 1.1 reads the key ``on`` as true."""
    loaded = yaml.safe_load(file.read_text("utf-8"))
    return {"on" if key is True else key: value for key, value in loaded.items()}


def jobs() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for file in WORKFLOWS:
        for name, job in read(file)["jobs"].items():
            yield file.name, name, job


def steps() -> Iterator[dict[str, Any]]:
    for _, _, job in jobs():
        yield from job.get("steps", ())


def said(file: Path) -> str:
    """All that a workflow runs, in one line."""
    runs = (step.get("run", "") for job in read(file)["jobs"].values() for step in job.get("steps", ()))
    return " ".join(" ".join(runs).replace("\\\n", " ").split())


def test_zizmor_finds_nothing_unsafe() -> None:
    zizmor = shutil.which("zizmor", path=f"{Path(sys.executable).parent}")
    assert zizmor, "it comes with the development dependencies"
    line = [zizmor, "--offline", "--strict-collection", "--persona=pedantic", "--no-progress", str(ROOT / ".github")]
    done = subprocess.run(line, capture_output=True, text=True, check=False)  # noqa: S603 - our own arguments
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_key_is_one_that_github_knows() -> None:
    for file in WORKFLOWS:
        assert read(file).keys() <= WORKFLOW_KEYS, file.name
    for file_name, name, job in jobs():
        assert job.keys() <= JOB_KEYS, f"{file_name}: {name}"
        assert ("steps" in job) != ("uses" in job), f"{file_name}: {name}"
        assert "uses" in job or "timeout-minutes" in job, f"{file_name}: {name} could run for six hours"
    for step in steps():
        assert step.keys() <= STEP_KEYS, step
        assert ("run" in step) != ("uses" in step), step


def test_every_action_is_pinned_to_a_commit_and_says_its_version() -> None:
    for file in WORKFLOWS:
        used = re.findall(r"uses: (\S+)(.*)", file.read_text("utf-8"))
        assert used
        for action, comment in used:
            if action.startswith("./"):
                assert (ROOT / action).is_file()
            else:
                assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", action), action
                assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), action


def test_a_job_may_write_only_what_it_publishes() -> None:
    for file in WORKFLOWS:
        assert read(file)["permissions"] == {}, file.name
    for file_name, name, job in jobs():
        granted = {scope for scope, access in job["permissions"].items() if access == "write"}
        assert granted == WRITES.get((file_name, name), set()), f"{file_name}: {name}"


def test_ci_runs_the_same_command_on_every_supported_python() -> None:
    tests = read(CI)["jobs"]["tests"]
    assert [step["run"] for step in tests["steps"] if "run" in step] == [".ci/run"]
    assert os.access(ROOT / ".ci/run", os.X_OK)
    assert tests["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13", "3.14"]
    assert 'requires-python = ">=3.11"' in (ROOT / "pyproject.toml").read_text("utf-8")


def test_the_conformance_suite_is_typed_as_contributing_says_and_where_the_code_is() -> None:
    contributing = " ".join((ROOT / "CONTRIBUTING.md").read_text("utf-8").replace("\\\n", " ").split())
    on_a_node = contributing.partition(".venv/bin/pytest tests/conformance --kubelet-dir")[2].partition(" ```")[0]
    for word in on_a_node.split():
        assert word in said(CI) or word in {"admin.conf", "NODE"}, word
    mounts = yaml.safe_load((ROOT / ".github/kind.yaml").read_text("utf-8"))["nodes"][0]["extraMounts"]
    assert f"--workdir {mounts[0]['containerPath']} " in said(CI)
    assert "--config .github/kind.yaml" in said(CI)


@pytest.mark.parametrize("command", ["docker buildx build", "nox -s sbom", "python .ci/release.py"])
def test_a_release_is_made_as_contributing_says(command: str) -> None:
    contributing = " ".join((ROOT / "CONTRIBUTING.md").read_text("utf-8").replace("\\\n", " ").split())
    by_hand = contributing.partition("## A release")[2].partition(command)[2].partition(" ```")[0]
    in_ci = said(RELEASE).partition(command)[2]
    assert by_hand
    assert in_ci
    if command == "docker buildx build":
        assert in_ci.startswith(by_hand.partition(" nox ")[0])


def test_a_release_waits_for_ci_and_is_pushed_by_the_printed_commands_alone() -> None:
    release = read(RELEASE)
    assert release["on"] == {"push": {"tags": ["v*"]}}
    assert release["jobs"]["release"]["needs"] == "ci"
    assert release["jobs"]["ci"]["uses"] == "./.github/workflows/ci.yaml"
    assert "workflow_call" in read(CI)["on"]
    assert "> dist/push.sh" in said(RELEASE)
    assert "bash -euxo pipefail dist/push.sh" in said(RELEASE)
    for pushing in ("skopeo copy", "cosign sign", "cosign attest", "helm push"):
        assert pushing not in said(RELEASE), "a second way"


def test_the_page_installs_the_chart_from_where_the_workflow_pushes_it() -> None:
    repository = re.search(r'--repository "(\S+)"', said(RELEASE))
    assert repository
    pushed_to = (
        repository[1].replace("${GITHUB_REPOSITORY_OWNER,,}", "OWNER").rpartition("/")[0] + "/charts/neuron-plugin"
    )
    assert f"helm install neuron-plugin oci://{pushed_to} " in (ROOT / "docs/install.md").read_text("utf-8")
