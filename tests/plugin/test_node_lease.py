"""The node's Lease as a time line: what the plugin and others do, and how the API server has it then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from neuron_plugin.allocation.keys import UTILIZATION_KEY
from neuron_plugin.cluster import ApiRequest, KubernetesApi
from neuron_plugin.cluster.api import Response, send
from neuron_plugin.cluster.client import connect
from neuron_plugin.cluster.leases import LEASE_PREFIX, ObservedLease
from neuron_plugin.cluster.objects import LEASES
from neuron_plugin.cluster.writes import delete_lease
from neuron_plugin.plugin.node_lease import LeaseTimes, NodeLease, node_lease
from neuron_plugin.simulation import api_server
from neuron_plugin.simulation.api_server_objects import ApiObjects
from neuron_plugin.simulation.api_server_requests import answer
from tests.plugin.site import eventually
from tests.support.api_server import Fault, Match, StandInApiServer
from tests.support.stories import Scene

NAMESPACE, NODE = "kube-system", "worker-1"
DURATION = 8.0


class Story(Scene):
    """A plugin that renews its Lease every ``renew`` seconds, so seldom by default that only a change does."""

    def __init__(self, server: StandInApiServer, api: KubernetesApi, renew: float = 300.0) -> None:
        self.server, self._api = server, api
        self._times = LeaseTimes(DURATION, renew)
        self._tasks: list[asyncio.Task[Any]] = []
        self._fault = Fault()
        self._version = ""
        self.writes: list[str] = []
        """The methods of writes that the API server has done or refused."""

    # The plugin.

    def starts(self, serving: str = "serving") -> None:
        """A plugin, instead of the one before, which was killed."""
        self.stop()
        self.lease = NodeLease(NAMESPACE, NODE, self._times)
        self.lease.serve(serving=serving == "serving")
        self._tasks = [asyncio.create_task(self.lease.run(self._api), name="lease under test")]

    def often(self) -> None:
        """From now on it renews again and again, by what makes it renew at once."""

        async def nudge() -> None:
            while True:
                self.renews()
                await asyncio.sleep(0.02)

        self._tasks.append(asyncio.create_task(nudge(), name="nudges"))

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    def serves(self) -> None:
        self.lease.serve(serving=True)

    def rests(self) -> None:
        self.lease.serve(serving=False)

    def renews(self) -> None:
        if self.lease.serving:
            self.rests()
            self.serves()

    async def ends(self, answered: str = "") -> None:
        async with asyncio.timeout(5):
            result = await self.lease.give_up(self._api)
        assert not answered or result is (answered == "answered")

    async def predecessor_ends(self) -> None:
        """A process of before, late."""
        await NodeLease(NAMESPACE, NODE, self._times).give_up(self._api)

    def says(self, text: str = "") -> None:
        self.lease.utilization = text

    # The API server.

    def fails(self, words: str) -> None:
        """``fails PATCH 500``, once, or ``all 500``; ``slow``, ``held`` until ``release``, answer ``lost``."""
        method, how = words.split()
        self._gate = asyncio.Event()
        ways: dict[str, dict[str, Any]] = {
            "slow": {"delay_seconds": 600.0},
            "lost": {"lose_answer": True},
            "held": {"gate": self._gate},
        }
        match = Match() if method == "all" else Match(method, "/leases")
        times = 9999 if method == "all" else 1
        self._fault = Fault(match, times=times, **ways.get(how, {"status": int(how) if how.isdecimal() else None}))
        self.server.fail(self._fault)

    async def reached(self) -> None:
        """Until a request met the fault."""
        await eventually(lambda: self._fault.times == 0)

    async def release(self, method: str) -> None:
        """What was held is done, long after no one waits for its answer any more."""
        self.writes.clear()
        self._gate.set()
        await eventually(lambda: method in self.writes)
        await asyncio.sleep(0.05)  # for what might follow

    async def node_again(self) -> None:
        self.server.delete_node(NODE)
        self.server.create_node({"metadata": {"name": NODE}})
        # As the garbage collector does.
        await send(self._api, delete_lease(node_lease(NAMESPACE, NODE)), timeout_seconds=5)

    # What there is then.

    @property
    def found(self) -> dict[str, Any]:
        return self.server.get(api_server.LEASES, f"{LEASE_PREFIX}{NODE}", NAMESPACE)

    @property
    def exists(self) -> bool:
        return bool(self.server.objects(api_server.LEASES))

    def absent(self) -> None:
        assert not self.exists

    def is_held(self) -> bool:
        return self.exists and self.found["spec"]["holderIdentity"] == NODE

    async def held(self) -> None:
        await eventually(self.is_held)

    async def closed(self) -> None:
        """Nobody holds it: no pod is sent to the node any more."""
        await eventually(lambda: self.exists and self.found["spec"]["holderIdentity"] == "")
        assert ObservedLease().expired(self.decoded, now=0.0)

    @property
    def decoded(self) -> Any:
        return LEASES.decode(msgspec.json.encode(self.found))

    async def stands(self, seconds: str = "0.2") -> None:
        """Nothing is written for so long."""
        before = self.found["metadata"]["resourceVersion"]
        await asyncio.sleep(float(seconds))
        assert self.found["metadata"]["resourceVersion"] == before

    async def written(self) -> None:
        before = self.found["metadata"]["resourceVersion"]
        await eventually(lambda: bool(self.found["metadata"]["resourceVersion"] != before))

    async def renewed(self) -> None:
        first = datetime.fromisoformat(self.found["spec"]["renewTime"])
        await eventually(lambda: datetime.fromisoformat(self.found["spec"]["renewTime"]) > first)

    async def carries(self, text: str = "") -> None:
        annotations = {UTILIZATION_KEY: text} if text else {}
        await eventually(lambda: self.exists and (self.found["metadata"].get("annotations") or {}) == annotations)

    async def finds(self, text: str = "") -> None:
        """What the Lease said before this plugin wrote it."""
        await eventually(lambda: self.lease.found_utilization is not None)
        assert self.lease.found_utilization == text

    def owned(self) -> None:
        """So that it goes with the node."""
        uid = self.server.get(api_server.NODES, NODE)["metadata"]["uid"]
        owner = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": uid}
        assert self.found["metadata"]["ownerReferences"] == [owner]
        assert self.found["spec"]["leaseDurationSeconds"] == DURATION

    async def tried(self, words: str) -> None:
        """So often it has asked for something meanwhile."""
        method, count = words.split()
        await eventually(lambda: sum(seen.method == method for seen in self.server.requests) >= int(count))

    def wrote(self, methods: str = "") -> None:
        assert self.writes == methods.split()
        self.writes.clear()


@pytest.fixture
async def story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Story]]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(StandInApiServer())
        server.create_node({"metadata": {"name": NODE}})
        api = await stack.enter_async_context(await connect(server.write_kubeconfig(tmp_path / "kubeconfig")))
        made: list[Story] = []

        def noted(objects: ApiObjects, request: ApiRequest) -> Response:
            made[0].writes.extend([request.method] if request.method != "GET" else [])
            return answer(objects, request)

        def make(renew: float = 300.0) -> Story:
            made.append(Story(server, api, renew))
            return made[0]

        monkeypatch.setattr("neuron_plugin.simulation.api_server.answer", noted)
        yield make
        made[0].stop()


STORIES = {
    "it is made when the plugin serves, and is the node's": "starts idle; wait 0.05; absent; serves; held; owned",
    "it is renewed while the plugin serves": "every 0.5; starts; held; renewed",
    "what containers do with their cores goes with a renewal and costs no write": (
        "starts; held; finds; wrote PATCH POST PATCH; says text; wait 0.1; wrote; renews; carries text; wrote PATCH"
    ),
    "the next plugin finds what the last one wrote and may remove it": (
        "starts; says text; often; carries text; starts; often; finds text; says; carries"
    ),
    "e7 it is given up while the kubelet follows no resource, and taken up again": (
        "every 0.5; starts; held; rests; closed; wait 0.1; stands 0.8; serves; held"
    ),
    "a node whose closing got no answer is closed at the next turn": (
        "every 0.5; starts; held; fails PATCH 500; rests; closed"
    ),
    "e7 a plugin that stops gives it up, so that no pod comes meanwhile, and the next one takes it": (
        "starts; often; held; ends answered; closed; renews; stands; starts; often; held"
    ),
    "p13 an API server that refuses does not keep a plugin from stopping": "starts idle; fails all 500; ends lost",
    "p13 nor one that does not answer": "starts idle; fails all slow; ends lost",
    "e7 a renewal that hangs does not keep a plugin from giving it up": (
        "starts; held; fails PATCH slow; renews; reached; ends answered; closed"
    ),
    "e7 a renewal that lands after it was given up does not open the node": (
        "starts; held; fails PATCH held; renews; reached; ends answered; release PATCH; closed"
    ),
    "e7 a creation that lands after it was given up does not either": (
        "fails POST held; starts; reached; ends lost; release POST; closed"
    ),
    "e7 a renewal that got no answer is followed by the next": (
        "starts; often; held; fails PATCH lost; reached; written; held"
    ),
    "e7 what somebody else wrote is renewed at once": ("starts; held; predecessor_ends; closed; renews; held"),
    "a plugin that has no lease yet gives none up": "starts idle; ends; absent",
    "a node that is created again gets a lease of its own": "starts; often; held; node_again; held; owned",
    "a lease that may not be looked at is not created": ("fails all 403; starts; often; tried PATCH 4; absent"),
}
"""What happens, after ``every`` if it renews by itself so often; each step is a method of `Story`."""


@pytest.mark.parametrize("steps", STORIES.values(), ids=STORIES)
async def test_how_the_lease_stands(story: Callable[..., Story], steps: str, caplog: pytest.LogCaptureFixture) -> None:
    first, _, rest = steps.partition("; ")
    every = first.removeprefix("every ")
    await (story(float(every)).play(rest) if every != first else story().play(steps))
    assert "fails" in steps or not warnings(caplog), "somebody else's write is no fault"


async def test_an_api_server_that_fails_is_logged_once_and_the_lease_comes_back(
    story: Callable[..., Story], caplog: pytest.LogCaptureFixture
) -> None:
    made = story()
    await made.play("starts; often; held")
    for _ in range(2):
        caplog.clear()
        made.fails("all 500")
        await eventually(lambda: bool(warnings(caplog)))
        await asyncio.sleep(0.1)
        made.server.forgive()
        await made.written()
        assert len(warnings(caplog)) == 1


async def test_a_killed_plugin_leaves_it_to_run_out_by_itself(story: Callable[..., Story]) -> None:
    made = story()
    await made.play("starts; held")
    made.stop()
    observed, lease = ObservedLease(), made.decoded
    observed.observe(lease, now=100.0)
    assert not observed.expired(lease, now=99.9 + DURATION)
    assert observed.expired(lease, now=100.0 + DURATION)


def warnings(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name.endswith("node_lease")]
