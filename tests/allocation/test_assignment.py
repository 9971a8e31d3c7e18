"""Assignments on a pod: both dialects, and every way they can be wrong."""

from __future__ import annotations

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from neuron_plugin.allocation.assignment import AssignmentError, Dialect, read_assignment, write_assignment
from neuron_plugin.allocation.keys import (
    ALLOC_TIME_KEY,
    ALLOCATED_KEY,
    ASSIGNMENT_KEYS,
    CORES_KEY,
    DEVICES_KEY,
    VENDOR_IDS_KEY,
    VENDOR_RESOURCE_KEY,
)
from neuron_plugin.allocation.placement import Assignment, ContainerAssignment, ContainerSet, assignment_of, place
from neuron_plugin.allocation.rejection import Rejection
from neuron_plugin.allocation.requests import ContainerKind, ContainerRequest, PodRequest
from neuron_plugin.allocation.resources import Resource, parse_ids
from neuron_plugin.topology import Geometry, Unit, sets_by_count, valid_sets
from tests.allocation.nodes import any_geometry, core, device, free_masks, neuron, pods
from tests.topology.oracle import INF2_LINE, INF2_RING, TRN1, distinct_geometries

POD = "team/web-0"
KEYS = (DEVICES_KEY, CORES_KEY, VENDOR_IDS_KEY, VENDOR_RESOURCE_KEY, ALLOC_TIME_KEY, ALLOCATED_KEY)


def ids_read(annotations: dict[str, str], *request: ContainerRequest) -> list[tuple[int, ...]]:
    decision = read_assignment(POD, annotations, request)
    assert decision is not None
    assert tuple(part.request for part in decision.containers) == request
    return [part.ids for part in decision.containers]


def refused(annotations: dict[str, str], *request: ContainerRequest) -> AssignmentError:
    with pytest.raises(AssignmentError) as caught:
        read_assignment(POD, annotations, request)
    error = caught.value
    assert error.pod == POD
    assert error.key in KEYS
    assert error.value == annotations.get(error.key, "")
    assert str(error) == f"pod {POD} has {error.key}={error.value[:200]!r}: {error.expected}"
    return error


def placed(geometry: Geometry, free: int, request: PodRequest) -> tuple[ContainerSet, ...]:
    """A pod's sets, in what is free if it fits there, or else on the whole node."""
    found = place(geometry, free, request)
    placement = place(geometry, geometry.all_mask, request) if isinstance(found, Rejection) else found
    if isinstance(placement, Rejection):
        reject()
    return placement


def test_the_seeds_cores_are_read_and_written_as_2_3() -> None:
    request = core(2)
    assert ids_read({CORES_KEY: "2,3"}, request) == [(2, 3)]
    placement = (ContainerSet(request, INF2_LINE.mask_of(Unit.CORE, (2, 3))),)
    assert write_assignment(assignment_of(INF2_LINE, placement, 17)) == {
        CORES_KEY: "2,3",
        ALLOC_TIME_KEY: "17",
        ALLOCATED_KEY: "false",
    }


def test_the_seeds_devices_are_read_and_written_as_2_3() -> None:
    request = device(2)
    assert ids_read({DEVICES_KEY: "2,3"}, request) == [(2, 3)]
    placement = (ContainerSet(request, INF2_LINE.devices_mask((2, 3))),)
    assert write_assignment(assignment_of(INF2_LINE, placement, 17)) == {
        DEVICES_KEY: "2,3",
        ALLOC_TIME_KEY: "17",
        ALLOCATED_KEY: "false",
    }


def test_t20_containers_are_joined_in_spec_order_with_init_first() -> None:
    request = (device(2, "setup", ContainerKind.INIT), device(2, "main"), neuron(1, "side"))
    assert ids_read({DEVICES_KEY: "0,1|0,1|2"}, *request) == [(0, 1), (0, 1), (2,)]


def test_t21_both_keys_when_containers_ask_for_both_units() -> None:
    request = (device(1, "a"), core(2, "b"), device(1, "c"))
    placement = place(TRN1, TRN1.all_mask, request)
    assert not isinstance(placement, Rejection)
    written = write_assignment(assignment_of(TRN1, placement, 1))
    assert written[DEVICES_KEY].count("|") == 1
    assert "|" not in written[CORES_KEY]
    decision = read_assignment(POD, written, request)
    assert decision is not None
    assert [part.request.name for part in decision.containers] == ["a", "b", "c"]


def test_nothing_placed_writes_nothing() -> None:
    assert write_assignment(assignment_of(TRN1, (), 5)) == {}


@pytest.mark.parametrize("geometry", distinct_geometries(), ids=str)
@pytest.mark.parametrize("dialect", list(Dialect))
def test_p52_every_set_of_every_geometry_reads_back_as_it_was_written(geometry: Geometry, dialect: Dialect) -> None:
    for resource in (Resource.NEURONDEVICE, Resource.NEURONCORE):
        for count in sets_by_count(geometry, resource.unit):
            request = (ContainerRequest("main", ContainerKind.APP, resource, count),)
            for mask in valid_sets(geometry, resource.unit, count):
                written = write_assignment(assignment_of(geometry, (ContainerSet(request[0], mask),), 99), [dialect])
                ids = geometry.ids_of(resource.unit, mask)
                assert read_assignment(POD, written, request) == Assignment((ContainerAssignment(request[0], ids),), 99)


@given(st.data(), any_geometry(), st.sets(st.sampled_from(Dialect), min_size=1))
def test_p52_what_the_extender_places_the_plugin_reads(
    data: st.DataObject, geometry: Geometry, dialects: set[Dialect]
) -> None:
    request = data.draw(pods(geometry))
    placement = placed(geometry, data.draw(free_masks(geometry)), request)
    decision = read_assignment(
        POD, write_assignment(assignment_of(geometry, placement, 7), {*dialects, Dialect.NEURON_PLUGIN}), request
    )
    expected = tuple(
        ContainerAssignment(part.request, geometry.ids_of(part.request.resource.unit, part.mask)) for part in placement
    )
    assert decision == Assignment(expected, 7)


def test_p52_written_ids_ascend_and_are_stable() -> None:
    placement = (ContainerSet(device(3), INF2_RING.devices_mask((9, 11, 10))),)
    for dialect, key in ((Dialect.NEURON_PLUGIN, DEVICES_KEY), (Dialect.VENDOR, VENDOR_IDS_KEY)):
        assert write_assignment(assignment_of(INF2_RING, placement, 1), [dialect])[key] == "9,10,11"


def test_e10_the_vendors_ids_are_of_the_unit_that_the_pod_requests() -> None:
    assert ids_read({VENDOR_IDS_KEY: "0,1,2,3"}, device(4)) == [(0, 1, 2, 3)]
    assert ids_read({VENDOR_IDS_KEY: "4,5", VENDOR_RESOURCE_KEY: Resource.NEURONCORE.value}, core(2)) == [(4, 5)]
    assert ids_read({VENDOR_IDS_KEY: "1", VENDOR_RESOURCE_KEY: Resource.NEURON.value}, device(1)) == [(1,)]


def test_p65_the_vendors_one_list_is_dealt_out_in_order() -> None:
    request = (device(2, "a"), device(1, "b"))
    assert ids_read({VENDOR_IDS_KEY: "4-6"}, *request) == [(4, 5), (6,)]
    assert ids_read({VENDOR_IDS_KEY: "5,6|4"}, *request) == [(5, 6), (4,)]


def test_p65_what_init_containers_had_is_dealt_out_again() -> None:
    nested = (device(2, "i", ContainerKind.INIT), device(3, "a"))
    assert ids_read({VENDOR_IDS_KEY: "0,1,2"}, *nested) == [(0, 1), (0, 1, 2)]
    shared = (device(3, "i", ContainerKind.INIT), device(1, "s", ContainerKind.SIDECAR), device(2, "a"))
    assert ids_read({VENDOR_IDS_KEY: "0,1,2"}, *shared) == [(0, 1, 2), (0,), (1, 2)]


def test_p65_nothing_is_dealt_out_again_under_another_resource_name() -> None:
    request = (neuron(1, "i", ContainerKind.INIT), device(1, "a"))
    assert ids_read({VENDOR_IDS_KEY: "0,1"}, *request) == [(0,), (1,)]
    assert refused({VENDOR_IDS_KEY: "0"}, *request).key == VENDOR_IDS_KEY


def test_the_vendors_dialect_cannot_say_two_resources() -> None:
    placement = place(TRN1, TRN1.all_mask, (device(1, "a"), core(1, "b")))
    assert not isinstance(placement, Rejection)
    assert set(write_assignment(assignment_of(TRN1, placement, 1), [Dialect.VENDOR])) == {ALLOC_TIME_KEY, ALLOCATED_KEY}


@given(st.data(), any_geometry(), st.sampled_from(Resource))
def test_p52_what_the_vendors_dialect_alone_says_is_read_as_placed(
    data: st.DataObject, geometry: Geometry, resource: Resource
) -> None:
    request = data.draw(pods(geometry, resources=(resource,)))
    placement = placed(geometry, data.draw(free_masks(geometry)), request)
    expected = [geometry.ids_of(resource.unit, part.mask) for part in placement]
    assert ids_read(write_assignment(assignment_of(geometry, placement, 7), [Dialect.VENDOR]), *request) == expected


def test_the_vendors_dialect_alone_keeps_to_one_list_where_that_is_dealt_out_as_placed() -> None:
    one, four = device(1, "a"), device(4, "b")
    row, before, behind = TRN1.devices_mask(range(4, 8)), TRN1.devices_mask((3,)), TRN1.devices_mask((8,))
    in_order = (ContainerSet(one, before), ContainerSet(four, row))
    crossed = (ContainerSet(one, behind), ContainerSet(four, row))
    assert write_assignment(assignment_of(TRN1, in_order, 1), [Dialect.VENDOR])[VENDOR_IDS_KEY] == "3,4,5,6,7"
    assert write_assignment(assignment_of(TRN1, crossed, 1), [Dialect.VENDOR])[VENDOR_IDS_KEY] == "8|4,5,6,7"
    assert write_assignment(assignment_of(TRN1, crossed, 1), list(Dialect))[VENDOR_IDS_KEY] == "4,5,6,7,8"


def test_e10_dialects_that_agree_are_read_once() -> None:
    both = {DEVICES_KEY: "0,1", VENDOR_IDS_KEY: "1,0", VENDOR_RESOURCE_KEY: Resource.NEURON.value}
    assert ids_read(both, device(2)) == [(0, 1)]
    assert ids_read({DEVICES_KEY: "2|0,1", VENDOR_IDS_KEY: "0,1,2"}, device(1, "a"), device(2, "b")) == [(2,), (0, 1)]


def test_e10_dialects_that_contradict_are_refused() -> None:
    error = refused({DEVICES_KEY: "0,1", VENDOR_IDS_KEY: "2,3"}, device(2))
    assert error.key == VENDOR_IDS_KEY
    assert error.expected == "expected the ids that NEURON_DEVS and NEURON_CORES give"


def test_e10_lists_per_container_contradict_even_with_the_same_ids() -> None:
    error = refused({DEVICES_KEY: "0|1", VENDOR_IDS_KEY: "1|0"}, device(1, "a"), device(1, "b"))
    assert error.key == VENDOR_IDS_KEY


@pytest.mark.parametrize(
    ("annotations", "key"),
    [
        ({DEVICES_KEY: ""}, DEVICES_KEY),
        ({DEVICES_KEY: "0"}, DEVICES_KEY),
        ({DEVICES_KEY: "0,1,2"}, DEVICES_KEY),
        ({DEVICES_KEY: "0,1|2,3"}, DEVICES_KEY),
        ({DEVICES_KEY: "0,x"}, DEVICES_KEY),
        ({DEVICES_KEY: "0,0"}, DEVICES_KEY),
        ({DEVICES_KEY: "0,99999"}, DEVICES_KEY),
        ({CORES_KEY: "0,1"}, DEVICES_KEY),
        ({DEVICES_KEY: "0,1", CORES_KEY: "4"}, CORES_KEY),
        ({VENDOR_IDS_KEY: ""}, VENDOR_IDS_KEY),
        ({VENDOR_IDS_KEY: "0"}, VENDOR_IDS_KEY),
        ({VENDOR_IDS_KEY: "0|1"}, VENDOR_IDS_KEY),
        ({VENDOR_IDS_KEY: "[0 1]"}, VENDOR_IDS_KEY),
        ({VENDOR_IDS_KEY: "0,1", VENDOR_RESOURCE_KEY: Resource.NEURONCORE.value}, VENDOR_RESOURCE_KEY),
        ({VENDOR_IDS_KEY: "0,1", VENDOR_RESOURCE_KEY: "nvidia.com/gpu"}, VENDOR_RESOURCE_KEY),
        ({DEVICES_KEY: "0,1", ALLOC_TIME_KEY: "soon"}, ALLOC_TIME_KEY),
        ({DEVICES_KEY: "0,1", ALLOC_TIME_KEY: "-1"}, ALLOC_TIME_KEY),
        ({DEVICES_KEY: "0,1", ALLOC_TIME_KEY: "9" * 20}, ALLOC_TIME_KEY),
        ({DEVICES_KEY: "0,1", ALLOC_TIME_KEY: "٣"}, ALLOC_TIME_KEY),
    ],
)
def test_t34_what_cannot_be_followed_is_refused_by_its_key(annotations: dict[str, str], key: str) -> None:
    assert refused(annotations, device(2)).key == key


def test_t34_a_missing_list_says_whose_it_is() -> None:
    error = refused({DEVICES_KEY: "0"}, device(1, "a"), core(2, "b"))
    assert error.key == CORES_KEY
    assert "2 for b" in str(error)
    assert "the key is missing" in str(error)


def test_t34_a_count_that_differs_names_the_container() -> None:
    assert "expected 2 ids for container b" in str(refused({DEVICES_KEY: "0|1"}, device(1, "a"), device(2, "b")))


def test_t34_a_vendors_list_that_is_too_long_for_all_containers_is_refused() -> None:
    for value in ("0-3", "0,1"):
        assert "2 list(s)" in str(refused({VENDOR_IDS_KEY: value}, device(2, "a"), device(1, "b")))


def test_t34_a_vendors_list_on_a_pod_of_two_units_is_refused() -> None:
    assert "requests both" in str(refused({VENDOR_IDS_KEY: "0,1"}, device(1, "a"), core(1, "b")))


@pytest.mark.parametrize(
    "request_",
    [
        (device(2, "a"), device(2, "b")),
        (device(2, "a", ContainerKind.SIDECAR), device(2, "b")),
        (neuron(2, "a", ContainerKind.INIT), device(2, "b")),
    ],
    ids=["apps", "sidecar", "another name"],
)
def test_t20_an_id_of_two_containers_that_the_kubelet_keeps_apart_is_refused(request_: PodRequest) -> None:
    error = refused({DEVICES_KEY: "0,1|1,2"}, *request_)
    assert error.key == DEVICES_KEY
    assert "the id 1 of container b" in str(error)


def test_t20_what_a_sidecar_took_from_an_init_container_is_its_own() -> None:
    request = (device(1, "i", ContainerKind.INIT), device(1, "s", ContainerKind.SIDECAR), device(1, "a"))
    assert ids_read({DEVICES_KEY: "0|0|1"}, *request) == [(0,), (0,), (1,)]
    assert refused({DEVICES_KEY: "0|0|0"}, *request).key == DEVICES_KEY
    assert refused({VENDOR_IDS_KEY: "0|0|0"}, *request).key == VENDOR_IDS_KEY


def test_the_same_number_as_device_and_as_core_is_no_sharing() -> None:
    assert ids_read({DEVICES_KEY: "1", CORES_KEY: "1"}, device(1, "a"), core(1, "b")) == [(1,), (1,)]


def test_a_pod_without_assignment_has_no_decision() -> None:
    assert read_assignment(POD, {}, (device(2),)) is None
    assert (
        read_assignment(POD, {ALLOC_TIME_KEY: "never", ALLOCATED_KEY: "true", VENDOR_RESOURCE_KEY: "x"}, (device(2),))
        is None
    )


@pytest.mark.parametrize("key", ASSIGNMENT_KEYS)
def test_an_assignment_on_a_pod_that_requests_nothing_says_nothing(key: str) -> None:
    assert read_assignment(POD, {key: "garbage"}, ()) is None


@pytest.mark.parametrize(
    ("text", "allocated"), [("true", True), ("True", True), ("false", False), ("", False), ("1", False)]
)
def test_allocated_is_true_only_when_it_says_so(text: str, allocated: bool) -> None:  # noqa: FBT001  # a parameter
    decision = read_assignment(
        POD, {DEVICES_KEY: "0", ALLOC_TIME_KEY: "1789352350678418384", ALLOCATED_KEY: text}, (device(1),)
    )
    assert decision is not None
    assert (decision.allocated, decision.alloc_time_ns) == (allocated, 1789352350678418384)


id_texts = st.text(alphabet="0123456789,-| x٣", max_size=12)
texts = st.one_of(id_texts, st.text(max_size=30), st.sampled_from([resource.value for resource in Resource]))


@given(st.data(), any_geometry(), st.dictionaries(st.sampled_from(KEYS), texts))
def test_t34_any_texts_are_a_decision_that_fits_the_pod_or_the_one_typed_error(
    data: st.DataObject, geometry: Geometry, annotations: dict[str, str]
) -> None:
    request = data.draw(pods(geometry, most=3))
    try:
        decision = read_assignment(POD, annotations, request)
    except AssignmentError as error:
        named = (error.pod, error.key in KEYS, error.value)
        assert named == (POD, True, annotations.get(error.key, ""))  # noqa: PT017  # no error is fine as well
        return
    assert (decision is None) == (not any(key in annotations for key in ASSIGNMENT_KEYS))
    if decision is not None:
        assert [part.request for part in decision.containers] == list(request)
        assert all(len(part.ids) == part.request.count == len(set(part.ids)) for part in decision.containers)


def spoiled(text: str, data: st.DataObject) -> str:
    """The text with a little of it cut out and something else put in."""
    begin = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(begin, min(len(text), begin + 2)))
    return text[:begin] + data.draw(st.text(alphabet="0123456789,-| ", max_size=3)) + text[end:]


@given(st.data(), any_geometry(), st.sets(st.sampled_from(Dialect), min_size=1))
def test_t34_an_assignment_that_was_tampered_with_is_refused_or_keeps_containers_and_dialects_apart(
    data: st.DataObject, geometry: Geometry, dialects: set[Dialect]
) -> None:
    request = data.draw(pods(geometry, most=3))
    placement = placed(geometry, geometry.all_mask, request)
    annotations = write_assignment(assignment_of(geometry, placement, 7), dialects)
    key = data.draw(st.sampled_from(sorted(annotations)))
    annotations[key] = spoiled(annotations[key], data)
    try:
        decision = read_assignment(POD, annotations, request)
    except AssignmentError:
        return
    if decision is None:
        assert not any(key in annotations for key in ASSIGNMENT_KEYS)
        return
    assert [part.request for part in decision.containers] == list(request)
    assert all(len(set(part.ids)) == part.request.count for part in decision.containers)
    apps = [part for part in decision.containers if part.request.kind is ContainerKind.APP]
    for unit in Unit:
        ids = [number for part in apps if part.request.resource.unit is unit for number in part.ids]
        assert len(ids) == len(set(ids))
    if VENDOR_IDS_KEY in annotations and {DEVICES_KEY, CORES_KEY} & annotations.keys():
        theirs = {number for text in annotations[VENDOR_IDS_KEY].split("|") for number in parse_ids(text)}
        assert theirs == {number for part in decision.containers for number in part.ids}


@pytest.mark.parametrize("key", ASSIGNMENT_KEYS)
@pytest.mark.parametrize("value", ["0," * 10**6, "|" * 10**5, "9" * 10**6, "0-4095|" * 10**4])
def test_t34_huge_values_are_refused_without_effort_and_cut_in_the_message(key: str, value: str) -> None:
    part = core(2) if key == CORES_KEY else device(2)
    error = refused({key: value}, part)
    assert error.value == value
    assert len(str(error)) < 1000


def test_a_request_beyond_all_reason_fits_no_list() -> None:
    assert refused({VENDOR_IDS_KEY: "0-9"}, device(2**63 - 1, "a"), device(1, "b")).key == VENDOR_IDS_KEY
    assert {Unit.DEVICE, Unit.CORE} == {resource.unit for resource in Resource}
