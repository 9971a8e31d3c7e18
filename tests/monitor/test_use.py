"""How many devices are used: counted, as a metric, and as a Prometheus remembers it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.registry import Collector

from neuron_plugin.allocation import Resource
from neuron_plugin.monitor.use import Use, UseError, past_use, use_metric, use_of
from tests.support.manifests import node_manifest
from tests.support.served import served
from tests.support.world import World

TRN1, INF2 = "trn1.32xlarge", "inf2.48xlarge"
DEVICE, CORE = Resource.NEURON, Resource.NEURONCORE


def test_used_free_unlinked_and_other_devices_are_counted() -> None:
    world = World()
    world.node("torus", TRN1, unhealthy={15: "ECC"}, missing=[14])
    world.held("row", "torus", DEVICE, "0,1,2,3")
    world.held("half", "torus", CORE, "8")
    world.node("ring", INF2)
    world.node("closed", INF2)
    world.held("unreadable", "closed", DEVICE, "77")
    # torus: 4 + 1 used, 9 free with a linked row of 4, 2 not usable; ring: all free; closed: nothing can be given.
    assert use_of(world.state.nodes.values(), 5) == Use(5, 5, 4 + 12, 5, 2 + 12, 0)


def test_devices_of_pods_that_break_and_those_of_a_cordoned_node_are_not_counted_as_before() -> None:
    world = World()
    world.node("torus", TRN1, missing=[0, 1], unhealthy={2: "ECC"})
    world.held("row", "torus", DEVICE, "0,1,2,3")
    cordoned = node_manifest("ring", INF2)
    world.show_node({**cordoned, "spec": {"unschedulable": True}})
    # torus: 3 of 4 used ones are broken, 12 free with a linked block of 8; ring: takes no pod.
    assert use_of(world.state.nodes.values(), 5) == Use(5, 1, 8, 4, 12, 3)


def test_the_counts_are_a_metric_where_nodes_are_known() -> None:
    world = World()
    world.node("torus", TRN1, missing=[0])
    world.held("row", "torus", DEVICE, "0,1,2,3")

    class Found(Collector):
        def collect(self) -> Any:
            return use_metric(world.state.nodes.values())

    text = generate_latest(Found()).decode()
    values = {line.split('"')[1]: float(line.split()[-1]) for line in text.splitlines() if not line.startswith("#")}
    assert values == {"used": 3, "broken": 1, "free": 8, "unlinked": 4, "other": 0}
    assert list(use_metric([])) == []


@asynccontextmanager
async def prometheus(answer: web.Response, asked: list[dict[str, str]]) -> AsyncIterator[str]:
    async def query_range(request: web.Request) -> web.Response:
        asked.append(dict(request.query))
        return answer

    async with served([web.get("/prom/api/v1/query_range", query_range)]) as port:
        yield f"http://127.0.0.1:{port}/prom/"


async def test_prometheus_is_asked_for_the_metric_and_its_series_become_counts() -> None:
    result = [
        {"metric": {"state": "used"}, "values": [[1000, "3"], [1030.5, "4"]]},
        {"metric": {"state": "free"}, "values": [[1000, "9"]]},
        {"metric": {"state": "broken"}, "values": [[1030.5, "1"]]},
    ]
    body = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    asked: list[dict[str, str]] = []
    async with prometheus(web.json_response(body), asked) as url:
        found = await past_use(url, 1000.0, 1060.0, 30.0)
    query = "max by (state) (neuron_extender_devices)"
    assert asked == [{"query": query, "start": "1000.0", "end": "1060.0", "step": "30.0"}]
    assert found == [Use(1000, 3, 9, 0, 0, 0), Use(1030, 4, 0, 0, 0, 1)]


@pytest.mark.parametrize(
    "answer",
    [
        lambda: web.json_response({"status": "error", "error": "bad_data"}, status=400),
        lambda: web.Response(text="<html>"),
        lambda: web.json_response({"data": {"result": [{"metric": {}, "values": [[1, "x"]]}]}}),
    ],
    ids=["refuses", "is something else", "gives no number"],
)
async def test_a_prometheus_that_does_not_say_is_an_error_that_names_it(answer: Any) -> None:
    async with prometheus(answer(), []) as url:
        with pytest.raises(UseError, match=r"/prom/api/v1/query_range: \w"):
            await past_use(url, 0.0, 1.0, 1.0)
    with pytest.raises(UseError, match="query_range: "):
        await past_use("http://127.0.0.1:9", 0.0, 1.0, 1.0)
