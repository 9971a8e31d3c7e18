"""The whole daemon over its sockets: from a pod's annotation to what its containers receive, and back.

Simulated hardware, a stand-in kubelet and a stand-in API server; nothing of the daemon is replaced.
"""

from __future__ import annotations

import msgspec
import pytest

from neuron_plugin.allocation.keys import NODE_KEY, POD_UID_KEY
from neuron_plugin.decision_log import Step
from neuron_plugin.kubelet import DeviceNode
from neuron_plugin.plugin.settings import TopologyPolicy
from neuron_plugin.simulation import PodRejectedError
from tests.plugin.site import NAMESPACE, a_site, decision_of, eventually, holders, ids, ledger
from tests.plugin.world import CORE, DEVICE, NEURON, app, init, sidecar, uid_of


async def test_a_decision_steers_the_kubelet_is_confirmed_and_marked_on_the_pod() -> None:
    async with a_site() as site, site.daemon() as daemon:
        container = app(4)
        admitted = await site.run("a", container, annotations=decision_of(container, sets=[[8, 9, 10, 11]]))
        assert ids(admitted, NEURON) == (8, 9, 10, 11)
        await site.annotated("a")
        assert site.decided_ids("a") == [(8, 9, 10, 11)]
        assert holders(daemon) == {uid_of("a")}
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


async def test_without_a_cluster_a_decision_names_its_pod_once_the_kubelet_has_recorded_it() -> None:
    async with a_site("trn1.2xlarge", cluster=False) as site, site.daemon() as daemon:
        await site.run("a", app(1))
        decisions = daemon.allocator.log.decisions
        await eventually(lambda: {one.pod.uid for one in decisions.entries() if one.pod} == {uid_of("a")})


async def test_p56_the_pod_that_comes_later_finds_the_other_set_waiting_and_annotated() -> None:
    async with a_site() as site, site.daemon() as daemon:
        site.create("a", app(4), annotations=decision_of(app(4), sets=[[0, 1, 2, 3]], time=1))
        site.create("b", app(4), annotations=decision_of(app(4), sets=[[8, 9, 10, 11]], time=2))
        await eventually(lambda: len(daemon.node.pods.pods) == 2)
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
        held = {one.container: one.mask for one in ledger(daemon).of(uid_of("a"))}
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


async def test_p49_a_malformed_assignment_is_served_like_none_reported_and_corrected() -> None:
    async with a_site() as site, site.daemon() as daemon:
        site.create("bad", app(4), annotations={"NEURON_DEVS": "0-x", "NEURON_CORES": "1"})
        site.create("good", app(4), annotations=decision_of(app(4), sets=[[0, 1, 2, 3]]))
        await eventually(lambda: len(daemon.node.pods.pods) == 2)
        bad, good = ids(await site.admit("bad"), NEURON), ids(await site.admit("good"), NEURON)
        assert {bad, good} == {(0, 1, 2, 3), (4, 5, 6, 7)}
        await site.annotated("bad", "good")
        assert (site.decided_ids("bad"), site.decided_ids("good")) == ([bad], [good])
        assert "NEURON_CORES" not in site.annotations("bad")
        await eventually(lambda: "InvalidNeuronAssignment" in site.event_reasons())


async def test_an_assignment_that_was_made_for_another_node_is_not_followed_and_is_corrected() -> None:
    async with a_site() as site, site.daemon() as daemon:
        meant = decision_of(app(4), sets=[[8, 9, 10, 11]]) | {NODE_KEY: "worker-2", POD_UID_KEY: uid_of("a")}
        site.create("a", app(4), annotations=meant)
        await eventually(lambda: len(daemon.node.pods.pods) == 1)
        assert ids(await site.admit("a"), NEURON) == (0, 1, 2, 3)
        await site.annotated("a")
        assert site.decided_ids("a") == [(0, 1, 2, 3)]
        await eventually(lambda: "AssignmentCorrected" in site.event_reasons())


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
        await eventually(lambda: len(daemon.node.pods.pods) == 1)
        with pytest.raises(PodRejectedError, match="ask for one Neuron resource per container"):
            await site.admit("a")
        await eventually(lambda: site.event_reasons() == ["InvalidNeuronRequest"])


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
        site.kubelet.finish(uid_of("a"))
        site.api.set_pod_status(NAMESPACE, "a", {"phase": "Failed", "reason": "OutOfcpu"})
        await eventually(lambda: not holders(daemon))
