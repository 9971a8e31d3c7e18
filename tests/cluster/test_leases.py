from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime

import pytest

from neuron_plugin.cluster.client import KubernetesApi
from neuron_plugin.cluster.leases import Election, ObservedLease, TermChange
from neuron_plugin.cluster.objects import LEASES, Lease
from neuron_plugin.cluster.writes import LeaseName
from neuron_plugin.simulation import api_server as stand_in
from tests.cluster.elections import Cluster, News, election_of, leaders
from tests.support.api_server import StandInApiServer

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
NAME = LeaseName("kube-system", "neuron-extender", "me")


def lease(version: str = "1", holder: str | None = "other", duration: int = 15, transitions: int = 0) -> Lease:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": duration, "leaseTransitions": transitions}
    return LEASES.decode(json.dumps({"metadata": {"resourceVersion": version, "uid": "u"}, "spec": spec}).encode())


# When a lease has run out.


def test_a_lease_runs_out_when_it_was_left_alone_for_its_duration() -> None:
    observed = ObservedLease()
    observed.observe(lease(), now=100.0)
    assert not observed.expired(lease(), now=114.9)
    assert observed.expired(lease(), now=115.0)


def test_a_renewal_starts_the_time_again() -> None:
    observed = ObservedLease()
    observed.observe(lease("1"), now=100.0)
    observed.observe(lease("2"), now=110.0)
    assert not observed.expired(lease("2"), now=120.0)


def test_seeing_the_same_state_again_is_no_renewal() -> None:
    observed = ObservedLease()
    for now in (100.0, 105.0, 110.0):
        observed.observe(lease("1"), now=now)
    assert observed.expired(lease("1"), now=115.0)


def test_a_lease_without_a_holder_is_free_at_once() -> None:
    observed = ObservedLease()
    observed.observe(lease(holder=None), now=100.0)
    assert observed.expired(lease(holder=None), now=100.0)


def test_the_times_inside_a_lease_do_not_matter() -> None:
    """The holder's clock may be an hour off."""
    old = LEASES.decode(
        b'{"metadata":{"resourceVersion":"1"},"spec":{"holderIdentity":"x","leaseDurationSeconds":15,'
        b'"renewTime":"1999-01-01T00:00:00.000000Z"}}'
    )
    observed = ObservedLease()
    observed.observe(old, now=100.0)
    assert not observed.expired(old, now=110.0)


# Elections.


@pytest.mark.looptime
async def test_e4_one_candidate_leads_at_once_and_stays() -> None:
    async with election_of(Cluster()) as stand:
        only = stand("a")
        await asyncio.sleep(120)
        assert only.election.leading
        assert only.changes == [TermChange.TAKEN]
        assert only.news.changes[0][0] < 0.1


@pytest.mark.looptime
async def test_e4_of_two_candidates_only_one_leads() -> None:
    async with election_of(Cluster()) as stand:
        first, second = stand("a"), stand("b")
        for _ in range(100):
            await asyncio.sleep(0.7)
            assert leaders(first, second) == 1
        assert not second.changes or not first.changes


@pytest.mark.looptime
async def test_e4_a_leader_that_ends_gives_the_lease_up_and_is_succeeded_soon() -> None:
    async with election_of(Cluster()) as stand:
        old = stand("a")
        await asyncio.sleep(5)
        new = stand("b")
        await asyncio.sleep(5)
        ended = asyncio.get_running_loop().time()
        await old.stop()
        assert not old.election.leading
        assert old.changes[-1] is TermChange.LOST
        await asyncio.sleep(5)
        assert new.election.leading
        assert new.changes == [TermChange.HANDED_OVER]
        assert new.news.changes[0][0] - ended < 3


@pytest.mark.looptime
async def test_one_that_did_not_lead_leaves_the_lease_alone_at_its_end() -> None:
    async with election_of(Cluster()) as stand:
        leader = stand("a")
        await asyncio.sleep(5)
        other = stand("b")
        await asyncio.sleep(5)
        await other.stop()
        assert all(call.method == "GET" for call in other.link.calls)
        assert leader.election.leading


@pytest.mark.looptime
async def test_e4_a_leader_that_cannot_give_the_lease_up_ends_all_the_same() -> None:
    async with election_of(Cluster()) as stand:
        leader = stand("a")
        await asyncio.sleep(5)
        leader.link.cut = True
        begun = asyncio.get_running_loop().time()
        await leader.stop()
        assert not leader.election.leading
        assert asyncio.get_running_loop().time() - begun <= 2


@pytest.mark.looptime
async def test_changing_hands_is_counted() -> None:
    cluster = Cluster()
    async with election_of(cluster) as stand:
        first = stand("a")
        await asyncio.sleep(1)
        await first.stop()
        stand("b")
        await asyncio.sleep(1)
        (found,) = cluster.objects(stand_in.LEASES)
        assert (found["spec"]["holderIdentity"], found["spec"]["leaseTransitions"]) == ("b", 1)


@pytest.mark.looptime
async def test_e4_one_that_left_something_undecided_is_taken_over_from_not_handed_over_by() -> None:
    async with election_of(Cluster()) as stand:
        old = stand("a")
        await asyncio.sleep(5)
        new = stand("b")
        await asyncio.sleep(5)
        old.settled = False
        await old.stop()
        await asyncio.sleep(5)
        assert new.changes == [TermChange.TAKEN]


@pytest.mark.looptime
async def test_t10_an_end_in_the_middle_of_a_renewal_gives_the_lease_up_all_the_same() -> None:
    cluster = Cluster()
    async with election_of(cluster) as stand:
        old = stand("a")
        await asyncio.sleep(5)
        old.link.lose_answers = True
        await asyncio.sleep(2.5)
        old.link.lose_answers = False
        await old.stop()
        assert cluster.lease().holder == ""


@pytest.mark.looptime
async def test_a_standby_knows_where_the_leader_is_until_that_one_falls_silent() -> None:
    async with election_of(Cluster()) as stand:
        leader = stand("a")
        await asyncio.sleep(1)
        standby = stand("b")
        await asyncio.sleep(1)
        assert (leader.election.leader_url, standby.election.leader_url) == ("", "https://a:12345")
        assert (leader.news.leader, standby.news.leader) == ("", "a")
        leader.link.cut = True
        await asyncio.sleep(7)
        assert standby.election.leader_url == ""
        leader.link.cut = False
        await asyncio.sleep(5)
        assert standby.election.leader_url == "https://a:12345"


@pytest.mark.looptime
async def test_a_lease_that_was_given_up_says_no_url() -> None:
    cluster = Cluster()
    async with election_of(cluster) as stand:
        leader = stand("a")
        await asyncio.sleep(1)
        assert cluster.lease().holder_url == "https://a:12345"
        await leader.stop()
        assert cluster.lease().holder_url == ""


@pytest.mark.looptime
async def test_e4_two_of_one_name_do_not_both_lead() -> None:
    """An ``identity`` given to two replicas by mistake."""
    async with election_of(Cluster()) as stand:
        first, second = stand("same", "https://10.0.0.1:12345"), stand("same", "https://10.0.0.2:12345")
        for _ in range(50):
            await asyncio.sleep(0.7)
            assert leaders(first, second) == 1


@pytest.mark.looptime
async def test_being_slower_than_another_candidate_is_no_failure() -> None:
    cluster = Cluster()
    cluster.delay_seconds = 0.3
    async with election_of(cluster) as stand:
        candidates = [stand(name) for name in "abc"]
        await asyncio.sleep(4)
        assert leaders(*candidates) == 1, "all three tried to make the lease at the same moment"
        assert len({candidate.election.leader_url for candidate in candidates}) == 2, "both others know which"
        await asyncio.sleep(30)
        assert leaders(*candidates) == 1
        assert not any(failure for candidate in candidates for failure in candidate.news.failures)


async def test_an_election_over_the_real_transport(server: StandInApiServer, api: KubernetesApi) -> None:
    news = News()
    name = LeaseName("kube-system", "neuron-extender", "me", url="https://[fd00::1]:12345")
    election = Election(api, name, news, settled=lambda: True)
    running = asyncio.create_task(election.run(), name="election")
    async with asyncio.timeout(5):
        while not news.changes:
            await asyncio.sleep(0.005)
    lease = server.get(stand_in.LEASES, "neuron-extender", "kube-system")
    assert lease["spec"]["holderIdentity"] == "me"
    assert lease["metadata"]["annotations"] == {"neuron-plugin.io/holder-url": "https://[fd00::1]:12345"}
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    lease = server.get(stand_in.LEASES, "neuron-extender", "kube-system")
    assert lease["spec"]["holderIdentity"] == ""
    assert not lease["metadata"].get("annotations")
