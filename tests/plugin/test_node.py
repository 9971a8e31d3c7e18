"""The node's state: suppositions, confirmations and ends."""

from __future__ import annotations

from dataclasses import replace

from neuron_plugin.allocation import Holding
from neuron_plugin.hardware import MISSING
from neuron_plugin.plugin.node import NodeState
from neuron_plugin.plugin.quarantine import Quarantine
from neuron_plugin.plugin.standins import is_nameless, named_stand_in
from neuron_plugin.topology import Geometry, Topology
from tests.plugin.world import CORE, NEURON, TRN1, FakeClock, a_state, app, decided, devices, init, machine, pod, ref

ROW0, ROW1, ROW2 = [0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]


def holds(state: NodeState, name: str) -> int:
    holder = state.ledger.holders.get(ref(name).uid)
    return holder.mask if holder else 0


def give(state: NodeState, name: str, *ids: int, container: str = "app") -> None:
    state.hold(ref(name), Holding(container, NEURON, devices(*ids)))


def truth(state: NodeState, name: str, *ids: int, container: str = "app") -> None:
    state.confirm(ref(name), [Holding(container, NEURON, devices(*ids))])


def stand_ins(state: NodeState) -> list[int]:
    return [holder.mask for holder in state.ledger if is_nameless(holder)]


def test_a_change_of_who_holds_what_is_told_once_and_no_change_is_not() -> None:
    told: list[int] = []
    state = a_state()
    state.on_change = lambda: told.append(1)
    give(state, "a", 0)
    give(state, "a", 0)
    state.forget_pod(ref("b").uid)
    assert len(told) == 1


def test_confirming_one_pod_drops_nothing_that_was_given_to_somebody() -> None:
    state = a_state(TRN1, decided("a", app(4), sets=[ROW0]), decided("b", app(4), sets=[ROW1], time=2))
    give(state, "a", *ROW0)
    give(state, "b", *ROW1)
    truth(state, "a", *ROW1)
    assert holds(state, "a") == devices(*ROW1)
    assert stand_ins(state) == [devices(*ROW0)]
    truth(state, "b", *ROW0)
    assert holds(state, "b") == devices(*ROW0)
    assert stand_ins(state) == []


def test_what_is_confirmed_is_not_taken_away_by_what_another_pod_is_confirmed_to_hold() -> None:
    state = a_state(TRN1, pod("a", app(4)), pod("b", app(4)))
    truth(state, "a", *ROW0)
    truth(state, "b", *ROW0)  # the kubelet has given one device twice: kubernetes/kubernetes#137534
    assert holds(state, "a") == holds(state, "b") == devices(*ROW0)


def test_confirming_nothing_changes_nothing() -> None:
    state = a_state(TRN1, pod("a", app(4)))
    give(state, "a", *ROW0)
    state.confirm(ref("a"), [])
    assert holds(state, "a") == devices(*ROW0)
    assert not state.confirmed


def test_a_pods_end_frees_what_it_holds_and_forgets_all_of_it() -> None:
    state = a_state(TRN1, pod("a", app(4)))
    truth(state, "a", *ROW0)
    state.forget_pod(ref("a").uid)
    assert not state.ledger.holders
    assert not state.pods
    assert not state.confirmed
    assert not state.tenancy.since


def test_what_may_have_been_an_equal_pods_outlives_the_one_it_was_noted_for() -> None:
    state = a_state(TRN1, decided("a", app(4), sets=[ROW0]), decided("b", app(4), sets=[ROW1], time=2))
    give(state, "a", *ROW0)
    state.forget_pod(ref("a").uid)
    assert stand_ins(state) == [devices(*ROW0)]
    truth(state, "b", *ROW0)
    assert stand_ins(state) == []


def test_what_was_only_supposed_is_kept_even_where_no_pod_that_is_known_can_have_been_meant() -> None:
    """The pod may have ended before the call, which was then for one that no watch has shown yet."""
    state = a_state(TRN1, decided("a", app(4), sets=[ROW0]), decided("b", app(1), sets=[[4]], time=2))
    give(state, "a", *ROW0)
    state.forget_pod(ref("a").uid)
    assert [is_nameless(holder) for holder in state.ledger] == [True]
    assert state.ledger.used_mask == devices(*ROW0)


def test_what_a_pod_was_known_to_hold_is_free_with_its_end() -> None:
    state = a_state(TRN1, decided("a", app(4), sets=[ROW0], allocated=True))
    assert state.ledger.used_mask == devices(*ROW0)
    state.forget_pod(ref("a").uid)
    assert not state.ledger.holders


def test_p61_a_pod_that_says_it_was_allocated_is_believed_init_containers_included() -> None:
    state = a_state(TRN1, decided("a", init(4), app(4), sets=[ROW0, ROW0], allocated=True))
    assert [one.container for one in state.ledger.holders[ref("a").uid].holdings] == ["init", "app"]
    assert state.confirmed == set()


def test_a_pod_is_remembered_when_the_hardware_is_seen_after_it() -> None:
    state = NodeState(clock=FakeClock())
    state.see_pod(decided("a", app(4), sets=[ROW0], allocated=True))
    assert not state.ledger.holders
    state.see_machine(machine())
    assert holds(state, "a") == devices(*ROW0)


def test_a_forged_annotation_takes_nothing_from_another_pod() -> None:
    state = a_state(TRN1, decided("a", app(4), sets=[ROW0]))
    give(state, "a", *ROW0)
    state.see_pod(decided("forged", app(4), sets=[ROW0], allocated=True))
    assert holds(state, "forged") == 0
    assert holds(state, "a") == devices(*ROW0)


def test_an_annotation_with_an_id_this_node_lacks_is_not_believed() -> None:
    annotations = {"NEURON_DEVS": "15,16", "NEURON_ALLOCATED": "true"}
    assert not a_state(TRN1, pod("a", app(2), annotations=annotations)).ledger.holders


def test_a_pod_takes_over_from_the_stand_in_of_its_name() -> None:
    state = a_state()
    state.confirm(named_stand_in("default", "a"), [Holding("app", NEURON, devices(*ROW0))])
    state.see_pod(decided("a", init(4), app(4), sets=[ROW0, ROW0], allocated=True))
    assert [str(holder.pod) for holder in state.ledger] == ["default/a"]
    assert holds(state, "a") == devices(*ROW0)


def test_all_pods_seen_means_that_others_have_ended() -> None:
    state = a_state(TRN1, pod("a", app(4)), pod("b", app(4)))
    truth(state, "a", *ROW0)
    truth(state, "b", *ROW1)
    state.see_all_pods({"uid-b"})
    assert state.pods_known
    assert [str(holder.pod) for holder in state.ledger] == ["default/b"]


def test_p28_a_new_lnc_waits_until_nobody_holds_a_core_and_then_counts_without_another_look() -> None:
    state = a_state(TRN1, pod("a", app(4)))
    truth(state, "a", *ROW0)
    halved = Geometry("trn1.32xlarge", Topology.TORUS, 16, 1, (1, 4, 8, 16))
    assert not state.see_machine(machine(halved, logical_core_size=2))
    assert state.machine is not None
    assert state.machine.geometry == TRN1
    state.forget_pod(ref("a").uid)
    assert state.machine.geometry == halved


def test_p28_a_new_lnc_counts_at_once_where_nobody_holds_a_core() -> None:
    state = a_state(TRN1, pod("a", app(4)))
    halved = Geometry("trn1.32xlarge", Topology.TORUS, 16, 1, (1, 4, 8, 16))
    assert state.see_machine(machine(halved))
    assert state.machine is not None
    assert state.machine.geometry == halved


def test_while_a_new_lnc_waits_news_of_the_devices_health_still_counts() -> None:
    state = a_state(TRN1, pod("a", app(4)))
    truth(state, "a", *ROW0)
    halved = Geometry("trn1.32xlarge", Topology.TORUS, 16, 1, (1, 4, 8, 16))
    seen = replace(machine(halved, unhealthy={5: "7 uncorrected SRAM errors"}), listed=tuple(range(15)))
    assert not state.see_machine(seen)
    assert state.machine is not None
    assert state.machine.unhealthy == {5: "7 uncorrected SRAM errors", 15: MISSING}


def test_an_lnc_that_was_changed_back_waits_no_longer() -> None:
    state = a_state(TRN1, pod("a", app(4)))
    truth(state, "a", *ROW0)
    halved = Geometry("trn1.32xlarge", Topology.TORUS, 16, 1, (1, 4, 8, 16))
    assert not state.see_machine(machine(halved))
    assert state.see_machine(machine())
    state.forget_pod(ref("a").uid)
    assert state.machine is not None
    assert state.machine.geometry == TRN1


def test_what_waits_for_others_and_what_is_sick_is_not_free() -> None:
    state = a_state(TRN1, decided("a", app(4), sets=[ROW1]))
    state.see_machine(machine(unhealthy={15: "gone"}))
    give(state, "b", 0)
    assert state.machine is not None
    assert state.free_mask(state.machine) == devices(1, 2, 3, *range(8, 15))


def test_without_hardware_nothing_waits() -> None:
    state = NodeState()
    state.see_pod(decided("a", app(2, CORE), sets=[[0, 1]]))
    assert state.waiting() == ()
    assert state.heir_of(decided("a", app(2, CORE), sets=[[0, 1]])) is None


def test_a_pod_that_the_kubelet_has_no_more_is_gone_altogether() -> None:
    state = a_state(TRN1, decided("a", app(4), sets=[ROW0]), decided("b", app(4), sets=[ROW1], time=2))
    truth(state, "a", *ROW0)
    state.end(ref("a").uid)
    assert not state.ledger.holders
    assert list(state.pods) == ["uid-b"]


def test_a_pod_that_the_kubelet_does_not_list_yet_is_still_expected_when_what_was_noted_for_it_was_anothers() -> None:
    state = a_state(TRN1, decided("a", app(4), sets=[ROW0]))
    give(state, "a", *ROW0)
    state.end(ref("a").uid)
    assert not state.ledger.holders
    assert list(state.pods) == ["uid-a"]


def test_what_was_noted_for_a_pod_deleted_while_it_waited_stays_held_for_whoever_was_given_it() -> None:
    state = a_state(TRN1, decided("a", app(4), sets=[ROW0]))
    give(state, "a", *ROW0)
    state.lose_pod(ref("a").uid)
    assert stand_ins(state) == [devices(*ROW0)]


def test_what_was_noted_for_a_pod_that_is_not_listed_stays_held_where_it_is_listed_for_another() -> None:
    state = a_state(TRN1, decided("a", app(4), sets=[ROW0]))
    give(state, "a", *ROW0)
    state.end(ref("a").uid, devices(*ROW0))
    assert stand_ins(state) == [devices(*ROW0)]


def test_p60_what_a_pod_held_is_suspect_once_its_name_turns_out_to_be_anothers() -> None:
    state = a_state(TRN1, decided("a", app(4), sets=[ROW0]))
    state.quarantine = Quarantine()
    truth(state, "a", *ROW0)
    state.doubt(ref("a").uid)
    truth(state, "a", *ROW1)
    assert state.quarantine.mask == devices(*ROW0)
