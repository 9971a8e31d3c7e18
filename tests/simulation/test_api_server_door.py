"""The simulated API server by its door without sockets."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from neuron_plugin.cluster.api import MERGE_PATCH, ApiError, ApiRequest, Response, UnreachableError
from neuron_plugin.simulation.api_server_kinds import PODS
from tests.support.api_server import Fault, Match, StandInApiServer

POD = {"metadata": {"name": "a", "namespace": "default"}, "spec": {"containers": []}}
ITEM = "/api/v1/namespaces/default/pods/a"
LABEL = ApiRequest("PATCH", ITEM, body={"metadata": {"labels": {"x": "y"}}}, content_type=MERGE_PATCH)
WATCH = ApiRequest("GET", "/api/v1/pods", {"watch": "true", "resourceVersion": "1"})


@pytest.fixture
def api() -> StandInApiServer:
    server = StandInApiServer()
    server.create_pod(POD)
    return server


def is_labelled(api: StandInApiServer) -> bool:
    return "labels" in api.get(PODS, "a", "default")["metadata"]


@pytest.mark.parametrize(
    ("fault", "arrived", "done"),
    [
        (Fault(drop=True), True, False),
        (Fault(unsent=True), False, False),
        (Fault(lose_answer=True), True, True),
        (Fault(delay_seconds=9.0), True, False),
    ],
)
@pytest.mark.looptime
async def test_a_request_without_an_answer(api: StandInApiServer, fault: Fault, *, arrived: bool, done: bool) -> None:
    api.fail(fault)
    with pytest.raises(UnreachableError) as raised:
        await api.request(LABEL, timeout_seconds=5)
    assert (raised.value.may_have_arrived, is_labelled(api)) == (arrived, done)
    assert (await api.request(LABEL, timeout_seconds=5)).status == 200


@pytest.mark.parametrize("done", [False, True])
async def test_a_refusal_is_answered_and_says_nothing_of_what_was_done(api: StandInApiServer, *, done: bool) -> None:
    api.fail(Fault(Match("PATCH"), status=503, lose_answer=done))
    assert (await api.request(LABEL, timeout_seconds=5)).status == 503
    assert is_labelled(api) is done
    assert api.answer(ApiRequest("GET", "/api/v1/nothing")).status == 404


async def test_what_a_request_brings_stays_its_callers(api: StandInApiServer) -> None:
    metadata = {"name": "b", "uid": "mine"}
    body: dict[str, object] = {"metadata": metadata, "spec": {"containers": []}}
    made = await api.request(ApiRequest("POST", "/api/v1/namespaces/default/pods", body=body), timeout_seconds=5)
    assert (made.status, metadata["uid"]) == (201, "mine")
    assert api.get(PODS, "b", "default")["metadata"]["uid"] != "mine"


@pytest.mark.looptime
async def test_a_watch_says_what_happens_until_it_is_ended_or_cut(api: StandInApiServer) -> None:
    async with api.stream(WATCH, silence_seconds=600) as lines:
        kinds = [msgspec.json.decode(await anext(lines))["type"]]
        api.delete_pod("default", "a", grace_seconds=0)
        kinds.append(msgspec.json.decode(await anext(lines))["type"])
        assert kinds == ["ADDED", "DELETED"]
        api.end_watches()
        assert [line async for line in lines] == []
    async with api.stream(WATCH, silence_seconds=600) as lines:
        asyncio.get_running_loop().call_later(1, api.cut_watches)
        with pytest.raises(UnreachableError):
            assert [line async for line in lines] == []
    assert api.open_watches == 0


@pytest.mark.looptime
async def test_a_silent_watch_is_given_up_and_a_refused_one_not_opened(api: StandInApiServer) -> None:
    now = {**WATCH.query, "resourceVersion": str(api._objects.versions.current)}
    began = asyncio.get_running_loop().time()
    async with api.stream(ApiRequest("GET", WATCH.path, now), silence_seconds=150) as lines:
        with pytest.raises(UnreachableError, match="silence"):
            await anext(lines)
    assert asyncio.get_running_loop().time() - began == pytest.approx(180)
    api.fail(Fault(status=410))
    with pytest.raises(ApiError, match="410"):
        async with api.stream(WATCH, silence_seconds=150):
            pass
    api.fail(Fault(ends=True))
    async with api.stream(WATCH, silence_seconds=150) as lines:
        assert [line async for line in lines] == []
    assert isinstance(await api.request(ApiRequest("GET", ITEM), timeout_seconds=1), Response)
