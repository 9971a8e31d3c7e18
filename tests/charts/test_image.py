"""The Dockerfile, as far as reading it proves something: no container engine is needed, or used, here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from neuron_plugin import __version__
from neuron_plugin.build import REVISION_FILE
from tests.charts.rendering import CHART, REPOSITORY

TEXT = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")
INSTRUCTIONS = re.sub(r"^\s*#.*\n", "", TEXT, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
BUILD, FINAL = (part.splitlines() for part in "\n".join(INSTRUCTIONS).split("FROM ${PYTHON}")[1:])


def hadolint() -> str | None:
    """The linter's binary: of this environment, or of the machine."""
    return shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")


@pytest.mark.skipif(hadolint() is None, reason="no hadolint here: it comes with the development dependencies")
def test_hadolint_has_nothing_to_say() -> None:
    command = [str(hadolint()), str(REPOSITORY / "Dockerfile")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own arguments
    assert (done.returncode, done.stdout) == (0, "")


def test_both_stages_stand_on_one_base_pinned_by_digest() -> None:
    bases = [line.split()[1] for line in INSTRUCTIONS if line.startswith("FROM ")]
    assert bases == ["${PYTHON}", "${PYTHON}"]
    assert re.search(r"^ARG PYTHON=python:3\.\d+\.\d+-slim-trixie@sha256:[0-9a-f]{64}$", TEXT, re.MULTILINE)


def test_paths_name_the_python_of_the_base() -> None:
    (minor,) = re.findall(r"^ARG PYTHON=python:(3\.\d+)\.", TEXT, re.MULTILINE)
    assert set(re.findall(r"python(3\.\d+)/", TEXT)) == {minor}


def test_dependencies_come_with_hashes_and_as_wheels_only() -> None:
    installs = [line for line in INSTRUCTIONS if " install " in line]
    assert installs
    for line in installs:
        assert "--require-hashes" in line
        assert "--requirement /src/locks/runtime.txt" in line
    assert any("PIP_ONLY_BINARY=:all:" in line for line in BUILD)


def test_the_final_stage_installs_nothing_and_holds_no_installer() -> None:
    runs = [line for line in FINAL if line.startswith("RUN")]
    assert not [
        line for line in runs if re.search(r"apt|curl|wget|install(?!e)(?! --yes)", line.replace("uninstall", ""))
    ]
    assert any("pip uninstall --yes pip" in line for line in runs)


def test_the_package_and_the_standard_library_have_bytecode() -> None:
    """A container can write none: its root is read-only."""
    trees = re.findall(r"-m compileall -q --invalidation-mode unchecked-hash (\S+)", TEXT)
    assert [tree.rstrip("0123456789.") for tree in trees] == ["/opt/neuron-plugin/lib", "/usr/local/lib/python"]


def test_the_image_does_not_run_as_root_by_itself() -> None:
    assert [line for line in FINAL if line.startswith("USER")] == ["USER 65532:65532"]
    assert 'ENTRYPOINT ["neuron-plugin"]' in FINAL


def test_the_builder_is_sent_what_is_copied_and_nothing_else() -> None:
    copied = {line.split()[1].rstrip("/") for line in BUILD if line.startswith("COPY")}
    lines = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert lines[1] == "*"
    assert {line.removeprefix("!") for line in lines if line.startswith("!")} == copied
    for source in copied:
        assert (REPOSITORY / source).exists()


def test_image_and_chart_are_of_the_version_of_the_package() -> None:
    assert f'org.opencontainers.image.version="{__version__}"' in TEXT
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["appVersion"] == __version__
    assert chart["version"] == __version__


def test_the_revision_is_written_where_the_program_reads_it() -> None:
    (line,) = (line for line in BUILD if "${REVISION}" in line)
    assert line.endswith(f"/site-packages/{REVISION_FILE.relative_to(REPOSITORY)}")
    assert line.startswith("RUN printf '%s\\n' ")
    for stage in (BUILD, FINAL):
        assert "ARG REVISION=unknown" in stage


def test_the_command_that_the_image_writes_is_the_package_s_own() -> None:
    scripts = re.search(
        r'neuron-plugin = "([\w.]+):(\w+)"', (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    )
    assert scripts
    assert f"'from {scripts[1]} import {scripts[2]}' 'sys.exit({scripts[2]}())'" in TEXT


SET_OUTSIDE = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "CONTAINER_TOOL", "PLATFORMS", "IMAGE_FLAGS", "REGISTRY"}
"""What ``make test`` leaves for a make below it, and what its user may have set."""


def planned(*arguments: str) -> str:
    command = [shutil.which("make") or "make", "--no-print-directory", "--dry-run", "image", *arguments]
    outside = {name: value for name, value in os.environ.items() if name not in SET_OUTSIDE}
    done = subprocess.run(command, cwd=REPOSITORY, env=outside, capture_output=True, text=True, check=True)  # noqa: S603 - our own arguments
    return done.stdout


HERE = f"neuron-plugin:{__version__}"
THERE = f"registry.example.com/team/{HERE}"


@pytest.mark.parametrize("tool", ["docker", "podman", "buildah"])
def test_make_image_builds_for_this_machine_with_any_tool(tool: str) -> None:
    revision = '--build-arg REVISION="$(git rev-parse HEAD)"'
    assert planned(f"CONTAINER_TOOL={tool}") == f"{tool} build {revision}  --tag {HERE} .\n"
    assert f"docker build {revision} --pull --tag {HERE} ." in planned("IMAGE_FLAGS=--pull")


def test_make_image_builds_for_this_machine_or_for_a_registry() -> None:
    assert "push" not in planned()
    pushed = planned("REGISTRY=registry.example.com/team")
    assert pushed.startswith("docker buildx build --build-arg REVISION=")
    assert pushed.endswith(f"--platform linux/amd64,linux/arm64 --tag {THERE} --push .\n")


@pytest.mark.parametrize("tool", ["podman", "/usr/bin/buildah"])
def test_make_image_pushes_one_list_of_all_platforms_without_docker(tool: str) -> None:
    settings = [f"CONTAINER_TOOL={tool}", "REGISTRY=registry.example.com/team", "PLATFORMS=linux/arm64"]
    removed, built, pushed = planned(*settings).splitlines()
    assert removed.startswith(f"{tool} manifest rm {THERE} "), "a build adds to the list that is there"
    assert removed.endswith("|| true"), "the first time there is none"
    assert built.endswith(f"--platform linux/arm64 --manifest {THERE} .")
    assert pushed == f"{tool} manifest push --all {THERE} docker://{THERE}"
