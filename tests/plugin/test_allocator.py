"""What the kubelet is answered, and whom it is refused."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from neuron_plugin.allocation import Holding
from neuron_plugin.kubelet import AllocationRefusedError
from neuron_plugin.plugin.node import NodeState
from neuron_plugin.plugin.settings import TopologyPolicy
from tests.plugin.world import (
    CORE,
    DEVICE,
    NEURON,
    TRN1,
    TRN2,
    FakeReport,
    a_state,
    an_allocator,
    app,
    decided,
    devices,
    given_mask,
    init,
    pod,
    ref,
    texts,
)

ROW0 = [0, 1, 2, 3]


def test_p54_an_allocate_changes_the_ledger_and_nothing_else() -> None:
    state = a_state(TRN1, decided("a", app(4), sets=[ROW0]))
    pods, machine = dict(state.pods), state.machine
    answer = an_allocator(state).allocate(NEURON.value, texts(ROW0))
    assert given_mask(TRN1, answer) == devices(*ROW0)
    assert state.ledger.holders[ref("a").uid].mask == devices(*ROW0)
    assert (state.pods, state.machine) == (pods, machine)


async def test_the_ids_of_the_answer_are_numbers_in_the_kubelets_form() -> None:
    allocator = an_allocator(a_state(TRN1, decided("a", app(4), sets=[[8, 9, 10, 11]])))
    assert await allocator.preferred(NEURON.value, texts(range(16)), [], 4) == ["8", "9", "10", "11"]


def test_p45_a_refusal_names_both_pods_and_what_each_has() -> None:
    report = FakeReport()
    state = a_state(TRN1, decided("a", app(2, CORE), sets=[[2, 3]]), pod("b", app(1)))
    allocator = an_allocator(state, report=report)
    allocator.allocate(CORE.value, ["2", "3"])
    with pytest.raises(AllocationRefusedError) as refused:
        allocator.allocate(NEURON.value, ["1"])
    assert str(refused.value) == (
        "aws.amazon.com/neuron 1 cannot be given to pod default/b: pod default/a holds aws.amazon.com/neuroncore 2,3"
    )
    assert report.told == [("DeviceConflict", str(refused.value), "default/b")]
    assert state.ledger.used_mask == TRN1.cores_mask((2, 3))


def test_a_refusal_whose_caller_is_not_certain_names_all_it_may_be_and_blames_none() -> None:
    report = FakeReport()
    state = a_state(TRN1, pod("b", app(1)), pod("c", app(1)))
    state.hold(ref("a"), Holding("app", CORE, devices(1)))
    with pytest.raises(AllocationRefusedError, match="pod default/b or default/c"):
        an_allocator(state, report=report).allocate(NEURON.value, ["1"])
    assert report.told[0][2] == ""


def test_a_refusal_to_an_unknown_pod_says_so() -> None:
    state = a_state(TRN1)
    state.hold(ref("a"), Holding("app", CORE, devices(1)))
    with pytest.raises(AllocationRefusedError, match="cannot be given to a pod without a decision: pod default/a"):
        an_allocator(state).allocate(NEURON.value, ["1"])


@pytest.mark.parametrize("policy", list(TopologyPolicy))
def test_p47_a_set_that_is_not_linked_is_reported_or_refused(policy: TopologyPolicy) -> None:
    report, state = FakeReport(), a_state(TRN1, pod("a", app(7)))
    allocator = an_allocator(state, report=report, policy=policy)
    sentence = (
        "Instance type trn1.32xlarge does not support requests for device: 7. "
        "Please request a different number of devices."
    )
    if policy is TopologyPolicy.REQUIRED:
        with pytest.raises(AllocationRefusedError) as refused:
            allocator.allocate(NEURON.value, texts(range(7)))
        assert str(refused.value) == sentence
        assert not state.ledger.holders
    else:
        allocator.allocate(NEURON.value, texts(range(7)))
        text = f"aws.amazon.com/neuron 0,1,2,3,4,5,6 are not linked. {sentence}"
        assert report.told == [("UnlinkedDevices", text, "")]


def test_a_set_that_was_decided_is_taken_as_linked() -> None:
    report = FakeReport()
    state = a_state(TRN1, decided("a", app(2), sets=[[3, 4]]))
    an_allocator(state, report=report, policy=TopologyPolicy.REQUIRED).allocate(NEURON.value, ["3", "4"])
    assert report.told == []


def test_only_a_pod_that_asks_for_two_resources_can_have_asked_so_it_is_refused() -> None:
    spec = app(1)
    both = type(spec)("app", spec.kind, {NEURON.value: "1", CORE.value: "2"})
    state = a_state(TRN1, pod("bad", both))
    allocator = an_allocator(state)
    with pytest.raises(AllocationRefusedError, match="ask for one Neuron resource per container"):
        allocator.allocate(CORE.value, ["0", "1"])
    state.see_pod(pod("good", app(2, CORE)))
    allocator.allocate(CORE.value, ["0", "1"])


async def test_before_any_device_was_found_nothing_is_given() -> None:
    allocator = an_allocator(NodeState())
    with pytest.raises(AllocationRefusedError, match="is the driver loaded"):
        allocator.allocate(DEVICE.value, ["0"])
    with pytest.raises(AllocationRefusedError, match="is the driver loaded"):
        await allocator.preferred(DEVICE.value, ["0"], [], 1)


async def test_ids_count_as_asked_about_for_the_very_next_call_only() -> None:
    state = a_state(TRN1)
    allocator = an_allocator(state)
    state.hold(state.new_stand_in(), Holding("", NEURON, devices(*ROW0)))
    await allocator.preferred(NEURON.value, texts(ROW0), [], 1)
    allocator.allocate(NEURON.value, ["15"])
    allocator.allocate(NEURON.value, ["0"])  # not asked about any more: re-used
    assert sorted(holder.mask for holder in state.ledger) == sorted([devices(*ROW0), devices(15)])


async def test_ids_that_we_were_asked_about_in_vain_are_new_to_their_pod_whoever_chose_them() -> None:
    """The answer came too late, so the service or the kubelet itself chose others."""
    state = a_state(TRN1)

    async def for_ever() -> None:
        await asyncio.Event().wait()

    allocator = an_allocator(state, look_at_pods=for_ever)
    state.hold(state.new_stand_in(), Holding("", NEURON, devices(*ROW0)))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await allocator.preferred(NEURON.value, texts(range(16)), [], 2)
    allocator.allocate(NEURON.value, ["2", "3"])
    assert [holder.mask for holder in state.ledger] == [devices(2, 3)]


@pytest.mark.parametrize("ids", [["1", "5"], ["4", "5"], ["0", "1", "2"]])
async def test_an_allocate_that_is_not_what_was_asked_about_is_for_ids_that_its_pod_has_before(ids: list[str]) -> None:
    """Outside of what was offered, or of another size."""
    state = a_state(TRN1)
    allocator = an_allocator(state)
    state.hold(state.new_stand_in(), Holding("", NEURON, devices(*range(6))))
    await allocator.preferred(NEURON.value, texts(ROW0), [], 2)
    allocator.allocate(NEURON.value, ids)
    assert [len(holder.holdings) for holder in state.ledger] == [2]


async def test_a_container_is_never_held_back_at_its_start() -> None:
    await an_allocator(a_state()).pre_start(NEURON.value, ["0"])


def test_each_allocate_is_one_line_with_all_that_the_container_got(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    an_allocator(a_state(TRN1, decided("a", app(2, CORE), sets=[[2, 3]]))).allocate(CORE.value, ["2", "3"])
    (record,) = caplog.records
    fields = vars(record)
    assert record.message == "allocated"
    assert {key: fields[key] for key in ("resource", "ids", "pod", "container", "decided", "nodes", "env")} == {
        "resource": "aws.amazon.com/neuroncore",
        "ids": "2,3",
        "pod": "pod default/a",
        "container": "app",
        "decided": True,
        "nodes": "/dev/neuron1:/dev/neuron1",
        "env": {"NEURON_RT_VISIBLE_CORES": "2,3"},
    }


def test_p44_an_allocate_takes_far_less_than_a_millisecond_on_a_full_node_of_a_hundred_pods() -> None:
    state = a_state(
        TRN2, *(decided(f"p{number}", app(1, CORE), sets=[[number]], geometry=TRN2) for number in range(64))
    )
    for number in range(48):
        state.hold(ref(f"p{number}"), Holding("app", CORE, TRN2.cores_mask((number,))))
    allocator, took = an_allocator(state), []
    for number in range(48, 64):
        began = time.thread_time()
        allocator.allocate(CORE.value, [str(number)])
        took.append(time.thread_time() - began)
    assert sorted(took)[len(took) // 2] < 0.01  # about 0.3 ms: generous, machines are shared


async def test_ids_around_what_must_be_included_are_the_same_pods_who_had_that() -> None:
    state = a_state(TRN1)
    allocator = an_allocator(state)
    allocator.allocate(NEURON.value, ["0"])
    assert await allocator.preferred(NEURON.value, texts(range(16)), ["0"], 4) == texts(ROW0)
    allocator.allocate(NEURON.value, texts(ROW0))
    (holder,) = state.ledger
    assert [holding.mask for holding in holder.holdings] == [devices(0), devices(*ROW0)]


async def test_p45_what_was_noted_for_an_equal_call_does_not_keep_a_pod_from_its_own_init_containers_ids() -> None:
    """The kubelet admits the younger pod first; its init container asks for as much as the older pod does in all."""
    state = a_state(TRN1, decided("older", app(1), sets=[[4]], time=1))
    state.see_pod(decided("younger", init(1), app(4), sets=[[0], [0, 1, 2, 3]], time=2))
    allocator = an_allocator(state)
    assert await allocator.preferred(NEURON.value, texts(range(16)), [], 1) == ["4"]
    allocator.allocate(NEURON.value, ["4"])

    ids = await allocator.preferred(NEURON.value, texts(range(16)), ["4"], 4)

    assert given_mask(TRN1, allocator.allocate(NEURON.value, ids)) == devices(*map(int, ids))
