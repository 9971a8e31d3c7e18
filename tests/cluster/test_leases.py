from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from neuron_plugin.cluster import leases
from neuron_plugin.cluster.api import ApiRequest, Response, UnreachableError, send
from neuron_plugin.cluster.kinds import LEASES
from neuron_plugin.cluster.leases import Election, LeaseName, Sighting, Terms
from neuron_plugin.cluster.records import ObjectReference
from neuron_plugin.cluster.timing import Clock
from neuron_plugin.simulation import api_server as stand_in
from neuron_plugin.simulation.api_server_kinds import Target, parse_path
from neuron_plugin.simulation.api_server_objects import ApiObjects
from neuron_plugin.simulation.api_server_status import JsonObject, Refusal

if TYPE_CHECKING:
    from neuron_plugin.cluster.records import Lease
    from neuron_plugin.cluster.transport import KubernetesApi
    from neuron_plugin.simulation.api_server import StandInApiServer

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
NAME = LeaseName("kube-system", "neuron-extender", "me")


def lease(version: str = "1", holder: str | None = "other", duration: int = 15, transitions: int = 0) -> Lease:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": duration, "leaseTransitions": transitions}
    return LEASES.decode(json.dumps({"metadata": {"resourceVersion": version, "uid": "u"}, "spec": spec}).encode())


# When a lease has run out.


def test_a_lease_runs_out_when_it_was_left_alone_for_its_duration() -> None:
    sighting = Sighting()
    sighting.see(lease(), now=100.0)
    assert not sighting.expired(lease(), now=114.9)
    assert sighting.expired(lease(), now=115.0)


def test_a_renewal_starts_the_time_again() -> None:
    sighting = Sighting()
    sighting.see(lease("1"), now=100.0)
    sighting.see(lease("2"), now=110.0)
    assert not sighting.expired(lease("2"), now=120.0)


def test_seeing_the_same_state_again_is_no_renewal() -> None:
    sighting = Sighting()
    for now in (100.0, 105.0, 110.0):
        sighting.see(lease("1"), now=now)
    assert sighting.expired(lease("1"), now=115.0)


def test_a_lease_that_nobody_holds_is_free_at_once() -> None:
    sighting = Sighting()
    sighting.see(lease(holder=None), now=100.0)
    assert sighting.expired(lease(holder=None), now=100.0)


def test_the_times_inside_a_lease_do_not_matter() -> None:
    """The holder's clock may be an hour off."""
    old = LEASES.decode(
        b'{"metadata":{"resourceVersion":"1"},"spec":{"holderIdentity":"x","leaseDurationSeconds":15,'
        b'"renewTime":"1999-01-01T00:00:00.000000Z"}}'
    )
    sighting = Sighting()
    sighting.see(old, now=100.0)
    assert not sighting.expired(old, now=110.0)


@pytest.mark.parametrize("terms", [(15, 15, 2), (15, 10, 10), (10, 15, 2), (15, 10, 0)])
def test_unsafe_terms_are_refused(terms: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="expected retry_period < renew_deadline < duration"):
        Terms(*terms)


# What is written.


def test_a_claim_names_the_version_it_saw() -> None:
    request = leases.claim_lease(NAME, lease("7", holder="other", transitions=4), duration_seconds=15, now=NOW)
    assert request.body == {
        "metadata": {"resourceVersion": "7", "uid": "u"},
        "spec": {
            "holderIdentity": "me",
            "leaseDurationSeconds": 15,
            "renewTime": "2026-01-02T03:04:05.000000Z",
            "acquireTime": "2026-01-02T03:04:05.000000Z",
            "leaseTransitions": 5,
        },
    }


def test_renewing_ones_own_is_no_transition() -> None:
    body = leases.claim_lease(NAME, lease("7", holder="me", transitions=4), duration_seconds=15, now=NOW).body
    assert body is not None
    spec = body["spec"]
    assert isinstance(spec, dict)
    assert "leaseTransitions" not in spec
    assert "acquireTime" not in spec


async def test_a_nodes_lease_goes_with_its_node(server: StandInApiServer, api: KubernetesApi) -> None:
    name = LeaseName("kube-system", "n1", "n1", owner=ObjectReference("Node", "n1", "uid-n1", "v1"))
    await send(api, leases.create_lease(name, duration_seconds=40, now=NOW), timeout_seconds=5)
    made = server.get(stand_in.LEASES, "n1", "kube-system")
    assert made["metadata"]["ownerReferences"] == [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-n1"}]
    assert made["spec"]["leaseDurationSeconds"] == 40


# Elections, in faked time, against the stand-in's objects without its sockets.


class Cluster:
    """An API server in the same loop: a call takes ``delay_seconds``, and may be cut off for one candidate."""

    def __init__(self) -> None:
        self.objects = ApiObjects()
        self.delay_seconds = 0.0

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
    calls: list[ApiRequest] = field(default_factory=list)

    async def request(self, request: ApiRequest, *, timeout_seconds: float) -> Response:
        self.calls.append(request)
        if self.cut or self.cluster.delay_seconds > timeout_seconds:
            await asyncio.sleep(timeout_seconds)
            raise UnreachableError(request.method, request.path, "cut", may_have_arrived=self.cut)
        await asyncio.sleep(self.cluster.delay_seconds)
        response = self.cluster.serve(request)
        if self.lose_answers:
            raise UnreachableError(request.method, request.path, "lost", may_have_arrived=True)
        return response

    def stream(self, request: ApiRequest, *, silence_seconds: float) -> Any:
        raise NotImplementedError(request, silence_seconds)


@dataclass
class Candidate:
    link: Link
    election: Election
    told: list[tuple[float, bool]]
    task: asyncio.Task[Any]

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


Stand = Callable[[str], Candidate]


@asynccontextmanager
async def election_of(cluster: Cluster) -> AsyncIterator[Stand]:
    loop = asyncio.get_running_loop()
    candidates: list[Candidate] = []

    def stand(name: str) -> Candidate:
        link, told = cluster.link(), list[tuple[float, bool]]()
        election = Election(
            link,
            LeaseName("kube-system", "neuron-extender", name),
            on_change=lambda leading: told.append((loop.time(), leading)),
            clock=Clock(loop.time, asyncio.sleep, lambda: 0.5),
        )
        task = asyncio.create_task(election.run(), name=f"election of {name}")
        candidates.append(Candidate(link, election, told, task))
        return candidates[-1]

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
        assert [leading for _, leading in only.told] == [True]
        assert only.told[0][0] < 0.1


@pytest.mark.looptime
async def test_e4_of_two_candidates_only_one_leads() -> None:
    async with election_of(Cluster()) as stand:
        first, second = stand("a"), stand("b")
        for _ in range(100):
            await asyncio.sleep(0.7)
            assert leaders(first, second) == 1
        assert not second.told or not first.told


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
        stopped, started = old.told[-1], new.told[0]
        assert stopped[1] is False
        assert started[0] - stopped[0] >= 15 - 10 - 2.5, "the lease's duration less the renew deadline"


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
        assert [leading for _, leading in leader.told] == [True]
        assert other.told == []


@pytest.mark.looptime
async def test_t45_a_slow_api_server_does_not_change_the_leader() -> None:
    cluster = Cluster()
    async with election_of(cluster) as stand:
        leader = stand("a")
        await asyncio.sleep(5)
        stand("b")
        cluster.delay_seconds = 1.0
        await asyncio.sleep(120)
        assert [leading for _, leading in leader.told] == [True]


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
        assert leader.told[-1][1] is False


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
        assert old.told[-1][1] is False
        await asyncio.sleep(5)
        assert new.election.leading
        assert new.told[0][0] - ended < 3


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


async def test_an_election_over_the_real_transport(server: StandInApiServer, api: KubernetesApi) -> None:
    leading = asyncio.Event()
    election = Election(api, NAME, on_change=lambda now: leading.set() if now else leading.clear())
    running = asyncio.create_task(election.run(), name="election")
    await asyncio.wait_for(leading.wait(), 5)
    assert server.get(stand_in.LEASES, "neuron-extender", "kube-system")["spec"]["holderIdentity"] == "me"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert server.get(stand_in.LEASES, "neuron-extender", "kube-system")["spec"]["holderIdentity"] == ""
