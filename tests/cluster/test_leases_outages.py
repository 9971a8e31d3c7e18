"""Cuts, outages, lost answers and deleted leases: never two leaders, and in the end one again (E4, T45, T46)."""

from __future__ import annotations

import asyncio
import logging
import os
from random import Random

import pytest

from neuron_plugin.cluster.leases import TermChange
from neuron_plugin.simulation.api_server_kinds import parse_path
from tests.cluster.elections import PATH, Cluster, election_of, leaders

SEEDS = int(os.environ.get("LEASES_SEEDS", "8"))


@pytest.mark.looptime
async def test_e4_a_leader_that_cannot_renew_stops_before_another_starts() -> None:
    async with election_of(Cluster()) as stand:
        old = stand("a")
        await asyncio.sleep(5)
        new = stand("b")
        await asyncio.sleep(5)
        old.link.cut = True
        seen = []
        for _ in range(400):
            await asyncio.sleep(0.1)
            seen.append((old.election.leading, new.election.leading))
        assert (True, True) not in seen
        assert seen[-1] == (False, True)
        (stopped, lost), (started, won) = old.news.changes[-1], new.news.changes[0]
        assert (lost, won) == (TermChange.LOST, TermChange.TAKEN)
        assert started - stopped >= 15 - 10 - 2.5, "the lease's duration less the renew deadline"


@pytest.mark.looptime
async def test_a_leader_that_was_cut_off_follows_when_it_is_back() -> None:
    async with election_of(Cluster()) as stand:
        old = stand("a")
        await asyncio.sleep(5)
        new = stand("b")
        old.link.cut = True
        await asyncio.sleep(40)
        old.link.cut = False
        await asyncio.sleep(40)
        assert (old.election.leading, new.election.leading) == (False, True)


@pytest.mark.looptime
async def test_a_short_outage_does_not_change_the_leader() -> None:
    async with election_of(Cluster()) as stand:
        leader, other = stand("a"), None
        await asyncio.sleep(5)
        other = stand("b")
        leader.link.cut = True
        await asyncio.sleep(4)
        leader.link.cut = False
        await asyncio.sleep(60)
        assert leader.changes == [TermChange.TAKEN]
        assert other.changes == []


@pytest.mark.looptime
async def test_t45_a_slow_api_server_does_not_change_the_leader() -> None:
    cluster = Cluster()
    async with election_of(cluster) as stand:
        leader = stand("a")
        await asyncio.sleep(5)
        stand("b")
        cluster.delay_seconds = 1.0
        await asyncio.sleep(120)
        assert leader.changes == [TermChange.TAKEN]


@pytest.mark.looptime
async def test_t46_no_candidate_leads_while_the_api_server_is_down_and_then_one_does_again() -> None:
    async with election_of(Cluster()) as stand:
        first, second = stand("a"), stand("b")
        await asyncio.sleep(5)
        first.link.cut = second.link.cut = True
        await asyncio.sleep(30)
        assert leaders(first, second) == 0
        first.link.cut = second.link.cut = False
        await asyncio.sleep(30)
        assert leaders(first, second) == 1


@pytest.mark.looptime
async def test_renewals_that_arrived_but_were_not_confirmed_do_not_count() -> None:
    """The leader must believe the worst of its own renewals, though the others see the lease renewed."""
    async with election_of(Cluster()) as stand:
        leader = stand("a")
        await asyncio.sleep(5)
        leader.link.lose_answers = True
        await asyncio.sleep(15)
        assert not leader.election.leading
        assert leader.changes[-1] is TermChange.LOST


@pytest.mark.looptime
async def test_seconds_left_is_what_a_bind_may_take() -> None:
    async with election_of(Cluster()) as stand:
        leader = stand("a")
        await asyncio.sleep(5)
        leader.link.cut = True
        before = leader.election.seconds_left()
        assert 7 < before <= 10
        await asyncio.sleep(3)
        assert leader.election.seconds_left() == pytest.approx(before - 3, abs=0.01)
        await asyncio.sleep(before)
        assert leader.election.seconds_left() == 0


@pytest.mark.looptime
@pytest.mark.parametrize(("led_for", "change"), [(5, TermChange.TAKEN), (11, TermChange.RESTARTED)])
async def test_the_next_container_of_a_killed_leaders_pod_takes_over_at_once(
    led_for: float, change: TermChange
) -> None:
    """Once the last leader has led for a term, nothing of the one before it can be under way either."""
    async with election_of(Cluster()) as stand:
        killed = stand("a")
        await asyncio.sleep(led_for)
        killed.link.cut = True
        again = stand("a")
        await asyncio.sleep(1)
        assert again.changes == [change]


@pytest.mark.looptime
async def test_a_process_that_takes_its_own_lease_again_did_not_restart() -> None:
    async with election_of(Cluster()) as stand:
        only = stand("a")
        await asyncio.sleep(20)
        only.link.cut = True
        await asyncio.sleep(12)
        only.link.cut = False
        await asyncio.sleep(5)
        assert only.changes == [TermChange.TAKEN, TermChange.LOST, TermChange.TAKEN]


@pytest.mark.looptime
async def test_e4_a_term_counts_from_the_beginning_of_the_turn_that_won_it() -> None:
    """The write may have been done at once, and its answer late: others count from the write."""
    cluster = Cluster()
    cluster.delay_seconds = 2.0
    async with election_of(cluster) as stand:
        candidate = stand("a")
        await asyncio.sleep(4.01)  # one read, one write
        assert candidate.election.leading
        assert candidate.election.seconds_left() <= 10 - 4


@pytest.mark.looptime
async def test_e4_one_that_was_replaced_without_knowing_it_leaves_the_others_lease_alone_at_its_end() -> None:
    cluster = Cluster()
    async with election_of(cluster) as stand:
        old = stand("a")
        await asyncio.sleep(5)
        new = stand("b")
        old.link.cut = True
        await asyncio.sleep(30)
        assert new.election.leading
        old.link.cut = False
        await old.stop()
        assert cluster.lease().holder == "b"
        assert new.election.leading


@pytest.mark.looptime
async def test_a_leader_whose_term_ran_out_gives_its_lease_up_if_no_other_took_it() -> None:
    cluster = Cluster()
    async with election_of(cluster) as stand:
        leader = stand("a")
        await asyncio.sleep(5)
        leader.link.forbidden = "GET"
        await asyncio.sleep(12)
        assert not leader.election.leading
        leader.link.forbidden = ""
        await leader.stop()
        assert cluster.lease().holder == ""


@pytest.mark.looptime
async def test_a_lease_that_is_annotated_between_read_and_write_is_no_failure() -> None:
    cluster = Cluster()
    cluster.delay_seconds = 0.3
    async with election_of(cluster) as stand:
        leader = stand("a")
        await asyncio.sleep(2.8 + 0.45)  # the second turn has read and not written yet
        cluster._objects.patch(parse_path(PATH), {"metadata": {"annotations": {"by": "another client"}}})
        await asyncio.sleep(10)
        assert [call.method for call in leader.link.calls[2:6]] == ["GET", "PATCH", "GET", "PATCH"]
        assert not any(leader.news.failures)
        assert leader.changes == [TermChange.TAKEN]


@pytest.mark.looptime
async def test_e4_the_end_of_a_term_is_reported_when_it_comes_and_not_at_the_next_turn() -> None:
    async with election_of(Cluster()) as stand:
        leader = stand("a")
        await asyncio.sleep(5)
        end = asyncio.get_running_loop().time() + leader.election.seconds_left()
        leader.link.forbidden = "GET"
        await asyncio.sleep(15)
        lost_at, change = leader.news.changes[-1]
        assert change is TermChange.LOST
        assert lost_at == pytest.approx(end, abs=0.01)


@pytest.mark.looptime
async def test_e4_a_lease_deleted_under_its_leader_makes_no_second_one() -> None:
    cluster = Cluster()
    async with election_of(cluster) as stand:
        leader = stand("a")
        await asyncio.sleep(1)
        other = stand("b")
        await asyncio.sleep(5)
        cluster.delete_lease()
        for _ in range(100):
            await asyncio.sleep(0.3)
            assert leaders(leader, other) == 1
        assert leader.changes == [TermChange.TAKEN]
        assert cluster.lease().holder == "a"


@pytest.mark.looptime
async def test_e4_a_deleted_lease_of_a_dead_leader_is_created_again_when_it_would_have_expired() -> None:
    cluster = Cluster()
    async with election_of(cluster) as stand:
        leader = stand("a")
        await asyncio.sleep(1)
        other = stand("b")
        await asyncio.sleep(5)
        leader.link.cut = True
        cluster.delete_lease()
        await asyncio.sleep(8)
        assert not other.election.leading
        await asyncio.sleep(12)
        assert other.election.leading


@pytest.mark.looptime
@pytest.mark.parametrize("verb", ["GET", "POST", "PATCH"])
async def test_without_the_right_to_the_lease_no_candidate_leads_and_it_is_logged_once(
    verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    cluster = Cluster()
    async with election_of(cluster) as stand:
        if verb == "PATCH":
            before = stand("before")
            await asyncio.sleep(1)
            await before.stop()
            caplog.clear()
        candidate = stand("a")
        candidate.link.forbidden = verb
        await asyncio.sleep(60)
        assert not candidate.election.leading
        assert "the test asked for this refusal" in candidate.news.failures[-1]
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        candidate.link.forbidden = ""
        await asyncio.sleep(5)
        assert candidate.election.leading
        assert candidate.news.failures[-1] == ""


@pytest.mark.looptime
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_e4_whatever_happens_to_whom_there_are_never_two_leaders(seed: int) -> None:
    """Cuts, lost answers, slow servers, ends and restarts, in any order; and in the end there is one again."""
    random, cluster = Random(seed), Cluster()  # noqa: S311 - a case, not a secret
    async with election_of(cluster) as stand:
        candidates = [stand(name) for name in "abc"]
        for _ in range(100):
            for _ in range(random.choice([1, 3, 10, 30])):
                await asyncio.sleep(0.2)
                assert leaders(*candidates) <= 1
            place = random.randrange(len(candidates))
            candidate = candidates[place]
            match random.choice(["cut", "cut", "restore", "restore", "lose", "slow", "end", "restart"]):
                case "cut":
                    candidate.link.cut = True
                case "restore":
                    candidate.link.cut = candidate.link.lose_answers = False
                case "lose":
                    candidate.link.lose_answers = True
                case "slow":
                    cluster.delay_seconds = random.choice([0.0, 0.0, 0.4, 3.0])
                case "end":
                    candidate.settled = random.random() < 0.5
                    await candidate.stop()
                case _:
                    await candidate.stop()
                    candidates[place] = stand("abc"[place])
        cluster.delay_seconds = 0.0
        candidates.append(stand("d"))
        for candidate in candidates:
            candidate.link.cut = candidate.link.lose_answers = False
        await asyncio.sleep(40)
        assert leaders(*candidates) == 1
