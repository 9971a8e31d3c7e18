"""What a kubelet does with claims of Dynamic Resource Allocation, and what our driver makes of it.

The suite allocates each claim itself, as the placement controller or kube-scheduler would: the kubelet and the driver
are what is looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from neuron_plugin.plugin.container import VISIBLE_CORES
from tests.conformance.node import DEVICES, Ability, ContainerSpec, Node, PodSpec, until
from tests.conformance.steps import health_becomes, is_gone, is_running, received, runs

WIPE_SECONDS = 30.0
"""After which a kubelet deletes the slices of a driver that is away."""
UNHEALTHY = "neuron-plugin.io/unhealthy"


@pytest.fixture(autouse=True)
def _claims(node: Node) -> None:
    node.require(Ability.PREPARE_CLAIMS)


def using(name: str, *claims: str, opens: bool = False) -> PodSpec:
    """A pod of one container that uses these claims."""
    return PodSpec(name, (ContainerSpec("app", claims=claims, opens=opens),))


async def start_driver(node: Node, **settings: object) -> None:
    """Start the plugin as a driver of claims; returns when the node's slice has all devices."""
    await node.start_plugin(mode="dra", **settings)
    await offers(node, {f"neuron-{number}" for number in range(DEVICES)})


async def offers(node: Node, devices: set[str], *, tainted: set[str] | None = None) -> None:
    """Wait until the node's slice has these devices, and those of them a taint."""

    async def look() -> bool:
        found = await node.slice()
        sick = {name for name, taints in found.items() if UNHEALTHY in taints}
        return devices <= found.keys() and sick == (tainted or set())

    await until(node, look, f"{sorted(devices)} in the slice, tainted {sorted(tainted or ())}")


async def still_waits(node: Node, name: str) -> None:
    """Some looks on, no container of the pod has started."""
    for _ in range(10):
        await asyncio.sleep(node.poll_seconds)
        view = await node.view(name)
        assert view is not None
        assert (view.phase, view.containers["app"].starts) == ("Pending", 0)


async def test_d01_a_container_finds_the_devices_of_its_claim_numbered_from_0(node: Node) -> None:
    await start_driver(node)
    await node.claim("two", "neuron-2", "neuron-3")
    found = received(await runs(node, using("a", "two")))
    assert found.nodes == ("neuron0", "neuron1")
    assert VISIBLE_CORES not in found.env


async def test_d02_a_container_finds_the_cores_of_its_claim(node: Node) -> None:
    await start_driver(node)
    await node.claim("core", "neuron-4-cores-9-9")
    found = received(await runs(node, using("a", "core")))
    assert (found.nodes, found.env[VISIBLE_CORES]) == (("neuron0",), "1")


async def test_d03_the_devices_of_two_claims_are_numbered_together(node: Node) -> None:
    await start_driver(node)
    await node.claim("first", "neuron-5")
    await node.claim("second", "neuron-0", "neuron-1")
    assert received(await runs(node, using("a", "first", "second"))).nodes == ("neuron0", "neuron1", "neuron2")


async def test_d04_pods_that_share_a_claim_have_its_device_until_the_last_one_ends(node: Node) -> None:
    await start_driver(node)
    await node.claim("shared", "neuron-1")
    first, second = await runs(node, using("a", "shared")), await runs(node, using("b", "shared"))
    assert received(first) == received(second)
    await node.delete("a")
    await is_gone(node, "a")
    await node.end_containers("b")
    assert received(await is_running(node, "b", starts=2)) == received(second)


async def keeps_its_device(node: Node, restart: Callable[[], Awaitable[None]]) -> None:
    """A pod has the same device in its next container after a restart, and the next pod another one."""
    await start_driver(node)
    await node.claim("one", "neuron-1")
    before = await runs(node, using("a", "one"))
    await restart()
    await offers(node, {f"neuron-{number}" for number in range(DEVICES)})
    await node.end_containers("a")
    after = await is_running(node, "a", starts=2)
    assert (after.uid, received(after)) == (before.uid, received(before))
    await node.claim("other", "neuron-2")
    await runs(node, using("b", "other"))


@pytest.mark.parametrize("ends", ["stop_plugin", "kill_plugin"])
async def test_d05_a_plugin_restart_changes_nothing_for_a_running_pod(node: Node, ends: str) -> None:
    async def restart() -> None:
        await getattr(node, ends)()
        await start_driver(node)

    await keeps_its_device(node, restart)


async def test_d06_a_pod_that_comes_while_the_plugin_is_away_waits_and_runs_once_it_is_back(node: Node) -> None:
    await start_driver(node)
    await node.stop_plugin()
    await node.claim("one", "neuron-1")
    await node.create(using("a", "one"))
    await still_waits(node, "a")
    await node.start_plugin(mode="dra")
    await is_running(node, "a")


async def test_d07_a_kubelet_that_starts_again_finds_slice_and_devices_as_they_were(node: Node) -> None:
    """It deletes the slices of its node at its start."""
    node.require(Ability.RESTART_KUBELET)
    await keeps_its_device(node, node.restart_kubelet)


async def test_d08_a_pod_deleted_while_the_kubelet_is_down_leaves_its_device_to_the_next(node: Node) -> None:
    node.require(Ability.STOP_KUBELET)
    await start_driver(node)
    await node.claim("one", "neuron-1")
    await runs(node, using("a", "one"))
    await node.stop_kubelet()
    await node.delete("a")
    await node.start_kubelet()
    await is_gone(node, "a")
    await node.claim("next", "neuron-1")
    await runs(node, using("b", "next"))


async def test_d09_k8s_141471_after_a_force_delete_the_next_pod_waits_until_the_processes_are_gone(node: Node) -> None:
    node.require(Ability.OPEN_DEVICES)
    await start_driver(node)
    await node.claim("one", "neuron-0")
    await runs(node, using("a", "one", opens=True))
    assert await node.processes("a")
    await node.delete("a", force=True)
    await node.claim("next", "neuron-0")
    await node.create(using("b", "next"))

    async def look() -> bool:
        view = await node.view("b")
        started = view is not None and view.containers["app"].starts > 0
        assert not (started and await node.processes("a")), "two pods have device 0"
        return started

    await until(node, look, "pod b started")


async def test_d10_a_sick_device_has_a_taint_and_its_pod_says_so_and_both_pass(node: Node) -> None:
    await start_driver(node)
    await node.claim("one", "neuron-2")
    await runs(node, using("a", "one"))
    await health_becomes(node, "a", "Healthy")
    node.machine.set_unhealthy_components(2, ["hbm"])
    await offers(node, {"neuron-2"}, tainted={"neuron-2"})
    await health_becomes(node, "a", "Unhealthy")
    await is_running(node, "a")
    node.machine.set_unhealthy_components(2, [])
    await offers(node, {"neuron-2"})
    await health_becomes(node, "a", "Healthy")


async def test_d11_a_claim_that_was_allocated_beside_another_waits_until_the_device_is_free(node: Node) -> None:
    """Nothing keeps two allocators apart but the driver."""
    await start_driver(node)
    await node.claim("one", "neuron-3")
    await node.claim("rogue", "neuron-3-cores-6-6")
    await runs(node, using("a", "one"))
    await node.create(using("b", "rogue"))
    await still_waits(node, "b")
    await node.delete("a")
    await is_running(node, "b")


async def test_d12_the_kubelet_deletes_the_slice_of_a_plugin_that_is_away_which_writes_it_again(node: Node) -> None:
    """Of one that it knew: the slice stands before the kubelet has found the driver."""
    await start_driver(node)
    await node.claim("one", "neuron-0")
    await runs(node, using("a", "one"))
    await node.stop_plugin()

    async def look() -> bool:
        return not await node.slice()

    await until(node, look, "no slice", node.patience_seconds + WIPE_SECONDS)
    await start_driver(node)
