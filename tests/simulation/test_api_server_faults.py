from __future__ import annotations

import asyncio

import aiohttp
import pytest

from neuron_plugin.simulation import PODS
from neuron_plugin.simulation.api_server import StandInApiServer
from neuron_plugin.simulation.api_server_http import Fault, Match, take_fault
from tests.simulation.api_client import PODS_PATH, Client, names, pod, until_watched


@pytest.mark.parametrize(
    ("match", "meets"),
    [
        (Match(), True),
        (Match(method="GET"), True),
        (Match(method="POST"), False),
        (Match(path="/pods$"), True),
        (Match(path="/binding$"), False),
        (Match(watch=True), True),
        (Match(watch=False), False),
        (Match(method="GET", path="v1", watch=True), True),
    ],
)
def test_a_match_says_which_requests(match: Match, meets: bool) -> None:  # noqa: FBT001 - a table's column
    assert match.meets("GET", "/api/v1/pods", watch=True) is meets


def test_without_faults_nothing_happens() -> None:
    assert take_fault([], "GET", "/", watch=False) is None


def test_a_fault_is_used_up() -> None:
    faults: list[Fault] = []
    faults.append(Fault(times=2, status=500))
    taken = [take_fault(faults, "GET", "/", watch=False) for _ in range(3)]
    assert [fault.status if fault else None for fault in taken] == [500, 500, None]


def test_faults_happen_in_their_order() -> None:
    faults = [Fault(status=status) for status in (500, 503)]
    taken = [take_fault(faults, "GET", "/", watch=False) for _ in range(2)]
    assert [fault.status for fault in taken if fault] == [500, 503]


def test_a_fault_waits_for_the_request_it_is_meant_for() -> None:
    faults: list[Fault] = []
    faults.append(Fault(Match(method="POST"), status=500))
    assert take_fault(faults, "GET", "/", watch=False) is None
    assert take_fault(faults, "POST", "/", watch=False) is not None


def test_what_was_cleared_does_not_happen() -> None:
    faults: list[Fault] = []
    faults.append(Fault(times=9))
    faults.clear()
    assert take_fault(faults, "GET", "/", watch=False) is None


# Over HTTP.


async def test_a_fault_happens_to_what_it_is_meant_for_and_so_often(client: Client, server: StandInApiServer) -> None:
    server.fail(Fault(Match(method="GET", path="/pods$"), times=2, status=503, retry_after_seconds=1))
    assert (await client.ask("GET", "/api/v1/nodes"))[0] == 200
    refused = [(await client.ask("GET", "/api/v1/pods"))[0] for _ in range(3)]
    assert refused == [503, 503, 200]


async def test_a_fault_can_be_taken_back(client: Client, server: StandInApiServer) -> None:
    server.fail(Fault(times=9, status=500))
    server.forgive()
    assert (await client.ask("GET", "/api/v1/pods"))[0] == 200


@pytest.mark.parametrize(("fault", "done"), [(Fault(drop=True), False), (Fault(lose_answer=True), True)])
async def test_a_cut_request_is_done_or_not(client: Client, server: StandInApiServer, fault: Fault, done: bool) -> None:  # noqa: FBT001 - a table's column
    server.fail(fault)
    with pytest.raises(aiohttp.ClientError):
        await client.ask("POST", PODS_PATH, pod("a"))
    assert bool(server.objects(PODS)) is done


async def test_a_watch_can_be_made_to_end_at_once(client: Client, server: StandInApiServer) -> None:
    server.fail(Fault(Match(watch=True), ends=True))
    assert await client.watch_to_the_end("/api/v1/pods") == []


async def test_a_request_can_be_held(client: Client, server: StandInApiServer) -> None:
    server.fail(Fault(gate=(gate := asyncio.Event())))
    asking = asyncio.create_task(client.get("/api/v1/pods"), name="held")
    await asyncio.sleep(0.02)
    assert not asking.done()
    gate.set()
    await asking


async def test_a_stopped_server_comes_back_on_its_port_with_its_objects(
    client: Client, server: StandInApiServer
) -> None:
    server.create_pod(pod("a"))
    url = server.url
    await server.stop()
    with pytest.raises(aiohttp.ClientError):
        await client.get("/api/v1/pods")
    await server.start()
    assert server.url == url
    assert names(await client.get("/api/v1/pods")) == ["a"]


async def test_stopping_does_not_wait_for_watches(client: Client, server: StandInApiServer) -> None:
    watching = asyncio.create_task(client.watch("/api/v1/pods", 1, resourceVersion="1"), name="watch")
    await until_watched(server)
    async with asyncio.timeout(0.9):
        await server.stop()
    await asyncio.gather(watching, return_exceptions=True)


async def test_stopping_twice_is_harmless() -> None:
    server = StandInApiServer()
    await server.start()
    await server.stop()
    await server.stop()
