"""A pod's demand is read as the kubelet reads it."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.allocation.requests import (
    MOST,
    MOST_AMOUNTS,
    ContainerKind,
    ContainerRequest,
    ContainerSpec,
    RequestError,
    parse_count,
    pod_request,
)
from neuron_plugin.allocation.resources import Resource

DEVICE, NEURON, CORE = Resource.NEURONDEVICE.value, Resource.NEURON.value, Resource.NEURONCORE.value


def counted(limits: dict[str, str] | None = None, requests: dict[str, str] | None = None) -> int | None:
    """The count of one container with these limits or requests; None when it asks for nothing."""
    request = pod_request([ContainerSpec("main", limits=limits or {}, requests=requests or {})])
    return request[0].count if request else None


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("-0", 0),
        ("4", 4),
        ("+4", 4),
        ("4.0", 4),
        ("4.", 4),
        ("1k", 1000),
        ("1Ki", 1024),
        ("2M", 2_000_000),
        ("1Ei", 2**60),
        ("1E", 10**18),
        ("2e0", 2),
        ("2E1", 20),
        ("20e-1", 2),
        ("1000m", 1),
        ("4000000u", 4),
        ("3000000000n", 3),
        (".5k", 500),
        ("0e999", 0),
        ("9223372036854775807", MOST),
    ],
)
def test_t23_whole_quantities_are_counted(text: str, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize(
    "text",
    [
        "",
        " 1",
        "1 ",
        "x",
        "-1",
        "-1k",
        "0.5",
        "1m",
        "1e-1",
        "1.5",
        "1K",
        "1ki",
        "1e",
        "--1",
        "0x4",
        "1_0",
        "٣",
        ".",
        "1e5k",
        "9223372036854775808",
        "8Ei",
        "1e19",
        "1e999",
        "1e9999999999",
        "9" * 65,
        "NaN",
        "inf",
        "1/2",
        "1\n",
    ],
)
def test_t23_what_is_no_whole_number_of_64_bits_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a"):
        parse_count(text)


@given(st.integers(0, MOST))
def test_every_64_bit_count_reads_back(count: int) -> None:
    assert parse_count(str(count)) == count


@given(st.integers(0, 10**6), st.sampled_from([("k", 10**3), ("Mi", 2**20), ("e3", 10**3), ("m", Fraction(1, 1000))]))
def test_suffixes_multiply(number: int, suffix: tuple[str, int | Fraction]) -> None:
    value = number * suffix[1]
    if value == int(value):
        assert parse_count(f"{number}{suffix[0]}") == value
    else:
        with pytest.raises(ValueError, match="whole"):
            parse_count(f"{number}{suffix[0]}")


@given(st.one_of(st.text(max_size=70), st.text(alphabet="0123456789.eE+-kMGiTPnum", max_size=12)))
def test_any_text_is_a_count_or_the_documented_error(text: str) -> None:
    try:
        count = parse_count(text)
    except ValueError:
        return
    assert 0 <= count <= MOST


@pytest.mark.parametrize("text", ["9" * 10**6, "1e" + "9" * 10**6, "-" * 10**6])
def test_t23_quantities_that_would_explode_are_refused_by_length(text: str) -> None:
    with pytest.raises(RequestError) as caught:
        pod_request([ContainerSpec("main", limits={CORE: text})])
    assert len(str(caught.value)) < 300


def test_t22_limits_only_requests_only_and_both() -> None:
    assert counted(limits={DEVICE: "4"}) == 4
    assert counted(requests={DEVICE: "4"}) == 4
    assert counted(limits={DEVICE: "8"}, requests={DEVICE: "4"}) == 8
    assert counted(limits={DEVICE: "0"}, requests={DEVICE: "4"}) is None
    assert counted(limits={"cpu": "1"}, requests={DEVICE: "4"}) == 4


def test_t23_zero_asks_for_nothing() -> None:
    assert counted(limits={DEVICE: "0", CORE: "0"}) is None
    assert counted() is None


def test_t20_only_requesting_containers_count_and_keep_their_order() -> None:
    containers = [
        ContainerSpec("setup", ContainerKind.INIT, limits={CORE: "2"}),
        ContainerSpec("proxy", ContainerKind.SIDECAR, limits={"cpu": "1"}),
        ContainerSpec("log", ContainerKind.SIDECAR, limits={NEURON: "1"}),
        ContainerSpec("web", limits={"nvidia.com/gpu": "1"}),
        ContainerSpec("main", requests={DEVICE: "4"}),
    ]
    assert pod_request(containers) == (
        ContainerRequest("setup", ContainerKind.INIT, Resource.NEURONCORE, 2),
        ContainerRequest("log", ContainerKind.SIDECAR, Resource.NEURON, 1),
        ContainerRequest("main", ContainerKind.APP, Resource.NEURONDEVICE, 4),
    )


def test_a_pod_without_neuron_asks_for_nothing() -> None:
    assert pod_request([ContainerSpec("web", limits={"cpu": "oops", "memory": "-1"})]) == ()
    assert pod_request([]) == ()


@pytest.mark.parametrize(("one", "other"), [(DEVICE, CORE), (NEURON, CORE), (NEURON, DEVICE)])
def test_t21_two_neuron_resources_in_one_container_are_refused(one: str, other: str) -> None:
    with pytest.raises(
        RequestError, match=r"container main asks for .* and .*: ask for one Neuron resource per container"
    ):
        pod_request([ContainerSpec("main", limits={one: "1"}, requests={other: "1"})])


def test_t21_a_second_resource_of_zero_is_no_second_resource() -> None:
    assert counted(limits={DEVICE: "2", CORE: "0", NEURON: "0"}) == 2


def test_t23_a_refused_quantity_names_container_resource_and_value() -> None:
    with pytest.raises(
        RequestError, match=r"container main asks for aws\.amazon\.com/neuroncore: '-2' is not a whole number"
    ):
        pod_request([ContainerSpec("main", limits={CORE: "-2"})])


quantities = st.dictionaries(
    st.sampled_from([*(resource.value for resource in Resource), "cpu"]), st.one_of(st.just("1"), st.text(max_size=8))
)


MEMORY = "neuron-plugin.io/memory"


def amounts(limits: dict[str, str]) -> tuple[tuple[str, int], ...]:
    return pod_request([ContainerSpec("main", limits=limits)])[0].amounts


def refused(limits: dict[str, str]) -> str:
    with pytest.raises(RequestError) as error:
        pod_request([ContainerSpec("other", limits={CORE: "1"}), ContainerSpec("main", limits=limits)])
    return str(error.value)


def test_amounts_are_read_by_name_beside_a_neuron_resource() -> None:
    asked = {"neuron-plugin.io/shares": "2", MEMORY: "5Ki", CORE: "1", "cpu": "1"}
    assert amounts(asked) == (("memory", 5120), ("shares", 2))
    assert pod_request([ContainerSpec("main", requests={CORE: "1", MEMORY: "7"})])[0].amounts == (("memory", 7),)


def test_an_amount_of_zero_is_no_amount() -> None:
    assert amounts({CORE: "1", MEMORY: "0"}) == ()
    assert pod_request([ContainerSpec("main", limits={MEMORY: "0"})]) == ()


@pytest.mark.parametrize("limits", [{MEMORY: "1"}, {MEMORY: "1", CORE: "0"}, {MEMORY: "1", "cpu": "1"}])
def test_an_amount_without_neuron_is_refused(limits: dict[str, str]) -> None:
    expected = "container main asks for neuron-plugin.io/memory and for no Neuron device or core"
    assert refused(limits) == f"{expected}: ask for aws.amazon.com/neuroncore beside it"


@pytest.mark.parametrize("text", ["-1", "500m", "9223372036854775808", "lots"])
def test_an_amount_that_is_no_whole_number_of_64_bits_is_refused(text: str) -> None:
    assert refused({CORE: "1", MEMORY: text}).startswith(f"container main asks for {MEMORY}: {text!r} is not a ")


def test_more_amounts_than_anybody_needs_are_refused() -> None:
    many = {f"neuron-plugin.io/a{number}": "1" for number in range(MOST_AMOUNTS + 1)}
    assert refused({CORE: "1", **many}) == "container main asks for 9 amounts, expected at most 8"


@given(
    st.lists(st.builds(ContainerSpec, st.text(), st.sampled_from(ContainerKind), quantities, quantities), max_size=4)
)
def test_any_pod_has_a_demand_or_a_typed_error(containers: list[ContainerSpec]) -> None:
    try:
        request = pod_request(containers)
    except RequestError:
        return
    assert all(0 < part.count <= MOST for part in request)
