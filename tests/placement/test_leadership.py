from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from neuron_plugin.backoff import Clock
from neuron_plugin.cluster import UnreachableError
from neuron_plugin.cluster.leases import TermChange
from neuron_plugin.placement.informers import Informers
from neuron_plugin.placement.leadership import CONDITION, ELECTION, NOT_LEADER, NOT_READ, Leadership, Readiness

LANDING = 5.0
PATIENCE = 10.0


class Pods:
    """Counts consistent lists, which take a second; the first ``failures`` of them fail. The first one takes two."""

    def __init__(self, failures: int = 0, *, unbound: bool = True) -> None:
        self.failures = failures
        self.unbound = unbound
        self.listed_at: list[float] = []

    async def list_consistently(self, timeout_seconds: float) -> None:
        assert timeout_seconds > 0
        await asyncio.sleep(1)
        self.listed_at.append(asyncio.get_running_loop().time())
        if len(self.listed_at) <= self.failures:
            raise UnreachableError("GET", "/api/v1/pods", "away", may_have_arrived=False)

    async def pods_listed(self) -> None:
        await asyncio.sleep(2)

    def any_unbound(self) -> bool:
        return self.unbound


def unready() -> Readiness:
    return Readiness({CONDITION: NOT_LEADER})


class Replica:
    """A leadership under way, in faked time that starts at 0."""

    def __init__(self, pods: Pods) -> None:
        loop = asyncio.get_running_loop()
        self.started = loop.time()
        self.pods = pods
        self.readiness = unready()
        clock = Clock(loop.time, asyncio.sleep)
        self.leadership = Leadership(
            self.readiness, cast("Informers", pods), landing_seconds=LANDING, patience_seconds=PATIENCE, clock=clock
        )

    @property
    def lists(self) -> list[float]:
        return [at - self.started for at in self.pods.listed_at]

    async def ready_after(self) -> float:
        async with asyncio.timeout(600):
            while self.readiness.why_not:
                await asyncio.sleep(0.1)
        return asyncio.get_running_loop().time() - self.started


@asynccontextmanager
async def replica(pods: Pods) -> AsyncIterator[Replica]:
    found = Replica(pods)
    running = asyncio.create_task(found.leadership.run(), name="leadership")
    try:
        yield found
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.looptime
async def test_e04_a_new_leader_waits_until_the_last_ones_writes_have_landed_and_lists_after_that() -> None:
    async with replica(Pods()) as found:
        found.leadership.changed(TermChange.TAKEN)
        await asyncio.sleep(2)
        assert "taking over" in found.readiness.why_not

        assert LANDING <= await found.ready_after() < LANDING + 2, "and no longer than that and a list take"
        assert found.lists[-1] >= LANDING

        found.leadership.changed(TermChange.LOST)
        assert found.readiness.why_not == NOT_LEADER


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("won", "unbound", "lists"),
    [(TermChange.TAKEN, False, 1), (TermChange.RESTARTED, True, 2), (TermChange.HANDED_OVER, True, 1)],
    ids=["no pod is unbound", "started again", "handed over"],
)
async def test_e04_where_no_write_can_land_any_more_a_new_leader_only_lists(
    won: TermChange, *, unbound: bool, lists: int
) -> None:
    """One that was started again lists once more after a moment."""
    async with replica(Pods(unbound=unbound)) as found:
        found.leadership.changed(won)

        assert await found.ready_after() < LANDING
        assert len(found.lists) == lists


@pytest.mark.looptime
@pytest.mark.parametrize("lost_after", [0.5, 3.0, 5.5])
async def test_e04_leadership_lost_while_taking_over_makes_no_replica_ready(lost_after: float) -> None:
    async with replica(Pods()) as found:
        found.leadership.changed(TermChange.TAKEN)
        await asyncio.sleep(lost_after)

        found.leadership.changed(TermChange.LOST)
        await asyncio.sleep(60)

        assert found.readiness.why_not == NOT_LEADER


@pytest.mark.looptime
@pytest.mark.parametrize("lost_after", [0.5, 3.0, 5.5])
async def test_e04_leadership_lost_and_won_again_while_taking_over_starts_over(lost_after: float) -> None:
    async with replica(Pods()) as found:
        found.leadership.changed(TermChange.TAKEN)
        await asyncio.sleep(lost_after)

        found.leadership.changed(TermChange.LOST)
        found.leadership.changed(TermChange.TAKEN)

        assert await found.ready_after() >= lost_after + LANDING
        assert found.lists[-1] >= lost_after + LANDING


@pytest.mark.looptime
async def test_a_failing_list_is_tried_again() -> None:
    async with replica(Pods(failures=2, unbound=False)) as found:
        found.leadership.changed(TermChange.TAKEN)

        await found.ready_after()

        assert len(found.lists) == 3


@pytest.mark.looptime
async def test_t30_t46_a_single_replica_outwaits_its_predecessors_last_write_if_a_pod_may_get_it() -> None:
    found = Replica(Pods(unbound=True))

    leading = asyncio.create_task(found.leadership.lead_alone())
    await asyncio.sleep(1)
    assert "taking over" in found.readiness.why_not
    await leading

    assert LANDING <= await found.ready_after() < LANDING + 2
    assert found.lists[-1] >= LANDING


@pytest.mark.looptime
async def test_t30_t50_a_single_replica_leads_with_its_first_list_where_every_pod_is_bound() -> None:
    found = Replica(Pods(unbound=False))

    await found.leadership.lead_alone()

    assert await found.ready_after() == pytest.approx(2)
    assert found.lists == []


@pytest.mark.looptime
async def test_t46_a_lease_out_of_reach_is_borne_for_a_while_and_then_reported() -> None:
    found = Replica(Pods())
    found.readiness.unmet(ELECTION, NOT_READ)
    reasons = found.readiness.conditions
    found.leadership.heard("403 Forbidden", "")
    assert "403 Forbidden" in reasons[ELECTION], "at the start there is nothing to bear it for"

    found.leadership.heard("", "")
    assert not reasons[ELECTION]
    found.leadership.heard("no answer", "")
    assert not reasons[ELECTION]
    await asyncio.sleep(PATIENCE)
    found.leadership.heard("no answer", "")
    assert "no answer" in reasons[ELECTION]
    found.leadership.heard("", "")
    assert not reasons[ELECTION]


def test_readiness_names_every_reason() -> None:
    readiness = Readiness({"a": "not a", "b": "not b"})
    assert readiness.why_not == "not a; not b"
    readiness.met("a")
    readiness.met("a")
    assert readiness.why_not == "not b"
    assert readiness.conditions == {"a": "", "b": "not b"}
    readiness.unmet("a", "a again")
    readiness.met("b")
    assert readiness.why_not == "a again"
