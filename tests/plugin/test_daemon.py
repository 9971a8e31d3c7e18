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
from unittest.mock import Mock

import msgspec
import pytest

from neuron_plugin.allocation.keys import DISABLE_KEY, INVENTORY_KEY
from neuron_plugin.decision_log import Step
from neuron_plugin.kubelet import PodDevices, PodResourcesClient, PodResourcesError
from neuron_plugin.kubelet_files import CHECKPOINT
from neuron_plugin.plugin import hardware_watch
from neuron_plugin.plugin.daemon import NodeDaemon
from neuron_plugin.plugin.node import NodeTimes
from neuron_plugin.plugin.settings import Mode
from neuron_plugin.simulation import AdmittedPod
from neuron_plugin.simulation.api_server_kinds import LEASES, NODES
from tests.kubelet.test_dra_state import claim, text
from tests.plugin.site import NAMESPACE, NODE, Site, a_site, decision_of, eventually, holders, ids, ledger
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
        assert daemon.counts["corrections_total"][()] >= 2
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


# While others are away or start anew: the API server, the kubelet, the daemon itself.


async def test_the_api_server_down_at_start_is_not_waited_for_long_and_is_caught_up_with() -> None:
    async with a_site() as site:
        assert site.api is not None
        site.api.patch_node(NODE, {"metadata": {"annotations": {DISABLE_KEY: "5"}}})
        await site.api.stop()
        async with site.daemon() as daemon:
            site.create("a", app(4))
            assert ids(await site.admit("a"), NEURON) == (0, 1, 2, 3)
            await eventually(lambda: bool(holders(daemon)))
            assert site.kubelet.capacity(NEURON.value).allocatable == 16
            await site.api.start()
            await eventually(lambda: holders(daemon) == {uid_of("a")})
            await site.annotated("a")
            await eventually(lambda: INVENTORY_KEY in site.node_annotations())
            await site.kubelet.wait_for_capacity(NEURON.value, 15)


@pytest.mark.parametrize("lives", [False, True])
async def test_p60_what_a_pod_that_vanished_before_the_start_has_open_is_not_offered(
    lives: bool,  # noqa: FBT001 - a table's column
) -> None:
    async with a_site() as site:
        site.times = replace(site.times, node=NodeTimes(unknown=5.0 if lives else 0.0))
        assert site.api is not None
        uid, proc = "99999999-4a5b-6c7d-8e9f-001122334455", site.settings.dev.parent / "proc"
        process = proc / "50"
        (process / "fd").mkdir(parents=True)
        for number in (5, 6):
            (process / f"fd/{number}").symlink_to(site.settings.dev / f"neuron{number}")
        (process / "cgroup").write_text(f"0::/kubepods/pod{uid}/aa\n")
        cgroup = site.settings.cgroup / "kubepods" / f"pod{uid}"
        cgroup.mkdir(parents=True)
        (cgroup / "cgroup.events").write_text("populated 1\n")
        (proc / "2").mkdir()
        (proc / "2/comm").write_text("kthreadd\n")
        if lives:  # a monitor, which asks for no Neuron
            monitor = {"metadata": {"name": "monitor", "uid": uid, "namespace": NAMESPACE}, "spec": {"containers": []}}
            site.api.create_pod(monitor)
            site.api.bind(NAMESPACE, "monitor", node=NODE)
        site.settings = msgspec.structs.replace(site.settings, proc=proc)
        async with site.daemon() as daemon:
            if lives:
                await site.kubelet.wait_for_capacity(NEURON.value, 16)
                return
            assert site.kubelet.capacity(NEURON.value).allocatable == 14
            assert daemon.node.snapshot
            assert daemon.node.snapshot.published_inventory.unhealthy.keys() == {5, 6}
            assert site.kubelet.capacity(CORE.value).allocatable == 28
            assert ids(await site.run("a", app(4)), NEURON) == (0, 1, 2, 3)
            (cgroup / "cgroup.events").write_text("populated 0\n")
            await site.kubelet.wait_for_capacity(NEURON.value, 16)


async def test_p72_a_kubelet_restart_is_noticed_by_its_event_and_other_files_are_no_new_kubelet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_site() as site:
        site.times = replace(site.times, turn=600.0)
        async with site.daemon() as daemon:
            noticed = Mock(wraps=daemon.node.kubelet_restarted)
            monkeypatch.setattr(daemon.node, "kubelet_restarted", noticed)
            await site.kubelet.restart()
            await site.kubelet.wait_for_capacity(NEURON.value, 16)
            assert noticed.called
            noticed.reset_mock()
            await site.run("a", app(4))
            await site.confirmed(daemon, "a")  # by the event of the file, too
            assert holders(daemon) == {uid_of("a")}
            assert not noticed.called


async def test_p62_without_pod_resources_pods_are_served_all_the_same() -> None:
    async with a_site("trn1.2xlarge") as site:
        site.settings = msgspec.structs.replace(
            site.settings, pod_resources_socket=site.settings.kubelet_dir / "none.sock"
        )
        async with site.daemon():
            for number in range(4):
                name = f"p{number}"
                assert ids(await site.run(name, app(1)), NEURON) == (0,)
                site.end(name)


async def test_what_a_pod_has_by_count_is_known_after_the_mode_has_changed_to_claims() -> None:
    async with a_site() as site:
        async with site.daemon() as daemon:
            await site.run("a", app(4))
            await site.confirmed(daemon, "a")
        site.settings = msgspec.structs.replace(site.settings, mode=Mode.DRA)
        async with site.daemon(registered=False) as daemon:
            await eventually(lambda: bool(daemon.node.snapshot) and daemon.node.pods.listed_at is not None)
            assert holders(daemon) == {uid_of("a")}


async def test_what_a_pod_has_by_claim_is_offered_to_nobody_by_count_after_the_mode_has_changed() -> None:
    async with a_site() as site:
        prepared = claim(devices=tuple(f"neuron-{number}" for number in range(4)))
        site.settings.dra_state_file.write_bytes(text(prepared | {"PodUIDs": {uid_of("a"): {}}}))
        site.create("a")
        async with site.daemon() as daemon:
            assert holders(daemon) == {uid_of("a")}
            await site.kubelet.wait_for_capacity(NEURON.value, 12)
            assert site.api
            site.api.delete_pod(NAMESPACE, "a", grace_seconds=0)
            await site.kubelet.wait_for_capacity(NEURON.value, 16)


# The end: the node is closed first, and pods that were bound before are served.


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
