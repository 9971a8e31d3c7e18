from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from neuron_plugin.cluster import (
    ApiRequest,
    KubernetesApi,
    LeaseName,
    Response,
    create_lease,
    renew_lease,
    send,
    utc_now,
)
from neuron_plugin.extender import feeds as module
from neuron_plugin.extender.feeds import Feeds
from neuron_plugin.extender.readiness import Readiness
from neuron_plugin.extender.state import ClusterState
from neuron_plugin.simulation import Fault, Match, StandInApiServer, node_manifest, pod_manifest
from neuron_plugin.topology import catalogue
from tests.extender.running import until
from tests.extender.world import DEVICE, World

LEASE = LeaseName("kube-system", "neuron-plugin-node", "node")


async def test_e07_a_lease_that_nobody_watches_has_not_run_out(
    server: StandInApiServer, api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An API server that refuses one watch for half a minute must not close every node."""
    monkeypatch.setattr(module, "TICK_SECONDS", 0.02)
    now = 0.0
    state = ClusterState(catalogue())
    feeds = Feeds(api, state, None, lease_namespace="kube-system", clock=lambda: now)
    leases = feeds._following["leases"]
    server.create_node(node_manifest("node", "trn1.32xlarge"))
    await send(api, create_lease(LEASE, duration_seconds=8, now=utc_now()), timeout_seconds=5)
    running = asyncio.create_task(feeds.run(Readiness({})), name="feeds")
    await until(lambda: "node" in state.nodes and leases.followed_seconds() > 0)

    now += 8
    await until(lambda: state.nodes["node"].stale)
    await send(api, renew_lease(LEASE, duration_seconds=8, now=utc_now()), timeout_seconds=5)
    await until(lambda: not state.nodes["node"].stale)

    server.fail(Fault(match=Match(path="/leases$"), status=500, times=10_000))
    server.end_watches()
    await until(lambda: not leases.followed_seconds())
    now += 30
    await asyncio.sleep(0.1)  # some looks, which see nothing
    assert not state.nodes["node"].stale

    server.forgive()
    await until(lambda: state.nodes["node"].stale)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_e07_a_plugin_that_stops_closes_its_node_with_its_word_and_not_with_the_next_look(
    server: StandInApiServer, api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TICK_SECONDS", 0.02)
    state = ClusterState(catalogue())
    feeds = Feeds(api, state, None, lease_namespace="kube-system")
    leases = feeds._following["leases"]
    server.create_node(node_manifest("node", "trn1.32xlarge"))
    await send(api, create_lease(LEASE, duration_seconds=600, now=utc_now()), timeout_seconds=5)
    async with asyncio.TaskGroup() as group:
        # Nobody looks from time to time here.
        tasks = [group.create_task(each.run(), name="feed") for each in feeds._following.values()]
        await until(lambda: "node" in state.nodes and leases.followed_seconds() > 0.02)
        await send(api, renew_lease(replace(LEASE, holder=""), duration_seconds=600, now=utc_now()), timeout_seconds=5)
        await until(lambda: state.nodes["node"].stale)
        await send(api, renew_lease(LEASE, duration_seconds=600, now=utc_now()), timeout_seconds=5)
        await until(lambda: not state.nodes["node"].stale)
        for task in tasks:
            task.cancel()


async def test_e04_a_pod_is_unbound_while_it_lives_and_has_no_node(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    feeds = Feeds(api, ClusterState(catalogue()), None)
    for name, amount, node in (("bound", 1, "node"), ("asks-for-nothing", 0, "")):
        server.create_pod(pod_manifest(name, DEVICE, amount, node=node) if amount else {"metadata": {"name": name}})
    await feeds.list_consistently(5)
    assert not feeds.any_unbound()

    server.create_pod(pod_manifest("waiting", DEVICE, 1))
    await feeds.list_consistently(5)
    assert feeds.any_unbound()

    server.set_pod_status("default", "waiting", {"phase": "Failed"})
    await feeds.list_consistently(5)
    assert not feeds.any_unbound()


INITIAL_END = {"resourceVersion": "1", "annotations": {"k8s.io/initial-events-end": "true"}}


class ToldServer:
    """An API server whose watches say what the test says, when it says it."""

    def __init__(self) -> None:
        self._lines: dict[str, asyncio.Queue[bytes]] = {}
        self._version = 1

    async def request(self, request: ApiRequest, *, timeout_seconds: float) -> Response:
        raise AssertionError(f"{request.path} was not to be asked within {timeout_seconds} s")

    @asynccontextmanager
    async def stream(self, request: ApiRequest, *, silence_seconds: float) -> AsyncIterator[AsyncIterator[bytes]]:
        assert silence_seconds > 0
        yield self._spoken(self._queue(request.path))

    def tell(self, kind: str, change: str, manifest: Mapping[str, Any]) -> None:
        """Put one event on the watch of a kind: ``pods`` or ``nodes``."""
        self._version += 1
        metadata = {**manifest["metadata"], "resourceVersion": str(self._version)}
        self._say(f"/api/v1/{kind}", change, {**manifest, "metadata": metadata})

    def end_of_list(self, kind: str) -> None:
        """What was told so far is the first list."""
        self._say(f"/api/v1/{kind}", "BOOKMARK", {"metadata": INITIAL_END})

    def _say(self, path: str, change: str, content: Mapping[str, Any]) -> None:
        self._queue(path).put_nowait(msgspec.json.encode({"type": change, "object": content}))

    def _queue(self, path: str) -> asyncio.Queue[bytes]:
        return self._lines.setdefault(path, asyncio.Queue())

    async def _spoken(self, lines: asyncio.Queue[bytes]) -> AsyncIterator[bytes]:
        while True:
            yield await lines.get()


@asynccontextmanager
async def following(server: ToldServer, world: World) -> AsyncIterator[None]:
    """The feeds of a state, synced, for the length of the block."""
    readiness = Readiness({"synced": "not yet"})
    for kind in ("nodes", "pods"):
        server.end_of_list(kind)
    task = asyncio.create_task(Feeds(server, world.state, None).run(readiness))
    await until(lambda: not readiness.why_not)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("change", "status"),
    [("DELETED", {"phase": "Running"}), ("MODIFIED", {"phase": "Succeeded"}), ("MODIFIED", {"phase": "Failed"})],
    ids=["deleted", "succeeded", "failed"],
)
async def test_t36_a_filter_within_100_ms_of_a_pods_end_sees_its_silicon_free(
    world: World, change: str, status: dict[str, str]
) -> None:
    """Time is faked: what passes here is timers and batches on the way from the event to the verdict, and none may be.

    So it holds on any machine, which the time on a clock would not.
    """
    server, loop = ToldServer(), asyncio.get_running_loop()
    held = pod_manifest("first", DEVICE, 16, node="node", annotations={"NEURON_DEVS": ",".join(map(str, range(16)))})
    server.tell("nodes", "ADDED", node_manifest("node", "trn1.32xlarge"))
    server.tell("pods", "ADDED", held)
    async with following(server, world):
        assert not world.fits(DEVICE, 16, "node")

        server.tell("pods", change, {**held, "status": status})
        started = loop.time()
        await until(lambda: world.fits(DEVICE, 16, "node"))

        assert loop.time() - started <= 0.1
