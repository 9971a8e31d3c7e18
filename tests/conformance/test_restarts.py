"""What upstream expects when the kubelet, the plugin or a container starts again, in every order."""

from __future__ import annotations

from tests.conformance.node import DEVICES, Ability, Node, until
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

RECOVERY_SECONDS = 30.0
"""Upstream's bound for capacity to be back; the node's status alone takes 10 s of it."""


async def test_p72_a_kubelet_restart_changes_nothing_for_a_running_pod(node: Node) -> None:
    node.require(Ability.RESTART_KUBELET)
    await start_offering(node)
    before, holdings = await runs(node, asking("one")), await held(node, "one")
    await node.restart_kubelet()
    await shows(node, DEVICES, seconds=RECOVERY_SECONDS)
    after = await is_running(node, "one")
    assert (after.uid, received(after)) == (before.uid, received(before))
    assert await held(node, "one") == holdings
    await runs(node, asking("two"))
    assert set((await held(node, "two"))["app"]).isdisjoint(holdings["app"])


async def test_p72_a_container_that_restarts_after_the_kubelet_did_has_the_same_device(node: Node) -> None:
    node.require(Ability.RESTART_KUBELET)
    await start_offering(node)
    before, holdings = await runs(node, asking("one")), await held(node, "one")
    await node.restart_kubelet()
    await shows(node, DEVICES, seconds=RECOVERY_SECONDS)
    await node.end_containers("one")
    after = await is_running(node, "one", starts=2)
    assert (after.uid, received(after)) == (before.uid, received(before))
    assert await held(node, "one") == holdings


async def test_p8_two_kubelet_restarts_in_a_row_bring_everything_back(node: Node) -> None:
    node.require(Ability.RESTART_KUBELET)
    await start_offering(node)
    holdings = (await runs(node, asking("one")), await held(node, "one"))[1]
    await node.restart_kubelet()
    await node.restart_kubelet()
    await shows(node, DEVICES, seconds=RECOVERY_SECONDS)
    await is_running(node, "one")
    assert await held(node, "one") == holdings


async def test_p72_a_plugin_restart_changes_nothing_for_a_running_pod(node: Node) -> None:
    await start_offering(node)
    before, holdings = await runs(node, asking("one")), await held(node, "one")
    await node.stop_plugin()
    await shows(node, 0)
    await node.start_plugin()
    await shows(node, DEVICES, seconds=RECOVERY_SECONDS)
    after = await is_running(node, "one")
    assert (after.uid, received(after)) == (before.uid, received(before))
    assert await held(node, "one") == holdings


async def test_p61_a_killed_plugin_knows_at_its_next_start_what_pods_hold(node: Node) -> None:
    await start_offering(node)
    await runs(node, asking("most", DEVICES - 1))
    await node.kill_plugin()
    await start_offering(node)
    await runs(node, asking("last"))
    taken = set((await held(node, "most"))["app"])
    assert taken.isdisjoint((await held(node, "last"))["app"])


async def test_p72_kubelet_then_plugin_restart_leave_the_pod_alone_twice(node: Node) -> None:
    node.require(Ability.RESTART_KUBELET)
    await start_offering(node)
    before, holdings = await runs(node, asking("one")), await held(node, "one")
    await node.restart_kubelet()
    await shows(node, DEVICES, seconds=RECOVERY_SECONDS)
    assert (await is_running(node, "one")).uid == before.uid
    await node.stop_plugin()
    await node.start_plugin()
    await shows(node, DEVICES, seconds=RECOVERY_SECONDS)
    after = await is_running(node, "one")
    assert (after.uid, received(after)) == (before.uid, received(before))
    assert await held(node, "one") == holdings


async def test_p73_a_pod_that_had_ended_stays_so_when_the_kubelet_starts_without_the_plugin(node: Node) -> None:
    node.require(Ability.RESTART_KUBELET)
    await start_offering(node)
    await node.create(asking("done", exits=0))
    await reaches(node, "done", "Succeeded")
    await node.stop_plugin()
    await shows(node, 0)
    await node.restart_kubelet()
    await reaches(node, "done", "Succeeded")
    assert (await node.capacity("aws.amazon.com/neuron")).allocatable == 0
    assert not await held(node, "done")


async def test_p73_a_pod_deleted_while_the_kubelet_is_down_leaves_nothing_assigned(node: Node) -> None:
    node.require(Ability.STOP_KUBELET)
    await start_offering(node)
    await runs(node, asking("one", DEVICES))
    await node.stop_kubelet()
    await node.delete("one")
    await node.start_kubelet()
    await is_gone(node, "one")
    await shows(node, DEVICES, seconds=RECOVERY_SECONDS)
    assert not await held(node, "one")
    await runs(node, asking("all", DEVICES))


async def test_p75_pods_admitted_before_the_plugin_after_a_reboot_fail_and_hold_nothing(node: Node) -> None:
    node.require(Ability.STOP_KUBELET)
    await start_offering(node)
    await runs(node, asking("one"))
    await runs(node, asking("two", 2))
    await node.stop_kubelet()
    await node.stop_plugin()
    for name in ("one", "two"):
        await node.end_containers(name)
    await node.start_kubelet()
    for name in ("one", "two"):
        assert (await reaches(node, name, "Failed")).reason == "UnexpectedAdmissionError"
        assert not await held(node, name)
    assert (await node.capacity("aws.amazon.com/neuron")).allocatable == 0
    await start_offering(node)
    await runs(node, asking("all", DEVICES))


async def test_p76_a_stopped_plugin_leaves_its_capacity_for_the_kubelets_grace(node: Node) -> None:
    await start_offering(node)
    await node.stop_plugin()
    await shows(node, 0, DEVICES)


async def test_p76_after_the_kubelets_grace_capacity_is_gone_and_a_pods_container_starts_once_the_plugin_is_back(
    node: Node,
) -> None:
    node.require(Ability.WAIT_FOR_GRACE)
    await start_offering(node)
    before, holdings = await runs(node, asking("one")), await held(node, "one")
    await node.stop_plugin()
    await shows(node, 0, 0, seconds=node.grace_seconds + 60)
    assert (await is_running(node, "one")).uid == before.uid
    await node.end_containers("one")
    await start_offering(node)
    after = await is_running(node, "one", starts=2)
    assert (after.uid, received(after)) == (before.uid, received(before))
    assert await held(node, "one") == holdings


async def test_p61_a_kubelet_that_lost_its_record_gives_nothing_away_that_a_pod_has(node: Node) -> None:
    """It believes every device free then; the plugin knows better, also after a restart of its own."""
    node.require(Ability.SPOIL_CHECKPOINT)
    await start_offering(node)
    before = await runs(node, asking("one", 2))
    had = set((await held(node, "one"))["app"])
    await is_confirmed(node, "one")
    await node.stop_kubelet()
    await node.spoil_checkpoint()
    await node.start_kubelet()
    await shows(node, DEVICES)
    await runs(node, asking("two", 2))
    assert had.isdisjoint((await held(node, "two"))["app"])
    await node.stop_plugin()
    await node.start_plugin()
    await shows(node, DEVICES)
    await runs(node, asking("rest", DEVICES - 4))
    assert had.isdisjoint((await held(node, "rest"))["app"])
    assert (await is_running(node, "one")).uid == before.uid


async def test_p11_the_watcher_route_offers_the_same(node: Node) -> None:
    await start_offering(node, registration="watcher")
    before, holdings = await runs(node, asking("one")), await held(node, "one")
    await node.stop_plugin()
    await shows(node, 0)
    await start_offering(node, registration="watcher")
    after = await is_running(node, "one")
    assert (after.uid, received(after)) == (before.uid, received(before))
    assert await held(node, "one") == holdings


async def test_p11_the_watcher_route_survives_kubelet_restarts(node: Node) -> None:
    node.require(Ability.RESTART_KUBELET)
    await start_offering(node, registration="watcher")
    before, holdings = await runs(node, asking("one")), await held(node, "one")
    for _ in range(2):
        await node.restart_kubelet()
        await shows(node, DEVICES, seconds=RECOVERY_SECONDS)
    after = await is_running(node, "one")
    assert (after.uid, received(after)) == (before.uid, received(before))
    assert await held(node, "one") == holdings
    await runs(node, asking("two"))


async def test_p12_the_plugin_may_change_its_route_between_two_lives(node: Node) -> None:
    """Up to a second later the kubelet sees that the old route's sockets are gone, and drops the new one, by name.

    A pod that it admits in that moment fails; the plugin registers again, and the next one runs.
    """
    await start_offering(node)
    await node.kill_plugin()
    await start_offering(node, registration="watcher")
    await node.kill_plugin()
    await start_offering(node)
    await node.create(asking("first"))
    await settles(node, "first")
    await shows(node, DEVICES)
    await runs(node, asking("second"))


async def settles(node: Node, name: str) -> None:
    async def look() -> bool:
        view = await node.view(name)
        return view is not None and (view.running or view.phase == "Failed")

    await until(node, look, f"pod {name} running or failed")
