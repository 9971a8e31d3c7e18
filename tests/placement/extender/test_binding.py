from __future__ import annotations

import asyncio
from typing import cast

import pytest

from neuron_plugin.allocation import Dialect
from neuron_plugin.cluster import Election
from neuron_plugin.decision_log import explain_decision
from neuron_plugin.placement.context import Times
from neuron_plugin.placement.extender.binding import TURN_SECONDS, BindOutcome, Ending
from neuron_plugin.simulation.api_server_kinds import AnyJson
from tests.support.api_server import Fault
from tests.support.bench import BINDS, NOW_NS, READS, Bench, without_annotations
from tests.support.manifests import container, pod_manifest, with_memory
from tests.support.world import CORE, DEVICE, World, record_of


async def test_a_bind_is_one_post_that_carries_the_assignment_in_both_dialects(bench: Bench) -> None:
    pod = bench.waiting("pod", 4)

    outcome = await bench.bind(pod)

    assert outcome.ending is Ending.BOUND
    assert outcome.error == ""
    assert bench.calls == ["bind"]
    bound = bench.stored(pod)
    assert bound["spec"]["nodeName"] == "node"
    assert bound["metadata"]["annotations"] == {
        "NEURON_DEVS": "0,1,2,3",
        "NEURON_ALLOC_TIME": str(NOW_NS),
        "NEURON_ALLOCATED": "false",
        "AWS_NEURON_IDS": "0,1,2,3",
        "NEURON_RESOURCE_TYPE": "aws.amazon.com/neuron",
    }
    assert bench.used() == 4


async def test_t37_of_two_binds_for_the_last_set_one_wins_and_the_other_is_refused_by_its_next_filter(
    bench: Bench,
) -> None:
    first, second = bench.waiting("first", 16), bench.waiting("second", 16)
    assert bench.world.filter(first, ["node"]).passed == bench.world.filter(second, ["node"]).passed == ["node"]

    outcomes = await asyncio.gather(bench.bind(first), bench.bind(second))

    assert [outcome.ending for outcome in outcomes] == [Ending.BOUND, Ending.NO_SET]
    assert "16" in outcomes[1].error
    assert bench.world.filter(second, ["node"]).passed == []


async def test_t38_the_same_bind_again_gives_the_same_devices_and_is_counted_once(bench: Bench) -> None:
    """Also where the watch shows it without its annotations: a person may have removed them."""
    pod = bench.waiting("pod", 4)

    shared = await asyncio.gather(*(bench.bind(pod) for _ in range(5)))
    again = await bench.bind(pod)
    bench.world.show(without_annotations(bench.stored(pod)))
    bare = await bench.bind(pod)
    bench.world.show(bench.stored(pod))
    seen = await bench.bind(pod)

    assert {outcome.ending for outcome in shared} == {Ending.BOUND}
    assert {outcome.ending for outcome in (again, bare, seen)} == {Ending.REPEATED}
    assert shared[0].annotations == again.annotations == bare.annotations
    assert bench.calls == ["bind"]
    assert bench.used() == 4


async def test_a_second_call_for_another_node_names_the_node_that_the_pod_goes_to(bench: Bench) -> None:
    pod = bench.waiting("pod")
    gate = asyncio.Event()
    bench.fail(BINDS, Fault(gate=gate))
    first = asyncio.ensure_future(bench.bind(pod))
    await asyncio.sleep(0)

    during = await bench.bind(pod, "other")
    gate.set()
    await first
    afterwards = await bench.bind(pod, "other")

    assert during.ending is afterwards.ending is Ending.BOUND_ELSEWHERE
    assert bench.used("other") == 0


@pytest.mark.parametrize("known", [True, False])
async def test_t39_a_uid_that_is_not_the_pods_reserves_and_writes_nothing(bench: Bench, *, known: bool) -> None:
    bench.server.create_pod(pod_manifest("pod", DEVICE, 1))
    other = bench.world.pod("other", DEVICE, 1) if known else pod_manifest("other", DEVICE, 1)
    other["metadata"]["name"] = "pod"

    outcome = await bench.bind(other)

    assert outcome.ending is Ending.NOT_THE_POD
    assert bench.calls == ["read"]
    assert bench.used() == 0


@pytest.mark.parametrize(
    ("bound_to", "phase", "ending", "calls"),
    [
        ("", "Pending", Ending.BOUND, ["read", "bind"]),
        ("", "Failed", Ending.NOT_THE_POD, ["read"]),
        ("node", "Pending", Ending.REPEATED, ["read"]),
        ("other", "Pending", Ending.BOUND_ELSEWHERE, ["read"]),
    ],
    ids=["t39: waits", "t39: has ended", "t38: bound there", "t41: bound elsewhere"],
)
async def test_t38_t39_t41_a_pod_that_the_watch_has_not_shown_is_read_first(
    bench: Bench, bound_to: str, phase: str, ending: Ending, calls: list[str]
) -> None:
    assigned = {"NEURON_DEVS": "0"} if bound_to else {}
    pod = bench.server.create_pod(pod_manifest("pod", DEVICE, 1, node=bound_to, annotations=assigned))
    bench.server.set_pod_status("default", "pod", {"phase": phase})

    assert (await bench.bind(pod)).ending is ending
    assert bench.calls == calls
    assert bench.used() == (ending is Ending.BOUND)


async def test_t02_an_unknown_pod_while_the_api_is_away_is_an_error(bench: Bench) -> None:
    bench.fail(READS, Fault(drop=True))

    outcome = await bench.bind(pod_manifest("pod", DEVICE, 1))

    assert outcome.ending is Ending.REFUSED
    assert "cannot be read" in outcome.error


async def test_t42_a_pod_without_neuron_is_bound_without_a_decision_and_leaves_no_trace(bench: Bench) -> None:
    pod = bench.server.create_pod(pod_manifest("plain", CORE, 0))

    first, again = await bench.bind(pod), await bench.bind(pod)

    assert (first.ending, again.ending) == (Ending.BOUND, Ending.REPEATED)
    assert bench.stored(pod)["metadata"]["annotations"] == {}
    assert not bench.world.state.assumed


async def test_e04_while_not_ready_nothing_is_reserved_or_written(bench: Bench) -> None:
    bench.ready.unmet("leader", "another replica leads")

    outcome = await bench.bind(bench.waiting("pod"))

    assert outcome == BindOutcome(Ending.NOT_SERVING, "another replica leads")
    assert bench.calls == []
    assert bench.used() == 0


async def test_a_caller_waits_no_longer_than_the_deadline_and_the_attempt_goes_on(bench: Bench) -> None:
    bench.binder = bench.make(answer=0.01)
    gate = asyncio.Event()
    bench.fail(BINDS, Fault(gate=gate))
    pod = bench.waiting("pod", 4)

    outcome = await bench.bind(pod)
    assert outcome.ending is Ending.UNKNOWN
    assert bench.binder.under_way == 1
    assert bench.used() == 4

    gate.set()
    await bench.binder.drain()
    assert bench.binder.under_way == 0
    assert bench.stored(pod)["spec"]["nodeName"] == "node"


async def test_a_fault_of_ours_ends_one_bind_and_not_the_daemon(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.server, "request", None)

    outcome = await bench.bind(bench.waiting("pod"))

    assert outcome.ending is Ending.FAILED
    assert "bind failed" in caplog.text


async def test_t20_t21_containers_get_disjoint_lists_under_both_keys(bench: Bench) -> None:
    containers = [container("a", DEVICE, 1), container("b", CORE, 1), container("c", CORE, 1)]
    pod = bench.server.create_pod(bench.world.pod("pod", containers=containers))

    await bench.bind(pod)

    written = bench.stored(pod)["metadata"]["annotations"]
    devices, cores = written["NEURON_DEVS"], written["NEURON_CORES"].split("|")
    taken = {2 * int(devices), 2 * int(devices) + 1, *map(int, cores)}
    assert len(taken) == 4
    assert "AWS_NEURON_IDS" not in written


async def test_t24_ids_are_in_numeric_order(bench: Bench) -> None:
    pod = bench.waiting("pod", 16)

    await bench.bind(pod)

    assert bench.stored(pod)["metadata"]["annotations"]["NEURON_DEVS"] == "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15"


async def test_a_node_that_closed_since_the_filter_is_refused_with_its_reason(bench: Bench) -> None:
    pod = bench.waiting("pod")
    bench.world.pod("stock", DEVICE, 1, node="node")

    outcome = await bench.bind(pod)

    assert outcome.ending is Ending.NO_SET
    assert outcome.error == "A pod on the node uses Neuron and its assignment is not known yet"
    assert bench.calls == []


@pytest.mark.parametrize(
    ("asked", "why_not"),
    [
        (container("main", CORE, "1.5"), "1.5"),
        (with_memory("main", 0, 64), "asks for neuron-plugin.io/memory and for no Neuron device or core"),
    ],
    ids=["no whole number", "an amount alone"],
)
async def test_t23_an_unreadable_request_is_refused_and_reserves_nothing(
    bench: Bench, asked: AnyJson, why_not: str
) -> None:
    pod = bench.world.pod("pod", containers=[asked])
    if not bench.world.state.pods:  # the watch keeps no pod without Neuron, so it is read
        bench.server.create_pod(pod)

    outcome = await bench.bind(pod)

    assert outcome.ending is Ending.NO_SET
    assert why_not in outcome.error
    assert "bind" not in bench.calls
    assert not bench.world.state.assumed


async def test_the_vendors_dialect_alone_cannot_say_two_resources(world: World) -> None:
    bench = Bench(world)
    bench.dialects = (Dialect.VENDOR,)
    bench.binder = bench.make()
    containers = [container("a", DEVICE, 1), container("b", CORE, 1)]
    pod = bench.server.create_pod(world.pod("pod", containers=containers))

    outcome = await bench.bind(pod)

    assert outcome.ending is Ending.NO_SET
    assert "vendor's dialect" in outcome.error


async def test_a_bind_is_remembered_with_what_else_there_was_and_one_that_failed_is_not(bench: Bench) -> None:
    await bench.bind(bench.waiting("first", 4))
    await bench.bind(bench.waiting("second", 4))
    bench.ready.unmet("leader", "not the leader")
    await bench.bind(bench.waiting("third", 4))

    first, second = (explain_decision(entry) for entry in bench.context.decisions.entries())
    assert (first["step"], first["node"], first["ids"]) == ("bound", "node", [0, 1, 2, 3])
    assert first["candidateCount"] == 4
    assert (second["ids"], second["candidateCount"]) == ([4, 5, 6, 7], 3)
    assert second["candidates"][0] == {"ids": [4, 5, 6, 7], "cost": second["candidates"][0]["cost"]}  # type: ignore[index]  # plain values


class Term:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def seconds_left(self) -> float:
        return self.seconds


@pytest.mark.parametrize(("seconds_left", "ending"), [(10.0, Ending.BOUND), (Times().write, Ending.NOT_SERVING)])
async def test_e04_no_bind_starts_that_the_lease_could_run_out_under(
    bench: Bench, seconds_left: float, ending: Ending
) -> None:
    bench.binder = bench.make(election=cast("Election", Term(seconds_left)))

    outcome = await bench.bind(bench.waiting("pod"))

    assert outcome.ending is ending
    assert ("lease" in outcome.error) is bool(outcome.error)
    assert bench.used() == (ending is Ending.BOUND)


async def test_the_kubelet_of_a_node_gets_its_pods_one_by_one(bench: Bench) -> None:
    bench.world.state.leased.add("node")
    pods = [bench.waiting(f"pod-{number}") for number in range(5)]
    waiting = [asyncio.create_task(bench.bind(pod)) for pod in pods]
    for done in range(1, len(pods) + 1):
        await asyncio.sleep(0.02)
        assert bench.calls == ["bind"] * done
        (bound,) = [pod for pod in pods if _is_admitted_next(bench.stored(pod))]
        bench.world.show(bench.stored(bound))
        await asyncio.sleep(0.02)
        assert bench.calls == ["bind"] * done
        admit(bench, bound)
    assert {(await task).ending for task in waiting} == {Ending.BOUND}


async def test_no_node_waits_for_another(bench: Bench) -> None:
    bench.world.state.leased |= {"node", "other"}
    await bench.bind(bench.waiting("first"))
    assert (await bench.bind(bench.waiting("elsewhere"), "other")).ending is Ending.BOUND


def admit(bench: Bench, pod: AnyJson) -> None:
    """The plugin writes on a pod, and the watch shows it."""
    change = {"metadata": {"annotations": {"NEURON_ALLOCATED": "true"}}}
    bench.world.show(bench.server.patch_pod("default", pod["metadata"]["name"], change))


def _is_admitted_next(pod: AnyJson) -> bool:
    return bool(pod["metadata"].get("annotations", {}).get("NEURON_ALLOCATED") == "false")


async def test_a_bind_waits_for_its_turn_for_a_while_and_lets_its_set_go(bench: Bench) -> None:
    bench.world.state.leased.add("node")
    await bench.bind(bench.waiting("first"))
    second, third = bench.waiting("second"), bench.waiting("third")
    bench.leads.lead(record_of(third), ["node"])
    waiting = [asyncio.create_task(bench.bind(pod)) for pod in (second, third)]
    await asyncio.sleep(0.02)
    assert bench.used() == 2
    bench.now += TURN_SECONDS
    bench.world.state.changes.wake()
    outcomes = [await task for task in waiting]
    assert [outcome.ending for outcome in outcomes] == [Ending.BOUND, Ending.NOT_ITS_TURN]
    assert outcomes[1].error.startswith("node node: other pods are bound there")
    assert bench.used() == 2


async def test_a_pod_that_is_bound_has_had_its_turn(bench: Bench) -> None:
    first, second = bench.waiting("first"), bench.waiting("second")
    await asyncio.gather(bench.bind(first), bench.bind(second))
    bench.world.state.leased.add("node")
    async with asyncio.timeout(1.0):
        assert (await bench.bind(second)).ending is Ending.REPEATED
    assert bench.used() == 2
