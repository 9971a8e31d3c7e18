"""Which devices a simulated kubelet gives to which container, and what the container receives."""

from __future__ import annotations

from pathlib import Path

from neuron_plugin.simulation.kubelet_plugins import ResourceCapacity
from neuron_plugin.simulation.kubelet_pods import KubeletContainer
from tests.kubelet.fakes import CORE, DEVICE, eventually
from tests.simulation.kubelet_node import (
    INIT,
    SIDECAR,
    RawPlugin,
    fresh,
    ids_of,
    node,
    pod,
    register,
    rejection,
    serving,
    wants,
)
from tests.support.kubelet import KubeletOptions, StandInKubelet


async def test_a_preference_of_the_asked_size_is_allocated_exactly(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        plugin.preference = ["d3", "d1"]
        admitted = await kubelet.admit(pod("a", wants(2)))
    assert plugin.preferences == [({"d0", "d1", "d2", "d3"}, set(), 2)]
    assert set(plugin.allocations[0]) == ids_of(admitted.container("c")) == {"d1", "d3"}


async def test_a_preference_is_asked_for_even_without_a_choice(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        await kubelet.admit(pod("a", wants(4)))
    assert [size for _, _, size in plugin.preferences] == [4]


async def test_no_preference_is_asked_for_without_the_option(directory: Path) -> None:
    async with node(directory, RawPlugin(prefers=False)) as (kubelet, plugin):
        await kubelet.admit(pod("a", wants(2)))
    assert plugin.preferences == []
    assert len(plugin.allocations[0]) == 2


async def test_a_preference_too_long_is_cut_at_random(directory: Path) -> None:
    seen = set()
    for seed in range(12):
        async with node(fresh(directory, seed), seed=seed) as (kubelet, plugin):
            plugin.preference = ["d0", "d1", "d2", "d3"]
            seen.add(frozenset(ids_of((await kubelet.admit(pod("a", wants(2)))).container("c"))))
    assert len(seen) > 2


async def test_a_preference_too_short_is_filled_up_at_random(directory: Path) -> None:
    seen = set()
    for seed in range(8):
        async with node(fresh(directory, seed), seed=seed) as (kubelet, plugin):
            plugin.preference = ["d2"]
            got = ids_of((await kubelet.admit(pod("a", wants(2)))).container("c"))
            assert "d2" in got
            seen.add(frozenset(got))
    assert len(seen) > 1


async def test_unknown_and_unavailable_ids_of_a_preference_are_dropped(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        plugin.preference = ["d0"]
        await kubelet.admit(pod("a", wants(1)))
        plugin.preference = ["d0", "ghost", "d2"]
        assert ids_of((await kubelet.admit(pod("b", wants(1)))).container("c")) == {"d2"}


async def test_ids_come_in_random_order(directory: Path) -> None:
    orders = set()
    for seed in range(8):
        async with node(fresh(directory, seed), seed=seed) as (kubelet, plugin):
            await kubelet.admit(pod("a", wants(4)))
            orders.add(tuple(plugin.allocations[0]))
    assert len(orders) > 2


async def test_too_few_free_devices_reject_the_pod_with_both_numbers(directory: Path) -> None:
    async with node(directory) as (kubelet, _):
        await kubelet.admit(pod("a", wants(3)))
        text = await rejection(kubelet, pod("b", wants(2)))
    assert text == (
        "Pod was rejected: Allocate failed due to requested number of devices unavailable for "
        f"{CORE}. Requested: 2, Available: 1, which is unexpected"
    )


async def test_a_resource_no_plugin_ever_registered_is_not_looked_at(directory: Path) -> None:
    async with StandInKubelet(directory) as kubelet:
        admitted = await kubelet.admit(pod("a", wants(2)))
    assert admitted.container("c").ids == {}
    assert admitted.container("c").waiting is None


async def test_an_error_of_the_preference_rejects_the_pod_and_leaks_nothing(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        plugin.preference_error = "thinking failed"
        text = await rejection(kubelet, pod("a", wants(2)))
        plugin.preference_error = None
        await kubelet.admit(pod("b", wants(4)))
    assert text == (
        "Pod was rejected: Allocate failed due to device plugin GetPreferredAllocation rpc failed with err: "
        "rpc error: code = Internal desc = thinking failed, which is unexpected"
    )


async def test_an_error_of_allocate_rejects_the_pod_and_restores_the_devices(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        plugin.allocate_error = "held by ns/b"
        text = await rejection(kubelet, pod("a", wants(4)))
        plugin.allocate_error = None
        await kubelet.admit(pod("b", wants(4)))
    assert text == (
        "Pod was rejected: Allocate failed due to rpc error: code = FailedPrecondition desc = held by ns/b, "
        "which is unexpected"
    )


async def test_an_answer_without_containers_leaks_the_devices_until_another_pod_is_removed(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        await kubelet.admit(pod("other", wants(1)))
        plugin.answers = 0
        assert "no containers return in allocation response" in await rejection(kubelet, pod("a", wants(2)))
        plugin.answers = 1
        assert "Requested: 3, Available: 1" in await rejection(kubelet, pod("b", wants(3)))
        kubelet.finish("uid-other")
        await kubelet.admit(pod("c", wants(4)))


async def test_numa_affinity_prefers_aligned_devices_and_asks_only_where_there_is_a_choice(directory: Path) -> None:
    plugin = RawPlugin()
    for index, device in enumerate(plugin.devices):
        device.topology.nodes.add(ID=index // 2)
    async with node(directory, plugin, options=KubeletOptions(numa_affinity=frozenset({1}))) as (kubelet, _):
        aligned = await kubelet.admit(pod("a", wants(1)))
        assert ids_of(aligned.container("c")) < {"d2", "d3"}
        assert plugin.preferences == [({"d2", "d3"}, set(), 1)]
        kubelet.finish("uid-a")
        both = await kubelet.admit(pod("b", wants(2)))
        assert ids_of(both.container("c")) == {"d2", "d3"}
        kubelet.finish("uid-b")
        three = await kubelet.admit(pod("c", wants(3)))
        assert ids_of(three.container("c")) > {"d2", "d3"}
    assert plugin.preferences[1:] == [({"d0", "d1", "d2", "d3"}, {"d2", "d3"}, 3)]


async def test_numa_affinity_fills_a_preference_too_short_from_the_aligned_devices(directory: Path) -> None:
    plugin = RawPlugin()
    plugin.preference = []
    for index, device in enumerate(plugin.devices):
        device.topology.nodes.add(ID=index // 2)
    async with node(directory, plugin, options=KubeletOptions(numa_affinity=frozenset({1}))) as (kubelet, _):
        assert ids_of((await kubelet.admit(pod("a", wants(1)))).container("c")) < {"d2", "d3"}


# Init containers


async def test_an_app_container_smaller_than_the_init_container_gets_a_part_without_being_asked(
    directory: Path,
) -> None:
    parts = set()
    for seed in range(8):
        async with node(fresh(directory, seed), seed=seed) as (kubelet, plugin):
            plugin.preference = ["d1", "d2"]
            admitted = await kubelet.admit(pod("a", wants(2, "i", INIT), wants(1)))
            assert ids_of(admitted.container("c")) < {"d1", "d2"}
            assert len(plugin.preferences) == 1
            assert len(plugin.allocations) == 2
            parts |= ids_of(admitted.container("c"))
    assert parts == {"d1", "d2"}


async def test_an_app_container_larger_than_the_init_container_must_include_its_devices(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        plugin.preference = ["d2"]
        candidate = pod("a", wants(1, "i", INIT), wants(3))
        plugin.preference = None
        await kubelet.admit(candidate)
    assert plugin.preferences[1] == ({"d0", "d1", "d2", "d3"}, {"d0"}, 3)


async def test_p74_init_and_sidecar_share_and_the_app_has_another(directory: Path) -> None:
    async with node(directory) as (kubelet, _):
        admitted = await kubelet.admit(pod("a", wants(1, "i", INIT), wants(1, "s", SIDECAR), wants(1)))
    init, sidecar, app = (ids_of(each) for each in admitted.containers)
    assert init == sidecar
    assert app.isdisjoint(sidecar)


async def test_the_same_id_is_allocated_to_several_containers_of_one_pod(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        await kubelet.admit(pod("a", wants(2, "i", INIT), wants(1, "s", SIDECAR), wants(1, "x"), wants(2, "y")))
    taken = [set(ids) for ids in plugin.allocations]
    assert len(taken) == 4
    assert taken[1] < taken[0]
    assert set.union(*taken[1:]) == {"d0", "d1", "d2", "d3"}


# What a container receives


async def test_a_container_receives_all_the_plugin_answered(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        plugin.preference = ["d0", "d1"]
        received = (await kubelet.admit(pod("a", wants(2)))).container("c")
    assert received.envs == {"IDS": "d0,d1"}
    assert {node.host_path for node in received.devices} == {"/dev/d0", "/dev/d1"}
    assert {node.permissions for node in received.devices} == {"rw"}
    assert set(received.cdi_devices) == {"example.com/dummy=d0", "example.com/dummy=d1"}
    assert [(mount.host_path, mount.container_path, mount.read_only) for mount in received.mounts] == [
        ("/h", "/c", True)
    ]
    assert received.annotations == {"by": "plugin"}


async def test_two_resources_that_set_one_variable_flip_between_starts(directory: Path) -> None:
    other = RawPlugin(["e0"])
    other.envs = {"WHO": "other"}
    async with node(directory) as (kubelet, plugin), serving(other, directory / "other.sock"):
        plugin.envs = {"WHO": "plugin"}
        await register(directory, "other.sock", DEVICE)
        await kubelet.wait_for_capacity(DEVICE, 1)
        await kubelet.admit(pod("a", KubeletContainer("c", {CORE: 1, DEVICE: 1})))
        values = {(await kubelet.start_container("uid-a", "c")).envs["WHO"] for _ in range(20)}
    assert values == {"plugin", "other"}


# Starts and restarts of containers


async def test_a_container_restart_has_the_same_devices_and_no_allocate(directory: Path) -> None:
    async with node(directory) as (kubelet, plugin):
        first = (await kubelet.admit(pod("a", wants(2)))).container("c")
        kubelet.stop_container("uid-a", "c")
        again = await kubelet.start_container("uid-a", "c")
        assert again == first
        other = await kubelet.admit(pod("b", wants(2)))
        assert ids_of(other.container("c")).isdisjoint(ids_of(first))
    assert len(plugin.allocations) == 2
    assert plugin.starts == []


async def test_pre_start_comes_before_every_start_if_asked_for(directory: Path) -> None:
    plugin = RawPlugin()
    plugin.options.pre_start_required = True
    async with node(directory, plugin) as (kubelet, _):
        await kubelet.admit(pod("a", wants(2)))
        await kubelet.start_container("uid-a", "c")
    assert [sorted(ids) for ids in plugin.starts] == [["d0", "d1"]] * 2


async def test_a_failed_pre_start_holds_the_container_and_fails_no_pod(directory: Path) -> None:
    plugin = RawPlugin()
    plugin.options.pre_start_required = True
    plugin.start_error = "reset under way"
    async with node(directory, plugin) as (kubelet, _):
        held = (await kubelet.admit(pod("a", wants(1)))).container("c")
        plugin.start_error = None
        started = await kubelet.start_container("uid-a", "c")
        assert kubelet.rejections == {}
    assert held.waiting == (
        "device plugin PreStartContainer rpc failed with err: rpc error: code = Unavailable desc = reset under way"
    )
    assert started.waiting is None


async def test_a_restart_with_the_plugin_away_works_only_without_pre_start(directory: Path) -> None:
    for required in (False, True):
        plugin = RawPlugin()
        plugin.options.pre_start_required = required
        async with node(directory, plugin) as (kubelet, _):
            await kubelet.admit(pod("a", wants(1)))
            plugin.end_stream()
            await kubelet.wait_for_capacity(CORE, 0)
            waiting = (await kubelet.start_container("uid-a", "c")).waiting
        assert ("has been stopped" in (waiting or "")) is required


async def test_after_the_grace_a_restart_fails_even_without_pre_start(directory: Path) -> None:
    async with node(directory, options=KubeletOptions(grace_seconds=0.02)) as (kubelet, plugin):
        await kubelet.admit(pod("a", wants(1)))
        plugin.end_stream()
        await eventually(lambda: kubelet.capacity(CORE) == ResourceCapacity(0, 0))
        held = await kubelet.start_container("uid-a", "c")
        assert "cannot allocate unregistered device" in await rejection(kubelet, pod("b", wants(1)))
    assert held.waiting == f"endpoint not found in cache for a registered resource: {CORE}"
