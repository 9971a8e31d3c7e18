"""Every container gets its set as the kubelet's walk will ask for it, or the pod is told why not."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.allocation import placement as module
from neuron_plugin.allocation.narrowing import DeviceFacts
from neuron_plugin.allocation.placement import MOST_CONTAINERS, Placement, place, placement_mask
from neuron_plugin.allocation.rejection import Rejection
from neuron_plugin.allocation.requests import ContainerKind, ContainerRequest, PodRequest
from neuron_plugin.allocation.resources import Resource, ranges
from neuron_plugin.topology import Geometry, Unit
from tests.allocation.nodes import SMALL, any_geometry, core, cores_of, device, free_masks, place_on, pods, request_of
from tests.topology.oracle import (
    INF1,
    INF1_RING,
    INF2_LINE,
    INF2_RING,
    TRN1,
    TRN2,
    TRN2_LNC1,
    WIDE_LINE,
    Cores,
    as_cores,
    distinct_geometries,
    oracle_best,
    oracle_sets,
)

Held = dict[Resource, Cores]


def next_sets(geometry: Geometry, part: ContainerRequest, free: Cores, held: Cores) -> list[Cores]:
    """What devicesToAllocate lets a container have: a part of what init containers left, or all of it and more."""
    size = part.count * (geometry.cores_per_device if part.resource.unit is Unit.DEVICE else 1)
    sets = oracle_sets(geometry, part.resource.unit, part.count)
    if size <= len(held):
        return [cores for cores in sets if cores <= held]
    return [cores for cores in sets if held <= cores <= held | free]


def after(part: ContainerRequest, cores: Cores, held: Held) -> Held:
    own = held.get(part.resource, frozenset())
    return {**held, part.resource: own | cores if part.kind is ContainerKind.INIT else own - cores}


def fits(geometry: Geometry, free: Cores, request: PodRequest, held: Held | None = None) -> bool:
    """Whether any choice of sets serves all containers: tries every one."""
    held = held or {}
    if not request:
        return True
    part, rest = request[0], request[1:]
    return any(
        fits(geometry, free - cores, rest, after(part, cores, held))
        for cores in next_sets(geometry, part, free, held.get(part.resource, frozenset()))
    )


def assert_the_kubelet_admits(geometry: Geometry, free: int, request: PodRequest, placement: Placement) -> None:
    left, held = as_cores(free), Held()
    assert tuple(part.request for part in placement) == request
    for part in placement:
        cores = as_cores(part.mask)
        assert cores in next_sets(geometry, part.request, left, held.get(part.request.resource, frozenset()))
        left -= cores
        held = after(part.request, cores, held)
    assert placement_mask(placement) & ~free == 0
    assert left == as_cores(free & ~placement_mask(placement))


def placed(geometry: Geometry, free: int, *request: ContainerRequest) -> list[list[int]]:
    """The ids each container gets, in its own unit."""
    placement = place(geometry, free, request)
    assert not isinstance(placement, Rejection), placement.text
    assert_the_kubelet_admits(geometry, free, request, placement)
    return [
        sorted(as_cores(part.mask))
        if part.request.resource.unit is Unit.CORE
        else [int(number) for number in geometry.devices_touched(part.mask)]
        for part in placement
    ]


def refused(geometry: Geometry, free: int, *request: ContainerRequest) -> Rejection:
    placement = place(geometry, free, request)
    assert isinstance(placement, Rejection)
    return placement


@given(st.data(), any_geometry())
def test_t20_every_container_gets_its_own_valid_set_out_of_what_is_free(
    data: st.DataObject, geometry: Geometry
) -> None:
    free = data.draw(free_masks(geometry))
    request = data.draw(pods(geometry, most=6))
    placement = place(geometry, free, request)
    if not isinstance(placement, Rejection):
        assert_the_kubelet_admits(geometry, free, request, placement)


@given(st.data(), st.sampled_from(SMALL))
def test_a_pod_is_refused_only_when_no_choice_of_sets_serves_it(data: st.DataObject, geometry: Geometry) -> None:
    free = data.draw(free_masks(geometry))
    request = data.draw(pods(geometry, most=3))
    assert isinstance(place(geometry, free, request), Rejection) == (not fits(geometry, as_cores(free), request))


@given(st.data(), any_geometry())
def test_t8_a_refusal_that_can_pass_does_pass_on_the_free_node(data: st.DataObject, geometry: Geometry) -> None:
    free = data.draw(free_masks(geometry))
    healthy = free | data.draw(free_masks(geometry))
    request = data.draw(pods(geometry, most=4))
    found = place_on(geometry, healthy, free, request)
    if not isinstance(found, Rejection):
        assert found == place(geometry, free, request)
    elif found.may_pass:
        assert not isinstance(place(geometry, healthy, request), Rejection)
    else:
        on_all = place(geometry, geometry.all_mask, request)
        assert isinstance(place(geometry, healthy, request), Rejection)
        whoever_ends = free | data.draw(free_masks(geometry))
        assert isinstance(place_on(geometry, healthy, whoever_ends, request), Rejection)
        assert (found.code == "unhealthy") == (not isinstance(on_all, Rejection))


def the_only_answer(geometry: Geometry, healthy: int, free: int, part: ContainerRequest) -> Cores | str:
    """What one container must get, or why it must get nothing."""
    unit, count = part.resource.unit, part.count
    usable = as_cores(healthy & free)
    best = oracle_best(geometry, usable, unit, count, frozenset())
    if best is not None:
        return best
    if count > (geometry.device_count if unit is Unit.DEVICE else geometry.core_count):
        return "too-many"
    sets = oracle_sets(geometry, unit, count)
    if not sets:
        return "unsupported-count"
    if not any(cores <= as_cores(healthy) for cores in sets):
        return "unhealthy"
    available = [cores for cores in oracle_sets(geometry, unit, 1) if cores <= usable]
    return "not-free" if len(available) < count else "fragmented"


def torn(geometry: Geometry, random: Random) -> int:
    """A node with some devices and some cores taken away."""
    devices = random.sample(range(geometry.device_count), random.randrange(geometry.device_count // 2 + 1))
    cores = random.sample(range(geometry.core_count), random.randrange(geometry.core_count // 4 + 1))
    return geometry.all_mask & ~geometry.devices_mask(devices) & ~geometry.mask_of(Unit.CORE, cores)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("geometry", distinct_geometries(), ids=str)
def test_every_count_on_every_shape_gets_the_only_answer(geometry: Geometry, seed: int) -> None:
    random = Random(f"{geometry.instance_type} {seed}")  # noqa: S311 - no secret
    healthy, free = torn(geometry, random), torn(geometry, random)
    counts = [*map(device, range(1, geometry.device_count + 2)), *map(core, range(1, geometry.core_count + 2))]
    for part in counts:
        found = place_on(geometry, healthy, free, (part,))
        answer = found.code if isinstance(found, Rejection) else as_cores(placement_mask(found))
        assert answer == the_only_answer(geometry, healthy, free, part), part


@given(st.data(), any_geometry())
def test_the_same_node_and_pod_get_the_same_placement(data: st.DataObject, geometry: Geometry) -> None:
    free = data.draw(free_masks(geometry))
    request = data.draw(pods(geometry))
    assert place(geometry, free, request) == place(geometry, free, request)


@given(any_geometry(), st.integers(), st.integers(), st.integers())
def test_any_numbers_at_all_are_placed_or_refused(geometry: Geometry, healthy: int, free: int, count: int) -> None:
    found = place_on(geometry, healthy, free, (core(count), device(count)))
    if not isinstance(found, Rejection):
        assert placement_mask(found) & ~(geometry.all_mask & healthy & free) == 0


def test_a_pod_that_requests_nothing_is_placed_nowhere() -> None:
    assert place(TRN1, 0, ()) == ()
    assert place_on(TRN1, 0, 0, ()) == ()
    assert placement_mask(()) == 0


PLACED = {
    "t20 two containers get disjoint rows in spec order": (TRN1, "0-15", "4 4", "0-3 4-7"),
    "t21 devices and cores of one pod are disjoint silicon": (TRN1, "0-1", "core:2 1", "0-1 1"),
    "t21 and both need some": (TRN1, "0", "core:1 1", "!not-free"),
    "a single does not stand in the way of a row beside it": (TRN1, "0-3,9", "1 4", "9 0-3"),
    "p32 containers that share no silicon take leftovers too": (TRN1, "0-3,9,13", "1 1", "9 13"),
    "a dead end of the cheapest sets is left again": (INF2_RING, "0-2,4,5,7-9", "2 3 3", "4-5 0-2 7-9"),
    # What init containers leave.
    "t19 an app gets what its init container had": (TRN1, "4-7", "init:4 4", "4-7 4-7"),
    "t19 a larger app includes it": (TRN1, "1,8-11", "init:1 4", "8 8-11"),
    "p46 smaller apps share it out": (INF2_LINE, "1-3", "init:3 1 2", "1-3 1 2-3"),
    "a sidecar keeps what it took from it": (INF2_LINE, "0-5", "init:1 sidecar:1 1", "0 0 1"),
    "so that it is not left for an app": (INF2_LINE, "2", "init:1 sidecar:1 1", "!not-free"),
    "t19 sidecars add up": (INF1, "0-3", "sidecar:2 2", "0-1 2-3"),
    "t19 and both need room": (INF1, "0-2", "sidecar:2 2", "!not-free"),
    "init containers nest in each other": (INF2_LINE, "2-4", "init:1 init:3 init:2 3", "2 2-4 2-3 2-4"),
    "nothing is re-used under another resource name": (TRN1, "0-15", "init:neuron:1 1", "0 1"),
    "nor where there is no more": (TRN1, "0", "init:neuron:1 1", "!fragmented"),
    "nor cores as a device": (INF1, "0", "init:core:4 1", "!fragmented"),
    # The kubelet gives the last container the third of the init container's devices first: 2 and 4 are no set.
    "what an init container leaves cannot be left aside": (INF2_RING, "0-2,4,5,7,8", "init:3 2 2", "!fragmented"),
    "but is used up by an app of its size": (INF2_RING, "0-2,4,5,7,8", "init:3 3 2 2", "0-2 0-2 4-5 7-8"),
    # Why there is no room.
    "the container that can never fit is the reason": (TRN1, "0-15", "4 7", "!!unsupported-count"),
    "too many devices": (TRN1, "0-6", "4 4", "!Fewer than 8 free Neuron devices"),
    "too many cores": (TRN1, "0-6", "4 core:8", "!Fewer than 16 free Neuron cores"),
    "enough free but no two rows": (TRN1, "0-3,5,6,9,10,13", "4 4", "!No free linked set of 4 Neuron devices"),
    # Cores that have to be aligned.
    "each container of a pod gets an aligned slice": (TRN2, "core:1-7", "core:2 core:2", "2-3 4-5"),
    "also slices of two devices": (TRN2, "core:0-3,8-63", "core:3 core:8", "0-2 8-15"),
    "in what init containers leave": (TRN2, "core:0-3", "init:core:4 core:2 core:2", "0-3 0-1 2-3"),
    "beside a sidecar in it": (TRN2, "core:0-3", "init:core:4 sidecar:core:1 core:3", "0-3 3 0-2"),
    "two side by side": (TRN2, "core:1-2", "core:2", "!No free aligned set of 2 Neuron cores"),
    "three side by side": (TRN2, "core:1-3", "core:3", "!No free aligned set of 3 Neuron cores"),
    "eight side by side": (TRN2, "core:4-11", "core:8", "!No free aligned set of 8 Neuron cores"),
    "beside a pod of an older version that has 1 and 2": (TRN2, "core:0,3-7", "core:2", "4-5"),
    "a single core beside it": (TRN2, "core:0,3-7", "core:1", "0"),
    # Device 0 is broken: its neighbour serves no slice of two devices any more.
    "a single device leaves two whole for a slice of eight": (TRN2, "core:4-63", "neuron:1", "1"),
    "and so do the cores of one": (TRN2, "core:8-63", "core:4", "8-11"),
}
"""What is free, what the containers ask for, and their sets, or ``!`` and why there are none (``!!``: for good)."""


@pytest.mark.parametrize(("geometry", "free", "asked", "expected"), PLACED.values(), ids=PLACED)
def test_which_sets_the_containers_of_a_pod_get(geometry: Geometry, free: str, asked: str, expected: str) -> None:
    request, free_mask = request_of(asked), cores_of(geometry, free)
    if expected.startswith("!"):
        found = refused(geometry, free_mask, *request)
        assert expected.lstrip("!") in {found.code, found.text}
        assert found.may_pass is not expected.startswith("!!")
    else:
        assert " ".join(map(ranges, placed(geometry, free_mask, *request))) == expected


def test_a_search_that_would_never_end_is_given_up() -> None:
    """One window of four fits in each of sixteen devices; to find that out by trying all would take for ever."""
    torn_everywhere = WIDE_LINE.mask_of(Unit.CORE, (number for number in range(128) if number % 8 != 7))
    assert refused(WIDE_LINE, torn_everywhere, *(core(4, f"c{index}") for index in range(17))).may_pass


@pytest.mark.parametrize(
    ("held", "sizes"),
    [((7, 13), (1, 2, 2, 3, 3, 3)), ((4, 12), (1, 1, 1, 2, 3, 3, 3)), ((5, 11), (1, 1, 2, 2, 2, 2, 2, 2))],
)
def test_a_pod_that_fills_every_gap_of_a_torn_ring_is_placed(held: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    """The cheapest sets first end in more dead ends than the walk may try: packing finds these."""
    free = INF1_RING.all_mask & ~INF1_RING.devices_mask(held)
    lists = placed(INF1_RING, free, *(device(size, f"c{index}") for index, size in enumerate(sizes)))
    assert sorted(number for ids in lists for number in ids) == [n for n in range(16) if n not in held]


def test_as_many_cores_as_a_node_has_are_placed_one_by_one() -> None:
    lists = placed(TRN2_LNC1, TRN2_LNC1.all_mask, *(core(1, f"c{index}") for index in range(128)))
    assert sorted(ids[0] for ids in lists) == list(range(128))


def test_a_pod_that_needs_more_than_is_free_is_refused_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen unlike containers on a torn node took a search of some 25 ms, and most nodes of a cluster are full."""
    monkeypatch.setattr(module, "_Walk", None)
    request = (device(8, "i", ContainerKind.INIT), device(1, "s", ContainerKind.SIDECAR), core(2, "a"), device(4, "b"))
    free = TRN1.all_mask & ~TRN1.devices_mask(range(11))
    assert refused(TRN1, free, *request).may_pass
    with pytest.raises(TypeError):
        place(TRN1, free | 1 | 2, request)


def test_t18_each_alone_but_never_all_together_is_final() -> None:
    for request in ((device(16, "a"), device(1, "b")), (device(8, "a"), device(8, "b"), core(1, "c"))):
        refusal = place_on(TRN1, TRN1.all_mask, TRN1.all_mask & ~1, request)
        assert isinstance(refusal, Rejection)
        assert refusal.code == "too-many"
        assert not refusal.may_pass
        assert refusal.text == "Instance type trn1.32xlarge has no room for all containers of the pod at once"


def test_t18_five_windows_of_three_cores_never_fit_four_devices_of_four() -> None:
    refusal = place_on(INF1, INF1.all_mask, INF1.all_mask & ~1, tuple(core(3, f"c{index}") for index in range(5)))
    assert isinstance(refusal, Rejection)
    assert not refusal.may_pass


def test_t25_an_unhealthy_device_is_in_no_new_set_whatever_is_free() -> None:
    healthy = TRN1.all_mask & ~TRN1.device_mask(2)
    found = place_on(TRN1, healthy, TRN1.all_mask, (device(4),))
    assert not isinstance(found, Rejection)
    assert not placement_mask(found) & TRN1.device_mask(2)


def test_t17_all_devices_never_fit_beside_an_unhealthy_one() -> None:
    healthy = TRN1.all_mask & ~TRN1.device_mask(2)
    refusal = place_on(TRN1, healthy, healthy, (device(16),))
    assert isinstance(refusal, Rejection)
    assert refusal.code == "unhealthy"
    assert refusal.text == "No set of 16 healthy linked Neuron devices on the node"
    assert not refusal.may_pass


def test_a_set_that_only_disabled_devices_prevent_says_so() -> None:
    disabled_mask, sick_mask = TRN1.device_mask(2), TRN1.device_mask(9)
    healthy, facts = TRN1.all_mask & ~disabled_mask, DeviceFacts(disabled_mask=disabled_mask)
    refusal = place_on(TRN1, healthy, healthy, (device(16),), facts)
    assert isinstance(refusal, Rejection)
    assert (refusal.code, refusal.may_pass) == ("disabled", False)
    refusal = place_on(TRN1, healthy & ~sick_mask, healthy, (device(16),), facts)
    assert isinstance(refusal, Rejection)
    assert refusal.code == "unhealthy", "it would not fit if the device were enabled"
    assert not isinstance(place_on(TRN1, healthy, healthy, (device(8),), facts), Rejection)


def test_t8_a_full_node_may_come_free() -> None:
    refusal = place_on(TRN1, TRN1.all_mask, 0, (device(4),))
    assert isinstance(refusal, Rejection)
    assert refusal.code == "not-free"


@pytest.mark.parametrize("geometry", distinct_geometries(), ids=str)
def test_t17_a_whole_node_is_placed_in_one_container_and_in_singles(geometry: Geometry) -> None:
    assert placed(geometry, geometry.all_mask, device(geometry.device_count)) == [list(range(geometry.device_count))]
    singles = placed(geometry, geometry.all_mask, *(device(1, f"c{n}") for n in range(geometry.device_count)))
    assert sorted(singles) == [[number] for number in range(geometry.device_count)]


@pytest.mark.parametrize("kind", list(ContainerKind))
def test_more_containers_than_any_pod_has_are_refused_without_a_search(kind: ContainerKind) -> None:
    crowd = tuple(core(1, f"c{index}", kind) for index in range(MOST_CONTAINERS + 1))
    assert refused(TRN1, TRN1.all_mask, *crowd).code == "too-many"
    most = place(INF1_RING, INF1_RING.all_mask, crowd[:MOST_CONTAINERS])
    assert isinstance(most, Rejection) == (kind is not ContainerKind.INIT), "init containers all use the same core"
