"""The events of a pod, as the live page shows them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from neuron_plugin.cluster import KubernetesApi, ObjectReference
from neuron_plugin.cluster.api import send
from neuron_plugin.cluster.client import connect
from neuron_plugin.cluster.events import EVENTS
from neuron_plugin.cluster.writes import create_event
from neuron_plugin.monitor.events import pod_events
from tests.support.api_server import Fault, Match, StandInApiServer

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
async def server() -> AsyncIterator[StandInApiServer]:
    async with StandInApiServer() as server:
        yield server


@pytest.fixture
async def api(server: StandInApiServer, tmp_path: Path) -> AsyncIterator[KubernetesApi]:
    async with await connect(server.write_kubeconfig(tmp_path / "kubeconfig")) as api:
        yield api


async def report(api: KubernetesApi, pod: str, namespace: str, reason: str) -> None:
    about = ObjectReference("Pod", pod, f"uid-of-{pod}", "v1", namespace)
    note = f"{reason} it"
    event = create_event(about, reporter="a.io/x", instance="x", action="Place", reason=reason, note=note, now=NOW)
    await send(api, event, timeout_seconds=5)


async def test_events_are_those_of_the_pod_alone(api: KubernetesApi) -> None:
    await report(api, "train", "ml", "Placed")
    await report(api, "train", "other", "Moved")
    await report(api, "serve", "ml", "Refused")
    found = await pod_events(api, "ml", "train")
    assert [(each.reason, each.note, each.type, each.uid) for each in found.events] == [
        ("Placed", "Placed it", "Normal", "uid-of-train")
    ]
    assert found.events[0].at
    assert found.problem == ""


async def test_a_refusal_is_said_in_place_of_the_events(server: StandInApiServer, api: KubernetesApi) -> None:
    server.fail(Fault(Match(path="/events$"), status=403))
    found = await pod_events(api, "ml", "train")
    assert found.events == ()
    assert "403" in found.problem


@pytest.mark.parametrize(
    ("times", "seen"),
    [
        ({"lastTimestamp": "2026-01-02T03:04:05Z", "eventTime": None}, "2026-01-02T03:04:05Z"),
        ({"lastTimestamp": None, "eventTime": "2026-01-02T03:04:05.000000Z"}, "2026-01-02T03:04:05.000000Z"),
        ({}, ""),
    ],
)
def test_an_event_was_last_seen_at_the_time_that_it_has(times: dict[str, str | None], seen: str) -> None:
    text = {"metadata": {"name": "a"}, "involvedObject": {"uid": "u"}, "count": None} | times
    assert EVENTS.decode(msgspec.json.encode(text)).last_seen == seen
