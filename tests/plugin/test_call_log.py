"""Each decision about an admission, and each Allocate, is explained in the log."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest

from neuron_plugin.decision_log import Step
from neuron_plugin.plugin.writes import PodEvent, pod_writes
from tests.plugin.desk import a_desk
from tests.plugin.world import NEURON, TRN1, devices, pod_of, ref


async def test_a_preference_is_logged_with_what_it_was_chosen_from() -> None:
    async with a_desk("a app:4=0-3 | b app:1") as desk:
        await desk.prefer("4")
        await desk.prefer("1 of 2-15 must 9")
        await asyncio.sleep(0)
        first, second = desk.decisions
        assert (first.step, first.pod, first.container, first.chosen) == (
            Step.PREFERRED,
            ref("a"),
            "app",
            devices(0, 1, 2, 3),
        )
        assert (first.offered, first.usable()) == (TRN1.all_mask, TRN1.all_mask)
        assert (second.pod, second.must_include) == (None, devices(9))
        assert second.usable() == devices(*range(4, 16))


async def test_an_allocation_is_explained_by_what_was_free_before_it() -> None:
    async with a_desk("a app:4=0-3") as desk:
        await desk.allocate("0-3")
        (decision,) = desk.decisions
        assert decision.usable() == TRN1.all_mask
        assert decision.reason == "a set that the scheduler assigned"


async def test_p63_a_correction_is_logged_for_each_container() -> None:
    async with a_desk("a app.one:1=5 app.two:1=6") as desk:
        await desk.admit("a/one=8")
        await desk.admit("a/two=9")
        (write,) = pod_writes(desk.snapshot)
        desk.allocator.log.corrected(desk.snapshot, PodEvent(write.pod, "AssignmentCorrected", write.correction))
        assert [(one.step, one.container, one.chosen) for one in desk.decisions[-2:]] == [
            (Step.CORRECTED, "one", devices(8)),
            (Step.CORRECTED, "two", devices(9)),
        ]


async def test_p84_each_allocate_is_one_line_once_the_kubelet_has_recorded_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with a_desk("a app:core:2=2,3") as desk:
        await desk.allocate("core:2,3")
        desk.allocator.log.name_recorded(desk.snapshot)
        assert not caplog.records
        desk.record("a=core:2,3")
        desk.allocator.log.name_recorded(desk.snapshot)
        desk.allocator.log.name_recorded(desk.snapshot)
    (record,) = caplog.records
    fields = vars(record)
    assert record.message == "allocated"
    assert {key: fields[key] for key in ("resource", "ids", "pod", "container", "reason", "devices", "env")} == {
        "resource": "aws.amazon.com/neuroncore",
        "ids": "2,3",
        "pod": "pod default/a",
        "container": "app",
        "reason": "a set that the scheduler assigned",
        "devices": "/dev/neuron1:/dev/neuron1",
        "env": {"NEURON_RT_VISIBLE_CORES": "2,3"},
    }


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("steps", "who"),
    [
        pytest.param("prefer 4; allocate 0-3; record b=0-3", "pod default/b", id="a pod that got another pod's set"),
        pytest.param("allocate 0-3; restart", "the kubelet did not record it", id="one that was never recorded"),
    ],
)
async def test_an_allocate_is_logged_under_the_name_that_the_kubelets_record_has(
    caplog: pytest.LogCaptureFixture, steps: str, who: str
) -> None:
    """Allocate names no pod: whose the ids are says the kubelet's record, not the assignment."""
    caplog.set_level(logging.INFO)
    async with a_desk("a app:4=0-3 | b app:4=4-7 @2") as desk:
        await desk.play(steps)
        desk.allocator.log.name_recorded(desk.snapshot)
        assert "record" not in steps or {one.pod for one in desk.decisions} == {ref("b")}
    assert [vars(record)["pod"] for record in caplog.records if record.message == "allocated"] == [who]


async def test_p79_calls_are_timed_by_resource() -> None:
    async with a_desk("a app:1") as desk:
        await desk.prefer("1")
        await desk.allocate("1")
        await asyncio.sleep(0)
        counts = desk.allocator._counts
        for name in ("preference_seconds", "allocate_seconds", "allocations_total"):
            assert list(counts.samples()[name]) == [(NEURON.value,)]
        assert counts["allocations_total"] == {(NEURON.value,): 1}


async def test_decisions_name_a_pod_that_came_without_an_assignment_once_the_kubelet_has_recorded_it() -> None:
    async with a_desk("a app:4") as desk:
        await desk.prefer("4")
        await desk.allocate("0-3")
        assert [one.pod for one in desk.decisions] == [None, None]
        desk.record("a=0-3")
        desk.allocator.log.name_recorded(desk.snapshot)
        assert [(one.step, one.pod, one.container) for one in desk.decisions] == [
            (Step.PREFERRED, ref("a"), "app"),
            (Step.ALLOCATED, ref("a"), "app"),
        ]
        assert not desk.allocator.log._unrecorded


async def test_decisions_name_the_uid_of_a_pod_until_the_api_server_shows_its_name() -> None:
    async with a_desk("", "unlisted") as desk:
        await desk.admit("a=3")
        desk.allocator.log.name_recorded(desk.snapshot)
        (decision,) = desk.decisions
        assert decision.pod == replace(ref("a"), namespace="", name="")
        desk.node.see_pods(desk.node.pods.with_pod(pod_of("a app:1")))
        desk.allocator.log.name_recorded(desk.snapshot)
        assert desk.decisions[0].pod == ref("a")
