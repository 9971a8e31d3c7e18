"""This node's pods, from the API server into the node's inputs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace

import msgspec
import pytest

from neuron_plugin.allocation.claims import PodClaim
from neuron_plugin.allocation.keys import NODE_KEY, POD_UID_KEY
from neuron_plugin.cluster import ApiRequest
from neuron_plugin.cluster.api import Response
from neuron_plugin.plugin import pod_watch as module
from neuron_plugin.plugin.inputs import NodePods
from neuron_plugin.plugin.metrics import new_counts
from neuron_plugin.plugin.node import LocalNode
from neuron_plugin.plugin.pod_watch import ClaimWatch, PodWatch
from tests.plugin.desk import FakeCgroups, LoopClock, running
from tests.plugin.site import NAMESPACE, NODE, eventually, manifest
from tests.plugin.world import app, inventory, pod, uid_of
from tests.simulation.dra import DRIVER, claim_spec
from tests.support.api_server import Fault, Match, StandInApiServer
from tests.support.model_kubelet import checkpoint_file
from tests.support.scripted_server import ScriptedServer


def a_node() -> LocalNode:
    node = LocalNode(checkpoint_file(), FakeCgroups(), clock=LoopClock())
    node.see_inventory(inventory())
    return node


class Watched:
    """An API server, and what a node knows of its pods."""

    def __init__(self, own_uid: str, deadline_seconds: float = 5.0, connect_seconds: float = 600.0) -> None:
        self.server, self.counts = StandInApiServer(), new_counts()
        for name in (NODE, "other"):
            self.server.create_node({"metadata": {"name": name}})
        self.node = a_node()
        self.watch = PodWatch(self.node, NODE, own_uid, deadline_seconds, self.counts, connect_seconds=connect_seconds)

    def create(self, name: str, *, asks: bool = True, node: str = NODE) -> None:
        self.server.create_pod(manifest(name, uid_of(name), (app(1),) if asks else ()))
        self.server.bind(NAMESPACE, name, node=node)

    def names(self) -> set[str]:
        return {pod.reference.name for pod in self.node.pods.pods.values()}


@asynccontextmanager
async def a_watch(*names: str, own: str = "", runs: bool = True, **times: float) -> AsyncIterator[Watched]:
    """A node whose pods are watched; ``own`` is the plugin's own pod."""
    watched = Watched(uid_of(own) if own else "", **times)
    for name in names:
        watched.create(name)
    async with running(watched.watch.run(watched.server)) if runs else nullcontext():
        if runs:
            await eventually(lambda: bool(watched.counts["lists_total"]))
        yield watched


async def test_all_pods_of_this_node_are_taken_in_whether_they_ask_for_neuron_or_not() -> None:
    async with a_watch("a") as watched:
        watched.create("monitor", asks=False)
        watched.create("elsewhere", node="other")
        await eventually(lambda: watched.names() == {"a", "monitor"})
        assert [pod.reference.name for pod in watched.node.pods.asking] == ["a"]
        assert watched.node.pods.listed_at is not None


async def test_the_pods_that_were_promised_this_node_are_known_until_they_are_bound() -> None:
    def placed(name: str, node: str) -> dict[str, object]:
        made = manifest(name, uid_of(name), (app(1),))
        made["metadata"]["annotations"] = {NODE_KEY: node, POD_UID_KEY: uid_of(name), "NEURON_DEVS": "3"}
        made["metadata"]["labels"] = {NODE_KEY: NODE}
        return made

    async with a_watch() as watched:
        for name, node in (("here", NODE), ("long-name", "other")):
            watched.server.create_pod(placed(name, node))
        await eventually(lambda: [pod.reference.name for pod in watched.node.pods.promised] == ["here"])
        assert not watched.names()
        watched.server.bind(NAMESPACE, "here", node=NODE)
        await eventually(lambda: watched.names() == {"here"} and not watched.node.pods.promised)


async def test_p36_a_list_on_request_shows_what_the_watch_has_not_shown_yet() -> None:
    async with a_watch() as watched:
        before = watched.node.pods.listed_at
        watched.create("a")
        await watched.watch.list_pods()
        assert watched.names() == {"a"}
        assert before is not None
        assert watched.node.pods.listed_at is not None
        assert watched.node.pods.listed_at > before


async def test_only_a_list_that_shows_the_plugins_own_pod_ends_pods() -> None:
    """Another may be of another node, or filtered."""
    async with a_watch("plugin", "a", own="plugin") as watched:
        assert watched.node.pods.listed_at is not None
        watched.server.delete_pod(NAMESPACE, "a", grace_seconds=0)
        await watched.watch.list_pods()
        await eventually(lambda: watched.names() == {"plugin"})
    async with a_watch("a", own="plugin") as watched:
        assert (watched.names(), watched.node.pods.listed_at) == ({"a"}, None)
        watched.server.delete_pod(NAMESPACE, "a", grace_seconds=0)
        await watched.watch.list_pods()
        watched.create("b")
        await eventually(lambda: watched.names() == {"a", "b"})
        assert not watched.node.pods.ended


async def test_p44_a_list_that_gets_no_answer_is_given_up_at_the_deadline(caplog: pytest.LogCaptureFixture) -> None:
    async with a_watch("a", deadline_seconds=0.1) as watched:
        watched.server.fail(Fault(Match("GET", "/pods", watch=False), delay_seconds=600))
        async with asyncio.timeout(5):
            await watched.watch.list_pods()
        assert watched.names() == {"a"}
    assert [record.message for record in caplog.records if record.name == module.__name__] == [
        "answering without a LIST of pods"
    ]


async def test_p61_a_list_before_there_is_a_client_waits_for_it_but_not_for_ever() -> None:
    async with a_watch(runs=False, connect_seconds=0.05) as watched:
        began = asyncio.get_running_loop().time()
        await watched.watch.list_pods()
        assert asyncio.get_running_loop().time() - began >= 0.05
    async with a_watch(runs=False) as watched:
        watched.watch.tried.set()  # the settings cannot be used
        async with asyncio.timeout(5):
            await watched.watch.list_pods()
        assert watched.watch.age_seconds is None


async def test_without_a_connection_the_api_server_is_neither_asked_nor_said_to_be_heard() -> None:
    async with a_watch("a") as watched:
        pass
    asked = len(watched.server.requests)
    await watched.watch.list_pods()
    assert len(watched.server.requests) == asked
    assert watched.watch.age_seconds is None
    assert watched.names() == {"a"}


async def test_lists_and_ends_of_the_watch_are_counted() -> None:
    async with a_watch() as watched:
        await watched.watch.list_pods()
        assert watched.counts["lists_total"]["pods",] >= 2
        assert watched.watch.age_seconds is not None
        watched.server.end_watches()
        await eventually(lambda: bool(watched.counts["watch_restarts_total"]["pods", "end"]))


# Claims.


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
    claims, node = Claims(), a_node()
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
