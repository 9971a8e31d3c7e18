from __future__ import annotations

import asyncio
import gzip
import io
import json
import logging
import socket
import struct
import time
from typing import Any

import pytest
from aiohttp import web
from neuron_plugin.extender.flowlog import log_bind, log_error, log_filter, log_preempt, log_prioritize, request_text
from prometheus_client import CollectorRegistry

from neuron_plugin.allocation import PodReference, PodUid
from neuron_plugin.extender import server as module
from neuron_plugin.extender import service as module
from neuron_plugin.extender.binding import SUCCESSES, Binder, Ending, Outcome
from neuron_plugin.extender.filter import Filtered, Rejection
from neuron_plugin.extender.leadership import Readiness
from neuron_plugin.extender.metrics import ExtenderMetrics
from neuron_plugin.extender.server import PREFIXES, ExtenderService
from neuron_plugin.simulation import StandInScheduler, container, node_manifest, pod_manifest
from tests.extender.pod_server import PodServer
from tests.extender.running import until
from tests.extender.served import TRN1, answers, args, closed, error_of, post, request_for, served, service_on
from tests.extender.world import CORE, DEVICE, World, pod_of, record_of, request_of


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


TRN1 = "trn1.32xlarge"


class Counter:
    """A service on a world, with its metrics and its readiness at hand."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.server = PodServer()
        self.registry = CollectorRegistry()
        self.readiness = Readiness({})
        binder = Binder(world.state, self.server, fence=lambda: self.readiness.why_not, dialects=())
        self.service = ExtenderService(world.state, binder, self.readiness, ExtenderMetrics(self.registry))

    def count(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


@pytest.fixture
def counter(world: World) -> Counter:
    world.node("node", TRN1)
    return Counter(world)


def args(amount: int, *names: str) -> bytes:
    return json.dumps({"Pod": pod_manifest("pod", DEVICE, amount), "NodeNames": names}).encode()


def bind_args(manifest: dict[str, Any], node: str) -> bytes:
    pod = pod_of(manifest)
    return json.dumps({"PodName": pod.name, "PodNamespace": pod.namespace, "PodUID": pod.uid, "Node": node}).encode()


def test_a_filter_counts_nodes_by_reason_and_itself_by_result(counter: Counter) -> None:
    counter.service.filter(args(7, "node", "ghost"))
    counter.service.filter(b"garbage")

    assert counter.count("neuron_extender_refused_nodes_total", reason="unsupported-count") == 1
    assert counter.count("neuron_extender_refused_nodes_total", reason="unknown-node") == 1
    assert counter.count("neuron_extender_verbs_total", verb="filter", result="ok") == 1
    assert counter.count("neuron_extender_verbs_total", verb="filter", result="error") == 1


async def test_a_bind_counts_how_it_ended(counter: Counter) -> None:
    for name in ("first", "second"):
        manifest = counter.server.add(counter.world.pod(name, DEVICE, 16))
        await counter.service.bind(bind_args(manifest, "node"))

    assert counter.count("neuron_extender_binds_total", ending="no-set") == 2
    assert counter.count("neuron_extender_verbs_total", verb="bind", result="error") == 2


async def test_t02_while_not_ready_every_verb_says_why_and_touches_nothing(counter: Counter) -> None:
    counter.readiness.unmet("leader", "another replica leads")
    manifest = counter.server.add(counter.world.pod("pod", DEVICE, 1))
    preempt = json.dumps({"Pod": manifest, "NodeNameToMetaVictims": {"node": {"Pods": [{"UID": "u"}]}}}).encode()

    answers = [
        counter.service.filter(args(1, "node")),
        counter.service.prioritize(args(1, "node")),
        counter.service.preempt(preempt),
        await counter.service.bind(bind_args(manifest, "node")),
    ]

    assert [json.loads(answer)["Error"] for answer in answers] == ["another replica leads"] * 4
    assert counter.server.calls == []


def test_t02_a_fault_of_ours_is_an_error_in_the_body_and_its_cause_in_the_log(
    counter: Counter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "filter_nodes", lambda *_: 1 / 0)

    answer = json.loads(counter.service.filter(args(1, "node")))

    assert answer == {"Error": "filter failed inside the extender; its log has the cause"}
    assert "ZeroDivisionError" in caplog.text
    assert counter.count("neuron_extender_verbs_total", verb="filter", result="error") == 1


def test_e01_preempt_answers_by_uid_and_leaves_out_what_does_not_help(counter: Counter) -> None:
    held = [counter.world.held(f"pod-{device}", "node", DEVICE, str(device)) for device in range(16)]
    counter.world.node("other", "inf1.xlarge")
    offered = {"Pods": [{"UID": each["metadata"]["uid"]} for each in held], "NumPDBViolations": 2}
    body = {
        "Pod": pod_manifest("new", DEVICE, 4),
        "NodeNameToVictims": None,
        "NodeNameToMetaVictims": {"node": offered, "other": offered},
    }

    answer = json.loads(counter.service.preempt(json.dumps(body).encode()))["NodeNameToMetaVictims"]

    assert list(answer) == ["node"]
    assert answer["node"]["NumPDBViolations"] == 2
    assert len(answer["node"]["Pods"]) == 4


def test_prioritize_scores_every_name_it_was_sent_known_or_not(counter: Counter) -> None:
    answer = json.loads(counter.service.prioritize(args(1, "node", "ghost")))

    assert [entry["Host"] for entry in answer] == ["node", "ghost"]


def test_a_pod_that_is_no_pod_is_an_error_in_the_body(counter: Counter) -> None:
    for pod in ("[]", '"text"', "{}", '{"metadata":3}'):
        answer = json.loads(counter.service.filter(f'{{"Pod":{pod},"NodeNames":["node"]}}'.encode()))
        assert answer["Error"]


POD = PodReference(PodUid("u"), "default", "pod")
REQUEST = request_of(record_of(pod_manifest("pod", CORE, 9)))


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "neuron_plugin.extender.flow")
    return caplog


def only(lines: pytest.LogCaptureFixture) -> dict[str, Any]:
    (record,) = lines.records
    return vars(record)


def test_a_request_is_told_container_by_container() -> None:
    several = request_of(record_of(pod_manifest("p", containers=[container("a", DEVICE, 1), container("b", CORE, 4)])))

    assert request_text(REQUEST) == "neuroncore:9"
    assert request_text(several) == "neuron:1|neuroncore:4"


def test_a_filters_line_counts_nodes_and_reasons(lines: pytest.LogCaptureFixture) -> None:
    full, none = Rejection("not-free", "full", may_pass=True), Rejection("no-neuron", "none", may_pass=False)

    log_filter(POD, REQUEST, Filtered(["a"], {full: ["b", "c"], none: ["d"]}), 42)

    expected = {"pod": "default/pod", "uid": "u", "nodes": 4, "passed": 1, "refused": {"full": 2, "none": 1}, "us": 42}
    assert only(lines) | expected == only(lines)


def test_a_filters_line_stays_short_however_many_reasons_there_are(lines: pytest.LogCaptureFixture) -> None:
    rejected = {Rejection("x", f"reason {number}", may_pass=True): ["node"] * number for number in range(1, 50)}

    log_filter(POD, REQUEST, Filtered([], rejected), 1)

    assert len(only(lines)["refused"]) == 8
    assert "reason 49" in only(lines)["refused"]


def test_the_lines_of_prioritize_and_preempt_say_how_much_was_left(lines: pytest.LogCaptureFixture) -> None:
    log_prioritize(POD, REQUEST, [10, 3, 10], 1)
    log_preempt(POD, REQUEST, 5, {"a": 2, "b": 1}, 1)

    first, second = (vars(record) for record in lines.records)
    assert (first["nodes"], first["best"]) == (3, 2)
    assert (second["nodes"], second["passed"], second["fewest_victims"]) == (5, 2, 1)


def test_a_binds_line_says_what_was_chosen_and_what_is_used_then(world: World, lines: pytest.LogCaptureFixture) -> None:
    world.node("node", "inf1.6xlarge")
    world.held("pod", "node", CORE, "0,1,2,3,4,5,6,7,8")
    outcome = Outcome(Ending.BOUND, annotations={"NEURON_CORES": "0,1,2,3,4,5,6,7,8"})

    log_bind(POD, "node", outcome, world.state.nodes["node"], 7)

    line = only(lines)
    assert (line["levelname"], line["result"], line["NEURON_CORES"]) == ("INFO", "bound", "0,1,2,3,4,5,6,7,8")
    assert (line["used_cores"], line["used_devices"]) == ("0,1,2,3,4,5,6,7,8", "0,1,2")


@pytest.mark.parametrize("ending", sorted(set(Ending) - SUCCESSES))
def test_a_bind_that_failed_is_a_warning_with_its_reason(lines: pytest.LogCaptureFixture, ending: Ending) -> None:
    log_bind(POD, "ghost", Outcome(ending, "why"), None, 7)

    assert (only(lines)["levelname"], only(lines)["result"], only(lines)["error"]) == ("WARNING", ending.value, "why")


def test_a_verb_that_was_not_decided_is_a_warning(lines: pytest.LogCaptureFixture) -> None:
    log_error("filter", "garbage", 3)

    assert (only(lines)["levelname"], only(lines)["message"], only(lines)["error"]) == ("WARNING", "filter", "garbage")
