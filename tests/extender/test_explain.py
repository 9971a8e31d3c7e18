from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from neuron_plugin.extender.explain import inspection_routes
from tests.extender.served import served
from tests.extender.world import CORE, DEVICE, World
from tests.support.manifests import container

TRN1 = "trn1.32xlarge"


class Stage:
    """A world, looked at over HTTP."""

    def __init__(self, world: World, port: int) -> None:
        self.world = world
        self.url = f"http://127.0.0.1:{port}"

    async def get(self, path: str) -> tuple[int, Any]:
        async with aiohttp.ClientSession() as session, session.get(self.url + path) as response:
            text = await response.text()
            return response.status, json.loads(text) if response.content_type == "application/json" else text


@pytest.fixture
async def stage(world: World) -> AsyncIterator[Stage]:
    async with served(inspection_routes(world.state)) as port:
        yield Stage(world, port)


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
