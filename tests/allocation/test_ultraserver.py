"""A pod's place in the UltraServers of its group: as annotation, and as variables."""

from __future__ import annotations

import pytest

from neuron_plugin.allocation.ultraserver import UltraServerPlace, node_ids, read_ultraserver_place

TRN2U = {"mode": "1,2,4", "serverId2": "p1", "nodeId2": "1", "serverId4": "u1", "nodeId4": "3"}
PLACE = UltraServerPlace(4, 7, "train-0.train.ml.svc")


def test_a_place_is_read_as_it_was_written() -> None:
    assert read_ultraserver_place(str(PLACE)) == PLACE


@pytest.mark.parametrize("text", ["", "nodes=3,index=0,first=a", "nodes=4,index=,first=a", f"{PLACE} ", f"{PLACE},x=y"])
def test_what_is_no_place_is_none(text: str) -> None:
    assert read_ultraserver_place(text) is None


def test_the_variables_are_those_of_the_vendors_init_container() -> None:
    assert PLACE.variables(TRN2U) == {
        "NEURON_RT_ULTRASERVER_MODE": "1",
        "NEURON_RT_ULTRASERVER_SERVER_ID": "u1",
        "NEURON_RT_ULTRASERVER_NODE_ID": "3",
        "NEURON_GLOBAL_TOPOID": "7",
        "NEURON_GLOBAL_TOPOID0_HOST": "train-0.train.ml.svc",
    }


@pytest.mark.parametrize(("offered", "mode"), [("1,2,4", "2"), ("1,3,4", "3"), ("2,3", "3"), ("1,4", "")])
def test_a_pair_is_joined_in_the_better_mode_that_the_driver_offers(offered: str, mode: str) -> None:
    ids = node_ids({**TRN2U, "mode": offered}, 2)
    assert (ids.mode if ids else "") == mode


def test_a_pair_of_a_reservation_has_the_ids_that_the_driver_knows() -> None:
    ids = {"mode": "1,3", "serverId2": "r9-1", "nodeId2": "0", "serverId4": "r9", "nodeId4": "2"}
    said = UltraServerPlace(2, 0, "a").variables(ids)
    assert (said["NEURON_RT_ULTRASERVER_SERVER_ID"], said["NEURON_RT_ULTRASERVER_NODE_ID"]) == ("r9", "2")


def test_a_node_that_is_in_no_ultraserver_any_more_sets_nothing() -> None:
    assert PLACE.variables({}) == {}
