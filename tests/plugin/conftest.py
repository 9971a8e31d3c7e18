from __future__ import annotations

import pytest

from neuron_plugin.plugin import answers, confirm
from tests.plugin.desk import Desk
from tests.plugin.world import at_once


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The confirmation's rhythm in milliseconds, for tests with a real clock."""
    monkeypatch.setattr(confirm, "SETTLE_SECONDS", 0.01)
    monkeypatch.setattr(confirm, "QUIET_SECONDS", 0.05)
    monkeypatch.setattr(answers, "QUIET_SECONDS", 0.05)
    monkeypatch.setattr(answers, "GRACE_SECONDS", 0.3)
    monkeypatch.setattr(confirm, "PERIOD_SECONDS", 0.1)


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    at_once(desk.confirmation.rebuild())
    desk.kubelet.calls.clear()
    return desk
