"""What ``placement`` installs, and that the switches of the vendor's chart decide where it is empty."""

from __future__ import annotations

import pytest
import yaml

from tests.charts.rendering import Manifest, render

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


def installed(values: Manifest) -> set[str]:
    """Which of the parts of placing a rendering has."""
    manifests = list(yaml.load_all(render(values), yaml.CSafeLoader))
    names = {f"{found['kind']}/{found['metadata']['name'].removeprefix('neuron-plugin-')}" for found in manifests}
    return names & {EXTENDER, SCHEDULER, FILES} | {GATES for name in names if name == "MutatingAdmissionPolicy/gates"}


@pytest.mark.parametrize(
    ("placement", "switches", "parts"),
    [
        ("", OFF, {EXTENDER, GATES}),
        ("none", OFF, set()),
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
def test_placement_decides_over_the_switches(placement: str, switches: Manifest, parts: set[str]) -> None:
    assert installed({"placement": placement, "scheduler": switches}) == parts


def test_the_controller_binds_only_where_a_scheduler_asks_it() -> None:
    for switches, binds in ((OFF, False), (DEFAULT, True)):
        rendered = render({"placement": "gates", "scheduler": switches})
        assert ("pods/binding]\n    verbs" in rendered) is binds
