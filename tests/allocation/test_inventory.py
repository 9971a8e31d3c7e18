"""A node's inventory reads back as written, and garbage is refused by field."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.allocation.inventory import (
    DISABLED_REASON,
    InventoryError,
    NodeInventory,
    disabled_devices,
    read_inventory,
    write_inventory,
)
from neuron_plugin.allocation.resources import IdListError
from neuron_plugin.topology import Geometry, Topology
from tests.topology.oracle import INF2_LINE, TRN1, TRN2, every_geometry

TORN = NodeInventory(
    geometry=TRN1,
    present=tuple(device for device in range(16) if device != 3),
    unhealthy={10: "sram_ecc_uncorrected rose by 2", 9: "reset failed"},
    device_name="Trainium1",
    driver_version="2.26.5.0",
)

FIELDS = json.loads(write_inventory(TORN))


@st.composite
def inventories(draw: st.DrawFn) -> NodeInventory:
    geometry = draw(st.sampled_from(every_geometry()))
    ids = st.integers(0, geometry.device_count - 1)
    return NodeInventory(
        geometry=geometry,
        present=tuple(sorted(draw(st.sets(ids)))),
        unhealthy=draw(st.dictionaries(ids, st.text(max_size=40))),
        device_name=draw(st.text(max_size=20)),
        driver_version=draw(st.text(max_size=20)),
        logical_core_size=draw(st.sampled_from([1, 2])),
        physical_cores_per_device=draw(st.sampled_from([0, 2, 8])),
        ultraserver=draw(st.dictionaries(st.sampled_from(["mode", "serverId4"]), st.text(max_size=20))),
        disabled=tuple(sorted(draw(st.sets(ids)))),
        held_down=tuple(sorted(draw(st.sets(ids)))),
    )


def refusal(**changes: object) -> str:
    with pytest.raises(InventoryError) as caught:
        read_inventory(json.dumps({**FIELDS, **changes}))
    return str(caught.value)


@given(inventories())
def test_an_inventory_reads_back_as_written(inventory: NodeInventory) -> None:
    assert read_inventory(write_inventory(inventory)) == inventory


def test_the_text_is_this_one() -> None:
    assert write_inventory(TORN) == (
        '{"version":1,"instanceType":"trn1.32xlarge","topology":"torus","devices":16,"coresPerDevice":2,'
        '"blockSizes":[1,4,8,16],"present":[0,1,2,4,5,6,7,8,9,10,11,12,13,14,15],'
        '"unhealthy":{"9":"reset failed","10":"sram_ecc_uncorrected rose by 2"},'
        '"deviceName":"Trainium1","driverVersion":"2.26.5.0","logicalCoreSize":1}'
    )


def test_physical_cores_and_the_ultraserver_are_told_where_they_are_known() -> None:
    text = write_inventory(replace(TORN, physical_cores_per_device=2, ultraserver={"serverId4": "ab", "mode": "1,4"}))
    assert text.endswith('"physicalCoresPerDevice":2,"ultraServer":{"mode":"1,4","serverId4":"ab"}}')


def test_an_inventory_of_an_older_plugin_tells_neither() -> None:
    inventory = read_inventory(write_inventory(TORN))
    assert (inventory.physical_cores_per_device, inventory.ultraserver) == (0, {})


def test_the_blocks_of_cores_are_told_where_they_are_not_those_of_devices() -> None:
    text = write_inventory(NodeInventory(TRN2, (0,)))
    assert '"coreBlockSizes":[1,2,4,8,16]' in text
    assert read_inventory(text).geometry == TRN2


@pytest.mark.parametrize("value", [[], "x", {"mode": 1}, {"mode": "x" * 300}, {"y" * 300: ""}])
def test_an_ultraserver_that_is_no_short_texts_is_refused(value: object) -> None:
    assert refusal(ultraServer=value).startswith("ultraServer is ")


def test_equal_inventories_give_equal_texts_whatever_their_order() -> None:
    one = NodeInventory(INF2_LINE, (0, 1, 5), {5: "b", 1: "a"})
    other = NodeInventory(INF2_LINE, (5, 0, 1), {1: "a", 5: "b"})
    assert write_inventory(one) == write_inventory(other)


def test_t25_missing_and_unhealthy_devices_are_not_handed_out() -> None:
    assert TRN1.whole_devices(TORN.healthy_mask) == (0, 1, 2, 4, 5, 6, 7, 8, 11, 12, 13, 14, 15)


def test_a_disabled_device_is_not_handed_out_and_has_its_own_reason() -> None:
    inventory = replace(TORN, disabled=(5, 10))
    assert 5 not in TRN1.whole_devices(inventory.healthy_mask)
    assert TRN1.whole_devices(inventory.disabled_mask) == (5,), "10 could not be handed out anyway"


def test_a_reader_that_does_not_know_of_disabled_devices_takes_them_for_unhealthy() -> None:
    fields = json.loads(write_inventory(replace(TORN, disabled=(5, 10))))
    assert fields.pop("disabled") == [5, 10]
    inventory = read_inventory(json.dumps(fields))
    assert inventory.unhealthy == {**TORN.unhealthy, 5: DISABLED_REASON}


def test_a_device_that_is_held_down_is_known_from_one_that_is_broken() -> None:
    fields = json.loads(write_inventory(replace(TORN, held_down=(9,))))
    assert fields.pop("heldDown") == [9]
    assert fields == FIELDS, "an older reader sees an unhealthy device"
    assert refusal(heldDown=[16]) == "heldDown is 16, expected a whole number from 0 to 15"


@pytest.mark.parametrize("texts", ["uid", [1], ["a", None], {"uid": "b"}])
def test_vanished_pods_that_are_no_list_of_texts_are_refused(texts: object) -> None:
    assert "expected a list of short texts" in refusal(vanishedPods=texts)


def test_disabled_devices_that_are_no_ids_of_the_node_are_refused() -> None:
    assert refusal(disabled=[16]) == "disabled is 16, expected a whole number from 0 to 15"
    assert refusal(disabled="5") == "disabled is '5', expected a list of whole numbers"


@pytest.mark.parametrize(
    ("text", "ids"), [("5,7", (5, 7)), (" 7 , 5", (5, 7)), ("0-3,8", (0, 1, 2, 3, 8)), ("", ()), ("  ", ())]
)
def test_the_operators_annotation_is_a_list_of_ids(text: str, ids: tuple[int, ...]) -> None:
    assert disabled_devices(text) == ids


@pytest.mark.parametrize("text", ["5;7", "neuron5", "5,,7", "all", "-1", "5,5", "9-3"])
def test_an_operators_annotation_that_is_no_list_of_ids_is_refused(text: str) -> None:
    with pytest.raises(IdListError):
        disabled_devices(text)


def test_p24_an_unhealthy_device_that_is_also_missing_takes_nothing_twice() -> None:
    inventory = NodeInventory(INF2_LINE, present=(0, 1), unhealthy={4: "gone"})
    assert INF2_LINE.whole_devices(inventory.healthy_mask) == (0, 1)


def test_a_node_without_devices_has_an_inventory() -> None:
    empty = NodeInventory(Geometry("unknown", Topology.UNLINKED, 0, 0, (1,)), present=())
    assert read_inventory(write_inventory(empty)) == empty
    assert empty.healthy_mask == 0


def test_p65_fields_of_a_newer_plugin_are_passed_over() -> None:
    assert read_inventory(json.dumps({**FIELDS, "ultraserver": {"id": 4}})) == TORN


@pytest.mark.parametrize("version", [2, 17])
def test_e9_another_version_is_refused_by_name(version: int) -> None:
    assert refusal(version=version) == f"version is {version}, expected 1: upgrade the older of plugin and extender"


@pytest.mark.parametrize("key", sorted(FIELDS))
def test_e9_a_missing_field_is_named(key: str) -> None:
    fields = {name: value for name, value in FIELDS.items() if name != key}
    with pytest.raises(InventoryError, match=f"^{key} is None, expected"):
        read_inventory(json.dumps(fields))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("version", "1"),
        ("version", True),
        ("version", 0),
        ("instanceType", 7),
        ("instanceType", "x" * 257),
        ("instanceType", "trn1\ud800"),
        ("topology", "moebius"),
        ("topology", 1),
        ("devices", -1),
        ("devices", 65),
        ("devices", 16.0),
        ("devices", 10**4000),
        ("coresPerDevice", 9),
        ("coresPerDevice", -1),
        ("coresPerDevice", None),
        ("blockSizes", 4),
        ("blockSizes", [0]),
        ("blockSizes", ["4"]),
        ("blockSizes", [1] * 65),
        ("coreBlockSizes", 4),
        ("coreBlockSizes", [0]),
        ("present", [16]),
        ("present", [-1]),
        ("present", [True]),
        ("present", "0"),
        ("unhealthy", ["3"]),
        ("unhealthy", {"16": "x"}),
        ("unhealthy", {"03": "x"}),
        ("unhealthy", {"3": 1}),
        ("unhealthy", {"3": "\udfff"}),
        ("ultraServer", {"mode": "\ud800"}),
        ("ultraServer", {"\ud800": "1"}),
        ("deviceName", None),
        ("driverVersion", 2.26),
        ("logicalCoreSize", 0),
    ],
)
def test_e9_a_field_out_of_range_is_named_with_its_value(key: str, value: object) -> None:
    text = refusal(**{key: value})
    assert text.startswith(f"{key} is ")
    assert "expected" in text
    assert len(text) < 300


@pytest.mark.parametrize("text", ["", "null", "[]", "7", "{", "true,false", '{"version":1', "\ud800", "NaN"])
def test_e9_what_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(InventoryError, match="is no JSON object"):
        read_inventory(text)


@pytest.mark.parametrize("text", ["[" * 60_000, '{"a":' * 10_000, "x" * 10**7, "9" * 60_000])
def test_e9_deep_and_huge_texts_are_refused(text: str) -> None:
    with pytest.raises(InventoryError) as caught:
        read_inventory(text)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("depth", range(50, 1000, 25))
def test_e9_a_value_of_any_depth_is_refused_by_its_field(depth: int) -> None:
    text = json.dumps(FIELDS).replace('"trn1.32xlarge"', "[" * depth + "]" * depth)
    with pytest.raises(InventoryError, match=r"instanceType is|is no JSON object"):
        read_inventory(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(sorted(FIELDS)), json_values)
def test_e9_any_value_in_any_field_is_read_or_refused(key: str, value: object) -> None:
    try:
        inventory = read_inventory(json.dumps({**FIELDS, key: value}))
    except InventoryError:
        return
    assert read_inventory(write_inventory(inventory)) == inventory


@given(st.text(max_size=60))
def test_e9_any_text_is_read_or_refused(text: str) -> None:
    with pytest.raises(InventoryError):
        read_inventory(text)
