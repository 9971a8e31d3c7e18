"""Every chore of the project, one session each; `make` and CI run the same ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import nox

nox.options.default_venv_backend = "none"


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff's rules and its formatting."""
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Mypy, strict, over the package and its tests."""
    session.run("mypy")


@nox.session
def layers(session: nox.Session) -> None:
    """Which room may import which."""
    session.run("lint-imports", "--no-logo", silent=True)


@nox.session
def protos(session: nox.Session) -> None:
    """Make the gRPC stubs from protos/."""
    session.run("python", "protos/generate.py")


@nox.session(name="protos-check")
def protos_check(session: nox.Session) -> None:
    """The committed stubs are what protos/ gives."""
    session.run("python", "protos/generate.py", "--check")


@nox.session
def chart(session: nox.Session) -> None:
    """The chart's tests. With helm on the PATH it is linted, too; `-- write` keeps what is new."""
    if shutil.which("helm"):
        session.run("helm", "lint", "--strict", "charts/neuron-plugin", external=True)
    if "write" in session.posargs:
        session.run("python", "-m", "tests.charts.rendering")
        session.run("python", "-m", "tests.charts.values_table")
    session.run("pytest", "tests/charts", "tests/cli/test_manifests.py")


@nox.session
def sbom(session: nox.Session) -> None:
    """What the image's Python environment consists of (CycloneDX), and under which licences: files in dist/."""
    python = "dist/runtime/bin/python"
    session.run("python", "-m", "venv", "--clear", "--without-pip", "dist/runtime")
    wheels = ("--quiet", "--only-binary=:all:", "--require-hashes", "--requirement", "locks/runtime.txt")
    session.run("python", "-m", "pip", "--python", python, "install", *wheels)
    form = ("--pyproject", "pyproject.toml", "--output-reproducible", "--of", "JSON")
    session.run("cyclonedx-py", "environment", python, *form, "-o", "dist/sbom.cdx.json")
    session.run("pip-licenses", f"--python={python}", "--format=markdown", "--output-file=dist/licences.md")


@nox.session
def audit(session: nox.Session) -> None:
    """Known faults of the packages in the image. Asks PyPI's database of advisories: needs the network."""
    session.run("pip-audit", "--strict", "--disable-pip", "--require-hashes", "--requirement", "locks/runtime.txt")


@nox.session
def docs(session: nox.Session) -> None:
    """Make the pages that come from the code."""
    session.run("python", "docs/generate.py")


@nox.session
def pictures(session: nox.Session) -> None:
    """Make the pictures of the live page; `-- NAME ...` makes some of them. Needs Chromium."""
    session.run("python", "-m", "tests.ui.pictures", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Every benchmark, with its floor."""
    for script in sorted(Path("benchmarks").glob("*.py")):
        session.run("python", str(script), *session.posargs, env={"PYTHONPATH": "."})


@nox.session
def tests(session: nox.Session) -> None:
    """The test suite; arguments go to pytest."""
    session.run("pytest", "--numprocesses", "auto", "--dist", "worksteal", *session.posargs)


@nox.session
def soak(session: nox.Session) -> None:
    """A million random steps (`-- STEPS`: others) of nodes and gated pods; binds, leases, properties, a playground."""
    steps = session.posargs[0] if session.posargs else "1000000"
    session.run("pytest", "tests/plugin/test_node_life.py", "-q", "--timeout=600", env={"NODE_LIFE_STEPS": steps})
    session.run("pytest", "tests/placement/gates/test_model.py", "-q", "--timeout=3600", env={"GATES_STEPS": steps})
    session.run("pytest", "tests/placement/extender/test_interleavings.py", "-q", env={"INTERLEAVINGS_STEPS": "25000"})
    clusters = "tests/placement/test_informers_random.py"
    session.run("pytest", clusters, "-q", "--timeout=3600", env={"CLUSTER_STEPS": "6000"})
    session.run("pytest", "tests/cluster/test_leases.py", "-q", env={"LEASES_SEEDS": "200"})
    session.run("pytest", "-m", "hypothesis", "--hypothesis-profile", "soak", "-q", "--timeout=3600")
    session.run("pytest", "tests/simulation/test_survival.py", "-q", env={"SURVIVAL_SECONDS": "3600"})


@nox.session
def mutants(session: nox.Session) -> None:
    """Faults that no test notices; arguments such as `-- --seed 1 --count 25 allocation`. 300 take an hour."""
    session.run("python", "-m", "tests.mutation", *session.posargs)


@nox.session
def coverage(session: nox.Session) -> None:
    """The test suite with branch coverage."""
    session.run("coverage", "run", "-m", "pytest", *session.posargs)
    session.run("coverage", "report", "--skip-covered", "--show-missing")


@nox.session
def lock(session: nox.Session) -> None:
    """Resolve every lock again: versions and hashes for every platform, no index named."""
    common = ("--universal", "--python-version", "3.11", "--generate-hashes", "--no-header", "--no-annotate", "--quiet")
    compiled = ("uv", "pip", "compile", *common)
    session.run(*compiled, "pyproject.toml", "--group", "dev", "--output-file", "locks/dev.txt")
    # `make test` adds the tools to the packages of the demo: each lock is a part of the one of development.
    part = (*compiled, "--constraint", "locks/dev.txt")
    session.run(*part, "pyproject.toml", "--output-file", "locks/runtime.txt")
    session.run(*part, "--group", "build", "--output-file", "locks/build.txt")
