"""Whoever meets an event finds its reason in the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuron_plugin.allocation.event_reasons import EventReason

TROUBLESHOOTING = Path(__file__).parents[2] / "docs" / "troubleshooting.md"


@pytest.mark.parametrize("reason", EventReason)
def test_what_to_do_about_an_event_is_documented(reason: EventReason) -> None:
    assert f"`{reason}`" in TROUBLESHOOTING.read_text(encoding="utf-8")
