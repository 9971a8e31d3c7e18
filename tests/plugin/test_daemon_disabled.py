"""The whole daemon when an operator takes devices out of service by the node's annotation."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from neuron_plugin.allocation.inventory import read_inventory
from neuron_plugin.allocation.keys import DISABLE_KEY, INVENTORY_KEY
from neuron_plugin.simulation import PodRejectedError
from tests.plugin.site import NODE, Site, a_site, eventually, ids
from tests.plugin.world import CORE, DEVICE, NEURON, app
from tests.support.api_server import Fault, Match


def annotate(site: Site, text: str | None) -> None:
    assert site.api is not None
    site.api.patch_node(NODE, {"metadata": {"annotations": {DISABLE_KEY: text}}})


async def offers(site: Site, devices: int) -> None:
    """Wait until the kubelet could give so many devices away, under each name."""
    counts = {NEURON: devices, DEVICE: devices, CORE: 2 * devices}
    await eventually(
        lambda: all(site.kubelet.capacity(name.value).allocatable == count for name, count in counts.items())
    )


async def test_a_disabled_device_is_in_no_new_pod_under_any_name_and_back_when_it_is_enabled() -> None:
    async with a_site() as site, site.daemon():
        annotate(site, "5,7")
        await offers(site, 14)
        assert ids(await site.run("row", app(4)), NEURON) == (0, 1, 2, 3)
        await eventually(lambda: bool(read_inventory(site.node_annotations()[INVENTORY_KEY]).disabled))
        await eventually(lambda: "NeuronDeviceDisabled" in site.event_reasons())
        with pytest.raises(PodRejectedError):
            await site.run("all", app(16))
        annotate(site, None)
        await eventually(lambda: not read_inventory(site.node_annotations()[INVENTORY_KEY]).disabled)
        assert set(ids(await site.run("second", app(4)), NEURON)) == {4, 5, 6, 7}


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


async def test_an_api_server_that_is_away_delays_no_offer() -> None:
    async with a_site() as site:
        assert site.api is not None
        annotate(site, "5")
        await site.api.stop()
        async with site.daemon() as daemon:
            await offers(site, 16)
            await site.api.start()
            await offers(site, 15)
            assert daemon.cluster
            assert daemon.cluster.own_node.disabled == (5,)
