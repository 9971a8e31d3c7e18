"""The node's Lease as a time line: what the plugin and others do, and how the API server has it then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from neuron_plugin.allocation.keys import UTILIZATION_KEY
from neuron_plugin.cluster import ApiRequest, UnreachableError
from neuron_plugin.cluster.api import Response, send
from neuron_plugin.cluster.leases import LEASE_PREFIX, ObservedLease
from neuron_plugin.cluster.objects import LEASES as DECODED
from neuron_plugin.cluster.writes import delete_lease
from neuron_plugin.plugin.node_lease import LeaseTimes, NodeLease, node_lease
from neuron_plugin.simulation.api_server_kinds import LEASES, NODES
from tests.support.api_server import Fault, Match, StandInApiServer
from tests.support.stories import Scene, rows

pytestmark = pytest.mark.looptime

NAMESPACE, NODE = "kube-system", "worker-1"
TIMES = LeaseTimes(duration=8.0, renew=2.0)


class Api(StandInApiServer):
    """What it was sent it does, also when nobody waits for the answer any more; ``writes`` are done or refused."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    async def request(self, request: ApiRequest, *, timeout_seconds: float) -> Response:
        try:
            async with asyncio.timeout(timeout_seconds):
                return await asyncio.shield(asyncio.ensure_future(self._done(request)))
        except TimeoutError:
            raise UnreachableError(request.method, request.path, "no answer", may_have_arrived=True) from None

    async def _done(self, request: ApiRequest) -> Response:
        try:
            return await super().request(request, timeout_seconds=9999)
        finally:
            self.writes += [request.method] if request.method != "GET" else []


class Story(Scene):
    """A plugin whose Lease lasts for 8 s and is renewed every 2 s."""

    def __init__(self) -> None:
        self.api = Api()
        self.api.create_node({"metadata": {"name": NODE}})
        self._running: asyncio.Task[Any] | None = None
        self._gate = asyncio.Event()

    # The plugin.

    def starts(self, serving: str = "serving") -> None:
        """A plugin, instead of the one before, which was killed."""
        self.stop()
        self.lease = NodeLease(NAMESPACE, NODE, TIMES)
        self.lease.serve(serving=serving == "serving")
        self._running = asyncio.create_task(self.lease.run(self.api), name="lease under test")

    def stop(self) -> None:
        if self._running:
            self._running.cancel()

    def serves(self) -> None:
        self.lease.serve(serving=True)

    def rests(self) -> None:
        self.lease.serve(serving=False)

    async def ends(self, how: str) -> None:
        assert await self.lease.give_up(self.api) is (how == "answered")

    async def predecessor_ends(self) -> None:
        """A process of before, late."""
        await NodeLease(NAMESPACE, NODE, TIMES).give_up(self.api)

    def says(self, text: str = "") -> None:
        self.lease.utilization = text

    # The API server.

    def fails(self, words: str) -> None:
        """``fails PATCH 500``, once, or ``all 500``; ``slow``, ``held`` until ``release``, answer ``lost``."""
        method, how = words.split()
        ways: dict[str, dict[str, Any]] = {
            "slow": {"delay_seconds": 600.0},
            "lost": {"lose_answer": True},
            "held": {"gate": self._gate},
        }
        match = Match() if method == "all" else Match(method, "/nodes" if method == "GET" else "/leases")
        self.api.fail(Fault(match, 9999 if method == "all" else 1, **ways.get(how) or {"status": int(how)}))

    async def release(self, method: str) -> None:
        """What was held is done, long after no one waits for its answer any more."""
        self.api.writes.clear()
        self._gate.set()
        await asyncio.sleep(0.1)
        assert self.api.writes[0] == method

    def nodes(self, number: str) -> None:
        """So many others join the cluster."""
        for other in range(int(number) - 1):
            self.api.create_node({"metadata": {"name": f"other-{other}"}})

    async def node_again(self) -> None:
        self.api.delete_node(NODE)
        self.api.create_node({"metadata": {"name": NODE}})
        await send(self.api, delete_lease(node_lease(NAMESPACE, NODE)), timeout_seconds=5)  # as the garbage collector

    # What there is then.

    @property
    def found(self) -> Any:
        return self.api.get(LEASES, f"{LEASE_PREFIX}{NODE}", NAMESPACE)

    @property
    def decoded(self) -> Any:
        return DECODED.decode(msgspec.json.encode(self.found))

    def absent(self) -> None:
        assert not self.api.objects(LEASES)

    async def held(self) -> None:
        await asyncio.sleep(0.01)
        assert self.found["spec"]["holderIdentity"] == NODE

    async def closed(self) -> None:
        """Nobody holds it: no pod is sent to the node any more."""
        await asyncio.sleep(0.01)
        assert self.found["spec"]["holderIdentity"] == ""
        assert ObservedLease().expired(self.decoded, now=0.0)

    def carries(self, text: str = "") -> None:
        assert (self.found["metadata"].get("annotations") or {}) == ({UTILIZATION_KEY: text} if text else {})

    def finds(self, text: str = "") -> None:
        """What the Lease said before this plugin wrote it."""
        assert self.lease.found_utilization == text

    def owned(self) -> None:
        """So that it goes with the node."""
        uid = self.api.get(NODES, NODE)["metadata"]["uid"]
        owner = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": uid}
        assert self.found["metadata"]["ownerReferences"] == [owner]
        assert self.found["spec"]["leaseDurationSeconds"] == TIMES.duration

    def lasts(self, seconds: str) -> None:
        assert self.found["spec"]["leaseDurationSeconds"] == float(seconds)

    def wrote(self, methods: str = "") -> None:
        """What was written since the last look at that."""
        assert self.api.writes == methods.split()
        self.api.writes.clear()


@pytest.fixture
async def story() -> AsyncIterator[Story]:
    story = Story()
    yield story
    story.stop()


STORIES = rows("""
    it is made when the plugin serves, and is the node's: starts idle; wait 9; absent; serves; held; owned
    it is renewed while the plugin serves: starts; held; wrote PATCH POST PATCH; wait 5; wrote PATCH PATCH
    what containers do with their cores goes with a renewal and costs no write:
        starts; held; finds; says text; wrote PATCH POST PATCH; wait 1.9; wrote; wait 0.2; carries text; wrote PATCH
    the next plugin finds what the last one wrote and may remove it:
        starts; says text; wait 3; carries text; starts; wait 3; finds text; says; wait 3; carries
    e7 it is given up while the kubelet follows no resource, and taken up again:
        starts; held; rests; closed; wrote PATCH POST PATCH PATCH; wait 9; wrote; serves; held
    a node whose closing got no answer is closed at the next turn:
        starts; held; fails PATCH 500; rests; held; wait 2; closed
    e7 a plugin that stops gives it up, so that no pod comes meanwhile, and the next one takes it:
        starts; held; ends answered; serves; wait 9; closed; starts; held
    p13 an API server that refuses does not keep a plugin from stopping: starts idle; fails all 500; ends lost
    p13 nor one that does not answer: starts idle; fails all slow; ends lost; took 1-1.5
    e7 a renewal that hangs does not keep a plugin from giving it up:
        starts; held; fails PATCH slow; wait 2; ends answered; closed
    e7 a renewal that lands after it was given up does not open the node:
        starts; held; fails PATCH held; wait 2; ends answered; release PATCH; closed
    e7 a creation that lands after it was given up does not either:
        fails POST held; starts; wait 0.1; ends lost; release POST; closed
    e7 a renewal that got no answer is followed by the next:
        starts; held; wrote PATCH POST PATCH; fails PATCH lost; wait 3; wrote PATCH; wait 2; wrote PATCH PATCH; held
    e7 what somebody else wrote is renewed: starts; held; predecessor_ends; closed; wait 2; held
    a plugin that has no lease yet gives none up: starts idle; ends lost; absent
    a node that is created again gets a lease of its own: starts; held; node_again; wait 2; held; owned
    a small cluster's leases are renewed as often as it is set:
        nodes 100; starts; held; wait 1; wrote PATCH POST PATCH; wait 10; wrote PATCH PATCH PATCH PATCH PATCH; lasts 8
    in a cluster of 250 nodes every 5 s, and they last as much longer:
        nodes 250; starts; held; lasts 20; wait 6; wrote PATCH POST PATCH PATCH; wait 10; wrote PATCH PATCH
    never less often than every 10 s, as kubelets do:
        nodes 2000; starts; held; lasts 40; wait 11; wrote PATCH POST PATCH PATCH; wait 20; wrote PATCH PATCH
    a node of which the number of others is not known renews as often as it is set:
        starts; held; wrote PATCH POST PATCH; nodes 2000; fails GET 403; starts; wait 5; wrote PATCH PATCH PATCH PATCH;
        lasts 8
    a lease that may not be looked at is not created:
        fails all 403; starts; wait 7; wrote PATCH PATCH PATCH PATCH; absent
""")
"""What happens, and how the Lease is then; each step is a method of `Story`."""


@pytest.mark.parametrize("steps", STORIES)
async def test_how_the_lease_stands(story: Story, steps: str, caplog: pytest.LogCaptureFixture) -> None:
    await story.play(steps)
    assert "fails" in steps or not warnings(caplog), "somebody else's write is no fault"


async def test_an_api_server_that_fails_is_logged_once_and_the_lease_comes_back(
    story: Story, caplog: pytest.LogCaptureFixture
) -> None:
    await story.play("starts; held")
    for _ in range(2):
        caplog.clear()
        await story.play("fails all 500; rests; wait 9; held")
        story.api.forgive()
        await story.play("wait 2; closed; serves; held")
        assert len(warnings(caplog)) == 1


async def test_a_killed_plugin_leaves_it_to_run_out_by_itself(story: Story) -> None:
    await story.play("starts; held; stop")
    observed, lease = ObservedLease(), story.decoded
    observed.observe(lease, now=100.0)
    assert not observed.expired(lease, now=99.9 + TIMES.duration)
    assert observed.expired(lease, now=100.0 + TIMES.duration)


def warnings(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name.endswith("node_lease")]
