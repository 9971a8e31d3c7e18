"""What the leader says about pods that wait although enough is free."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from neuron_plugin.allocation import Resource
from neuron_plugin.allocation.event_reasons import EventReason
from neuron_plugin.allocation.keys import GATE, MOVABLE_KEY
from neuron_plugin.backoff import Clock
from neuron_plugin.cluster import KubernetesApi
from neuron_plugin.placement.context import Context, Times
from neuron_plugin.placement.daemon import ControllerTimes
from neuron_plugin.placement.leadership import Readiness
from neuron_plugin.placement.planner import MOST_PODS, Planner
from neuron_plugin.placement.room import Room
from neuron_plugin.placement.settings import MakeRoom
from neuron_plugin.placement.writer import Writer
from neuron_plugin.planning import MoveRules, Standing
from neuron_plugin.simulation.api_server_kinds import EVENTS
from tests.support.api_server import Fault, StandInApiServer
from tests.support.manifests import node_manifest, pod_manifest
from tests.support.running import SETTINGS, extender_on, until
from tests.support.world import World

TIMES = Times()
NEURON, TRN1 = Resource.NEURON, "trn1.32xlarge"


class PlannerBench:
    """A planner on a world, and the API server that takes its events, or is away."""

    def __init__(self, world: World, *unmet: str, away: bool = False, by_priority: bool = False) -> None:
        self.now = 0.0
        self.server = StandInApiServer()
        if away:
            self.server.fail(Fault(unsent=True, times=1000))
        ready = Readiness(dict.fromkeys(unmet, "not the leader"))
        clock = Clock(now=lambda: self.now)
        context = Context(self.server, world.state, ready, "replica-1", clock=clock, unix_seconds=lambda: self.now)
        self.metrics, rules = context.metrics, MoveRules(by_priority=by_priority)
        self.planner = Planner(context, Room(context, Writer(context)), rules=rules, after_seconds=60.0)

    async def at(self, now: float) -> list[dict[str, Any]]:
        """The events that a look at this time writes, but for those that say why a pod waits."""
        return [event for event in await self.all_at(now) if event["reason"] != EventReason.WAITING]

    async def all_at(self, now: float) -> list[dict[str, Any]]:
        self.now, before = now, self.server.objects(EVENTS)
        await self.planner.look()
        return [event for event in self.server.objects(EVENTS) if event not in before]

    def waiting(self, standing: str) -> float | None:
        return self.metrics["extender_waiting_pods"].get((standing,))

    def by_move(self) -> float | None:
        return self.metrics["extender_waiting_pods_by_move"].get(())


def world_of(*, movable: bool) -> World:
    """Two nodes with one small pod each, and a pod that waits for a whole one."""
    world = World()
    for number in (1, 2):
        world.node(f"trn-{number}", TRN1)
    show_small(world, "small", "trn-1", "3", movable=movable)
    show_small(world, "other", "trn-2", "3", movable=False)
    world.pod("big", NEURON, 16, priority=0)
    return world


@pytest.fixture
def world() -> World:
    return world_of(movable=True)


def show_small(world: World, name: str, node: str, device: str, *, movable: bool) -> None:
    annotations = {"NEURON_DEVS": device, MOVABLE_KEY: str(movable).lower()}
    priority = -1 if name == "small" else 100
    manifest = pod_manifest(name, NEURON, 1, node=node, annotations=annotations, priority=priority)
    manifest["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "web", "controller": True}]
    world.show(manifest)


async def test_an_event_on_a_pod_that_has_waited_long_enough_says_which_move_would_give_it_room(
    world: World,
) -> None:
    planner = PlannerBench(world)
    assert await planner.at(0.0) == []
    assert await planner.at(59.0) == []
    (event,) = await planner.at(60.0)
    assert (event["reason"], event["type"], event["regarding"]["name"]) == ("NeuronRoomByMove", "Normal", "big")
    assert "Node trn-1 would have room after a move of default/small from node trn-1 to trn-2" in event["note"]
    assert (planner.waiting("links"), planner.by_move()) == (1, 1)


async def test_the_event_is_not_repeated_before_its_time(world: World) -> None:
    planner = PlannerBench(world)
    await planner.at(0.0)
    assert len(await planner.at(60.0)) == 1
    assert await planner.at(59.0 + TIMES.repeat) == []
    assert len(await planner.at(60.0 + TIMES.repeat)) == 1


async def test_a_pod_that_no_move_helps_is_counted_and_an_event_says_why_it_waits(world: World) -> None:
    show_small(world, "more", "trn-1", "7", movable=False)
    world.pod("never", NEURON, 7)
    gated = pod_manifest("gated", NEURON, 16)  # of such pods the upkeep of the gates says it
    gated["spec"]["schedulingGates"] = [{"name": GATE}]
    world.show(gated)
    planner = PlannerBench(world)
    assert await planner.all_at(59.0) == []
    said = {event["regarding"]["name"]: event["note"] for event in await planner.all_at(100.0)}
    assert said.keys() == {"big", "never"}
    assert said["big"].startswith("0 of 2 Neuron nodes: 1 has 14 of 16 devices free, 1 has 15 of 16 devices free. In")
    assert (planner.waiting("short"), planner.waiting("never"), planner.by_move()) == (2, 1, 0)
    show_small(world, "third", "trn-1", "9", movable=False)
    assert await planner.all_at(130.0) == [], "other numbers are no news"


async def test_pods_of_lower_priority_count_only_where_the_setting_says_so() -> None:
    world = world_of(movable=False)
    strict, by_priority = PlannerBench(world), PlannerBench(world, by_priority=True)
    for planner in (strict, by_priority):
        await planner.at(0.0)
        await planner.at(60.0)
    reasons = [[event["reason"] for event in planner.server.objects(EVENTS)] for planner in (strict, by_priority)]
    assert (reasons, strict.by_move(), by_priority.by_move()) == ([[EventReason.WAITING], ["NeuronRoomByMove"]], 0, 1)


async def test_many_pods_that_cannot_be_helped_keep_no_other_from_a_plan(world: World) -> None:
    for number in range(MOST_PODS + 5):
        world.pod(f"never-{number}", NEURON, 7, priority=1000)
    planner = PlannerBench(world)
    await planner.at(0.0)
    (event,) = await planner.at(60.0)
    assert event["regarding"]["name"] == "big"


async def test_kinds_of_pods_take_turns_where_there_are_many(world: World) -> None:
    for number in range(2 * MOST_PODS):
        world.pod(f"never-{number}", NEURON, 7, priority=1000 + number)
    planner = PlannerBench(world)
    await planner.at(0.0)
    looks = []
    for number in range(6):
        await planner.at(60.0 + number)
        looks.append(planner.waiting("links"))
    assert looks == [0, 0, 1, 0, 0, 1]


async def test_a_gang_is_planned_for_as_a_whole_and_keeps_no_other_from_a_plan(world: World) -> None:
    world.state.set_min_count(("default", "gang"), MOST_PODS + 5)
    for number in range(MOST_PODS + 5):
        manifest = pod_manifest(f"gang-{number}", NEURON, 16, priority=1000)
        manifest["spec"]["schedulingGroup"] = {"podGroupName": "gang"}
        world.show(manifest)
    planner = PlannerBench(world)
    await planner.at(0.0)
    (event,) = await planner.at(60.0)
    assert event["regarding"]["name"] == "big"
    assert sum(planner.waiting(standing) or 0 for standing in Standing) == MOST_PODS + 6


async def test_a_pod_that_is_bound_or_gone_waits_no_more(world: World) -> None:
    planner = PlannerBench(world)
    await planner.at(0.0)
    await planner.at(60.0)
    (waiting,) = [pod for pod in world.state.pods.values() if not pod.node]
    world.state.remove_pod(waiting.uid)
    assert await planner.at(120.0) == []
    assert (planner.waiting("links"), planner.by_move()) == (0, 0)


async def test_a_pod_that_kube_scheduler_cannot_preempt_for_across_names_is_told_so_once() -> None:
    world = World()
    world.node("trn-1", TRN1)
    for device in range(16):
        show_small(world, f"p{device}", "trn-1", str(device), movable=False)
    world.pod("high", Resource.NEURONDEVICE, 4, priority=1000)
    planner = PlannerBench(world)
    (event,) = await planner.at(60.0)
    assert (event["reason"], event["regarding"]["name"]) == ("NeuronNoPreemption", "high")
    assert "kube-scheduler does not preempt across resource names" in event["note"]
    assert await planner.at(100.0) == []


async def test_only_the_leader_plans(world: World) -> None:
    planner = PlannerBench(world, "leader")
    await planner.at(0.0)
    assert await planner.at(100.0) == []
    assert planner.waiting("links") == 0


async def test_an_api_server_that_is_away_stops_nothing(world: World) -> None:
    planner = PlannerBench(world, away=True)
    await planner.at(0.0)
    assert await planner.at(100.0) == []
    assert planner.by_move() == 1


async def test_a_node_that_is_closed_is_not_promised(world: World) -> None:
    world.state.set_stale(frozenset({"trn-1"}))
    planner = PlannerBench(world)
    await planner.at(0.0)
    assert await planner.at(100.0) == []
    assert planner.by_move() == 0


@pytest.mark.parametrize("mode", [MakeRoom.OFF, MakeRoom.PLAN])
async def test_the_daemon_plans_unless_it_is_switched_off(
    server: StandInApiServer, api: KubernetesApi, mode: MakeRoom
) -> None:
    small = pod_manifest("small", NEURON, 1, node="trn-1", annotations={"NEURON_DEVS": "3", MOVABLE_KEY: "true"})
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "web", "controller": True}
    small["metadata"]["ownerReferences"] = [owner]
    other = pod_manifest("other", NEURON, 1, node="trn-2", annotations={"NEURON_DEVS": "3"})
    for number in (1, 2):
        server.create_node(node_manifest(f"trn-{number}", TRN1))
    for manifest in (small, other, pod_manifest("big", NEURON, 16)):
        server.create_pod(manifest)
    settings = msgspec.structs.replace(SETTINGS, make_room=mode, make_room_after=0.0)
    async with extender_on(api, settings, ControllerTimes(placing=Times(plan=0.02, tick=0.02))) as extender:
        await extender.ready()
        await until(lambda: server.objects(EVENTS))
        (event,) = server.objects(EVENTS)
        plans = mode is MakeRoom.PLAN
        assert (event["reason"], event["regarding"]["name"]) == (
            "NeuronRoomByMove" if plans else EventReason.WAITING,
            "big",
        )
        _, metrics = await extender.get("/metrics")
        assert f"neuron_extender_waiting_pods_by_move {float(plans)}" in metrics
