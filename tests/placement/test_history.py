"""Who was evicted to make room: what is seen of preemptions, what is written of moves, and how much is remembered."""

from __future__ import annotations

import json

import pytest

from neuron_plugin.allocation import PodReference, PodUid
from neuron_plugin.placement.history import HISTORY_SECONDS as SECONDS
from neuron_plugin.placement.history import MOST_EVICTIONS, MOST_OFFERED, OFFER_SECONDS, Cause, Eviction, History
from tests.support.manifests import pod_manifest
from tests.support.served import service_on
from tests.support.world import DEVICE, World

URGENT, OTHER = (PodReference(PodUid(name), "ml", name) for name in ("urgent", "other"))


class Clock:
    """Unix seconds that pass when a test says so."""

    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def timeline(clock: Clock) -> History:
    return History(clock)


def pod(name: str) -> PodReference:
    return PodReference(PodUid(f"uid-{name}"), "ml", name)


@pytest.mark.parametrize(
    ("offers", "after", "made_for"),
    [([URGENT], OFFER_SECONDS, "ml/urgent"), ([URGENT], OFFER_SECONDS + 1, ""), ([URGENT, OTHER], 60, "ml/other")],
    ids=["soon", "later", "the last offer counts"],
)
def test_an_offered_pod_that_ends_soon_was_preempted(
    timeline: History, clock: Clock, offers: list[PodReference], after: float, made_for: str
) -> None:
    for offered_for in offers:
        timeline.offer(["uid-a", "uid-b"], offered_for)
        clock.now += after
    timeline.ended(pod("a"), "node-1")
    timeline.ended(pod("a"), "node-1")  # terminating, then gone
    timeline.ended(pod("not-offered"), "node-1")
    seen = [Eviction(clock.now, Cause.PREEMPTION, "ml/a", "node-1", made_for)]
    assert timeline.evictions() == (seen if made_for else [])


def test_a_move_says_where_the_pod_is_to_go(timeline: History, clock: Clock) -> None:
    timeline.evicted(Cause.MOVE, pod("a"), "node-1", URGENT, "node-2")
    timeline.ended(pod("a"), "node-1")
    assert timeline.evictions() == [Eviction(clock.now, Cause.MOVE, "ml/a", "node-1", "ml/urgent", "node-2")]


def test_what_is_older_than_an_hour_is_not_shown(timeline: History, clock: Clock) -> None:
    timeline.evicted(Cause.MOVE, pod("a"), "node-1", URGENT)
    clock.now += SECONDS
    timeline.evicted(Cause.MOVE, pod("b"), "node-1", URGENT)
    clock.now += 1
    assert [each.pod for each in timeline.evictions()] == ["ml/b"]


def test_the_latest_evictions_and_offers_are_remembered_and_no_more(timeline: History) -> None:
    for number in range(MOST_EVICTIONS + 5):
        timeline.evicted(Cause.MOVE, pod(f"{number}"), "node-1", URGENT)
    assert [each.pod for each in timeline.evictions()][:: MOST_EVICTIONS - 1] == ["ml/5", f"ml/{MOST_EVICTIONS + 4}"]
    timeline.offer([f"uid-offered-{number}" for number in range(MOST_OFFERED + 1)], URGENT)
    for number in (0, 1):
        timeline.ended(pod(f"offered-{number}"), "node-1")
    assert timeline.evictions()[-1].pod == "ml/offered-1"


def test_a_preemption_is_seen_from_the_verb_s_answer_and_the_watch() -> None:
    world = World()
    world.node("node", "trn1.32xlarge")
    held = [
        world.held(f"row-{first}", "node", DEVICE, ",".join(map(str, range(first, first + 4))))
        for first in (0, 4, 8, 12)
    ]
    urgent = pod_manifest("urgent", DEVICE, 4, priority=10)
    offered = {"Pods": [{"UID": held[2]["metadata"]["uid"]}], "NumPDBViolations": 0}
    body = {"Pod": urgent, "NodeNameToVictims": None, "NodeNameToMetaVictims": {"node": offered}}
    answer = json.loads(service_on(world).answer("preempt", json.dumps(body).encode()))
    assert answer["NodeNameToMetaVictims"].keys() == {"node"}

    held[2]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.show(held[2])
    world.gone(held[2])
    world.gone(held[0])

    (found,) = world.state.history.evictions()
    assert (found.cause, found.pod, found.node, found.made_for) == (
        Cause.PREEMPTION,
        "default/row-8",
        "node",
        "default/urgent",
    )


def test_a_preempted_pod_that_goes_at_once_is_seen_too() -> None:
    world = World()
    victim = world.held("victim", "node", DEVICE, "0")
    world.state.history.offer([victim["metadata"]["uid"]], URGENT)
    world.gone(victim)
    assert [each.pod for each in world.state.history.evictions()] == ["default/victim"]


def test_a_device_is_unhealthy_since_the_replica_saw_it_become_so(timeline: History, clock: Clock) -> None:
    timeline.unhealthy("node", {1}, {1})  # who knows for how long
    clock.now += 1
    first = clock.now
    timeline.unhealthy("node", {1}, {1, 2})
    clock.now += 1
    timeline.unhealthy("node", {1, 2}, {1, 2, 3})
    assert timeline.unhealthy_since("node") == {2: first, 3: first + 1}
    timeline.unhealthy("node", {1, 2, 3}, {1, 3})
    timeline.unhealthy("node", {1, 3}, {1, 2, 3})
    assert timeline.unhealthy_since("node") == {3: first + 1, 2: first + 1}
    timeline.unhealthy("node", {1, 2, 3}, set())
    assert timeline.unhealthy_since("node") == {}


def test_the_state_says_since_when_devices_are_unhealthy_and_forgets_a_node_that_is_gone() -> None:
    world = World()
    world.node("node", "trn1.32xlarge", unhealthy={1: "ECC"})
    world.node("node", "trn1.32xlarge", unhealthy={1: "ECC", 2: "ECC"})
    assert list(world.state.history.unhealthy_since("node")) == [2]
    world.state.remove_node("node", world.state.nodes["node"].node.uid)
    assert world.state.history.unhealthy_since("node") == {}
