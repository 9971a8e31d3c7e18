"""The whole daemon over its sockets: from a pod's annotation to what its containers receive, and back.

Simulated hardware, a stand-in kubelet and a stand-in API server; nothing of the daemon is replaced.
"""

from __future__ import annotations

from neuron_plugin.decision_log import Step
from neuron_plugin.kubelet import DeviceNode
from tests.plugin.site import a_site, decision_of, eventually, ids, ledger
from tests.plugin.world import CORE, NEURON, app, uid_of


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


async def test_p36_a_decision_that_the_watch_has_not_shown_yet_is_read_before_the_answer() -> None:
    async with a_site() as site, site.daemon():
        assert site.api is not None
        site.api.mute_watches()
        admitted = await site.run("a", app(4), annotations=decision_of(app(4), sets=[[12, 13, 14, 15]]))
        assert ids(admitted, NEURON) == (12, 13, 14, 15)


async def test_a_pod_without_a_decision_gets_a_linked_set_its_annotation_and_a_name_in_the_log() -> None:
    async with a_site() as site, site.daemon() as daemon:
        admitted = await site.run("a", app(4))
        assert ids(admitted, NEURON) == (0, 1, 2, 3)
        await site.annotated("a")
        assert site.decided_ids("a") == [(0, 1, 2, 3)]
        assert int(site.annotations("a")["NEURON_ALLOC_TIME"]) > 0
        decisions = daemon.allocator.log.decisions
        await eventually(lambda: {one.pod.uid for one in decisions.entries() if one.pod} == {uid_of("a")})
