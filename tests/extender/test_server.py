from __future__ import annotations

import asyncio
import contextlib
import gzip
import io
import json
import logging
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import trustme
from aiohttp import web
from prometheus_client import CollectorRegistry

from neuron_plugin.extender import server as module
from neuron_plugin.extender.binding import Binder
from neuron_plugin.extender.metrics import ExtenderMetrics
from neuron_plugin.extender.readiness import Readiness
from neuron_plugin.extender.server import PREFIXES, application, runner, verb_routes
from neuron_plugin.extender.service import ExtenderService
from neuron_plugin.extender.tls import ServerCertificate
from neuron_plugin.simulation.manifests import container, node_manifest, pod_manifest
from neuron_plugin.simulation.scheduler import StandInScheduler
from tests.extender.pod_server import PodServer
from tests.extender.running import until
from tests.extender.world import CORE, DEVICE, World

TRN1 = "trn1.32xlarge"


def service_on(world: World) -> ExtenderService:
    binder = Binder(world.state, PodServer(), fence=lambda: "", dialects=())
    return ExtenderService(world.state, binder, Readiness({}), ExtenderMetrics(CollectorRegistry()))


@asynccontextmanager
async def serving(world: World, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    async with served(verb_routes(service_on(world)), context) as port:
        yield port


@asynccontextmanager
async def served(routes: list[web.RouteDef], context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    serving = runner(application(routes, 1))
    await serving.setup()
    await web.TCPSite(serving, "127.0.0.1", 0, ssl_context=context).start()
    try:
        yield serving.addresses[0][1]
    finally:
        await serving.cleanup()


@pytest.fixture
async def port(world: World) -> AsyncIterator[int]:
    world.node("node", TRN1)
    async with serving(world) as port:
        yield port


def args(names: object = ("node",), amount: int = 4) -> bytes:
    return json.dumps({"Pod": pod_manifest("pod", DEVICE, amount), "NodeNames": names}).encode()


async def post(port: int, path: str, body: bytes | io.BytesIO, **headers: str) -> object:
    headers = {"Content-Type": "application/json"} | {key.replace("_", "-"): value for key, value in headers.items()}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{port}{path}", data=body, headers=headers) as response,
    ):
        assert response.status == 200
        assert response.content_type == "application/json"
        return await response.json()


def error_of(answer: object) -> str:
    assert isinstance(answer, dict)
    return str(answer["Error"])


@pytest.mark.parametrize(
    "kind",
    ["application/json", "application/json; charset=utf-8", "Application/JSON;q=1", "text/json", "application/x+json"],
)
async def test_t01_any_json_content_type_is_served(port: int, kind: str) -> None:
    answer = await post(port, "/filter", args(), Content_Type=kind)

    assert isinstance(answer, dict)
    assert answer["NodeNames"] == ["node"]


async def test_t01_another_content_type_is_told_so_with_200(port: int) -> None:
    assert "expected application/json" in error_of(await post(port, "/filter", args(), Content_Type="text/plain"))


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt", "bind"])
async def test_e08_every_verb_answers_alike_under_every_prefix(port: int, prefix: str, verb: str) -> None:
    bodies = {
        "filter": args(),
        "prioritize": args(),
        "preempt": json.dumps({"Pod": {}, "NodeNameToMetaVictims": {}}).encode(),
        "bind": json.dumps({"PodName": "p", "PodNamespace": "n", "PodUID": "u", "Node": "node"}).encode(),
    }

    assert await post(port, f"{prefix}/{verb}", bodies[verb]) == await post(port, f"/{verb}", bodies[verb])


@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt", "bind"])
@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000], ids=["empty", "truncated", "binary", "deep"])
async def test_t02_t04_garbage_is_answered_with_200_and_error(port: int, verb: str, body: bytes) -> None:
    assert error_of(await post(port, f"/{verb}", body))
    assert isinstance(await post(port, "/filter", args()), dict)


async def test_t04_an_over_long_body_is_refused_and_the_next_request_served(port: int) -> None:
    long = b'{"Pod":{}, "NodeNames":["' + b"n" * (1 << 20) + b'"]}'
    assert "max-body-mib" in error_of(await post(port, "/filter", io.BytesIO(long)))

    answer = await post(port, "/filter", args())
    assert isinstance(answer, dict)
    assert answer["NodeNames"] == ["node"]


async def test_t04_a_compressed_body_is_refused_before_it_can_grow(port: int) -> None:
    bomb = gzip.compress(b" " * (8 << 20))

    assert "Content-Encoding" in error_of(await post(port, "/filter", bomb, Content_Encoding="gzip"))


async def test_t02_an_impossible_request_is_an_error_in_the_body(port: int) -> None:
    both = {"name": "main", "resources": {"limits": {CORE.value: "1", DEVICE.value: "1"}}}
    body = json.dumps({"Pod": pod_manifest("pod", containers=[both]), "NodeNames": ["node"]}).encode()

    assert "one Neuron resource per container" in error_of(await post(port, "/filter", body))
    assert "one Neuron resource per container" in error_of(await post(port, "/prioritize", body))


async def test_t03_whole_nodes_are_answered_whole(port: int) -> None:
    node = node_manifest("node", TRN1)
    body = json.dumps({"Pod": pod_manifest("pod", DEVICE, 4), "NodeNames": None, "Nodes": {"items": [node]}}).encode()

    answer = await post(port, "/filter", body)

    assert isinstance(answer, dict)
    assert answer["Nodes"] == {"items": [node]}
    assert answer["NodeNames"] is None


async def test_t05_scores_are_whole_numbers_under_gos_names(port: int) -> None:
    assert await post(port, "/prioritize", args()) == [{"Host": "node", "Score": 10}]


def request_for(name: str) -> bytes:
    body = args([name])
    head = b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


async def answers(reader: asyncio.StreamReader, count: int) -> list[str]:
    """The names that so many answers to ``request_for`` are about."""
    found = []
    for _ in range(count):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        found.append(next(iter(json.loads(await reader.readexactly(length))["FailedAndUnresolvableNodes"])))
    return found


async def test_t09_ten_keep_alive_clients_pipelined_slow_and_half_closed_are_each_answered_in_order(port: int) -> None:
    async def client(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        names = [f"ghost-{number}-{each}" for each in range(5)]
        everything = b"".join(map(request_for, names))
        middle = len(everything) // 2 + 7
        writer.write(everything[:middle])
        await writer.drain()
        await asyncio.sleep(0)
        writer.write(everything[middle:])
        half_closes = number % 3 == 0
        if half_closes:
            writer.write_eof()
        assert await answers(reader, 5) == names
        if half_closes:
            assert await reader.read() == b""
        await closed(writer)

    await asyncio.gather(*(client(number) for number in range(10)))


@pytest.mark.parametrize("count", [1, 2, 200])
async def test_t09_a_caller_that_half_closes_gets_every_answer_however_many_requests_it_had_pipelined(
    port: int, count: int
) -> None:
    """aiohttp reads no further than 32 requests ahead."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    names = [f"ghost-{number}" for number in range(count)]
    writer.write(b"".join(map(request_for, names)))
    writer.write_eof()

    assert await answers(reader, count) == names
    assert await reader.read() == b""
    await closed(writer)


async def test_t09_a_caller_that_half_closes_while_its_answer_is_made_gets_it() -> None:
    asked, gate = asyncio.Event(), asyncio.Event()

    async def slow(_: web.Request) -> web.Response:
        asked.set()
        await gate.wait()
        return web.Response(text="late")

    async def quick(_: web.Request) -> web.Response:
        return web.Response(body=b"{}", content_type="application/json")

    async with served([web.get("/slow", slow), web.post("/quick", quick)]) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        await asked.wait()
        writer.write_eof()
        await post(port, "/quick", b"")  # one loop reads both: the end was read before this
        gate.set()

        assert (await reader.read()).endswith(b"late")
        await closed(writer)


async def test_a_watcher_that_closes_its_sending_side_is_let_go() -> None:
    """It looks the same as one that has gone, and an answer without end is not one that is due."""
    gone = asyncio.Event()

    async def watch(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while request.transport is not None and not request.transport.is_closing():
            await asyncio.sleep(0.001)
        gone.set()
        return response

    async with served([web.get("/watch", watch)]) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /watch HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        writer.write_eof()

        await gone.wait()
        await closed(writer)


@pytest.mark.parametrize(
    ("sent", "answered"),
    [(b"", 0), (b"POST /filter HTT", 0), (request_for("ghost") + b"POST /filter HTT", 1)],
    ids=["nothing", "half a head", "one and a half"],
)
async def test_t09_a_half_closed_connection_ends_once_nothing_is_due(port: int, sent: bytes, answered: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    writer.write_eof()

    assert (await reader.read()).count(b"200 OK") == answered
    await closed(writer)


async def test_t09_a_body_cut_short_by_a_half_close_is_told_so_and_the_connection_ends(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BODY_SECONDS", 0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request_for("whole") + request_for("cut")[:-10])
    writer.write_eof()

    assert await answers(reader, 1) == ["whole"]
    async with asyncio.timeout(5):  # aiohttp alone would linger ten seconds for the rest
        assert b"did not arrive" in await reader.read()
    await closed(writer)


async def test_t09_no_answer_waits_for_a_delayed_acknowledgement(port: int) -> None:
    """With Nagle's algorithm each call took 40 ms and more (facts: 45)."""
    async with StandInScheduler(f"http://127.0.0.1:{port}") as scheduler:
        took = []
        for _ in range(20):
            started = time.monotonic()
            await scheduler.filter(pod_manifest("pod", DEVICE, 4), ["node"])
            took.append(time.monotonic() - started)

    assert min(took) < 0.02


async def test_a_caller_that_sends_its_body_too_slowly_is_told_so(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BODY_SECONDS", 0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{")

    head = await reader.readuntil(b"\r\n\r\n")

    assert b"200 OK" in head
    await closed(writer)


async def test_t09_a_caller_that_breaks_off_in_its_body_is_one_line_in_the_log_and_no_fault_of_ours(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_connection(("127.0.0.1", port)) as caller:
        caller.sendall(request_for("cut")[:-10])
        await post(port, "/filter", args())  # one loop reads both: the handler waits for the rest by now
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close with a reset

    def warnings() -> list[tuple[str, str]]:
        found = [record for record in caplog.records if record.levelno >= logging.WARNING]
        return [(record.name, str(vars(record).get("error", ""))[:22]) for record in found]

    await until(warnings)

    assert warnings() == [("neuron_plugin.extender.flow", "the caller broke off i")]


async def test_t49_a_filter_writes_one_line_whatever_the_number_of_nodes(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for number in range(300):
        world.node(f"node-{number}", TRN1)
    names = [f"node-{number}" for number in range(300)] + [f"ghost-{number}" for number in range(300)]
    service = service_on(world)

    service.filter(args(names))
    service.prioritize(args(names[:300]))
    await service.bind(b'{"PodName":"p","PodNamespace":"n","PodUID":"u","Node":"node-1"}')
    service.preempt(json.dumps({"Pod": pod_manifest("pod", DEVICE, 4), "NodeNameToMetaVictims": {}}).encode())

    lines = [record for record in caplog.records if record.name == "neuron_plugin.extender.flow"]
    assert [record.message for record in lines] == ["filter", "prioritize", "bind", "preempt"]
    assert vars(lines[0])["passed"] == 300
    assert vars(lines[0])["refused"] == {"The node is not known to the Neuron extender yet": 300}


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


def files(directory: Path, certificate: trustme.LeafCert) -> tuple[Path, Path]:
    chain, key = directory / "tls.crt", directory / "tls.key"
    chain.write_bytes(b"".join(each.bytes() for each in certificate.cert_chain_pems))
    key.write_bytes(certificate.private_key_pem.bytes())
    return chain, key


def client_context(authority: trustme.CA, certificate: trustme.LeafCert | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if certificate:
        certificate.configure_cert(context)
    return context


async def test_t11_tls_serves_and_a_replaced_certificate_serves_new_handshakes(
    world: World, authority: trustme.CA, tmp_path: Path
) -> None:
    world.node("node", TRN1)
    certificate = ServerCertificate(*files(tmp_path, authority.issue_cert("127.0.0.1")), None)
    async with serving(world, certificate.context) as port:
        async with StandInScheduler(f"https://127.0.0.1:{port}", tls=client_context(authority)) as scheduler:
            assert (await scheduler.filter(pod_manifest("pod", DEVICE, 4), ["node"])).nodes == ["node"]

        first = await _serial(port, authority)
        assert not certificate.reload_if_changed()
        files(tmp_path, authority.issue_cert("127.0.0.1"))
        assert certificate.reload_if_changed()
        assert await _serial(port, authority) != first


async def test_t11_under_mutual_tls_a_caller_without_a_certificate_is_refused(
    world: World, authority: trustme.CA, tmp_path: Path
) -> None:
    world.node("node", TRN1)
    ca = tmp_path / "ca.crt"
    authority.cert_pem.write_to_path(str(ca))
    certificate = ServerCertificate(*files(tmp_path, authority.issue_cert("127.0.0.1")), ca)
    async with serving(world, certificate.context) as port:
        known = client_context(authority, authority.issue_cert("kube-scheduler"))
        async with StandInScheduler(f"https://127.0.0.1:{port}", tls=known) as scheduler:
            assert (await scheduler.filter(pod_manifest("pod", DEVICE, 4), ["node"])).nodes == ["node"]
        async with StandInScheduler(f"https://127.0.0.1:{port}", tls=client_context(authority)) as stranger:
            placed = await stranger.schedule(pod_manifest("pod", containers=[container("a", DEVICE, 4)]), ["node"])
        assert not placed.node


def test_a_half_replaced_certificate_is_left_for_the_next_look(
    authority: trustme.CA, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chain, key = files(tmp_path, authority.issue_cert("127.0.0.1"))
    certificate = ServerCertificate(chain, key, None)
    other = authority.issue_cert("127.0.0.1")

    chain.write_bytes(other.cert_chain_pems[0].bytes())
    assert not certificate.reload_if_changed()
    assert "certificate not reloaded" in caplog.text
    key.write_bytes(other.private_key_pem.bytes())
    assert certificate.reload_if_changed()


async def _serial(port: int, authority: trustme.CA) -> str:
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_context(authority))
    found = writer.get_extra_info("ssl_object").getpeercert()["serialNumber"]
    await closed(writer)
    return str(found)


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
