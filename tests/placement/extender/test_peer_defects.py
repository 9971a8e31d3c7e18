"""Defects of Intel's GPU Aware Scheduling (G) and of nvidia-gpu-scheduler (V) that no other test here is about."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_plugin.placement.extender.binding import Ending
from neuron_plugin.simulation.api_server_kinds import AnyJson
from tests.support.bench import Bench
from tests.support.manifests import container, pod_manifest
from tests.support.world import CORE, DEVICE, World

INF1 = "inf1.6xlarge"


async def test_g06_a_pod_whose_init_container_alone_asks_is_bound_with_its_devices(bench: Bench) -> None:
    init = [container("load", DEVICE, 4)]
    pod = bench.server.create_pod(
        pod_manifest("init-only", containers=[container("main", CORE, 0)], init_containers=init)
    )
    bench.world.show(pod)
    assert (await bench.bind(pod)).ending is Ending.BOUND
    bound = bench.stored(pod)
    assert bound["spec"]["nodeName"] == "node"
    assert bound["metadata"]["annotations"]["NEURON_DEVS"] == "0,1,2,3"
    assert bench.used() == 4


async def test_g06_a_pod_that_asks_for_0_is_really_bound(bench: Bench) -> None:
    main = {"name": "main", "resources": {"limits": {DEVICE.value: "0"}}}
    pod = bench.server.create_pod(pod_manifest("zero", containers=[main]))
    bench.world.show(pod)
    assert (await bench.bind(pod)).ending is Ending.BOUND
    assert bench.calls == ["bind"]
    assert bench.stored(pod)["spec"]["nodeName"] == "node"
    assert bench.used() == 0


@pytest.mark.parametrize("text", ["1;2", "9" * 5000])
async def test_g10_an_annotation_that_cannot_be_followed_ends_the_bind_and_nothing_is_given(
    bench: Bench, text: str
) -> None:
    pod = bench.server.create_pod(pod_manifest("typo", DEVICE, 1, annotations={"neuron-plugin.io/allow-devices": text}))
    bench.world.show(pod)
    outcome = await bench.bind(pod)
    assert outcome.ending is Ending.NO_SET
    assert outcome.error == "An annotation that constrains the pod's devices cannot be read"
    assert bench.calls == []
    assert bench.used() == 0


@settings(max_examples=50)
@given(st.lists(st.integers(1, 16), min_size=1, max_size=4), st.sampled_from(["", "c0,c1"]))
def test_g14_a_trial_leaves_nothing_behind_whatever_its_end(counts: list[int], same_device: str) -> None:
    world = World()
    world.node("node", INF1)
    world.held("holder", "node", CORE, "0,1,2")
    annotations = {"neuron-plugin.io/same-device": same_device} if same_device and len(counts) > 1 else {}
    containers = [container(f"c{number}", CORE, each) for number, each in enumerate(counts)]
    trial = pod_manifest("trial", containers=containers, annotations=annotations)
    before = world.state.nodes["node"].capacity
    first = world.filter(trial)
    again = world.filter(trial)
    assert first == again
    assert world.state.nodes["node"].capacity is before
    assert world.fits(CORE, 12, "node")


def test_v08_pods_whose_namespace_and_name_join_to_one_text_are_two_pods(world: World) -> None:
    world.node("node", INF1)
    pods = [named("a-b", "c", "0"), named("a", "b-c", "1")]
    for pod in pods:
        world.show(pod)
    assert world.state.nodes["node"].used_mask == 0xFF
    world.gone(pods[0])
    assert world.state.nodes["node"].used_mask == 0xF0
    assert [str(pod.reference) for pod in world.state.pods.values()] == ["a/b-c"]


def named(namespace: str, name: str, device: str) -> AnyJson:
    found = pod_manifest(name, DEVICE, 1, node="node", annotations={"NEURON_DEVS": device})
    found["metadata"]["namespace"] = namespace
    return found
