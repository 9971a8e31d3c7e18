from __future__ import annotations

from neuron_plugin.allocation import Dialect, explain_decision
from neuron_plugin.extender.attempts import Ending
from neuron_plugin.simulation import container
from tests.extender.bench import Bench
from tests.extender.world import CORE, DEVICE, World


async def test_t20_t21_containers_get_disjoint_lists_under_both_keys(bench: Bench) -> None:
    containers = [container("a", DEVICE, 1), container("b", CORE, 1), container("c", CORE, 1)]
    pod = bench.server.add(bench.world.pod("pod", containers=containers))

    await bench.bind(pod)

    written = pod["metadata"]["annotations"]
    devices, cores = written["NEURON_DEVS"], written["NEURON_CORES"].split("|")
    silicon = {2 * int(devices), 2 * int(devices) + 1, *map(int, cores)}
    assert len(silicon) == 4
    assert "AWS_NEURON_IDS" not in written


async def test_t24_ids_are_in_numeric_order(bench: Bench) -> None:
    pod = bench.waiting("pod", 16)

    await bench.bind(pod)

    assert pod["metadata"]["annotations"]["NEURON_DEVS"] == "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15"


async def test_a_node_that_closed_since_the_filter_is_refused_with_its_reason(bench: Bench) -> None:
    pod = bench.waiting("pod")
    bench.world.pod("stock", DEVICE, 1, node="node")

    outcome = await bench.bind(pod)

    assert outcome.ending is Ending.NO_SET
    assert outcome.error == "A pod on the node uses Neuron and its assignment is not known yet"
    assert bench.server.calls == []


async def test_t23_an_unreadable_request_is_refused_and_reserves_nothing(bench: Bench) -> None:
    pod = bench.server.add(bench.world.pod("pod", containers=[container("main", CORE, "1.5")]))

    outcome = await bench.bind(pod)

    assert outcome.ending is Ending.NO_SET
    assert "1.5" in outcome.error
    assert bench.server.calls == []


async def test_the_vendors_dialect_alone_cannot_say_two_resources(world: World) -> None:
    bench = Bench(world)
    bench.dialects = (Dialect.VENDOR,)
    bench.binder = bench.make()
    containers = [container("a", DEVICE, 1), container("b", CORE, 1)]
    pod = bench.server.add(world.pod("pod", containers=containers))

    outcome = await bench.bind(pod)

    assert outcome.ending is Ending.NO_SET
    assert "vendor's dialect" in outcome.error


async def test_a_bind_is_remembered_with_what_else_there_was(bench: Bench) -> None:
    await bench.bind(bench.waiting("first", 4))
    await bench.bind(bench.waiting("second", 4))
    first, second = (explain_decision(entry) for entry in bench.binder.journal.entries())
    assert (first["step"], first["node"], first["ids"]) == ("bound", "node", "0,1,2,3")
    assert first["candidateCount"] == 4
    assert (second["ids"], second["candidateCount"]) == ("4,5,6,7", 3)
    assert second["candidates"][0] == {"ids": "4,5,6,7", "cost": second["candidates"][0]["cost"]}  # type: ignore[index]  # plain values


async def test_a_bind_that_failed_is_not_remembered_as_one(bench: Bench) -> None:
    manifest = bench.waiting("pod", 4)
    bench.barred = "not the leader"
    await bench.bind(manifest)
    assert bench.binder.journal.entries() == ()
