"""What upstream's ``device_plugin_failures*_test.go`` expect of devices that fail and recover."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterable

import pytest

from tests.conformance.node import CORE, DEVICES, NEURON, Ability, Node, until
from tests.conformance.steps import asking, held, is_confirmed, is_running, reaches, runs, shows, start_offering

HOLD = "import os, sys; os.open(sys.argv[1], os.O_RDWR); print('open', flush=True); sys.stdin.read()"


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


async def test_p67_a_running_pod_goes_on_while_its_device_is_unhealthy(node: Node) -> None:
    await start_offering(node)
    before = await runs(node, asking("one"))
    (device,) = (await held(node, "one"))["app"]
    fail(node, [int(device)])
    await shows(node, DEVICES - 1)
    after = await is_running(node, "one")
    assert (after.uid, after.containers["app"].starts) == (before.uid, before.containers["app"].starts)
    recover(node, [int(device)])
    await shows(node, DEVICES)


async def test_p67_a_container_may_restart_on_an_unhealthy_device(node: Node) -> None:
    await start_offering(node)
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


async def health_becomes(node: Node, name: str, health: str) -> None:
    async def look() -> bool:
        view = await node.view(name)
        return view is not None and set(view.containers["app"].health.values()) == {health}

    await until(node, look, f"the status of pod {name} calling its device {health}")


async def test_p71_a_pods_status_shows_the_health_of_its_device(node: Node) -> None:
    await start_offering(node)
    await runs(node, asking("one"))
    await health_becomes(node, "one", "Healthy")
    (device,) = (await held(node, "one"))["app"]
    fail(node, [int(device)])
    await health_becomes(node, "one", "Unhealthy")
    recover(node, [int(device)])
    await health_becomes(node, "one", "Healthy")


async def test_p71_a_failed_pods_status_shows_it_too(node: Node) -> None:
    await start_offering(node)
    await node.create(asking("broken", DEVICES, exits=1))
    await reaches(node, "broken", "Failed")
    fail(node, range(DEVICES))
    await health_becomes(node, "broken", "Unhealthy")


async def test_p60_a_force_deleted_pods_device_is_offered_when_its_process_has_let_go(node: Node) -> None:
    node.require(Ability.OPEN_DEVICES)
    await start_offering(node)
    await runs(node, asking("one"))
    await is_confirmed(node, "one")
    (device,) = (await held(node, "one"))["app"]
    path = node.machine.paths.dev / f"neuron{device}"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLD, str(path), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    await process.stdout.readline()
    await node.delete("one", force=True)
    await shows(node, DEVICES - 1)
    await shows_cores(node, 2 * (DEVICES - 1))
    await runs(node, asking("others", DEVICES - 1))
    assert device not in (await held(node, "others"))["app"]
    process.kill()
    await process.communicate()
    await shows_cores(node, 2)
    await runs(node, asking("next"))
    assert (await held(node, "next"))["app"] == (device,)


async def shows_cores(node: Node, allocatable: int) -> None:
    async def look() -> bool:
        return (await node.capacity(CORE)).allocatable == allocatable

    await until(node, look, f"{allocatable} {CORE} allocatable")


async def test_p60_where_processes_cannot_be_seen_a_quarantine_ends(
    node: Node, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """An empty directory for /proc is a machine that shows nothing."""
    await start_offering(
        node, proc=tmp_path_factory.mktemp("proc"), quarantine_seconds=15 if node.poll_seconds > 0.1 else 0.5
    )
    await runs(node, asking("all", DEVICES))
    await is_confirmed(node, "all")
    await node.delete("all", force=True)
    await shows(node, 0)
    await shows(node, DEVICES)
    assert (await node.capacity(NEURON)).allocatable == DEVICES
