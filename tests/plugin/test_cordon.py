"""Devices are taken out of service and put back, and no operator loses what another has disabled."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.allocation.inventory import write_inventory
from neuron_plugin.allocation.keys import DISABLE_KEY, INVENTORY_KEY
from neuron_plugin.cluster import ApiError, Node
from neuron_plugin.cluster.objects import NODES
from neuron_plugin.plugin import cordon as module
from neuron_plugin.plugin.cordon import ATTEMPTS, CordonError, change_disabled, with_disabled, without_disabled
from neuron_plugin.simulation.api_server_kinds import NODES as SERVED_NODES
from tests.plugin.site import NODE
from tests.plugin.world import inventory
from tests.support.api_server import Fault, Match, StandInApiServer

IDS = st.sets(st.integers(0, 15))


def a_node(disabled: str | None = None, *, described: bool = True) -> Node:
    annotations = {INVENTORY_KEY: write_inventory(inventory())} if described else {}
    annotations |= {} if disabled is None else {DISABLE_KEY: disabled}
    return NODES.decode(msgspec.json.encode({"metadata": {"name": NODE, "annotations": annotations}}))


@given(IDS, IDS.filter(bool))
def test_more_devices_are_disabled_and_the_same_ones_enabled_again(before: set[int], more: set[int]) -> None:
    node = a_node(",".join(map(str, before)))
    was, after = with_disabled(node, more)
    assert (set(was), set(after)) == (before, before | more)
    _, left = without_disabled(a_node(",".join(map(str, after))), more)
    assert set(left) == before - more


def test_without_ids_every_device_is_enabled() -> None:
    assert without_disabled(a_node("5,7"), ()) == ((5, 7), ())
    assert without_disabled(a_node("not ids"), ()) == ((), ())


def test_a_device_that_the_node_does_not_have_is_refused_where_its_plugin_says_what_it_has() -> None:
    with pytest.raises(CordonError, match="node worker-1 has no device 16: its devices are 0 to 15"):
        with_disabled(a_node(), (5, 16))
    assert with_disabled(a_node(described=False), (5, 57)) == ((), (5, 57))


def test_a_device_that_is_not_disabled_cannot_be_enabled() -> None:
    with pytest.raises(CordonError, match="device 6 of node worker-1: not disabled; disabled: devices 5,7"):
        without_disabled(a_node("5,7"), (5, 6))
    with pytest.raises(CordonError, match="no device of it is"):
        without_disabled(a_node(), (5,))


def test_a_value_that_cannot_be_read_is_not_written_over() -> None:
    for change in (with_disabled, without_disabled):
        with pytest.raises(CordonError, match=r"reads 'five': 'five' is no id.*by 'neuron-plugin uncordon worker-1'"):
            change(a_node("five"), (5,))


@pytest.fixture
def server() -> StandInApiServer:
    server = StandInApiServer()
    server.create_node({"metadata": {"name": NODE, "annotations": {"other": "stays"}}})
    return server


def annotations_of(server: StandInApiServer) -> dict[str, str]:
    found: dict[str, str] = server.get(SERVED_NODES, NODE)["metadata"]["annotations"]
    return found


async def test_the_annotation_is_written_changed_and_removed_and_others_stay(server: StandInApiServer) -> None:
    assert await change_disabled(server, NODE, (5, 7), disable=True) == ((), (5, 7))
    assert annotations_of(server) == {"other": "stays", DISABLE_KEY: "5,7"}
    assert await change_disabled(server, NODE, (5,), disable=False) == ((5, 7), (7,))
    assert annotations_of(server)[DISABLE_KEY] == "7"
    assert await change_disabled(server, NODE, (), disable=False) == ((7,), ())
    assert annotations_of(server) == {"other": "stays"}


async def test_a_value_that_cannot_be_read_is_removed_on_request(server: StandInApiServer) -> None:
    server.patch_node(NODE, {"metadata": {"annotations": {DISABLE_KEY: "five"}}})
    await change_disabled(server, NODE, (), disable=False)
    assert annotations_of(server) == {"other": "stays"}


async def test_a_refusal_is_not_tried_again(server: StandInApiServer) -> None:
    server.fail(Fault(Match("PATCH", "/nodes/"), status=403))
    with pytest.raises(ApiError, match="403"):
        await change_disabled(server, NODE, (5,), disable=True)


async def test_nothing_is_written_where_nothing_changes(server: StandInApiServer) -> None:
    await change_disabled(server, NODE, (5,), disable=True)
    version = server.get(SERVED_NODES, NODE)["metadata"]["resourceVersion"]
    assert await change_disabled(server, NODE, (5,), disable=True) == ((5,), (5,))
    assert server.get(SERVED_NODES, NODE)["metadata"]["resourceVersion"] == version


async def test_of_two_operators_at_once_neither_loses_a_device(
    server: StandInApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another operator's write comes between our reading and our writing."""
    others = [9]

    def with_disabled_late(node: Node, ids: Collection[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if others:
            server.patch_node(NODE, {"metadata": {"annotations": {DISABLE_KEY: str(others.pop())}}})
        return with_disabled(node, ids)

    monkeypatch.setattr(module, "with_disabled", with_disabled_late)
    assert await change_disabled(server, NODE, (5,), disable=True) == ((9,), (5, 9))
    assert annotations_of(server)[DISABLE_KEY] == "5,9"


async def test_a_node_that_changes_all_the_time_ends_in_the_conflict(server: StandInApiServer) -> None:
    server.fail(Fault(Match("PATCH", "/nodes/"), times=ATTEMPTS, status=409))
    with pytest.raises(ApiError) as caught:
        await change_disabled(server, NODE, (5,), disable=True)
    assert caught.value.conflict


async def test_a_name_that_no_node_has_is_named(server: StandInApiServer) -> None:
    with pytest.raises(CordonError, match="there is no node wroker-1"):
        await change_disabled(server, "wroker-1", (5,), disable=True)
