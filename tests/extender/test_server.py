from __future__ import annotations

import asyncio
import gzip
import io
import json
import logging
import socket
import struct
import time

import pytest

from neuron_plugin.extender import server as module
from neuron_plugin.extender.server import PREFIXES
from neuron_plugin.simulation import StandInScheduler, node_manifest, pod_manifest
from tests.extender.running import until
from tests.extender.served import TRN1, args, closed, error_of, post, request_for, service_on
from tests.extender.world import CORE, DEVICE, World


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
