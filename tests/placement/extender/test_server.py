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

from neuron_plugin.allocation import Dialect
from neuron_plugin.allocation.keys import PREFIX
from neuron_plugin.allocation.node import Reservation
from neuron_plugin.placement.extender import server as module
from neuron_plugin.placement.extender.binding import SUCCESSES, Binder, BindOutcome, Ending
from neuron_plugin.placement.extender.server import PREFIXES, ExtenderService, verb_routes
from neuron_plugin.placement.settings import FilterMode
from neuron_plugin.topology import CoreMask
from tests.support.bench import Bench
from tests.support.manifests import container, node_manifest, pod_manifest
from tests.support.running import until
from tests.support.scheduler import StandInScheduler
from tests.support.served import TRN1, answers, args, closed, error_of, post, request_for, served, service_on
from tests.support.world import CORE, DEVICE, World, pod_of

MEMORY = f"{PREFIX}memory"


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("application/json", ""),
        ("application/json; charset=utf-8", ""),
        ("Application/JSON;q=1", ""),
        ("text/json", ""),
        ("application/x+json", ""),
        ("text/plain", "Content-Type is text/plain, expected application/json"),
    ],
)
async def test_t01_any_json_content_type_is_served_and_another_is_an_error_with_200(
    port: int, kind: str, error: str
) -> None:
    answer = await post(port, "/filter", args(), Content_Type=kind)

    assert isinstance(answer, dict)
    assert (answer.get("NodeNames"), answer["Error"]) == (None if error else ["node"], error)


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
    assert "nodeCacheCapable" in error_of(await post(port, "/filter", io.BytesIO(long)))

    answer = await post(port, "/filter", args())
    assert isinstance(answer, dict)
    assert answer["NodeNames"] == ["node"]


async def test_t04_a_compressed_body_is_refused_before_it_can_grow(port: int) -> None:
    bomb = gzip.compress(b" " * (8 << 20))

    assert "Content-Encoding" in error_of(await post(port, "/filter", bomb, Content_Encoding="gzip"))


@pytest.mark.parametrize(
    ("limits", "annotations", "error"),
    [
        ({CORE: "1", DEVICE: "1"}, {}, "one Neuron resource per container"),
        ({CORE: "1", MEMORY: "9223372036854775808"}, {}, f"{MEMORY}: '9223372036854775808' is not a whole number from"),
        ({MEMORY: "64"}, {}, f"{MEMORY} and for no Neuron device or core: ask for aws.amazon.com/neuroncore beside it"),
        ({CORE: "1"}, {"device-name": "trainum1,trn1"}, "unknown names: trainum1; known are inf1, inf2, inferentia,"),
        ({CORE: "1"}, {"allow-devices": "1;2"}, "allow-devices is '1;2': '1;2' is no id"),
    ],
    ids=["two resources", "too large", "an amount alone", "no product", "no devices"],
)
async def test_t02_an_impossible_request_is_an_error_in_the_body(
    port: int, limits: dict[str, str], annotations: dict[str, str], error: str
) -> None:
    keys = {PREFIX + key: text for key, text in annotations.items()}
    pod = pod_manifest("pod", containers=[{"name": "main", "resources": {"limits": limits}}], annotations=keys)
    body = json.dumps({"Pod": pod, "NodeNames": ["node"]}).encode()

    for verb in ("filter", "prioritize"):
        assert error in error_of(await post(port, f"/{verb}", body))


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


async def test_a_caller_that_sends_its_body_too_slowly_gets_an_error(world: World) -> None:
    async with served(verb_routes(service_on(world), body_seconds=0.05)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n"
        writer.write(head + b"{")

        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
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

    service.answer("filter", args(names))
    service.answer("prioritize", args(names[:300]))
    await service.bind(b'{"PodName":"p","PodNamespace":"n","PodUID":"u","Node":"node-1"}')
    service.answer("preempt", json.dumps({"Pod": pod_manifest("pod", DEVICE, 4), "NodeNameToMetaVictims": {}}).encode())

    lines = [record for record in caplog.records if record.name == "neuron_plugin.extender.flow"]
    assert [record.message for record in lines] == ["filter", "prioritize", "bind", "preempt"]
    assert vars(lines[0])["passed"] == 300
    assert vars(lines[0])["refused"] == {"The node is not known to the Neuron extender yet": 300}


async def test_t09_ten_keep_alive_clients_pipelined_and_slow_are_each_answered_in_order(port: int) -> None:
    async def client(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        names = [f"ghost-{number}-{each}" for each in range(5)]
        everything = b"".join(map(request_for, names))
        middle = len(everything) // 2 + 7
        writer.write(everything[:middle])
        await writer.drain()
        await asyncio.sleep(0)
        writer.write(everything[middle:])
        assert await answers(reader, 5) == names
        await closed(writer)

    await asyncio.gather(*(client(number) for number in range(10)))


async def test_a_watch_ends_when_its_client_closes() -> None:
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


class Counter:
    """A service on a world, with its metrics and its readiness at hand."""

    def __init__(self, bench: Bench, answer: FilterMode = FilterMode.ALL) -> None:
        self.world, self.server, self.readiness = bench.world, bench.server, bench.ready
        self.service = ExtenderService(bench.context, bench.binder, bench.leads, answer=answer)
        self._counts = bench.context.metrics

    def count(self, name: str, *labels: str) -> object:
        return self._counts[name].get(labels)


@pytest.fixture
def counter(bench: Bench) -> Counter:
    return Counter(bench)


def asking(amount: int, *names: str) -> bytes:
    return args(names, amount)


def bind_args(manifest: dict[str, Any], node: str) -> bytes:
    pod = pod_of(manifest)
    return json.dumps({"PodName": pod.name, "PodNamespace": pod.namespace, "PodUID": pod.uid, "Node": node}).encode()


def test_the_best_node_alone_is_named_then_all_that_fit_with_equal_scores(bench: Bench) -> None:
    service, pod = Counter(bench, FilterMode.BEST).service, bench.waiting("pod", 4)
    bench.world.node("full", "inf1.xlarge")
    bench.world.held("holder", "other", DEVICE, "0")
    body = json.dumps({"Pod": pod, "NodeNames": ["full", "node", "other"]}).encode()

    first, second = (json.loads(service.answer("filter", body)) for _ in range(2))
    scores = json.loads(service.answer("prioritize", body))

    assert (first["NodeNames"], first["FailedAndUnresolvableNodes"]) == (["other"], {})
    assert (second["NodeNames"], [*second["FailedAndUnresolvableNodes"]]) == (["node", "other"], ["full"])
    assert [entry["Score"] for entry in scores] == [10, 10, 10]


def test_a_pod_is_led_to_what_is_kept_for_it_though_all_nodes_are_to_be_answered(counter: Counter) -> None:
    pod = counter.world.pod("pod", DEVICE, 4)
    body = json.dumps({"Pod": pod, "NodeNames": ["node", "other"]}).encode()
    assert json.loads(counter.service.answer("filter", body))["NodeNames"] == ["node", "other"]

    counter.world.state.reserve(Reservation(pod_of(pod), "other", CoreMask(0xFF)))

    assert json.loads(counter.service.answer("filter", body))["NodeNames"] == ["other"]


@pytest.mark.parametrize("why", ["led", "kept for it"])
def test_for_a_pod_that_has_a_place_nobody_is_evicted(bench: Bench, why: str) -> None:
    service, pod = Counter(bench, FilterMode.BEST).service, bench.waiting("pod", 4)
    held = [bench.world.held(f"pod-{device}", "other", DEVICE, str(device)) for device in range(16)]
    if why == "led":
        service.answer("filter", json.dumps({"Pod": pod, "NodeNames": ["node", "other"]}).encode())
    else:
        bench.world.state.reserve(Reservation(pod_of(pod), "node", CoreMask(0xFF)))
    offered = {"other": {"Pods": [{"UID": each["metadata"]["uid"]} for each in held]}}

    answer = service.answer("preempt", json.dumps({"Pod": pod, "NodeNameToMetaVictims": offered}).encode())

    assert json.loads(answer) == {"NodeNameToMetaVictims": {}}
    assert not bench.world.state.history.without_victims


def test_a_filter_counts_nodes_by_reason_and_itself_by_result(counter: Counter) -> None:
    counter.service.answer("filter", asking(7, "node", "ghost"))
    counter.service.answer("filter", b"garbage")

    assert counter.count("extender_refused_nodes_total", "unsupported-count") == 1
    assert counter.count("extender_refused_nodes_total", "unknown-node") == 1
    assert counter.count("extender_verbs_total", "filter", "ok") == 1
    assert counter.count("extender_verbs_total", "filter", "error") == 1


async def test_a_bind_counts_how_it_ended(counter: Counter) -> None:
    for name in ("first", "second"):
        manifest = counter.server.create_pod(counter.world.pod(name, DEVICE, 16))
        await counter.service.bind(bind_args(manifest, "node"))

    assert counter.count("extender_binds_total", "bound") == 1
    assert counter.count("extender_binds_total", "no-set") == 1
    assert counter.count("extender_verbs_total", "bind", "error") == 1


async def test_t02_while_not_ready_every_verb_says_why_and_touches_nothing(counter: Counter) -> None:
    counter.readiness.unmet("leader", "another replica leads")
    manifest = counter.server.create_pod(counter.world.pod("pod", DEVICE, 1))
    preempt = json.dumps({"Pod": manifest, "NodeNameToMetaVictims": {"node": {"Pods": [{"UID": "u"}]}}}).encode()

    answers = [
        counter.service.answer("filter", asking(1, "node")),
        counter.service.answer("prioritize", asking(1, "node")),
        counter.service.answer("preempt", preempt),
        await counter.service.bind(bind_args(manifest, "node")),
    ]

    assert [json.loads(answer)["Error"] for answer in answers] == ["another replica leads"] * 4
    assert counter.server.requests == []


def test_t02_a_fault_of_ours_is_an_error_in_the_body_and_its_cause_in_the_log(
    counter: Counter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "filter_nodes", lambda *_: 1 / 0)

    answer = json.loads(counter.service.answer("filter", asking(1, "node")))

    assert answer == {"Error": "filter failed inside the extender; its log has the cause"}
    assert "ZeroDivisionError" in caplog.text
    assert counter.count("extender_verbs_total", "filter", "error") == 1


def test_e01_preempt_answers_by_uid_and_leaves_out_what_does_not_help(counter: Counter) -> None:
    held = [counter.world.held(f"pod-{device}", "node", DEVICE, str(device)) for device in range(16)]
    counter.world.node("other", "inf1.xlarge")
    uids = [{"UID": each["metadata"]["uid"]} for each in held]
    offered = {"Pods": uids, "NumPDBViolations": 2}
    body = {
        "Pod": pod_manifest("new", DEVICE, 4),
        "NodeNameToVictims": None,
        "NodeNameToMetaVictims": {"node": offered, "other": offered},
    }

    answer = json.loads(counter.service.answer("preempt", json.dumps(body).encode()))["NodeNameToMetaVictims"]

    assert list(answer) == ["node"]
    assert answer["node"]["NumPDBViolations"] == 2
    assert answer["node"]["Pods"] == uids[:4]
    counter.world.gone(held[0])
    (eviction,) = counter.world.state.history.evictions()
    assert (eviction.pod, eviction.made_for) == ("default/pod-0", "default/new")


def test_a_pod_that_no_eviction_helps_is_to_be_reported(counter: Counter) -> None:
    held = [counter.world.held(f"pod-{device}", "node", DEVICE, str(device)) for device in range(16)]
    offered = {"Pods": [{"UID": held[0]["metadata"]["uid"]}], "NumPDBViolations": 0}
    body = {"Pod": pod_manifest("new", DEVICE, 4), "NodeNameToMetaVictims": {"node": offered}}

    counter.service.answer("preempt", json.dumps(body).encode())

    assert [each.name for each in counter.world.state.history.without_victims] == ["new"]


@pytest.mark.parametrize(("prefers", "scored"), [(False, [9, 10, 0]), (True, [10, 10, 0])])
def test_prioritize_scores_every_name_it_was_sent_known_or_not(
    counter: Counter, scored: list[int], *, prefers: bool
) -> None:
    """One of equal nodes leads, unless the pod has preferences, which kube-scheduler knows."""
    pod = pod_manifest("pod", DEVICE, 1)
    if prefers:
        spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
        pod["spec"]["topologySpreadConstraints"] = [spread]
    body = json.dumps({"Pod": pod, "NodeNames": ["other", "node", "ghost"]}).encode()

    answer = json.loads(counter.service.answer("prioritize", body))

    assert answer == [
        {"Host": name, "Score": score} for name, score in zip(("other", "node", "ghost"), scored, strict=True)
    ]


def test_a_pod_that_is_no_pod_is_an_error_in_the_body(counter: Counter) -> None:
    for pod in ("[]", '"text"', "{}", '{"metadata":3}'):
        answer = json.loads(counter.service.answer("filter", f'{{"Pod":{pod},"NodeNames":["node"]}}'.encode()))
        assert answer["Error"]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "neuron_plugin.extender.flow")
    return caplog


def only(lines: pytest.LogCaptureFixture) -> dict[str, Any]:
    (record,) = (record for record in lines.records if record.name == "neuron_plugin.extender.flow")
    return vars(record)


def test_a_verbs_line_has_the_request_container_by_container(counter: Counter, lines: pytest.LogCaptureFixture) -> None:
    for containers in ([container("a", CORE, 9)], [container("a", DEVICE, 1), container("b", CORE, 4)]):
        pod = pod_manifest("pod", containers=containers)
        counter.service.answer("filter", json.dumps({"Pod": pod, "NodeNames": ["node"]}).encode())

    assert [vars(record)["request"] for record in lines.records] == ["neuroncore:9", "neuron:1|neuroncore:4"]


def test_a_filters_line_counts_nodes_and_reasons_and_names_up_to_five_nodes_that_fit(
    counter: Counter, lines: pytest.LogCaptureFixture
) -> None:
    fitting = ["node", *(f"node-{number}" for number in range(6))]
    for name in (*fitting, "full"):
        counter.world.node(name, TRN1)
    counter.world.held("holder", "full", DEVICE, ",".join(map(str, range(16))))
    pod = pod_manifest("pod", DEVICE, 4)

    body = {"Pod": pod, "NodeNames": [*fitting, "full", "ghost", "spirit"]}
    counter.service.answer("filter", json.dumps(body).encode())

    refused = {"Fewer than 4 free Neuron devices": 1, "The node is not known to the Neuron extender yet": 2}
    expected = {"pod": "default/pod", "uid": pod["metadata"]["uid"], "nodes": 10, "passed": 7, "refused": refused}
    expected["fitting"] = "node,node-0,node-1,node-2,node-3"
    assert only(lines) | expected == only(lines)
    assert only(lines)["us"] > 0


def test_a_filters_line_stays_short_however_many_reasons_there_are(
    counter: Counter, lines: pytest.LogCaptureFixture
) -> None:
    names = []
    for number in range(1, 13):
        manifest = node_manifest(f"node-{number}", "inf1.xlarge")
        inventory = json.loads(manifest["metadata"]["annotations"]["neuron-plugin.io/inventory"])
        inventory["instanceType"] = f"type-{number}"
        for copy in range(number):
            name = f"node-{number}-{copy}"
            annotations = {"neuron-plugin.io/inventory": json.dumps(inventory)}
            counter.world.show_node({"metadata": {"name": name, "uid": name, "annotations": annotations}})
            names.append(name)

    counter.service.answer("filter", asking(8, *names))

    assert len(only(lines)["refused"]) == 8
    assert only(lines)["refused"]["Instance type type-12 has 1 Neuron devices and 8 were requested"] == 12


def test_the_lines_of_prioritize_and_preempt_say_how_much_was_left(
    counter: Counter, lines: pytest.LogCaptureFixture
) -> None:
    counter.world.node("other", TRN1)
    counter.world.node("torn", TRN1)
    held = [counter.world.held(f"pod-{device}", "torn", DEVICE, str(device)) for device in (0, 4, 8, 12)]
    victims = {"Pods": [{"UID": each["metadata"]["uid"]} for each in held]}
    offered = dict.fromkeys(("torn", "ghost"), victims)

    counter.service.answer("prioritize", asking(1, "node", "other", "torn"))
    counter.service.answer(
        "preempt", json.dumps({"Pod": pod_manifest("new", DEVICE, 4), "NodeNameToMetaVictims": offered}).encode()
    )

    first, second = (vars(record) for record in lines.records)
    assert (first["nodes"], first["best"]) == (3, 1)
    assert (second["nodes"], second["passed"], second["fewest_victims"]) == (2, 1, 1)


async def test_a_binds_line_has_what_was_chosen_and_what_is_used_then(
    counter: Counter, lines: pytest.LogCaptureFixture
) -> None:
    counter.world.node("inf1", "inf1.6xlarge")
    service = service_on(counter.world, tuple(Dialect))
    pod = counter.world.held("pod", "inf1", CORE, "0,1,2,3,4,5,6,7,8")

    await service.bind(bind_args(pod, "inf1"))

    line = only(lines)
    assert (line["levelname"], line["result"]) == ("INFO", "repeated")
    assert (line["used_cores"], line["used_devices"]) == ("0,1,2,3,4,5,6,7,8", "0,1,2")


@pytest.mark.parametrize("ending", sorted(set(Ending) - SUCCESSES))
async def test_a_bind_that_failed_is_a_warning_with_its_reason(
    counter: Counter, lines: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, ending: Ending
) -> None:
    async def failing(*_: object) -> BindOutcome:
        return BindOutcome(ending, "why")

    monkeypatch.setattr(Binder, "bind", failing)

    await counter.service.bind(bind_args(pod_manifest("pod", DEVICE, 1), "ghost"))

    line = only(lines)
    assert (line["levelname"], line["result"], line["error"]) == ("WARNING", ending.value, "why")


def levels(lines: pytest.LogCaptureFixture) -> list[str]:
    found = [record.levelname for record in lines.records if record.name == "neuron_plugin.extender.flow"]
    lines.clear()
    return found


def test_p84_a_pods_line_comes_again_only_when_its_answer_changes(
    counter: Counter, lines: pytest.LogCaptureFixture
) -> None:
    lines.set_level(logging.DEBUG, "neuron_plugin.extender.flow")
    pod, other = ({"Pod": pod_manifest(name, DEVICE, 16), "NodeNames": ["node", "ghost"]} for name in ("pod", "other"))

    def ask(body: dict[str, Any]) -> None:
        counter.service.answer("filter", json.dumps(body).encode())

    for body in (pod, pod, other, pod, other):
        ask(body)
    assert levels(lines) == ["INFO", "DEBUG", "INFO", "DEBUG", "DEBUG"]

    ask(pod | {"NodeNames": ["node", "ghost", "spirit"]})
    assert levels(lines) == ["DEBUG"]  # one node more says what another one says

    counter.world.held("holder", "node", DEVICE, "3")
    ask(pod)
    ask(pod)
    assert levels(lines) == ["INFO", "DEBUG"]


def test_p84_only_so_many_answers_are_remembered(
    counter: Counter, lines: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_ANSWERS", 2)
    bodies = [asking(1, "node") for _ in range(3)]
    for body in (*bodies, bodies[2], bodies[0]):
        counter.service.answer("filter", body)

    assert levels(lines) == ["INFO"] * 4
    assert len(counter.service._logged) == 2


def test_p84_a_warning_comes_once_and_again_after_a_call_that_was_served(
    counter: Counter, lines: pytest.LogCaptureFixture
) -> None:
    bad, good = b"{", asking(4, "node")
    for body in (bad, bad, good, bad):
        counter.service.answer("filter", body)

    assert "expected ExtenderArgs" in vars(lines.records[0])["error"]
    assert levels(lines) == ["WARNING", "INFO", "WARNING"]
