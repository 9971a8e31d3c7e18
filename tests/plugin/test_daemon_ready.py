"""The condition that says that pods can get devices on a node, as the Node object shows it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from neuron_plugin.allocation.keys import INVENTORY_KEY
from neuron_plugin.simulation.api_server_kinds import NODES
from tests.plugin.site import NODE, Site, a_site, eventually

CONDITION = "NeuronDevicesReady"


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with a_site() as site:
        site.settings = msgspec.structs.replace(site.settings, ready_condition=CONDITION)
        yield site


def condition(site: Site) -> dict[str, Any]:
    assert site.api is not None
    conditions = (site.api.get(NODES, NODE).get("status") or {}).get("conditions", [])
    return next((one for one in conditions if one["type"] == CONDITION), {})


def shows(site: Site, status: str, reason: str) -> bool:
    return (condition(site).get("status"), condition(site).get("reason")) == (status, reason)


def writes(site: Site) -> int:
    assert site.api is not None
    return sum(seen.method == "PATCH" and seen.path.endswith("/status") for seen in site.api.requests)


async def test_a_node_is_ready_once_its_resources_are_registered_and_its_inventory_is_written(site: Site) -> None:
    async with site.daemon():
        await eventually(lambda: shows(site, "True", "DevicesReady"))
        assert INVENTORY_KEY in site.node_annotations()
        assert condition(site)["message"] == "16 Neuron devices are registered, and the inventory is published"
        await asyncio.sleep(0.2)
        assert writes(site) == 1


async def test_restarts_of_kubelet_and_plugin_do_not_show(site: Site) -> None:
    async with site.daemon() as daemon:
        await eventually(lambda: shows(site, "True", "DevicesReady"))
        await site.kubelet.restart()
        await eventually(lambda: not all(server.registered.is_set() for server in daemon.kubelet.servers))
        await eventually(lambda: all(map(site.is_offered, daemon.kubelet.servers)))
    assert shows(site, "True", "DevicesReady")
    assert writes(site) == 1
    async with site.daemon():
        await eventually(lambda: writes(site) == 2)
        assert shows(site, "True", "DevicesReady")


async def test_a_node_that_was_created_again_or_lost_its_inventory_gets_all_of_it_again(site: Site) -> None:
    assert site.api is not None
    async with site.daemon():
        await eventually(lambda: shows(site, "True", "DevicesReady"))
        site.api.delete_node(NODE)
        site.api.create_node({"metadata": {"name": NODE}})
        await eventually(lambda: shows(site, "True", "DevicesReady") and INVENTORY_KEY in site.node_annotations())
        site.api.patch_node(NODE, {"metadata": {"annotations": {INVENTORY_KEY: None}}})
        await eventually(lambda: INVENTORY_KEY in site.node_annotations())


async def test_no_condition_is_written_unless_one_is_named(site: Site) -> None:
    site.settings = msgspec.structs.replace(site.settings, ready_condition="")
    async with site.daemon():
        await eventually(lambda: INVENTORY_KEY in site.node_annotations())
        await asyncio.sleep(0.1)
        assert writes(site) == 0
