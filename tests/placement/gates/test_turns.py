"""Pods of a node go to its kubelet one by one, and what becomes of those that wait for their turn."""

from __future__ import annotations

import pytest

from neuron_plugin.placement.context import Times
from neuron_plugin.placement.gates.placer import MOST_IN_LINE
from tests.placement.gates.bench import NEURON, GatesBench

TIMES = Times()
FULL = 16


def give(gated: GatesBench, name: str) -> None:
    """The kubelet admits a pod, and the plugin gives it its devices."""
    gated.bind(name, gated.place(name))
    gated.server.patch_pod("default", name, {"metadata": {"annotations": {"NEURON_ALLOCATED": "true"}}})
    gated.sync()


def released(gated: GatesBench, *names: str) -> list[str]:
    return [name for name in names if not gated.gates(name)]


@pytest.fixture
def busy(gated: GatesBench) -> GatesBench:
    """A node whose plugin renews a Lease, and three pods that come at once."""
    gated.node("a")
    gated.state.leased.add("a")
    for name in ("p1", "p2", "p3"):
        gated.pod(name, NEURON, 1)
    return gated


async def test_each_goes_when_the_one_before_has_its_devices(busy: GatesBench) -> None:
    for done in (["p1"], ["p1", "p2"], ["p1", "p2", "p3"]):
        for _ in range(2):
            await busy.step()
            assert released(busy, "p1", "p2", "p3") == done
        give(busy, done[-1])


async def test_what_waits_has_its_devices_and_nobody_else_gets_them(busy: GatesBench) -> None:
    await busy.step()
    assert busy.state.nodes["a"].used_mask.bit_count() == 6
    busy.pod("whole", NEURON, FULL)
    await busy.step(after=TIMES.landing)
    await busy.writer.settle()
    assert busy.state.nodes["a"].used_mask.bit_count() == 6
    assert not busy.place("whole")


@pytest.mark.parametrize("ends", ["deleted", "not bound for long"])
async def test_a_pod_that_never_gets_there_is_not_waited_for(busy: GatesBench, ends: str) -> None:
    await busy.step()
    if ends == "deleted":
        busy.server.delete_pod("default", "p1")
    await busy.step(after=TIMES.admission if ends == "not bound for long" else 0)
    assert not busy.gates("p2")
    assert busy.gates("p3")


async def test_a_pod_in_line_that_is_deleted_leaves_its_devices(busy: GatesBench) -> None:
    await busy.step()
    busy.server.delete_pod("default", "p2")
    await busy.step()
    give(busy, "p1")
    await busy.step()
    assert not busy.gates("p3")
    assert busy.state.nodes["a"].used_mask.bit_count() == 4


async def test_those_in_line_go_elsewhere_when_the_node_closes(busy: GatesBench) -> None:
    busy.node("b")
    await busy.step()
    (first,) = (busy.place(name) for name in released(busy, "p1", "p2", "p3"))
    busy.state.set_stale(frozenset({first}))
    await busy.place_all()
    assert {busy.place(name) for name in ("p2", "p3")} == {"a", "b"} - {first}


async def test_nodes_without_a_lease_and_other_nodes_do_not_wait(gated: GatesBench) -> None:
    for name in ("a", "b"):
        gated.labelled_node(name, pool=name)
    gated.state.leased.add("a")
    for name in ("p1", "p2", "p3"):
        gated.pod(name, NEURON, 1, spec={"nodeSelector": {"pool": "a" if name == "p1" else "b"}})
    await gated.step()
    assert released(gated, "p1", "p2", "p3") == ["p1", "p2", "p3"]


async def test_the_pods_of_a_group_go_one_by_one_and_wait_for_a_plugin_that_starts_again(gated: GatesBench) -> None:
    for name in ("a", "b"):
        gated.node(name)
    gated.state.leased.add("a")
    for name in ("g-0", "g-1"):
        gated.pod(name, NEURON, 4, group="g", size=2)
    await gated.step()
    await gated.step()
    assert released(gated, "g-0", "g-1") == ["g-0"]
    gated.state.set_stale(frozenset({"a"}))
    give(gated, "g-0")
    for _ in range(3):
        await gated.step(after=TIMES.closed / 4)
    assert gated.gates("g-1")
    gated.state.set_stale(frozenset())
    await gated.step()
    assert not gated.gates("g-1")
    assert gated.place("g-1") == "a"


async def test_the_pods_of_a_pod_group_go_together_as_kube_scheduler_binds_them(gated: GatesBench) -> None:
    gated.node("a")
    gated.state.leased.add("a")
    gated.state.set_min_count(("default", "g"), 2)
    for name in ("g-0", "g-1"):
        gated.pod(name, NEURON, 4, spec={"schedulingGroup": {"podGroupName": "g"}})
    await gated.place_all()
    assert released(gated, "g-0", "g-1") == ["g-0", "g-1"]


async def test_a_group_leaves_a_node_that_stays_closed(gated: GatesBench) -> None:
    for name in ("a", "b"):
        gated.node(name)
    gated.state.leased |= {"a", "b"}
    for name in ("g-0", "g-1"):
        gated.pod(name, NEURON, 4, group="g", size=2)
    await gated.place_all()
    first = gated.place("g-0")
    give(gated, "g-0")
    gated.state.set_stale(frozenset({first}))
    await gated.step()
    await gated.step(after=TIMES.closed + 1)
    await gated.place_all()
    assert gated.place("g-1") == ({"a", "b"} - {first}).pop()


async def test_a_line_is_not_longer_than_what_each_step_looks_at(gated: GatesBench) -> None:
    names = [f"n{number}" for number in range(MOST_IN_LINE // FULL + 2)]
    for name in names:
        gated.node(name)
    gated.state.leased.update(names)
    for number in range(MOST_IN_LINE + 2 * FULL):
        gated.pod(f"p{number}", NEURON, 1)
    await gated.step()
    in_line = [pod for pod in gated.state.assumed.values() if pod.expected]
    assert len(in_line) <= MOST_IN_LINE
