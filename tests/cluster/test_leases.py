"""Elections: who leads when, through cuts, outages, lost answers and deleted leases, and never two (E4, T10, T45, T46).

A row is what happens to candidates and what follows, as the verbs of `Electing` say it. A lease lasts 15 s, a term 10.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from random import Random

import pytest

from neuron_plugin.cluster.client import KubernetesApi
from neuron_plugin.cluster.leases import Election, ObservedLease
from neuron_plugin.cluster.objects import LEASES, Lease
from neuron_plugin.cluster.writes import LeaseName
from neuron_plugin.simulation import api_server_kinds as kinds
from tests.cluster.elections import Electing, News
from tests.support.api_server import StandInApiServer

SEEDS = int(os.environ.get("LEASES_SEEDS", "8"))


def lease(version: str = "1", holder: str | None = "other", renewed: str | None = None) -> Lease:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed}
    return LEASES.decode(json.dumps({"metadata": {"resourceVersion": version, "uid": "u"}, "spec": spec}).encode())


HOUR_OFF = lease(renewed="1999-01-01T00:00:00.000000Z")
OBSERVED = {
    "it was not left alone for its duration": ([(100.0, lease())], 114.9, False),
    "it was": ([(100.0, lease())], 115.0, True),
    "a renewal starts the time again": ([(100.0, lease("1")), (110.0, lease("2"))], 120.0, False),
    "the same state again is no renewal": ([(at, lease()) for at in (100.0, 105.0, 110.0)], 115.0, True),
    "without a holder it is free at once": ([(100.0, lease(holder=None))], 100.0, True),
    "its holder's clock does not matter": ([(100.0, HOUR_OFF)], 110.0, False),
}


@pytest.mark.parametrize(("seen", "now", "expired"), OBSERVED.values(), ids=OBSERVED)
def test_when_a_lease_has_run_out(
    seen: list[tuple[float, Lease]],
    now: float,
    expired: bool,  # noqa: FBT001 - a table's column
) -> None:
    observed = ObservedLease()
    for at, state in seen:
        observed.observe(state, now=at)
    assert observed.expired(seen[-1][1], now=now) is expired


TWO = "stand a; wait 5; stand b; wait 5"
"""``a`` leads, ``b`` stands by."""
STORIES = {
    "e4 one candidate leads at once and stays": "stand a; wait 0.1; leads a; wait 120; leads a; terms a taken",
    "e4 of two candidates only one leads": "stand a b; wait 0.1; always 70 -> 1; terms a taken; terms b",
    # An ``identity`` given to two replicas by mistake.
    "e4 two of one name do not both lead": "stand one=x@10.0.0.1 two=x@10.0.0.2; wait 0.7; always 35 -> 1",
    "being slower than another candidate is no failure": (
        "slow 0.3; stand a b c; wait 4; leads a; knows a; knows b a; knows c a; wait 30; leads a; smooth"
    ),
    # How it ends.
    "e4 a leader that ends gives the lease up and is succeeded soon": (
        f"{TWO}; stop a; leads; terms a taken lost; wait 3; leads b; wait 2; leads b; terms b handed_over"
    ),
    "one that did not lead leaves the lease alone at its end": f"{TWO}; stop b; asked b GET; leads a",
    "e4 a leader that cannot give the lease up ends all the same": "stand a; wait 5; cut a; stop a; took 0-2; leads",
    "changing hands is counted": "stand a; wait 1; stop a; stand b; wait 1; lease b; transitions 1",
    "e4 one that left something undecided is taken over from, not handed over by": (
        f"{TWO}; undecided a; stop a; wait 5; terms b taken"
    ),
    "t10 an end in the middle of a renewal gives the lease up all the same": (
        "stand a; wait 5; lose a; wait 2.5; restore a; stop a; lease"
    ),
    "a lease that was given up says no url": "stand a; wait 1; lease a; stop a; lease",
    "e4 one that was replaced without knowing it leaves the other's lease alone at its end": (
        "stand a; wait 5; stand b; cut a; wait 30; leads b; restore a; stop a; lease b; leads b"
    ),
    "a leader whose term ran out gives its lease up if no other took it": (
        "stand a; wait 5; forbid a GET; wait 12; leads; lease a; restore a; stop a; lease"
    ),
    # Outages.
    "a standby knows where the leader is until that one falls silent": (
        "stand a; wait 1; stand b; wait 1; knows a; hears a; knows b a; hears b a; "
        "cut a; wait 7; knows b; restore a; wait 5; knows b a"
    ),
    "a leader that was cut off follows when it is back": (
        "stand a; wait 5; stand b; cut a; wait 40; restore a; wait 40; leads b"
    ),
    "a short outage does not change the leader": (
        "stand a; wait 5; stand b; cut a; wait 4; restore a; wait 60; terms a taken; terms b"
    ),
    "t45 a slow API server does not change the leader": "stand a; wait 5; stand b; slow 1; wait 120; terms a taken",
    "t46 no candidate leads while the API server is down, and then one does again": (
        "stand a b; wait 5; cut a b; wait 30; leads; restore a b; wait 30; always 1 -> 1"
    ),
    # The leader must believe the worst of its own renewals, though the others see the lease renewed.
    "renewals that arrived but were not confirmed do not count": (
        "stand a; wait 5; lose a; wait 15; leads; terms a taken lost"
    ),
    "seconds left is what a bind may take": "stand a; wait 5; cut a; left a 9.4; wait 3; left a 6.4; wait 9; left a 0",
    "e4 the end of a term is reported when it comes and not at the next turn": (
        "stand a; wait 5; forbid a GET; left a 9.4; wait 9.39; terms a taken; wait 0.02; terms a taken lost"
    ),
    # The write may have been done at once, and its answer late: others count from the write. One read, one write.
    "e4 a term counts from the beginning of the turn that won it": ("slow 2; stand a; wait 4.01; leads a; left a 5.99"),
    # The next container of a killed leader's pod. Nothing of the one before the last can be under way after a term.
    "it takes over at once": "stand a; wait 5; cut a; stand again=a; wait 1; terms again taken",
    "it knows that the last leader had led for a term": (
        "stand a; wait 11; cut a; stand again=a; wait 1; terms again restarted"
    ),
    "a process that takes its own lease again did not restart": (
        "stand a; wait 20; cut a; wait 12; restore a; wait 5; terms a taken lost taken"
    ),
    # What others do to the lease. The second turn has read and not written yet.
    "a lease that is annotated between read and write is no failure": (
        "slow 0.3; stand a; wait 3.25; annotate; wait 1; asked a GET POST GET PATCH GET PATCH; wait 10.8; "
        "smooth; terms a taken"
    ),
    "e4 a lease deleted under its leader makes no second one": (
        "stand a; wait 1; stand b; wait 5; delete; always 30 -> 1; terms a taken; lease a"
    ),
    "e4 a deleted lease of a dead leader is created again when it would have expired": (
        "stand a; wait 1; stand b; wait 5; cut a; delete; wait 8; terms b; wait 12; leads b"
    ),
}


@pytest.mark.looptime
@pytest.mark.parametrize("steps", STORIES.values(), ids=STORIES)
async def test_who_leads(steps: str) -> None:
    async with Electing().closing() as scene:
        await scene.play(steps)


@pytest.mark.looptime
async def test_e4_a_leader_that_cannot_renew_stops_before_another_starts() -> None:
    async with Electing().closing() as scene:
        await scene.play(f"{TWO}; cut a; always 40 -> 0-1; leads b; terms a taken lost; terms b taken")
        (stopped, _), (started, _) = scene.candidates["a"].news.changes[-1], scene.candidates["b"].news.changes[0]
        assert started - stopped >= 15 - 10 - 2.5, "the lease's duration less the renew deadline"


@pytest.mark.looptime
@pytest.mark.parametrize("verb", ["GET", "POST", "PATCH"])
async def test_without_the_right_to_the_lease_no_candidate_leads_and_it_is_logged_once(
    verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with Electing().closing() as scene:
        if verb == "PATCH":
            await scene.play("stand before; wait 1; stop before")
            caplog.clear()
        await scene.play(f"stand a; forbid a {verb}; wait 60; leads")
        failures = scene.candidates["a"].news.failures
        assert "the test asked for this refusal" in failures[-1]
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        await scene.play("restore a; wait 5; leads a")
        assert failures[-1] == ""


@pytest.mark.looptime
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_e4_whatever_happens_to_whom_there_are_never_two_leaders(seed: int) -> None:
    """Cuts, lost answers, slow servers, ends and restarts, in any order; and in the end there is one again."""
    random = Random(seed)  # noqa: S311 - a case, not a secret
    async with Electing().closing() as scene:
        await scene.play("stand a b c")
        for _ in range(100):
            await scene.play(f"always {random.choice([0.2, 0.6, 2, 6])} -> 0-1")
            name, slow = random.choice("abc"), random.choice([0, 0, 0.4, 3])
            ends = [f"stop {name}", f"undecided {name}; stop {name}"]
            events = [*[f"cut {name}", f"restore {name}"] * 2, f"lose {name}", f"slow {slow}", random.choice(ends)]
            await scene.play(random.choice([*events, f"stop {name}; stand {name}"]))
        await scene.play("slow 0; stand d; restore a b c; wait 40; always 1 -> 1")


@pytest.mark.looptime
async def test_e4_a_leader_that_writes_much_on_its_lease_goes_on_leading() -> None:
    """The places of groups are written there, many a second when many groups come."""
    async with Electing().closing() as scene:
        random = Random(1)  # noqa: S311 - a case, not a secret
        await scene.play("slow 0.1; stand a; wait 5")
        for _ in range(1_000):
            await scene.play(f"annotate; wait {random.uniform(0.1, 0.5)}")
            assert scene.candidates["a"].election.seconds_left() > 5


async def test_an_election_over_the_real_transport(server: StandInApiServer, api: KubernetesApi) -> None:
    news = News()
    name = LeaseName("kube-system", "neuron-extender", "me", url="https://[fd00::1]:12345")
    election = Election(api, name, news, settled=lambda: True)
    running = asyncio.create_task(election.run(), name="election")
    async with asyncio.timeout(5):
        while not news.changes:
            await asyncio.sleep(0.005)
    lease = server.get(kinds.LEASES, "neuron-extender", "kube-system")
    assert lease["spec"]["holderIdentity"] == "me"
    assert lease["metadata"]["annotations"] == {"neuron-plugin.io/holder-url": "https://[fd00::1]:12345"}
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    lease = server.get(kinds.LEASES, "neuron-extender", "kube-system")
    assert lease["spec"]["holderIdentity"] == ""
    assert not lease["metadata"].get("annotations")
