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
from neuron_plugin.allocation.resources import Resource, parse_ids, ranges
from neuron_plugin.topology import Geometry, Unit, sets_by_count, valid_sets
from tests.allocation.nodes import any_geometry, core, device, free_masks, pods, request_of
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


CORE, GPU, ANY_NEURON = (
    {VENDOR_RESOURCE_KEY: name} for name in (Resource.NEURONCORE.value, "nvidia.com/gpu", Resource.NEURON.value)
)
READ: dict[str, tuple[dict[str, str], str, str]] = {
    "the seed's cores": ({CORES_KEY: "2,3"}, "core:2", "2-3"),
    "the seed's devices": ({DEVICES_KEY: "2,3"}, "2", "2-3"),
    "t20 containers in spec order, init first": ({DEVICES_KEY: "0,1|0,1|2"}, "init:2 2 neuron:1", "0-1 0-1 2"),
    "e10 the vendor's ids are devices where the pod requests devices": ({VENDOR_IDS_KEY: "0,1,2,3"}, "4", "0-3"),
    "e10 and cores where it requests cores": ({VENDOR_IDS_KEY: "4,5"} | CORE, "core:2", "4-5"),
    "e10 under another name of the same unit": ({VENDOR_IDS_KEY: "1"} | ANY_NEURON, "1", "1"),
    "p65 the vendor's one list is dealt out in order": ({VENDOR_IDS_KEY: "4-6"}, "2 1", "4-5 6"),
    "p65 or it has one for each container": ({VENDOR_IDS_KEY: "5,6|4"}, "2 1", "5-6 4"),
    "p65 what init containers had is dealt out again": ({VENDOR_IDS_KEY: "0,1,2"}, "init:2 3", "0-1 0-2"),
    "p65 but for what a sidecar keeps": ({VENDOR_IDS_KEY: "0,1,2"}, "init:3 sidecar:1 2", "0-2 0 1-2"),
    "p65 not under another resource name": ({VENDOR_IDS_KEY: "0,1"}, "init:neuron:1 1", "0 1"),
    "e10 dialects that agree": ({DEVICES_KEY: "0,1", VENDOR_IDS_KEY: "1,0"} | ANY_NEURON, "2", "0-1"),
    "e10 one list and two that agree": ({DEVICES_KEY: "2|0,1", VENDOR_IDS_KEY: "0,1,2"}, "1 2", "2 0-1"),
    "t20 what a sidecar took is its own": ({DEVICES_KEY: "0|0|1"}, "init:1 sidecar:1 1", "0 0 1"),
    "the same number as device and as core is no sharing": ({DEVICES_KEY: "1", CORES_KEY: "1"}, "1 core:1", "1 1"),
}


@pytest.mark.parametrize(("annotations", "request_", "expected"), READ.values(), ids=READ)
def test_which_ids_each_container_has(annotations: dict[str, str], request_: str, expected: str) -> None:
    assert " ".join(map(ranges, ids_read(annotations, *request_of(request_)))) == expected


DEVICE_LISTS = ("", "0", "0,1,2", "0,1|2,3", "0,x", "0,0", "0,99999")
OTHERS = ("", "sidecar:", "init:neuron:")
TWICE = "the id 1 of container c1"
REFUSED: list[tuple[dict[str, str], str, str, str]] = [
    *(({DEVICES_KEY: text}, "2", DEVICES_KEY, "") for text in DEVICE_LISTS),
    *(({VENDOR_IDS_KEY: text}, "2", VENDOR_IDS_KEY, "") for text in ("", "0", "0|1", "[0 1]")),
    *(({VENDOR_IDS_KEY: "0,1"} | other, "2", VENDOR_RESOURCE_KEY, "") for other in (CORE, GPU)),
    *(({DEVICES_KEY: "0,1", ALLOC_TIME_KEY: at}, "2", ALLOC_TIME_KEY, "") for at in ("soon", "-1", "9" * 20, "٣")),
    ({CORES_KEY: "0,1"}, "2", DEVICES_KEY, ""),
    ({DEVICES_KEY: "0,1", CORES_KEY: "4"}, "2", CORES_KEY, ""),
    # Whose list or id it is.
    ({DEVICES_KEY: "0"}, "1 core:2", CORES_KEY, "2 for c1"),
    ({DEVICES_KEY: "0"}, "1 core:2", CORES_KEY, "the key is missing"),
    ({DEVICES_KEY: "0|1"}, "1 2", DEVICES_KEY, "expected 2 ids for container c1"),
    ({VENDOR_IDS_KEY: "0-3"}, "2 1", VENDOR_IDS_KEY, "2 list(s)"),
    ({VENDOR_IDS_KEY: "0,1"}, "2 1", VENDOR_IDS_KEY, "2 list(s)"),
    ({VENDOR_IDS_KEY: "0"}, "init:neuron:1 1", VENDOR_IDS_KEY, ""),
    ({VENDOR_IDS_KEY: "0-9"}, f"{2**63 - 1} 1", VENDOR_IDS_KEY, ""),
    ({VENDOR_IDS_KEY: "0,1"}, "1 core:1", VENDOR_IDS_KEY, "requests both"),
    # T20: an id of two containers that the kubelet keeps apart.
    *(({DEVICES_KEY: "0,1|1,2"}, f"{first}2 2", DEVICES_KEY, TWICE) for first in OTHERS),
    ({DEVICES_KEY: "0|0|0"}, "init:1 sidecar:1 1", DEVICES_KEY, ""),
    ({VENDOR_IDS_KEY: "0|0|0"}, "init:1 sidecar:1 1", VENDOR_IDS_KEY, ""),
    # E10: dialects that contradict each other, even with the same ids.
    ({DEVICES_KEY: "0,1", VENDOR_IDS_KEY: "2,3"}, "2", VENDOR_IDS_KEY, "that NEURON_DEVS and NEURON_CORES give"),
    ({DEVICES_KEY: "0|1", VENDOR_IDS_KEY: "1|0"}, "1 1", VENDOR_IDS_KEY, ""),
]


@pytest.mark.parametrize(("annotations", "request_", "key", "said"), REFUSED)
def test_t34_what_cannot_be_followed_is_refused_by_its_key(
    annotations: dict[str, str], request_: str, key: str, said: str
) -> None:
    error = refused(annotations, *request_of(request_))
    assert error.key == key
    assert said in str(error)


@pytest.mark.parametrize(("request_", "key"), [("core:2", CORES_KEY), ("2", DEVICES_KEY)])
def test_the_seeds_sets_are_written_as_2_3(request_: str, key: str) -> None:
    (part,) = request_of(request_)
    placement = (ContainerSet(part, INF2_LINE.mask_of(part.resource.unit, (2, 3))),)
    written = write_assignment(assignment_of(INF2_LINE, placement, 17))
    assert written == {key: "2,3", ALLOC_TIME_KEY: "17", ALLOCATED_KEY: "false"}


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
