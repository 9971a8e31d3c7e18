from __future__ import annotations

import logging
import timeit

import pytest

from neuron_plugin.allocation import Holding, LoggedDecision, Step, explain_decision
from neuron_plugin.kubelet import AllocationRefusedError, ContainerAllocation, RegistrationState
from neuron_plugin.plugin.allocator import Allocator
from neuron_plugin.plugin.claims import Claim
from neuron_plugin.plugin.counts import Counts
from neuron_plugin.plugin.node import NodeState
from neuron_plugin.plugin.settings import TopologyPolicy
from neuron_plugin.plugin.steering import Steering
from neuron_plugin.plugin.timed import Timed
from neuron_plugin.plugin.witness import Witness
from tests.plugin.world import (
    CORE,
    DEVICE,
    NEURON,
    TRN1,
    FakeReport,
    a_state,
    app,
    decided,
    devices,
    host_style,
    machine,
    no_look,
    pod,
    ref,
    texts,
)


class Clock:
    """A clock that goes on by a step at each look."""

    def __init__(self, step: float) -> None:
        self.now, self._step = 0.0, step

    def __call__(self) -> float:
        self.now += self._step
        return self.now


def witness_of(state: NodeState) -> Witness:
    return Witness("n1", state, Counts(), now_ns=lambda: 17)


def served(state: NodeState, policy: TopologyPolicy = TopologyPolicy.PREFERRED) -> tuple[Timed, Witness]:
    """An allocator as the daemon has it."""
    witness = witness_of(state)
    steering = Steering(state, None, no_look)
    allocator = Allocator(state, host_style, policy, FakeReport(), steering, witness=witness)
    return Timed(allocator, witness, clock=Clock(0.001)), witness


def told(witness: Witness) -> list[dict[str, object]]:
    return [explain_decision(entry) for entry in witness.journal.entries()]


async def test_a_decided_pod_leaves_a_preference_and_an_allocation_with_its_name() -> None:
    state = a_state(TRN1, decided("train", app(4, DEVICE), sets=[(4, 5, 6, 7)]))
    handler, witness = served(state)
    await handler.preferred(DEVICE.value, texts(range(16)), [], 4)
    handler.allocate(DEVICE.value, texts([4, 5, 6, 7]))
    preferred, allocated = told(witness)
    assert (preferred["step"], allocated["step"]) == ("preferred", "allocated")
    for entry in (preferred, allocated):
        assert (entry["pod"], entry["container"], entry["ids"]) == ("default/train", "app", "4,5,6,7")
        assert (entry["node"], entry["timeNs"], entry["resource"]) == ("n1", 17, DEVICE.value)
    assert preferred["reason"] == "the oldest waiting decision of this size"
    assert allocated["reason"] == "the set a scheduler decided for this pod"


async def test_a_choice_of_our_own_names_the_sets_it_was_made_from() -> None:
    state = a_state(TRN1, decided("waits", app(4, DEVICE), sets=[(0, 1, 2, 3)]))
    handler, witness = served(state)
    await handler.preferred(DEVICE.value, texts(range(12)), [], 1)
    (entry,) = told(witness)
    assert entry["reason"] == "no waiting decision fits: the best set of what is offered and free"
    assert entry["offered"] == ",".join(texts(range(12)))
    assert entry["usable"] == ",".join(texts(range(4, 12)))
    assert entry["candidateCount"] == 8


async def test_what_must_be_included_is_told() -> None:
    handler, witness = served(a_state())
    await handler.preferred(DEVICE.value, texts(range(16)), ["9"], 4)
    (entry,) = told(witness)
    assert (entry["mustInclude"], entry["ids"]) == ("9", "8,9,10,11")


def test_an_allocation_is_explained_by_what_was_free_before_it() -> None:
    handler, witness = served(a_state())
    handler.allocate(DEVICE.value, ["0"])
    handler.allocate(DEVICE.value, ["1"])
    first, second = told(witness)
    assert (first["usable"], second["usable"]) == (",".join(texts(range(16))), ",".join(texts(range(1, 16))))
    assert first["reason"] == "no decision waits for these ids: the kubelet's choice, found free"
    assert (first["pod"], first["uid"]) == ("", "")


def test_the_same_call_again_is_told_as_the_holders_own() -> None:
    state = a_state(TRN1, pod("train", app(1, DEVICE)))
    state.hold(ref("train"), Holding("app", DEVICE, devices(3)))
    handler, witness = served(state)
    handler.allocate(DEVICE.value, ["3"])
    (entry,) = told(witness)
    assert (entry["reason"], entry["pod"]) == ("what the pod holds already", "default/train")


def test_a_refusal_is_told_with_its_ids_and_its_text() -> None:
    state = a_state(TRN1, pod("train", app(1, DEVICE)))
    state.hold(ref("train"), Holding("app", DEVICE, devices(3)))
    handler, witness = served(state)
    with pytest.raises(AllocationRefusedError) as caught:
        handler.allocate(CORE.value, ["6", "7"])
    (entry,) = told(witness)
    assert (entry["step"], entry["ids"], entry["reason"]) == ("refused", "6,7", str(caught.value))
    assert "default/train" in str(entry["reason"])
    assert not witness.counts.allocations


def test_without_a_machine_there_is_nothing_to_tell() -> None:
    witness = witness_of(NodeState())
    witness.preferred(DEVICE, [0], [], [0])
    witness.refused(DEVICE.value, ["0"], AllocationRefusedError("no device"))
    witness.corrected(ref("train"), [Holding("app", DEVICE, devices(0))], "another set")
    assert witness.journal.entries() == ()


def test_p63_a_corrected_pod_is_counted_once_and_told_by_container() -> None:
    witness = witness_of(a_state())
    witness.corrected(ref("train"), [Holding("a", DEVICE, devices(0)), Holding("b", DEVICE, devices(1))], "another set")
    assert witness.counts.corrections == 1
    assert [(entry["step"], entry["container"], entry["ids"]) for entry in told(witness)] == [
        ("corrected", "a", "0"),
        ("corrected", "b", "1"),
    ]


def test_p44_noting_an_allocate_costs_microseconds() -> None:
    state = a_state()
    witness = witness_of(state)
    node, ledger, ids = machine(), state.ledger, (0, 1)
    claim = Claim(None, "", devices(0), decided=False)
    calls = 2000
    best = min(timeit.repeat(lambda: witness.allocated(node, ledger, CORE, ids, claim), number=calls, repeat=5)) / calls
    assert best < 50e-6  # some 5 on an idle machine


async def test_p79_latencies_are_kept_by_resource_and_refusals_have_theirs_too() -> None:
    handler, witness = served(a_state())
    await handler.preferred(NEURON.value, texts(range(16)), [], 1)
    handler.allocate(NEURON.value, ["0"])
    with pytest.raises(AllocationRefusedError):
        handler.allocate(CORE.value, ["0"])
    counts = witness.counts
    assert dict(counts.preference_seconds[NEURON.value].cumulative())["+Inf"] == 1
    assert counts.allocate_seconds[NEURON.value].sum_seconds == pytest.approx(0.001)
    assert dict(counts.allocate_seconds[CORE.value].cumulative())["+Inf"] == 1
    assert counts.allocations == {NEURON: 1}


async def test_what_is_not_timed_passes_through() -> None:
    handler, _ = served(a_state())
    assert await handler.pre_start(NEURON.value, ["0"]) is None  # type: ignore[func-returns-value]  # it must not raise
    assert isinstance(handler.allocate(NEURON.value, ["0"]), ContainerAllocation)


async def test_p84_the_line_about_an_allocate_is_written_after_its_answer(caplog: pytest.LogCaptureFixture) -> None:
    put_off: list[object] = []
    state = a_state()
    steering = Steering(state, None, no_look)
    allocator = Allocator(state, host_style, TopologyPolicy.PREFERRED, FakeReport(), steering, later=put_off.append)
    with caplog.at_level(logging.INFO, "neuron_plugin"):
        allocator.allocate(NEURON.value, ["0"])
        assert not caplog.records
        (work,) = put_off
        work()  # type: ignore[operator]  # what was put off
        assert [record.getMessage() for record in caplog.records] == ["allocated"]


def test_p84_a_resource_that_is_advertised_is_told_at_info(caplog: pytest.LogCaptureFixture) -> None:
    begun: list[bool] = []
    witness = Witness("n1", a_state(), Counts(), on_advertised=lambda: begun.append(True))
    with caplog.at_level(logging.INFO, "neuron_plugin"):
        for state in RegistrationState:
            witness.state_changed(NEURON.value, state)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "registered and advertised")
    ]
    assert begun == [True]


def test_every_change_of_a_devices_health_is_counted_both_ways() -> None:
    witness = witness_of(a_state())
    witness.saw(machine())
    witness.saw(machine(unhealthy={3: "x", 4: "y"}))
    witness.saw(machine(unhealthy={3: "another reason"}))
    witness.saw(machine())
    assert witness.counts.health_transitions == {
        (3, "unhealthy"): 1,
        (4, "unhealthy"): 1,
        (3, "healthy"): 1,
        (4, "healthy"): 1,
    }


def test_the_same_machine_again_is_no_transition() -> None:
    witness, sick = witness_of(a_state()), machine(unhealthy={3: "x"})
    witness.saw(sick)
    witness.saw(sick)
    assert witness.counts.health_transitions == {(3, "unhealthy"): 1}


def test_what_the_kubelets_room_tells_is_counted() -> None:
    witness = witness_of(a_state())
    witness.registration_ended("neuron", None)
    witness.preference_replaced("neuron", "too late")
    witness.request_refused("neuron", "Allocate", ValueError())
    counts = witness.counts
    assert (counts.registrations.total(), counts.preferences_replaced.total(), counts.refusals.total()) == (1, 1, 1)


def test_an_entry_holds_no_more_than_references() -> None:
    state = a_state()
    handler, witness = served(state)
    handler.allocate(NEURON.value, ["0"])
    (entry,) = witness.journal.entries()
    assert isinstance(entry, LoggedDecision)
    assert entry.step is Step.ALLOCATED
    assert entry.geometry is state.machine.geometry if state.machine else False
