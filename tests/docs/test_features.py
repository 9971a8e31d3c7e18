"""The page of features: each row says where it stands, and the test that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/features.md").read_text(encoding="utf-8")
MIGRATING = (ROOT / "docs/migrating.md").read_text(encoding="utf-8")
SECTIONS = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")[1:]}
CAPABILITIES = [name for name in SECTIONS if not name.startswith("Faults")]
COLUMN = re.compile(r"(?<!\\)\|")

MAPPED = {
    "tiles": "gpu.intel.com/tiles",
    "Xe links": "Xe links",
    "PCI groups": "PCI groups",
    "monitoring resource": "i915_monitoring",
    "telemetry labels": "telemetry policy",
    "flags": "--qps",
    "CRDs": "CRDs",
    "clientset": "clientset",
    "aggregated API": "aggregated APIService",
    "PodResources v1alpha1": "PodResources v1alpha1",
    "policy ConfigMap": "scheduler-extender-policy",
    "`usePolicyConfigMap` of kops": "Kubernetes ended the policy file with 1.23",
}
"""What has no code, and the words by which the page about migrating speaks of it."""


def rows(name: str) -> list[list[str]]:
    lines = [line for line in SECTIONS[name].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in COLUMN.split(line)[1:-1]] for line in lines[1:]]


@pytest.mark.parametrize("name", SECTIONS)
def test_every_row_names_a_test_that_exists(name: str) -> None:
    assert len(rows(name)) > 5
    for row in rows(name):
        found = re.fullmatch(r"`([\w/]+\.py)(?:::(test_\w+))?`", row[-1])
        assert found, row
        source = (ROOT / "tests" / found[1]).read_text(encoding="utf-8")
        assert f"def {found[2] or 'test_'}" in source, row


@pytest.mark.parametrize("name", CAPABILITIES)
def test_every_capability_says_where_it_stands_and_a_difference_its_reason(name: str) -> None:
    for capability, stands, how, _ in rows(name):
        assert stands in {"works", "differs", "mapping"}, capability
        assert how or stands != "differs", capability


def test_what_has_only_a_mapping_is_on_the_page_about_migrating() -> None:
    mapped = [capability for name in CAPABILITIES for capability, stands, *_ in rows(name) if stands == "mapping"]
    parts = {part for capability in mapped for part in capability.split(", ")}
    assert parts == set(MAPPED)
    assert [part for part, words in MAPPED.items() if words not in MIGRATING] == []


def test_there_is_a_way_to_report_a_vulnerability() -> None:
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert "Report" in page
    assert "private" in page
