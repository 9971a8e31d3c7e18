"""Whose call an Allocate is, read from its ids."""

from __future__ import annotations

import pytest

from neuron_plugin.allocation import ContainerSpec, Holding, PodUid, Resource, mask_of
from neuron_plugin.plugin.claims import Call, Claim, Conflict
from neuron_plugin.plugin.node import NodeState
from neuron_plugin.plugin.standins import is_nameless, named_stand_in
from neuron_plugin.topology import NO_CORES, Geometry
from tests.plugin.world import (
    CORE,
    DEVICE,
    INF2,
    LINE,
    NEURON,
    TRN1,
    a_state,
    app,
    decided,
    devices,
    init,
    machine,
    pod,
    ref,
    sidecar,
)


def unknown(*containers: ContainerSpec, geometry: Geometry = LINE) -> NodeState:
    """A node on which a pod without a decision is about to be admitted."""
    state = a_state(geometry, pod("a", *containers))
    state.see_all_pods({PodUid("uid-a")})
    return state


def claim(state: NodeState, resource: Resource, *ids: int, asked: bool = True) -> Claim | Conflict:
    assert state.machine is not None
    mask = mask_of(state.machine.geometry, resource.unit, ids)
    return state.claims(state.machine).claim(Call(resource, mask, NO_CORES if asked else mask))


def granted(state: NodeState, resource: Resource, *ids: int, asked: bool = True) -> Claim:
    """Claim and hold, as the allocator does."""
    found = claim(state, resource, *ids, asked=asked)
    assert isinstance(found, Claim)
    assert state.machine is not None
    drawn = mask_of(state.machine.geometry, resource.unit, ids)
    holding = Holding(found.container, resource, found.mask, drawn)
    state.hold(found.pod or state.new_stand_in(), holding, found.kin)
    return found


def test_the_ids_of_a_waiting_decision_name_its_pod_and_container() -> None:
    state = a_state(TRN1, decided("a", app(4), sets=[[4, 5, 6, 7]]))
    assert claim(state, NEURON, 4, 5, 6, 7) == Claim(ref("a"), "app", devices(4, 5, 6, 7), decided=True)


def test_ids_that_nobody_has_are_for_somebody_unknown() -> None:
    state = a_state(TRN1, decided("a", app(4), sets=[[4, 5, 6, 7]]))
    assert claim(state, NEURON, 0, 1, 2, 3) == Claim(None, "", devices(0, 1, 2, 3))


def test_a_decision_is_named_by_its_own_resource_name_only() -> None:
    state = a_state(TRN1, decided("a", app(1), sets=[[4]]))
    assert claim(state, DEVICE, 4) == Claim(None, "", devices(4))


def test_p45_ids_that_another_live_pod_holds_are_a_conflict_with_it() -> None:
    state = a_state(TRN1, decided("a", app(4), sets=[[0, 1, 2, 3]]))
    granted(state, NEURON, 0, 1, 2, 3)
    found = claim(state, NEURON, 3, 4)
    assert isinstance(found, Conflict)
    assert [holder.pod.name for holder in found.holders] == ["a"]


def test_p58_the_same_silicon_under_another_name_is_a_conflict() -> None:
    state = a_state(TRN1, decided("a", app(2, CORE), sets=[[2, 3]]))
    granted(state, CORE, 2, 3)
    assert isinstance(claim(state, NEURON, 1), Conflict)
    assert isinstance(claim(state, DEVICE, 1, asked=False), Conflict)


def test_p50_the_same_call_again_is_the_same_pods_and_counts_once() -> None:
    state = a_state(TRN1, decided("a", app(4), sets=[[0, 1, 2, 3]]))
    first = granted(state, NEURON, 0, 1, 2, 3)
    again = granted(state, NEURON, 0, 1, 2, 3)
    assert (again.pod, again.container, again.mask) == (first.pod, first.container, first.mask)
    assert len(state.ledger.holders[ref("a").uid].holdings) == 1


def test_p50_a_part_that_is_drawn_anew_after_a_kubelet_restart_gets_the_same_answer() -> None:
    containers = (init(4), sidecar(1), app(2))
    state = a_state(INF2, decided("a", *containers, sets=[[0, 1, 2, 3], [0], [1, 2]], geometry=INF2))
    granted(state, NEURON, 0, 1, 2, 3)
    granted(state, NEURON, 3, asked=False)
    first = granted(state, NEURON, 0, 2, asked=False)
    again = granted(state, NEURON, 0, 1, asked=False)
    assert (again.container, again.mask) == (first.container, first.mask) == ("app", devices(1, 2, geometry=INF2))


def test_a_new_pod_never_joins_an_old_stand_in() -> None:
    state = a_state(TRN1)
    stand_in = state.new_stand_in()
    state.hold(stand_in, Holding("app", NEURON, devices(0)))
    state.hold(stand_in, Holding("init", NEURON, devices(0, 1, 2, 3)))
    assert granted(state, NEURON, 0, 1, 2, 3).pod is None
    assert [holder.holdings for holder in state.ledger] == [(Holding("#0", NEURON, devices(0, 1, 2, 3)),)]


def test_p50_the_same_call_again_of_an_unknown_pod_stays_one_stand_in() -> None:
    state = a_state(TRN1)
    granted(state, NEURON, 0, 1)
    granted(state, NEURON, 0, 1)
    assert len(state.ledger.holders) == 1


def test_p45_an_app_container_of_the_same_size_goes_on_with_the_init_containers_ids() -> None:
    state = a_state(TRN1, decided("a", init(4), app(4), sets=[[0, 1, 2, 3], [0, 1, 2, 3]]))
    assert granted(state, NEURON, 0, 1, 2, 3).container == "init"
    assert granted(state, NEURON, 0, 1, 2, 3, asked=False).container == "app"


@pytest.mark.parametrize("drawn", [(0, 3), (1, 2), (2, 3), (0, 1)])
def test_p46_a_smaller_app_container_gets_its_decided_part_whatever_was_drawn(drawn: tuple[int, ...]) -> None:
    state = a_state(INF2, decided("a", init(4), app(2), sets=[[0, 1, 2, 3], [2, 3]], geometry=INF2))
    granted(state, NEURON, 0, 1, 2, 3)
    found = granted(state, NEURON, *drawn, asked=False)
    assert (found.pod, found.container, found.mask) == (ref("a"), "app", devices(2, 3, geometry=INF2))


def test_p46_without_its_decided_part_it_gets_the_best_linked_one() -> None:
    containers = (init(4), sidecar(2), app(2))
    state = a_state(INF2, decided("a", *containers, sets=[[0, 1, 2, 3], [0, 1], [2, 3]], geometry=INF2))
    granted(state, NEURON, 0, 1, 2, 3)
    assert granted(state, NEURON, 1, 3, asked=False).mask == devices(0, 1, geometry=INF2)
    assert granted(state, NEURON, 0, 2, asked=False).mask == devices(2, 3, geometry=INF2)


def test_p46_an_app_never_shares_a_device_with_its_sidecar_even_where_no_linked_part_is_left() -> None:
    containers = (init(4), sidecar(1), app(3))
    state = a_state(TRN1, decided("a", *containers, sets=[[0, 1, 2, 3], [0], [1, 2, 3]]))
    granted(state, NEURON, 0, 1, 2, 3)
    of_sidecar = granted(state, NEURON, 2, asked=False)
    of_app = granted(state, NEURON, 0, 1, 3, asked=False)
    assert of_sidecar.mask & of_app.mask == 0
    assert of_sidecar.mask | of_app.mask == devices(0, 1, 2, 3)


def test_a_larger_app_container_gets_all_its_pod_has_left_and_the_new_ids() -> None:
    containers = (init(2, CORE), sidecar(1, CORE), app(2, CORE))
    state = a_state(TRN1, pod("a", *containers))
    state.hold(ref("a"), Holding("init", CORE, TRN1.cores_mask((0, 1))))
    state.hold(ref("a"), Holding("sidecar", CORE, TRN1.cores_mask((0,))))
    found = claim(state, CORE, 0, 2, asked=False)  # the kubelet believes that the sidecar has core 1
    assert isinstance(found, Claim)
    assert found.mask == TRN1.cores_mask((1, 2))


def test_p46_a_pod_without_a_decision_is_given_a_linked_part_of_what_its_init_container_had() -> None:
    state = unknown(init(4), app(2))
    granted(state, NEURON, 0, 1, 2, 3)
    assert granted(state, NEURON, 0, 3, asked=False).mask == devices(0, 1, geometry=LINE)


def test_p46_a_part_that_is_linked_as_it_was_drawn_stays_what_it_is() -> None:
    state = unknown(init(4), app(2))
    granted(state, NEURON, 0, 1, 2, 3)
    assert granted(state, NEURON, 1, 2, asked=False).mask == devices(1, 2, geometry=LINE)


def test_p46_the_call_again_has_the_same_answer_and_what_was_given_elsewhere_is_no_call_again() -> None:
    state = unknown(init(4), app(2), app(2, name="second"))
    granted(state, NEURON, 0, 1, 2, 3)
    first = granted(state, NEURON, 0, 3, asked=False)
    assert granted(state, NEURON, 0, 3, asked=False).mask == first.mask
    assert [len(holder.holdings) for holder in state.ledger] == [2]
    assert granted(state, NEURON, 1, 2, asked=False).mask == devices(2, 3, geometry=LINE)


def test_p46_a_sidecars_part_is_never_given_to_a_larger_app_container_of_the_same_unknown_pod() -> None:
    state = unknown(init(4, CORE), sidecar(2, CORE), app(4, CORE))
    granted(state, CORE, 0, 1, 2, 3)
    assert granted(state, CORE, 0, 2, asked=False).mask == LINE.cores_mask((0, 1))
    call = Call(CORE, LINE.cores_mask((1, 3, 4, 5)), LINE.cores_mask((1, 3)))
    found = state.claims(machine(LINE)).claim(call)
    assert isinstance(found, Claim)
    assert found.mask == LINE.cores_mask((2, 3, 4, 5))


def test_p46_nothing_is_swapped_that_nobody_would_remember_or_that_may_be_new() -> None:
    for known, asked_for_all in ((False, True), (True, False)):
        state = unknown(init(4), app(2))
        state.pods_known, state.asked_for_all = known, asked_for_all
        granted(state, NEURON, 0, 1, 2, 3)
        assert granted(state, NEURON, 0, 3, asked=False).mask == devices(0, 3, geometry=LINE)


def test_p46_where_the_first_call_was_noted_for_an_equal_pod_no_container_shares_with_its_neighbour() -> None:
    """Both ask for one init set of a size; the undecided one came first and was given the other's."""
    state = a_state(
        LINE,
        decided("theirs", init(4, CORE), sidecar(1, CORE), app(1, CORE), sets=[[0, 1, 2, 3], [0], [1]], geometry=LINE),
    )
    granted(state, CORE, 0, 1, 2, 3)
    assert granted(state, CORE, 3, asked=False).mask == LINE.cores_mask((0,))
    call = Call(CORE, LINE.cores_mask((0, 1, 2, 8)), LINE.cores_mask((0, 1, 2)))
    found = state.claims(machine(LINE)).claim(call)
    assert isinstance(found, Claim)
    assert found.mask == LINE.cores_mask((1, 2, 3, 8))


def test_p46_of_a_mistaken_pods_set_several_containers_may_draw_the_same() -> None:
    state = a_state(LINE, decided("theirs", init(4, CORE), app(1, CORE), sets=[[0, 1, 2, 3], [0]], geometry=LINE))
    granted(state, CORE, 0, 1, 2, 3)
    assert granted(state, CORE, 1, 3, asked=False).pod is None
    assert isinstance(granted(state, CORE, 1, 3, asked=False), Claim)


def test_p46_containers_of_one_size_come_in_the_order_of_their_pod_whatever_they_draw() -> None:
    containers = (init(4, CORE), sidecar(1, CORE), app(1, CORE))
    state = a_state(LINE, decided("a", *containers, sets=[[0, 1, 2, 3], [0], [1]], geometry=LINE))
    granted(state, CORE, 0, 1, 2, 3)
    of_sidecar = granted(state, CORE, 1, asked=False)
    assert (of_sidecar.container, of_sidecar.mask) == ("sidecar", LINE.cores_mask((0,)))


def test_p50_a_lasting_containers_ids_come_again_for_itself_and_never_for_the_next_of_its_size() -> None:
    containers = (init(4, CORE), sidecar(1, CORE), app(1, CORE))
    state = a_state(LINE, decided("a", *containers, sets=[[0, 1, 2, 3], [3], [2]], geometry=LINE))
    granted(state, CORE, 0, 1, 2, 3)
    first = granted(state, CORE, 1, asked=False)
    assert granted(state, CORE, 1, asked=False) == first


def test_p46_a_pod_that_got_its_name_within_its_admission_goes_on_with_what_it_has() -> None:
    """Without an API server a preference may have the kubelet list it meanwhile."""
    state = a_state(LINE)
    state.confirm(named_stand_in("default", "a"), [Holding("init", CORE, LINE.cores_mask(range(4)))])
    call = Call(CORE, LINE.cores_mask((0, 1, 2, 8)), LINE.cores_mask((0, 1, 2)))
    found = state.claims(machine(LINE)).claim(call)
    assert isinstance(found, Claim)
    assert found.pod == named_stand_in("default", "a")


def test_p46_new_ids_are_never_taken_for_a_part_of_an_init_set() -> None:
    """They are for another pod then, and a linked part in their place would be somebody else's."""
    state = a_state(TRN1, decided("a", init(4, CORE), app(1, CORE), sets=[[4, 5, 6, 7], [4]]))
    granted(state, CORE, 4, 5, 6, 7)
    assert isinstance(claim(state, CORE, 5), Conflict)
    granted(state, CORE, 4, asked=False)
    assert isinstance(claim(state, CORE, 5), Conflict)


def test_p50_a_part_that_is_drawn_anew_is_the_same_again_only_if_it_cannot_be_another_containers() -> None:
    """A kubelet that restarts within an Allocate draws again; and containers that share nothing draw apart."""
    containers = (init(4, CORE), app(2, CORE))
    state = a_state(LINE, decided("a", *containers, sets=[[4, 5, 6, 7], [5, 6]], geometry=LINE))
    granted(state, CORE, 4, 5, 6, 7)
    assert granted(state, CORE, 4, 7, asked=False).mask == LINE.cores_mask((5, 6))
    assert granted(state, CORE, 4, 6, asked=False).mask == LINE.cores_mask((5, 6))
    assert granted(state, CORE, 5, 7, asked=False).mask & LINE.cores_mask((5, 6)) == 0


def test_p46_new_ids_are_never_a_decision_for_what_its_pod_has_before() -> None:
    state = a_state(TRN1, decided("a", init(4, CORE), app(1, CORE), sets=[[4, 5, 6, 7], [4]]))
    assert claim(state, CORE, 4) == Claim(None, "", TRN1.cores_mask((4,)))


def test_an_app_container_with_another_resource_does_not_go_on_with_init_ids() -> None:
    state = a_state(TRN1, decided("a", init(1), app(2, CORE), sets=[[0], [4, 5]]))
    granted(state, NEURON, 0)
    assert isinstance(claim(state, CORE, 0, 1, asked=False), Conflict)
    assert granted(state, CORE, 4, 5).container == "app"


def test_p58_a_pod_is_not_given_what_it_holds_under_another_name() -> None:
    state = a_state(TRN1, pod("a", init(1, CORE), app(3, CORE), app(1, NEURON, "second")))
    state.hold(ref("a"), Holding("init", CORE, TRN1.cores_mask((0,))))
    state.hold(ref("a"), Holding("second", NEURON, devices(1)))
    call = Call(CORE, TRN1.cores_mask((0, 2, 3)), TRN1.cores_mask((0,)))
    assert isinstance(state.claims(machine()).claim(call), Conflict)


def test_two_equal_containers_take_their_sets_in_any_order() -> None:
    second = ContainerSpec("second", app(1).kind, app(1).limits)
    state = a_state(TRN1, decided("a", app(1), second, sets=[[4], [5]]))
    assert granted(state, NEURON, 5).container == "second"
    assert granted(state, NEURON, 4).container == "app"


def test_a_container_that_has_its_set_is_not_given_another_pods_token_in_its_name() -> None:
    state = a_state(TRN1, decided("a", app(4), sets=[[0, 1, 2, 3]]))
    state.hold(ref("a"), Holding("app", NEURON, devices(8, 9, 10, 11)))
    assert claim(state, NEURON, 0, 1, 2, 3) == Claim(None, "", devices(0, 1, 2, 3))


def test_a_stand_in_gives_way_when_its_ids_are_offered_again_under_the_same_name() -> None:
    state = a_state(TRN1)
    granted(state, NEURON, 0, 1, 2, 3)
    granted(state, NEURON, 3, 4)
    assert [holder.mask for holder in state.ledger] == [devices(3, 4)]


def test_unasked_ids_that_are_partly_a_stand_ins_are_its_pods_or_it_is_outdated() -> None:
    """The kubelet gives no id of a resource to two pods."""
    state = a_state(TRN1)
    granted(state, NEURON, 0, 1, 2, 3)
    assert isinstance(claim(state, NEURON, 3, 4, asked=False), Claim)


@pytest.mark.parametrize("asked", [True, False])
def test_p58_a_stand_in_stays_under_another_name(asked: bool) -> None:  # noqa: FBT001 - a table's column
    state = a_state(TRN1)
    granted(state, NEURON, 0)
    assert isinstance(claim(state, CORE, 0, asked=asked), Conflict)


def test_a_stand_in_goes_on_with_a_part_of_what_it_has_when_nobody_was_asked() -> None:
    state = a_state(TRN1)
    granted(state, NEURON, 0, 1, 2, 3)
    granted(state, NEURON, 1, 2, asked=False)
    (holder,) = state.ledger
    assert [holding.mask for holding in holder.holdings] == [devices(0, 1, 2, 3), devices(1, 2)]


def test_a_stand_in_goes_on_with_more_around_what_it_has() -> None:
    state = a_state(TRN1)
    granted(state, NEURON, 0)
    granted(state, NEURON, 0, 1, 2, 3, asked=False)
    (holder,) = state.ledger
    assert holder.mask == devices(0, 1, 2, 3)


def test_unasked_ids_of_a_stand_in_are_never_taken_for_another_pods_decision() -> None:
    state = a_state(TRN1)
    granted(state, CORE, 0, 1, 2, 3)
    state.see_pod(decided("a", app(2, CORE), sets=[[2, 3]]))
    assert granted(state, CORE, 2, 3, asked=False).pod != ref("a")
    assert state.ledger.used_mask == TRN1.cores_mask(range(4))


def test_a_token_whose_stand_in_is_outdated_is_its_pods_when_the_kubelet_was_steered_there() -> None:
    state = a_state(TRN1)
    granted(state, NEURON, 4)
    state.see_pod(decided("a", app(4), sets=[[4, 5, 6, 7]]))
    assert granted(state, NEURON, 4, 5, 6, 7).pod == ref("a")
    assert [str(holder.pod) for holder in state.ledger] == ["default/a"]


def test_a_partly_held_token_of_a_live_pod_is_a_conflict() -> None:
    state = a_state(TRN1, decided("a", app(1), sets=[[4]]), decided("b", app(4), sets=[[4, 5, 6, 7]], time=2))
    granted(state, NEURON, 4)
    assert isinstance(claim(state, NEURON, 4, 5, 6, 7), Conflict)
    assert machine() == state.machine


def test_p46_an_app_never_shares_with_a_sidecar_that_was_noted_for_another_pods_second_init_container() -> None:
    """One with a sidecar in its place took the token of ``theirs``; the two were drawn apart."""
    containers = (init(4, CORE), init(2, CORE, "second"), app(2, CORE))
    state = a_state(LINE, decided("theirs", *containers, sets=[[4, 5, 6, 7], [4, 5], [4, 5]], geometry=LINE))
    granted(state, CORE, 4, 5, 6, 7)
    of_sidecar = granted(state, CORE, 6, 7, asked=False)
    assert not granted(state, CORE, 4, 5, asked=False).mask & of_sidecar.mask


def test_p46_ids_that_come_unasked_are_the_pods_own_even_where_they_were_noted_for_another() -> None:
    """``other`` took the token of ``a`` for its init container, and has a sidecar that ``a`` has not."""
    state = a_state(TRN1, decided("a", init(4, CORE), app(2, CORE), sets=[[0, 1, 2, 3], [0, 1]]))
    granted(state, CORE, 0, 1, 2, 3)
    assert granted(state, CORE, 1, asked=False).mask == TRN1.cores_mask((1,))
    drawn = granted(state, CORE, 0, 2, asked=False)
    assert not drawn.mask & TRN1.cores_mask((1,))


def test_p58_ids_that_come_unasked_are_a_conflict_all_the_same_where_they_are_certainly_anothers() -> None:
    state = a_state(TRN1, decided("a", app(4, CORE), sets=[[0, 1, 2, 3]]))
    granted(state, CORE, 0, 1, 2, 3)
    state.confirm(ref("a"), [Holding("app", CORE, TRN1.cores_mask(range(4)))])
    assert isinstance(claim(state, CORE, 1, asked=False), Conflict)


def test_p46_what_was_noted_under_several_names_is_one_pods_once_that_is_seen_and_nothing_of_it_is_lost() -> None:
    """A call that was cut off while the pod's init container was noted for another, whose own is confirmed then."""
    state = a_state(LINE, decided("theirs", init(4, CORE), app(1, CORE), sets=[[4, 5, 6, 7], [4]], geometry=LINE))
    granted(state, CORE, 4, 5, 6, 7)
    granted(state, CORE, 4, 5, asked=False)
    state.confirm(ref("theirs"), [Holding("init", CORE, LINE.cores_mask(range(8, 12)))])
    granted(state, CORE, 5, 7, asked=False)
    (holder,) = (holder for holder in state.ledger if is_nameless(holder))
    assert holder.mask == LINE.cores_mask(range(4, 8))
    assert len({holding.container for holding in holder.holdings}) == len(holder.holdings) == 3


def test_p46_a_stand_in_goes_on_over_ids_of_another_that_is_outdated() -> None:
    state = a_state(TRN1)
    granted(state, NEURON, 0)
    own = granted(state, NEURON, 1)
    (_, holder) = state.ledger
    assert state.machine is not None
    found = state.claims(state.machine).claim(Call(NEURON, devices(0, 1), devices(1)))
    assert own.pod is None
    assert found == Claim(holder.pod, "", devices(0, 1), kin=(holder.pod.uid,))
