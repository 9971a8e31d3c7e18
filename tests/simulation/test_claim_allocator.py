"""The simulated kube-scheduler's choice of devices for claims."""

from __future__ import annotations

import pytest

from neuron_plugin.simulation.claim_allocator import NOT_ALLOCATED, NotAllocatedError, allocate, offered_devices
from tests.simulation.dra import DRIVER, GROUP_OF_4, Json, claim_spec, device_class, exactly, linked, node_slice

CLASSES = {
    DRIVER: device_class(),
    "efa": device_class("efa"),
    "neuroncore": device_class(
        "neuroncore",
        f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].?resourceType.orValue("") == "core"',
    ),
}


def chosen(spec: Json, taken: tuple[int, ...] = (), tainted: tuple[int, ...] = ()) -> list[int]:
    """The numbers of the devices for a claim on a trn1.32xlarge."""
    devices = offered_devices([node_slice(tainted=tainted), node_slice("n2")], "n1")
    busy = {(DRIVER, "n1-neuron", f"neuron-{number}") for number in taken}
    found = allocate({"spec": spec}, CLASSES, devices, busy)["results"]
    return [int(each["device"].removeprefix("neuron-")) for each in found]


def selected(expression: str) -> Json:
    return claim_spec(exactly(allocationMode="All", selectors=[{"cel": {"expression": expression}}]))


@pytest.mark.parametrize(
    ("spec", "taken", "devices"),
    [
        (claim_spec(), (), [0]),
        (claim_spec(), (0, 1), [2]),
        (claim_spec(exactly(count=3)), (1,), [0, 2, 3]),
        (linked(4), (), [0, 1, 2, 3]),
        (linked(4), (2,), [4, 5, 6, 7]),
        (linked(8), (2,), list(range(8, 16))),
        (linked(16), (), list(range(16))),
        (claim_spec(exactly(allocationMode="All")), (), list(range(16))),
        (claim_spec(exactly("a"), exactly("b", count=2)), (0,), [1, 2, 3]),
        (claim_spec(exactly("a"), exactly("b"), constraints=[{"distinctAttribute": GROUP_OF_4}]), (), [0, 4]),
        (claim_spec(exactly("a"), exactly("b"), constraints=[{"matchAttribute": GROUP_OF_4}]), (1, 2, 3), [4, 5]),
        (selected(f'device.attributes["{DRIVER}"].deviceId < 2'), (), [0, 1]),
        (selected(f'(device.driver == "{DRIVER}") && device.attributes["{DRIVER}"].deviceId >= 14'), (), [14, 15]),
    ],
)
def test_the_first_devices_that_fit_are_chosen(spec: Json, taken: tuple[int, ...], devices: list[int]) -> None:
    assert chosen(spec, taken) == devices


@pytest.mark.parametrize(
    ("spec", "taken", "text"),
    [
        (claim_spec(exactly(count=17)), (), NOT_ALLOCATED),
        (linked(4), (0, 4, 8, 12), NOT_ALLOCATED),
        (linked(8), (7, 8), NOT_ALLOCATED),
        (linked(3, 4), (0, 1, 4, 5, 8, 9, 12, 13), NOT_ALLOCATED),
        (claim_spec(exactly(allocationMode="All")), (3,), NOT_ALLOCATED),
        (claim_spec(exactly(deviceClassName="efa")), (), NOT_ALLOCATED),
        (claim_spec(exactly(deviceClassName="neuroncore")), (), NOT_ALLOCATED),
        (claim_spec(constraints=[{"matchAttribute": "example.com/rack"}]), (), NOT_ALLOCATED),
        (claim_spec(exactly(deviceClassName="gone")), (), "request neurons: device class gone does not exist"),
        (selected("device.capacity.size() > 0"), (), "the selector 'device.capacity.size() > 0' is not simulated"),
    ],
)
def test_a_claim_that_does_not_fit_says_why(spec: Json, taken: tuple[int, ...], text: str) -> None:
    with pytest.raises(NotAllocatedError) as error:
        chosen(spec, taken)
    assert str(error.value) == text


def test_a_taint_keeps_claims_off_that_do_not_tolerate_it() -> None:
    assert chosen(claim_spec(), tainted=(0,)) == [1]
    tolerated = {"key": "neuron-plugin.io/unhealthy", "operator": "Exists"}
    assert chosen(claim_spec(exactly(tolerations=[tolerated])), tainted=(0,)) == [0]
    with pytest.raises(NotAllocatedError):
        chosen(claim_spec(exactly(allocationMode="All")), tainted=(0,))


def test_the_first_alternative_that_fits_is_taken_and_named() -> None:
    ways = [
        {"name": "many", "deviceClassName": DRIVER, "count": 20},
        {"name": "few", "deviceClassName": DRIVER, "count": 2},
    ]
    found = allocate(
        {"spec": claim_spec({"name": "n", "firstAvailable": ways})}, CLASSES, offered_devices([node_slice()], "n1"), ()
    )
    assert [(each["request"], each["device"]) for each in found["results"]] == [
        ("n/few", "neuron-0"),
        ("n/few", "neuron-1"),
    ]


def test_configuration_comes_along_that_of_the_class_first() -> None:
    opaque = {"opaque": {"driver": DRIVER, "parameters": {"kind": "NeuronConfig"}}}
    known = device_class()
    known["spec"]["config"] = [opaque]
    spec = claim_spec(config=[opaque])
    found = allocate({"spec": spec}, {DRIVER: known}, offered_devices([node_slice()], "n1"), ())
    assert found["config"] == [
        {"source": "FromClass", "requests": ["neurons"], **opaque},
        {"source": "FromClaim", **opaque},
    ]
