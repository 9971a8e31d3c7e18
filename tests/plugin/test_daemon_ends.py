"""The end of the whole daemon: the node is closed first, and pods that were bound before are served."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import msgspec
import pytest

from neuron_plugin.kubelet import PodDevices, PodResourcesClient, PodResourcesError
from neuron_plugin.kubelet_files import CHECKPOINT
from neuron_plugin.simulation import AdmittedPod
from neuron_plugin.simulation.api_server_kinds import LEASES
from tests.plugin.site import NODE, Site, a_site, decision_of, eventually, ids
from tests.plugin.world import NEURON, app


def lease_holders(site: Site) -> list[str]:
    """Who holds the node's Lease: it is made before it is held, and held before it is given up."""
    assert site.api is not None
    return [lease["spec"]["holderIdentity"] for lease in site.api.objects(LEASES)]


async def held(site: Site) -> None:
    """Until the plugin holds the node's Lease."""
    await eventually(lambda: lease_holders(site) == [NODE])


async def closed(site: Site) -> None:
    """Until the node's Lease, which was held, is given up."""
    await eventually(lambda: lease_holders(site) == [""])


async def admit_once_closed(site: Site) -> AdmittedPod:
    """The kubelet hears of the pod when no more pods are sent."""
    await closed(site)
    return await site.admit("a")


async def run_once_closed(site: Site) -> AdmittedPod:
    """A binding that was sent already comes when no more are sent."""
    await closed(site)
    await asyncio.sleep(0.5)  # it takes its time
    return await site.run("a", app(4), annotations=decision_of(app(4), sets=[[4, 5, 6, 7]]))


async def test_e7_stopping_gives_the_nodes_lease_up_before_the_kubelet_loses_its_devices() -> None:
    async with a_site() as site, asyncio.timeout(25):
        site.times = replace(site.times, leave=30.0)
        async with site.daemon():
            await held(site)
        assert lease_holders(site) == [""], "and no pod waits that it would have to stay for"


async def test_a_kubelet_that_restarts_closes_its_node_until_the_plugin_is_registered_again() -> None:
    async with a_site() as site, site.daemon():
        await held(site)
        await site.kubelet.stop()
        await closed(site)
        await site.kubelet.start()
        await held(site)


async def test_e7_a_pod_that_was_bound_before_the_plugin_stops_is_served_all_the_same() -> None:
    async with a_site() as site:
        site.times = replace(site.times, under_way=0.0, leave=30.0)
        async with site.daemon() as daemon:
            await held(site)
            site.create("a", app(4), annotations=decision_of(app(4), sets=[[4, 5, 6, 7]]))
            await eventually(lambda: bool(daemon.node.snapshot and daemon.node.snapshot.waiting))
            late = asyncio.create_task(admit_once_closed(site), name="a late admission")
        assert ids(await late, NEURON) == (4, 5, 6, 7)


async def test_e7_a_binding_that_is_under_way_when_the_plugin_stops_is_waited_for() -> None:
    async with a_site() as site:
        site.times = replace(site.times, under_way=3.0, leave=30.0)
        async with site.daemon():
            await held(site)
            late = asyncio.create_task(run_once_closed(site), name="a late binding")
        assert ids(await late, NEURON) == (4, 5, 6, 7)


@pytest.mark.parametrize(
    ("leave", "node_lease"), [(0.1, True), (600.0, False)], ids=["it is never admitted", "its node stays open"]
)
async def test_e7_a_pod_that_waits_does_not_keep_a_plugin_from_stopping(leave: float, *, node_lease: bool) -> None:
    async with a_site() as site, asyncio.timeout(50):
        site.times = replace(site.times, leave=leave)
        site.settings = msgspec.structs.replace(site.settings, node_lease=node_lease)
        async with site.daemon() as daemon:
            site.create("a", app(4), annotations=decision_of(app(4), sets=[[4, 5, 6, 7]]))
            await eventually(lambda: bool(daemon.node.snapshot and daemon.node.snapshot.waiting))
            await asyncio.sleep(0.2)
            assert node_lease or not lease_holders(site)
        assert [path.name for path in site.settings.kubelet_dir.glob("*.sock")] == ["kubelet.sock"]


async def test_a_plugin_that_waits_for_the_kubelets_account_is_alive_watches_and_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refused = asyncio.Event()

    async def refuse(_: PodResourcesClient) -> tuple[PodDevices, ...]:
        refused.set()
        raise PodResourcesError("rejected by rate limit")

    monkeypatch.setattr(PodResourcesClient, "list", refuse)
    async with a_site() as site, asyncio.timeout(50):
        (site.settings.kubelet_dir / CHECKPOINT).write_text("{}")
        api = site.api
        assert api is not None
        async with site.daemon(registered=False) as daemon:
            await asyncio.wait_for(refused.wait(), 30)
            site.node.remove_device(5)
            await eventually(lambda: bool(daemon.node.snapshot and 5 in daemon.node.snapshot.inventory.unhealthy))
            await eventually(lambda: daemon.node.pods.listed_at is not None)
            assert not site.kubelet.capacity(NEURON.value).capacity
            assert not api.objects(LEASES)
            assert not any((await daemon.status.liveness()).checks.values())
            ready = (await daemon.status.readiness()).checks
            assert all(ready[server.resource] for server in daemon.kubelet.servers)
        assert [path.name for path in site.settings.kubelet_dir.glob("*.sock")] == ["kubelet.sock"]
        assert caplog.text.count("nothing is offered until the kubelet says who has what") == 1


async def test_stopping_removes_the_sockets_and_every_task() -> None:
    async with a_site(cluster=False) as site:
        async with site.daemon():
            assert len(list(site.settings.kubelet_dir.glob("*.sock"))) == 4
        assert [path.name for path in site.settings.kubelet_dir.glob("*.sock")] == ["kubelet.sock"]
        assert {task.get_name() for task in asyncio.all_tasks()} & {
            "hardware",
            "kubelet",
            "publish",
            "turns",
            "cdi",
        } == set()
