"""Constraints and amounts only take sets away, and what is left is found: against an oracle that tries everything."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.allocation.constraints import ANY_DEVICE, Constraints
from neuron_plugin.allocation.narrowing import (
    NO_FACTS,
    ByDevice,
    DeviceFacts,
    constraint_not_kept,
    device_facts,
    unconstrained,
)
from neuron_plugin.allocation.node import amounts_used
from neuron_plugin.allocation.placement import ContainerSet, Placement, place, placement_mask
from neuron_plugin.allocation.pod import Allocation, PodReference, PodUid
from neuron_plugin.allocation.rejection import INVALID_CONSTRAINT, Rejection
from neuron_plugin.allocation.requests import ContainerKind, ContainerRequest, PodRequest
from neuron_plugin.allocation.resources import Resource
from neuron_plugin.topology import CoreMask, Geometry, Topology, Unit, catalogue
from tests.allocation.nodes import core, device, free_masks, neuron, place_on, pods
from tests.allocation.test_placement import Held, after, next_sets
from tests.topology.oracle import INF1, INF1_RING, TRN1, TRN2, Cores, as_cores, as_mask, oracle_cost, oracle_sets

INIT, SIDECAR = ContainerKind.INIT, ContainerKind.SIDECAR
CAPACITY = 8
LINE = Geometry("line", Topology.LINE, 3, 3)
SMALL = (INF1, LINE)
TYPES = catalogue()
INF1_FACTS = device_facts("", "inf1.6xlarge", TYPES["inf1.6xlarge"])
TRN1_FACTS = device_facts("", "trn1.32xlarge", TYPES["trn1.32xlarge"])


def limited(request: Iterable[ContainerRequest], **fields: object) -> PodRequest:
    constraints = replace(Constraints(), **fields)  # type: ignore[arg-type]
    return tuple(replace(part, constraints=constraints) for part in request)


def with_memory(part: ContainerRequest, amount: int, name: str = "memory") -> ContainerRequest:
    return replace(part, amounts=((name, amount),))


def bits(*devices: int) -> int:
    return sum(1 << each for each in devices)


def chosen(geometry: Geometry, free: int, request: PodRequest, facts: DeviceFacts = NO_FACTS) -> list[Cores]:
    placement = place(geometry, free, request, facts)
    assert not isinstance(placement, Rejection), placement.text
    return [as_cores(part.mask) for part in placement]


def refusal(geometry: Geometry, free: int, request: PodRequest, facts: DeviceFacts = NO_FACTS) -> Rejection:
    found = place_on(geometry, geometry.all_mask, free, request, facts)
    assert isinstance(found, Rejection)
    return found


# The oracle: all ways to serve a pod, and of each whether the constraints hold at every time of the pod's life.


def ways(geometry: Geometry, free: Cores, request: PodRequest, held: Held | None = None) -> Iterable[list[Cores]]:
    held = held or {}
    if not request:
        yield []
        return
    part, rest = request[0], request[1:]
    for cores in next_sets(geometry, part, free, held.get(part.resource, frozenset())):
        for others in ways(geometry, free - cores, rest, after(part, cores, held)):
            yield [cores, *others]


def devices_of(geometry: Geometry, cores: Cores) -> set[int]:
    return {each // geometry.cores_per_device for each in cores}


def in_use(geometry: Geometry, request: PodRequest, sets: list[Cores]) -> list[dict[int, float]]:
    """Memory by device at every time that matters: while each init container runs, and while all others do."""
    times = [
        [at, *(before for before in range(at) if request[before].kind is SIDECAR)]
        for at, part in enumerate(request)
        if part.kind is INIT
    ]
    times.append([at for at, part in enumerate(request) if part.kind is not INIT])
    found = []
    for running in times:
        by_device: dict[int, float] = {}
        for at in running:
            touched = devices_of(geometry, sets[at])
            for each in touched:
                by_device[each] = by_device.get(each, 0) + dict(request[at].amounts).get("memory", 0) / len(touched)
        found.append(by_device)
    return found


def holds(geometry: Geometry, request: PodRequest, sets: list[Cores], used: list[int]) -> bool:
    constraints = request[0].constraints
    assert isinstance(constraints, Constraints)
    touched = set().union(*(devices_of(geometry, cores) for cores in sets))
    allowed = all(constraints.allowed_devices >> each & 1 for each in touched)
    together = set().union(*(devices_of(geometry, sets[place]) for place in constraints.same_device))
    enough = all(
        used[each] + amount <= CAPACITY
        for by_device in in_use(geometry, request, sets)
        for each, amount in by_device.items()
    )
    even = all(
        amount % len(devices_of(geometry, cores)) == 0
        for part, cores in zip(request, sets, strict=True)
        for _, amount in part.amounts
    )
    return allowed and len(together) <= 1 and enough and even


@st.composite
def constrained_pods(draw: st.DrawFn, geometry: Geometry) -> PodRequest:
    request = draw(pods(geometry, most=3))
    amounts = [draw(st.sampled_from([0, 0, 1, 3, 4, 5, 8, 9])) for _ in request]
    cores = [place for place, part in enumerate(request) if part.resource.unit is Unit.CORE]
    shared = draw(st.sampled_from([(), tuple(cores)])) if len(cores) > 1 else ()
    allowed = draw(st.one_of(st.just(ANY_DEVICE), st.integers(1, (1 << geometry.device_count) - 1)))
    asked = [with_memory(part, amount) if amount else part for part, amount in zip(request, amounts, strict=True)]
    return limited(asked, allowed_devices=allowed, same_device=shared)


@given(st.data(), st.sampled_from(SMALL))
def test_a_constrained_pod_is_placed_exactly_where_some_way_keeps_every_constraint(
    data: st.DataObject, geometry: Geometry
) -> None:
    free = data.draw(free_masks(geometry))
    request = data.draw(constrained_pods(geometry))
    used = [data.draw(st.integers(0, CAPACITY)) for _ in range(geometry.device_count)]
    facts = DeviceFacts(amounts=(("memory", CAPACITY),), used=(("memory", tuple(used)),))
    placement = place(geometry, free, request, facts)
    possible = any(holds(geometry, request, way, used) for way in ways(geometry, as_cores(free), request))
    assert isinstance(placement, Rejection) == (not possible)
    if not isinstance(placement, Rejection):
        assert holds(geometry, request, [as_cores(part.mask) for part in placement], used)
        assert [part.request for part in placement] == list(request)
        assert placement_mask(placement) & ~free == 0


@given(st.data(), st.sampled_from((*SMALL, TRN1)))
def test_of_the_sets_that_keep_the_constraints_the_one_that_costs_later_pods_least_is_chosen(
    data: st.DataObject, geometry: Geometry
) -> None:
    free = data.draw(free_masks(geometry))
    part = data.draw(pods(geometry, most=1))[0]
    allowed = data.draw(st.integers(0, (1 << geometry.device_count) - 1))
    placement = place(geometry, free, limited([part], allowed_devices=allowed))
    fitting = [
        cores
        for cores in oracle_sets(geometry, part.resource.unit, part.count)
        if cores <= as_cores(free) and all(allowed >> each & 1 for each in devices_of(geometry, cores))
    ]
    best = min(fitting, key=lambda cores: (oracle_cost(geometry, as_cores(free), cores), sorted(cores)), default=None)
    if best is None:
        assert isinstance(placement, Rejection)
    else:
        assert not isinstance(placement, Rejection)
        assert as_cores(placement[0].mask) == best


@given(st.data(), st.sampled_from(SMALL))
def test_constraints_that_say_nothing_change_nothing(data: st.DataObject, geometry: Geometry) -> None:
    free = data.draw(free_masks(geometry))
    request = data.draw(pods(geometry, most=4))
    plain, narrowed = place(geometry, free, request), place(geometry, free, limited(request))
    if isinstance(plain, Rejection) or isinstance(narrowed, Rejection):
        assert plain == narrowed
    else:
        assert [part.mask for part in plain] == [part.mask for part in narrowed]


@given(st.data(), st.sampled_from(SMALL))
def test_what_pods_use_of_an_amount_is_the_most_they_use_at_one_time(data: st.DataObject, geometry: Geometry) -> None:
    placed: list[Placement] = []
    free = geometry.all_mask
    facts = DeviceFacts(amounts=(("memory", CAPACITY),))
    for _ in range(data.draw(st.integers(1, 3))):
        found = place(
            geometry, free, data.draw(constrained_pods(geometry)), replace(facts, used=used_by(geometry, placed))
        )
        if not isinstance(found, Rejection):
            placed.append(found)
            free = CoreMask(free & ~placement_mask(found))
    rows = dict(used_by(geometry, placed))
    for each in range(geometry.device_count):
        expected = sum(max(by_device.get(each, 0) for by_device in in_use(geometry, *unzipped(pod))) for pod in placed)
        assert rows.get("memory", (0,) * geometry.device_count)[each] == expected <= CAPACITY


def test_init_containers_use_an_amount_one_after_the_other_and_beside_the_sidecars_before_them() -> None:
    pod, mask = PodReference(PodUid("u"), "ml", "p"), LINE.device_mask(0)
    held = [
        Allocation(pod, str(at), Resource.NEURONCORE, mask, amounts=(("memory", amount),), kind=kind)
        for at, (kind, amount) in enumerate(((INIT, 4), (SIDECAR, 2), (INIT, 3), (ContainerKind.APP, 1)))
    ]
    assert amounts_used(LINE, [held]) == (("memory", (5, 0, 0)),)
    uneven = replace(held[2], mask=LINE.devices_mask((0, 1)))
    assert amounts_used(LINE, [[uneven], [held[3]]]) == (("memory", (3, 2, 0)),)


def test_only_the_containers_that_are_to_share_a_device_are_found_apart() -> None:
    names = ("a", "b", "c")
    request = limited([replace(core(1), name=name) for name in names], same_device=(0, 1))
    has = {name: LINE.device_mask(device) for name, device in zip(names, (0, 0, 1), strict=True)}
    assert constraint_not_kept(LINE, request, NO_FACTS, has) == ""
    assert "same-device" in constraint_not_kept(LINE, request, NO_FACTS, {**has, "b": has["c"]})


def used_by(geometry: Geometry, placed: list[Placement]) -> ByDevice:
    pod = PodReference(PodUid("u"), "ml", "p")
    return amounts_used(geometry, [[allocation(pod, part) for part in parts] for parts in placed])


def allocation(pod: PodReference, part: ContainerSet) -> Allocation:
    asked = part.request
    return Allocation(pod, asked.name, asked.resource, part.mask, amounts=asked.amounts, kind=asked.kind)


def unzipped(pod: Placement) -> tuple[PodRequest, list[Cores]]:
    return tuple(part.request for part in pod), [as_cores(part.mask) for part in pod]


@pytest.mark.parametrize("facts", [NO_FACTS, INF1_FACTS])
@given(free=st.integers(), amount=st.integers(1, 2**63), count=st.integers(1, 2**63))
def test_any_amount_and_count_get_sets_or_a_refusal(facts: DeviceFacts, free: int, amount: int, count: int) -> None:
    for part in (core(count), neuron(count)):
        found = place(INF1, free, (with_memory(part, amount),), facts)
        assert isinstance(found, Rejection) or found[0].mask & ~free == 0


# The GPU seed's example: devices of 8 GiB, pods of 5 GiB.


def test_the_third_pod_of_5_gib_finds_3_gib_on_each_of_two_devices_and_is_refused() -> None:
    two = Geometry("inf1.two", Topology.LINE, 2, 4)
    facts = DeviceFacts(amounts=(("memory", 8192),))
    pod = (with_memory(core(1), 5120),)
    free, placed = two.all_mask, list[Placement]()
    for _ in range(2):
        found = place(two, free, pod, replace(facts, used=used_by(two, placed)))
        assert not isinstance(found, Rejection)
        placed.append(found)
        free = CoreMask(free & ~found[0].mask)
    used = used_by(two, placed)
    assert used == (("memory", (5120, 5120)),)
    found_third = refusal(two, free, pod, replace(facts, used=used))
    assert found_third.text == "No free linked Neuron devices with 5120 neuron-plugin.io/memory left on each"
    assert found_third.may_pass
    assert not isinstance(place(two, free, (with_memory(core(1), 3072),), replace(facts, used=used)), Rejection)


def test_an_amount_is_shared_evenly_by_the_devices_of_a_container() -> None:
    used = (("memory", (0, 0, 6000, 0)),)
    found = chosen(INF1, INF1.all_mask, (with_memory(core(8), 8192),), replace(INF1_FACTS, used=used))
    assert found == [frozenset(range(8))]
    assert refusal(
        INF1, INF1.devices_mask((1, 2)), (with_memory(core(8), 8192),), replace(INF1_FACTS, used=used)
    ).may_pass


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (
            with_memory(core(1), 8193),
            "The node's Neuron devices have 8192 neuron-plugin.io/memory each and 8193 of each were requested",
        ),
        (
            with_memory(device(2), 16386),
            "The node's Neuron devices have 8192 neuron-plugin.io/memory each and 8193 of each were requested",
        ),
        (with_memory(core(5), 5121), "5121 neuron-plugin.io/memory cannot be shared evenly by 2 Neuron devices"),
        (
            with_memory(core(1), 1, name="millicores"),
            "How much neuron-plugin.io/millicores the node's Neuron devices have is not known",
        ),
    ],
)
def test_an_amount_that_no_state_of_the_node_meets_is_refused_for_good(part: ContainerRequest, text: str) -> None:
    found = refusal(INF1, INF1.all_mask, (part,), INF1_FACTS)
    assert found.text == text
    assert not found.may_pass


def test_whole_devices_are_exclusive_so_their_amount_only_has_to_fit() -> None:
    assert chosen(INF1, INF1.all_mask, (with_memory(neuron(2), 16384),), INF1_FACTS) == [frozenset(range(8))]


def test_an_amount_of_an_init_container_comes_back_to_later_containers() -> None:
    one = INF1.device_mask(0)
    load, serve = with_memory(core(1, "load", INIT), 8000), with_memory(core(1, "serve"), 8000)
    assert chosen(INF1, one, (load, serve), INF1_FACTS) == [{0}, {0}]
    beside = with_memory(core(1, "log", SIDECAR), 400)
    assert refusal(INF1, one, (beside, load, serve), INF1_FACTS).may_pass is True


# Products.


def test_a_product_is_met_by_its_name_or_its_family() -> None:
    for name in ("trainium1", "trn1"):
        assert chosen(TRN1, TRN1.all_mask, limited([neuron(4)], products=frozenset({name, "inf9"})), TRN1_FACTS)


def test_another_product_and_an_unknown_one_have_a_text_each() -> None:
    request = limited([neuron(4)], products=frozenset({"trn2"}))
    wrong, unknown = refusal(TRN1, TRN1.all_mask, request, TRN1_FACTS), refusal(TRN1, TRN1.all_mask, request)
    assert wrong.text == "The node's Neuron devices are not of a product that the pod asks for"
    assert unknown.text == "The product of the node's Neuron devices is not known"
    assert not wrong.may_pass
    assert not unknown.may_pass


def test_what_the_machine_says_of_its_product_comes_before_the_catalogue() -> None:
    assert device_facts("Trainium9", "trn9.48xlarge", None).names == {"trainium9", "trn9"}
    assert device_facts("Inferentia2", "", TYPES["inf2.48xlarge"]).names == {"inferentia2"}
    assert device_facts("", "unknown", None) == NO_FACTS
    assert device_facts("", "trn1n.32xlarge", TYPES["trn1n.32xlarge"]).names == {"trainium1", "trn1"}


# Devices.


def test_denied_devices_are_left_alone_and_allowed_ones_are_the_only_ones() -> None:
    assert chosen(TRN1, TRN1.all_mask, limited([neuron(1)], allowed_devices=bits(7))) == [as_cores(TRN1.device_mask(7))]
    found = refusal(TRN1, TRN1.all_mask & ~TRN1.device_mask(7), limited([neuron(1)], allowed_devices=bits(7)))
    assert found.text == "No free linked set of 1 Neuron devices among the devices that the pod allows"
    assert found.may_pass


def test_allowed_devices_that_are_no_set_or_unhealthy_are_refused_for_good() -> None:
    straddling = limited([neuron(4)], allowed_devices=bits(2, 3, 4, 5))
    assert not refusal(TRN1, TRN1.all_mask, straddling).may_pass
    healthy = TRN1.all_mask & ~TRN1.device_mask(7)
    found = place_on(TRN1, healthy, healthy, limited([neuron(1)], allowed_devices=bits(7)))
    assert isinstance(found, Rejection)
    assert found.text == "No free linked set of 1 Neuron devices among the devices that the pod allows"
    assert not found.may_pass


def test_the_usual_reason_is_given_where_constraints_are_not_to_blame() -> None:
    request = limited([neuron(7)], allowed_devices=bits(0))
    assert refusal(TRN1, TRN1.all_mask, request).code == "unsupported-count"
    assert refusal(TRN1, 0, limited([neuron(1)], allowed_devices=bits(0))).code == "not-free"


def test_preferred_devices_are_taken_where_they_are_free_and_others_else() -> None:
    request = limited([neuron(4)], preferred_devices=bits(8, 9, 10, 11))
    assert chosen(TRN1, TRN1.all_mask, request) == [as_cores(TRN1.devices_mask(range(8, 12)))]
    assert chosen(TRN1, TRN1.devices_mask(range(4)), request) == [as_cores(TRN1.devices_mask(range(4)))]
    partly = limited([neuron(4)], preferred_devices=bits(1, 12, 13), balance="memory")
    used = replace(TRN1_FACTS, used=(("memory", (0,) * 4 + (1,) * 12),))
    assert chosen(TRN1, TRN1.all_mask, partly, used) == [as_cores(TRN1.devices_mask(range(12, 16)))]


def test_one_numa_node_is_preferred_and_never_demanded() -> None:
    on_trn2 = device_facts("", "trn2.48xlarge", TYPES["trn2.48xlarge"])
    plain, numa = (limited([neuron(8)], prefer_numa=flag) for flag in (False, True))
    assert chosen(TRN2, TRN2.all_mask, plain, on_trn2) == chosen(TRN2, TRN2.all_mask, numa, on_trn2)
    inf2 = Geometry("inf2.24xlarge", Topology.LINE, 6, 2)
    facts = device_facts("", "inf2.24xlarge", TYPES["inf2.24xlarge"])
    free = inf2.devices_mask((1, 2, 3, 4))
    assert chosen(inf2, free, limited([neuron(2)], prefer_numa=True), facts)[0] <= as_cores(
        inf2.devices_mask((2, 3, 4))
    )
    assert chosen(TRN1, TRN1.all_mask, limited([neuron(4)], prefer_numa=True), TRN1_FACTS)


def test_balance_takes_the_device_of_which_least_is_used() -> None:
    facts = replace(INF1_FACTS, used=(("memory", (1024, 2048, 512, 4096)),))
    free = INF1.all_mask & ~INF1.mask_of(Unit.CORE, (0, 4, 8, 12))
    packed = chosen(INF1, free, (with_memory(core(1), 100),), facts)
    balanced = chosen(INF1, free, limited([with_memory(core(1), 100)], balance="memory"), facts)
    assert devices_of(INF1, packed[0]) == {0}
    assert devices_of(INF1, balanced[0]) == {2}
    assert chosen(INF1, free, limited([core(1)], balance="unknown"), facts) == chosen(INF1, free, (core(1),))


# One device for several containers.


def test_containers_that_share_a_device_get_one_that_has_cores_for_all() -> None:
    free = INF1.all_mask & ~INF1.mask_of(Unit.CORE, (0, 1, 2, 4))
    request = limited([core(1, "load"), core(3, "serve"), core(1, "log")], same_device=(0, 1))
    load, serve, log = chosen(INF1, free, request)
    assert len(devices_of(INF1, load | serve)) == 1
    assert devices_of(INF1, log) == {0}


def test_containers_that_share_a_device_stay_together_though_balance_would_part_them() -> None:
    together = limited([with_memory(core(1), 100)] * 2, same_device=(0, 1), balance="memory")
    first, second = chosen(INF1, INF1.all_mask, together, INF1_FACTS)
    assert devices_of(INF1, first) == devices_of(INF1, second)


def test_what_is_too_many_for_an_amount_is_refused_however_well_the_cores_could_be_packed() -> None:
    facts = DeviceFacts(amounts=(("memory", CAPACITY),))
    assert isinstance(place(LINE, LINE.all_mask, (with_memory(core(1), 5),) * 4, facts), Rejection)
    assert not isinstance(place(LINE, LINE.all_mask, (with_memory(core(1), 5),) * 3, facts), Rejection)


def test_an_init_container_of_more_than_a_device_shares_none() -> None:
    request = limited([replace(core(4), kind=INIT), core(1)], same_device=(0, 1))
    assert not refusal(LINE, LINE.all_mask, request).may_pass


def test_more_cores_than_a_device_has_cannot_be_shared() -> None:
    for request in ([core(2, "a"), core(3, "b")], [core(5, "a"), core(1, "b")]):
        found = refusal(INF1, INF1.all_mask, limited(request, same_device=(0, 1)))
        assert found.text.startswith("The containers that share one Neuron device ask for more cores than one")
        assert not found.may_pass


def test_a_shared_device_that_is_in_use_may_come_free() -> None:
    free = INF1.all_mask & ~INF1.mask_of(Unit.CORE, (0, 4, 8, 12))
    found = refusal(INF1, free, limited([core(2, "a"), core(2, "b")], same_device=(0, 1)))
    assert (found.code, found.may_pass) == ("no-shared-device", True)


def test_a_refusal_for_an_amount_says_which_amount_is_missing_where() -> None:
    def asking(*amounts: int, share: bool = False) -> PodRequest:
        parts = [replace(core(1, f"c{number}"), amounts=(("memory", mib),)) for number, mib in enumerate(amounts)]
        return limited(parts, same_device=(0, 1)) if share else tuple(parts)

    def text(request: PodRequest, used: int = 0) -> str:
        facts = DeviceFacts(amounts=(("memory", 8192),), used=(("memory", (used,) * 4),) if used else ())
        return refusal(INF1, INF1.all_mask, request, facts).text

    name = "neuron-plugin.io/memory"
    assert (
        text(asking(4097, 4096, share=True))
        == f"The node's Neuron devices have 8192 {name} each and 8193 of each were requested"
    )
    assert text(asking(200), used=8000) == f"No free linked Neuron devices with 200 {name} left on each"
    shared = f"Too little {name} is left on a free Neuron device for all containers that share one"
    assert text(asking(100, 100, share=True), used=8000) == shared
    together = f"Too little {name} is left on free Neuron devices for all containers of the pod"
    assert text(asking(150, 150, 150, 150, 150), used=8000) == together


def test_an_annotation_that_cannot_be_read_is_the_reason_everywhere() -> None:
    unreadable = replace(INVALID_CONSTRAINT, detail="annotation x")
    found = refusal(INF1, INF1.all_mask, (replace(core(1), constraints=unreadable),))
    assert (found, found.detail) == (unreadable, "annotation x")


def test_many_containers_on_allowed_devices_are_packed_as_without_constraints() -> None:
    request = limited([neuron(1, f"c{each}") for each in range(15)], allowed_devices=ANY_DEVICE & ~bits(3))
    sets = chosen(INF1_RING, INF1_RING.all_mask, request)
    assert all(not one & other for one, other in pairwise(sets))
    assert as_mask(frozenset().union(*sets)) == INF1_RING.all_mask & ~INF1_RING.device_mask(3)
    assert unconstrained(request) == tuple(neuron(1, f"c{each}") for each in range(15))
