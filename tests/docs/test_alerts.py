"""Every alert of the chart has its section in docs/alerts.md, and no other is there (P82)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from neuron_plugin.allocation.rejection import NODE_REFUSALS
from neuron_plugin.placement.extender.binding import Ending
from tests.charts.manifests import of_kind
from tests.charts.rendering import Manifest, default_values

PAGE = Path(__file__).resolve().parents[2] / "docs/alerts.md"
TEXT = PAGE.read_text(encoding="utf-8")

(RULES,) = of_kind("monitoring", "PrometheusRule").values()
ALERTS: list[Manifest] = [rule for group in RULES["spec"]["groups"] for rule in group["rules"]]


@dataclass(frozen=True)
class Section:
    alert: str
    text: str

    @property
    def severity(self) -> str:
        return self.text.split("`")[1]

    @property
    def wait(self) -> str | None:
        found = re.match(r"`\w+` after (\w+)\.", self.text)
        return found[1] if found else None


SECTIONS = [
    Section(name, text.strip())
    for name, text in re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL)
]


def test_p82_every_alert_of_the_chart_has_its_section_in_the_same_order() -> None:
    assert [section.alert for section in SECTIONS] == [alert["alert"] for alert in ALERTS]


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.alert)
def test_a_section_says_what_it_means_where_it_comes_from_and_what_to_do(section: Section) -> None:
    assert [part in section.text for part in ("**Means**: ", "\n**Usually**: ", "\n**Do**: ")] == [True] * 3
    alert = next(alert for alert in ALERTS if alert["alert"] == section.alert)
    assert section.severity == alert["labels"]["severity"]
    assert section.wait == alert.get("for"), "an alert without a wait says: at once"
    assert ("at once" in section.text) == ("for" not in alert)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_the_runbook_of_an_alert_is_its_section(alert: Manifest) -> None:
    page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    assert page == default_values()["monitoring"]["rules"]["runbooks"] == "docs/alerts.md"
    assert anchor == alert["alert"].lower()


def test_reasons_and_endings_in_the_sections_are_those_of_the_code() -> None:
    named = set(re.findall(r"reason `([a-z-]+)`|\(`([a-z]+-assignment)`\)|ending `(\w+)`", TEXT))
    codes = {refusal.code for refusal in NODE_REFUSALS} | {ending.value for ending in Ending}
    quoted = {each for found in named for each in found if each}
    assert quoted == {"stale-plugin", "unreadable-assignment", "no-assignment", "failed"} <= codes
