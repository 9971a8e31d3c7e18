from __future__ import annotations

import pytest

from neuron_plugin.plugin import daemon


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon's rhythm in milliseconds, for tests with a real clock."""
    monkeypatch.setattr(daemon, "TURN_SECONDS", 0.02)
    monkeypatch.setattr(daemon, "QUIET_SECONDS", 0.05)
    monkeypatch.setattr(daemon, "EMPTY_SECONDS", 0.3)
    monkeypatch.setattr(daemon, "NODE_SECONDS", 0.5)
