from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from neuron_plugin.cluster.api import ApiRequest, Response, UnreachableError
from neuron_plugin.cluster.election import Change, Election, Terms
from neuron_plugin.cluster.kinds import LEASES
from neuron_plugin.cluster.leases import LeaseName
from neuron_plugin.cluster.timing import Clock
from neuron_plugin.simulation import api_server as stand_in
from neuron_plugin.simulation.api_server_kinds import Target, parse_path
from neuron_plugin.simulation.api_server_objects import ApiObjects
from neuron_plugin.simulation.api_server_status import JsonObject, Refusal

if TYPE_CHECKING:
    from neuron_plugin.cluster.records import Lease
    from neuron_plugin.cluster.transport import KubernetesApi
    from neuron_plugin.simulation.api_server import StandInApiServer

PATH = LEASES.item("neuron-extender", "kube-system")


@pytest.mark.parametrize("terms", [(15, 15, 2), (15, 10, 10), (10, 15, 2), (15, 10, 0)])
def test_unsafe_terms_are_refused(terms: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="expected retry_period < renew_deadline < duration"):
        Terms(*terms)


# Elections, in faked time, against the stand-in's objects without its sockets.


class Cluster:
    """An API server in the same loop: a call takes ``delay_seconds``, and may be cut off for one candidate."""

    def __init__(self) -> None:
        self.objects = ApiObjects()
        self.delay_seconds = 0.0

    def lease(self) -> Lease:
        return LEASES.decode(self.objects.read(parse_path(PATH)).encoded)

    def delete_lease(self) -> None:
        self.objects.delete(parse_path(PATH), {})

    def link(self) -> Link:
        return Link(self)

    def serve(self, request: ApiRequest) -> Response:
        try:
            return Response(200, self._act(request, parse_path(request.path)))
        except Refusal as refusal:
            return Response(refusal.code, msgspec.json.encode(refusal.status()))

    def _act(self, request: ApiRequest, target: Target) -> bytes:
        body: JsonObject = dict(request.body or {})
        match request.method:
            case "GET":
                return self.objects.read(target).encoded
            case "POST":
                return self.objects.create(target.kind, body, target.namespace).encoded
            case _:
                return self.objects.patch(target, body).encoded


@dataclass
class Link:
    """One candidate's way to the cluster."""

    cluster: Cluster
    cut: bool = False
    lose_answers: bool = False
    forbidden: str = ""
    calls: list[ApiRequest] = field(default_factory=list)

    async def request(self, request: ApiRequest, *, timeout_seconds: float) -> Response:
        self.calls.append(request)
        if self.cut or self.cluster.delay_seconds > timeout_seconds:
            await asyncio.sleep(timeout_seconds)
            raise UnreachableError(request.method, request.path, "cut", may_have_arrived=self.cut)
        await asyncio.sleep(self.cluster.delay_seconds)
        if request.method == self.forbidden:
            return Response(403, b'{"reason":"Forbidden","message":"leases is forbidden: User cannot"}')
        response = self.cluster.serve(request)
        if self.lose_answers and request.method != "GET":
            raise UnreachableError(request.method, request.path, "lost", may_have_arrived=True)
        return response

    def stream(self, request: ApiRequest, *, silence_seconds: float) -> Any:
        raise NotImplementedError(request, silence_seconds)


@dataclass
class Told:
    """What a candidate was told, and when."""

    changes: list[tuple[float, Change]] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)

    def changed(self, change: Change) -> None:
        self.changes.append((asyncio.get_running_loop().time(), change))

    def heard(self, trouble: str) -> None:
        self.troubles.append(trouble)


@dataclass
class Candidate:
    link: Link
    election: Election
    told: Told
    task: asyncio.Task[Any]
    settled: bool = True

    @property
    def changes(self) -> list[Change]:
        return [change for _, change in self.told.changes]

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


Stand = Callable[..., Candidate]


@asynccontextmanager
async def election_of(cluster: Cluster) -> AsyncIterator[Stand]:
    loop = asyncio.get_running_loop()
    candidates: list[Candidate] = []

    def stand(name: str, url: str = "") -> Candidate:
        link, told = cluster.link(), Told()
        election = Election(
            link,
            LeaseName("kube-system", "neuron-extender", name, url=url or f"https://{name}:12345"),
            told,
            settled=lambda: candidate.settled,
            clock=Clock(loop.time, asyncio.sleep, lambda: 0.5),
        )
        task = asyncio.create_task(election.run(), name=f"election of {name}")
        candidate = Candidate(link, election, told, task)
        candidates.append(candidate)
        return candidate

    try:
        yield stand
    finally:
        for candidate in candidates:
            await candidate.stop()


def leaders(*candidates: Candidate) -> int:
    return sum(candidate.election.leading for candidate in candidates)


@pytest.mark.looptime
async def test_e4_one_candidate_leads_at_once_and_stays() -> None:
    async with election_of(Cluster()) as stand:
        only = stand("a")
        await asyncio.sleep(120)
        assert only.election.leading
        assert only.changes == [Change.TAKEN]
        assert only.told.changes[0][0] < 0.1


@pytest.mark.looptime
async def test_e4_of_two_candidates_only_one_leads() -> None:
    async with election_of(Cluster()) as stand:
        first, second = stand("a"), stand("b")
        for _ in range(100):
            await asyncio.sleep(0.7)
            assert leaders(first, second) == 1
        assert not second.changes or not first.changes


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
        (stopped, lost), (started, won) = old.told.changes[-1], new.told.changes[0]
        assert (lost, won) == (Change.LOST, Change.TAKEN)
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
        assert leader.changes == [Change.TAKEN]
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
        assert leader.changes == [Change.TAKEN]


@pytest.mark.looptime
async def test_t46_with_the_api_server_down_nobody_leads_and_then_one_does_again() -> None:
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
        assert leader.changes[-1] is Change.LOST


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
        assert old.changes[-1] is Change.LOST
        await asyncio.sleep(5)
        assert new.election.leading
        assert new.changes == [Change.HANDED_OVER]
        assert new.told.changes[0][0] - ended < 3


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
async def test_changing_hands_is_counted() -> None:
    cluster = Cluster()
    async with election_of(cluster) as stand:
        first = stand("a")
        await asyncio.sleep(1)
        await first.stop()
        stand("b")
        await asyncio.sleep(1)
        (found,) = cluster.objects.collections[stand_in.LEASES].snapshot().objects
        assert (found.value["spec"]["holderIdentity"], found.value["spec"]["leaseTransitions"]) == ("b", 1)


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
        assert new.changes == [Change.TAKEN]


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
async def test_the_next_container_of_a_killed_leaders_pod_takes_over_at_once() -> None:
    async with election_of(Cluster()) as stand:
        killed = stand("a")
        await asyncio.sleep(5)
        killed.link.cut = True
        again = stand("a")
        await asyncio.sleep(1)
        assert again.changes == [Change.TAKEN]


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
        assert leader.changes == [Change.TAKEN]
        assert cluster.lease().holder == "a"


@pytest.mark.looptime
async def test_e4_a_deleted_lease_of_a_dead_leader_is_made_anew_when_it_would_have_run_out() -> None:
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
async def test_without_the_right_to_the_lease_nobody_leads_and_it_is_said_once(
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
        assert "leases is forbidden" in candidate.told.troubles[-1]
        assert "allowed to get, create and patch" in candidate.told.troubles[-1]
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        candidate.link.forbidden = ""
        await asyncio.sleep(5)
        assert candidate.election.leading
        assert candidate.told.troubles[-1] == ""


@pytest.mark.looptime
async def test_being_slower_than_another_candidate_is_no_trouble() -> None:
    cluster = Cluster()
    cluster.delay_seconds = 0.3
    async with election_of(cluster) as stand:
        candidates = [stand(name) for name in "abc"]
        await asyncio.sleep(1.5)
        assert leaders(*candidates) == 1, "all three tried to make the lease at the same moment"
        assert len({candidate.election.leader_url for candidate in candidates}) == 2, "both others know which"
        await asyncio.sleep(30)
        assert leaders(*candidates) == 1
        assert not any(trouble for candidate in candidates for trouble in candidate.told.troubles)


@pytest.mark.looptime
@pytest.mark.parametrize("seed", range(20))
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
            match random.choice(["cut", "cut", "mend", "mend", "lose", "slow", "end", "restart"]):
                case "cut":
                    candidate.link.cut = True
                case "mend":
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


async def test_an_election_over_the_real_transport(server: StandInApiServer, api: KubernetesApi) -> None:
    told = Told()
    name = LeaseName("kube-system", "neuron-extender", "me", url="https://[fd00::1]:12345")
    election = Election(api, name, told, settled=lambda: True)
    running = asyncio.create_task(election.run(), name="election")
    async with asyncio.timeout(5):
        while not told.changes:
            await asyncio.sleep(0.005)
    lease = server.get(stand_in.LEASES, "neuron-extender", "kube-system")
    assert lease["spec"]["holderIdentity"] == "me"
    assert lease["metadata"]["annotations"] == {"neuron-plugin.io/holder-url": "https://[fd00::1]:12345"}
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    lease = server.get(stand_in.LEASES, "neuron-extender", "kube-system")
    assert lease["spec"]["holderIdentity"] == ""
    assert not lease["metadata"].get("annotations")
