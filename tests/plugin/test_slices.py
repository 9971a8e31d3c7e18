"""The node's slice has AWS's attributes and fixed names; only its taints change."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from neuron_plugin.allocation.claims import PLACED_TAINT, UNHEALTHY_TAINT
from neuron_plugin.cluster import ApiRequest
from neuron_plugin.cluster.api import Response
from neuron_plugin.plugin.metrics import new_counts
from neuron_plugin.plugin.slices import SliceKeeper, _differences, slice_spec
from tests.plugin.desk import running
from tests.plugin.world import INF2, inventory
from tests.support.scripted_server import ScriptedServer, listed


def spec(*, placed: bool = False, **fields: Any) -> Any:
    return slice_spec(inventory(**fields), "worker-1", "neuron.aws.com", placed=placed)


def test_every_nominal_device_is_listed_in_order_whatever_its_state() -> None:
    sick = spec(unhealthy={3: "broken"}, present=tuple(range(15)))
    assert [one["name"] for one in sick["devices"]] == [f"neuron-{device}" for device in range(16)]
    assert sick["pool"] == {"name": "worker-1-neuron", "generation": 1, "resourceSliceCount": 1}


def test_a_device_says_what_awss_templates_ask_for() -> None:
    attributes = spec(driver_version="2.30.2.0")["devices"][5]["attributes"]
    assert attributes["neuron.aws.com/deviceId"] == {"int": 5}
    assert attributes["neuron.aws.com/resourceType"] == {"string": "neuron_device"}
    assert attributes["neuron.aws.com/instanceType"] == {"string": "trn1.32xlarge"}
    assert attributes["neuron.aws.com/topology4_id"] == {"int": 1}
    assert attributes["neuron.aws.com/neuronDriverVersion"] == {"string": "2.30.2.0"}
    groups = [one["attributes"]["resource.aws.com/devicegroup4_id"]["string"] for one in spec()["devices"]]
    assert [groups.count(each) for each in groups] == [4] * 16


def test_a_ring_has_no_rows_and_no_groups() -> None:
    names = slice_spec(inventory(INF2), "w", "neuron.aws.com", placed=False)["devices"]
    assert isinstance(names, list)
    assert not any("topology" in name or "devicegroup" in name for one in names for name in one["attributes"])


def test_what_may_not_be_given_has_a_taint_that_says_why() -> None:
    made = spec(unhealthy={3: "broken", 4: "held"}, held_down=(4,), disabled=(5,), present=tuple(range(15)))
    taints = {one["name"]: [taint["value"] for taint in one["taints"]] for one in made["devices"] if one["taints"]}
    assert taints == {
        "neuron-3": ["unhealthy"],
        "neuron-4": ["held-down"],
        "neuron-5": ["disabled"],
        "neuron-15": ["missing"],
    }
    assert made["devices"][3]["taints"][0] == {"key": UNHEALTHY_TAINT, "value": "unhealthy", "effect": "NoSchedule"}


def test_where_the_placement_controller_allocates_every_device_is_tainted() -> None:
    assert all(one["taints"] == [{"key": PLACED_TAINT, "effect": "NoSchedule"}] for one in spec(placed=True)["devices"])


@pytest.mark.parametrize(
    ("wanted", "found", "differences"),
    [
        # A taint's time and an empty list are none.
        ({"a": [{"key": "k"}], "taints": []}, {"a": [{"key": "k", "timeAdded": "now"}]}, []),
        ({"a": {"b": 1}}, {"a": {}}, ["spec.a.b"]),
        ({"taints": []}, {"taints": [{"key": "k"}]}, ["spec.taints"]),
        ({"a": {}}, {"a": {"old": 1}}, ["spec.a.old"]),
    ],
)
def test_what_the_server_drops_or_keeps_is_a_difference(
    wanted: dict[str, Any], found: dict[str, Any], differences: list[str]
) -> None:
    assert _differences(wanted, found) == differences


@pytest.mark.looptime
async def test_an_api_server_that_takes_no_slice_is_asked_again_and_again_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def answer(request: ApiRequest) -> Response:
        return listed() if request.method == "GET" else Response(500, msgspec.json.encode({"message": "no space left"}))

    server, keeper = ScriptedServer(answer), SliceKeeper("worker-1", "neuron.aws.com", new_counts())
    keeper.want(spec(), "")
    async with running(keeper.run(server)):
        await asyncio.sleep(600)
    assert sum(request.method == "POST" for request in server.requests) > 15
    assert caplog.messages.count("the node's slice is not written yet") == 1
