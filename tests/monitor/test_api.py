from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator
from typing import Any, Self

import aiohttp
import pytest

from neuron_plugin.allocation import NodeInfo
from neuron_plugin.monitor import api as module
from neuron_plugin.monitor.api import TIMES, Monitor, MonitorTimes
from neuron_plugin.monitor.views import NodeView, node_view
from neuron_plugin.placement.changes import StateChange
from neuron_plugin.placement.leadership import SYNCED, Readiness
from neuron_plugin.placement.state import ClusterState
from tests.support.manifests import container
from tests.support.served import served
from tests.support.world import CORE, DEVICE, World

TRN1 = "trn1.32xlarge"
BASE = "/apis/neuron-plugin.io/v1"


class Stage:
    """A world under a monitor, served on loopback."""

    def __init__(self, world: World, times: MonitorTimes) -> None:
        self.world = world
        self.changes = world.state.changes
        self.ready = Readiness({})
        self.monitor = Monitor(world.state, self.ready, times)
        self.url = ""

    async def get(self, path: str) -> tuple[int, Any]:
        async with aiohttp.ClientSession() as session, session.get(self.url + path) as response:
            text = await response.text()
            return response.status, json.loads(text) if response.content_type == "application/json" else text


@pytest.fixture
def times() -> MonitorTimes:
    return TIMES


@pytest.fixture
async def stage(times: MonitorTimes) -> AsyncIterator[Stage]:
    stage = Stage(World(version=1000), times)
    async with served(stage.monitor.routes()) as port:
        stage.url = f"http://127.0.0.1:{port}"
        try:
            yield stage
        finally:
            stage.monitor.stop()


class Watcher:
    """A client of one watch."""

    def __init__(self, stage: Stage, path: str) -> None:
        self._session = aiohttp.ClientSession()
        self._url = stage.url + path
        self._response: aiohttp.ClientResponse | None = None

    async def __aenter__(self) -> Self:
        self._response = await self._session.get(self._url)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._response:
            self._response.close()
        await self._session.close()

    async def event(self) -> tuple[str, Any]:
        assert self._response
        line = json.loads(await asyncio.wait_for(self._response.content.readline(), 5))
        return line["type"], line["object"]

    async def ended(self) -> bool:
        assert self._response
        return await asyncio.wait_for(self._response.content.readline(), 5) == b""


async def test_e06_discovery_names_both_resources(stage: Stage) -> None:
    status, found = await stage.get(BASE)

    assert status == 200
    assert found["kind"] == "APIResourceList"
    assert [(each["name"], each["verbs"]) for each in found["resources"]] == [
        ("neuronnodes", ["list", "watch"]),
        ("neuronpods", ["list", "watch"]),
    ]


async def test_e06_a_list_of_nodes_shows_what_is_free_held_and_broken(stage: Stage) -> None:
    stage.world.node("node", "inf1.6xlarge", unhealthy={3: "ECC"})
    stage.world.held("holder", "node", CORE, "0,1")

    _, found = await stage.get(f"{BASE}/neuronnodes")

    (node,) = found["items"]
    assert found["kind"] == "NeuronNodeList"
    assert int(found["metadata"]["resourceVersion"]) == stage.changes.version
    assert (node["spec"]["instanceType"], node["spec"]["devices"]) == ("inf1.6xlarge", 4)
    status = node["status"]
    assert status["open"] is True
    assert status["freeDevices"] == [1, 2]
    assert status["usedCores"] == [0, 1]
    assert status["unhealthyDevices"] == {"3": "ECC"}
    assert status["holders"][0]["name"] == "holder"
    assert status["holders"][0]["devices"] == [0]


NOT_KNOWN = {"known": False, "busyPercent": 0, "memoryBytes": 0, "idleSince": None}


async def test_e06_a_list_of_pods_says_what_they_ask_and_were_given(stage: Stage) -> None:
    stage.world.node("node", TRN1)
    stage.world.held("bound", "node", DEVICE, "0,1,2,3")
    stage.world.pod("waiting", CORE, 2)
    stage.world.pod("odd", containers=[container("main", CORE, "1.5")])

    _, found = await stage.get(f"{BASE}/neuronpods")

    pods = {each["metadata"]["name"]: each for each in found["items"]}
    assert pods["bound"]["spec"]["nodeName"] == "node"
    assert pods["bound"]["status"]["containers"] == [
        {"name": "main", "devices": [0, 1, 2, 3], "cores": [*range(8)], "utilization": NOT_KNOWN}
    ]
    assert pods["waiting"]["status"]["phase"] == "Waiting"
    assert pods["waiting"]["spec"]["containers"][0]["count"] == 2
    assert "1.5" in pods["odd"]["status"]["problem"]


async def test_a_watcher_of_pods_hears_that_a_device_of_a_pod_has_broken(stage: Stage) -> None:
    stage.world.node("node", TRN1)
    stage.world.held("pod", "node", DEVICE, "0,1,2,3")
    stage.world.pod("waits", DEVICE, 1)
    version = stage.changes.version

    async with Watcher(stage, f"{BASE}/neuronpods?watch=true&resourceVersion={version}") as watch:
        stage.world.node("node", TRN1, unhealthy={2: "ECC"})
        kind, pod = await watch.event()
        assert (kind, pod["metadata"]["name"], pod["status"]["problem"]) == (
            "MODIFIED",
            "pod",
            "device 2 unhealthy: ECC",
        )
        assert int(pod["metadata"]["resourceVersion"]) == version + 1
        stage.world.node("node", TRN1)
        assert (await watch.event())[1]["status"]["problem"] == ""


async def test_e06_a_watch_from_a_lists_version_shows_what_came_after_it(stage: Stage) -> None:
    stage.world.node("node", TRN1)
    _, listed = await stage.get(f"{BASE}/neuronpods")
    pod = stage.world.held("first", "node", DEVICE, "0")

    path = f"{BASE}/neuronpods?watch=true&resourceVersion={listed['metadata']['resourceVersion']}"
    async with Watcher(stage, path) as watcher:
        kind, added = await watcher.event()
        assert (kind, added["metadata"]["name"]) == ("ADDED", "first")
        stage.world.show({**pod, "metadata": {**pod["metadata"], "annotations": {"NEURON_DEVS": "1"}}})
        kind, changed = await watcher.event()
        assert (kind, changed["status"]["containers"][0]["devices"]) == ("MODIFIED", [1])
        assert int(changed["metadata"]["resourceVersion"]) > int(added["metadata"]["resourceVersion"])
        stage.world.gone(pod)
        assert (await watcher.event())[0] == "DELETED"


async def test_both_collections_are_had_in_one_list_and_one_watch(stage: Stage) -> None:
    stage.world.node("node", TRN1)
    stage.world.held("pod", "node", DEVICE, "0,1")
    _, found = await stage.get(f"{BASE}/neuronnodes,neuronpods")
    assert found["kind"] == "List"
    assert [(each["kind"], each["metadata"]["name"]) for each in found["items"]] == [
        ("NeuronNode", "node"),
        ("NeuronPod", "pod"),
    ]
    version = found["metadata"]["resourceVersion"]
    watch = f"{BASE}/neuronnodes,neuronpods?watch=true"
    async with Watcher(stage, watch) as watcher:
        begun = [await watcher.event() for _ in range(2)]
    assert begun == [("ADDED", each) for each in found["items"]]
    async with Watcher(stage, f"{watch}&resourceVersion={version}") as watcher:
        stage.world.node("node", TRN1, missing=[1])
        stage.world.pod("late", CORE, 1)
        seen = [await watcher.event() for _ in range(3)]
    assert [(change, each["kind"], each["metadata"]["name"]) for change, each in seen] == [
        ("MODIFIED", "NeuronNode", "node"),
        ("MODIFIED", "NeuronPod", "pod"),
        ("ADDED", "NeuronPod", "late"),
    ]
    assert "missing" in seen[1][1]["status"]["problem"]


async def test_e06_a_watch_without_a_version_begins_with_what_is_there(stage: Stage) -> None:
    stage.world.node("a", TRN1)
    stage.world.node("b", TRN1)

    async with Watcher(stage, f"{BASE}/neuronnodes?watch=true") as watcher:
        first = [(await watcher.event())[1]["metadata"]["name"] for _ in range(2)]
        stage.world.held("pod", "b", DEVICE, "0")
        kind, changed = await watcher.event()

    assert first == ["a", "b"]
    assert (kind, changed["metadata"]["name"]) == ("MODIFIED", "b")


LONG_NUMBER = f"watch=true&resourceVersion={'9' * 5000}"


@pytest.mark.parametrize(
    "query", ["fieldSelector=spec.nodeName%3Da", "labelSelector=x", "watch=true&resourceVersion=x", LONG_NUMBER]
)
async def test_what_is_not_understood_is_a_bad_request_that_says_so(stage: Stage, query: str) -> None:
    status, found = await stage.get(f"{BASE}/neuronpods?{query}")

    assert status == 400
    assert "expected" in found["message"]


@pytest.mark.parametrize("times", [MonitorTimes(bookmark=0.02)])
async def test_e06_bookmarks_move_the_version_when_nothing_selected_happens(stage: Stage) -> None:
    path = f"{BASE}/neuronpods?watch=true&allowWatchBookmarks=true&resourceVersion={stage.changes.version}"

    async with Watcher(stage, path) as watcher:
        stage.world.node("node", TRN1)
        kind, bookmark = await watcher.event()
        while int(bookmark["metadata"]["resourceVersion"]) < stage.changes.version:
            kind, bookmark = await watcher.event()

    assert kind == "BOOKMARK"
    assert bookmark["kind"] == "NeuronPod"


async def test_e06_a_version_that_left_the_log_is_gone(stage: Stage) -> None:
    for version in (1, 10**12):
        status, found = await stage.get(f"{BASE}/neuronnodes?watch=true&resourceVersion={version}")
        assert status == 410
        assert found["reason"] == "Expired"


async def test_e06_the_stream_of_a_lagging_watcher_ends_with_a_410(stage: Stage) -> None:
    async with Watcher(stage, f"{BASE}/neuronnodes?watch=true") as watcher:
        stage.world.node("node", TRN1)
        assert (await watcher.event())[0] == "ADDED"
        stage.changes._changes.clear()
        stage.changes.version += 5
        stage.changes.wake()

        kind, status = await watcher.event()
        assert (kind, status["code"]) == ("ERROR", 410)
        assert await watcher.ended()


@pytest.mark.parametrize("query", ["", "?watch=true&timeoutSeconds=1"], ids=["list", "watch"])
async def test_t45_what_takes_long_to_show_delays_no_other_answer(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    """Five thousand nodes take 0.4 s, and the scheduler's verbs are answered by the same loop."""
    begun, others_served = threading.Event(), threading.Event()

    def slow(state: ClusterState, info: NodeInfo, version: int) -> NodeView:
        begun.set()
        assert others_served.wait(5)
        return node_view(state, info, version)

    monkeypatch.setattr(module, "node_view", slow)
    stage.world.node("node", TRN1)
    asking = asyncio.create_task(stage.get(f"{BASE}/neuronnodes{query}"))
    await asyncio.to_thread(begun.wait, 5)

    assert (await stage.get(BASE))[0] == 200
    others_served.set()
    assert (await asking)[0] == 200


async def test_watches_end_when_the_server_stops_and_after_their_time(stage: Stage) -> None:
    async with Watcher(stage, f"{BASE}/neuronnodes?watch=true&timeoutSeconds=1") as short:
        assert await short.ended()
    async with Watcher(stage, f"{BASE}/neuronnodes?watch=true") as long:
        await asyncio.sleep(0)
        stage.monitor.stop()
        assert await long.ended()


@pytest.mark.parametrize("query", ["", "?watch=true"])
async def test_t30_until_the_first_lists_are_in_nothing_is_shown(stage: Stage, query: str) -> None:
    stage.ready.unmet(SYNCED, "the first lists are not in yet")

    status, found = await stage.get(f"{BASE}/neuronnodes{query}")

    assert (status, found["reason"]) == (503, "ServiceUnavailable")
    assert found["message"] == "the first lists are not in yet: try again in some seconds"


async def test_a_watch_above_the_limit_is_refused_until_another_ends(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_WATCHES", 1)
    async with Watcher(stage, f"{BASE}/neuronnodes?watch=true&timeoutSeconds=1") as first:
        status, found = await stage.get(f"{BASE}/neuronpods?watch=true")
        assert (status, found["reason"]) == (429, "TooManyRequests")
        assert (await stage.get(f"{BASE}/neuronpods"))[0] == 200
        assert await first.ended()

    async with Watcher(stage, f"{BASE}/neuronnodes?watch=true&timeoutSeconds=1") as second:
        assert await second.ended()


@pytest.mark.parametrize(("times", "expected"), [(TIMES, 1), (MonitorTimes(shared=-1.0), 2)], ids=["at once", "later"])
async def test_a_list_is_encoded_once_for_all_clients_until_something_changes_or_it_is_old(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, expected: int
) -> None:
    """An old one may have old renewals of Leases, which change no version."""
    encoded: list[str] = []
    encode = Monitor._encoded

    def counted(monitor: Monitor, kinds: tuple[str, ...], version: int, found: list[StateChange]) -> bytes:
        encoded.extend(kinds)
        return encode(monitor, kinds, version, found)

    monkeypatch.setattr(Monitor, "_encoded", counted)
    stage.world.node("a", TRN1)
    first, second = await stage.get(f"{BASE}/neuronnodes"), await stage.get(f"{BASE}/neuronnodes")
    assert (first, encoded) == (second, ["NeuronNode"] * expected)
    stage.world.node("b", TRN1)
    _, changed = await stage.get(f"{BASE}/neuronnodes")
    assert [each["metadata"]["name"] for each in changed["items"]] == ["a", "b"]


async def test_changes_that_come_together_are_encoded_once_for_all_watchers(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = []

    def counted(state: ClusterState, info: NodeInfo, version: int = 0) -> NodeView:
        shown.append(version)
        return node_view(state, info, version)

    monkeypatch.setattr(module, "node_view", counted)
    async with contextlib.AsyncExitStack() as stack:
        path = f"{BASE}/neuronnodes?watch=true&resourceVersion={stage.changes.version}"
        watchers = [await stack.enter_async_context(Watcher(stage, path)) for _ in range(5)]
        await asyncio.sleep(2 * TIMES.gather)  # all wait
        for name in ("one", "two"):
            stage.world.node(name, TRN1)
        seen = [[(await each.event())[1]["metadata"]["name"] for _ in range(2)] for each in watchers]

    assert seen == [["one", "two"]] * 5
    assert len(shown) == 2


async def test_a_watcher_that_leaves_takes_nothing_from_the_others(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def slow(state: ClusterState, info: NodeInfo, version: int = 0) -> NodeView:
        entered.set()
        go_on.wait(5)
        return node_view(state, info, version)

    monkeypatch.setattr(module, "node_view", slow)
    path = f"{BASE}/neuronnodes?watch=true&resourceVersion={stage.changes.version}"
    async with Watcher(stage, path) as stays:
        async with Watcher(stage, path):
            stage.world.node("node", TRN1)
            await asyncio.to_thread(entered.wait, 5)
        go_on.set()
        assert (await stays.event())[0] == "ADDED"
    assert not [each for each in caplog.records if each.exc_info]
