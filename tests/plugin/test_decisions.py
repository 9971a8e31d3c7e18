"""Which decided sets wait, in which order, and for whom."""

from __future__ import annotations

import pytest

from neuron_plugin.allocation import Holder, HolderLedger, Holding
from neuron_plugin.plugin.decisions import decision_for, decision_of, heir_of, waiting_decisions
from neuron_plugin.plugin.pods import NodePod
from neuron_plugin.plugin.standins import nameless_stand_in
from tests.plugin.world import CORE, DEVICE, NEURON, TRN1, app, decided, devices, init, pod, ref

ROW0, ROW1, ROW2 = [0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]


def held(name: str, *ids: int, container: str = "app") -> HolderLedger:
    return HolderLedger().with_holding(ref(name), Holding(container, NEURON, devices(*ids)))


def names(
    pods: list[NodePod], ledger: HolderLedger | None = None, *confirmed: str
) -> list[tuple[str, tuple[int, ...]]]:
    waiting = waiting_decisions(TRN1, pods, ledger or HolderLedger(), {ref(name).uid for name in confirmed})
    return [(one.pod.name, one.ids) for one in waiting]


def test_p30_decisions_wait_in_the_order_of_their_times_not_of_their_arrival() -> None:
    late, early = decided("late", app(4), sets=[ROW0], time=20), decided("early", app(4), sets=[ROW1], time=3)
    assert names([late, early]) == [("early", tuple(ROW1)), ("late", tuple(ROW0))]


def test_pods_without_a_decision_and_allocated_ones_wait_for_nothing() -> None:
    assert names([pod("plain", app(4)), decided("done", app(4), sets=[ROW0], allocated=True)]) == []


def test_a_set_with_an_id_that_this_node_lacks_does_not_wait() -> None:
    assert names([pod("a", app(2), annotations={"NEURON_DEVS": "15,16"})]) == []


def test_a_set_that_another_pod_holds_a_part_of_does_not_wait() -> None:
    assert names([decided("a", app(4), sets=[ROW0])], held("b", 3)) == []


def test_a_set_that_a_stand_in_had_under_the_same_name_still_waits() -> None:
    ledger = HolderLedger().with_holding(nameless_stand_in(0), Holding("", NEURON, devices(3)))
    assert names([decided("a", app(4), sets=[ROW0])], ledger) == [("a", tuple(ROW0))]
    other = HolderLedger().with_holding(nameless_stand_in(0), Holding("", DEVICE, devices(3)))
    assert names([decided("a", app(4), sets=[ROW0])], other) == []


def test_p48_each_container_has_its_own_list_and_only_unserved_ones_wait() -> None:
    two = decided("a", init(4), app(4), sets=[ROW0, ROW0])
    assert names([two]) == [("a", tuple(ROW0))] * 2
    assert names([two], held("a", *ROW0, container="init")) == [("a", tuple(ROW0))]


def test_a_served_container_waits_for_nothing_even_when_it_was_given_other_ids() -> None:
    assert names([decided("a", app(4), sets=[ROW0])], held("a", *ROW1)) == []


@pytest.mark.parametrize(
    ("available", "must", "size", "expected"),
    [
        (range(16), (), 4, tuple(ROW0)),
        (range(1, 16), (), 4, tuple(ROW1)),
        (range(16), (5,), 4, tuple(ROW1)),
        (range(16), (9,), 4, None),
        (range(16), (), 3, None),
        (range(8, 16), (), 4, None),
    ],
)
def test_p37_the_oldest_decision_that_the_offer_allows_is_chosen(
    available: range, must: tuple[int, ...], size: int, expected: tuple[int, ...] | None
) -> None:
    pods = [decided("a", app(4), sets=[ROW0], time=1), decided("b", app(4), sets=[ROW1], time=2)]
    found = decision_for(waiting_decisions(TRN1, pods, HolderLedger()), NEURON, available, must, size)
    assert (found.ids if found else None) == expected


def test_a_decision_for_one_resource_name_is_none_for_another() -> None:
    waiting = waiting_decisions(TRN1, [decided("a", app(4), sets=[ROW0])], HolderLedger())
    assert decision_for(waiting, DEVICE, range(16), (), 4) is None
    assert decision_of(waiting, DEVICE, devices(*ROW0)) is None
    assert decision_of(waiting, NEURON, devices(*ROW1)) is None
    found = decision_of(waiting, NEURON, devices(*ROW0))
    assert found is not None
    assert found.pod == ref("a")


def test_p56_after_a_swap_the_set_left_over_waits_for_the_pod_whose_own_is_gone() -> None:
    pods = [decided("a", app(4), sets=[ROW0], time=1), decided("b", app(4, name="other"), sets=[ROW1], time=2)]
    ledger = held("b", *ROW0, container="other")
    assert names(pods, ledger) == []
    assert names(pods, ledger, "b") == [("a", tuple(ROW1))]
    (left,) = waiting_decisions(TRN1, pods, ledger, {ref("b").uid})
    assert left.request.container == "app"


def test_a_set_left_over_without_an_heir_waits_for_nobody() -> None:
    pods = [decided("a", app(4), sets=[ROW0], time=1), decided("b", app(4), sets=[ROW1], time=2)]
    assert names(pods, held("b", *ROW2), "b") == [("a", tuple(ROW0))]


def test_an_heir_asks_for_the_same_and_holds_nothing() -> None:
    giver = decided("b", app(4), sets=[ROW1])
    cores = decided("c", app(8, CORE), sets=[list(range(8))])
    equal = decided("a", app(4), sets=[ROW0])
    ledger = held("b", *ROW0)
    assert heir_of(TRN1, giver, [giver, cores], ledger) is None
    assert heir_of(TRN1, giver, [giver, cores, equal], ledger) is equal
    served = ledger.with_holder(Holder(ref("a"), (Holding("app", NEURON, devices(*ROW2)),)))
    assert heir_of(TRN1, giver, [giver, equal], served) is None


def test_who_got_its_own_set_or_nothing_leaves_nothing() -> None:
    twins = [decided("a", app(4), sets=[ROW0]), decided("b", app(4), sets=[ROW0])]
    assert heir_of(TRN1, twins[1], twins, held("b", *ROW0)) is None
    assert heir_of(TRN1, twins[1], twins, HolderLedger()) is None
    assert heir_of(TRN1, pod("p", app(4)), twins, held("p", *ROW0)) is None
