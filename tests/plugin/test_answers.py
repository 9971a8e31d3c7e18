"""Which ids are preferred, whose call an Allocate is, and that no core is given to two pods."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.allocation import NeuronPod, NodeInventory, PodUid, Resource
from neuron_plugin.allocation.keys import NODE_KEY, POD_UID_KEY
from neuron_plugin.allocation.requests import ContainerSpec
from neuron_plugin.plugin.answers import (
    AllocateCall,
    Answer,
    Conflict,
    Fit,
    PreferenceRequest,
    answer_for,
    may_improve,
    preference_for,
)
from neuron_plugin.plugin.container import reply_for
from neuron_plugin.plugin.inputs import HoldDown, Inputs, PendingAnswer
from neuron_plugin.plugin.snapshot import derive
from neuron_plugin.topology import CoreMask, Geometry, Topology, Unit, sets_by_count, valid_sets
from tests.plugin.world import (
    CORE,
    DEVICE,
    INF2,
    NEURON,
    STATIC_UID,
    TRN1,
    TRN2,
    app,
    assigned,
    assignment,
    devices,
    entry,
    init,
    inputs,
    inventory,
    pod,
    ref,
    sidecar,
    uid_of,
)

A, B, C = uid_of("a"), uid_of("b"), uid_of("c")
ROW0, ROW1 = (0, 1, 2, 3), (4, 5, 6, 7)


def preferred(
    before: Inputs, resource: Resource, size: int, available: Sequence[int] = (), must: Sequence[int] = ()
) -> tuple[int, ...]:
    geometry = before.inventory.geometry
    offered = tuple(available) or geometry.ids_of(resource.unit, geometry.all_mask)
    return preference_for(derive(before), PreferenceRequest(resource, offered, tuple(must), size)).ids


def call_of(
    resource: Resource,
    ids: Sequence[int],
    own_ids: Sequence[int] = (),
    latest: PodUid | None = None,
    *,
    preferred: bool = False,
) -> AllocateCall:
    """``own_ids`` are those that the GetPreferredAllocation before had to include; ``preferred``: there was one."""
    asked = PreferenceRequest(resource, tuple(ids), tuple(own_ids), len(ids))
    return AllocateCall(resource, tuple(ids), asked if preferred or own_ids else None, latest)


def answered(before: Inputs, resource: Resource, *ids: int, **fields: Any) -> Answer:
    answer = answer_for(derive(before), call_of(resource, ids, **fields))
    assert isinstance(answer, Answer)
    return answer


def conflict(before: Inputs, resource: Resource, *ids: int, **fields: Any) -> str:
    answer = answer_for(derive(before), call_of(resource, ids, **fields))
    assert isinstance(answer, Conflict)
    return answer.text


def pending(mask: CoreMask, node: NodeInventory | None = None) -> PendingAnswer:
    """An answer for a pod that is not known, as cores."""
    node = node or inventory()
    return PendingAnswer(reply_for(node, "r", mask), CORE, node.geometry.ids_of(Unit.CORE, mask), 0.0)


# Preferences.


@given(data=st.data(), geometry=st.sampled_from([TRN1, INF2]), resource=st.sampled_from([NEURON, CORE]))
def test_p29_the_answer_has_the_size_is_available_and_includes_what_it_must(
    data: st.DataObject, geometry: Geometry, resource: Resource
) -> None:
    node = inventory(geometry, unhealthy=dict.fromkeys(data.draw(st.sets(st.integers(0, 11), max_size=3)), "sick"))
    available = data.draw(st.sets(st.sampled_from(geometry.ids_of(resource.unit, geometry.all_mask)), min_size=1))
    must = data.draw(st.sets(st.sampled_from(sorted(available))))
    size = data.draw(st.integers(max(1, len(must)), len(available)))
    used = CoreMask(data.draw(st.integers(0, geometry.all_mask)))
    wants = assigned("w", app(size, resource), sets=[sorted(available)[:size]], geometry=geometry)
    several = pod("s", app(size, resource, "one"), app(1, resource, "two"))
    pods = data.draw(st.sampled_from([(), (wants,), (several,)]))
    before = inputs(*pods, node=node, pending=(pending(used, node),))
    ids = preferred(before, resource, size, sorted(available), sorted(must))
    assert len(set(ids)) == len(ids) == size
    assert must <= set(ids) <= available


@given(data=st.data(), geometry=st.sampled_from([TRN1, TRN2]), resource=st.sampled_from([NEURON, CORE]))
def test_p31_a_valid_set_is_preferred_whenever_one_is_free(
    data: st.DataObject, geometry: Geometry, resource: Resource
) -> None:
    unit, node = resource.unit, inventory(geometry)
    count = data.draw(st.sampled_from(list(sets_by_count(geometry, unit))))
    target = data.draw(st.sampled_from(valid_sets(geometry, unit, count)))
    used = CoreMask(data.draw(st.integers(0, geometry.all_mask)) & ~target)
    ids = preferred(inputs(node=node, pending=(pending(used, node),)), resource, count)
    mask = geometry.mask_of(unit, ids)
    assert mask in valid_sets(geometry, unit, count)
    assert not mask & used


def test_cores_that_are_not_aligned_are_preferred_only_where_no_aligned_ones_are_free() -> None:
    before = inputs(node=inventory(TRN2))
    assert preferred(before, CORE, 2, [1, 2, 3]) == (2, 3)
    request = PreferenceRequest(CORE, (1, 2, 5), (), 2)
    assert (preference_for(derive(before), request).ids, preference_for(derive(before), request).fit) == (
        (1, 2),
        Fit.UNLINKED,
    )


def test_a_container_gets_an_aligned_part_of_what_the_init_containers_have() -> None:
    node = inventory(TRN2)
    before = inputs(
        pod("a", init(4, CORE), app(2, CORE)), recorded=[entry(A, "init", CORE, *ROW0, node=node)], node=node
    )
    assert TRN2.ids_of(Unit.CORE, answered(before, CORE, 1, 2).mask) == (0, 1)


def test_an_assignment_of_an_older_version_that_is_not_aligned_is_given_as_it_is() -> None:
    node, waiting = inventory(TRN2), assigned("a", app(2, CORE), sets=[[1, 2]], geometry=TRN2)
    before = inputs(waiting, node=node)
    assert preferred(before, CORE, 2) == (1, 2)
    assert answered(before, CORE, 1, 2).assigned
    held = inputs(waiting, recorded=[entry(A, "app", CORE, 1, 2, node=node)], node=node)
    assert TRN2.ids_of(Unit.CORE, derive(held).ledger.used_mask) == (1, 2)
    assert preferred(held, CORE, 2) == (4, 5)


def test_p32_a_single_device_comes_from_a_broken_row() -> None:
    before = inputs(recorded=[entry(A, "app", NEURON, 4)])
    assert preferred(before, NEURON, 1, [number for number in range(16) if number != 4]) == (5,)


def test_p34_ids_that_another_pod_has_are_passed_over_while_a_choice_is_left() -> None:
    before = inputs(node=inventory(INF2), recorded=[entry(A, "app", NEURON, 0, 1, node=inventory(INF2))])
    assert not {0, 1} & set(preferred(before, NEURON, 2))


def test_p33_what_another_pod_has_is_no_part_of_what_init_containers_left() -> None:
    recorded = [entry(A, "init", NEURON, *ROW0), entry(B, "app", DEVICE, 0)]
    before = inputs(pod("a", init(4), app(1)), pod("b", app(1, DEVICE)), recorded=recorded)
    assert "in use by pod default/b" in conflict(before, NEURON, 0)


def test_p34_what_others_only_wait_for_comes_before_what_a_live_pod_has() -> None:
    node = inventory(INF2)
    before = inputs(
        assigned("w", app(2), sets=[[7, 9]], geometry=INF2),
        node=node,
        recorded=[entry(A, "app", DEVICE, 0, 1, node=node)],
    )
    request = PreferenceRequest(NEURON, (0, 1, 4, 7), (), 2)
    assert preference_for(derive(before), request).ids == (4, 7)
    assert preference_for(derive(before), request).fit is Fit.UNLINKED
    assert preference_for(derive(before), replace(request, available=(0, 4), size=2)).fit is Fit.TAKEN
    assert preference_for(derive(before), replace(request, available=(2, 6, 7))).ids == (2, 6)


def test_what_must_be_included_grows_into_a_linked_set() -> None:
    assert preferred(inputs(recorded=[entry(A, "init", NEURON, 6)]), NEURON, 4, must=[6]) == ROW1


def test_ids_that_the_node_does_not_have_any_more_count_for_nothing() -> None:
    assert preferred(inputs(), NEURON, 1, [3, 99]) == (3,)


def test_an_impossible_count_gets_the_tightest_free_ids() -> None:
    assert preferred(inputs(recorded=[entry(A, "app", DEVICE, 0)]), NEURON, 7) == (1, 2, 3, 4, 5, 6, 7)
    assert preferred(inputs(node=inventory(INF2)), NEURON, 2, [0, 4, 5, 9]) == (4, 5)
    assert preferred(inputs(node=inventory(INF2)), NEURON, 2, [0, 4, 6, 9], must=[9]) == (6, 9)


def test_ids_in_use_fill_up_only_what_free_ones_cannot() -> None:
    node = inventory(INF2)
    used = entry(A, "app", DEVICE, *(number for number in range(12) if number not in {3, 9}), node=node)
    assert {3, 9} < set(preferred(inputs(node=node, recorded=[used]), NEURON, 3))


def test_p30_the_oldest_waiting_assignment_of_that_size_comes_first() -> None:
    before = inputs(
        assigned("late", app(4), sets=[ROW0], time=9),
        assigned("early", app(4), sets=[ROW1], time=3),
        assigned("other", app(1), sets=[[15]], time=1),
        assigned("cores", app(4, CORE), sets=[[24, 25, 26, 27]], time=1),
    )
    assert preferred(before, NEURON, 4) == ROW1
    assert preferred(before, NEURON, 1) == (15,)
    assert preferred(before, CORE, 4) == (24, 25, 26, 27)


def test_p30_an_assignment_that_the_kubelet_does_not_offer_is_passed_over() -> None:
    before = inputs(assigned("a", app(4), sets=[ROW0], time=1), assigned("b", app(4), sets=[ROW1], time=2))
    assert preferred(before, NEURON, 4, range(1, 16)) == ROW1


def test_p30_what_a_container_re_uses_of_its_init_container_answers_no_other_call() -> None:
    both = assigned("a", init(4), app(1), sets=[ROW0, [1]])
    before = inputs(both, pod("b", app(1)), recorded=[entry(A, "init", NEURON, *ROW0)])
    assert not set(preferred(before, NEURON, 1)) & set(ROW0)


def test_p30_where_a_part_must_be_included_the_assignment_around_it_is_followed() -> None:
    both = assigned("a", init(1), app(4), sets=[[5], ROW1])
    other = assigned("b", app(4), sets=[ROW0], time=0)
    before = inputs(both, other, recorded=[entry(A, "init", NEURON, 5)])
    assert preferred(before, NEURON, 4, must=[5]) == ROW1


def test_an_assignment_with_only_a_part_of_what_must_be_included_is_not_followed() -> None:
    node = inventory(INF2)
    apart = assigned("a", init(2), app(4), sets=[[5, 6], [6, 7, 8, 9]], geometry=INF2)
    before = inputs(apart, node=node, recorded=[entry(A, "init", NEURON, 5, 6, node=node)])
    assert derive(before).waiting
    ids = preferred(before, NEURON, 4, range(12), must=[5, 6])
    assert {5, 6} < set(ids)
    assert len(ids) == 4


def test_p31_sets_that_wait_for_others_are_left_alone() -> None:
    before = inputs(assigned("a", app(4), sets=[ROW0]), pod("b", app(1)))
    assert not set(preferred(before, NEURON, 1)) & set(ROW0)


def promised(name: str, *containers: ContainerSpec, sets: Sequence[Sequence[int]]) -> NeuronPod:
    """A pod that was placed on this node and is not bound yet."""
    annotations = assignment(TRN1, containers, sets) | {NODE_KEY: "worker-1", POD_UID_KEY: uid_of(name)}
    return pod(name, *containers, annotations=annotations, node_name="")


def with_promises(before: Inputs, *pods: NeuronPod) -> Inputs:
    return replace(before, pods=replace(before.pods, promised=pods))


def test_sets_that_were_promised_to_pods_that_are_not_bound_are_left_alone_while_others_will_do() -> None:
    before = with_promises(inputs(pod("b", app(1))), promised("a", app(4), sets=[ROW0]))
    assert not set(preferred(before, NEURON, 1)) & set(ROW0)
    assert not set(preferred(before, NEURON, 12)) & set(ROW0)
    assert set(preferred(before, NEURON, 13)) > set(range(4, 16))


def test_a_promised_set_is_given_before_one_that_a_bound_pod_waits_for() -> None:
    before = with_promises(
        inputs(
            assigned("b", app(4), sets=[range(8, 12)]),
            pod("c", app(6)),
            recorded=[entry(C, "app", NEURON, 4, 5, 6, 7, 12, 13)],
        ),
        promised("a", app(4), sets=[ROW0]),
    )
    assert set(preferred(before, NEURON, 6)) == {0, 1, 2, 3, 14, 15}


def test_a_pod_that_is_bound_gets_what_it_was_promised() -> None:
    bound = assigned("a", app(4), sets=[ROW0])
    before = with_promises(inputs(bound), promised("a", app(4), sets=[ROW0]))
    assert preferred(before, NEURON, 4) == tuple(ROW0)


def test_p60_held_down_cores_are_not_preferred_though_an_assignment_names_them() -> None:
    held = HoldDown(B, ref("b"), devices(2), 0.0, 0.0, 0.0, 0.0, 99.0, "why")
    before = inputs(assigned("a", app(4), sets=[ROW0]), hold_downs=(held,))
    assert not set(preferred(before, NEURON, 4)) & set(ROW0)
    only_row = PreferenceRequest(NEURON, ROW0, (), 4)
    assert preference_for(derive(before), only_row).fit is Fit.TAKEN


def test_a_call_waits_only_for_hold_downs_that_keep_something_better_back_and_whenever_ids_are_in_use() -> None:
    held = HoldDown(B, ref("b"), devices(15), 0.0, 0.0, 0.0, 0.0, 99.0, "why")
    row, full = PreferenceRequest(NEURON, tuple(range(16)), (), 4), PreferenceRequest(NEURON, (0,), (), 1)
    for hold_downs in ((), (held,)):
        snapshot = derive(inputs(recorded=[entry(A, "app", DEVICE, 0)], hold_downs=hold_downs))
        assert not may_improve(snapshot, row, preference_for(snapshot, row))
        assert may_improve(snapshot, full, preference_for(snapshot, full))
    last_row = replace(row, available=(12, 13, 14, 15))
    assert may_improve(snapshot, last_row, preference_for(snapshot, last_row))


def test_p30_an_assignment_is_followed_though_what_the_init_container_left_was_disabled_meanwhile() -> None:
    both = assigned("a", init(1), app(4), sets=[[5], ROW1])
    before = inputs(both, node=inventory(disabled=(5,)), recorded=[entry(A, "init", NEURON, 5)])
    assert preferred(before, NEURON, 4, must=[5]) == ROW1
    assert answered(before, NEURON, *ROW1, own_ids=(5,), preferred=True).assigned
    unassigned = replace(before, pods=inputs(pod("a", init(1), app(4))).pods)
    assert answered(unassigned, NEURON, *ROW1, own_ids=(5,), preferred=True).pod == ref("a")


def test_the_first_of_several_containers_goes_where_all_fit() -> None:
    """A single device first, then four: the single one must not break the last row."""
    used = entry(B, "app", NEURON, *range(8), 8, 9, 10)
    alone = inputs(recorded=[used])
    assert preferred(alone, NEURON, 1, [11, 12, 13, 14, 15]) == (11,)
    before = inputs(pod("a", app(4, name="one"), app(1, name="two")), recorded=[used])
    assert preferred(before, NEURON, 4, [11, 12, 13, 14, 15]) == (12, 13, 14, 15)
    assert 13 in preferred(inputs(pod("a", app(1, name="one"), app(4, name="two"))), NEURON, 1, must=[13])

    node = inventory(INF2)
    gaps = inputs(
        pod("a", app(1, name="one"), app(2, name="two"), app(2, name="three")),
        node=node,
        recorded=[entry(B, "app", DEVICE, 0, 1, 5, 6, 7, 8, 9, node=node)],
    )
    assert preferred(gaps, NEURON, 1)[0] in {2, 4}


LARGEST = [Geometry("32-devices", Topology.RING, 32, 4), Geometry("128-cores", Topology.TORUS, 16, 8, (1, 4, 8, 16))]


@pytest.mark.parametrize("geometry", LARGEST, ids=lambda geometry: geometry.instance_type)
@pytest.mark.parametrize("resource", [NEURON, CORE])
def test_p35_every_size_on_the_largest_machines_takes_less_than_five_milliseconds(
    geometry: Geometry, resource: Resource
) -> None:
    """Of processor time, the better of a few: what else runs here and the first building of the tables aside."""
    everything = geometry.ids_of(resource.unit, geometry.all_mask)
    every_third_used = geometry.mask_of(resource.unit, everything[: len(everything) // 2 : 3])
    node = inventory(geometry)
    snapshot = derive(inputs(node=node, pending=(pending(every_third_used, node),)))

    def seconds(size: int) -> float:
        began = time.process_time()
        preference_for(snapshot, PreferenceRequest(resource, everything, (), size))
        return time.process_time() - began

    slowest = max(min(seconds(size) for _ in range(3)) for size in range(1, len(everything) + 1))
    assert slowest < 0.005


# Whose call an Allocate is.


def test_the_ids_of_a_waiting_assignment_name_its_pod_and_container() -> None:
    before = inputs(assigned("a", app(4), sets=[ROW0]))
    answer = answered(before, NEURON, *ROW0)
    assert (answer.mask, answer.pod, answer.container, answer.assigned) == (devices(*ROW0), ref("a"), "app", True)


def test_an_assignment_is_found_by_its_own_resource_name_only() -> None:
    before = inputs(assigned("a", app(4), sets=[ROW0]))
    assert answered(before, DEVICE, *ROW0).pod is None


def test_ids_that_no_pod_has_are_served_as_drawn_for_a_pod_that_is_not_known_yet() -> None:
    answer = answered(inputs(pod("a", app(2))), NEURON, 2, 3)
    assert (answer.mask, answer.pod, answer.assigned) == (devices(2, 3), None, False)


def test_p45_ids_that_another_live_pod_has_are_a_conflict_that_names_it() -> None:
    before = inputs(pod("a", app(2)), recorded=[entry(A, "app", NEURON, 2, 3)])
    assert (
        conflict(before, NEURON, 3, 4) == "aws.amazon.com/neuron 3 is in use by pod default/a as aws.amazon.com/neuron"
    )


def test_p58_the_same_cores_under_another_name_are_a_conflict() -> None:
    before = inputs(pod("a", app(1, CORE)), recorded=[entry(A, "app", CORE, 6)])
    assert "neuron 3 is in use by pod default/a as aws.amazon.com/neuroncore" in conflict(before, NEURON, 3)


def test_p58_a_pod_is_not_given_what_it_has_under_another_name() -> None:
    two = pod("a", init(1), app(1, CORE, "cores"), app(4, name="devices"))
    before = inputs(two, recorded=[entry(A, "init", NEURON, 0), entry(A, "cores", CORE, 2)])
    assert "neuron 1 is in use by pod default/a" in conflict(before, NEURON, *ROW0, own_ids=(0,))


def test_p45_a_conflict_names_every_pod_that_is_in_the_way_and_no_other() -> None:
    recorded = [entry(A, "app", NEURON, 2), entry(B, "app", NEURON, 3), entry(uid_of("c"), "app", NEURON, 9)]
    text = conflict(inputs(*(pod(name, app(1)) for name in "abc"), recorded=recorded), NEURON, *ROW0)
    assert "2 is in use by pod default/a" in text
    assert "3 is in use by pod default/b" in text
    assert "default/c" not in text


def test_p60_held_down_cores_are_a_conflict_that_says_why() -> None:
    held = HoldDown(B, ref("b"), devices(2), 0.0, 0.0, 0.0, 0.0, 99.0, "processes of pod default/b may still use it")
    assert "neuron 2 is held down: processes of pod default/b" in conflict(inputs(hold_downs=(held,)), NEURON, 2)


def test_a_disabled_device_is_a_conflict_that_says_why_though_an_assignment_names_it() -> None:
    node = inventory(disabled=(2,))
    reason = "neuron 2 is held down: disabled by the node's annotation neuron-plugin.io/disable-devices"
    assert reason in conflict(inputs(node=node), NEURON, 2)
    assert reason in conflict(inputs(assigned("a", app(1), sets=[[2]]), node=node), NEURON, 2)


BROKEN = inventory(unhealthy={2: "sick"})


def test_a_broken_device_is_refused_at_once_whoever_has_it() -> None:
    """It is shown as healthy while a pod has it, so the kubelet may draw it when that pod has just ended."""
    text = "aws.amazon.com/neuron cannot be allocated: device 2: sick"
    for before in (
        inputs(node=BROKEN),
        inputs(pod("a", app(1)), recorded=[entry(A, "app", NEURON, 2)], node=BROKEN),
        inputs(assigned("b", app(1), sets=[[2]]), node=BROKEN),
    ):
        assert answer_for(derive(before), call_of(NEURON, (2,))) == Conflict(text, lasting=True)
    several = conflict(inputs(node=inventory(unhealthy={0: "gone", 3: "sick"})), NEURON, *ROW0)
    assert several.endswith(": device 0: gone; device 3: sick")


def test_a_wait_may_end_any_other_conflict() -> None:
    taken = inputs(pod("a", app(1)), recorded=[entry(A, "app", NEURON, 2)])
    answer = answer_for(derive(taken), call_of(NEURON, (2,)))
    assert isinstance(answer, Conflict)
    assert not answer.lasting


def test_a_broken_device_is_not_preferred_though_the_kubelet_offers_it() -> None:
    before = inputs(pod("a", app(4)), recorded=[entry(A, "app", NEURON, *ROW0)], node=BROKEN)
    assert not set(preferred(before, NEURON, 8)) & {2}
    assert len(preferred(before, NEURON, 16)) == 16


def test_a_later_container_goes_on_with_its_init_containers_device_that_broke_meanwhile() -> None:
    before = inputs(pod("a", init(4), app(4)), recorded=[entry(A, "init", NEURON, *ROW0)], node=BROKEN)
    assert answered(before, NEURON, *ROW0).pod == answered(before, NEURON, *ROW0, own_ids=ROW0).pod == ref("a")


def test_a_disabled_device_is_not_preferred_though_an_assignment_names_it() -> None:
    before = inputs(assigned("a", app(4), sets=[ROW0]), node=inventory(disabled=(2,)))
    assert not set(preferred(before, NEURON, 4)) & set(ROW0)


def test_a_later_container_goes_on_with_its_init_containers_device_that_was_disabled_meanwhile() -> None:
    node = inventory(disabled=(2,))
    before = inputs(pod("a", init(4), app(4)), recorded=[entry(A, "init", NEURON, *ROW0)], node=node)
    assert answered(before, NEURON, *ROW0).pod == ref("a")


def test_a_waiting_set_of_which_a_part_is_held_down_is_a_conflict() -> None:
    held = HoldDown(B, ref("b"), devices(2), 0.0, 0.0, 0.0, 0.0, 99.0, "why")
    assert "held down" in conflict(inputs(assigned("a", app(4), sets=[ROW0]), hold_downs=(held,)), NEURON, *ROW0)


def test_p45_an_app_container_goes_on_with_the_ids_of_its_init_container() -> None:
    before = inputs(pod("a", init(4), app(4)), recorded=[entry(A, "init", NEURON, *ROW0)])
    answer = answered(before, NEURON, *ROW0)
    assert (answer.mask, answer.pod, answer.container) == (devices(*ROW0), ref("a"), "app")


def test_p46_a_smaller_app_container_gets_its_assigned_part_where_what_was_drawn_is_not_linked() -> None:
    both = assigned("a", init(8), app(4), sets=[range(8), ROW1])
    before = inputs(both, recorded=[entry(A, "init", NEURON, *range(8))])
    answer = answered(before, NEURON, 0, 3, 5, 6)
    assert (answer.mask, answer.assigned) == (devices(*ROW1), True)


def test_p46_what_was_drawn_is_given_if_it_is_linked_so_that_pod_resources_says_what_the_container_has() -> None:
    both = assigned("a", init(8), app(4), sets=[range(8), ROW1])
    before = inputs(both, recorded=[entry(A, "init", NEURON, *range(8))])
    answer = answered(before, NEURON, *ROW0)
    assert (answer.mask, answer.container, answer.assigned) == (devices(*ROW0), "app", False)
    one = assigned("a", init(4), app(1), sets=[ROW0, [0]])
    assert answered(inputs(one, recorded=[entry(A, "init", NEURON, *ROW0)]), NEURON, 3).mask == devices(3)


def test_p46_what_was_drawn_is_not_given_if_a_later_container_waits_for_it() -> None:
    three = assigned("a", init(4), app(1), app(1, name="next"), sets=[ROW0, [0], [1]])
    before = inputs(three, recorded=[entry(A, "init", NEURON, *ROW0)])
    assert answered(before, NEURON, 1).mask == devices(0)
    assert answered(before, NEURON, 2).mask == devices(2)


def test_p46_nor_if_constraints_decided_about_the_assigned_part() -> None:
    annotations = {"neuron-plugin.io/prefer-devices": "0"}
    sets = assignment(TRN1, (init(4), app(1)), [ROW0, [0]])
    before = inputs(
        pod("a", init(4), app(1), annotations=sets | annotations), recorded=[entry(A, "init", NEURON, *ROW0)]
    )
    assert answered(before, NEURON, 3).mask == devices(0)
    unassigned = pod("a", init(4), app(1), annotations=annotations)
    assert answered(inputs(unassigned, recorded=[entry(A, "init", NEURON, *ROW0)]), NEURON, 3).mask == devices(3)


def test_p46_a_pod_without_an_assignment_is_given_a_linked_part_of_what_its_init_container_has() -> None:
    before = inputs(pod("a", init(8), app(4)), recorded=[entry(A, "init", NEURON, *range(8))])
    assert answered(before, NEURON, 0, 3, 5, 6).mask in {devices(*ROW0), devices(*ROW1)}


def test_p46_a_part_that_is_linked_as_it_was_drawn_stays_as_it_is() -> None:
    before = inputs(pod("a", init(8), app(4)), recorded=[entry(A, "init", NEURON, *range(8))])
    assert answered(before, NEURON, *ROW1).mask == devices(*ROW1)


def test_p46_an_app_container_never_shares_a_device_with_its_sidecar() -> None:
    three = pod("a", init(4), sidecar(1), app(1))
    recorded = [entry(A, "init", NEURON, *ROW0), entry(A, "sidecar", NEURON, 3, given=[0])]
    assert answered(inputs(three, recorded=recorded), NEURON, 0).mask in {devices(number) for number in (1, 2, 3)}


def test_p46_nor_where_no_linked_part_is_left() -> None:
    three = pod("a", init(4), sidecar(1), app(3))
    recorded = [entry(A, "init", NEURON, *ROW0), entry(A, "sidecar", NEURON, 3, given=[0])]
    assert answered(inputs(three, recorded=recorded), NEURON, 0, 1, 2).mask == devices(1, 2, 3)


def test_p46_a_larger_app_container_gets_all_that_its_pod_has_left_and_the_new_ids() -> None:
    three = pod("a", init(2), sidecar(1), app(2))
    recorded = [entry(A, "init", NEURON, 0, 1), entry(A, "sidecar", NEURON, 1, given=[0])]
    before = inputs(three, recorded=recorded)
    answer = answered(before, NEURON, 0, 4, own_ids=(0,), preferred=True)
    assert (answer.mask, answer.pod, answer.container) == (devices(1, 4), ref("a"), "app")


def test_p46_the_assigned_set_of_a_larger_app_container_is_followed_whatever_its_sidecar_drew() -> None:
    three = assigned("a", init(2), sidecar(1), app(2), sets=[[0, 1], [0], [1, 5]], geometry=INF2)
    recorded = [
        entry(A, "init", NEURON, 0, 1, node=inventory(INF2)),
        entry(A, "sidecar", NEURON, 1, given=[0], node=inventory(INF2)),
    ]
    snapshot = derive(inputs(three, recorded=recorded, node=inventory(INF2)))
    request = PreferenceRequest(NEURON, tuple(number for number in range(12) if number != 1), (0,), 2)
    assert preference_for(snapshot, request).ids == (0, 5)
    answer = answer_for(snapshot, call_of(NEURON, (0, 5), (0,), preferred=True))
    assert isinstance(answer, Answer)
    assert (answer.mask, answer.assigned) == (devices(1, 5, geometry=INF2), True)


def test_aligned_devices_that_must_be_included_are_not_taken_for_the_pods_own() -> None:
    before = inputs(pod("a", app(1)), pod("b", app(2)), recorded=[entry(A, "app", NEURON, 3)])
    assert "in use by pod default/a" in conflict(before, NEURON, 3, 4, own_ids=(3,), preferred=True)


def test_p46_an_app_container_with_another_resource_does_not_go_on_with_init_ids() -> None:
    before = inputs(pod("a", init(4), app(4, DEVICE)), recorded=[entry(A, "init", NEURON, *ROW0)])
    assert "in use by pod default/a" in conflict(before, DEVICE, *ROW0)


def test_p46_ids_that_the_kubelet_has_just_been_asked_about_are_no_part_of_an_init_set() -> None:
    """kubernetes#137534: the kubelet offers what a live pod has."""
    before = inputs(pod("a", init(4), app(4)), recorded=[entry(A, "init", NEURON, *ROW0)])
    assert "in use by pod default/a" in conflict(before, NEURON, *ROW0, preferred=True)
    static = inputs(recorded=[entry(STATIC_UID, "init", NEURON, *ROW0)])
    assert answered(static, NEURON, *ROW0, latest=STATIC_UID).pod is not None
    assert "in use by the pod with UID" in conflict(static, NEURON, *ROW0, latest=STATIC_UID, preferred=True)


def test_p46_a_part_of_what_an_unknown_pod_has_is_its_own_only_while_it_is_being_admitted() -> None:
    before = inputs(recorded=[entry(STATIC_UID, "init", NEURON, *ROW0), entry(A, "app", NEURON, 9)])
    answer = answered(before, NEURON, 1, latest=STATIC_UID)
    assert (answer.mask, answer.pod and answer.pod.uid) == (devices(1), STATIC_UID)
    assert "in use by the pod with UID" in conflict(before, NEURON, 1, latest=A)
    assert "in use by the pod with UID" in conflict(before, NEURON, 0, 9, latest=STATIC_UID)


def test_where_the_checkpoint_cannot_be_read_a_container_gets_exactly_what_was_drawn() -> None:
    both = assigned("a", init(8), app(4), sets=[range(8), ROW1])
    before = inputs(both, recorded=[entry(A, "init", NEURON, *range(8))], file={"unreadable": "future"})
    assert answered(before, NEURON, 0, 3, 5, 6).mask == devices(0, 3, 5, 6)


def test_p48_two_equal_containers_take_their_sets_in_the_order_of_the_pod() -> None:
    both = assigned("a", app(1, name="one"), app(1, name="two"), sets=[[5], [6]])
    assert answered(inputs(both), NEURON, 5).container == "one"
    assert answered(inputs(both, recorded=[entry(A, "one", NEURON, 5)]), NEURON, 6).container == "two"


def test_p49_ids_that_a_malformed_assignment_names_are_served_as_drawn() -> None:
    before = inputs(pod("a", app(1), annotations={"NEURON_DEVS": "5,6"}))
    assert answered(before, NEURON, 5).pod is None


@given(data=st.data())
def test_no_answer_gives_a_core_that_another_pod_has_or_that_is_kept_back(
    data: st.DataObject,
) -> None:
    device = st.integers(0, 7)
    pods = [
        data.draw(
            st.sampled_from([pod(name, init(2), app(1)), assigned(name, app(1), sets=[[number]]), pod(name, app(2))])
        )
        for number, name in enumerate("abc")
    ]
    recorded = [
        entry(uid_of(name), container, NEURON, *data.draw(st.sets(device, min_size=1, max_size=3)))
        for name, container in data.draw(
            st.sets(st.tuples(st.sampled_from("abcx"), st.sampled_from(["init", "app"])), max_size=4)
        )
    ]
    held = HoldDown(B, ref("b"), devices(data.draw(device)), 0.0, 0.0, 0.0, 0.0, 99.0, "why")
    broken = dict.fromkeys(data.draw(st.sets(device, max_size=1)), "sick")
    node = inventory(disabled=tuple(data.draw(st.sets(device, max_size=2))), unhealthy=broken)
    before = inputs(*pods, recorded=recorded, hold_downs=data.draw(st.sampled_from([(), (held,)])), node=node)
    ids = tuple(sorted(data.draw(st.sets(device, min_size=1, max_size=3))))
    latest = data.draw(st.sampled_from([None, A, uid_of("x")]))
    snapshot = derive(before)
    answer = answer_for(snapshot, call_of(NEURON, ids, (), latest, preferred=data.draw(st.booleans())))
    if isinstance(answer, Answer):
        overlapping = {one.pod.uid for one in snapshot.ledger.overlapping(answer.mask)}
        assert not overlapping or (answer.pod and overlapping == {answer.pod.uid})
        assert answer.mask.bit_count() == 2 * len(ids)
        if not overlapping:
            assert not answer.mask & (before.held_down_mask | ~node.healthy_mask)
