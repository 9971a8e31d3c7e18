"""What a bind does when it is not known how its write ended (T40), and what becomes of it afterwards."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from neuron_plugin.backoff import Clock
from neuron_plugin.cluster import ApiError, ApiRequest, ClusterError, KubernetesApi, UnreachableError
from neuron_plugin.cluster.api import Response
from neuron_plugin.placement.context import Times
from neuron_plugin.placement.extender.binding import Ending
from neuron_plugin.placement.writer import NotSentError, Outcome, Writer, attempt_of
from neuron_plugin.simulation.api_server_kinds import PODS
from tests.support.api_server import Fault, StandInApiServer
from tests.support.bench import BINDS, CUT, LOST, READS, TRN1, UNSENT, Bench, without_annotations
from tests.support.manifests import node_manifest, pod_manifest
from tests.support.world import CORE, DEVICE, pod_of


def happens(bench: Bench, event: str) -> None:
    """What becomes of the pod at the server before its bind comes."""
    match event.split():
        case ["waits"]:
            return
        case ["ends"]:
            bench.server.set_pod_status("default", "pod", {"phase": "Failed"})
        case ["bound", node, *ids]:
            annotations = {"NEURON_DEVS": ids[0]} if ids else {}
            bench.server.bind("default", "pod", node=node, annotations=annotations)
        case _:
            bench.server.delete_pod("default", "pod")
            if event == "replaced":
                bench.server.create_pod(pod_manifest("pod", DEVICE, 4))


@pytest.mark.parametrize(
    ("event", "write", "read", "ending", "used"),
    [
        *(("waits", replace(LOST, status=status), None, Ending.ADOPTED, 0xFF) for status in (500, 503, 504, 0)),
        *(("waits", fault, None, Ending.UNKNOWN, 0xFF) for fault in (Fault(status=500), CUT)),
        *(("waits", Fault(status=status), None, Ending.REFUSED, 0) for status in (403, 409, 422)),
        ("waits", UNSENT, None, Ending.REFUSED, 0),
        ("ends", CUT, None, Ending.NOT_THE_POD, 0),
        ("gone", None, None, Ending.NOT_THE_POD, 0),
        ("replaced", None, None, Ending.NOT_THE_POD, 0),
        ("bound node 12,13,14,15", None, None, Ending.ADOPTED, 0xFF << 24),
        ("bound other 0,1,2,3", None, None, Ending.BOUND_ELSEWHERE, 0),
        ("bound node", None, None, Ending.BOUND_ELSEWHERE, 0),
        ("waits", CUT, CUT, Ending.UNKNOWN, 0xFF),
        ("waits", Fault(status=409), CUT, Ending.UNKNOWN, 0xFF),
        ("waits", Fault(status=403), CUT, Ending.REFUSED, 0),
        ("waits", UNSENT, CUT, Ending.REFUSED, 0),
    ],
    ids=str,
)
async def test_t40_t41_after_a_write_that_failed_the_pod_is_read_and_the_silicon_is_kept_unless_it_is_known_to_be_free(
    bench: Bench, event: str, write: Fault | None, read: Fault | None, ending: Ending, used: int
) -> None:
    pod = bench.waiting("pod", 4)
    happens(bench, event)
    bench.fail(BINDS, *filter(None, [write]))
    bench.fail(READS, *filter(None, [read]))

    outcome = await bench.bind(pod)

    assert outcome.ending is ending
    assert bool(outcome.error) is (ending is not Ending.ADOPTED)
    assert str(write.status if write and write.status and outcome.error else "") in outcome.error
    assert bench.calls == ["bind", "read"]
    assert bench.world.state.nodes["node"].used_mask == used
    assert bench.used("other") == 0


@pytest.mark.parametrize("reads", [0, 1])
async def test_t40_what_may_still_land_stays_reserved_until_a_read_after_that_says_it_has_not(
    bench: Bench, reads: int
) -> None:
    pod = bench.waiting("pod", 4)
    bench.fail(BINDS, CUT)
    bench.fail(READS, *[CUT] * (reads and 1 + reads))
    assert (await bench.bind(pod)).ending is Ending.UNKNOWN
    used = []
    for seconds in (1, 100, 0):
        bench.now += seconds
        assert bench.writer.unseen() == 0, "it is not confirmed, so the watch need not have shown it"
        await bench.binder.settle()
        used.append(bench.used())

    assert used == ([4, 4, 0] if reads else [4, 0, 0])


async def test_t40_in_another_term_nothing_is_bound_as_it_was_chosen_in_an_earlier_one(bench: Bench) -> None:
    """Meanwhile another replica led, to which the set was free: the write had not landed."""
    pod = bench.waiting("pod", 4)
    bench.fail(BINDS, CUT)
    assert (await bench.bind(pod)).ending is Ending.UNKNOWN
    bench.world.held("other", "node", DEVICE, "0,1,2,3")
    await bench.writer.take_over()
    outcome = await bench.bind(pod)
    assert (outcome.ending, outcome.annotations["NEURON_DEVS"]) == (Ending.BOUND, "4,5,6,7")


def lands(bench: Bench) -> None:
    """The write that was not answered takes effect after all."""
    (assumed,) = bench.world.state.assumed.values()
    bench.server.bind("default", "pod", node="node", annotations=assumed.annotations)


async def test_t40_a_write_that_lands_late_is_kept(bench: Bench) -> None:
    pod = bench.waiting("pod", 4)
    bench.fail(BINDS, CUT)
    await bench.bind(pod)
    lands(bench)

    bench.now += 10
    await bench.binder.settle()

    assert bench.used() == 4
    assert (await bench.bind(pod)).ending is Ending.REPEATED


async def test_t40_a_write_that_lands_late_on_a_node_that_is_gone_is_remembered_for_its_return(bench: Bench) -> None:
    pod = bench.waiting("pod", 4)
    bench.fail(BINDS, LOST)
    bench.fail(READS, CUT)
    await bench.bind(pod)
    bench.world.state.remove_node("node", bench.world.state.nodes["node"].node.uid)

    bench.now += 10
    await bench.binder.settle()
    bench.world.node("node", TRN1)

    assert bench.used() == 4


@pytest.mark.parametrize(
    ("landed", "fault", "ending"),
    [
        (False, None, Ending.BOUND),
        (True, None, Ending.ADOPTED),
        (False, Fault(status=403), Ending.UNKNOWN),
    ],
    ids=["done", "the first was done", "refused, which decides nothing about the first"],
)
async def test_t40_a_retry_of_an_undecided_bind_sends_the_same_ids_again(
    bench: Bench, fault: Fault | None, ending: Ending, *, landed: bool
) -> None:
    pod = bench.waiting("pod", 4)
    bench.fail(BINDS, CUT, *([fault] if fault else []))
    await bench.bind(pod)
    held = bench.world.state.assumed[pod_of(pod).uid].annotations
    if landed:
        lands(bench)

    assert bench.world.filter(pod, ["node", "other"]).passed == ["node"]
    outcome = await bench.bind(pod)

    assert outcome.ending is ending
    assert outcome.annotations == ({} if outcome.error else held)
    assert bench.used() == 4


@pytest.mark.parametrize("by", ["us", "another binder"])
async def test_t42_a_pod_without_neuron_that_is_found_there_after_a_write_that_failed_is_bound(
    bench: Bench, by: str
) -> None:
    pod, gate = bench.server.create_pod(pod_manifest("plain", CORE, 0)), asyncio.Event()
    bench.fail(BINDS, replace(LOST, gate=gate) if by == "us" else Fault(gate=gate))
    binding = asyncio.create_task(bench.bind(pod))
    await asyncio.sleep(0.01)
    if by != "us":
        bench.server.bind("default", "plain", node="node")
    gate.set()

    assert (await binding).ending is Ending.ADOPTED


@pytest.mark.parametrize("end", ["gone", "finished"])
async def test_a_confirmed_binding_the_watch_never_shows_is_looked_up_and_freed_when_the_pod_has_ended(
    bench: Bench, end: str
) -> None:
    pod = bench.server.create_pod(pod_manifest("pod", DEVICE, 4))
    await bench.bind(pod)
    bench.now += 20
    await bench.binder.settle()
    assert bench.writer.unseen() == 0

    bench.now += 20
    assert bench.writer.unseen() == 1
    await bench.binder.settle()
    assert bench.used() == 4

    if end == "gone":
        bench.server.delete_pod("default", "pod", grace_seconds=0)
    else:
        bench.server.set_pod_status("default", "pod", {"phase": "Succeeded"})
    bench.now += 40
    await bench.binder.settle()
    assert bench.used() == 0


async def test_t40_what_a_retry_has_bound_while_it_was_looked_up_is_not_released(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = bench.waiting("pod", 4)
    bench.fail(BINDS, CUT)
    await bench.bind(pod)
    request = bench.server.request

    async def read_slowly(sent: ApiRequest, *, timeout_seconds: float) -> Response:
        answer = await request(sent, timeout_seconds=timeout_seconds)
        if sent.method == "GET":
            assert (await bench.bind(pod)).ending is Ending.BOUND
        return answer

    monkeypatch.setattr(bench.server, "request", read_slowly)
    bench.now += 10
    await bench.binder.settle()

    assert bench.used() == 4


async def test_what_is_unseen_can_be_counted_while_binds_go_on(bench: Bench) -> None:
    """A scrape counts in a thread of its own."""
    pods = [bench.server.create_pod(pod_manifest(name, DEVICE, 1)) for name in ("first", "second")]
    for pod in pods:
        await bench.bind(pod)

    def meanwhile() -> float:
        bench.world.state.forget(pod_of(pods[0]).uid)
        return bench.now + 100

    assert Writer(replace(bench.context, clock=Clock(now=meanwhile))).unseen() == 2


async def test_what_the_watch_has_shown_is_not_looked_up(bench: Bench) -> None:
    pod = bench.waiting("pod", 4)
    await bench.bind(pod)
    bench.world.show(without_annotations(bench.stored(pod)))

    bench.now += 1000
    await bench.binder.settle()

    assert bench.calls == ["bind"]
    assert bench.used() == 4


@pytest.mark.parametrize("same", [True, False])
async def test_on_an_api_server_a_binding_carries_node_and_annotations_in_one_request_for_one_uid(
    server: StandInApiServer, api: KubernetesApi, bench: Bench, *, same: bool
) -> None:
    server.create_node(node_manifest("node", TRN1))
    created = server.create_pod(pod_manifest("pod", DEVICE, 1))
    asked = created if same else pod_manifest("pod", DEVICE, 1)
    bench.world.show(asked)
    before = len(server.requests)

    outcome = await bench.make(api=api).bind(pod_of(asked), "node")

    assert outcome.ending is (Ending.BOUND if same else Ending.NOT_THE_POD)
    found = server.get(PODS, "pod", "default")
    assert found["spec"].get("nodeName", "") == ("node" if same else "")
    assert found["metadata"].get("annotations", {}) == outcome.annotations
    assert bench.used() == same
    assert [seen.method for seen in server.requests[before:]] == (["POST"] if same else ["POST", "GET"])


def refused(status: int) -> ApiError:
    return ApiError(status=status, reason="Test", message="refused", method="POST", path="/binding")


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        *((refused(status), Outcome.REFUSED) for status in (400, 403, 404, 409, 429)),
        (refused(500), Outcome.UNKNOWN),
        (refused(504), Outcome.UNKNOWN),
        (UnreachableError("POST", "/binding", "no answer", may_have_arrived=True), Outcome.UNKNOWN),
        (UnreachableError("POST", "/binding", "connection refused", may_have_arrived=False), Outcome.REFUSED),
        (NotSentError("not the leader"), Outcome.REFUSED),
    ],
    ids=str,
)
def test_t40_a_write_may_be_in_place_after_any_end_but_a_refusal(error: ClusterError, outcome: Outcome) -> None:
    assert attempt_of(error).outcome is outcome


async def test_every_call_hands_its_deadline_on(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds: list[float] = []
    request = bench.server.request

    async def timed(sent: ApiRequest, *, timeout_seconds: float) -> Response:
        seconds.append(timeout_seconds)
        return await request(sent, timeout_seconds=timeout_seconds)

    monkeypatch.setattr(bench.server, "request", timed)
    bench.fail(BINDS, CUT)
    await bench.bind(bench.waiting("pod"))

    assert seconds == [Times().write, Times().read]
