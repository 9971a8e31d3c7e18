"""Moves that are made: what is evicted, what is reserved for whom, and how each ends, against an API server."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from neuron_plugin.allocation import Resource
from neuron_plugin.allocation.keys import GATE, MOVABLE_KEY
from neuron_plugin.backoff import Clock
from neuron_plugin.cluster import ApiRequest, KubernetesApi, LeaseName
from neuron_plugin.cluster.api import Response
from neuron_plugin.decision_log import Step
from neuron_plugin.monitor.explain import explain, explain_text, find_pod, question
from neuron_plugin.monitor.views import ReservedCores, node_view
from neuron_plugin.placement.context import Context, Times
from neuron_plugin.placement.daemon import ControllerTimes
from neuron_plugin.placement.history import Cause
from neuron_plugin.placement.leadership import CONDITION, Readiness
from neuron_plugin.placement.planner import Planner
from neuron_plugin.placement.reserves import RECORDS_KEY, ReserveRecord
from neuron_plugin.placement.room import Room
from neuron_plugin.placement.settings import FilterMode, MakeRoom
from neuron_plugin.placement.writer import Writer
from neuron_plugin.planning import MoveRules
from neuron_plugin.simulation.api_server_kinds import (
    BUDGETS,
    CLAIMS,
    EVENTS,
    LEASES,
    NODES,
    PODS,
    VOLUMES,
    AnyJson,
    Refusal,
)
from tests.support.api_server import Budget, Fault, Match, StandInApiServer, limit_disruptions
from tests.support.manifests import node_manifest, pod_manifest
from tests.support.running import SETTINGS, add_pod, extender_on, until
from tests.support.world import World, show_kept

NEURON, TRN1 = Resource.NEURON, "trn1.32xlarge"
EVICTIONS = Match(method="POST", path="/eviction$")
NAME = "neuron-extender"
AFTER = 60.0
TIMES = Times()


class MovingBench:
    """A cluster in which one pod waits, and a replica that makes room; time passes when a test says so."""

    def __init__(self, server: StandInApiServer, api: KubernetesApi, *, per_minute: int = 10) -> None:
        self.server = server
        self.api = api
        self.now = 0.0
        self.created: dict[str, float] = {}
        self.per_minute = per_minute
        self.unseen: tuple[str, ...] = ()
        server.create(LEASES, {"metadata": {"name": NAME}, "spec": {"holderIdentity": "one"}}, "kube-system")
        self.lead("one")

    def lead(self, identity: str, *, makes_moves: bool = True) -> None:
        """A new process of this name leads, and knows what the watches show."""
        self.world = World()
        for node in self.server.objects(NODES):
            self.world.show_node(node)
        self.sync()
        self.ready = Readiness({CONDITION: ""})
        rules = MoveRules()
        context = Context(
            self.api,
            self.world.state,
            self.ready,
            identity,
            times=Times(tick=0.001),
            clock=Clock(now=lambda: self.now, sleep=self._sleep),
            unix_seconds=lambda: 1e9 + self.now,
        )
        self.metrics, self.decisions = context.metrics, context.decisions
        lease = LeaseName("kube-system", NAME, identity)
        self.mover = Room(context, Writer(context), lease=lease, rules=rules, evictions_per_minute=self.per_minute)
        self.planner = Planner(context, self.mover, rules=rules, after_seconds=AFTER, makes_moves=makes_moves)

    def fill(self) -> None:
        """Two nodes with one device used on each: a pod waits for a whole node, one of the others may be moved."""
        self.node("trn-1", zone="a")
        self.node("trn-2", zone="b")
        self.pod("small-1", "3", "trn-1")
        self.pod("fixed-1", "3", "trn-2")
        self.server.patch_pod("default", "fixed-1", {"metadata": {"annotations": {MOVABLE_KEY: "false"}}})
        self.pod("big-1", count=16)

    @staticmethod
    async def _sleep(seconds: float) -> None:
        del seconds
        await asyncio.sleep(0)

    def node(self, name: str, cpu: str = "64", **labels: str) -> None:
        manifest = node_manifest(name, TRN1)
        manifest["metadata"]["labels"] |= labels
        manifest["status"]["allocatable"]["cpu"] = cpu
        self.server.create_node(manifest)
        self.world.show_node(manifest)

    def pod(self, name: str, devices: str = "", node: str = "", *, count: int = 0, **more: Any) -> AnyJson:
        """A pod with these devices, or one that waits for a ``count``; of a ReplicaSet with the name up to the dash."""
        annotations = {MOVABLE_KEY: "true"} | ({"NEURON_DEVS": devices} if devices else {})
        amount = count or len(devices.split(","))
        manifest = pod_manifest(name, NEURON, amount, node=node, annotations=annotations)
        owner = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "name": name.split("-", maxsplit=1)[0],
            "uid": "u",
            "controller": True,
        }
        manifest["metadata"] |= {"ownerReferences": [owner], "labels": {"app": name.split("-", maxsplit=1)[0]}}
        manifest["spec"] |= more
        if node:
            runs = [{"name": "main", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]
            ready = [{"type": "Ready", "status": "True"}]
            manifest["status"] = {"phase": "Running", "conditions": ready, "containerStatuses": runs}
        else:
            tried = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            manifest["status"] = {"phase": "Pending", "conditions": [tried]}
        created = self.server.create_pod(manifest)
        self.sync()
        return created

    def sync(self) -> None:
        """The watch shows what the server has."""
        there = {pod["metadata"]["uid"] for pod in self.server.objects(PODS)}
        for pod in self.server.objects(PODS):
            since = datetime.fromtimestamp(self.created.setdefault(pod["metadata"]["uid"], 1e9 + self.now), UTC)
            metadata = {**pod["metadata"], "creationTimestamp": since.isoformat()}
            self.world.show({**pod, "metadata": metadata}, **pod.get("status", {}))
        for uid in self.world.state.pods.keys() - there:
            self.world.state.remove_pod(uid)
        show_kept(self.world, self.server, self.unseen)

    async def look(self, *, after: float = 0.0) -> None:
        """What the planner does at its next look."""
        self.now += after
        self.sync()
        await self.mover.tend()
        await self.planner.look()
        self.sync()

    async def wait_and_look(self) -> None:
        """A look that sees the pods wait, and one when they have waited for long enough."""
        await self.look()
        await self.look(after=AFTER)

    def end(self, name: str) -> None:
        """The last container of a pod has stopped."""
        self.server.delete_pod("default", name, grace_seconds=0)
        self.sync()

    def bind(self, name: str, node: str, devices: str) -> None:
        self.server.bind("default", name, node=node, annotations={"NEURON_DEVS": devices})
        self.sync()

    @property
    def evicted(self) -> list[str]:
        """The pods whose eviction took effect, in the order of their names."""
        return [pod["metadata"]["name"] for pod in self.server.objects(PODS) if "deletionTimestamp" in pod["metadata"]]

    @property
    def reserved(self) -> dict[str, tuple[str, int]]:
        return {each.pod.name: (each.node, each.mask.bit_count()) for each in self.world.state.reserved.values()}

    @property
    def events(self) -> list[tuple[str, str]]:
        return [(event["reason"], event["regarding"]["name"]) for event in self.server.objects(EVENTS)]

    @property
    def notes(self) -> list[tuple[str, str, str]]:
        return [(event["reason"], event["regarding"]["name"], event["note"]) for event in self.server.objects(EVENTS)]

    @property
    def records(self) -> list[dict[str, Any]]:
        lease = self.server.get(LEASES, NAME, "kube-system")
        found: list[dict[str, Any]] = msgspec.json.decode(
            lease["metadata"].get("annotations", {}).get(RECORDS_KEY, "[]")
        )
        return found

    def ended(self) -> dict[str, object]:
        """The endings that were counted."""
        return {ending: number for (ending,), number in self.metrics["extender_moves_total"].items()}


@pytest.fixture
def room(server: StandInApiServer, api: KubernetesApi) -> MovingBench:
    made = MovingBench(server, api)
    made.fill()
    return made


async def test_the_set_is_reserved_and_the_pod_in_its_way_evicted(room: MovingBench) -> None:
    await room.wait_and_look()
    assert room.evicted == ["small-1"]
    assert room.reserved == {"big-1": ("trn-1", 32)}
    assert sorted(room.events) == [("NeuronEvictedForMove", "small-1"), ("NeuronRoomReserved", "big-1")]
    assert [(each["name"], each["node"], each["cores"]) for each in room.records] == [("big-1", "trn-1", "0-31")]
    (entry,) = room.decisions.entries()
    assert (entry.step, entry.pod and entry.pod.name, entry.node) == (Step.EVICTED, "small-1", "trn-1")
    (moved,) = room.world.state.history.evictions()
    assert (moved.cause, moved.pod, moved.node) == (Cause.MOVE, "default/small-1", "trn-1")
    assert (moved.made_for, moved.target) == ("default/big-1", "trn-2")
    assert room.metrics["extender_devices_opened_total"].get(()) == 16


async def test_no_other_pod_gets_the_reserved_set_and_the_waiting_one_does(room: MovingBench) -> None:
    await room.wait_and_look()
    room.end("small-1")
    other = room.pod("other-1", count=8)
    assert room.world.filter(other).passed == ["trn-2"]
    assert room.world.state.nodes["trn-1"].free_mask == 0
    room.bind("big-1", "trn-1", ",".join(map(str, range(16))))
    await room.look(after=1.0)
    assert room.reserved == {}
    await room.look(after=1.0)
    assert room.ended() == {"placed": 1.0}
    assert room.world.filter(room.pod("third-1", count=1)).passed == ["trn-2"]


async def test_what_is_reserved_shows_in_the_monitor_api_and_closes_no_node(room: MovingBench) -> None:
    await room.wait_and_look()
    status = node_view(room.world.state, room.world.state.nodes["trn-1"]).status
    assert status.open
    assert status.reserved == (ReservedCores("default/big-1", tuple(range(32))),)
    assert status.free_cores == ()


async def test_explain_names_the_move_and_then_the_reservation(room: MovingBench) -> None:
    def explained(name: str) -> str:
        pod = find_pod(room.world.state, "default", name)
        assert pod is not None
        return explain_text(explain(question(room.world.state, pod)))

    limit_disruptions(room.server, Budget("default", {"app": "small"}, 0))
    await room.look()
    assert "PodDisruptionBudget default/small allows 0 disruptions now, 1 is needed" in explained("big-1")
    limit_disruptions(room.server, Budget("default", {"app": "small"}, 1))
    room.sync()
    assert "Node trn-1 would have room after a move of default/small-1 from node trn-1 to trn-2" in explained("big-1")
    await room.look(after=AFTER)
    kept = "Cores 0-31 of node trn-1 are reserved for it: it is placed there"
    assert f"{kept} once the pods that have some of them have ended." in explained("big-1")
    room.pod("other-1", count=16)
    assert "held by default/small-1, default/big-1 (reserved)" in explained("other-1")
    room.end("small-1")
    assert f"{kept} when its turn comes." in explained("big-1")


async def test_a_pod_is_evicted_for_a_waiting_one_once_only(room: MovingBench) -> None:
    await room.wait_and_look()
    for _ in range(3):
        await room.look(after=30.0)
    assert len(room.records) == 1
    assert room.metrics["extender_evictions_total"].get(()) == 1


@pytest.mark.parametrize("allowed", [0, 1])
async def test_a_disruption_budget_holds(room: MovingBench, allowed: int) -> None:
    limit_disruptions(room.server, Budget("default", {"app": "small"}, allowed))
    await room.wait_and_look()
    assert room.evicted == ["small-1"] * allowed
    assert bool(room.reserved) is bool(allowed)
    assert room.ended() == {}
    assert bool(room.records) is bool(allowed)


async def test_a_plan_does_without_a_pod_that_a_budget_protects(room: MovingBench) -> None:
    room.server.patch_pod("default", "fixed-1", {"metadata": {"annotations": {MOVABLE_KEY: "true"}}})
    limit_disruptions(room.server, Budget("default", {"app": "fixed"}, 0))
    limit_disruptions(room.server, Budget("default", {"app": "small"}, 0))
    await room.wait_and_look()
    assert room.evicted == []
    await room.look(after=30.0)
    assert (room.evicted, room.ended()) == ([], {})


async def test_a_move_is_made_as_soon_as_a_budget_allows_it(room: MovingBench) -> None:
    limit_disruptions(room.server, Budget("default", {"app": "small"}, 0))
    await room.wait_and_look()
    planner = asyncio.create_task(room.planner.run())
    limit_disruptions(room.server, Budget("default", {"app": "small"}, 1))
    room.sync()
    await until(lambda: room.evicted)
    planner.cancel()
    assert room.evicted == ["small-1"]


async def test_a_budget_that_is_not_seen_here_refuses_and_is_asked_again_after_a_while(room: MovingBench) -> None:
    room.unseen = ("poddisruptionbudgets",)
    limit_disruptions(room.server, Budget("default", {"app": "small"}, 0))
    await room.wait_and_look()
    assert (room.evicted, room.reserved, room.ended()) == ([], {}, {"refused-by-budget": 1.0})
    limit_disruptions(room.server, Budget("default", {"app": "small"}, 1))
    await room.look(after=TIMES.retry - 1.0)
    assert room.evicted == []
    await room.look(after=2.0)
    assert room.evicted == ["small-1"]


async def test_no_pod_is_reported_as_evicted_that_was_only_asked_about(room: MovingBench) -> None:
    room.pod("other-1", "5", "trn-1")
    limit_disruptions(room.server, Budget("default", {"app": "small"}, 0))
    await room.wait_and_look()
    assert room.evicted == []
    assert "NeuronEvictedForMove" not in {reason for reason, _ in room.events}
    assert room.metrics["extender_evictions_total"].get(()) == 0


def one_at_a_time(room: MovingBench, *, allowed: int, healthy: int) -> None:
    """Of the two pods ``small`` one may be away."""
    with contextlib.suppress(Refusal):
        room.server.delete(BUDGETS, "small", "default")
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "small"}}}
    counts = {"expectedPods": 2, "desiredHealthy": 1, "currentHealthy": healthy, "disruptionsAllowed": allowed}
    room.server.create(BUDGETS, {"metadata": {"name": "small"}, "spec": spec, "status": counts}, "default")


@pytest.fixture
def staged(room: MovingBench) -> MovingBench:
    """Two pods are in the way, of which one at a time may go."""
    room.pod("small-2", "4", "trn-1")
    one_at_a_time(room, allowed=1, healthy=2)
    return room


async def test_a_move_that_needs_more_than_a_budget_allows_goes_in_stages(staged: MovingBench) -> None:
    await staged.wait_and_look()
    assert (staged.evicted, staged.reserved) == (["small-1"], {"big-1": ("trn-1", 32)})
    notes = [note for reason, name, note in staged.notes if (reason, name) == ("NeuronRoomReserved", "big-1")]
    assert "The evictions of default/small-2 wait for their disruption budgets; what is free is kept." in notes
    staged.end("small-1")
    await staged.look(after=30.0)
    assert (staged.evicted, staged.ended()) == ([], {}), "held, and not looked for elsewhere"
    staged.pod("small-3", "4", "trn-2")
    one_at_a_time(staged, allowed=1, healthy=2)
    await staged.look(after=1.0)
    assert (staged.evicted, staged.reserved) == (["small-2"], {"big-1": ("trn-1", 32)})
    staged.end("small-2")
    staged.bind("big-1", "trn-1", ",".join(map(str, range(16))))
    await staged.look(after=1.0)
    assert (staged.reserved, staged.ended()) == ({}, {"placed": 1.0})


async def test_a_move_in_stages_ends_in_time_and_is_not_begun_again_at_once(staged: MovingBench) -> None:
    await staged.wait_and_look()
    staged.end("small-1")
    one_at_a_time(staged, allowed=0, healthy=1)
    await staged.look(after=TIMES.stages)
    assert (staged.evicted, staged.reserved, staged.ended()) == ([], {}, {"expired": 1.0})
    given_back = {name: note for reason, name, note in staged.notes if reason == "NeuronRoomGivenBack"}
    why = "disruption budgets did not allow the eviction of default/small-2."
    assert given_back["big-1"].endswith(why)
    assert given_back["small-1"] == f"The eviction of this pod did not make room for pod default/big-1 after all: {why}"
    staged.pod("small-3", "4", "trn-2")
    one_at_a_time(staged, allowed=1, healthy=2)
    for _ in range(5):
        await staged.look(after=TIMES.plan)
    assert staged.evicted == []
    await staged.look(after=TIMES.stages)
    assert staged.evicted == ["small-2"]


async def test_nothing_is_begun_that_a_budget_would_never_let_end(room: MovingBench) -> None:
    room.pod("small-2", "4", "trn-1")
    limit_disruptions(room.server, Budget("default", {"app": "small"}, 1))  # and none after that
    await room.wait_and_look()
    assert (room.evicted, room.reserved, room.ended()) == ([], {}, {})


async def test_many_replicas_of_which_one_may_be_away_are_not_evicted_one_after_the_other_for_nothing(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    """A budget lets each go alone, and a set needs more than one to go."""
    room = MovingBench(server, api)
    for number in range(4):
        room.node(f"trn-{number}")
        for device in range(16):
            room.pod(f"small-{16 * number + device}", str(device), f"trn-{number}")
    one_at_a_time(room, allowed=1, healthy=64)
    preempting(room)
    for _ in range(10):
        await room.look(after=TIMES.preempt)
        for name in room.evicted:
            room.end(name)
    assert len(room.server.objects(PODS)) >= 64, "what is evicted in stages has no place elsewhere"


async def test_a_victim_must_be_allowed_where_it_fits(server: StandInApiServer, api: KubernetesApi) -> None:
    room = MovingBench(server, api)
    room.node("trn-1", zone="a")
    room.node("trn-2", zone="b")
    room.pod("small-1", "3", "trn-1", nodeSelector={"zone": "a"})
    room.pod("fixed-1", "3", "trn-2", nodeSelector={"zone": "b"})
    room.pod("big-1", count=16)
    await room.wait_and_look()
    assert room.evicted == []
    assert ("NeuronRoomByMove", "big-1") not in room.events


async def test_the_plan_goes_on_with_pods_that_may_go_elsewhere(server: StandInApiServer, api: KubernetesApi) -> None:
    room = MovingBench(server, api)
    for number in (1, 2, 3):
        room.node(f"trn-{number}", zone=str(number))
    for number in (1, 2, 3):
        selector = {} if number == 3 else {"zone": str(number)}
        room.pod(f"small-{number}", "3", f"trn-{number}", nodeSelector=selector)
    room.pod("big-1", count=16)
    await room.wait_and_look()
    assert room.evicted == ["small-3"]


def cpu(amount: str) -> AnyJson:
    """The part of a pod's spec by which it asks for CPU."""
    return {"overhead": {"cpu": amount}}


async def test_a_victim_must_have_the_cpu_where_it_fits(server: StandInApiServer, api: KubernetesApi) -> None:
    room = MovingBench(server, api)
    for name in ("trn-1", "trn-2", "trn-3"):
        room.node(name, cpu="8")
    room.pod("small-1", "3", "trn-1", **cpu("4"))
    room.pod("small-2", "3", "trn-2", **cpu("6"))
    room.pod("fixed-3", "0,3", "trn-3", **cpu("3"))
    room.pod("big-1", count=16, **cpu("8"))
    await room.wait_and_look()
    # No node but the third has room for one more: 4 of CPU fit beside 3, and 6 do not.
    assert room.evicted == ["small-1"]
    assert room.reserved == {"big-1": ("trn-1", 32)}


@pytest.mark.parametrize(("asked", "evicted"), [("8", ["small-1"]), ("9", []), ("7", ["small-1"])])
async def test_the_waiting_pod_must_have_the_cpu_once_the_victims_are_gone(
    server: StandInApiServer, api: KubernetesApi, asked: str, evicted: list[str]
) -> None:
    room = MovingBench(server, api)
    room.node("trn-1", cpu="9")
    room.node("trn-2", cpu="5")
    room.pod("small-1", "3", "trn-1", **cpu("2"))
    room.pod("small-2", "3", "trn-2")
    no_neuron = {"metadata": {"name": "web"}, "spec": {"nodeName": "trn-1", "containers": [{"name": "a"}], **cpu("1")}}
    server.create_pod(no_neuron)
    room.pod("big-1", count=16, **cpu(asked))
    await room.wait_and_look()
    assert room.evicted == evicted


@pytest.mark.parametrize(("third", "evicted"), [("3", ["small-1", "small-2"]), ("2", [])])
async def test_victims_of_one_move_do_not_share_what_is_left_of_a_node(
    server: StandInApiServer, api: KubernetesApi, third: str, evicted: list[str]
) -> None:
    room = MovingBench(server, api)
    room.node("trn-1", cpu="64")
    for name, amount in (("trn-2", "5"), ("trn-3", third)):
        room.node(name, cpu=amount)
        room.pod(f"fixed-{name}", "0,3,12", name)
    room.pod("small-1", "3", "trn-1", **cpu("3"))
    room.pod("small-2", "4", "trn-1", **cpu("3"))
    room.pod("big-1", count=16)
    await room.wait_and_look()
    assert room.evicted == evicted


@pytest.mark.parametrize(("zone", "evicted"), [("b", ["small-1"]), ("a", [])])
async def test_a_victim_goes_where_its_volume_can_be_used(room: MovingBench, zone: str, evicted: list[str]) -> None:
    room.end("small-1")
    claim = {"metadata": {"name": "data"}, "spec": {"volumeName": "disk"}}
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}]
    volume = {"metadata": {"name": "disk"}, "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}}
    room.server.create(CLAIMS, claim, "default")
    room.server.create(VOLUMES, volume, "")
    room.pod("small-1", "3", "trn-1", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}])
    await room.wait_and_look()
    assert room.evicted == evicted


async def test_a_pod_whose_claim_cannot_be_read_is_not_moved(room: MovingBench) -> None:
    room.end("small-1")
    room.pod("small-1", "3", "trn-1", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "gone"}}])
    await room.wait_and_look()
    assert room.evicted == []


def required(term: AnyJson) -> AnyJson:
    return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}


NOBODY, HOLDER = {"matchLabels": {"app": "nobody"}}, {"matchLabels": {"app": "holder"}}


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeSelector": {"zone": "b"}},
        {"affinity": {"podAffinity": required({"labelSelector": NOBODY, "topologyKey": "zone"})}},
        {"affinity": {"podAntiAffinity": required({"labelSelector": HOLDER, "topologyKey": "zone"})}},
    ],
)
async def test_no_room_is_made_where_the_waiting_pod_may_not_go(room: MovingBench, spec: AnyJson) -> None:
    room.end("big-1")
    holder = {"metadata": {"name": "holder", "labels": {"app": "holder"}}}
    room.server.create_pod(holder | {"spec": {"nodeName": "trn-1", "containers": [{"name": "main"}]}})
    room.pod("big-2", count=16, **spec)
    await room.wait_and_look()
    assert (room.evicted, room.reserved) == ([], {})


async def test_room_is_made_once_the_waiting_pod_has_no_gate_any_more(room: MovingBench) -> None:
    room.end("big-1")
    room.pod("big-2", count=16, schedulingGates=[{"name": "quota"}])
    await room.wait_and_look()
    assert room.evicted == []
    room.server.patch_pod("default", "big-2", {"spec": {"schedulingGates": None}})
    await room.look(after=30.0)
    assert room.evicted == ["small-1"]


async def test_a_node_that_has_just_come_is_part_of_the_next_plan(room: MovingBench) -> None:
    limit_disruptions(room.server, Budget("default", {"app": "small"}, 0))
    await room.wait_and_look()
    room.node("trn-3", zone="c")
    await room.look(after=30.0)
    assert room.metrics["extender_waiting_pods"].get(("fits",)) == 1


async def test_the_reservation_outlives_the_leader(room: MovingBench) -> None:
    await room.wait_and_look()
    room.lead("two")
    await room.mover.take_over()
    assert room.reserved == {"big-1": ("trn-1", 32)}
    await room.wait_and_look()
    assert room.evicted == ["small-1"]
    room.end("big-1")
    await room.look(after=1.0)
    assert (room.reserved, room.ended()) == ({}, {"pod-ended": 1.0})


async def test_a_new_leader_reserves_nothing_for_a_pod_that_is_gone_or_placed(room: MovingBench) -> None:
    await room.wait_and_look()
    room.end("small-1")
    room.bind("big-1", "trn-1", ",".join(map(str, range(16))))
    room.lead("two")
    await room.mover.take_over()
    assert room.reserved == {}
    room.end("big-1")
    room.lead("one")
    await room.mover.take_over()
    assert room.reserved == {}


async def test_without_act_a_move_is_told_and_not_made(room: MovingBench) -> None:
    room.lead("one", makes_moves=False)
    await room.wait_and_look()
    assert (room.evicted, room.reserved) == ([], {})
    assert [name for _, name in room.events] == ["big-1"]


class Killed(Exception):  # noqa: N818 - what happens to the process, not an error
    """The process is gone."""


class KilledAt(KubernetesApi):
    """An API server whose client dies at one of its requests, before it is sent or before the answer is read."""

    def __init__(self, api: KubernetesApi, requests: int, *, is_sent: bool) -> None:
        self.api = api
        self.left = requests
        self.is_sent = is_sent

    async def request(self, request: ApiRequest, *, timeout_seconds: float) -> Response:
        self.left -= 1
        if self.left == 0 and self.is_sent:
            await self.api.request(request, timeout_seconds=timeout_seconds)
        if self.left <= 0:
            raise Killed
        return await self.api.request(request, timeout_seconds=timeout_seconds)


@pytest.mark.parametrize("is_sent", [False, True])
@pytest.mark.parametrize("at", range(1, 16))
async def test_a_leader_that_is_killed_at_any_point_of_a_move_leaves_it_clean(
    room: MovingBench, at: int, *, is_sent: bool
) -> None:
    room.pod("other-1", "5", "trn-1")
    api, room.api = room.api, KilledAt(room.api, at, is_sent=is_sent)
    room.lead("one")
    with contextlib.suppress(Killed):
        await room.wait_and_look()
    first = room.evicted
    assert first in ([], ["other-1"], ["small-1"], ["other-1", "small-1"])

    room.api = api
    room.lead("one")
    await room.mover.take_over()
    assert bool(room.reserved) is (len(first) == 2)
    recorded = bool(room.records)
    await room.wait_and_look()
    if recorded:
        assert room.evicted == first, "a move that was begun is not begun again"
    for name in room.evicted:
        room.end(name)
    await room.look(after=1.0)
    if room.reserved:
        room.bind("big-1", "trn-1", ",".join(map(str, range(16))))
    for _ in range(4):
        await room.look(after=TIMES.longest)
    assert room.reserved == {}


async def test_only_the_holder_of_the_lease_evicts(room: MovingBench) -> None:
    room.lead("two")
    await room.wait_and_look()
    assert (room.evicted, room.reserved, room.records) == ([], {}, [])
    assert room.ended() == {"failed": 1.0}


async def test_a_replica_that_leads_no_more_reserves_nothing(room: MovingBench) -> None:
    await room.wait_and_look()
    room.ready.unmet(CONDITION, "another leads")
    await room.mover.tend()
    assert room.reserved == {}


@pytest.mark.parametrize("status", [403, 500, 503])
async def test_an_eviction_that_fails_ends_the_move(room: MovingBench, status: int) -> None:
    room.server.fail(Fault(match=EVICTIONS, status=status, times=100))
    await room.wait_and_look()
    assert (room.evicted, room.reserved, room.ended()) == ([], {}, {"failed": 1.0})


@pytest.mark.parametrize("fault", [{"status": 403}, {"status": 409}, {"drop": True}])
async def test_a_move_that_cannot_be_recorded_is_not_made(
    room: MovingBench, caplog: pytest.LogCaptureFixture, fault: dict[str, Any]
) -> None:
    room.server.fail(Fault(match=Match(method="PATCH", path="/leases/"), times=100, **fault))
    await room.wait_and_look()
    assert (room.evicted, room.reserved, room.records) == ([], {}, [])
    warnings = [line.message for line in caplog.records if line.levelname == "WARNING"]
    assert warnings == ["reserves not recorded"]


@pytest.mark.parametrize("status", [429, 503])
async def test_an_api_server_that_is_busy_for_a_moment_is_asked_again(room: MovingBench, status: int) -> None:
    room.server.fail(Fault(match=EVICTIONS, status=status))
    await room.wait_and_look()
    await room.look(after=TIMES.retry + 1.0)
    assert room.evicted == ["small-1"]


async def test_a_set_that_stays_unused_is_free_for_others_again(room: MovingBench) -> None:
    await room.wait_and_look()
    await room.look(after=TIMES.unused + 1.0)
    assert room.reserved, "a victim that takes its time to end keeps the reservation"
    room.end("small-1")
    await room.look(after=1.0)
    await room.look(after=TIMES.unused - 1.0)
    assert room.reserved
    await room.look(after=2.0)
    assert (room.reserved, room.ended()) == ({}, {"expired": 1.0})


async def test_a_victim_that_never_ends_does_not_reserve_for_ever(room: MovingBench) -> None:
    await room.wait_and_look()
    await room.look(after=TIMES.longest + 1.0)
    assert (room.reserved, room.ended()) == ({}, {"expired": 1.0})


async def test_a_device_that_gets_sick_ends_the_reservation(room: MovingBench) -> None:
    await room.wait_and_look()
    room.world.show_node(node_manifest("trn-1", TRN1, unhealthy={7: "uncorrected"}))
    await room.look(after=1.0)
    assert (room.reserved, room.ended()) == ({}, {"expired": 1.0})


async def test_the_waiting_pod_may_find_room_elsewhere(room: MovingBench) -> None:
    await room.wait_and_look()
    room.end("fixed-1")
    room.bind("big-1", "trn-2", ",".join(map(str, range(16))))
    await room.look(after=1.0)
    assert (room.reserved, room.ended()) == ({}, {"placed-elsewhere": 1.0})


async def test_evictions_are_limited_by_the_minute(server: StandInApiServer, api: KubernetesApi) -> None:
    room = two_moves(server, api, per_minute=1)
    await room.wait_and_look()
    assert len(room.evicted) == 1
    await room.look(after=61.0)
    assert len(room.evicted) == 2


async def test_pods_of_one_controller_are_moved_one_at_a_time(server: StandInApiServer, api: KubernetesApi) -> None:
    room = two_moves(server, api, owners=("web", "web"))
    await room.wait_and_look()
    await room.look(after=31.0)
    assert len(room.evicted) == 1
    await room.look(after=TIMES.moved)
    assert len(room.evicted) == 2


async def test_a_new_leader_leaves_a_controller_alone_of_which_a_pod_was_moved_lately(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    room = two_moves(server, api, owners=("web", "web"))
    await room.wait_and_look()
    room.lead("one")
    await room.mover.take_over()
    await room.wait_and_look()
    await room.look(after=31.0)
    assert len(room.evicted) == 1
    await room.look(after=TIMES.moved)
    assert len(room.evicted) == 2


def preempting(room: MovingBench) -> None:
    """A gated pod that is worth more than all others waits for a whole node."""
    room.pod("urgent-1", count=16, priority=1000, schedulingGates=[{"name": GATE}])


async def test_a_pod_is_preempted_though_another_of_its_controller_was_moved_lately(room: MovingBench) -> None:
    await room.wait_and_look()
    room.pod("small-2", "4", "trn-2")
    preempting(room)
    await room.look(after=1.0)
    assert room.evicted == ["fixed-1", "small-1", "small-2"]


async def test_a_pod_is_preempted_though_it_cannot_be_seen_where_its_volume_is(room: MovingBench) -> None:
    room.end("big-1")
    room.end("fixed-1")
    room.server.fail(Fault(match=Match(path="/persistentvolumeclaims/"), status=403, times=100))
    for name in ("kept-1", "kept-2"):
        volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
        room.pod(name, "5", f"trn-{name[-1]}", volumes=[volume])
    preempting(room)
    await room.look(after=1.0)
    assert len(room.evicted) == 1


async def test_where_moves_are_only_told_a_gated_pod_preempts_though_one_would_help(room: MovingBench) -> None:
    room.end("big-1")
    room.lead("one", makes_moves=False)
    preempting(room)
    await room.look(after=1.0)
    assert room.evicted == ["small-1"]
    assert room.reserved == {"urgent-1": ("trn-1", 32)}
    assert room.metrics["extender_waiting_pods_by_move"].get(()) == 0


async def test_a_preemption_that_failed_is_tried_again_soon(room: MovingBench) -> None:
    room.end("big-1")
    room.server.patch_pod("default", "small-1", {"metadata": {"annotations": {MOVABLE_KEY: "false"}}})
    preempting(room)
    room.server.fail(Fault(match=EVICTIONS, status=403))
    await room.look(after=1.0)
    assert (room.evicted, room.ended()) == ([], {"failed": 1.0})
    await room.look(after=TIMES.retry + 1.0)
    assert len(room.evicted) == 1


async def test_a_pod_that_may_preempt_is_planned_for_again_after_ten_seconds(room: MovingBench) -> None:
    room.end("big-1")
    room.server.patch_pod("default", "small-1", {"metadata": {"annotations": {MOVABLE_KEY: "false"}}})
    preempting(room)
    room.server.fail(Fault(match=EVICTIONS, status=403))
    planner = asyncio.create_task(room.planner.run())
    await until(lambda: room.ended() == {"failed": 1.0})
    await asyncio.sleep(0.05)
    assert room.evicted == []
    room.now += TIMES.preempt
    await until(lambda: room.evicted)
    planner.cancel()


async def test_a_pod_preempts_once_in_half_an_hour(room: MovingBench) -> None:
    room.end("big-1")
    room.server.patch_pod("default", "small-1", {"metadata": {"annotations": {MOVABLE_KEY: "false"}}})
    preempting(room)
    await room.look(after=1.0)
    (first,) = room.evicted
    (node,) = (node for node, _ in room.reserved.values())
    room.world.show_node(node_manifest(node, TRN1, unhealthy={7: "uncorrected"}))
    for _ in range(3):
        await room.look(after=TIMES.retry)
    assert (room.evicted, room.ended()) == ([first], {"expired": 1.0})
    await room.look(after=TIMES.longest)
    await room.look(after=1.0)
    assert len(room.evicted) == 2


async def test_looks_that_take_long_pause_for_longer(room: MovingBench) -> None:
    room.end("big-1")
    room.server.patch_pod("default", "small-1", {"metadata": {"annotations": {MOVABLE_KEY: "false"}}})
    preempting(room)
    slow = asyncio.Event()
    room.server.fail(Fault(match=EVICTIONS, status=503, gate=slow))
    planner = asyncio.create_task(room.planner.run())
    await until(lambda: any("/eviction" in seen.path for seen in room.server.requests))
    room.now += 0.3 * TIMES.preempt
    slow.set()
    await until(lambda: room.ended() == {"failed": 1.0})
    room.now += 2 * TIMES.preempt
    await asyncio.sleep(0.05)
    assert room.evicted == []
    room.now += TIMES.preempt
    await until(lambda: room.evicted)
    planner.cancel()


@pytest.mark.parametrize("movable", ["true", "false"])
async def test_pods_are_preempted_rather_than_begun_with_others_whose_budget_never_lets_all_go(
    room: MovingBench, movable: str
) -> None:
    for name in ("big-1", "small-1", "fixed-1"):
        room.end(name)
    for devices, name in enumerate(("twin-1", "twin-2")):
        room.pod(name, str(devices), "trn-1", priority=1)
    for devices, name in enumerate(("a-1", "b-1", "c-1")):
        room.pod(name, str(devices), "trn-2", priority=1)
    for name in ("twin-1", "twin-2", "a-1", "b-1", "c-1"):
        room.server.patch_pod("default", name, {"metadata": {"annotations": {MOVABLE_KEY: movable}}})
    limit_disruptions(room.server, Budget("default", {"app": "twin"}, 1))  # each alone may go
    preempting(room)
    await room.look(after=1.0)
    assert room.evicted == ["a-1", "b-1", "c-1"]
    assert room.reserved == {"urgent-1": ("trn-2", 32)}


def two_moves(
    server: StandInApiServer, api: KubernetesApi, *, per_minute: int = 10, owners: tuple[str, str] = ("one", "two")
) -> MovingBench:
    """Two pods wait for whole nodes; each of two nodes could be opened by a move to the third, which has room."""
    room = MovingBench(server, api, per_minute=per_minute)
    for number in (1, 2, 3):
        room.node(f"trn-{number}")
    for number, owner in enumerate(owners, 1):
        room.pod(f"{owner}-{number}", "3", f"trn-{number}")
    room.pod("fixed-1", "0", "trn-3")
    server.patch_pod("default", "fixed-1", {"metadata": {"annotations": {MOVABLE_KEY: "false"}}})
    for number in (1, 2):
        room.pod(f"big-{number}", count=16)
    return room


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1]",
        '[{"uid": "x"}]',
        '[{"uid":"x","namespace":"d","name":"n","node":"t","cores":"zz","victims":[],"owners":[],"at":1}]',
    ],
)
async def test_a_record_that_cannot_be_read_stops_nothing(room: MovingBench, text: str) -> None:
    room.server.change(LEASES, NAME, {"metadata": {"annotations": {RECORDS_KEY: text}}}, "kube-system")
    before = len(room.server.requests)
    await room.mover.take_over()
    assert [seen.method for seen in room.server.requests[before:]] == ["GET"], "it would be the same once more"
    await room.wait_and_look()
    assert room.evicted == ["small-1"]


async def test_what_may_have_been_written_is_written_again(room: MovingBench) -> None:
    kept = ReserveRecord("pod-1", "default", "train", "trn-1", "0-31")
    assert await room.mover.record()
    room.mover.places.records[kept.uid] = kept
    room.server.fail(Fault(Match("PATCH", "/leases/"), lose_answer=True))
    assert not await room.mover.record()
    assert [found["name"] for found in room.records] == ["train"]
    room.mover.places.records.clear()
    assert await room.mover.record()
    assert not room.records


@pytest.mark.parametrize("answer", list(FilterMode))
async def test_from_waiting_to_bound_by_way_of_a_move(
    server: StandInApiServer, api: KubernetesApi, answer: FilterMode
) -> None:
    MovingBench(server, api).fill()
    server.objects(LEASES)[0]["spec"].pop("holderIdentity")
    settings = msgspec.structs.replace(
        SETTINGS, make_room=MakeRoom.ACT, make_room_after=0.0, leader_election=True, identity="one", answer=answer
    )
    async with extender_on(api, settings, ControllerTimes(placing=Times(plan=0.02, tick=0.02))) as extender:
        await extender.ready()
        state, names = extender.daemon.state, ["trn-1", "trn-2"]
        await until(lambda: "deletionTimestamp" in server.get(PODS, "small-1", "default")["metadata"])
        await until(lambda: [event for event in server.objects(EVENTS) if event["reason"] == "NeuronRoomReserved"])
        big = server.get(PODS, "big-1", "default")
        offer = {"trn-1": {"Pods": [{"UID": server.get(PODS, "small-1", "default")["metadata"]["uid"]}]}}
        found = await extender.post("/preempt", {"Pod": big, "NodeNameToMetaVictims": offer})
        assert not found["NodeNameToMetaVictims"], "its room is being made: nobody else has to go"

        server.delete_pod("default", "small-1", grace_seconds=0)
        await until(lambda: not state.nodes["trn-1"].used_mask)
        other = await add_pod(server, extender, pod_manifest("other", NEURON, 16))
        assert not (await extender.post("/filter", {"Pod": other, "NodeNames": names}))["NodeNames"]
        assert (await extender.post("/filter", {"Pod": big, "NodeNames": names}))["NodeNames"] == ["trn-1"]
        call = {"PodName": "big-1", "PodNamespace": "default", "PodUID": big["metadata"]["uid"], "Node": "trn-1"}
        assert not (await extender.post("/bind", call))["Error"]
        await until(lambda: not state.reserved)
        async with asyncio.timeout(10):
            while 'neuron_extender_moves_total{ending="placed"} 1.0' not in (await extender.get("/metrics"))[1]:
                await asyncio.sleep(0.05)
