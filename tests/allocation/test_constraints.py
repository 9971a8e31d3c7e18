"""What annotations ask of a pod's devices, and what of them cannot be read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.allocation.constraints import ANY_DEVICE, Constraints, read_constraints
from neuron_plugin.allocation.constraints import LONGEST_CONSTRAINT as LONGEST_TEXT
from neuron_plugin.allocation.keys import CONSTRAINT_KEYS, PREFIX
from neuron_plugin.allocation.rejection import Rejection
from neuron_plugin.topology import Unit

ASKED = (("load", Unit.CORE), ("serve", Unit.CORE), ("train", Unit.DEVICE))


def read(**texts: str) -> Constraints:
    found = read_constraints({PREFIX + key.replace("_", "-"): text for key, text in texts.items()}, ASKED)
    assert isinstance(found, Constraints), found
    return found


def detail(key: str, text: str) -> str:
    found = read_constraints({PREFIX + key: text}, ASKED)
    assert isinstance(found, Rejection)
    assert found.code == "invalid-constraint"
    assert not found.may_pass
    return found.detail


def test_a_pod_without_these_annotations_has_no_constraints() -> None:
    assert read_constraints({"example.com/allow-devices": "1", "NEURON_DEVS": "1"}, ASKED) is None


def test_products_and_families_are_read_in_any_case() -> None:
    assert read(device_name="Trainium1, trn2").products == {"trainium1", "trn2"}


def test_denied_devices_are_taken_from_the_allowed_ones() -> None:
    assert read(allow_devices="0-3", deny_devices="2").allowed_devices == 0b1011
    assert read(deny_devices="2, 0").allowed_devices == ANY_DEVICE & ~0b101


def test_preferences_are_read() -> None:
    found = read(prefer_devices="5,4", prefer_numa=" true ", balance="memory ")
    assert (found.preferred_devices, found.prefer_numa, found.balance) == (0b110000, True, "memory")
    assert not read(prefer_numa="false").prefer_numa


def test_a_text_may_be_as_long_as_the_limit_says() -> None:
    assert read(deny_devices="1".ljust(LONGEST_TEXT)).allowed_devices == ANY_DEVICE & ~0b10


def test_containers_that_share_a_device_are_known_by_their_place() -> None:
    assert read(same_device="serve, load").same_device == (0, 1)


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("allow-devices", "", "'' is no id"),
        ("allow-devices", "1;2", "'1;2' is no id: expected decimal ids from 0 to 4095 such as 2,3 or 0-3"),
        ("deny-devices", "-1", "is no id"),
        ("prefer-devices", "1,1", "the id 1 is twice in the list"),
        ("allow-devices", "64", "the id 64 is above 63, expected ids of devices on the host"),
        ("device-name", "", "'' is no name, expected names joined by commas"),
        ("device-name", "trn1,,trn2", "'' is no name"),
        ("device-name", "trn 1", "'trn 1' is no name"),
        ("same-device", "load", "expected two or more containers, each once"),
        ("same-device", "load,load", "expected two or more containers, each once"),
        ("same-device", "load,train", "'train' is no container that asks for neuroncore"),
        ("same-device", "load,other", "'other' is no container that asks for neuroncore"),
        ("prefer-numa", "yes", "expected true or false"),
        ("balance", "memory,cores", "expected the name of an amount, such as memory"),
        ("allow-devices", "1," * LONGEST_TEXT, "expected at most 1024 characters"),
    ],
)
def test_what_cannot_be_read_names_annotation_value_and_expectation(key: str, text: str, expected: str) -> None:
    found = detail(key, text)
    assert found.startswith(f"annotation neuron-plugin.io/{key} is ")
    assert expected in found
    assert len(found) < 300


@given(st.sampled_from(CONSTRAINT_KEYS), st.text())
def test_any_text_is_read_or_refused(key: str, text: str) -> None:
    found = read_constraints({key: text}, ASKED)
    assert isinstance(found, Constraints | Rejection)
