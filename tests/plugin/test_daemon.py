"""The whole daemon over its sockets: from a pod's annotation to what its containers receive, and back.

Simulated hardware, a stand-in kubelet and a stand-in API server; nothing of the daemon is replaced.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pytest

from neuron_plugin.allocation.keys import DISABLE_KEY, INVENTORY_KEY
from neuron_plugin.decision_log import Step
from neuron_plugin.plugin import hardware_watch
from neuron_plugin.plugin.daemon import NodeDaemon
from neuron_plugin.simulation.api_server_kinds import NODES
from tests.plugin.site import NODE, Site, a_site, decision_of, eventually, holders, ids, ledger
from tests.plugin.world import CORE, NEURON, app, uid_of
from tests.support.api_server import Fault, Match


async def test_p56_two_equal_pods_admitted_in_the_other_order_swap_and_both_annotations_say_so() -> None:
    async with a_site() as site, site.daemon() as daemon:
        first, second = [0, 1, 2, 3], [4, 5, 6, 7]
        site.create("a", app(4), annotations=decision_of(app(4), sets=[first], time=1))
        site.create("b", app(4), annotations=decision_of(app(4), sets=[second], time=2))
        await eventually(lambda: len(daemon.node.pods.pods) == 2)
        of_b, of_a = await site.admit("b"), await site.admit("a")
        assert ids(of_b, NEURON) == tuple(first)
        assert ids(of_a, NEURON) == tuple(second)
        await site.annotated("a", "b")
        assert site.decided_ids("a") == [tuple(second)]
        assert site.decided_ids("b") == [tuple(first)]
        assert ledger(daemon).used_mask
        await eventually(lambda: site.event_reasons().count("AssignmentCorrected") == 2)
        assert daemon.counters.corrections >= 2
        corrected = [one.pod for one in daemon.allocator.log.decisions.entries() if one.step is Step.CORRECTED]
        assert "b" in {pod.name for pod in corrected if pod}, "a had nothing yet"


# The whole daemon while its machine changes, and what it tells of that.


async def test_p22_without_a_driver_it_waits_and_the_devices_appear_when_it_is_loaded() -> None:
    async with a_site("trn1.2xlarge", cluster=False) as site:
        site.node.unload_driver()
        async with site.daemon(registered=False) as daemon:
            await asyncio.sleep(0.2)
            assert daemon.node.snapshot is None
            assert site.kubelet.registration_count(NEURON.value) == 0
            site.node.load_driver()
            await site.kubelet.wait_for_capacity(NEURON.value, 1)


async def test_p25_a_reloaded_driver_makes_devices_unhealthy_and_healthy_again_and_holders_stay() -> None:
    async with a_site(cluster=False) as site, site.daemon() as daemon:
        await site.run("a", app(4))
        await eventually(lambda: uid_of("a") in holders(daemon))
        site.node.unload_driver()
        await site.kubelet.wait_for_capacity(NEURON.value, 4)  # what pod a has is counted as in use
        assert site.kubelet.capacity(NEURON.value).capacity == 16
        site.node.load_driver()
        await site.kubelet.wait_for_capacity(NEURON.value, 16)
        assert uid_of("a") in holders(daemon)


def said(caplog: pytest.LogCaptureFixture, beginning: str) -> int:
    return sum(record.getMessage().startswith(beginning) for record in caplog.records)


def has_reason(daemon: NodeDaemon, beginning: str) -> bool:
    return daemon.health.state.devices[3].verdict.reason.startswith(beginning)


async def test_p84_a_counter_that_rises_is_no_news_of_what_is_offered(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, hardware_watch.__name__)
    async with a_site(cluster=False) as site, site.daemon() as daemon:
        for count in (1, 2):
            site.node.set_ecc(3, repairable=count)
            await eventually(partial(has_reason, daemon, f"{count} repairable memory error"))
    assert said(caplog, "hardware") == 1


async def test_p28_another_lnc_changes_ids_at_once_and_pods_keep_their_whole_devices() -> None:
    async with a_site("trn2.48xlarge", cluster=False) as site, site.daemon() as daemon:
        await site.run("a", app(1, CORE))
        assert site.kubelet.capacity(CORE.value).capacity == 64
        site.node.set_logical_core_size(1)
        await eventually(lambda: site.kubelet.capacity(CORE.value).capacity == 128)
        assert ledger(daemon).used_mask == 0xFF
        admitted = await site.run("b", app(4, CORE))
        assert ids(admitted, CORE) == (8, 9, 10, 11)
        site.end("a")
        await site.kubelet.wait_for_capacity(CORE.value, 128)
        await eventually(lambda: holders(daemon) == {uid_of("b")})


async def test_the_node_says_what_it_is_once_and_again_only_when_that_changed() -> None:
    async with a_site() as site, site.daemon():
        assert site.api is not None
        await eventually(lambda: INVENTORY_KEY in site.node_annotations())
        await site.run("a", app(4))
        await site.annotated("a")
        patches = [seen for seen in site.api.requests if seen.method == "PATCH" and f"/nodes/{NODE}" in seen.path]
        assert len(patches) == 1
        before = site.node_annotations()[INVENTORY_KEY]
        site.node.remove_device(3)
        await eventually(lambda: site.node_annotations()[INVENTORY_KEY] != before)


# The whole daemon when an operator takes devices out of service by the node's annotation.


def annotate(site: Site, text: str | None) -> None:
    assert site.api is not None
    site.api.patch_node(NODE, {"metadata": {"annotations": {DISABLE_KEY: text}}})


async def test_a_disabled_device_is_not_given_after_a_restart_before_the_annotation_was_read() -> None:
    async with a_site() as site:
        site.times = replace(site.times, read_node=30.0)
        assert site.api is not None
        annotate(site, "0")
        gate = asyncio.Event()
        site.api.fail(Fault(Match("GET", r"/nodes$", watch=False), gate=gate))
        async with site.daemon():  # it has registered: a pod that comes now is not rejected
            admission = asyncio.create_task(site.run("all", app(15)))
            await asyncio.sleep(0.3)
            assert not admission.done()
            gate.set()
            assert 0 not in ids(await admission, NEURON)


# The condition that says that pods can get devices on a node, as the Node object shows it.


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
