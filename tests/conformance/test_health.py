"""What upstream's ``device_plugin_failures*_test.go`` expect of devices that fail and recover."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from neuron_plugin.allocation.keys import DISABLE_KEY, UNHEALTHY_LABEL
from tests.conformance.node import (
    CORE,
    CORES_PER_DEVICE,
    DEVICES,
    NEURON,
    Ability,
    ContainerSpec,
    Node,
    PodSpec,
    until,
)
from tests.conformance.steps import (
    asking,
    becomes,
    health_becomes,
    held,
    is_confirmed,
    is_gone,
    is_running,
    reaches,
    runs,
    shows,
    start_offering,
)


def fail(node: Node, devices: Iterable[int]) -> None:
    for device in devices:
        node.machine.set_unhealthy_components(device, ["hbm"])


def recover(node: Node, devices: Iterable[int]) -> None:
    for device in devices:
        node.machine.set_unhealthy_components(device, [])


async def test_p76_allocatable_follows_one_device_and_capacity_stays(node: Node) -> None:
    await start_offering(node)
    fail(node, [2])
    await shows(node, DEVICES - 1)
    recover(node, [2])
    await shows(node, DEVICES)


async def test_p76_allocatable_follows_several_devices_and_capacity_stays(node: Node) -> None:
    await start_offering(node)
    fail(node, [1])
    await shows(node, DEVICES - 1)
    recover(node, [1])
    await shows(node, DEVICES)
    fail(node, [0, 3])
    await shows(node, DEVICES - 2)
    recover(node, [0])
    await shows(node, DEVICES - 1)
    recover(node, [3])
    await shows(node, DEVICES)


async def breaks_beneath(node: Node, name: str) -> str:
    """One of a pod's devices fails; when the plugin knows. A device that no pod has shows that: it is not counted."""
    ids = (await held(node, name))["app"]
    free = next(device for device in range(DEVICES) if str(device) not in ids)
    fail(node, [int(ids[0]), free])
    await shows(node, DEVICES - 1)
    recover(node, [free])
    await shows(node, DEVICES)
    return ids[0]


async def test_a_device_that_breaks_beneath_a_pod_is_counted_once_and_given_to_nobody_else(node: Node) -> None:
    """Half of the node is free, so a pod for half of it fits: kube-scheduler goes by these counts."""
    await start_offering(node)
    before = await runs(node, asking("holder", DEVICES // 2))
    broken = await breaks_beneath(node, "holder")
    await runs(node, asking("other", DEVICES // 2))
    assert broken not in (await held(node, "other"))["app"]
    after = await is_running(node, "holder")
    assert (after.uid, after.containers["app"].starts) == (before.uid, 1)
    await node.delete("holder")
    await is_gone(node, "holder")
    await shows(node, DEVICES - 1)
    await node.delete("other")
    await is_gone(node, "other")
    await runs(node, asking("rest", DEVICES - 1))
    assert broken not in (await held(node, "rest"))["app"]
    recover(node, [int(broken)])
    await shows(node, DEVICES)


async def test_a_broken_device_goes_to_nobody_when_its_pod_ends_by_itself(node: Node) -> None:
    """A real container runs for two seconds; the kubelet frees its devices before the API server shows the end."""
    await start_offering(node)
    await node.create(asking("holder", DEVICES // 2, exits=0))
    await until(node, lambda: has_started(node, "holder"), "the start of pod holder")
    fail(node, [0])
    await reaches(node, "holder", "Succeeded")
    await until(node, lambda: is_counted_out(node), "what the kubelet no longer offers")
    await node.create(asking("all", DEVICES))
    assert (await reaches(node, "all", "Failed")).reason == "UnexpectedAdmissionError"
    await shows(node, DEVICES - 1)
    await runs(node, asking("rest", DEVICES - 1))
    assert "0" not in (await held(node, "rest"))["app"]


async def is_counted_out(node: Node) -> bool:
    """Whether the kubelet itself, before the Node object, has one device less to give."""
    return len((await node.pod_resources.allocatable()).get(NEURON, ())) < DEVICES


async def test_a_broken_device_stays_its_pods_over_a_kubelet_restart_in_which_the_container_died(node: Node) -> None:
    node.require(Ability.STOP_KUBELET)
    await start_offering(node)
    before = await runs(node, asking("holder", DEVICES // 2))
    broken = await breaks_beneath(node, "holder")
    await node.stop_kubelet()
    await node.end_containers("holder")
    await node.start_kubelet()
    after = await is_running(node, "holder", starts=2)
    assert after.uid == before.uid
    await shows(node, DEVICES)
    await runs(node, asking("other", DEVICES // 2))
    assert broken not in (await held(node, "other"))["app"]


async def test_a_broken_device_goes_to_nobody_when_its_pod_is_deleted_while_the_kubelet_is_down(node: Node) -> None:
    node.require(Ability.STOP_KUBELET)
    await start_offering(node)
    await runs(node, asking("holder", DEVICES // 2))
    broken = await breaks_beneath(node, "holder")
    await node.stop_kubelet()
    await node.delete("holder")
    await node.start_kubelet()
    await is_gone(node, "holder")
    await shows(node, DEVICES - 1)
    await runs(node, asking("rest", DEVICES - 1))
    assert broken not in (await held(node, "rest"))["app"]


async def test_p67_a_running_pod_goes_on_while_its_device_is_unhealthy(node: Node) -> None:
    await start_offering(node, report_unhealthy_in_use=True)
    before = await runs(node, asking("one"))
    (device,) = (await held(node, "one"))["app"]
    fail(node, [int(device)])
    await shows(node, DEVICES - 1)
    after = await is_running(node, "one")
    assert (after.uid, after.containers["app"].starts) == (before.uid, before.containers["app"].starts)
    recover(node, [int(device)])
    await shows(node, DEVICES)


async def test_p67_a_container_may_restart_on_an_unhealthy_device(node: Node) -> None:
    await start_offering(node, report_unhealthy_in_use=True)
    await runs(node, asking("one"))
    holdings = await held(node, "one")
    fail(node, map(int, holdings["app"]))
    await shows(node, DEVICES - 1)
    await node.end_containers("one")
    await is_running(node, "one", starts=2)
    assert await held(node, "one") == holdings


async def test_an_unhealthy_device_is_in_no_new_pod(node: Node) -> None:
    await start_offering(node)
    fail(node, [0])
    await shows(node, DEVICES - 1)
    await runs(node, asking("rest", DEVICES - 1))
    assert "0" not in (await held(node, "rest"))["app"]


async def test_a_disabled_device_is_in_no_new_pod_and_who_has_it_keeps_it(node: Node) -> None:
    await start_offering(node)
    await runs(node, asking("one"))
    (device,) = (await held(node, "one"))["app"]
    other = (int(device) + 1) % DEVICES
    await node.annotate_node(DISABLE_KEY, f"{device},{other}")
    await shows(node, DEVICES - 1)  # its own is counted as in use
    await is_running(node, "one")
    await runs(node, asking("core", resource=CORE))
    (core,) = (await held(node, "core", CORE))["app"]
    assert int(core) // CORES_PER_DEVICE not in {int(device), other}
    await node.delete("core")
    await node.delete("one")
    await shows(node, DEVICES - 2)
    await node.annotate_node(DISABLE_KEY, None)
    await shows(node, DEVICES)


async def test_a_device_that_was_disabled_while_the_plugin_was_away_is_not_offered_by_the_next(node: Node) -> None:
    await start_offering(node)
    await node.stop_plugin()
    await node.annotate_node(DISABLE_KEY, "0")
    await node.start_plugin()
    await shows(node, DEVICES - 1)
    await runs(node, asking("rest", DEVICES - 1))
    assert "0" not in (await held(node, "rest"))["app"]


async def test_a_pod_on_an_unhealthy_device_has_a_label_that_says_so(node: Node) -> None:
    await start_offering(node, label_pods_on_sick_devices=True)
    await runs(node, asking("one"))
    (device,) = (await held(node, "one"))["app"]
    fail(node, [int(device)])
    await label_becomes(node, "one", "true")
    recover(node, [int(device)])
    await label_becomes(node, "one", "")


async def label_becomes(node: Node, name: str, value: str) -> None:
    await becomes(node, name, lambda view: view.labels.get(UNHEALTHY_LABEL, "") == value, "the label")


async def has_started(node: Node, name: str) -> bool:
    view = await node.view(name)
    return view is not None and view.containers["app"].starts > 0


async def test_p71_a_pods_status_shows_the_health_of_its_device(node: Node) -> None:
    await start_offering(node, report_unhealthy_in_use=True)
    await runs(node, asking("one"))
    await health_becomes(node, "one", "Healthy")
    (device,) = (await held(node, "one"))["app"]
    fail(node, [int(device)])
    await health_becomes(node, "one", "Unhealthy")
    recover(node, [int(device)])
    await health_becomes(node, "one", "Healthy")


async def test_p71_a_failed_pods_status_shows_it_too(node: Node) -> None:
    """The device fails while the container runs: the kubelet tells nothing more of a pod that it has cleared away."""
    await start_offering(node, report_unhealthy_in_use=True)
    await node.create(asking("broken", DEVICES, exits=1))
    await until(node, lambda: has_started(node, "broken"), "the start of pod broken")
    fail(node, range(DEVICES))
    await reaches(node, "broken", "Failed")
    await health_becomes(node, "broken", "Unhealthy")


async def test_p60_a_force_deleted_pods_device_goes_to_nobody_while_its_processes_live(node: Node) -> None:
    """The kubelet alone would give it away at once; it leaves the process two seconds to end. The admission waits."""
    node.require(Ability.OPEN_DEVICES)
    await start_offering(node)
    await runs(node, PodSpec("one", (ContainerSpec("app", {NEURON: DEVICES}, opens=True),)))
    await is_confirmed(node, "one")
    assert await node.processes("one")
    await node.delete("one", force=True)
    creation = asyncio.create_task(node.create(asking("next", DEVICES)))
    looks = 0
    async with asyncio.timeout(node.patience_seconds):
        while True:
            started, lives = await has_started(node, "next"), await node.processes("one")
            assert not (started and lives), "started while the process of the other had the device open"
            looks += bool(lives)
            if not lives:
                break
            await asyncio.sleep(0.02)
    assert looks, "the process had ended before the other pod could have got its device"
    await creation
    await is_running(node, "next")


async def test_p60_where_cgroups_cannot_be_seen_a_hold_down_ends_by_time(
    node: Node, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """An empty directory has no pods' cgroups. The kubelet hears of it after three seconds only."""
    is_real = node.poll_seconds > 0.1
    hold_seconds = 15 if is_real else 5
    await start_offering(node, cgroup=tmp_path_factory.mktemp("cgroup"), hold_down_seconds=hold_seconds)
    await asyncio.sleep(hold_seconds if is_real else 0)  # what another test's pods had is held down for as long
    await shows(node, DEVICES)
    await runs(node, asking("all", DEVICES))
    await is_confirmed(node, "all")
    await node.delete("all", force=True)
    await shows(node, 0)
    await shows(node, DEVICES)
    assert (await node.capacity(NEURON)).allocatable == DEVICES


async def test_p77_a_resize_of_a_pod_whose_device_died_is_not_granted_and_changes_nothing(node: Node) -> None:
    await start_offering(node, report_unhealthy_in_use=True)
    before = await runs(node, PodSpec("one", (ContainerSpec("app", {NEURON: 1}, compute={"cpu": "10m"}),)))
    holdings = await held(node, "one")
    fail(node, map(int, holdings["app"]))
    await shows(node, DEVICES - 1)
    await node.resize("one", "20m")
    waits = await becomes(node, "one", lambda view: view.resize, "the kubelet's word on the resize")
    assert "previously allocated devices are no longer healthy" in waits.resize
    after = await is_running(node, "one")
    assert (after.uid, after.containers["app"].starts, after.cpu) == (before.uid, 1, "10m")
    assert await held(node, "one") == holdings
    await runs(node, asking("others", DEVICES - 1))
    recover(node, map(int, holdings["app"]))
    await shows(node, DEVICES)
    await node.resize("one", "30m")
    await becomes(node, "one", lambda view: view.cpu == "30m", "the CPU")
    assert await held(node, "one") == holdings
