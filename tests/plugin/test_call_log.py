"""Each decision about an admission, and each Allocate, is explained in the log."""

from __future__ import annotations

import asyncio
import logging

import pytest

from neuron_plugin.decision_log import Step
from neuron_plugin.plugin.writes import PodEvent, pod_writes
from tests.plugin.desk import a_desk
from tests.plugin.world import CORE, NEURON, TRN1, app, assigned, devices, pod, ref, uid_of

B = uid_of("b")
ROW0, ROW1 = (0, 1, 2, 3), (4, 5, 6, 7)


# Decisions and log lines.


async def test_a_preference_is_logged_with_what_it_was_chosen_from() -> None:
    async with a_desk(assigned("a", app(4), sets=[ROW0]), pod("b", app(1))) as desk:
        await desk.prefer("4")
        await desk.prefer("1 of 2-15 must 9")
        await asyncio.sleep(0)
        first, second = desk.decisions
        assert (first.step, first.pod, first.container, first.chosen) == (
            Step.PREFERRED,
            ref("a"),
            "app",
            devices(*ROW0),
        )
        assert (first.offered, first.usable()) == (TRN1.all_mask, TRN1.all_mask)
        assert (second.pod, second.must_include) == (None, devices(9))
        assert second.usable() == devices(*range(4, 16))


async def test_an_allocation_is_explained_by_what_was_free_before_it() -> None:
    async with a_desk(assigned("a", app(4), sets=[ROW0])) as desk:
        await desk.allocate("0-3")
        (decision,) = desk.decisions
        assert decision.usable() == TRN1.all_mask
        assert decision.reason == "a set that the scheduler assigned"


async def test_p63_a_correction_is_logged_for_each_container() -> None:
    swapped = assigned("a", app(1, name="one"), app(1, name="two"), sets=[[5], [6]])
    async with a_desk(swapped) as desk:
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
    async with a_desk(assigned("a", app(2, CORE), sets=[[2, 3]])) as desk:
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


async def test_a_pod_that_got_another_pods_set_is_logged_under_its_own_name(caplog: pytest.LogCaptureFixture) -> None:
    """Allocate names no pod: whose the ids are says the kubelet's record, not the assignment."""
    caplog.set_level(logging.INFO)
    async with a_desk(assigned("a", app(4), sets=[ROW0]), assigned("b", app(4), sets=[ROW1], time=2)) as desk:
        await desk.prefer("4")
        await desk.allocate("0-3")
        desk.record("b=0-3")
        desk.allocator.log.name_recorded(desk.snapshot)
        assert {one.pod for one in desk.decisions} == {ref("b")}
    (pods,) = [vars(record)["pod"] for record in caplog.records if record.message == "allocated"]
    assert pods == "pod default/b"


@pytest.mark.looptime
async def test_an_answer_that_the_kubelet_never_recorded_is_logged_as_such(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with a_desk(pod("a", app(1))) as desk:
        await desk.allocate("3")
        desk.node.kubelet_restarted()
        desk.allocator.log.name_recorded(desk.snapshot)
    (who,) = [vars(record)["pod"] for record in caplog.records if record.message == "allocated"]
    assert who == "the kubelet did not record it"


async def test_p79_calls_are_timed_by_resource() -> None:
    async with a_desk(pod("a", app(1))) as desk:
        await desk.prefer("1")
        await desk.allocate("1")
        await asyncio.sleep(0)
        counters = desk.allocator._counters
        assert list(counters.preference_seconds) == list(counters.allocate_seconds) == [NEURON.value]
        assert counters.allocations == {NEURON.value: 1}
