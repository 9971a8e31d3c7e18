"""The device manager of the simulated kubelet. Sections are those of the project's facts about the kubelet (1.36.2)."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

import pytest

from neuron_plugin.allocation import ContainerKind
from neuron_plugin.simulation.kubelet_device_manager import (
    AllocationError,
    DeviceManager,
    ListedDevice,
    PluginCallError,
    Selection,
)
from tests.kubelet.fakes import CORE, seeded

A, B, C = "uid-a", "uid-b", "uid-c"
FOUR = ("d0", "d1", "d2", "d3")


class Answering:
    """Plugins that prefer ``ids`` and keep what they are asked; ``meanwhile`` happens under an Allocate."""

    def __init__(self, ids: Collection[str] = (), meanwhile: Callable[[], Awaitable[None]] | None = None) -> None:
        self.asked: list[Selection] = []
        self.given: set[str] = set()
        self._ids = ids
        self._meanwhile = meanwhile

    async def preferred(self, selection: Selection) -> Collection[str]:
        self.asked.append(selection)
        return self._ids

    async def allocate(self, resource: str, ids: Sequence[str]) -> bytes:
        assert resource == CORE
        self.given = set(ids)
        if self._meanwhile:
            await self._meanwhile()
        return b"answer"


async def fail() -> None:
    raise PluginCallError


def manager_of(seed: int = 0) -> DeviceManager:
    manager = DeviceManager(seeded(seed))
    manager.update_devices(CORE, map(ListedDevice, FOUR))
    return manager


async def allocate(manager: DeviceManager, uid: str, count: int, plugins: Answering | None = None) -> set[str]:
    """One container, as the kubelet allocates it for a pod beside those that there are."""
    plugins = plugins or Answering()
    active = {uid, *(entry.pod_uid for entry in manager.entries())}
    await manager.allocate(uid, "c", {CORE: count}, active, plugins)
    return plugins.given


def hold(manager: DeviceManager, uid: str, *ids: str, container: str = "c") -> None:
    """Have these ids recorded."""
    manager.record(uid, container, CORE, ids, b"answer")
    manager.restore()


async def available(manager: DeviceManager) -> set[str]:
    """What the kubelet offers to the next pod."""
    plugins = Answering(meanwhile=fail)
    with pytest.raises(PluginCallError):
        await allocate(manager, "uid-other", 1, plugins)
    (asked,) = plugins.asked
    return set(asked.available)


def in_words(plugins: Answering) -> list[tuple[set[str], set[str]]]:
    """What was available, and what had to be included."""
    return [(set(asked.available), set(asked.must_include)) for asked in plugins.asked]


# Section 4.2: which devices


@pytest.mark.parametrize(
    ("taken", "preferred", "given"),
    [((), ("d3", "d1"), {"d1", "d3"}), (("d0",), ("d0", "ghost", "d2", "d3"), {"d2", "d3"})],
)
async def test_a_preference_is_followed_as_far_as_it_is_available(
    taken: tuple[str, ...], preferred: tuple[str, ...], given: set[str]
) -> None:
    manager, plugins = manager_of(), Answering(preferred)
    hold(manager, B, *taken)
    assert await allocate(manager, A, 2, plugins) == given
    assert (in_words(plugins), plugins.asked[0].size) == ([(set(FOUR).difference(taken), set())], 2)


async def test_a_wrong_size_of_the_preference_is_cut_or_filled_up_at_random() -> None:
    cut = {frozenset(await allocate(manager_of(seed=seed), A, 2, Answering(FOUR))) for seed in range(12)}
    filled = {frozenset(await allocate(manager_of(seed=seed), A, 2, Answering(["d2"]))) for seed in range(12)}
    assert len(cut) > 2
    assert len(filled) > 1
    assert all("d2" in ids for ids in filled)


@pytest.mark.parametrize(("count", "asked"), [(1, []), (3, [(set(FOUR), {"d1", "d2"})])])
async def test_an_init_containers_devices_are_taken_first_and_without_a_preference_if_they_suffice(
    count: int, asked: list[tuple[set[str], set[str]]]
) -> None:
    manager, plugins, left = manager_of(), Answering(), {"d1", "d2"}
    hold(manager, A, *left, container="i")
    manager.offer_for_reuse(A, "i", ContainerKind.INIT)
    given = await allocate(manager, A, count, plugins)
    assert in_words(plugins) == asked
    assert given < left or left < given


@pytest.mark.parametrize(("count", "asked"), [(1, [({"d2", "d3"}, set())]), (2, []), (3, [(set(FOUR), {"d2", "d3"})])])
async def test_numa_affinity_offers_the_aligned_devices_alone_where_they_are_more_than_enough(
    count: int, asked: list[tuple[set[str], set[str]]]
) -> None:
    manager, plugins = DeviceManager(seeded(0), numa_affinity=frozenset({1})), Answering()
    manager.update_devices(CORE, [ListedDevice(f"d{number}", numa_nodes=(number // 2,)) for number in range(4)])
    given = await allocate(manager, A, count, plugins)
    assert in_words(plugins) == asked
    assert given & {"d2", "d3"}


def lose_one_of_two(manager: DeviceManager) -> None:
    hold(manager, A, "d0", "d1")
    manager.update_devices(CORE, [ListedDevice("d0", "Unhealthy"), ListedDevice("d1")])


@pytest.mark.parametrize(
    ("prepare", "text"),
    [
        (lambda manager: manager.mark_unhealthy(CORE), "no healthy devices present; cannot allocate unhealthy devices"),
        (lambda manager: hold(manager, B, "d0", "d1", "d2"), r"Requested: 2, Available: 1"),
        (lambda manager: hold(manager, A, "d0"), f'changed request for resource "{CORE}" from 1 to 2'),
        (lose_one_of_two, "previously allocated devices are no longer healthy"),
    ],
)
async def test_the_texts_of_a_rejection_are_the_kubelets(prepare: Callable[[DeviceManager], None], text: str) -> None:
    manager = manager_of()
    prepare(manager)
    with pytest.raises(AllocationError, match=text):
        await allocate(manager, A, 2)


async def test_a_resource_whose_plugin_is_away_for_long_is_unknown_or_cannot_be_allocated() -> None:
    manager = manager_of()
    manager.remove_resource(CORE)
    assert await allocate(manager, A, 2) == set(), "the container runs without"
    hold(manager, B, "d0")
    with pytest.raises(AllocationError, match="cannot allocate unregistered device"):
        await allocate(manager, A, 2)


# Sections 4.4 and 6.4: reservations


@pytest.mark.parametrize("recorded", [True, False])
async def test_what_is_reserved_leaks_until_another_pod_is_forgotten_even_under_its_allocate(*, recorded: bool) -> None:
    """kubernetes/kubernetes#137534: a device is offered though it is recorded, until its pod is forgotten, too."""
    manager = manager_of()
    hold(manager, B, "d0")

    async def meanwhile() -> None:
        with pytest.raises(AllocationError, match="Available: 1"):
            await allocate(manager, C, 2)
        manager.forget_pods({A})  # PodResources List; pod B has ended
        if not recorded:
            raise PluginCallError

    try:
        await allocate(manager, A, 2, Answering(["d1", "d2"], meanwhile))
    except PluginCallError:
        assert not recorded
    else:
        await allocate(manager, C, 1, Answering(["d3"]))  # repairs nothing
    assert {each.pod_uid for each in manager.entries()} == ({A, C} if recorded else set())
    assert await available(manager) == set(FOUR) - ({"d3"} if recorded else set())


# Sections 7 and 14: memory


async def test_entries_of_ended_pods_stay_until_the_memory_is_cleaned_with_all_sources_ready() -> None:
    manager = manager_of()
    hold(manager, A, "d0", "d1")
    manager.sources_ready = False
    manager.forget_pods(())
    assert await available(manager) == {"d2", "d3"}
    manager.sources_ready = True
    manager.forget_pods(())
    assert await available(manager) == set(FOUR)


# Sections 7 and 14: the checkpoint


def test_ids_lie_under_each_numa_node_of_their_device() -> None:
    manager = DeviceManager(seeded(0))
    manager.update_devices(
        CORE, [ListedDevice("d0", numa_nodes=(0,)), ListedDevice("d1", numa_nodes=(0, 1)), ListedDevice("d2")]
    )
    hold(manager, A, "d0", "d1", "d2")
    (entry,) = json.loads(manager.checkpoint_bytes())["Data"]["PodDeviceEntries"]
    by_node = {node: sorted(ids) for node, ids in entry["DeviceIDs"].items()}
    assert by_node == {"0": ["d0", "d1"], "1": ["d1"], "-1": ["d2"]}
    again = DeviceManager(seeded(1))
    assert again.load(manager.checkpoint_bytes())
    assert again.entries()[0].ids == manager.entries()[0].ids == {"d0", "d1", "d2"}


async def test_a_loaded_memory_holds_its_devices_and_knows_resources_without_devices() -> None:
    manager = manager_of()
    hold(manager, A, "d0", "d1")
    again = DeviceManager(seeded(1))
    assert again.load(manager.checkpoint_bytes())
    assert again.entries() == manager.entries()
    assert again.resources() == [CORE]
    assert again.healthy(CORE) == frozenset()
    with pytest.raises(AllocationError, match="no healthy devices present"):
        await allocate(again, B, 1)
    again.update_devices(CORE, map(ListedDevice, FOUR))
    assert await available(again) == {"d2", "d3"}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda _: None,
        lambda text: text[:-10],
        lambda text: text.replace(b"d0", b"d7"),
        lambda text: text.replace(b"PodDeviceEntries", b"Entries"),
        lambda _: b"\xff\x00",
    ],
    ids=["lost", "cut off", "changed", "renamed field", "not text"],
)
def test_a_lost_corrupt_or_unknown_checkpoint_is_an_empty_memory(spoil: Any) -> None:
    manager = manager_of()
    hold(manager, A, *FOUR)
    again = manager_of(seed=1)
    assert not again.load(spoil(manager.checkpoint_bytes()))
    assert again.entries() == ()
    assert again.resources() == []
