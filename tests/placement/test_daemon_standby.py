"""A standby redirects verbs to the leader (E4): alone, and as two whole replicas behind one Service."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import aiohttp
import msgspec
import pytest
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from multidict import CIMultiDictProxy

from neuron_plugin.cluster import Election, KubernetesApi
from neuron_plugin.cluster.leases import LEADER_LEASE
from neuron_plugin.placement.context import Times
from neuron_plugin.placement.daemon import ControllerTimes
from neuron_plugin.placement.leadership import NOT_LEADER, redirect_to_leader
from neuron_plugin.placement.reserves import RECORDS_KEY, ReserveRecord, write_records
from neuron_plugin.placement.settings import ExtenderSettings
from neuron_plugin.simulation.api_server_kinds import LEASES, PODS
from tests.support.api_server import Fault, Match, StandInApiServer
from tests.support.manifests import node_manifest, pod_manifest
from tests.support.running import Extender, client_of, extender_on, until
from tests.support.scheduler import StandInScheduler
from tests.support.world import DEVICE

QUICK = ControllerTimes(placing=Times(landing=0.2), drain=0.05)


@dataclass
class Candidate:
    leading: bool = False
    leader_url: str = ""


@asynccontextmanager
async def answering(
    candidate: Candidate, *outside: Middleware, mib: float = 1, body_seconds: float = 5.0
) -> AsyncIterator[str]:
    """A server with the middleware whose verb says whether it was this one that answered."""

    async def verb(request: web.Request) -> web.Response:
        return web.Response(text=f"{len(await request.read())} bytes")

    redirect = redirect_to_leader(cast("Election", candidate), {"filter"}, body_seconds=body_seconds)
    app = web.Application(client_max_size=int(mib * (1 << 20)), middlewares=[*outside, redirect])
    app.add_routes([web.post("/scheduler/filter", verb), web.get("/inspect", verb)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def post(url: str, body: bytes = b"{}") -> tuple[int, CIMultiDictProxy[str], str]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/scheduler/filter", data=body, allow_redirects=False) as response,
    ):
        return response.status, response.headers, await response.text()


@pytest.mark.parametrize(
    ("candidate", "status", "location", "connection"),
    [
        (Candidate(leader_url="https://[fd00::1]:1"), 307, "https://[fd00::1]:1/scheduler/filter", "close"),
        (Candidate(leading=True, leader_url="https://other:12345"), 200, None, None),
        (Candidate(), 200, None, "close"),
    ],
    ids=["standby", "leader", "no leader is known"],
)
async def test_a_standby_names_the_leader_and_only_the_leader_keeps_the_connection(
    candidate: Candidate, status: int, location: str | None, connection: str | None
) -> None:
    """The scheduler holds on to a connection that works, also to one that only ever refuses."""
    async with answering(candidate) as url:
        answered, headers, text = await post(url)
    assert (answered, headers.get("Location"), headers.get("Connection")) == (status, location, connection)
    assert (text == "2 bytes") is (status == 200)


async def test_readings_are_as_good_from_a_standby() -> None:
    async with (
        answering(Candidate(leader_url="https://other:12345")) as url,
        aiohttp.ClientSession() as session,
        session.get(f"{url}/inspect") as response,
    ):
        assert response.status == 200


async def test_t04_a_body_over_the_limit_is_sent_on_and_refused_by_the_leader() -> None:
    async with answering(Candidate(leader_url="https://other:12345"), mib=0.001) as url:
        assert (await post(url, b"x" * 100_000))[0] == 307


async def test_t09_a_body_that_does_not_come_is_not_waited_for() -> None:
    async with answering(Candidate(leader_url="https://other:12345"), body_seconds=0.05) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(b"POST /scheduler/filter HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n")
        async with asyncio.timeout(10):
            assert b" 307 " in await reader.readline()
        writer.close()
        await writer.wait_closed()


async def test_t09_a_caller_that_breaks_off_in_its_body_is_no_fault_of_a_standby(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handled = asyncio.Event()

    @web.middleware
    async def watched(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        finally:
            handled.set()

    async with answering(Candidate(leader_url="https://other:12345"), watched) as url:
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as caller:
            caller.sendall(b"POST /scheduler/filter HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
            assert (await post(url))[0] == 307  # one loop reads both: the other's body is waited for by now
            handled.clear()
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close with a reset
        async with asyncio.timeout(5):
            await handled.wait()
        await asyncio.sleep(0)

    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def named(name: str) -> ExtenderSettings:
    return ExtenderSettings(port=free_port(), health_port=0, health_address="127.0.0.1", identity=name)


@dataclass
class Pair:
    leader: Extender
    standby: Extender


@pytest.fixture
async def pair(server: StandInApiServer, api: KubernetesApi, tmp_path: Path) -> AsyncIterator[Pair]:
    """Two replicas, both as ready as they get."""
    server.create_node(node_manifest("node", "trn1.32xlarge"))
    async with (
        client_of(server, tmp_path) as other,
        extender_on(api, named("one"), times=QUICK) as one,
        extender_on(other, named("two"), times=QUICK) as two,
    ):
        await until(lambda: not (one.daemon.ready.why_not and two.daemon.ready.why_not))
        leader, standby = (two, one) if one.daemon.ready.why_not else (one, two)
        await until(lambda: not standby.daemon.ready.conditions["election"])
        await until(lambda: not standby.daemon.ready.conditions["synced"])
        yield Pair(leader, standby)


def decided_by(extender: Extender) -> list[Any]:
    decisions: list[Any] = msgspec.json.decode(extender.daemon.decisions())["decisions"]
    return decisions


async def test_e04_a_pod_is_bound_by_the_leader_whichever_replica_the_scheduler_reaches(
    server: StandInApiServer, pair: Pair
) -> None:
    for name, reached in (("first", pair.standby), ("second", pair.leader), ("third", pair.standby)):
        async with StandInScheduler(reached.url) as scheduler:
            placed = await scheduler.schedule(server.create_pod(pod_manifest(name, DEVICE, 4)), ["node"])
            assert (placed.node, placed.message) == ("node", "")

    given = {pod["metadata"]["annotations"]["NEURON_DEVS"] for pod in server.objects(PODS)}
    assert given == {"0,1,2,3", "4,5,6,7", "8,9,10,11"}
    assert len(decided_by(pair.leader)) == 3
    assert not decided_by(pair.standby)


async def test_e04_p78_a_standby_is_ready_for_the_kubelet_and_not_for_verbs(pair: Pair) -> None:
    unfit = f"{NOT_LEADER}, {pair.leader.daemon._context.instance} is\n"
    usage = (503, f"only the leader has the device-hours: {unfit}")
    assert await pair.standby.get("/usage") == usage
    assert await pair.standby.get("/readyz", health=True) == (503, unfit)
    assert await pair.standby.get("/readyz?exclude=leader", health=True) == (200, "ok\n")
    assert await pair.standby.get("/readyz?verbose&exclude=leader", health=True) == (
        200,
        "[+]synced ok\n[+]election ok\n",
    )
    assert await pair.standby.get("/readyz?verbose", health=True) == (
        503,
        f"[+]synced ok\n[-]leader failed: {unfit}[+]election ok\n",
    )
    assert await pair.leader.get("/readyz?exclude=leader&exclude=unheard-of", health=True) == (200, "ok\n")
    assert await pair.leader.get("/readyz", health=True) == (200, "ok\n")


async def test_only_the_leader_reports_nodes_so_that_sums_over_replicas_are_right(pair: Pair) -> None:
    cores, devices = 'node_cores{node="node",state="free"} 32.0', 'devices{state="free"} 16.0'
    for extender, leads in ((pair.leader, True), (pair.standby, False)):
        metrics = (await extender.get("/metrics", health=True))[1]
        for series in (cores, devices):
            assert (f"neuron_extender_{series}" in metrics) is leads
        assert f"neuron_extender_leader {float(leads)}" in metrics


async def test_a_standby_shows_what_the_leader_has_reserved_until_it_leads_itself(
    server: StandInApiServer, pair: Pair
) -> None:
    kept = ReserveRecord("default/serve/0#1", "default", "serve/0 rank 1", "node", "0-7", group="default/serve/0")
    says = {"metadata": {"annotations": {RECORDS_KEY: write_records([kept])}}}
    server.change(LEASES, LEADER_LEASE, says, "kube-system")
    node = pair.standby.daemon.state.nodes["node"]
    await until(lambda: pair.standby.daemon.state.nodes["node"].reserved_mask == 0xFF)
    assert node.reserved_mask == 0
    assert pair.leader.daemon.state.nodes["node"].reserved_mask == 0, "it has not kept that"
    pair.leader.stop.set()
    await until(lambda: not pair.standby.daemon.ready.why_not)
    await until(lambda: pair.standby.daemon.state.nodes["node"].reserved_mask == 0)  # nobody makes that replica now


async def test_e04_t10_a_leader_that_ends_hands_over_and_the_standby_serves_on_with_pods_waiting(
    server: StandInApiServer, pair: Pair
) -> None:
    """The pod that waits would be a reason to outwait a late write; there can be none."""
    pair.standby.daemon._leadership._landing_seconds = 3600.0
    waiting = server.create_pod(pod_manifest("pod", DEVICE, 4))
    await until(lambda: waiting["metadata"]["uid"] in pair.standby.daemon.state.pods)

    pair.leader.stop.set()
    async with asyncio.timeout(5):
        await pair.leader.task

    await pair.standby.ready()
    async with StandInScheduler(pair.standby.url) as scheduler:
        assert (await scheduler.schedule(waiting, ["node"])).node == "node"


async def test_e04_e05_a_leader_that_ends_with_a_bind_undecided_does_not_hand_over(
    server: StandInApiServer, pair: Pair
) -> None:
    pod = server.create_pod(pod_manifest("pod", DEVICE, 4))
    gate = asyncio.Event()
    server.fail(Fault(match=Match(method="POST", path="/binding$"), gate=gate))
    async with StandInScheduler(pair.leader.url) as scheduler:
        call = asyncio.create_task(scheduler.bind(pod, "node"))
        await until(lambda: pair.leader.daemon.binder.under_way)
        pair.leader.stop.set()
        await pair.leader.task
        lease = server.get(LEASES, "neuron-extender", "kube-system")
        left = {"holderIdentity": pair.leader.daemon._context.instance, "leaseDurationSeconds": 1}
        assert lease["spec"] | left == lease["spec"]
        gate.set()
        await asyncio.gather(call, return_exceptions=True)
    await pair.leader.daemon.binder.drain()
    await pair.standby.ready()


async def test_without_the_right_to_the_lease_a_replica_says_so_and_is_no_standby(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    server.fail(Fault(match=Match(path="/leases/neuron-extender"), status=403, times=10_000))
    async with extender_on(api, named("one"), times=QUICK) as extender:
        await until(lambda: "403" in extender.daemon.ready.conditions["election"])
        status, why = await extender.get("/readyz?exclude=leader", health=True)
        assert status == 503
        assert "the leader's Lease cannot be read or written" in why
        assert (await extender.get("/healthz", health=True))[0] == 200, "a restart would mend nothing"

        server.forgive()
        await extender.ready()
