"""What upstream's ``device_plugin_test.go`` expects of a pod with devices, and what ours adds."""

from __future__ import annotations

import pytest

from neuron_plugin.allocation import ContainerKind
from tests.conformance.node import CORE, DEVICES, NEURON, ContainerSpec, Node, PodSpec, PodView
from tests.conformance.steps import (
    asking,
    held,
    is_confirmed,
    is_gone,
    is_running,
    reaches,
    received,
    runs,
    shows,
    start_offering,
)


async def test_p72_a_pod_that_asks_for_a_device_sees_exactly_one_and_pod_resources_says_which(node: Node) -> None:
    await start_offering(node)
    view = await runs(node, asking("one"))
    holdings = await held(node, "one")
    assert list(holdings) == ["app"]
    assert len(holdings["app"]) == 1
    assert received(view).nodes == ("neuron0",)


async def test_a_pod_that_asks_for_none_of_a_resource_runs_without_devices(node: Node) -> None:
    await start_offering(node)
    assert received(await runs(node, asking("none", 0))).nodes == ()
    assert (await held(node, "none")).get("app", set()) == set()


async def test_p85_a_pod_gets_a_node_for_each_device_and_its_environment(node: Node) -> None:
    """Newer drivers number a container's devices from 0, and cores from its first device."""
    await start_offering(node)
    await runs(node, asking("first"))
    two = received(await runs(node, asking("two", 2)))
    cores = received(await runs(node, asking("cores", 2, resource=CORE)))
    assert two.nodes == ("neuron0", "neuron1")
    assert two.env["AWS_NEURON_VISIBLE_DEVICES"] == ",".join(sorted((await held(node, "two"))["app"], key=int))
    assert (cores.nodes, cores.env["NEURON_RT_VISIBLE_CORES"]) == (("neuron0",), "0,1")


async def test_p40_host_numbering_gives_the_hosts_names(node: Node) -> None:
    await start_offering(node, numbering="host")
    view = await runs(node, asking("one"))
    (device,) = (await held(node, "one"))["app"]
    assert received(view).nodes == (f"neuron{device}",)
    assert received(view).env["AWS_NEURON_VISIBLE_DEVICES"] == device


async def test_p53_cdi_devices_arrive_with_their_node(node: Node) -> None:
    await start_offering(node, cdi=True)
    view = await runs(node, asking("cdi", 2))
    assert received(view).nodes == ("neuron0", "neuron1")


async def test_p72_a_restarted_container_has_the_same_device_and_another_pod_another_one(node: Node) -> None:
    await start_offering(node)
    before = await runs(node, asking("one"))
    holdings = await held(node, "one")
    await node.end_containers("one")
    after = await is_running(node, "one", starts=2)
    assert (after.uid, received(after)) == (before.uid, received(before))
    assert await held(node, "one") == holdings
    await runs(node, asking("two"))
    assert set((await held(node, "two"))["app"]).isdisjoint(holdings["app"])


async def test_p74_init_and_sidecar_share_a_device_and_the_app_has_another(node: Node) -> None:
    await start_offering(node)
    pod = PodSpec(
        "three",
        (
            ContainerSpec("init", {NEURON: 1}, ContainerKind.INIT),
            ContainerSpec("sidecar", {NEURON: 1}, ContainerKind.SIDECAR),
            ContainerSpec("app", {NEURON: 1}),
        ),
    )
    view = await runs(node, pod)
    holdings = await held(node, "three")
    assert set(holdings) == {"sidecar", "app"}
    assert set(holdings["sidecar"]).isdisjoint(holdings["app"])
    assert received(view, "init").nodes == ("neuron0",)


async def test_devices_of_a_deleted_pod_are_there_for_the_next(node: Node) -> None:
    await start_offering(node)
    await runs(node, asking("all", DEVICES))
    await node.delete("all")
    await is_gone(node, "all")
    await shows(node, DEVICES)
    view = await runs(node, asking("again", DEVICES))
    assert len(received(view).nodes) == DEVICES


async def test_a_pod_for_more_than_there_is_fails_alone(node: Node) -> None:
    await start_offering(node)
    await node.create(asking("much", DEVICES + 1))
    assert (await reaches(node, "much", "Failed")).reason == "UnexpectedAdmissionError"
    await runs(node, asking("little"))


async def test_p57_devices_held_as_cores_are_not_offered_as_devices(node: Node) -> None:
    await start_offering(node)
    await runs(node, asking("cores", 2, resource=CORE))
    await shows(node, DEVICES - 1)
    await is_confirmed(node, "cores")
    await node.delete("cores")
    await is_gone(node, "cores")
    await shows(node, DEVICES)


async def test_p46_an_app_container_smaller_than_its_init_container_gets_what_was_drawn_or_its_decided_part(
    node: Node,
) -> None:
    """The kubelet draws it a random part, and asks nobody. PodResources tells the truth where that part is linked."""
    await start_offering(node)
    containers = (ContainerSpec("init", {NEURON: 4}, ContainerKind.INIT), ContainerSpec("app", {NEURON: 2}))
    decision = {"NEURON_DEVS": "1,2,3,4|3,4", "NEURON_ALLOC_TIME": "1", "NEURON_ALLOCATED": "false"}
    view = await runs(node, PodSpec("two", containers, decision))
    assert received(view, "init").nodes == ("neuron0", "neuron1", "neuron2", "neuron3")
    assert received(view).nodes == ("neuron0", "neuron1")
    first, second = map(int, (await held(node, "two"))["app"])
    given = f"{first},{second}" if second == first + 1 else "3,4"
    assert (await is_confirmed(node, "two")).annotations["NEURON_DEVS"] == f"1,2,3,4|{given}"
    await runs(node, asking("others", DEVICES - 4))


async def test_p46_without_a_decision_it_gets_a_linked_part_of_what_that_had(node: Node) -> None:
    """Of the kubelet's random pairs of four every second one is linked by chance, so three pods are asked."""
    await start_offering(node, numbering="host")
    containers = (ContainerSpec("init", {NEURON: 4}, ContainerKind.INIT), ContainerSpec("app", {NEURON: 2}))
    for name in ("one", "two", "three"):
        view = await runs(node, PodSpec(name, containers))
        whole, (first, second) = _host_ids(view, "init"), _host_ids(view, "app")
        assert second == first + 1
        assert {first, second} <= set(whole)
        told = (await is_confirmed(node, name)).annotations["NEURON_DEVS"]
        assert told == f"{','.join(map(str, whole))}|{first},{second}"
        await node.delete(name)
        await is_gone(node, name)


def _host_ids(view: PodView, container: str) -> list[int]:
    """Under host numbering."""
    return sorted(int(name.removeprefix("neuron")) for name in received(view, container).nodes)


async def test_a_container_that_asks_for_two_neuron_resources_fails_and_leaves_nothing_behind(node: Node) -> None:
    """Their environments would meet in one container, in a random order."""
    await start_offering(node)
    await node.create(PodSpec("both", (ContainerSpec("app", {NEURON: 1, CORE: 1}),)))
    assert (await reaches(node, "both", "Failed")).reason == "UnexpectedAdmissionError"
    await shows(node, DEVICES)
    await runs(node, asking("all", DEVICES))


async def test_p55_a_pod_without_a_decision_is_told_what_it_holds(node: Node) -> None:
    await start_offering(node)
    await runs(node, asking("one", 2))
    view = await is_confirmed(node, "one")
    assert view.annotations["NEURON_DEVS"] == ",".join(sorted((await held(node, "one"))["app"]))


@pytest.mark.parametrize("count", [2, 3, 4])
async def test_p31_without_a_decision_a_pod_gets_consecutive_devices(node: Node, count: int) -> None:
    await start_offering(node)
    await runs(node, asking("set", count))
    ids = sorted(int(each) for each in (await held(node, "set"))["app"])
    assert ids == list(range(ids[0], ids[0] + count))


async def test_p21_with_numa_hints_no_device_is_held_twice_and_pods_are_marked_with_what_they_hold(node: Node) -> None:
    """Under a policy of the Topology Manager a kubelet with two NUMA nodes leaves a set that spans both."""
    await start_offering(node, numa_hints=True)
    decision = {"NEURON_DEVS": "1,2", "NEURON_ALLOC_TIME": "1", "NEURON_ALLOCATED": "false"}
    await runs(node, PodSpec("assigned", (ContainerSpec("app", {NEURON: 2}),), decision))
    await runs(node, asking("free", 2))
    holdings = {name: (await held(node, name))["app"] for name in ("assigned", "free")}
    assert set(holdings["assigned"]).isdisjoint(holdings["free"])
    for name, ids in holdings.items():
        assert (await is_confirmed(node, name)).annotations["NEURON_DEVS"] == ",".join(sorted(ids, key=int))
