from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from neuron_plugin.allocation import NodeInventory, PodReference, PodUid
from neuron_plugin.allocation.inventory import write_inventory
from neuron_plugin.allocation.keys import (
    GROUP_KEY,
    GROUP_SIZE_KEY,
    INVENTORY_KEY,
    POD_UID_KEY,
    RELEASED_KEY,
    SPARES_KEY,
)
from neuron_plugin.allocation.node import Reservation
from neuron_plugin.allocation.rejection import unsupported_count
from neuron_plugin.monitor.pages import inspection_routes
from neuron_plugin.monitor.views import pod_view
from neuron_plugin.placement.leadership import Readiness
from neuron_plugin.topology import Unit
from tests.support.manifests import container, gated_manifest, node_manifest, shipped_geometry
from tests.support.served import served
from tests.support.world import CORE, DEVICE, World

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
    async with served(inspection_routes(world.state, Readiness({}))) as port:
        yield Stage(world, port)


async def test_inspect_shows_all_nodes_or_one_with_its_holders(stage: Stage) -> None:
    stage.world.node("open", TRN1, unhealthy={9: "ECC"}, disabled=[4, 5])
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
    assert "default/holder holds cores 0-3" in one
    assert "unhealthy: device 9: ECC" in one
    assert "disabled: 4-5" in one
    assert "closed: pod default/stock is bound and has no assignment yet" in closed
    assert as_json[0]["status"]["usedDevices"] == [0, 1]
    assert (await stage.get("/inspect/ghost"))[0] == 404


async def test_explain_says_which_sets_are_in_whose_way(stage: Stage) -> None:
    stage.world.node("free", TRN1)
    stage.world.node("full", TRN1, unhealthy={12: "ECC"}, disabled=[8])
    stage.world.node("closed", TRN1)
    stage.world.pod("stock", DEVICE, 1, node="closed")
    for device in (0, 4):
        stage.world.held(f"holder-{device}", "full", DEVICE, str(device))
    stage.world.pod("new", DEVICE, 4)

    _, text = await stage.get("/explain/default/new")
    _, as_json = await stage.get("/explain/default/new?format=json")

    assert text.splitlines() == [
        "default/new asks for main: 4 aws.amazon.com/neuron (schedulerName: default-scheduler)",
        "free: fits, would get main: devices 0-3",
        "full: has 12 of 16 devices free, but no linked set of 4",
        "  devices 0-3: held by default/holder-0",
        "  devices 4-7: held by default/holder-4",
        "  devices 8-11: disabled: 8",
        "  devices 12-15: unhealthy or missing: 12",
        "closed: has a pod whose Neuron assignment is not known yet",
        "  pod default/stock is bound and has no assignment yet",
    ]
    assert (as_json["standing"], as_json["sentence"], as_json["inTheWay"]) == ("fits", "", [])
    nothing: dict[str, list[int]] = {"holders": [], "unhealthyDevices": [], "disabledDevices": []}
    assert as_json["nodes"][0] == {
        "node": "free",
        "fits": True,
        "reasons": [],
        "sets": [{"container": "main", "unit": "device", "ids": [0, 1, 2, 3], **nothing}],
        "blocked": [],
        "moreBlocked": 0,
        "details": [],
    }
    sick = {**nothing, "unhealthyDevices": [12]}
    assert as_json["nodes"][1]["reasons"] == ["has 12 of 16 devices free, but no linked set of 4"]
    assert as_json["nodes"][1]["blocked"][-1] == {
        "container": "main",
        "unit": "device",
        "ids": [12, 13, 14, 15],
        **sick,
    }
    assert (await stage.get("/explain/default/ghost"))[0] == 404


async def test_explain_says_why_a_pod_waits_who_is_in_the_way_and_what_would_help(stage: Stage) -> None:
    for name in ("a", "b"):
        stage.world.node(name, TRN1)
        for device in (0, 4, 8, 12) if name == "a" else range(16):
            stage.world.held(f"{name}{device}", name, DEVICE, str(device), priority=1)
    stage.world.show_node({"metadata": {"name": "plain", "uid": "p"}})
    stage.world.pod("row", DEVICE, 4)
    stage.world.pod("all", DEVICE, 16)

    (_, row), (_, whole) = [await stage.get(f"/explain/default/{name}?format=json") for name in ("row", "all")]
    _, text = await stage.get("/explain/default/row")

    counted = "0 of 2 Neuron nodes: 1 has 0 of 16 devices free, 1 has 12 of 16 devices free, but no linked set of 4"
    assert (row["standing"], row["sentence"]) == ("short", f"{counted}; 1 node has no Neuron")
    assert row["inTheWay"] == ["default/a0"]
    assert (whole["standing"], whole["inTheWay"]) == ("short", [f"default/a{device}" for device in (0, 4, 8, 12)])
    assert text.splitlines()[1] == f"{counted}; 1 node has no Neuron."
    assert [line.partition(":")[0] for line in text.splitlines() if not line.startswith(" ")][2:] == [
        *("a", "b", "plain"),
        "In the way",
    ]
    assert text.splitlines()[-1] == "In the way: default/a0."


async def test_explain_of_a_bound_or_unreadable_pod_says_so_and_what_is_wrong_with_its_devices(stage: Stage) -> None:
    stage.world.node("node", TRN1)
    stage.world.held("bound", "node", DEVICE, "0")
    stage.world.pod("odd", containers=[container("main", CORE, "1.5")])

    text = (await stage.get("/explain/default/bound"))[1]
    assert "The pod is bound, or being bound, to node. It was assigned main: device 0." in text
    assert "1.5" in (await stage.get("/explain/default/odd"))[1]

    stage.world.node("node", TRN1, unhealthy={0: "ECC"})
    _, as_json = await stage.get("/explain/default/bound?format=json")
    assert as_json["standing"] == "placed"
    assert as_json["sentence"].endswith("It was assigned main: device 0. What is wrong: device 0 unhealthy: ECC.")


async def test_who_has_a_disabled_device_is_named_all_the_same(stage: Stage) -> None:
    manifest = node_manifest("node", "inf2.xlarge")
    inventory = NodeInventory(shipped_geometry("inf2.xlarge"), present=(0,), disabled=(0,))
    manifest["metadata"]["annotations"] = {INVENTORY_KEY: write_inventory(inventory)}
    stage.world.show_node(manifest)
    stage.world.held("holder", "node", CORE, "0")
    stage.world.held("other", "node", CORE, "1")
    stage.world.pod("waits", DEVICE, 1)

    _, text = await stage.get("/explain/default/waits")

    assert "  device 0: held by default/holder, default/other; disabled: 0\n" in text


async def test_explain_knows_gated_promised_void_and_plainly_released_pods(stage: Stage) -> None:
    stage.world.node("node", TRN1)
    stage.world.show(gated_manifest("waits", DEVICE, 1))
    twice = gated_manifest("twice", DEVICE, 1)
    twice["spec"]["schedulingGates"].append({"name": "example.com/quota"})
    stage.world.show(twice)
    placed = gated_manifest("placed", DEVICE, 4, promised=("node", "0,1,2,3"), gates=())
    stage.world.show(placed)
    stage.world.show(gated_manifest("member", DEVICE, 4, promised=("node", "4,5,6,7")))
    plain = stage.world.pod("plain", DEVICE, 1)
    stage.world.state.history.released[PodUid(plain["metadata"]["uid"])] = "it has resource claims"

    async def said(name: str) -> str:
        return str((await stage.get(f"/explain/default/{name}"))[1])

    assert "The gate neuron-plugin.io/placement holds it back until it can be placed." in await said("waits")
    assert "Waits for its scheduling gate to be lifted: example.com/quota." in await said("twice")
    text = await said("placed")
    assert "placed on node, where its scheduler is to bind it. It was assigned main: devices 0-3." in text
    assert "holds it back until all of its group have a place" in await said("member")
    assert "No node was chosen for it: it has resource claims. Its scheduler chooses the node" in await said("plain")

    doubtful = gated_manifest("doubtful", DEVICE, 1, gates=())
    doubtful["metadata"]["annotations"] = {RELEASED_KEY: "excluded", POD_UID_KEY: doubtful["metadata"]["uid"]}
    doubtful["spec"]["resourceClaims"] = [{"name": "nic", "resourceClaimName": "nic"}]
    stage.world.show(doubtful)
    text = (
        "No node was chosen for it: where it can run cannot be judged here, because it has resource claims of another"
    )
    assert text in await said("doubtful"), "the pod says so itself, whoever handed it over"

    stage.world.held("thief", "node", DEVICE, "0")
    void = "What it was promised there is not free any more: the plugin chooses on the node.\n"
    assert (await said("placed")).endswith(void)
    (pod,) = [pod for pod in stage.world.state.pods.values() if pod.reference.name == "placed"]
    assert "what it was promised on node is not free any more" in pod_view(stage.world.state, pod).status.problem
    stage.world.gone(plain)
    assert not stage.world.state.history.released


async def test_nodes_that_give_the_same_answer_are_shown_once_and_counted(stage: Stage) -> None:
    for number in range(6):
        stage.world.node(f"free-{number}", TRN1)
        stage.world.node(f"full-{number}", TRN1)
        stage.world.held(f"all-{number}", f"full-{number}", DEVICE, ",".join(map(str, range(16))))
    for device in (1, 2):
        stage.world.node(f"small-{device}", "inf2.xlarge")
    stage.world.pod("new", DEVICE, 16)

    _, text = await stage.get("/explain/default/new")
    _, one = await stage.get("/explain/default/new?node=full-5")

    assert text.splitlines()[1:] == [
        "free-0: fits, would get main: devices 0-15",
        "  5 more like this: free-1, free-2, free-3 and 2 others",
        "full-0: has 0 of 16 devices free",
        "  devices 0-15: held by default/all-0",
        "full-1: has 0 of 16 devices free",
        "  devices 0-15: held by default/all-1",
        "full-2: has 0 of 16 devices free",
        "  devices 0-15: held by default/all-2",
        "  3 more like this: full-3, full-4, full-5",
        "small-1: Instance type inf2.xlarge has 1 Neuron devices and 16 were requested",
        "  1 more like this: small-2",
    ]
    assert one.splitlines()[1:] == ["full-5: has 0 of 16 devices free", "  devices 0-15: held by default/all-5"]


async def test_the_nodes_with_the_fewest_pods_in_the_way_are_shown_first(stage: Stage) -> None:
    for number in range(5):
        stage.world.node(f"node-{number}", TRN1)
        for device in range(16 - 2 * number):
            stage.world.held(f"pod-{number}-{device}", f"node-{number}", DEVICE, str(device))
    stage.world.pod("new", DEVICE, 16)

    _, text = await stage.get("/explain/default/new")

    nodes = [line.partition(":")[0] for line in text.splitlines()[2:-1] if not line.startswith(" ")]
    assert nodes == ["node-4", "node-3", "node-2"]
    assert "  2 more with as much or more in the way: node-0, node-1" in text
    held = ", ".join(f"default/pod-4-{device}" for device in range(5))
    assert f"  devices 0-15: held by {held} and 3 others" in text


async def test_of_several_containers_each_set_names_its_own(stage: Stage) -> None:
    stage.world.node("node", TRN1)
    stage.world.held("holder", "node", DEVICE, ",".join(map(str, range(15))))
    stage.world.pod("new", containers=[container("main", DEVICE, 4), container("eval", CORE, 1)])

    _, text = await stage.get("/explain/default/new")

    lines = text.splitlines()
    asked = "default/new asks for main: 4 aws.amazon.com/neuron, eval: 1 aws.amazon.com/neuroncore"
    assert lines[0] == f"{asked} (schedulerName: default-scheduler)"
    rows = "devices 0-3 or devices 4-7 or devices 8-11 or devices 12-15"
    assert f"  main: {rows}: held by default/holder" in lines
    assert "  eval: core 0 or core 1 or core 2 or core 3: held by default/holder" in lines
    assert "  and 26 more sets with as much or more in their way" in lines


async def test_a_count_that_is_never_linked_comes_with_those_that_are(stage: Stage) -> None:
    for number in range(3):
        stage.world.node(f"trn-{number}", TRN1)
    stage.world.pod("seven", containers=[container("main", DEVICE, 7), container("eval", DEVICE, 1)])

    _, text = await stage.get("/explain/default/seven")

    reason = unsupported_count(shipped_geometry(TRN1), Unit.DEVICE, 7).predicate
    assert reason in text.splitlines()[1]
    assert text.splitlines()[2:] == [f"trn-0: {reason}", "  2 more like this: trn-1, trn-2"]


async def test_explain_of_a_pod_of_a_group_and_of_the_group_shows_the_domains_that_matter(stage: Stage) -> None:
    for number in range(10):
        labels = {"topology.kubernetes.io/zone": "z", "topology.k8s.aws/ultraserver-id": f"us-{number // 2}"}
        manifest = node_manifest(f"node-{number}", TRN1)
        manifest["metadata"]["labels"] |= labels
        stage.world.show_node(manifest)
    wish = {GROUP_KEY: "ring", GROUP_SIZE_KEY: "2", SPARES_KEY: "1"}
    stage.world.pod(
        "ring-0", DEVICE, 16, node="node-1", annotations={**wish, "NEURON_DEVS": ",".join(map(str, range(16)))}
    )
    stage.world.pod("ring-1", DEVICE, 16, annotations=wish)
    spare = PodReference(PodUid("default/ring#spare.1"), "default", "ring spare 1")
    stage.world.state.reserve(Reservation(spare, "node-0", shipped_geometry(TRN1).all_mask, lent_below=0))
    stage.world.held("other", "node-3", DEVICE, "0")
    stage.world.held("full", "node-8", DEVICE, "0,1")

    (_, text), (_, placed), (_, group) = [
        await stage.get(f"/explain/default/{name}") for name in ("ring-1", "ring-0", "ring")
    ]

    lines = [
        "  ultraserver us-0: 0 of 2 nodes and 0 of 32 devices free; 1 pod of the group, 1 spare node",
        "  ultraserver us-2: 2 of 2 nodes and 32 of 32 devices free",
        "  ultraserver us-3: 2 of 2 nodes and 32 of 32 devices free",
        "  2 more with less",
    ]
    assert [line for line in text.splitlines() if line.startswith("  ")][:4] == lines
    assert placed.splitlines()[2:] == lines
    assert group == text
    stage.world.pod("wide", DEVICE, 16, annotations={GROUP_KEY: "wide", GROUP_SIZE_KEY: "9"})
    _, wide = await stage.get("/explain/default/wide?format=json")
    assert [(each["level"], each["name"], each["whole"]) for each in wide["domains"]] == [("zone", "z", 6)]
