from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any, Self

import aiohttp
import pytest
from aiohttp import web

from neuron_plugin.extender import change_log, framing, monitor
from neuron_plugin.extender.explain import inspection_routes
from neuron_plugin.extender.monitor import Json, Monitor, node_object, pod_object
from neuron_plugin.extender.server import application, runner
from neuron_plugin.extender.state import ChangeLog, NodeInfo
from neuron_plugin.simulation import container, node_manifest, pod_manifest
from tests.extender.world import CORE, DEVICE, World, record_of

TRN1 = "trn1.32xlarge"
BASE = "/apis/neuron-plugin.io/v1"


class Stage:
    """A world under a monitor, served on loopback."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.changes = ChangeLog(1000)
        world.state.observe(self.changes)
        self.monitor = Monitor(world.state, self.changes)
        self.url = ""

    async def get(self, path: str) -> tuple[int, Any]:
        async with aiohttp.ClientSession() as session, session.get(self.url + path) as response:
            text = await response.text()
            return response.status, json.loads(text) if response.content_type == "application/json" else text


@pytest.fixture
async def stage(world: World) -> AsyncIterator[Stage]:
    stage = Stage(world)
    serving = runner(application([*stage.monitor.routes(), *inspection_routes(world.state)], 1))
    await serving.setup()
    await web.TCPSite(serving, "127.0.0.1", 0).start()
    stage.url = f"http://127.0.0.1:{serving.addresses[0][1]}"
    try:
        yield stage
    finally:
        stage.monitor.stop()
        await serving.cleanup()


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


async def test_e06_a_list_of_nodes_says_what_is_free_held_and_broken(stage: Stage) -> None:
    stage.world.node("node", "inf1.6xlarge", unhealthy={3: "ECC"})
    stage.world.held("holder", "node", CORE, "0,1")

    _, found = await stage.get(f"{BASE}/neuronnodes")

    (node,) = found["items"]
    assert found["kind"] == "NeuronNodeList"
    assert int(found["metadata"]["resourceVersion"]) == stage.changes.version
    assert node["spec"] == {"instanceType": "inf1.6xlarge", "topology": "line", "devices": 4, "coresPerDevice": 4}
    status = node["status"]
    assert status["open"] is True
    assert status["freeDevices"] == "1,2"
    assert status["usedCores"] == "0,1"
    assert status["unhealthyDevices"] == {"3": "ECC"}
    assert status["holders"][0]["name"] == "holder"
    assert status["holders"][0]["devices"] == "0"


async def test_e06_a_list_of_pods_says_what_they_ask_and_were_given(stage: Stage) -> None:
    stage.world.node("node", TRN1)
    stage.world.held("bound", "node", DEVICE, "0,1,2,3")
    stage.world.pod("waiting", CORE, 2)
    stage.world.pod("odd", containers=[container("main", CORE, "1.5")])

    _, found = await stage.get(f"{BASE}/neuronpods")

    pods = {each["metadata"]["name"]: each for each in found["items"]}
    assert pods["bound"]["spec"]["nodeName"] == "node"
    assert pods["bound"]["status"]["containers"] == [{"name": "main", "ids": "0,1,2,3"}]
    assert pods["waiting"]["status"]["phase"] == "Waiting"
    assert pods["waiting"]["spec"]["containers"][0]["count"] == 2
    assert "1.5" in pods["odd"]["status"]["problem"]


async def test_e06_a_watch_from_a_lists_version_tells_what_came_after_it(stage: Stage) -> None:
    stage.world.node("node", TRN1)
    _, listed = await stage.get(f"{BASE}/neuronpods")
    pod = stage.world.held("first", "node", DEVICE, "0")

    path = f"{BASE}/neuronpods?watch=true&resourceVersion={listed['metadata']['resourceVersion']}"
    async with Watcher(stage, path) as watcher:
        kind, added = await watcher.event()
        assert (kind, added["metadata"]["name"]) == ("ADDED", "first")
        stage.world.show({**pod, "metadata": {**pod["metadata"], "annotations": {"NEURON_DEVS": "1"}}})
        kind, changed = await watcher.event()
        assert (kind, changed["status"]["containers"][0]["ids"]) == ("MODIFIED", "1")
        assert int(changed["metadata"]["resourceVersion"]) > int(added["metadata"]["resourceVersion"])
        stage.world.gone(pod)
        assert (await watcher.event())[0] == "DELETED"


async def test_e06_a_watch_without_a_version_begins_with_what_is_there(stage: Stage) -> None:
    stage.world.node("a", TRN1)
    stage.world.node("b", TRN1)

    async with Watcher(stage, f"{BASE}/neuronnodes?watch=true") as watcher:
        first = [(await watcher.event())[1]["metadata"]["name"] for _ in range(2)]
        stage.world.held("pod", "b", DEVICE, "0")
        kind, changed = await watcher.event()

    assert first == ["a", "b"]
    assert (kind, changed["metadata"]["name"]) == ("MODIFIED", "b")


@pytest.mark.parametrize(
    "selector",
    [
        "fieldSelector=spec.nodeName%3Db",
        "labelSelector=neuron-plugin.io/node%3Db",
        "fieldSelector=metadata.namespace%3D%3Ddefault,spec.nodeName!%3Da",
    ],
)
async def test_e06_selectors_narrow_lists_and_watches(stage: Stage, selector: str) -> None:
    stage.world.node("a", TRN1)
    stage.world.node("b", TRN1)
    stage.world.held("on-a", "a", DEVICE, "0")
    stage.world.held("on-b", "b", DEVICE, "0")

    _, found = await stage.get(f"{BASE}/neuronpods?{selector}")
    assert [each["metadata"]["name"] for each in found["items"]] == ["on-b"]


async def test_e06_a_pod_that_comes_to_be_selected_is_added_and_one_that_leaves_is_deleted(stage: Stage) -> None:
    pod = stage.world.pod("pod", DEVICE, 1)
    version = stage.changes.version
    path = f"{BASE}/neuronpods?watch=1&resourceVersion={version}&fieldSelector=spec.nodeName%3Dnode"

    async with Watcher(stage, path) as watcher:
        bound = {**pod, "spec": {**pod["spec"], "nodeName": "node"}}
        stage.world.show(bound)
        assert (await watcher.event())[0] == "ADDED"
        stage.world.gone(bound)
        assert (await watcher.event())[0] == "DELETED"


LONG_NUMBER = f"watch=true&resourceVersion={'9' * 5000}"


@pytest.mark.parametrize(
    "query", ["fieldSelector=spec.color%3Dred", "labelSelector=x", "watch=true&resourceVersion=x", LONG_NUMBER]
)
async def test_what_is_not_understood_is_a_bad_request_that_says_so(stage: Stage, query: str) -> None:
    status, found = await stage.get(f"{BASE}/neuronpods?{query}")

    assert status == 400
    assert "expected" in found["message"]


async def test_e06_bookmarks_move_the_version_when_nothing_selected_happens(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "BOOKMARK_SECONDS", 0.02)
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


async def test_e06_a_watcher_that_falls_behind_is_told_to_list_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_log, "MOST_CHANGES", 4)
    changes = ChangeLog(0)
    world.state.observe(changes)
    for number in range(3):
        world.node(f"node-{number}", TRN1)
    assert changes.knows(0)
    assert [change.version for change in changes.after(1)] == [2, 3]

    for number in range(3, 9):
        world.node(f"node-{number}", TRN1)

    assert not changes.knows(3)
    assert changes.knows(5)
    assert len(changes.after(5)) == 4


async def test_e06_the_stream_of_a_lagging_watcher_ends_with_a_410(stage: Stage) -> None:
    async with Watcher(stage, f"{BASE}/neuronnodes?watch=true") as watcher:
        stage.world.node("node", TRN1)
        assert (await watcher.event())[0] == "ADDED"
        stage.changes._changes.clear()
        stage.changes._version += 5
        stage.changes.wake()

        kind, status = await watcher.event()
        assert (kind, status["code"]) == ("ERROR", 410)
        assert await watcher.ended()


@pytest.mark.parametrize("query", ["", "?watch=true&timeoutSeconds=1"], ids=["list", "watch"])
async def test_t45_what_takes_long_to_tell_keeps_nobody_else_waiting(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    """Five thousand nodes take 0.4 s, and the scheduler's verbs are answered by the same loop."""
    begun, others_served = threading.Event(), threading.Event()

    def slow(record: NodeInfo, version: int) -> Json:
        begun.set()
        assert others_served.wait(5)
        return node_object(record, version)

    monkeypatch.setattr(framing, "node_object", slow)
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


async def test_inspect_shows_all_nodes_or_one_with_its_holders(stage: Stage) -> None:
    stage.world.node("open", TRN1, unhealthy={9: "ECC"})
    stage.world.held("holder", "open", DEVICE, "0,1")
    stage.world.node("closed", TRN1)
    stage.world.pod("stock", DEVICE, 1, node="closed")
    stage.world.show_node({"metadata": {"name": "plain", "uid": "p"}})

    _, overview = await stage.get("/inspect")
    _, one = await stage.get("/inspect/open")
    _, closed = await stage.get("/inspect/closed")
    _, as_json = await stage.get("/inspect/open?format=json")

    lines = overview.splitlines()
    assert [line.split()[0] for line in lines] == ["NODE", "closed", "open", "plain"]
    assert lines[2].split()[1] == TRN1
    assert "The node has no Neuron devices" in lines[3]
    assert "default/holder holds cores 0,1,2,3" in one
    assert "unhealthy: device 9: ECC" in one
    assert "closed: pod default/stock is bound and has no assignment yet" in closed
    assert as_json[0]["status"]["usedDevices"] == "0,1"
    assert (await stage.get("/inspect/ghost"))[0] == 404


async def test_explain_says_which_sets_are_in_whose_way(stage: Stage) -> None:
    stage.world.node("free", TRN1)
    stage.world.node("full", TRN1, unhealthy={12: "ECC"})
    stage.world.node("closed", TRN1)
    stage.world.pod("stock", DEVICE, 1, node="closed")
    for device in (0, 4, 8):
        stage.world.held(f"holder-{device}", "full", DEVICE, str(device))
    stage.world.pod("new", DEVICE, 4)

    _, text = await stage.get("/explain/default/new")
    _, as_json = await stage.get("/explain/default/new?format=json")

    assert text.splitlines() == [
        "default/new asks for main: 4 aws.amazon.com/neuron",
        "free: fits, would get main: devices 0,1,2,3",
        "closed: A pod on the node uses Neuron and its assignment is not known yet",
        "  pod default/stock is bound and has no assignment yet",
        "full: No free linked set of 4 Neuron devices",
        "  devices 0,1,2,3: held by default/holder-0",
        "  devices 4,5,6,7: held by default/holder-4",
        "  devices 8,9,10,11: held by default/holder-8",
        "  devices 12,13,14,15: unhealthy or missing: 12",
    ]
    assert as_json["nodes"][0] == {
        "node": "free",
        "fits": True,
        "reason": "",
        "sets": ["main: devices 0,1,2,3"],
        "blocked": [],
        "details": [],
    }
    assert as_json["nodes"][2]["blocked"][-1] == {
        "ids": "devices 12,13,14,15",
        "holders": [],
        "unhealthyDevices": [12],
    }
    assert (await stage.get("/explain/default/ghost"))[0] == 404


async def test_explain_of_a_bound_or_unreadable_pod_says_so(stage: Stage) -> None:
    stage.world.node("node", TRN1)
    stage.world.held("bound", "node", DEVICE, "0")
    stage.world.pod("odd", containers=[container("main", CORE, "1.5")])

    assert "is bound, or being bound, to node" in (await stage.get("/explain/default/bound"))[1]
    assert "1.5" in (await stage.get("/explain/default/odd"))[1]


def shown(world: World, name: str) -> dict[str, Any]:
    record: NodeInfo = world.state.nodes[name]
    return node_object(record, 7)


def test_e06_an_object_carries_version_uid_and_labels(world: World) -> None:
    world.node("node", "inf2.48xlarge")

    metadata = shown(world, "node")["metadata"]

    assert metadata["resourceVersion"] == "7"
    assert metadata["uid"] == world.state.nodes["node"].node.uid
    assert metadata["labels"] == {"neuron-plugin.io/node": "node"}


def test_e06_a_closed_node_says_why_and_in_detail_which_pod(world: World) -> None:
    world.node("node", "inf2.48xlarge", missing=[2])
    world.pod("stock", DEVICE, 1, node="node")

    status = shown(world, "node")["status"]

    assert status["open"] is False
    assert status["reason"] == "A pod on the node uses Neuron and its assignment is not known yet"
    assert status["details"] == ["pod default/stock is bound and has no assignment yet"]
    assert status["missingDevices"] == "2"


def test_e06_a_node_without_known_hardware_has_an_empty_spec_and_the_cause(world: World) -> None:
    manifest = node_manifest("node", "inf2.48xlarge")
    manifest["metadata"]["annotations"] = {"neuron-plugin.io/inventory": '{"version":2}'}
    world.show_node(manifest)

    found = shown(world, "node")

    assert found["spec"] == {}
    assert found["status"]["open"] is False
    assert "version is 2, expected 1" in found["status"]["details"][0]


def test_e06_phases_follow_binding_and_deletion() -> None:
    waiting = pod_manifest("pod", DEVICE, 1)
    bound = {**waiting, "spec": {**waiting["spec"], "nodeName": "node"}}
    ending = {**bound, "metadata": {**bound["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}

    phases = [pod_object(record_of(each), 1)["status"]["phase"] for each in (waiting, bound, ending)]  # type: ignore[index]  # JSON

    assert phases == ["Waiting", "Bound", "Terminating"]


def test_e06_a_pods_containers_are_told_with_kind_resource_and_ids() -> None:
    manifest = pod_manifest(
        "pod",
        containers=[container("main", CORE, 2)],
        init_containers=[container("setup", CORE, 2)],
        node="node",
        annotations={"NEURON_CORES": "0,1|0,1", "NEURON_ALLOCATED": "true"},
    )

    found: dict[str, Any] = pod_object(record_of(manifest), 1)

    assert [(each["name"], each["kind"], each["count"]) for each in found["spec"]["containers"]] == [
        ("setup", "init", 2),
        ("main", "app", 2),
    ]
    assert found["status"]["allocated"] is True
    assert [each["ids"] for each in found["status"]["containers"]] == ["0,1", "0,1"]


def test_e06_an_assignment_that_cannot_be_read_is_told_as_a_problem() -> None:
    found: dict[str, Any] = pod_object(record_of(pod_manifest("pod", CORE, 1, annotations={"NEURON_CORES": "x"})), 1)

    assert "NEURON_CORES='x'" in found["status"]["problem"]
