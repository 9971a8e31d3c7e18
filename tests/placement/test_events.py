from __future__ import annotations

import logging
from typing import Any

import pytest

from neuron_plugin.backoff import Clock
from neuron_plugin.placement.context import Context, Times
from neuron_plugin.placement.events import MOST_AT_ONCE, NodeEvents
from neuron_plugin.placement.leadership import Readiness
from neuron_plugin.simulation.api_server_kinds import EVENTS
from tests.support.api_server import Fault, StandInApiServer
from tests.support.manifests import pod_manifest
from tests.support.world import DEVICE, World, record_of

TRN1 = "trn1.32xlarge"
CLOSED, SILENT = Times().closed, Times().silent


class Reports:
    """The events of a world, and the API server that takes them, or is away."""

    def __init__(self, world: World, *unmet: str, away: bool = False) -> None:
        self.now = 0.0
        self._server = StandInApiServer()
        if away:
            self._server.fail(Fault(unsent=True, times=MOST_AT_ONCE))
        self.readiness = Readiness(dict.fromkeys(unmet, "not the leader"))
        clock = Clock(now=lambda: self.now)
        context = Context(self._server, world.state, self.readiness, "replica-1", clock=clock)
        self.metrics = context.metrics
        self._events = NodeEvents(context)

    async def at(self, now: float) -> list[dict[str, Any]]:
        """The events that a look at this time writes."""
        self.now, before = now, self.events
        await self._events.look()
        return [event for event in self.events if event not in before]

    @property
    def events(self) -> list[dict[str, Any]]:
        return self._server.objects(EVENTS)


@pytest.fixture
def reports(world: World) -> Reports:
    world.node("node", TRN1)
    return Reports(world)


def odd(world: World, name: str = "odd") -> dict[str, Any]:
    return world.pod(name, DEVICE, 1, node="node", annotations={"NEURON_DEVS": "x"})


async def test_t34_an_unreadable_assignment_is_reported_once_and_at_once(
    world: World, reports: Reports, caplog: pytest.LogCaptureFixture
) -> None:
    odd(world)

    (event,) = await reports.at(0.0)
    again = await reports.at(100.0)

    assert (event["regarding"]["name"], event["reason"]) == ("odd", "NeuronAssignmentUnreadable")
    assert "NEURON_DEVS='x'" in event["note"]
    assert "Node node takes no new Neuron pod" in event["note"]
    assert again == []
    assert reports.metrics["extender_unclear_assignments_total"] == {("unreadable-assignment",): 1}
    assert len(caplog.records) == 1


async def test_t35_a_pod_without_assignment_is_reported_only_when_the_plugin_stays_silent(
    world: World, reports: Reports
) -> None:
    world.pod("stock", DEVICE, 1, node="node")

    assert await reports.at(0.0) == []
    assert await reports.at(CLOSED - 1) == []
    assert [each["reason"] for each in await reports.at(CLOSED)] == ["NeuronAssignmentMissing"]


async def test_what_ended_and_comes_again_is_reported_again(world: World, reports: Reports) -> None:
    pod = odd(world)
    assert len(await reports.at(0.0)) == 1

    world.gone(pod)
    assert await reports.at(1.0) == []
    world.show(pod)
    assert len(await reports.at(2.0)) == 1


async def test_overlapping_assignments_name_the_other_pod(world: World, reports: Reports) -> None:
    world.held("first", "node", DEVICE, "0")
    world.held("second", "node", DEVICE, "0")
    await reports.at(0.0)

    (event,) = await reports.at(CLOSED)

    assert event["reason"] == "NeuronAssignmentOverlaps"
    assert "default/first" in event["note"]
    assert "default/second" in event["note"]


async def test_only_the_leader_reports_and_it_writes_a_warning_on_the_pod(world: World) -> None:
    reports = Reports(world, "leader")
    world.node("node", TRN1)
    odd(world)

    assert await reports.at(0.0) == []
    reports.readiness.met("leader")
    await reports.at(1.0)
    await reports.at(2.0)

    (event,) = reports.events
    assert event["type"] == "Warning"
    assert event["regarding"]["name"] == "odd"
    assert event["reportingController"] == "neuron-plugin.io/extender"
    assert event["reportingInstance"] == "replica-1"


async def test_a_cluster_that_is_all_wrong_makes_no_storm_and_an_absent_server_no_crash(world: World) -> None:
    world.node("node", TRN1)
    for number in range(MOST_AT_ONCE + 10):
        odd(world, f"odd-{number}")

    assert len(await Reports(world).at(0.0)) == MOST_AT_ONCE
    assert await Reports(world, away=True).at(0.0) == []


async def test_a_node_that_lost_pods_at_admission_is_reported_once_with_one_of_them(
    world: World, reports: Reports
) -> None:
    for name in ("first", "second"):
        lost = pod_manifest(name, DEVICE, 1, node="node", annotations={"NEURON_DEVS": "3"})
        world.state.history.rejections.append(record_of(lost))

    (event,) = await reports.at(0.0)

    assert event["reason"] == "NeuronAdmissionRejected"
    assert event["regarding"] == {"kind": "Node", "name": "node", "uid": "node", "apiVersion": "v1"}
    assert "The kubelet rejected pod default/second" in event["note"]
    assert reports.metrics["extender_rejected_admissions_total"].get(()) == 2
    assert await reports.at(10.0) == []


async def test_a_silent_plugin_is_reported_on_its_node_once_and_when_it_is_back(
    world: World, reports: Reports, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    world.state.set_stale(frozenset({"node"}))

    assert await reports.at(0.0) == []
    assert await reports.at(SILENT - 1) == []
    (event,) = await reports.at(SILENT)
    assert await reports.at(10 * SILENT) == []
    world.state.set_stale(frozenset())
    assert await reports.at(10 * SILENT + 1) == []

    assert (event["regarding"]["kind"], event["regarding"]["name"]) == ("Node", "node")
    assert event["reason"] == "NeuronPluginSilent"
    assert [(record.message, vars(record)["node"]) for record in caplog.records] == [
        ("plugin does not renew its Lease", "node"),
        ("plugin renews its Lease again", "node"),
    ]


async def test_a_rollout_is_no_silence(world: World, reports: Reports, caplog: pytest.LogCaptureFixture) -> None:
    for now in range(0, 600, 2):
        world.state.set_stale(frozenset({"node"}) if now % 60 < SILENT - 2 else frozenset())
        assert await reports.at(now) == []
    world.state.set_stale(frozenset({"node"}))
    await reports.at(600)
    world.state.remove_node("node", world.state.nodes["node"].node.uid)
    assert await reports.at(700) == []
    assert not caplog.records


async def test_a_pod_for_which_no_eviction_opens_a_set_learns_once_where_to_look(
    world: World, reports: Reports
) -> None:
    waiting = record_of(world.pod("waiting", DEVICE, 4))
    world.state.history.without_victims.extend([waiting.reference] * 3)

    (event,) = await reports.at(0.0)
    world.state.history.without_victims.append(waiting.reference)
    assert await reports.at(10.0) == []

    assert (event["regarding"]["name"], event["reason"]) == ("waiting", "NeuronNoPreemption")
    assert "neuron-plugin explain default/waiting" in event["note"]
