"""The whole daemon while its machine changes, and what it tells of that."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

import pytest

from neuron_plugin.allocation.keys import INVENTORY_KEY
from neuron_plugin.plugin import hardware_watch
from neuron_plugin.plugin.daemon import NodeDaemon
from tests.plugin.site import NODE, a_site, eventually, holders, ids, ledger
from tests.plugin.world import CORE, NEURON, app, uid_of


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
