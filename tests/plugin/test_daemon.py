"""The whole daemon over its sockets: from a pod's annotation to what its containers receive, and back.

Simulated hardware, a stand-in kubelet and a stand-in API server; nothing of the daemon is replaced.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from http import HTTPStatus

import msgspec
import pytest

from neuron_plugin.allocation.inventory import INVENTORY_KEY
from neuron_plugin.hardware.attributes import ResetState
from neuron_plugin.kubelet.devices import DeviceNode
from neuron_plugin.kubelet.pod_resources import PodDevices, PodResourcesClient, PodResourcesThrottledError
from neuron_plugin.plugin import daemon as daemon_module
from neuron_plugin.plugin.daemon import NodeDaemon
from neuron_plugin.plugin.probes import liveness, readiness
from neuron_plugin.plugin.settings import TopologyPolicy
from neuron_plugin.simulation.api_server import EVENTS, LEASES, Fault, Match
from neuron_plugin.simulation.kubelet import KubeletOptions
from neuron_plugin.simulation.kubelet_pods import AdmittedPod, PodRejectedError
from tests.plugin.site import NAMESPACE, NODE, Site, a_site, eventually, holders, ids
from tests.plugin.world import CORE, DEVICE, NEURON, TRN1, app, assignment, init, sidecar

pytestmark = pytest.mark.usefixtures("hasty")


def decision_of(*containers: object, sets: list[list[int]], time: int = 1) -> dict[str, str]:
    return assignment(TRN1, containers, sets, time)  # type: ignore[arg-type]  # tuples of specs, spelled short


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


def write_checkpoint(site: Site) -> None:
    """The stand-in kubelet's memory as a kubelet writes it."""
    entries = [
        {
            "PodUID": one.uid,
            "ContainerName": one.container,
            "ResourceName": one.resource,
            "DeviceIDs": {"-1": list(one.ids)},
        }
        for one in site.kubelet._memory.allocations.values()
    ]
    text = msgspec.json.encode({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 1})
    (site.settings.kubelet_dir / "kubelet_internal_checkpoint").write_bytes(text)


async def test_a_decision_steers_the_kubelet_is_confirmed_and_marked_on_the_pod() -> None:
    async with a_site() as site, site.daemon() as daemon:
        container = app(4)
        admitted = await site.run("a", container, annotations=decision_of(container, sets=[[8, 9, 10, 11]]))
        assert ids(admitted, NEURON) == (8, 9, 10, 11)
        await site.annotated("a")
        assert site.decided_ids("a") == [(8, 9, 10, 11)]
        assert holders(daemon) == {"uid-a"}
        assert "AssignmentCorrected" not in site.event_reasons()


async def test_p40_seed_annotation_neuron_cores_gives_its_node_and_variable() -> None:
    async with a_site() as site, site.daemon():
        admitted = await site.run("a", app(2, CORE), annotations={"NEURON_CORES": "2,3", "NEURON_ALLOC_TIME": "1"})
        received = admitted.container("app")
        dev = site.settings.dev
        assert received.devices == (DeviceNode(str(dev / "neuron1"), "/dev/neuron1", "rw"),)
        assert received.envs == {"NEURON_RT_VISIBLE_CORES": "2,3"}


async def test_p56_two_equal_pods_admitted_in_the_other_order_swap_and_both_annotations_say_so() -> None:
    async with a_site() as site, site.daemon() as daemon:
        first, second = [0, 1, 2, 3], [4, 5, 6, 7]
        site.create("a", app(4), annotations=decision_of(app(4), sets=[first], time=1))
        site.create("b", app(4), annotations=decision_of(app(4), sets=[second], time=2))
        await eventually(lambda: len(daemon.state.pods) == 2)
        of_b, of_a = await site.admit("b"), await site.admit("a")
        assert ids(of_b, NEURON) == tuple(first)
        assert ids(of_a, NEURON) == tuple(second)
        await site.annotated("a", "b")
        assert site.decided_ids("a") == [tuple(second)]
        assert site.decided_ids("b") == [tuple(first)]
        assert daemon.state.ledger.holders[next(iter(daemon.state.pods))].mask
        await eventually(lambda: site.event_reasons().count("AssignmentCorrected") == 2)


async def test_p56_the_pod_that_comes_later_finds_the_other_set_waiting_and_annotated() -> None:
    async with a_site() as site, site.daemon() as daemon:
        site.create("a", app(4), annotations=decision_of(app(4), sets=[[0, 1, 2, 3]], time=1))
        site.create("b", app(4), annotations=decision_of(app(4), sets=[[8, 9, 10, 11]], time=2))
        await eventually(lambda: len(daemon.state.pods) == 2)
        await site.admit("b")
        await site.annotated("b")
        await eventually(lambda: site.decided_ids("a") == [(8, 9, 10, 11)])
        assert site.annotations("a")["NEURON_ALLOCATED"] == "false"
        assert ids(await site.admit("a"), NEURON) == (8, 9, 10, 11)
        await site.annotated("a")


async def test_p36_a_decision_that_the_watch_has_not_shown_yet_is_read_before_the_answer() -> None:
    async with a_site() as site, site.daemon():
        assert site.api is not None
        site.api.mute_watches()
        admitted = await site.run("a", app(4), annotations=decision_of(app(4), sets=[[12, 13, 14, 15]]))
        assert ids(admitted, NEURON) == (12, 13, 14, 15)


async def test_a_pod_without_a_decision_gets_a_linked_set_and_its_annotation() -> None:
    async with a_site() as site, site.daemon():
        admitted = await site.run("a", app(4))
        assert ids(admitted, NEURON) == (0, 1, 2, 3)
        await site.annotated("a")
        assert site.decided_ids("a") == [(0, 1, 2, 3)]
        assert int(site.annotations("a")["NEURON_ALLOC_TIME"]) > 0


async def test_p46_p74_init_and_sidecar_share_and_the_app_gets_a_linked_part_of_the_init_set() -> None:
    async with a_site(seed=5) as site, site.daemon() as daemon:
        admitted = await site.run("a", init(4, CORE), sidecar(1, CORE), app(2, CORE))
        assert ids(admitted, CORE, "init") == (0, 1, 2, 3)
        assert set(ids(admitted, CORE, "app")) < {0, 1, 2, 3}
        app_cores = admitted.container("app").envs["NEURON_RT_VISIBLE_CORES"]
        sidecar_core = admitted.container("sidecar").envs["NEURON_RT_VISIBLE_CORES"]
        assert sidecar_core not in app_cores.split(",")
        await site.confirmed(daemon, "a")
        held = {one.container: one.mask for one in daemon.state.ledger.holders[next(iter(holders(daemon)))].holdings}
        assert held["app"] & held["sidecar"] == 0
        assert (held["app"] | held["sidecar"]) & ~held["init"] == 0


async def test_p57_what_is_held_as_cores_is_unhealthy_as_a_device_and_back_when_the_pod_is_gone() -> None:
    async with a_site() as site, site.daemon() as daemon:
        await site.run("a", app(1, CORE))
        await site.kubelet.wait_for_capacity(NEURON.value, 15)
        await site.kubelet.wait_for_capacity(DEVICE.value, 15)
        assert site.kubelet.capacity(CORE.value).allocatable == 32
        site.end("a")
        await site.kubelet.wait_for_capacity(NEURON.value, 16)
        assert not holders(daemon)


async def test_p58_two_names_never_meet_on_one_device() -> None:
    async with a_site("trn1.2xlarge") as site, site.daemon():
        await site.run("a", app(1))
        with pytest.raises(PodRejectedError):
            await site.run("b", app(1, CORE))


async def test_p49_a_malformed_decision_is_served_apart_from_other_pods_sets_told_and_put_right() -> None:
    async with a_site() as site, site.daemon() as daemon:
        site.create("bad", app(4), annotations={"NEURON_DEVS": "0-x", "NEURON_CORES": "1"})
        site.create("good", app(4), annotations=decision_of(app(4), sets=[[0, 1, 2, 3]]))
        await eventually(lambda: len(daemon.state.pods) == 2)
        assert ids(await site.admit("bad"), NEURON) == (4, 5, 6, 7)
        assert ids(await site.admit("good"), NEURON) == (0, 1, 2, 3)
        await site.annotated("bad", "good")
        assert site.decided_ids("bad") == [(4, 5, 6, 7)]
        assert "NEURON_CORES" not in site.annotations("bad")
        assert site.event_reasons() == ["InvalidNeuronRequest"]


async def test_p47_required_refuses_seven_devices_on_a_torus_with_the_vendors_sentence() -> None:
    async with a_site(cluster=False) as site:
        site.settings = msgspec.structs.replace(site.settings, topology_policy=TopologyPolicy.REQUIRED)
        async with site.daemon():
            with pytest.raises(PodRejectedError, match="does not support requests for device: 7"):
                await site.run("a", app(7))
            assert ids(await site.run("b", app(8)), NEURON) == tuple(range(8))


async def test_a_container_that_asks_for_two_neuron_resources_is_refused_with_the_reason() -> None:
    async with a_site() as site, site.daemon() as daemon:
        both = app(1)
        both = type(both)("app", both.kind, {NEURON.value: "1", CORE.value: "2"})
        site.create("a", both)
        await eventually(lambda: len(daemon.state.pods) == 1)
        with pytest.raises(PodRejectedError, match="ask for one Neuron resource per container"):
            await site.admit("a")
        await eventually(lambda: site.event_reasons() == ["InvalidNeuronRequest"])


async def test_the_api_server_down_at_start_delays_nothing_and_is_caught_up_with() -> None:
    async with a_site() as site:
        assert site.api is not None
        await site.api.stop()
        async with site.daemon() as daemon:
            site.create("a", app(4))
            assert ids(await site.admit("a"), NEURON) == (0, 1, 2, 3)
            await eventually(lambda: bool(holders(daemon)))
            await site.api.start()
            await eventually(lambda: holders(daemon) == {"uid-a"})
            await site.annotated("a")
            await eventually(lambda: INVENTORY_KEY in site.node_annotations())


async def test_p44_a_slow_api_server_costs_a_preference_its_deadline_and_allocate_nothing() -> None:
    async with a_site() as site, site.daemon():
        assert site.api is not None
        gate = asyncio.Event()
        site.api.mute_watches()
        site.api.fail(Fault(Match("GET", r"/pods", watch=False), times=50, gate=gate))
        loop = asyncio.get_running_loop()
        began = loop.time()
        admitted = await site.run("a", app(1, CORE))
        took = loop.time() - began
        gate.set()
        assert len(ids(admitted, CORE)) == 1
        assert took < site.settings.decision_deadline_seconds + 1.0


async def test_an_expired_watch_and_a_cut_one_lose_no_pod() -> None:
    async with a_site() as site, site.daemon() as daemon:
        assert site.api is not None
        site.api.expire_watches()
        site.create("a", app(4), annotations=decision_of(app(4), sets=[[4, 5, 6, 7]]))
        await eventually(lambda: "uid-a" in daemon.state.pods)
        site.api.cut_watches()
        assert ids(await site.admit("a"), NEURON) == (4, 5, 6, 7)
        site.end("a")
        await eventually(lambda: not daemon.state.pods and not holders(daemon))


async def test_p61_a_new_process_knows_who_holds_what_init_containers_included() -> None:
    async with a_site() as site:
        async with site.daemon():
            await site.run("a", init(4, CORE), app(2, CORE))
            await site.run("b", app(4), annotations=decision_of(app(4), sets=[[8, 9, 10, 11]]))
            await site.annotated("a", "b")
            patches = len([seen for seen in site.api.requests if seen.method == "PATCH"]) if site.api else 0
        async with site.daemon() as daemon:
            assert daemon.state.ledger.used_mask & TRN1.devices_mask((8, 9, 10, 11))
            await site.confirmed(daemon, "a", "b")
            assert holders(daemon) == {"uid-a", "uid-b"}
            assert daemon.state.ledger.used_mask == TRN1.cores_mask(range(4)) | TRN1.devices_mask((8, 9, 10, 11))
            await site.kubelet.wait_for_capacity(NEURON.value, 14)
            later = await site.run("c", app(4))
            assert ids(later, NEURON) == (4, 5, 6, 7)
            assert site.api is not None
            written = [seen for seen in site.api.requests if seen.method == "PATCH" and "/pods/" in seen.path]
            assert len(written) <= patches + 1


async def test_p61_without_a_cluster_a_new_process_reads_init_sets_from_the_kubelets_file() -> None:
    async with a_site(cluster=False) as site:
        async with site.daemon():
            await site.run("a", init(4, CORE), app(2, CORE))
        write_checkpoint(site)
        async with site.daemon() as daemon:
            assert daemon.state.ledger.used_mask == TRN1.cores_mask(range(4))
            await site.kubelet.wait_for_capacity(NEURON.value, 14)


@pytest.mark.parametrize("lives", [False, True])
async def test_p60_what_a_pod_that_vanished_before_the_start_has_open_is_not_offered(
    lives: bool,  # noqa: FBT001 - a table's column
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("neuron_plugin.plugin.device_users.SETTLED_SECONDS", 0.0)
    async with a_site() as site:
        assert site.api is not None
        uid, proc = "99999999-4a5b-6c7d-8e9f-001122334455", site.settings.dev.parent / "proc"
        process = proc / "50"
        (process / "fd").mkdir(parents=True)
        (process / "fd/3").symlink_to(site.settings.dev / "neuron5")
        (process / "cgroup").write_text(f"0::/kubepods/pod{uid}/aa\n")
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
            assert site.kubelet.capacity(NEURON.value).allocatable == 15
            await eventually(lambda: bool(daemon.state.quarantine and daemon.state.quarantine.devices(TRN1)))
            assert site.kubelet.capacity(CORE.value).allocatable == 30
            assert ids(await site.run("a", app(4)), NEURON) == (0, 1, 2, 3)
            (process / "fd/3").unlink()
            await site.kubelet.wait_for_capacity(NEURON.value, 16)


async def test_p72_a_kubelet_restart_changes_nothing_for_who_holds_what() -> None:
    async with a_site() as site, site.daemon() as daemon:
        await site.run("a", app(4))
        await site.confirmed(daemon, "a")
        await site.kubelet.restart()
        await site.kubelet.wait_for_capacity(NEURON.value, 16)
        assert holders(daemon) == {"uid-a"}
        assert not site.kubelet.rejections
        assert ids(await site.run("b", app(4)), NEURON) == (4, 5, 6, 7)


async def test_p62_a_kubelet_without_get_is_asked_for_all_pods_in_quiet_moments() -> None:
    async with a_site(options=KubeletOptions(pod_resources_get=False)) as site, site.daemon() as daemon:
        await site.run("a", app(4))
        await site.annotated("a")
        assert holders(daemon) == {"uid-a"}


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


async def test_without_a_cluster_what_an_ended_pod_held_comes_back() -> None:
    async with a_site("trn1.2xlarge", cluster=False) as site, site.daemon() as daemon:
        await site.run("a", app(1))
        await eventually(lambda: any(uid.endswith("default/a") for uid in holders(daemon)))
        await site.kubelet.wait_for_capacity(CORE.value, 0)
        site.end("a")
        await site.kubelet.wait_for_capacity(CORE.value, 2)
        assert ids(await site.run("b", app(2, CORE)), CORE) == (0, 1)


async def test_without_a_cluster_the_next_pod_gets_a_full_node_the_moment_the_last_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("neuron_plugin.plugin.confirm.PERIOD_SECONDS", 600.0)
    async with a_site("trn1.2xlarge", cluster=False) as site, site.daemon() as daemon:
        await site.run("a", app(1))
        await eventually(lambda: any(uid.endswith("default/a") for uid in holders(daemon)))
        site.end("a")
        assert ids(await site.run("b", app(1)), NEURON) == (0,)


async def test_p64_two_hundred_pods_made_and_deleted_quickly_leave_nothing_and_no_storm() -> None:
    async with a_site(options=KubeletOptions(pod_resources_per_second=0)) as site, site.daemon() as daemon:
        for number in range(200):
            name = f"p{number}"
            await site.run(name, app(1, CORE) if number % 2 else app(1))
            site.end(name)
        await eventually(lambda: not holders(daemon) and not daemon.state.pods)
        await site.kubelet.wait_for_capacity(NEURON.value, 16)
        await site.kubelet.wait_for_capacity(CORE.value, 32)
        assert site.api is not None
        assert not site.api.objects(EVENTS)
        assert not site.kubelet.rejections


async def test_p22_without_a_driver_it_waits_and_the_devices_appear_when_it_is_loaded() -> None:
    async with a_site("trn1.2xlarge", cluster=False) as site:
        site.node.unload_driver()
        async with site.daemon(registered=False) as daemon:
            await asyncio.sleep(0.2)
            assert daemon.state.machine is None
            assert site.kubelet.registration_count(NEURON.value) == 0
            site.node.load_driver()
            await site.kubelet.wait_for_capacity(NEURON.value, 1)


async def test_p25_a_reloaded_driver_makes_devices_unhealthy_and_healthy_again_and_holders_stay() -> None:
    async with a_site(cluster=False) as site, site.daemon() as daemon:
        await site.run("a", app(4))
        await eventually(lambda: any(uid.endswith("default/a") for uid in holders(daemon)))
        site.node.unload_driver()
        await site.kubelet.wait_for_capacity(NEURON.value, 0)
        assert site.kubelet.capacity(NEURON.value).capacity == 16
        site.node.load_driver()
        await site.kubelet.wait_for_capacity(NEURON.value, 16)
        assert any(uid.endswith("default/a") for uid in holders(daemon))


def said(caplog: pytest.LogCaptureFixture, beginning: str) -> int:
    return sum(record.getMessage().startswith(beginning) for record in caplog.records)


def has_reason(daemon: NodeDaemon, beginning: str) -> bool:
    return daemon.health.devices[3].reason.startswith(beginning)


async def test_p84_a_counter_that_rises_is_no_news_of_what_is_offered(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, daemon_module.__name__)
    async with a_site(cluster=False) as site, site.daemon() as daemon:
        for count in (1, 2):
            site.node.set_ecc(3, repairable=count)
            await eventually(partial(has_reason, daemon, f"{count} repairable memory error"))
    assert said(caplog, "hardware") == 1


async def test_p28_another_lnc_is_told_once_while_it_waits_for_pods_to_end(caplog: pytest.LogCaptureFixture) -> None:
    async with a_site("trn2.48xlarge", cluster=False) as site, site.daemon() as daemon:
        await site.run("a", app(1, CORE))
        site.node.set_logical_core_size(1)
        await eventually(lambda: bool(said(caplog, "the logical core size has changed")))
        site.node.set_reset(3, ResetState.FAILED)
        await site.kubelet.wait_for_capacity(NEURON.value, 14)
        assert site.kubelet.capacity(CORE.value).capacity == 64
        assert said(caplog, "the logical core size has changed") == 1
        assert daemon.state.machine is not None
        site.end("a")
        await site.kubelet.wait_for_capacity(CORE.value, 120)


async def test_p24_a_missing_device_leaves_the_others_their_numbers_and_is_listed_as_unhealthy() -> None:
    async with a_site(missing=(5,)) as site, site.daemon():
        assert site.kubelet.capacity(NEURON.value).capacity == 16
        assert site.kubelet.capacity(NEURON.value).allocatable == 15
        assert ids(await site.run("a", app(4)), NEURON) == (0, 1, 2, 3)
        assert ids(await site.run("b", app(4)), NEURON) == (8, 9, 10, 11)
        await eventually(lambda: INVENTORY_KEY in site.node_annotations())


async def test_p53_the_cdi_specification_is_written_and_written_again_when_it_was_wiped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("neuron_plugin.plugin.cdi.PERIOD_SECONDS", 0.02)
    async with a_site("trn1.2xlarge", cluster=False) as site:
        site.settings = msgspec.structs.replace(site.settings, cdi=True)
        async with site.daemon():
            written = site.settings.cdi_dir / "neuron-plugin.io-device.json"
            await eventually(written.is_file)
            admitted = await site.run("a", app(1))
            assert admitted.container("app").cdi_devices == ("neuron-plugin.io/device=0-0",)
            assert admitted.container("app").devices == ()
            written.unlink()
            await eventually(written.is_file)


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


async def test_p66_a_pod_that_is_being_deleted_is_served_and_held_until_it_is_gone() -> None:
    async with a_site() as site, site.daemon() as daemon:
        assert site.api is not None
        site.create("a", app(4), annotations=decision_of(app(4), sets=[[4, 5, 6, 7]]))
        site.api.delete_pod(NAMESPACE, "a")
        assert ids(await site.admit("a"), NEURON) == (4, 5, 6, 7)
        await site.confirmed(daemon, "a")
        site.end("a")
        await eventually(lambda: not holders(daemon))


async def test_p59_a_pod_rejected_after_its_allocate_holds_nothing_once_it_is_terminal() -> None:
    async with a_site() as site, site.daemon() as daemon:
        assert site.api is not None
        await site.run("a", app(4), annotations=decision_of(app(4), sets=[[4, 5, 6, 7]]))
        site.kubelet.finish("uid-a")
        site.api.set_pod_status(NAMESPACE, "a", {"phase": "Failed", "reason": "OutOfcpu"})
        await eventually(lambda: not holders(daemon))


async def test_e7_stopping_gives_the_nodes_lease_up_before_the_kubelet_loses_its_devices() -> None:
    async with a_site() as site:
        async with site.daemon():
            await held(site)
        assert lease_holders(site) == [""]


async def test_e7_a_pod_that_was_bound_before_the_plugin_stops_is_served_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(daemon_module, "UNDER_WAY_SECONDS", 0.0)
    monkeypatch.setattr(daemon_module, "LEAVE_SECONDS", 30.0)
    async with a_site() as site:
        async with site.daemon() as daemon:
            await held(site)
            site.create("a", app(4), annotations=decision_of(app(4), sets=[[4, 5, 6, 7]]))
            await eventually(lambda: bool(daemon.state.waiting()))
            late = asyncio.create_task(admit_once_closed(site), name="a late admission")
        assert ids(await late, NEURON) == (4, 5, 6, 7)


async def test_e7_a_binding_that_is_under_way_when_the_plugin_stops_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(daemon_module, "UNDER_WAY_SECONDS", 3.0)
    monkeypatch.setattr(daemon_module, "LEAVE_SECONDS", 30.0)
    async with a_site() as site:
        async with site.daemon():
            await held(site)
            late = asyncio.create_task(run_once_closed(site), name="a late binding")
        assert ids(await late, NEURON) == (4, 5, 6, 7)


async def test_e7_a_pod_that_is_never_admitted_does_not_keep_a_plugin_from_stopping(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(daemon_module, "LEAVE_SECONDS", 0.1)
    async with a_site() as site, asyncio.timeout(20):
        async with site.daemon() as daemon:
            site.create("a", app(4), annotations=decision_of(app(4), sets=[[4, 5, 6, 7]]))
            await eventually(lambda: bool(daemon.state.waiting()))
        assert [path.name for path in site.settings.kubelet_dir.glob("*.sock")] == ["kubelet.sock"]


async def test_a_plugin_whose_node_stays_open_has_no_reason_to_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_module, "LEAVE_SECONDS", 600.0)
    async with a_site() as site, asyncio.timeout(50):
        site.settings = msgspec.structs.replace(site.settings, node_lease=False)
        async with site.daemon() as daemon:
            site.create("a", app(4), annotations=decision_of(app(4), sets=[[4, 5, 6, 7]]))
            await eventually(lambda: bool(daemon.state.waiting()))


async def test_a_plugin_that_waits_for_the_kubelets_account_is_alive_watches_and_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refused = asyncio.Event()

    async def refuse(_: PodResourcesClient) -> tuple[PodDevices, ...]:
        refused.set()
        raise PodResourcesThrottledError("rejected by rate limit")

    monkeypatch.setattr(PodResourcesClient, "list", refuse)
    async with a_site() as site, asyncio.timeout(50):
        api = site.api
        assert api is not None
        async with site.daemon(registered=False) as daemon:
            await asyncio.wait_for(refused.wait(), 30)
            site.node.remove_device(5)
            await eventually(lambda: bool(daemon.state.machine and 5 in daemon.state.machine.unhealthy))
            await eventually(lambda: daemon.state.pods_known)
            assert not site.kubelet.capacity(NEURON.value).capacity
            assert not api.objects(LEASES)
            assert (await liveness(daemon.offering.servers)).status == HTTPStatus.OK
            ready = readiness(daemon.offering.servers, found=True, silent_sources={})
            assert ready.status == HTTPStatus.SERVICE_UNAVAILABLE
        assert [path.name for path in site.settings.kubelet_dir.glob("*.sock")] == ["kubelet.sock"]
        assert caplog.text.count("nothing is offered until the kubelet says who holds what") == 1


async def test_stopping_removes_the_sockets_and_every_task() -> None:
    async with a_site(cluster=False) as site:
        async with site.daemon():
            assert len(list(site.settings.kubelet_dir.glob("*.sock"))) == 4
        assert [path.name for path in site.settings.kubelet_dir.glob("*.sock")] == ["kubelet.sock"]
        assert {task.get_name() for task in asyncio.all_tasks()} & {"hardware", "offer", "confirm", "cdi"} == set()
