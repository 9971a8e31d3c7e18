from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from neuron_plugin.extender.closings import PATIENCE_SECONDS, Closings
from neuron_plugin.extender.reporting import MOST_AT_ONCE, Reporting

from neuron_plugin.cluster import ApiRequest, UnreachableError
from neuron_plugin.cluster.api import Response
from neuron_plugin.extender.leadership import Readiness
from tests.extender.world import DEVICE, World

TRN1 = "trn1.32xlarge"


class Counts:
    def __init__(self) -> None:
        self.codes: Counter[str] = Counter()

    def unclear(self, code: str) -> None:
        self.codes[code] += 1


def odd(world: World, name: str = "odd") -> dict[str, Any]:
    return world.pod(name, DEVICE, 1, node="node", annotations={"NEURON_DEVS": "x"})


def test_t34_an_unreadable_assignment_is_reported_once_and_at_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    counts = Counts()
    closings = Closings(counts)
    world.node("node", TRN1)
    odd(world)

    (report,) = closings.due(world.state.nodes, 0.0)
    again = closings.due(world.state.nodes, 100.0)

    assert (str(report.pod), report.node, report.reason) == ("default/odd", "node", "NeuronAssignmentUnreadable")
    assert "NEURON_DEVS='x'" in report.note
    assert again == []
    assert counts.codes == {"unreadable-assignment": 1}
    assert len(caplog.records) == 1


def test_t35_a_pod_without_assignment_is_reported_only_when_the_plugin_stays_silent(world: World) -> None:
    closings = Closings(Counts())
    world.node("node", TRN1)
    world.pod("stock", DEVICE, 1, node="node")

    assert closings.due(world.state.nodes, 0.0) == []
    assert closings.due(world.state.nodes, PATIENCE_SECONDS - 1) == []
    assert [each.reason for each in closings.due(world.state.nodes, PATIENCE_SECONDS)] == ["NeuronAssignmentMissing"]


def test_what_ended_and_comes_again_is_reported_again(world: World) -> None:
    closings = Closings(Counts())
    world.node("node", TRN1)
    pod = odd(world)
    assert len(closings.due(world.state.nodes, 0.0)) == 1

    world.gone(pod)
    assert closings.due(world.state.nodes, 1.0) == []
    world.show(pod)
    assert len(closings.due(world.state.nodes, 2.0)) == 1


def test_overlapping_claims_name_the_other_pod(world: World) -> None:
    closings = Closings(Counts())
    world.node("node", TRN1)
    world.held("first", "node", DEVICE, "0")
    world.held("second", "node", DEVICE, "0")
    closings.due(world.state.nodes, 0.0)

    (report,) = closings.due(world.state.nodes, PATIENCE_SECONDS)

    assert report.reason == "NeuronAssignmentOverlaps"
    assert "default/first" in report.note
    assert "default/second" in report.note


class Api:
    """Takes events, or fails."""

    def __init__(self, *, away: bool = False) -> None:
        self.away = away
        self.events: list[dict[str, Any]] = []

    async def request(self, request: ApiRequest, *, timeout_seconds: float) -> Response:
        assert timeout_seconds > 0
        if self.away:
            raise UnreachableError(request.method, request.path, "away", may_have_arrived=False)
        self.events.append(dict(request.body or {}))
        return Response(201, b"{}")

    def stream(self, request: ApiRequest, *, silence_seconds: float) -> Any:
        raise NotImplementedError(request, silence_seconds)


def reporting(world: World, api: Api, readiness: Readiness) -> Reporting:
    return Reporting(
        api,
        world.state,
        Closings(Counts()),
        readiness,
        instance="replica-1",
        clock=lambda: 0.0,
        wall=lambda: datetime(2026, 1, 1, tzinfo=UTC),
    )


async def test_only_the_leader_speaks_and_it_writes_a_warning_on_the_pod(world: World) -> None:
    api, readiness = Api(), Readiness({"leader": "not the leader"})
    world.node("node", TRN1)
    odd(world)
    reports = reporting(world, api, readiness)

    await reports.look()
    assert api.events == []
    readiness.met("leader")
    await reports.look()
    await reports.look()

    (event,) = api.events
    assert event["type"] == "Warning"
    assert event["regarding"]["name"] == "odd"
    assert event["reportingController"] == "neuron-plugin.io/extender"
    assert event["reportingInstance"] == "replica-1"


async def test_a_cluster_that_is_all_wrong_makes_no_storm_and_an_absent_server_no_crash(world: World) -> None:
    world.node("node", TRN1)
    for number in range(MOST_AT_ONCE + 10):
        odd(world, f"odd-{number}")
    api = Api()

    await reporting(world, api, Readiness({})).look()
    await reporting(world, Api(away=True), Readiness({})).look()

    assert len(api.events) == MOST_AT_ONCE
