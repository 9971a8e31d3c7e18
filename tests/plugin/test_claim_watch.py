"""A claim of this node's pods is read until it is known and reserved for its pod, and then no more."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import msgspec
import pytest

from neuron_plugin.allocation.claims import PodClaim
from neuron_plugin.cluster import ApiRequest
from neuron_plugin.cluster.api import Response
from neuron_plugin.plugin.claim_watch import ClaimWatch
from neuron_plugin.plugin.inputs import NodePods
from tests.plugin.test_node import Bench
from tests.plugin.world import app, pod, uid_of
from tests.simulation.dra import DRIVER, claim_spec
from tests.support.scripted_server import ScriptedServer


class Claims:
    """An API server with one claim, which a test reserves."""

    def __init__(self) -> None:
        self.reserved_for: list[str] = []
        self.server = ScriptedServer(self._answer)

    async def _answer(self, _: ApiRequest) -> Response:
        reserved = [{"resource": "pods", "name": "a", "uid": uid} for uid in self.reserved_for]
        metadata = {"name": "neurons", "namespace": "ml", "uid": "c"}
        claim = {"metadata": metadata, "spec": claim_spec(), "status": {"reservedFor": reserved}}
        return Response(200, msgspec.json.encode(claim))

    async def reads_in(self, seconds: float) -> int:
        """How often the claim is read meanwhile."""
        before = len(self.server.requests)
        await asyncio.sleep(seconds)
        return len(self.server.requests) - before


@pytest.mark.looptime
async def test_a_claim_is_read_until_it_is_reserved_for_its_pod_and_then_no_more() -> None:
    claims, node = Claims(), Bench().started()
    user = replace(pod("a", app(1)), claims=(PodClaim("neurons", "neurons", (("main", ""),)),))
    node.see_pods(NodePods({user.uid: user}, listed_at=0.0))
    watch = ClaimWatch(node, DRIVER)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(watch.run(claims.server))
        assert await claims.reads_in(10.5) >= 10
        claims.reserved_for = [uid_of("b")]
        assert await claims.reads_in(10.5) >= 10
        claims.reserved_for.append(user.uid)
        await claims.reads_in(1.5)
        assert await claims.reads_in(10.5) == 0
        (known,) = node.claims.values()
        assert known.reserved_for == tuple(claims.reserved_for)
        running.cancel()
