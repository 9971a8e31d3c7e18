"""Which ids are preferred, whose call an Allocate is, and that no core is given to two pods.

A row is a moment, as `moment` reads it, and questions of the kubelet with their answers. ``4 of 1-15 must 5 -> 4-7``
asks for four devices of those offered; ``-> not 0-3`` wants any others. ``0-3 -> 0-3 a/app assigned`` is an Allocate:
its ids, then what is given and whose it is (``?``: not known yet), or ``!`` and a part of the refusal. Before the arrow
stand ``own 0``, which the GetPreferredAllocation before had to include, ``asked`` if there was one, and ``latest a``.
"""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.allocation import NodeInventory, PodUid, Resource
from neuron_plugin.allocation.keys import NODE_KEY, POD_UID_KEY
from neuron_plugin.allocation.resources import parse_ids, ranges
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
from neuron_plugin.plugin.inputs import Inputs, PendingAnswer
from neuron_plugin.plugin.snapshot import derive
from neuron_plugin.topology import CoreMask, Geometry, Topology, Unit, sets_by_count, valid_sets
from tests.plugin.world import (
    CORE,
    INF2,
    NEURON,
    RESOURCES,
    TRN1,
    TRN2,
    asked_by,
    holder,
    ids_of,
    inputs,
    inventory,
    moment,
    pod_of,
    resting,
    uid_of,
)
from tests.support.stories import rows

ROW0 = (0, 1, 2, 3)
NAMES = {one: name for name, one in RESOURCES.items()}


def preferred(before: Inputs, text: str) -> tuple[int, ...]:
    return preference_for(derive(before), asked_by(text, before)).ids


def call_of(text: str) -> AllocateCall:
    first, *rest = text.split()
    resource, ids = ids_of(first)
    own = parse_ids(rest[rest.index("own") + 1]) if "own" in rest else ()
    latest = holder(rest[rest.index("latest") + 1])[0] if "latest" in rest else None
    asked = PreferenceRequest(resource, ids, own, len(ids)) if own or "asked" in rest else None
    return AllocateCall(resource, ids, asked, latest)


def answered(before: Inputs, text: str) -> str:
    call = call_of(text)
    answer = answer_for(derive(before), call)
    if isinstance(answer, Conflict):
        return f"!{answer.text}" + " for good" * answer.lasting
    given = ranges(before.inventory.geometry.ids_of(call.resource.unit, answer.mask))
    whose = f"{answer.pod.name or 'static'}/{answer.container}" if answer.pod else "?"
    return f"{given} {whose}" + " assigned" * answer.assigned


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
    name, first = NAMES[resource], ",".join(map(str, sorted(available)[:size]))
    shapes = [f"w app:{name}:{size}={first}", f"s app.one:{name}:{size} app.two:{name}:1"]
    pods = [pod_of(shape, geometry) for shape in data.draw(st.sampled_from([[], *([one] for one in shapes)]))]
    before = inputs(*pods, node=node, pending=(pending(used, node),))
    request = PreferenceRequest(resource, tuple(sorted(available)), tuple(sorted(must)), size)
    ids = preference_for(derive(before), request).ids
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
    request = PreferenceRequest(resource, geometry.ids_of(unit, geometry.all_mask), (), count)
    ids = preference_for(derive(inputs(node=node, pending=(pending(used, node),))), request).ids
    mask = geometry.mask_of(unit, ids)
    assert mask in valid_sets(geometry, unit, count)
    assert not mask & used


BROKEN_ROW = "b=0-10"
"""One device is left of a row, and a whole row."""
PREFERENCES = rows(f"""
    cores that are not aligned, only where no aligned ones are free:
        trn2 => core:2 of 1-3 -> 2-3; core:2 of 1,2,5 -> 1-2
    p32 a single device comes from a broken row: has a=4 => 1 of 0-3,5-15 -> 5
    p34 what another pod has, not while a choice is left: inf2 | has a=0,1 => 2 -> not 0,1
    p34 what others only wait for, before what a live pod has:
        inf2 | w app:2=7,9 | has a=device:0,1 => 2 of 0,1,4,7 -> 4,7; 2 of 2,6,7 -> 2,6
    what must be included grows into a linked set: has a/init=6 => 4 must 6 -> 4-7
    ids that the node does not have any more: trn1 => 1 of 3,99 -> 3
    an impossible count gets the tightest free ids: has a=device:0 => 7 -> 1-7
    the tightest around what must be included: inf2 => 2 of 0,4,5,9 -> 4-5; 2 of 0,4,6,9 must 9 -> 6,9
    ids in use fill up only what free ones cannot: inf2 | has a=device:0-2,4-8,10,11 => 3 -> with 3,9
    p30 the first waiting assignment of that size and name:
        e app:4=4-7 @9 | l app:4=0-3 @3 | o app:1=15 | c app:core:4=24-27 => 4 -> 4-7; 1 -> 15; core:4 -> 24-27
    p30 an assignment that the kubelet does not offer: a app:4=0-3 @1 | b app:4=4-7 @2 => 4 of 1-15 -> 4-7
    p30 what a container re-uses answers no other call: a init:4=0-3 app:1=1 | b app:1 | has a/init=0-3 => 1 -> not 0-3
    p30 the assignment around what must be included:
        a init:1=5 app:4=4-7 | b app:4=0-3 @0 | has a/init=5 => 4 must 5 -> 4-7
    p30 also if that was disabled meanwhile: a init:1=5 app:4=4-7 | has a/init=5 | off 5 => 4 must 5 -> 4-7
    an assignment with only a part of what must be included:
        inf2 | a init:2=5,6 app:4=6-9 | has a/init=5,6 => 4 of 0-11 must 5,6 -> with 5,6
    p31 sets that wait for others: a app:4=0-3 | b app:1 => 1 -> not 0-3
    p60 held-down cores, though an assignment names them: a app:4=0-3 | rests 2 => 4 -> not 0-3
    a disabled device, though an assignment names it: a app:4=0-3 | off 2 => 4 -> not 0-3
    a broken device, though the kubelet offers it: a app:4 | has a=0-3 | broken 2 => 8 -> not 2; 16 -> 0-15
    an assignment of an older version that is not aligned: trn2 | a app:core:2=1,2 => core:2 -> 1-2
    what it leaves over: trn2 | a app:core:2=1,2 | has a=core:1,2 => core:2 -> 4-5
    p46 an assigned set beside what a sidecar drew:
        inf2 | a init:2=0,1 sidecar:1=0 app:2=1,5 | has a/init=0,1 a/sidecar=1>0 => 2 of 0,2-11 must 0 -> 0,5
    # A single device first, then four: the single one must not break the last row.
    one container alone: has {BROKEN_ROW} => 1 of 11-15 -> 11
    the first of several goes where all fit: a app.one:4 app.two:1 | has {BROKEN_ROW} => 4 of 11-15 -> 12-15
    the first of three goes where all fit:
        inf2 | a app.one:1 app.two:2 app.three:2 | has b=device:0,1,5-9 => 1 -> not 3,10,11
    p30 a pod that is bound gets what it was promised: a app:4=0-3 => 4 -> 0-3
""")
PROMISES = rows("""
    while others will do: b app:1 => 1 -> not 0-3; 12 -> not 0-3; 13 -> with 4-15
    before one that a bound pod waits for: b app:4=8-11 | c app:6 | has c=4-7,12,13 => 6 -> 0-3,14-15
    the pod is bound: a app:4=0-3 => 4 -> 0-3
""")


def ask(before: Inputs, questions: str) -> None:
    for question in questions.split("; "):
        asked, expected = question.split(" -> ")
        ids = preferred(before, asked)
        how, _, text = expected.rpartition(" ")
        wanted, size = set(parse_ids(text)), asked_by(asked, before).size
        fits = {"": set(ids) == wanted, "not": not wanted & set(ids), "with": wanted < set(ids)}
        assert fits[how], (question, ids)
        assert len(set(ids)) == size


@pytest.mark.parametrize(("before", "questions"), PREFERENCES)
def test_which_ids_are_preferred(before: str, questions: str) -> None:
    ask(moment(before), questions)


@pytest.mark.parametrize(("before", "questions"), PROMISES)
def test_a_set_that_was_promised_to_a_pod_that_is_not_bound_is_left_alone(before: str, questions: str) -> None:
    made = {NODE_KEY: "worker-1", POD_UID_KEY: uid_of("a")}
    waits, known = pod_of("a app:4=0-3", annotations=made, node_name=""), moment(before)
    ask(replace(known, pods=replace(known.pods, promised=(waits,))), questions)


def test_how_well_ids_serve_is_known() -> None:
    of_others = derive(moment("inf2 | w app:2=7,9 | has a=device:0,1"))
    fits = {(0, 1, 4, 7): Fit.UNLINKED, (0, 4): Fit.TAKEN, (7, 9): Fit.ASSIGNED, (2, 3): Fit.LINKED}
    assert {ids: preference_for(of_others, PreferenceRequest(NEURON, ids, (), 2)).fit for ids in fits} == fits
    resting_row = preference_for(derive(moment("a app:4=0-3 | rests 2")), PreferenceRequest(NEURON, ROW0, (), 4))
    unaligned = preference_for(derive(moment("trn2")), PreferenceRequest(CORE, (1, 2, 5), (), 2))
    assert (unaligned.fit, resting_row.fit) == (Fit.UNLINKED, Fit.TAKEN)


def test_a_call_waits_only_for_hold_downs_that_keep_something_better_back_and_whenever_ids_are_in_use() -> None:
    row, full = PreferenceRequest(NEURON, tuple(range(16)), (), 4), PreferenceRequest(NEURON, (0,), (), 1)
    for hold_downs in ((), (resting(15),)):
        snapshot = derive(inputs(recorded="a=device:0", hold_downs=hold_downs))
        assert not may_improve(snapshot, row, preference_for(snapshot, row))
        assert may_improve(snapshot, full, preference_for(snapshot, full))
    last_row = replace(row, available=(12, 13, 14, 15))
    assert may_improve(snapshot, last_row, preference_for(snapshot, last_row))


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

LEFT = "has a/init=0-3 a/sidecar=3>0"
"""The sidecar drew device 3 and was given 0."""
BROKE = "!aws.amazon.com/neuron cannot be allocated: device 2: sick for good"
DISABLED = "!neuron 2 is held down: disabled by the node's annotation neuron-plugin.io/disable-devices"
HALF_AND_ROW = "a init:8=0-7 app:4=4-7 | has a/init=0-7"
ANSWERS = rows(f"""
    the ids of a waiting assignment: a app:4=0-3 => 0-3 -> 0-3 a/app assigned
    the same ids by another name: a app:4=0-3 => device:0-3 -> 0-3 ?
    ids that no pod has: a app:2 => 2-3 -> 2-3 ?
    p45 ids that another live pod has:
        a app:2 | has a=2,3 => 3-4 -> !aws.amazon.com/neuron 3 is in use by pod default/a as aws.amazon.com/neuron
    p58 the same cores under another name:
        a app:core:1 | has a=core:6 => 3 -> !neuron 3 is in use by pod default/a as aws.amazon.com/neuroncore
    p58 what the pod itself has under another name:
        a init:1 app.cores:core:1 app:4 | has a/init=0 a/cores=core:2 =>
        0-3 own 0 -> !neuron 1 is in use by pod default/a
    p33 what another pod has of what init containers left:
        a init:4 app:1 | b app:device:1 | has a/init=0-3 b=device:0 => 0 -> !in use by pod default/b
    p45 every pod that is in the way and no other is named:
        a app:1 | b app:1 | c app:1 | has a=2 b=3 c=9 =>
        0-3 -> !aws.amazon.com/neuron 2 is in use by pod default/a as aws.amazon.com/neuron;
        aws.amazon.com/neuron 3 is in use by pod default/b as aws.amazon.com/neuron
    p60 held-down cores: rests 2 => 2 -> !neuron 2 is held down: why
    p60 a waiting set of which a part is held down: a app:4=0-3 | rests 2 => 0-3 -> !held down
    a disabled device: off 2 => 2 -> {DISABLED}
    a disabled device that is assigned: a app:1=2 | off 2 => 2 -> {DISABLED}
    # A broken device is shown as healthy while a pod has it: the kubelet may draw it when that pod has just ended.
    a broken device: broken 2 => 2 -> {BROKE}
    a broken device of another pod: a app:1 | has a=2 | broken 2 => 2 -> {BROKE}
    a broken device that is assigned: b app:1=2 | broken 2 => 2 -> {BROKE}
    two broken devices: broken 0,3 => 0-3 -> !: device 0: sick; device 3: sick for good
    what broke meanwhile of the init container's:
        a init:4 app:4 | has a/init=0-3 | broken 2 => 0-3 -> 0-3 a/app; 0-3 own 0-3 -> 0-3 a/app
    what was disabled meanwhile of it: a init:4 app:4 | has a/init=0-3 | off 2 => 0-3 -> 0-3 a/app
    p30 an assignment around what was disabled meanwhile:
        a init:1=5 app:4=4-7 | has a/init=5 | off 5 => 4-7 own 5 asked -> 4-7 a/app assigned
    p30 a set around it without an assignment: a init:1 app:4 | has a/init=5 | off 5 => 4-7 own 5 asked -> 4-7 a/app
    an assignment that is not aligned: trn2 | a app:core:2=1,2 => core:1,2 -> 1-2 a/app assigned
    p45 the ids of the init container: a init:4 app:4 | has a/init=0-3 => 0-3 -> 0-3 a/app
    p46 the assigned part for one that is not linked: {HALF_AND_ROW} => 0,3,5,6 -> 4-7 a/app assigned
    # So that PodResources says what the container has.
    p46 a linked part is given as it was drawn: {HALF_AND_ROW} => 0-3 -> 0-3 a/app
    p46 also a single device: a init:4=0-3 app:1=0 | has a/init=0-3 => 3 -> 3 a/app
    p46 not if a later container waits for it:
        a init:4=0-3 app:1=0 app.next:1=1 | has a/init=0-3 => 1 -> 0 a/app assigned; 2 -> 2 a/app
    p46 a linked part without an assignment: a init:8 app:4 | has a/init=0-7 => 0,3,5,6 -> 0-3 a/app; 4-7 -> 4-7 a/app
    an aligned part: trn2 | a init:core:4 app:core:2 | has a/init=core:0-3 => core:1,2 -> 0-1 a/app
    p46 no device is shared with a sidecar: a init:4 sidecar:1 app:1 | {LEFT} => 0 -> 1 a/app
    p46 nor where no linked part is left: a init:4 sidecar:1 app:3 | {LEFT} => 0-2 -> 1-3 a/app
    p46 a larger container gets all that its pod has left and the new ids:
        a init:2 sidecar:1 app:2 | has a/init=0,1 a/sidecar=1>0 => 0,4 own 0 asked -> 1,4 a/app
    p46 the assigned set of a larger container, whatever its sidecar drew:
        inf2 | a init:2=0,1 sidecar:1=0 app:2=1,5 | has a/init=0,1 a/sidecar=1>0 =>
        0,5 own 0 asked -> 1,5 a/app assigned
    aligned devices that must be included are not the pod's own:
        a app:1 | b app:2 | has a=3 => 3-4 own 3 asked -> !in use by pod default/a
    p46 another resource than the init container's:
        a init:4 app:device:4 | has a/init=0-3 => device:0-3 -> !in use by pod default/a
    # kubernetes#137534: the kubelet offers what a live pod has.
    p46 ids that the kubelet has just asked about are no part of an init set:
        a init:4 app:4 | has a/init=0-3 => 0-3 asked -> !in use by pod default/a
    p46 nor those of a static pod:
        has static/init=0-3 => 0-3 latest static -> 0-3 static/; 0-3 latest static asked -> !in use by the pod with UID
    p46 a part of what an unknown pod has, only while it is being admitted:
        has static/init=0-3 a=9 => 1 latest static -> 1 static/; 1 latest a -> !in use by the pod;
        0,9 latest static -> !in use by the pod
    p48 the first of two equal containers: a app.one:1=5 app.two:1=6 => 5 -> 5 a/one assigned
    p48 the second one: a app.one:1=5 app.two:1=6 | has a/one=5 => 6 -> 6 a/two assigned
""")


def check(before: Inputs, calls: str) -> None:
    for call in calls.split("; ") if calls.count(" -> ") > 1 else [calls]:
        asked, expected = call.split(" -> ")
        found = answered(before, asked)
        if expected.startswith("!"):
            assert found.startswith("!"), call
            assert expected.removeprefix("!") in found, call
            assert expected.endswith(" for good") == found.endswith(" for good"), call
            assert "default/c" not in found, call
        else:
            assert found == expected, call


@pytest.mark.parametrize(("before", "calls"), ANSWERS)
def test_what_an_allocate_gives_and_whose_it_is(before: str, calls: str) -> None:
    check(moment(before), calls)


def test_where_the_checkpoint_cannot_be_read_a_container_gets_exactly_what_was_drawn() -> None:
    check(moment(f"{HALF_AND_ROW} | unreadable"), "0,3,5,6 -> 0,3,5-6 a/app")


def test_p46_what_was_drawn_is_not_given_if_constraints_decided_about_the_assigned_part() -> None:
    for shape, part in (("a init:4=0-3 app:1=0", "0 a/app assigned"), ("a init:4 app:1", "3 a/app")):
        check(moment(f"{shape} prefer-devices=0 | has a/init=0-3"), f"3 -> {part}")


def test_p49_ids_that_a_malformed_assignment_names_are_served_as_drawn() -> None:
    check(moment("a app:1 NEURON_DEVS=5,6"), "5 -> 5 ?")


@given(data=st.data())
def test_no_answer_gives_a_core_that_another_pod_has_or_that_is_kept_back(data: st.DataObject) -> None:
    device = st.integers(0, 7)
    pods = [
        pod_of(f"{name} {data.draw(st.sampled_from(['init:2 app:1', f'app:1={number}', 'app:2']))}")
        for number, name in enumerate("abc")
    ]
    containers = st.sets(st.tuples(st.sampled_from("abcx"), st.sampled_from(["init", "app"])), max_size=4)
    recorded = " ".join(
        f"{name}/{container}={','.join(map(str, data.draw(st.sets(device, min_size=1, max_size=3))))}"
        for name, container in data.draw(containers)
    )
    held = resting(data.draw(device))
    broken = dict.fromkeys(data.draw(st.sets(device, max_size=1)), "sick")
    node = inventory(disabled=tuple(data.draw(st.sets(device, max_size=2))), unhealthy=broken)
    before = inputs(*pods, recorded=recorded, hold_downs=data.draw(st.sampled_from([(), (held,)])), node=node)
    ids = tuple(sorted(data.draw(st.sets(device, min_size=1, max_size=3))))
    latest: PodUid | None = data.draw(st.sampled_from([None, uid_of("a"), uid_of("x")]))
    asked = data.draw(st.sampled_from([None, PreferenceRequest(NEURON, ids, (), len(ids))]))
    snapshot = derive(before)
    answer = answer_for(snapshot, AllocateCall(NEURON, ids, asked, latest))
    if isinstance(answer, Answer):
        overlapping = {one.pod.uid for one in snapshot.ledger.overlapping(answer.mask)}
        assert not overlapping or (answer.pod and overlapping == {answer.pod.uid})
        assert answer.mask.bit_count() == 2 * len(ids)
        if not overlapping:
            assert not answer.mask & (before.held_down_mask | ~node.healthy_mask)
