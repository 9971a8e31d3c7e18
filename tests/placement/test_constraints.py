"""Constraints and amounts of pods through the extender's HTTP interface, as kube-scheduler uses it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_plugin.allocation import Capacity, Rejection
from neuron_plugin.allocation.cost import cost
from neuron_plugin.allocation.narrowing import device_facts
from neuron_plugin.allocation.node import capacity_of
from neuron_plugin.allocation.placement import placement_mask
from neuron_plugin.monitor.explain import explain, explain_text, find_pod, question
from neuron_plugin.placement.extender.preempt import Victims, preempt
from neuron_plugin.planning import choice as module
from neuron_plugin.planning.choice import verdict
from neuron_plugin.simulation.api_server_kinds import AnyJson
from neuron_plugin.topology import CoreMask
from tests.support.api_server import StandInApiServer
from tests.support.manifests import container, pod_manifest, shipped_geometry
from tests.support.running import Extender, add_node, add_pod, until, written
from tests.support.scheduler import Placed, StandInScheduler
from tests.support.world import CORE, DEVICE, TYPES, World, record_of, request_of

TRN1, INF1, INF1_ONE, INF2 = "trn1.32xlarge", "inf1.6xlarge", "inf1.xlarge", "inf2.48xlarge"
PREFIX = "neuron-plugin.io/"


def with_memory(name: str, cores: int, mib: int | str) -> AnyJson:
    found = container(name, CORE, cores)
    for quantities in found["resources"].values():
        quantities[f"{PREFIX}memory"] = str(mib)
    return found


def limited(pod_name: str, amount: int = 1, resource: Any = DEVICE, **constraints: str) -> AnyJson:
    annotations = {PREFIX + key.replace("_", "-"): text for key, text in constraints.items()}
    return pod_manifest(pod_name, resource, amount, annotations=annotations)


class Cluster:
    """The extender with its API server, asked as kube-scheduler asks it."""

    def __init__(self, server: StandInApiServer, extender: Extender, scheduler: StandInScheduler) -> None:
        self.server = server
        self.extender = extender
        self.scheduler = scheduler
        self.nodes: list[str] = []

    async def node(self, name: str, instance_type: str) -> None:
        await add_node(self.server, self.extender, name, instance_type)
        self.nodes.append(name)

    async def schedule(self, manifest: AnyJson) -> Placed:
        """One attempt of kube-scheduler for a new pod; gives its end."""
        created = await add_pod(self.server, self.extender, manifest)
        placed = await self.scheduler.schedule(created, self.nodes)
        if placed.node:
            await until(lambda: self.extender.daemon.state.pods[created["metadata"]["uid"]].node)
        return placed

    def ids(self, name: str) -> str:
        annotations = written(self.server, name)
        return str(annotations.get("NEURON_DEVS") or annotations["NEURON_CORES"])


@pytest.fixture
def cluster(server: StandInApiServer, extender: Extender, scheduler: StandInScheduler) -> Cluster:
    return Cluster(server, extender, scheduler)


async def test_the_gpu_seeds_example_the_third_pod_of_5_gib_is_not_placed_on_two_devices_of_8(
    cluster: Cluster,
) -> None:
    for name in ("first", "second"):
        await cluster.node(name, INF1_ONE)  # one device of 8 GiB each
    pods = [pod_manifest(f"replica-{number}", containers=[with_memory("main", 1, 5120)]) for number in range(3)]

    placed = [await cluster.schedule(pod) for pod in pods]

    assert {each.node for each in placed[:2]} == {"first", "second"}
    assert placed[2].message == (
        "0/2 nodes are available: 2 No free linked Neuron devices with 5120 neuron-plugin.io/memory left on each."
    )
    smaller = await cluster.schedule(pod_manifest("smaller", containers=[with_memory("main", 1, 3072)]))
    assert smaller.node in {"first", "second"}


async def test_on_one_node_of_four_devices_each_pod_of_5_gib_has_a_device_of_its_own(cluster: Cluster) -> None:
    await cluster.node("node", INF1)
    placed = [
        await cluster.schedule(pod_manifest(f"replica-{number}", containers=[with_memory("main", 1, 5120)]))
        for number in range(5)
    ]

    assert [each.node for each in placed] == ["node"] * 4 + [""]
    assert {int(cluster.ids(f"replica-{number}")) // 4 for number in range(4)} == {0, 1, 2, 3}
    assert (await cluster.schedule(limited("plain", resource=CORE))).node == "node"


async def test_a_pod_that_ends_gives_its_amount_back(cluster: Cluster) -> None:
    await cluster.node("node", INF1_ONE)
    first, second = (pod_manifest(name, containers=[with_memory("main", 1, 5120)]) for name in ("first", "second"))
    assert (await cluster.schedule(first)).node == "node"
    assert not (await cluster.schedule(second)).node
    cluster.server.delete_pod("default", "first", grace_seconds=0)
    await until(lambda: len(cluster.extender.daemon.state.pods) == 1)
    assert (await cluster.scheduler.filter(second, ["node"])).nodes == ["node"]


@pytest.mark.parametrize(
    ("containers", "message"),
    [
        (
            [with_memory("main", 1, 8193)],
            (
                "0/1 nodes are available: 1 The node's Neuron devices have 8192 neuron-plugin.io/memory each "
                "and 8193 of each were requested."
            ),
        ),
        (
            [with_memory("main", 5, 5121)],
            "0/1 nodes are available: 1 5121 neuron-plugin.io/memory cannot be shared evenly by 2 Neuron devices.",
        ),
        (
            [with_memory("main", 1, 2**63)],
            (
                "container main asks for neuron-plugin.io/memory: '9223372036854775808' is not a whole number "
                "from 0 to 2^63-1"
            ),
        ),
        (
            [with_memory("main", 0, 64)],
            (
                "container main asks for neuron-plugin.io/memory and for no Neuron device or core: "
                "ask for aws.amazon.com/neuroncore beside it"
            ),
        ),
        (
            [with_memory("main", 1, 1), with_memory("side", 0, 1)],
            (
                "container side asks for neuron-plugin.io/memory and for no Neuron device or core: "
                "ask for aws.amazon.com/neuroncore beside it"
            ),
        ),
    ],
)
async def test_an_amount_that_cannot_be_met_has_a_text_of_its_own(
    cluster: Cluster, containers: list[AnyJson], message: str
) -> None:
    await cluster.node("node", INF1)
    placed = await cluster.scheduler.schedule(pod_manifest("new", containers=containers), ["node"])
    assert placed.message == message


async def test_a_pod_that_asks_for_memory_alone_is_not_bound_either(cluster: Cluster) -> None:
    await cluster.node("node", INF1)
    pod = cluster.server.create_pod(pod_manifest("alone", containers=[with_memory("main", 0, 64)]))
    with pytest.raises(Exception, match=r"asks for neuron-plugin[.]io/memory and for no Neuron device or core"):
        await cluster.scheduler.bind(pod, "node")


async def test_zero_of_an_amount_is_no_amount(cluster: Cluster) -> None:
    await cluster.node("node", INF1)
    assert (await cluster.schedule(pod_manifest("new", containers=[with_memory("main", 1, 0)]))).node == "node"


async def test_a_pod_goes_to_the_product_or_family_that_it_names(cluster: Cluster) -> None:
    for name, instance_type in (("a-inf2", INF2), ("b-trn1", TRN1), ("c-inf1", INF1)):
        await cluster.node(name, instance_type)

    assert (await cluster.schedule(limited("by-family", device_name="TRN1"))).node == "b-trn1"
    assert (await cluster.schedule(limited("by-product", device_name="trainium2,Inferentia2"))).node == "a-inf2"
    refused = await cluster.schedule(limited("nowhere", device_name="trn3"))
    expected = "3 The node's Neuron devices are not of a product that the pod asks for"
    assert refused.message == f"0/3 nodes are available: {expected}."


async def test_an_unknown_product_is_an_error_that_lists_the_known_ones(cluster: Cluster) -> None:
    await cluster.node("node", TRN1)
    refused = await cluster.schedule(limited("typo", device_name="trainum1,trn1"))
    assert refused.message == (
        "annotation neuron-plugin.io/device-name has unknown names: trainum1; known are inf1, inf2, inferentia, "
        "inferentia2, trainium1, trainium2, trainium3, trn1, trn2, trn3"
    )


async def test_allowed_denied_and_preferred_devices_decide_within_a_node(cluster: Cluster) -> None:
    await cluster.node("node", TRN1)
    for name, manifest in (
        ("allowed", limited("allowed", allow_devices="7")),
        ("denied", limited("denied", deny_devices="0-6,8-14")),
        ("preferred", limited("preferred", prefer_devices="9,3")),
    ):
        assert (await cluster.schedule(manifest)).node == "node", name
    assert [cluster.ids(name) for name in ("allowed", "denied", "preferred")] == ["7", "15", "3"]
    again = await cluster.schedule(limited("again", allow_devices="7"))
    expected = "1 No free linked set of 1 Neuron devices among the devices that the pod allows"
    assert again.message == f"0/1 nodes are available: {expected}."


async def test_containers_that_share_a_device_are_bound_to_cores_of_one(cluster: Cluster) -> None:
    await cluster.node("node", INF1)
    for number in range(2):
        assert (await cluster.schedule(limited(f"torn-{number}", 3, CORE))).node == "node"
    manifest = pod_manifest(
        "pair",
        containers=[container("load", CORE, 1), container("log", CORE, 1), container("serve", CORE, 3)],
        annotations={f"{PREFIX}same-device": "load,serve"},
    )
    assert (await cluster.schedule(manifest)).node == "node"
    load, _, serve = cluster.ids("pair").split("|")
    assert {int(each) // 4 for each in (*load.split(","), *serve.split(","))} in ({2}, {3})


async def test_an_annotation_that_cannot_be_read_is_an_error_of_filter_and_of_bind(cluster: Cluster) -> None:
    await cluster.node("node", TRN1)
    refused = await cluster.schedule(limited("typo", allow_devices="1;2"))
    assert refused.message.startswith("annotation neuron-plugin.io/allow-devices is '1;2': '1;2' is no id")
    pod = cluster.server.create_pod(limited("typo-too", allow_devices="1;2"))
    with pytest.raises(Exception, match="An annotation that constrains the pod's devices cannot be read"):
        await cluster.scheduler.bind(pod, "node")


async def test_an_annotation_that_a_running_pod_gets_afterwards_frees_and_closes_nothing(world: World) -> None:
    world.node("node", TRN1)
    world.pod("holder", DEVICE, 4, node="node", annotations={"NEURON_DEVS": "0,1,2,3", f"{PREFIX}allow-devices": "?"})
    assert world.fits(DEVICE, 4, "node")
    assert not world.fits(DEVICE, 16, "node")


def test_without_amounts_nodes_in_one_state_are_one_capacity(world: World) -> None:
    world.node("one", INF1)
    world.node("other", INF1)
    assert world.state.nodes["one"].capacity is world.state.nodes["other"].capacity
    manifest = pod_manifest("m", containers=[with_memory("main", 1, 64)], node="one", annotations={"NEURON_CORES": "0"})
    world.show(manifest)
    world.held("p", "other", CORE, "0")
    one, other = world.state.nodes["one"].capacity, world.state.nodes["other"].capacity
    assert not isinstance(one, Rejection)
    assert not isinstance(other, Rejection)
    assert (one.free_mask, one.facts.amounts) == (other.free_mask, other.facts.amounts)
    assert (one.facts.used, other.facts.used) == ((("memory", (64, 0, 0, 0)),), ())
    world.gone(manifest)
    world.gone({"metadata": {"uid": next(iter(world.state.pods))}})
    assert world.state.nodes["one"].capacity is world.state.nodes["other"].capacity


def test_pods_with_ever_new_constraints_make_no_other_pods_verdicts_forgotten(world: World) -> None:
    world.node("node", TRN1)
    plain = world.state.choices.answers(request_of(record_of(pod_manifest("p", DEVICE, 4))))
    for number in range(2 * module.MOST_DEMANDS):
        request = request_of(record_of(limited("c", allow_devices=",".join(map(str, range(number % 63 + 1))))))
        world.state.choices.answers(request)
    assert world.state.choices.answers(request_of(record_of(pod_manifest("q", DEVICE, 4)))) is plain
    assert len(world.state.choices._plain) + len(world.state.choices._constrained) <= 2 * module.MOST_DEMANDS


def test_a_remembered_verdict_follows_the_amounts_on_its_node(world: World) -> None:
    world.node("node", INF1_ONE)
    asking = pod_manifest("new", containers=[with_memory("main", 1, 5120)])
    assert world.filter(asking).passed == ["node"]
    holder = pod_manifest(
        "h", containers=[with_memory("main", 1, 4000)], node="node", annotations={"NEURON_CORES": "3"}
    )
    world.show(holder)
    assert world.filter(asking).passed == []
    world.gone(holder)
    assert world.filter(asking).passed == ["node"]


@settings(max_examples=200)
@given(
    free=st.integers(0, 2**16 - 1),
    used=st.lists(st.integers(0, 8192), min_size=4, max_size=4),
    asked=st.tuples(st.integers(1, 9), st.integers(0, 8200)),
    limits=st.fixed_dictionaries(
        {},
        optional={
            "allow-devices": st.sampled_from(["0", "1-2", "3,0", "60"]),
            "prefer-devices": st.sampled_from(["2", "1,3"]),
            "balance": st.just("memory"),
            "device-name": st.sampled_from(["inf1", "trn1"]),
        },
    ),
)
def test_verdict_and_cost_are_those_of_the_set_that_a_bind_would_choose(
    free: int, used: list[int], asked: tuple[int, int], limits: dict[str, str]
) -> None:
    geometry = shipped_geometry(INF1)
    facts = replace(device_facts("", INF1, TYPES[INF1]), used=(("memory", tuple(used)),))
    capacity = capacity_of(geometry, geometry.all_mask, CoreMask(free), facts)
    annotations = {PREFIX + key: text for key, text in limits.items()}
    manifest = pod_manifest("new", containers=[with_memory("main", *asked)], annotations=annotations)
    request = request_of(record_of(manifest))
    placed = capacity.place(request)
    if isinstance(placed, Rejection):
        assert verdict(capacity, request) == placed
        assert placed.may_pass is fits_empty(capacity, manifest)
    else:
        assert verdict(capacity, request) == cost(geometry, free, placement_mask(placed))


def fits_empty(capacity: Capacity, manifest: AnyJson) -> bool:
    """Whether the pod would fit if no pod were there."""
    empty = capacity_of(
        capacity.geometry, capacity.healthy_mask, capacity.healthy_mask, replace(capacity.facts, used=())
    )
    return not isinstance(verdict(empty, request_of(record_of(manifest))), Rejection)


def test_scores_go_by_the_set_that_a_preference_chooses(world: World) -> None:
    for name in ("used", "empty"):
        world.node(name, TRN1)
    world.held("holder", "used", DEVICE, "0")
    request = request_of(record_of(limited("new", prefer_devices="15")))
    on_used, on_empty = world.state.choices.answers(request).values(["used", "empty"])
    plain = world.state.choices.answers(request_of(record_of(pod_manifest("plain", DEVICE, 1)))).values(["used"])
    assert on_used is not None
    assert on_empty is not None
    assert plain[0] is not None
    assert plain[0] < on_used < on_empty


def test_preemption_evicts_for_an_amount_and_for_allowed_devices(world: World) -> None:
    world.node("node", INF1)
    held = {}
    for device, mib in ((0, 6000), (1, 100), (2, 7000), (3, 8000)):
        manifest = pod_manifest(
            f"holder-{device}",
            containers=[with_memory("main", 1, mib)],
            node="node",
            annotations={"NEURON_CORES": str(device * 4)},
        )
        world.show(manifest)
        held[manifest["metadata"]["uid"]] = device
    offered = {"node": Victims(tuple(held), 0)}

    def evicted(manifest: AnyJson) -> list[int]:
        chosen = preempt(world.state, request_of(record_of(manifest)), offered)
        return [held[uid] for uid in chosen["node"].uids] if chosen else []

    whole = pod_manifest("whole", containers=[with_memory("main", 1, 8192)])
    assert len(evicted(whole)) == 1
    whole["metadata"]["annotations"] = {f"{PREFIX}allow-devices": "2"}
    assert evicted(whole) == [2]
    assert evicted(limited("product", 4, CORE, device_name="trn1")) == []


def test_a_pod_that_asks_for_a_product_evicts_no_more_than_it_needs(world: World) -> None:
    offered = {}
    for number in range(10):
        world.node(f"node-{number}", "trn1.32xlarge")
        pods = [world.held(f"p{number}-{half}", f"node-{number}", DEVICE, ids) for half, ids in enumerate(HALVES)]
        offered[f"node-{number}"] = Victims(tuple(pod["metadata"]["uid"] for pod in pods), 0)
    manifest = limited("product", 8, DEVICE, device_name="trainium1")

    chosen = preempt(world.state, request_of(record_of(manifest)), offered)

    assert {len(victims.uids) for victims in chosen.values()} == {2}


HALVES = ("0,1,2,3", "4,5,6,7", "8", "9", "10,11", "12,13,14,15")


def test_pods_that_leave_too_little_of_an_amount_go_though_their_cores_are_not_in_the_way(world: World) -> None:
    world.node("node", INF1)
    uids = []
    for device in range(4):
        for place, mib in ((0, 3000), (1, 3000)):
            manifest = pod_manifest(
                f"holder-{device}-{place}",
                containers=[with_memory("main", 1, mib)],
                node="node",
                annotations={"NEURON_CORES": str(device * 4 + place)},
            )
            world.show(manifest)
            uids.append(manifest["metadata"]["uid"])
    offered = {"node": Victims(tuple(uids), 0)}
    asking = pod_manifest("new", containers=[with_memory("main", 2, 5000)])

    chosen = preempt(world.state, request_of(record_of(asking)), offered)

    assert len(chosen["node"].uids) == 1


def test_explain_names_what_is_left_on_each_device_and_the_product(world: World) -> None:
    world.node("node", INF1)
    for device in (0, 2):
        containers, cores = [with_memory("main", 1, 5120)], {"NEURON_CORES": str(device * 4)}
        world.show(pod_manifest(f"holder-{device}", containers=containers, node="node", annotations=cores))
    manifest = pod_manifest("new", containers=[with_memory("main", 1, 5120)])
    world.show(manifest)

    lines = explained(world, "new")

    asked = "default/new asks for main: 1 aws.amazon.com/neuroncore with 5120 neuron-plugin.io/memory"
    assert lines[0] == f"{asked} (schedulerName: default-scheduler)"
    assert lines[2] == "  of 8192 neuron-plugin.io/memory are left: 3072 on devices 0,2, 8192 on devices 1,3"
    manifest["metadata"]["annotations"] = {f"{PREFIX}allow-devices": "2"}
    world.show(manifest)
    assert explained(world, "new")[1:] == [
        "node: No free linked Neuron devices with 5120 neuron-plugin.io/memory left on each",
        "  of 8192 neuron-plugin.io/memory are left: 3072 on devices 0,2, 8192 on devices 1,3",
        "  the pod's annotations leave out devices 0-1,3",
        "  core 8: held by default/holder-2",
    ]
    world.show(limited("other", device_name="trn1"))
    assert explained(world, "other")[1:] == [
        "node: The node's Neuron devices are not of a product that the pod asks for",
        "  its devices are inf1 or inferentia",
    ]
    pair = pod_manifest("pair", containers=[container("load", CORE, 3), container("serve", CORE, 2)])
    pair["metadata"]["annotations"] = {f"{PREFIX}same-device": "load,serve", f"{PREFIX}allow-devices": "0"}
    world.show(pair)
    assert explained(world, "pair")[1:] == [
        "node: The containers that share one Neuron device ask for more cores than one of the node has",
        "  the pod's annotations leave out devices 1-3",
        "  load: cores 0-2: held by default/holder-0",
        "  serve: cores 0-1: held by default/holder-0",
    ]
    world.show(limited("typo", allow_devices="x"))
    assert explained(world, "typo")[1].startswith("Annotation neuron-plugin.io/allow-devices is 'x'")


def explained(world: World, name: str) -> list[str]:
    pod = find_pod(world.state, "default", name)
    assert pod
    lines = explain_text(explain(question(world.state, pod))).splitlines()
    return [line for line in lines if not line.startswith("Not looked at: ")]
