"""What docs/features.md promises, as stories: each begins with a user's pod and ends with what the user sees."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from neuron_plugin.allocation import Resource
from neuron_plugin.allocation.keys import DISABLE_KEY, UNHEALTHY_LABEL
from neuron_plugin.simulation.api_server_kinds import NODES, AnyJson
from tests.scenarios.story import TYPES, Story, cores, devices, until
from tests.support.worker import kill_daemon

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROWS = ["0,1,2,3", "4,5,6,7", "8,9,10,11", "12,13,14,15"]
HALVES = ["0,1,2,3,4,5,6,7", "8,9,10,11,12,13,14,15"]
PREFIXES = ["", "/scheduler", "/apis/neuron-plugin.io/v1/schedule"]


def run_of(count: int, start: int = 0) -> str:
    return ",".join(str(each) for each in range(start, start + count))


# AWS's scheduler extension: a pod's way.


@pytest.mark.parametrize(("node", "device_count", "core_count"), [("inf1", 4, 16), ("inf2", 12, 24), ("trn1", 16, 32)])
async def test_a_kubelet_gets_devices_and_cores_under_three_names(
    story: Story, node: str, device_count: int, core_count: int
) -> None:
    kubelet = story.cluster.workers[node].kubelet
    counts = [kubelet.capacity(resource.value).allocatable for resource in Resource]
    assert dict(zip(Resource, counts, strict=True)) == {
        Resource.NEURON: device_count,
        Resource.NEURONDEVICE: device_count,
        Resource.NEURONCORE: core_count,
    }


async def test_devices_2_and_3_go_from_the_annotation_into_the_container(story: Story) -> None:
    pod = story.create("train", devices(2), allow_devices="2-3")
    answer = await story.call("/filter", {"Pod": pod, "NodeNames": ["inf2"]})
    assert answer["NodeNames"] == ["inf2"]
    await story.bind("train", "inf2")
    bound = story.cluster.pod("train")
    assert (bound.node_name, bound.annotations["NEURON_DEVS"]) == ("inf2", "2,3")
    assert bound.annotations["NEURON_ALLOCATED"] == "false"
    assert int(bound.annotations["NEURON_ALLOC_TIME"]) > 1e18
    train = await story.start("train")
    assert train.received.containers[0].ids == {Resource.NEURON.value: ("2", "3")}
    assert train.env == {"AWS_NEURON_VISIBLE_DEVICES": "2,3"}
    assert train.device_nodes == ["/dev/neuron2", "/dev/neuron3"]
    assert (train.ids, train.annotations["NEURON_ALLOCATED"]) == ("2,3", "true")


async def test_cores_2_and_3_are_device_1_and_the_containers_visible_cores(story: Story) -> None:
    infer = await story.run("infer", cores(2), on=["trn1"], allow_devices="1")
    assert infer.annotations["NEURON_CORES"] == "2,3"
    assert infer.env == {"NEURON_RT_VISIBLE_CORES": "2,3"}
    assert infer.device_nodes == ["/dev/neuron1"]


async def test_whole_nodes_and_names_of_nodes_are_answered_alike(story: Story) -> None:
    pod = story.create("pod", devices(16))
    items = [{"metadata": {"name": name}} for name in TYPES]
    whole = await story.call("/filter", {"Pod": pod, "Nodes": {"items": items}})
    named = await story.call("/filter", {"Pod": pod, "NodeNames": list(TYPES)})
    assert [each["metadata"]["name"] for each in whole["Nodes"]["items"]] == named["NodeNames"] == ["trn1"]
    refused = await story.call("/filter", {"Pod": pod, "Nodes": {"items": items[:2]}})
    assert set(refused["FailedAndUnresolvableNodes"]) == {"inf1", "inf2"}


async def test_a_node_with_enough_devices_that_are_not_linked_is_left_out(story: Story) -> None:
    await story.run("between", devices(1), on=["inf1"], allow_devices="1")
    pod = story.create("three", devices(3))
    alone = await story.call("/filter", {"Pod": pod, "NodeNames": ["inf1"]})
    assert alone["FailedNodes"] == {"inf1": "No free linked set of 3 Neuron devices"}
    assert (await story.call("/filter", {"Pod": pod, "NodeNames": ["inf1", "inf2"]}))["NodeNames"] == ["inf2"]


async def test_a_pod_that_another_scheduler_has_bound_gets_a_linked_set_and_is_counted(story: Story) -> None:
    """By ``spec.nodeName``, or where the extender is not installed: more than one device, and linked all the same."""
    story.create("stock", devices(4))
    story.api.bind("default", "stock", node="trn1")
    stock = await story.start("stock")
    assert stock.ids in ROWS
    assert stock.env["AWS_NEURON_VISIBLE_DEVICES"] == stock.ids
    others = [(await story.run(f"ours-{number}", devices(4), on=["trn1"])).ids for number in range(3)]
    assert sorted([stock.ids, *others]) == sorted(ROWS)


async def test_what_the_vendors_extender_has_assigned_is_followed_and_counted(story: Story) -> None:
    theirs = {"AWS_NEURON_IDS": "4,5,6,7", "NEURON_ALLOC_TIME": "1700000000000000000", "NEURON_ALLOCATED": "false"}
    story.create("theirs", devices(4))
    story.api.bind("default", "theirs", node="trn1", annotations=theirs)
    assert (await story.start("theirs")).env["AWS_NEURON_VISIBLE_DEVICES"] == "4,5,6,7"
    ours = await story.run("ours", devices(8), on=["trn1"])
    assert (ours.ids, ours.annotations["AWS_NEURON_IDS"]) == (HALVES[1], HALVES[1])


# AWS's scheduler extension: topology and deployment.


@pytest.mark.parametrize(
    ("node", "asked", "drawn"),
    [
        ("inf1", devices(3), [run_of(3), run_of(3, 1)]),
        ("inf2", devices(5), [run_of(5, start) for start in range(8)]),
        ("trn1", devices(4), ROWS),
        ("trn1", devices(8), HALVES),
        ("inf1", devices(4), [run_of(4)]),
        ("trn1", devices(16), [run_of(16)]),
        ("trn1", cores(32), [run_of(32)]),
    ],
)
async def test_a_pod_gets_one_of_the_drawn_sets_though_the_lowest_ids_are_taken(
    story: Story, node: str, asked: dict[str, int], drawn: list[str]
) -> None:
    """All of a node is always a valid set, too: it waits until the core of device 0 is free."""
    await story.run("first", cores(1), on=[node], allow_devices="0")
    if len(drawn) == 1:
        assert "Fewer than" in await story.waits("early", asked, on=[node])
        await story.end_all()  # until the kubelet, too, can give the device under its other names
    got = (await story.run("set", asked, on=[node])).ids
    assert got in drawn
    assert len(drawn) == 1 or "0" not in got.split(",")


async def test_seven_devices_of_a_torus_are_refused_in_the_vendors_words(story: Story) -> None:
    assert await story.waits("seven", devices(7), on=["trn1"]) == (
        "0/1 nodes are available: 1 Instance type trn1.32xlarge does not support requests for device: 7. "
        "Please request a different number of devices. It supports 1 or 4 or 8 or 16."
    )


async def test_nine_cores_of_an_inf1_use_devices_0_to_2_under_every_name(story: Story) -> None:
    nine = await story.run("nrt-test", cores(9), on=["inf1"])
    assert nine.ids == run_of(9)
    assert nine.device_nodes == ["/dev/neuron0", "/dev/neuron1", "/dev/neuron2"]
    assert (await story.node("inf1"))["status"]["usedDevices"] == [0, 1, 2]
    await story.cluster.workers["inf1"].wait_until_offered(Resource.NEURONDEVICE, 1)
    assert (await story.run("device", devices(1), on=["inf1"])).ids == "3"
    assert (await story.run("core", cores(1), on=["inf1"])).ids == "9"


async def test_filter_and_bind_write_a_line_each_with_the_ids_and_what_is_in_use(story: Story) -> None:
    await story.run("logged", cores(9), on=["inf1"])
    lines = {line["message"]: line for line in story.log_of("logged")}
    assert set(lines) >= {"filter", "bind"}
    assert lines["bind"]["used_devices"] == "0,1,2"


async def test_usage_is_stored_on_no_node_and_nothing_is_left_of_pods_that_ended(story: Story) -> None:
    for number in range(3):
        await story.run("comes-and-goes", devices(number + 1), on=["inf1"])
        await story.end("comes-and-goes")
    assert (await story.node("inf1"))["status"]["freeDevices"] == [0, 1, 2, 3]
    annotations = story.api.get(NODES, "inf1")["metadata"]["annotations"]
    assert [key for key in annotations if not key.startswith("neuron-plugin.io/inventory")] == []


# GPU Aware Scheduling.


async def test_of_three_pods_with_5_gib_on_two_devices_of_8_the_third_waits(story: Story) -> None:
    pods = [await story.run(f"replica-{at}", cores(1, memory=5120), on=["inf1"], allow_devices="0-1") for at in (0, 1)]
    assert {int(pod.ids) // 4 for pod in pods} == {0, 1}
    third = await story.waits("replica-2", cores(1, memory=5120), on=["inf1"], allow_devices="0-1")
    assert third == (
        "0/1 nodes are available: 1 No free linked Neuron devices with 5120 neuron-plugin.io/memory left on each."
    )
    await story.end("replica-0")
    await story.bind("replica-2", "inf1")


async def test_an_amount_is_shared_by_the_devices_of_a_container_and_has_to_divide(story: Story) -> None:
    assert (await story.run("even", cores(8, memory=16384), on=["inf1"])).ids == run_of(8)
    assert "cannot be shared evenly by 2 Neuron devices" in await story.waits("odd", cores(5, memory=5121), on=["inf1"])


async def test_each_container_has_a_list_of_its_own_and_an_init_container_shares_with_later_ones(story: Story) -> None:
    pod = await story.run("job", devices(2), devices(1), cores(1), init=[devices(1)], on=["inf1"])
    init, first, second = (each.split(",") for each in pod.annotations["NEURON_DEVS"].split("|"))
    assert init[0] in first
    assert second[0] not in first
    received = [each.ids.get(Resource.NEURON.value, ()) for each in pod.received.containers]
    assert received == [(*init,), (*first,), (*second,), ()]
    assert {int(pod.annotations["NEURON_CORES"]) // 4} == {0, 1, 2, 3} - {int(each) for each in first + second}


async def test_two_equal_pods_are_served_in_the_order_of_their_times(story: Story) -> None:
    for name in ("early", "late"):
        story.create(name, devices(4))
        await story.bind(name, "trn1")
    times = [int(story.cluster.pod(name).annotations["NEURON_ALLOC_TIME"]) for name in ("early", "late")]
    assert times == sorted(times)
    chosen = [story.cluster.pod(name).annotations["NEURON_DEVS"] for name in ("early", "late")]
    pods = [await story.start(name) for name in ("early", "late")]
    assert [pod.ids for pod in pods] == [pod.env["AWS_NEURON_VISIBLE_DEVICES"] for pod in pods] == chosen


async def test_a_pod_that_asks_for_no_neuron_passes_everywhere_and_is_bound(story: Story) -> None:
    pod = story.create("web", {})
    assert (await story.call("/filter", {"Pod": pod, "NodeNames": ["inf1", "x"]}))["NodeNames"] == ["inf1", "x"]
    await story.bind("web", "inf1")
    assert "NEURON_DEVS" not in story.cluster.pod("web").annotations


@pytest.mark.parametrize(
    ("constraint", "ids"),
    [
        ({"allow_devices": "7"}, "7"),
        ({"deny_devices": "0-4,6-15"}, "5"),
        ({"prefer_devices": "9"}, "9"),
    ],
)
async def test_allowed_denied_and_preferred_devices(story: Story, constraint: dict[str, Any], ids: str) -> None:
    pod = await story.run("steered", devices(1), on=["trn1"], **constraint)
    assert (pod.ids, pod.device_nodes) == (ids, [f"/dev/neuron{ids}"])
    again = story.create("again", devices(1), **constraint)
    answer = await story.call("/filter", {"Pod": again, "NodeNames": ["trn1"]})
    assert bool(answer["NodeNames"]) == ("prefer_devices" in constraint)


async def test_containers_that_share_a_device_have_their_cores_on_one(story: Story) -> None:
    await story.run("before", cores(2), on=["inf1"], allow_devices="0")
    pod = await story.run("pair", cores(2), cores(2), on=["inf1"], same_device="c0,c1")
    first, second = (part.split(",") for part in pod.ids.split("|"))
    (device,) = {int(each) // 4 for each in first + second}
    assert device != 0


async def test_of_equal_devices_the_one_of_which_least_memory_is_used(story: Story) -> None:
    for device, memory in enumerate((1024, 2048, 512, 4096)):
        await story.run(f"on-{device}", cores(1, memory=memory), on=["inf1"], allow_devices=str(device))
    pod = await story.run("balanced", cores(1, memory=100), on=["inf1"], balance="memory")
    assert pod.device_nodes == ["/dev/neuron2"]


async def test_one_numa_node_is_preferred_and_never_demanded(story: Story) -> None:
    assert (await story.run("row", devices(4), on=["trn1"], prefer_numa="true")).ids in ROWS
    plain = await story.run("plain", devices(2), on=["inf2"], allow_devices="9-11")
    assert plain.ids == "10,11"  # 8, 9 and 10 are on one NUMA node
    await story.end("plain")
    assert (await story.run("near", devices(2), on=["inf2"], allow_devices="9-11", prefer_numa="true")).ids == "9,10"


async def test_a_device_out_of_service_is_in_no_new_pod_and_who_has_it_keeps_it(story: Story) -> None:
    holder = await story.run("holder", devices(1), on=["inf1"], allow_devices="3")
    await story.command("cordon", "inf1", "2-3")
    try:
        await until(lambda: _is(story, "inf1", disabledDevices=[2, 3]))
        await story.cluster.workers["inf1"].wait_until_offered(Resource.NEURONCORE, 8)
        disabled = "The node's disabled Neuron devices leave no linked set of 4 devices"
        assert disabled in await story.waits("four", devices(4), on=["inf1"])
        assert (await story.run("two", devices(2), on=["inf1"])).ids == "0,1"
        assert story.cluster.pod("holder").annotations["NEURON_DEVS"] == holder.ids
    finally:
        await story.command("uncordon", "inf1", "2-3")
    await until(lambda: _is(story, "inf1", disabledDevices=[]))
    assert DISABLE_KEY not in story.api.get(NODES, "inf1")["metadata"]["annotations"]


async def _is(story: Story, node: str, **status: Any) -> bool:
    shown = (await story.node(node))["status"]
    return all(shown[key] == value for key, value in status.items())


async def test_a_pod_on_a_failing_device_gets_an_event_and_a_label_until_it_recovers(story: Story) -> None:
    sick = await story.run("sick", devices(1), on=["trn1"])
    await story.run("well", devices(1), on=["trn1"])
    machine = story.cluster.workers["trn1"].node
    machine.set_unhealthy_components(int(sick.ids), ["hbm"])
    try:
        await until(lambda: _is_labelled(story, "sick"))
        assert "NeuronDeviceUnhealthy" in story.events("sick")
        assert not await _is_labelled(story, "well")
        assert sick.ids in (await story.node("trn1"))["status"]["unhealthyDevices"]
    finally:
        machine.set_unhealthy_components(int(sick.ids), [])
    await until(lambda: _is_not_labelled(story, "sick"))


async def _is_labelled(story: Story, pod: str) -> bool:
    return (story.pod(pod)["metadata"].get("labels") or {}).get(UNHEALTHY_LABEL) == "true"


async def _is_not_labelled(story: Story, pod: str) -> bool:
    return not await _is_labelled(story, pod)


async def test_a_nodes_product_is_in_its_labels(story: Story) -> None:
    labels = story.api.get(NODES, "trn1")["metadata"]["labels"]
    assert labels["neuron-plugin.io/device-name"] == "Trainium1"
    assert labels["neuron-plugin.io/family"] == "trn1"


@pytest.mark.parametrize("prefix", PREFIXES)
async def test_filter_prioritize_preempt_and_bind_answer_under_every_prefix(story: Story, prefix: str) -> None:
    victim = await story.run("victim", devices(16), on=["trn1"])
    uid = story.pod("victim")["metadata"]["uid"]
    pod = story.create("urgent", devices(16))
    refused = await story.call(f"{prefix}/filter", {"Pod": pod, "NodeNames": ["trn1"]})
    assert refused["FailedNodes"] == {"trn1": "Fewer than 16 free Neuron devices"}
    offered = {"trn1": {"Pods": [{"UID": uid}], "NumPDBViolations": 0}}
    chosen = await story.call(f"{prefix}/preempt", {"Pod": pod, "NodeNameToMetaVictims": offered})
    assert [each["UID"] for each in chosen["NodeNameToMetaVictims"]["trn1"]["Pods"]] == [uid]
    await story.end("victim")
    assert victim.node == "trn1"
    scores = await story.call(f"{prefix}/prioritize", {"Pod": pod, "NodeNames": ["trn1"]})
    assert [each["Host"] for each in scores] == ["trn1"]
    meta = pod["metadata"]
    args = {"PodName": meta["name"], "PodNamespace": "default", "PodUID": meta["uid"], "Node": "trn1"}
    assert not (await story.call(f"{prefix}/bind", args))["Error"]
    assert story.cluster.pod("urgent").annotations["NEURON_DEVS"] == run_of(16)


# nvidia-gpu-scheduler.


@pytest.mark.parametrize(
    ("named", "node"), [("trn1", "trn1"), ("TRAINIUM2,inferentia2", "inf2"), ("Inferentia", "inf1")]
)
async def test_a_pod_goes_to_a_node_with_a_product_that_it_names(story: Story, named: str, node: str) -> None:
    assert (await story.run("model", devices(1), device_name=named)).node == node


async def test_a_product_that_no_node_has_and_one_that_does_not_exist(story: Story) -> None:
    text = "3 The node's Neuron devices are not of a product that the pod asks for"
    assert await story.waits("model", devices(1), device_name="trn3") == f"0/3 nodes are available: {text}."
    assert "unknown names: a100; known are inf1" in await story.waits("typo", devices(1), device_name="a100")


async def test_who_has_what_is_shown_to_people_and_to_programs(story: Story) -> None:
    pod = await story.run("train", devices(4), on=["trn1"], init=[cores(1)])
    shown = (await story.monitor("neuronpods"))["items"]
    assert [each["metadata"]["name"] for each in shown] == ["train"]
    assert shown[0]["status"]["allocated"]
    held = {each["name"]: (each["devices"], each["cores"]) for each in shown[0]["status"]["containers"]}
    first, core = int(pod.ids.split(",")[0]), int(pod.annotations["NEURON_CORES"])
    assert held["c0"] == ([*range(first, first + 4)], [*range(2 * first, 2 * first + 8)])
    assert held["i0"] == ([core // 2], [core])
    nodes = await story.command("nodes", "--extender", story.cluster.health_url)
    assert "3 nodes, 0 closed; 32 devices: 27 free, 5 allocated, 0 not available; 63 of 72 cores free" in nodes
    pods = await story.command("pods", "--extender", story.cluster.health_url)
    assert "1 pod, 0 waiting, 1 allocated: 5 devices and 9 cores on 1 node" in pods


async def test_a_watch_shows_a_pod_from_its_creation_to_its_end(story: Story) -> None:
    version = (await story.monitor("neuronpods"))["metadata"]["resourceVersion"]
    url = f"{story.cluster.health_url}/apis/neuron-plugin.io/v1/neuronpods?watch=true&resourceVersion={version}"
    async with aiohttp.ClientSession() as session, session.get(url) as stream:
        await story.run("watched", cores(1), on=["inf1"])
        await story.end("watched")
        seen: list[AnyJson] = []
        async with asyncio.timeout(10):
            while not seen or seen[-1]["type"] != "DELETED":
                seen.append(json.loads(await stream.content.readline()))
    assert seen[0]["type"] == "ADDED"
    assert {"Waiting", "Bound"} <= {each["object"]["status"]["phase"] for each in seen}
    assert any(each["object"]["status"]["allocated"] for each in seen)


async def test_a_pod_that_spreads_goes_to_the_node_with_the_most_free_devices(story: Story) -> None:
    packed = await story.run("packed", cores(1))
    spread = [(await story.run(f"spread-{each}", cores(1), placement="spread")).node for each in (0, 1)]
    assert packed.node == "inf1"
    assert spread == ["trn1", "trn1"]


async def test_a_node_is_closed_when_its_plugin_is_gone_and_open_with_the_same_holders_when_it_is_back(
    story: Story,
) -> None:
    """When its Lease has run out; the extender goes on meanwhile."""
    held = await story.run("held", devices(2), on=["inf2"], init=[devices(1)])
    worker = story.cluster.workers["inf2"]
    await kill_daemon(worker)
    await until(lambda: _is(story, "inf2", open=False, stale=True))
    assert await story.waits("next", devices(1), on=["inf2"])
    await worker.start_daemon()
    await until(lambda: _is(story, "inf2", open=True, stale=False))
    await worker.wait_until_offered(Resource.NEURONDEVICE, 10)
    await story.bind("next", "inf2")
    assert (await story.start("next")).ids not in held.env["AWS_NEURON_VISIBLE_DEVICES"].split(",")
