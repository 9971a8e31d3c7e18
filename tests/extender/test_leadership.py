from __future__ import annotations

import asyncio

import pytest

from neuron_plugin.cluster.api import UnreachableError
from neuron_plugin.extender import leadership
from neuron_plugin.extender.leadership import CONDITION, NOT_LEADER, Leadership, fence, lead_alone
from neuron_plugin.extender.readiness import Readiness
from tests.extender.running import until


class Term:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def seconds_left(self) -> float:
        return self.seconds


class Lists:
    """Counts consistent lists; the first ``failures`` of them fail."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.count = 0
        self.gate: asyncio.Event | None = None

    async def __call__(self, timeout_seconds: float) -> None:
        assert timeout_seconds > 0
        self.count += 1
        if self.gate:
            await self.gate.wait()
        if self.count <= self.failures:
            raise UnreachableError("GET", "/api/v1/pods", "away", may_have_arrived=False)


def unready() -> Readiness:
    return Readiness({CONDITION: NOT_LEADER})


async def test_e04_a_new_leader_waits_and_lists_before_it_is_ready() -> None:
    readiness, lists = unready(), Lists()
    lists.gate = asyncio.Event()
    leading = Leadership(readiness, lists, landing_seconds=0.05)
    running = asyncio.create_task(leading.run())

    leading.changed(leading=True)
    await asyncio.sleep(0)
    assert lists.count == 0, "first the last leader's writes must have landed"
    await until(lambda: lists.count)
    assert "taking over" in readiness.why_not
    lists.gate.set()
    await until(lambda: not readiness.why_not)

    leading.changed(leading=False)
    assert readiness.why_not == NOT_LEADER
    running.cancel()


async def test_e04_leadership_lost_while_taking_over_makes_nobody_ready() -> None:
    readiness, lists = unready(), Lists()
    lists.gate = asyncio.Event()
    leading = Leadership(readiness, lists, landing_seconds=0.0)
    running = asyncio.create_task(leading.run())
    leading.changed(leading=True)
    await until(lambda: lists.count)

    leading.changed(leading=False)
    lists.gate.set()
    await asyncio.sleep(0.01)

    assert readiness.why_not == NOT_LEADER
    running.cancel()


async def test_a_failing_list_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leadership, "_RETRY_SECONDS", 0.0)
    readiness, lists = unready(), Lists(failures=2)
    leading = Leadership(readiness, lists, landing_seconds=0.0)
    running = asyncio.create_task(leading.run())

    leading.changed(leading=True)
    await until(lambda: not readiness.why_not)

    assert lists.count == 3
    running.cancel()


async def test_a_single_replica_leads_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leadership, "ALONE_LANDING_SECONDS", 0.0)
    readiness = unready()

    await lead_alone(readiness)

    assert readiness.why_not == ""


def test_e04_the_fence_closes_before_the_lease_can_run_out_under_a_write() -> None:
    readiness, term = unready(), Term(10.0)
    why_not = fence(readiness, term, write_seconds=2.5)
    assert why_not() == NOT_LEADER

    readiness.met(CONDITION)
    assert why_not() == ""
    term.seconds = 2.5
    assert "lease" in why_not()
    assert fence(readiness, None, write_seconds=2.5)() == ""


def test_readiness_names_every_reason() -> None:
    readiness = Readiness({"a": "not a", "b": "not b"})
    assert readiness.why_not == "not a; not b"
    readiness.met("a")
    readiness.met("a")
    assert readiness.why_not == "not b"
    readiness.unmet("a", "a again")
    readiness.met("b")
    assert readiness.why_not == "a again"
