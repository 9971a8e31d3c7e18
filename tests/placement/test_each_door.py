"""docs/placement.md, at each door: the order of nodes, what overrules it, groups and preemption."""

from __future__ import annotations

import pytest

from neuron_plugin.allocation import PlacementStrategy
from neuron_plugin.monitor.plan import PlanOptions, plan
from neuron_plugin.placement.planner import Planner
from neuron_plugin.placement.settings import FilterMode
from neuron_plugin.planning import RULES
from neuron_plugin.planning.choice import PreferenceOrder
from neuron_plugin.simulation.api_server_kinds import PODS
from tests.placement.doors import DOORS, Cluster
from tests.support.api_server import StandInApiServer
from tests.support.stories import rows

ANY_DOOR = pytest.mark.parametrize("door", DOORS)

PREFERENCES = """
    node affinity: a disk=hdd 0-7 | b disk=ssd => neuron=8 prefers=disk:ssd => b
    pods to be near to: a 0-7 | b other:db => neuron=8 near=db => b
    pods to be near to in a domain: a disk=hdd 0-7 | b disk=ssd | c disk=ssd other:db => neuron=8 near=db@disk => b
    pods to be apart from: a web:0-7 | b => neuron=8 web apart=web => b
    a spread that may be broken: a web:0-7 | b => neuron=8 web evenly=web => b
    a soft taint: a soft=team 0-7 | b => neuron=8 => b
    the greater weight of two terms: a disk=hdd 0-7 | b disk=ssd
        => neuron=8 prefers=disk:hdd*30 prefers=disk:ssd*70 => b
    the weights of kinds, a soft taint's is greater: a 0-7 | b soft=t disk=ssd | c => neuron=8 prefers=disk:ssd => a
    the sum over kinds: a soft=t 0-7 | b disk=ssd | c => neuron=8 prefers=disk:ssd => b
"""
"""What a pod prefers is not where it would go without: on a node that is half full."""
PACKING = """
    a device of a row that is broken: a 0-3 | b 0 => neuron=1 => b
    a spare row before an empty node: a | b 0-3 => neuron=4 => b
    the node where half a machine stays whole: a 0-3 8-11 | b 0-3 4-7 => neuron=4 => a
    the most pods on a torus: a 0-3 | b 0 1 2 3 => neuron=4 => b
    the fewest free cores on a line: a inf2 0 2 | b inf2 1-10 => neuroncore=1 => b
    the part of the network where the fewest nodes are empty: a leaf=1 | b leaf=1 | c leaf=2 => neuron=16 => c
    the lowest name: c | b | a => neuron=16 => a
    a spare row before an empty node of another product: a inf2 | b 0-3 | c => neuron=4 => b
    a small machine before a large one that is empty, too: a | b inf2 => neuron=4 => b
"""
HARD = """
    a required node affinity: a disk=hdd 0-7 | b disk=ssd => neuron=8 must-be=disk:ssd => b
    a node selector: a disk=hdd 0-7 | b disk=ssd => neuron=8 selects=disk:ssd => b
    a spread that may not be broken: a web:0-7 | b => neuron=8 web must-evenly=web => b
    a required anti-affinity: a web:0-7 | b => neuron=8 web must-apart=web => b
    a required affinity: a 0-7 | b other:db => neuron=8 must-near=db => b
    a rule comes before a preference: a disk=hdd 0-7 | b disk=ssd => neuron=8 must-be=disk:ssd prefers=disk:hdd => b
"""
SPREAD = """
    the node with the most free devices: a 0-7 | b 0 => neuron=1 placement=spread => b
    of other products, too: a inf2 | b 0 => neuron=1 placement=spread => b
    what the pod prefers comes first: a disk=hdd 0-7 | b => neuron=1 placement=spread prefers=disk:hdd => a
"""


@ANY_DOOR
@pytest.mark.parametrize(("nodes", "pod", "node"), [*rows(PREFERENCES), *rows(PACKING), *rows(HARD), *rows(SPREAD)])
async def test_every_door_gives_a_pod_the_same_node(door: str, nodes: str, pod: str, node: str) -> None:
    cluster = Cluster(StandInApiServer())
    cluster.nodes(nodes)
    assert await DOORS[door](cluster, "train", pod) == node


@ANY_DOOR
@pytest.mark.parametrize(("nodes", "pod", "node"), rows(PREFERENCES))
async def test_where_preferences_are_for_ties_packing_comes_before_them(
    door: str, nodes: str, pod: str, node: str
) -> None:
    """In each row the nodes are not equal: packing alone takes another one, and the preference decides among equals."""
    cluster = Cluster(StandInApiServer(), preferences=PreferenceOrder.TIES)
    cluster.nodes(nodes)
    assert await DOORS[door](cluster, "train", pod) == "a", f"{node} where preferences come first"


@ANY_DOOR
async def test_among_nodes_that_packing_finds_equal_a_preference_for_ties_decides(door: str) -> None:
    cluster = Cluster(StandInApiServer(), preferences=PreferenceOrder.TIES)
    cluster.nodes("a disk=hdd 0-7 | b disk=ssd 0-7 | c disk=ssd")
    assert await DOORS[door](cluster, "train", "neuron=8 prefers=disk:ssd") == "b"


@ANY_DOOR
@pytest.mark.parametrize(("says", "node"), [("", "b"), ("placement=spread", "b"), ("placement=pack", "a")])
async def test_a_pod_s_own_annotation_comes_before_the_setting(door: str, says: str, node: str) -> None:
    cluster = Cluster(StandInApiServer(), strategy=PlacementStrategy.SPREAD)
    cluster.nodes("a 0-3 | b")
    assert await DOORS[door](cluster, "train", f"neuron=4 {says}") == node


@ANY_DOOR
@pytest.mark.parametrize(
    ("says", "nodes"),
    [("", ["a"] * 3), ("placement=spread", ["a", "b", "c"]), ("web must-apart=web", ["a", "b", "c"])],
    ids=["pack", "spread", "anti-affinity"],
)
async def test_the_replicas_of_a_service_are_on_one_node_unless_something_keeps_them_apart(
    door: str, says: str, nodes: list[str]
) -> None:
    cluster = Cluster(StandInApiServer())
    cluster.nodes("a | b | c")
    assert [await DOORS[door](cluster, f"web-{number}", f"neuron=1 {says}") for number in range(3)] == nodes


@ANY_DOOR
async def test_a_small_pod_that_fits_is_placed_while_a_large_one_waits(door: str) -> None:
    """Nothing is kept for a pod that waits, whatever its priority and its age."""
    cluster = Cluster(StandInApiServer())
    cluster.nodes("a 0")
    assert await DOORS[door](cluster, "large", "neuron=16 priority=10") == ""
    assert await DOORS[door](cluster, "small", "neuron=1") == "a"


@pytest.mark.parametrize(
    ("nodes", "pod", "equals"),
    [
        ("a | b", "neuron=8", {"a": 10, "b": 9}),
        ("a disk=hdd | b disk=ssd", "neuron=8 prefers=disk:ssd", {"a": 10, "b": 10}),
        ("a other:web | b", "neuron=8 apart=web", {"a": 10, "b": 10}),
        ("a other:web | b", "neuron=8 web evenly=web", {"a": 10, "b": 10}),
        ("a soft=team | b", "neuron=8", {"a": 10, "b": 10}),
    ],
    ids=["no preference", "node affinity", "anti-affinity", "spread", "soft taint"],
)
async def test_among_equals_kube_scheduler_s_own_scorers_decide_for_a_pod_that_prefers_some(
    nodes: str, pod: str, equals: dict[str, int]
) -> None:
    cluster = Cluster(StandInApiServer(), FilterMode.ALL)
    cluster.nodes(nodes)
    cluster.wanted("train", pod, gated=False)
    assert cluster.scores("train") == equals


PREEMPTED = """
    all of a node: a low:0-15 => neuron=16 priority=10 => a-0
    enough are free and not linked: a low:0 low:4 low:8 low:12 => neuron=4 priority=10 => a-0
    they are held under another name: a neurondevice:0-15 => neuron=16 priority=10 => a-0
    nobody of the same priority: a low:0-15 => neuron=16 =>
    a pod that fits needs nobody's end: a low:0-11 => neuron=4 priority=10 =>
"""


@pytest.mark.parametrize("gated", [True, False], ids=["gates", "extender"])
@pytest.mark.parametrize(("nodes", "pod", "victims"), rows(PREEMPTED))
async def test_pods_of_lower_priority_are_evicted_for_gated_pods_and_left_to_kube_scheduler_for_others(
    *, gated: bool, nodes: str, pod: str, victims: str
) -> None:
    cluster = Cluster(StandInApiServer(), holder="one")
    cluster.nodes(nodes)
    cluster.wanted("urgent", pod, gated=gated)
    await cluster.place_all()
    planner = Planner(cluster.context, cluster.room, rules=RULES, after_seconds=60.0)
    for _ in range(3):
        await cluster.look(after=60.0)
        await planner.look()
    ended = [one["metadata"] for one in cluster.server.objects(PODS) if "deletionTimestamp" in one["metadata"]]
    assert [one["name"] for one in ended] == (victims.split() if gated else [])
    for one in ended:
        cluster.server.delete_pod("default", one["name"], grace_seconds=0)
    await cluster.place_all()
    assert bool(cluster.place("urgent")) is (gated and "priority" in pod)


@pytest.mark.parametrize(("nodes", "pod", "node"), [*rows(PACKING), *rows(HARD), *rows(SPREAD)[:2]])
async def test_a_filter_that_names_every_node_that_fits_scores_them_in_the_same_order(
    nodes: str, pod: str, node: str
) -> None:
    """What a pod prefers is for kube-scheduler's own scorers then."""
    cluster = Cluster(StandInApiServer(), FilterMode.ALL)
    cluster.nodes(nodes)
    assert await DOORS["extender"](cluster, "train", pod) == node


@ANY_DOOR
async def test_a_group_is_placed_as_a_whole_by_its_gates_and_pod_by_pod_where_a_scheduler_asks(door: str) -> None:
    cluster = Cluster(StandInApiServer())
    cluster.nodes("a")
    pods = [f"neuron=16 group=job:2 priority={number}" for number in range(2)]
    first, second = [await DOORS[door](cluster, f"w-{number}", pod) for number, pod in enumerate(pods)]
    assert (first, second) == ("a" if door == "extender" else "", "")
    cluster.nodes("b")
    if door == "extender":
        second = await cluster.attempt("w-1")
    else:
        await cluster.place_all()
        first, second = cluster.place("w-0"), cluster.place("w-1")
    assert {first, second} == {"a", "b"}


@pytest.mark.parametrize(("prefers", "nodes"), [("", {"a", "b"}), ("prefers=disk:ssd", {"c", "d"})])
async def test_of_a_group_what_its_pods_prefer_of_nodes_comes_before_the_network(prefers: str, nodes: set[str]) -> None:
    cluster = Cluster(StandInApiServer())
    cluster.nodes("a leaf=1 | b leaf=1 | c leaf=2 disk=ssd | d leaf=3 disk=ssd | e leaf=4 soft=t")
    for number in range(2):
        cluster.wanted(f"w-{number}", f"neuron=16 group=job:2 {prefers}", gated=True)
    planned = {pod.node for pod in (await plan(cluster.state, PlanOptions())).waiting}
    await cluster.place_all()
    assert planned == {cluster.place(f"w-{number}") for number in range(2)} == nodes
