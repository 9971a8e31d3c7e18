"""What ``placement`` installs, and that the switches of the vendor's chart decide where it is empty."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.charts.rendering import helm, render

pytestmark = pytest.mark.skipif(helm() is None, reason="no helm on the PATH")

OFF, SECOND, DEFAULT = (
    {"enabled": False},
    {"enabled": True},
    {"enabled": True, "customScheduler": {"enabled": False}, "defaultScheduler": {"enabled": True}},
)
EXTENDER, SCHEDULER, FILES, GATES = (
    "Deployment/extender",
    "Deployment/scheduler",
    "ConfigMap/default-scheduler",
    "gates",
)


def installed(directory: Path, values: dict[str, object]) -> set[str]:
    """Which of the parts of placing a rendering has."""
    file = directory / "values.yaml"
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    manifests = [found for found in yaml.safe_load_all(render(file)) if found]
    names = {f"{found['kind']}/{found['metadata']['name'].removeprefix('neuron-plugin-')}" for found in manifests}
    return names & {EXTENDER, SCHEDULER, FILES} | {GATES for name in names if name == "MutatingAdmissionPolicy/gates"}


@pytest.mark.parametrize(
    ("placement", "switches", "parts"),
    [
        ("", OFF, set()),
        ("", SECOND, {EXTENDER, SCHEDULER}),
        ("", DEFAULT, {EXTENDER, FILES}),
        ("none", SECOND, set()),
        ("second-scheduler", OFF, {EXTENDER, SCHEDULER}),
        ("second-scheduler", DEFAULT, {EXTENDER, SCHEDULER, FILES}),
        ("extender", OFF, {EXTENDER, FILES}),
        ("extender", SECOND, {EXTENDER, FILES}),
        ("gates", OFF, {EXTENDER, GATES}),
        ("gates", SECOND, {EXTENDER, GATES}),
        ("gates", DEFAULT, {EXTENDER, FILES, GATES}),
    ],
)
def test_placement_decides_over_the_switches(
    tmp_path: Path, placement: str, switches: dict[str, object], parts: set[str]
) -> None:
    assert installed(tmp_path, {"placement": placement, "scheduler": switches}) == parts


def test_the_controller_binds_only_where_a_scheduler_asks_it(tmp_path: Path) -> None:
    for switches, binds in ((OFF, False), (DEFAULT, True)):
        file = tmp_path / "values.yaml"
        file.write_text(yaml.safe_dump({"placement": "gates", "scheduler": switches}), encoding="utf-8")
        assert ("pods/binding]\n    verbs" in render(file)) is binds
