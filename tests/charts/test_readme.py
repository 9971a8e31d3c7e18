"""The chart's README tells the truth about its values and switches (P82)."""

from __future__ import annotations

import re

import yaml

from tests.charts.manifests import of_each
from tests.charts.rendering import REPOSITORY, VALUES, Manifest, default_values
from tests.charts.values_table import README, comments, leaves, readme

TEXT = README.read_text(encoding="utf-8")


def test_p82_the_table_of_values_is_that_of_values_yaml() -> None:
    assert readme() == TEXT, "write it: python -m tests.charts.values_table"


def test_every_value_is_explained_where_it_stands() -> None:
    said = comments()
    assert [path for path, _ in leaves(default_values()) if not said[path]] == []


def test_both_of_the_vendor_s_accounts_are_named_where_they_have_to_be_trusted() -> None:
    accounts = values_of("vendor-migration")["policies"]["trustedUsers"]
    assert len(accounts) == 2
    migrating = (REPOSITORY / "docs/migrating.md").read_text(encoding="utf-8")
    for account in accounts:
        assert account in comments()["policies.trustedUsers"]
        assert account in migrating


def values_of(name: str) -> Manifest:
    loaded = yaml.safe_load((VALUES / f"{name}.yaml").read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def value_at(path: str) -> object:
    """The default of a dotted path; KeyError where there is none."""
    found: Manifest = default_values()
    for key in path.split("."):
        found = found[key]
    return found


@of_each(sorted(set(re.findall(r"--set ([^` ]+)", TEXT))))
def test_what_the_readme_sets_exists(path: str) -> None:
    for assignment in path.split(","):
        value_at(assignment.split("=")[0])


def test_every_switch_of_the_vendor_s_chart_has_its_row() -> None:
    table = TEXT.split("## Switches")[1].split("##")[0]
    for switch in (
        "devicePlugin.enabled",
        "scheduler.enabled",
        "scheduler.customScheduler.enabled",
        "scheduler.customScheduler.fullnameOverride",
        "scheduler.customScheduler.extraArgs",
        "scheduler.defaultScheduler.enabled",
        "npd.enabled",
        "npd.nodeRecovery.enabled",
        "draDriver.enabled",
        "ultraserverOperator",
    ):
        assert f"`{switch}`" in table
    for row in re.findall(r"^\| `[^|]+\| `([\w.]+)` \|$", table, re.MULTILINE):
        value_at(row)


@of_each(sorted(set(re.findall(r"`((?:scheduler|devicePlugin|certificates|policies)\.[\w.]+)", TEXT))))
def test_values_in_the_text_exist_here_or_in_the_vendor_s_chart(path: str) -> None:
    if path != "scheduler.customScheduler.fullnameOverride":
        value_at(path)
