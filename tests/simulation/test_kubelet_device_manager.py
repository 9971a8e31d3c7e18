"""The device manager of the simulated kubelet. Sections are those of the project's facts about the kubelet (1.36.2)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from neuron_plugin.allocation import ContainerKind
from neuron_plugin.simulation.kubelet_device_manager import AllocationError, DeviceManager, ListedDevice
from tests.kubelet.fakes import CORE, seeded

A, B = "uid-a", "uid-b"
FOUR = ("d0", "d1", "d2", "d3")


def manager_of(*ids: str, seed: int = 0, numa_affinity: frozenset[int] | None = None) -> DeviceManager:
    manager = DeviceManager(seeded(seed), numa_affinity=numa_affinity)
    manager.update_devices(CORE, [ListedDevice(each) for each in ids or FOUR])
    return manager


def allocate(
    manager: DeviceManager,
    uid: str,
    count: int,
    preferred: Iterable[str] = (),
    *,
    container: str = "c",
    kind: ContainerKind = ContainerKind.APP,
    resource: str = CORE,
) -> set[str]:
    """One container, as the kubelet allocates it; an empty set if the plugin was not called."""
    selection = manager.devices_to_allocate(uid, container, resource, count)
    if selection is None:
        return set()
    ids = manager.complete(selection, list(preferred) if selection.asks else ())
    manager.record(uid, container, resource, ids, b"answer")
    manager.offer_for_reuse(uid, container, kind)
    return set(ids)


def available(manager: DeviceManager, uid: str = "uid-other") -> set[str]:
    """What the kubelet offers to the next pod."""
    selection = manager.devices_to_allocate(uid, "c", CORE, 1)
    assert selection is not None
    offered = set(selection.available)
    manager.restore()
    return offered


def data_of(checkpoint: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(checkpoint)["Data"]
    return found


# Section 4.2: which devices


@pytest.mark.parametrize(
    ("taken", "preferred", "given"),
    [
        ((), ("d3", "d1"), {"d1", "d3"}),
        (("d0",), ("d0", "ghost", "d2", "d3"), {"d2", "d3"}),
    ],
)
def test_a_preference_is_followed_as_far_as_it_is_available(
    taken: tuple[str, ...], preferred: tuple[str, ...], given: set[str]
) -> None:
    manager = manager_of()
    allocate(manager, B, len(taken), taken)
    selection = manager.devices_to_allocate(A, "c", CORE, 2)
    assert selection is not None
    assert (set(selection.available), selection.must_include, selection.size) == (set(FOUR).difference(taken), (), 2)
    manager.restore()
    assert allocate(manager, A, 2, preferred) == given


def test_a_wrong_size_of_the_preference_is_cut_or_filled_up_at_random() -> None:
    cut = {frozenset(allocate(manager_of(seed=seed), A, 2, FOUR)) for seed in range(12)}
    filled = {frozenset(allocate(manager_of(seed=seed), A, 2, ["d2"])) for seed in range(12)}
    assert len(cut) > 2
    assert len(filled) > 1
    assert all("d2" in ids for ids in filled)


@pytest.mark.parametrize(
    ("count", "asks", "available", "must_include"), [(1, False, set(), set()), (3, True, set(FOUR), {"d1", "d2"})]
)
def test_an_init_containers_devices_are_taken_first_and_without_a_preference_if_they_suffice(
    count: int, *, asks: bool, available: set[str], must_include: set[str]
) -> None:
    manager = manager_of()
    left = allocate(manager, A, 2, ["d1", "d2"], container="i", kind=ContainerKind.INIT)
    selection = manager.devices_to_allocate(A, "c", CORE, count)
    assert selection is not None
    assert (selection.asks, set(selection.available), set(selection.must_include)) == (asks, available, must_include)
    given = set(manager.complete(selection))
    assert given < left or left < given


@pytest.mark.parametrize(
    ("count", "asks", "available", "must_include"),
    [(1, True, {"d2", "d3"}, set()), (2, False, set(), set()), (3, True, set(FOUR), {"d2", "d3"})],
)
def test_numa_affinity_offers_the_aligned_devices_alone_where_they_are_more_than_enough(
    count: int, *, asks: bool, available: set[str], must_include: set[str]
) -> None:
    manager = DeviceManager(seeded(0), numa_affinity=frozenset({1}))
    manager.update_devices(CORE, [ListedDevice(f"d{number}", numa_nodes=(number // 2,)) for number in range(4)])
    selection = manager.devices_to_allocate(A, "c", CORE, count)
    assert selection is not None
    assert (selection.asks, set(selection.available), set(selection.must_include)) == (asks, available, must_include)
    assert set(manager.complete(selection)) & {"d2", "d3"}


@pytest.mark.parametrize(
    ("prepare", "text"),
    [
        (lambda manager: manager.remove_resource(CORE), "cannot allocate unregistered device"),
        (lambda manager: manager.mark_unhealthy(CORE), "no healthy devices present; cannot allocate unhealthy devices"),
        (lambda manager: allocate(manager, B, 3), r"Requested: 2, Available: 1"),
        (lambda manager: allocate(manager, A, 1), f'changed request for resource "{CORE}" from 1 to 2'),
        (
            lambda manager: (
                allocate(manager, A, 2, ["d0", "d1"]),
                manager.update_devices(CORE, [ListedDevice("d0", "Unhealthy"), ListedDevice("d1")]),
            ),
            "previously allocated devices are no longer healthy",
        ),
    ],
)
def test_the_texts_of_a_rejection_are_the_kubelets(prepare: Any, text: str) -> None:
    manager = manager_of()
    prepare(manager)
    with pytest.raises(AllocationError, match=text):
        manager.devices_to_allocate(A, "c", CORE, 2)


# Sections 4.4 and 6.4: reservations


@pytest.mark.parametrize("recorded", [True, False])
def test_what_is_reserved_leaks_until_another_pod_is_forgotten_even_under_its_allocate(*, recorded: bool) -> None:
    """kubernetes/kubernetes#137534: a device is offered though it is recorded, until its pod is forgotten, too."""
    manager = manager_of()
    allocate(manager, B, 1, ["d0"])
    selection = manager.devices_to_allocate(A, "c", CORE, 2)
    assert selection is not None
    ids = manager.complete(selection, ["d1", "d2"])
    with pytest.raises(AllocationError, match="Available: 1"):
        manager.devices_to_allocate("uid-c", "c", CORE, 2)
    manager.forget_pods({A})  # PodResources List; pod B has ended
    if recorded:
        manager.record(A, "c", CORE, ids, b"")
        allocate(manager, "uid-c", 1, ["d3"])  # repairs nothing
    assert {each.pod_uid for each in manager.entries()} == ({A, "uid-c"} if recorded else set())
    assert available(manager) == set(FOUR) - ({"d3"} if recorded else set())


# Sections 7 and 14: memory


def test_entries_of_ended_pods_stay_until_the_memory_is_cleaned_with_all_sources_ready() -> None:
    manager = manager_of()
    allocate(manager, A, 2, ["d0", "d1"])
    manager.sources_ready = False
    manager.forget_pods(())
    assert available(manager) == {"d2", "d3"}
    manager.sources_ready = True
    manager.forget_pods(())
    assert available(manager) == set(FOUR)


def test_a_running_container_gets_no_entry_while_the_sources_are_not_ready() -> None:
    manager = manager_of()
    manager.load(None)  # the checkpoint is lost
    manager.update_devices(CORE, [ListedDevice(each) for each in FOUR])
    manager.sources_ready = False
    manager.running = {A: {"c"}}
    assert manager.devices_to_allocate(A, "c", CORE, 4) is None
    manager.sources_ready = True
    assert manager.entries() == ()
    assert available(manager) == set(FOUR), "the ids of the running container are offered"


# Sections 7 and 14: the checkpoint


def test_ids_lie_under_each_numa_node_of_their_device() -> None:
    manager = DeviceManager(seeded(0))
    manager.update_devices(
        CORE, [ListedDevice("d0", numa_nodes=(0,)), ListedDevice("d1", numa_nodes=(0, 1)), ListedDevice("d2")]
    )
    allocate(manager, A, 3)
    (entry,) = data_of(manager.checkpoint_bytes())["PodDeviceEntries"]
    by_node = {node: sorted(ids) for node, ids in entry["DeviceIDs"].items()}
    assert by_node == {"0": ["d0", "d1"], "1": ["d1"], "-1": ["d2"]}
    again = DeviceManager(seeded(1))
    assert again.load(manager.checkpoint_bytes())
    assert again.entries()[0].ids == manager.entries()[0].ids == {"d0", "d1", "d2"}


def test_a_loaded_memory_holds_its_devices_and_knows_resources_without_devices() -> None:
    manager = manager_of()
    allocate(manager, A, 2, ["d0", "d1"])
    again = DeviceManager(seeded(1))
    assert again.load(manager.checkpoint_bytes())
    assert again.entries() == manager.entries()
    assert again.resources() == [CORE]
    assert again.healthy(CORE) == frozenset()
    with pytest.raises(AllocationError, match="no healthy devices present"):
        again.devices_to_allocate(B, "c", CORE, 1)
    again.update_devices(CORE, [ListedDevice(each) for each in FOUR])
    assert available(again) == {"d2", "d3"}


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
    allocate(manager, A, 4, FOUR)
    again = manager_of(seed=1)
    assert not again.load(spoil(manager.checkpoint_bytes()))
    assert again.entries() == ()
    assert again.resources() == []
