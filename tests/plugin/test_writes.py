"""What pods should say by a snapshot: annotations, labels, and events for their owners."""

from __future__ import annotations

import pytest

from neuron_plugin.allocation.keys import UNHEALTHY_LABEL
from neuron_plugin.hardware.health_signals import MISSING
from neuron_plugin.plugin.inputs import Inputs
from neuron_plugin.plugin.snapshot import derive
from neuron_plugin.plugin.writes import pod_events, pod_writes, wrongly_labelled
from tests.plugin.world import (
    app,
    inputs,
    inventory,
    moment,
    pod,
    records,
    ref,
    uid_of,
)
from tests.support.stories import rows

SWAPPED = "a app:1=5 | b app:1=6 @2 | has b=5"
"""``b`` was given what ``a`` was assigned."""


def written(before: Inputs) -> str:
    """Pod and annotations of each write without ``NEURON_``, ``-`` for one that is removed; ``!``: a correction."""
    writes = []
    for one in pod_writes(derive(before)):
        texts = (f"{key.removeprefix('NEURON_')}={value or '-'}" for key, value in sorted(one.annotations.items()))
        writes.append(" ".join([one.pod.name, *texts, *"!" * bool(one.correction)]))
    return "; ".join(writes)


WRITES = rows(f"""
    p55 an assignment that came true is only marked: a app:2=2,3 | has a=2,3 => a ALLOCATED=true
    one that is marked already: a app:2=2,3 allocated | has a=2,3 =>
    a pod without an assignment: a app:core:2 | has a=core:2,3 => a ALLOCATED=true ALLOC_TIME=0 CORES=2,3
    one of two containers is recorded: a app.one:1 app.two:1 | has a/one=5 =>
    the other one is answered: a app.one:1 app.two:1 | has a/one=5 | answers a/two=6 =>
    both are recorded: a app.one:1 app.two:1 | has a/one=5 a/two=6 => a ALLOCATED=true ALLOC_TIME=0 DEVS=5|6
    p46 the cores that were given, and not the drawn ids:
        a init:4 app:1 | has a/init=0-3 a=3>0 => a ALLOCATED=true ALLOC_TIME=0 DEVS=0,1,2,3|0
    p49 an assignment that cannot be read is removed:
        a app:1 NEURON_CORES=5 AWS_NEURON_IDS=x | has a=5 =>
        a AWS_NEURON_IDS=5 ALLOCATED=true ALLOC_TIME=0 CORES=- DEVS=5 RESOURCE_TYPE=aws.amazon.com/neuron
    p65 the vendor's dialect is corrected where it is used:
        a app:1 AWS_NEURON_IDS=6 NEURON_RESOURCE_TYPE=aws.amazon.com/neuron | has a=5 =>
        a AWS_NEURON_IDS=5 ALLOCATED=true ALLOC_TIME=0 DEVS=5 RESOURCE_TYPE=aws.amazon.com/neuron !
    a vendor's list that cannot say two resources is removed:
        a app.one:1 app.two:core:1 AWS_NEURON_IDS=6 | has a/one=5 a/two=core:0 =>
        a AWS_NEURON_IDS=- ALLOCATED=true ALLOC_TIME=0 CORES=0 DEVS=5
    the mirror of a static pod: mirror app:1 | has static=5 => static ALLOCATED=true ALLOC_TIME=0 DEVS=5
    an init container that is not recorded: a init:2=2,3 app:1=2 | has a=2 =>
    one that PodResources does not list: a init:2=2,3 app:1=2 | has a=2 | unreadable => a ALLOCATED=true
    a sidecar, which it would list: a sidecar:1=3 app:1=2 | has a=2 | unreadable =>
    an init container that nothing confirms: a init:2=2,3 | unreadable =>
    p56 p63 a swap, the unserved pod first:
        {SWAPPED} => a ALLOCATED=false ALLOC_TIME=1 DEVS=6 !; b ALLOCATED=true ALLOC_TIME=2 DEVS=5 !
    p56 a pod that asks for another resource takes nothing over:
        a app:device:1=5 | b app:1=6 @2 | has b=5 => b ALLOCATED=true ALLOC_TIME=2 DEVS=5 !
    a pod whose set a third one has takes nothing from a pod that waits: a app:1=5 | b app:1=6 @2 | has c=device:5 =>
    both of a swap are served:
        {SWAPPED} a=6 => a ALLOCATED=true ALLOC_TIME=1 DEVS=6 !; b ALLOCATED=true ALLOC_TIME=2 DEVS=5 !
""")


@pytest.mark.parametrize(("text", "expected"), WRITES)
def test_which_annotations_are_written_on_pods(text: str, expected: str) -> None:
    assert written(moment(text)) == expected


ON_LOAD_AND_SERVE = "app.load:core:1 app.serve:core:1"
APART, TOGETHER = (
    "product Trainium1 | has a/load=core:0 a/serve=core:4",
    "product Trainium1 | has a/load=core:0 a/serve=core:1",
)
PRIVILEGED = "PrivilegedContainer: container app is privileged: ... and only 3 of them are the pod's"
UNLINKED = "UnlinkedDevices: aws.amazon.com/neuron ids 0, 1, 5, 9 of container app are not linked: ..."
EVENTS = rows(f"""
    p49 an assignment that cannot be read:
        a app:1 NEURON_DEVS=x => InvalidNeuronAssignment: pod default/a has NEURON_DEVS='x': 'x' is no id: ...
    p49 an assignment of a device that is not there: a app:1 NEURON_DEVS=77 =>
        InvalidNeuronAssignment: pod default/a has device ids (77,), ... of 16 devices with 2 cores each
    p49 an assignment of another count: a app:1 NEURON_DEVS=1,2 =>
        InvalidNeuronAssignment: pod default/a has NEURON_DEVS='1,2': expected 1 ids for container app
    a pod that is served without an assignment: a app:core:2 | has a=core:2,3 =>
    a privileged container with a part of the node: a app:1 privileged:app started | has a=3 => {PRIVILEGED}
    a privileged container with the whole node: a app:16 privileged:app started | has a=0-15 =>
    another container is privileged: a app:1 privileged:other started | has a=3 =>
    no container is privileged: a app:1 started | has a=3 =>
    a privileged container that has not started: a app:1 privileged:app | has a=3 =>
    a privileged container without devices: a app:1 privileged:app started =>
    a privileged container with a claim: a claims:app privileged:app started | prepared a=neuron-3 => {PRIVILEGED}
    a privileged container beside the one with the claim:
        a claims:app privileged:sidecar started | prepared a=neuron-3 =>
    p47 devices that are not linked: a app:4 | has a=0,1,5,9 => {UNLINKED}
    p47 linked devices: a app:4 | has a=0-3 =>
    p47 unlinked devices that were assigned: a app:4=0,1,5,9 | has a=0,1,5,9 =>
    p47 unlinked devices in place of assigned ones: a app:4=0-3 | has a=0,1,5,9 => {UNLINKED}
    a product that the node does not have: a {ON_LOAD_AND_SERVE} device-name=Trn2 | {APART} =>
        ConstraintNotKept: neuron-plugin.io/device-name is trn2, ... of this node are trainium1 or trn1
    a denied device: a {ON_LOAD_AND_SERVE} deny-devices=2 | {APART} =>
        ConstraintNotKept: device 2 is not among those that ... and neuron-plugin.io/deny-devices leave
    containers on different devices: a {ON_LOAD_AND_SERVE} same-device=load,serve | {APART} =>
        ConstraintNotKept: neuron-plugin.io/same-device names containers load, serve, ... have devices 0,2
    constraints that hold, and a preference that does not: a {ON_LOAD_AND_SERVE}
        device-name=trn1 allow-devices=0 same-device=load,serve prefer-devices=7 | {TOGETHER} =>
    a constraint of a pod without devices: a {ON_LOAD_AND_SERVE} device-name=trn2 | product Trainium1 =>
    a constraint that cannot be read: a {ON_LOAD_AND_SERVE} allow-devices=x | {TOGETHER} =>
        InvalidNeuronConstraint: annotation neuron-plugin.io/allow-devices is 'x': 'x' is no id: ...
    a request that cannot be served: a both:app =>
        InvalidNeuronRequest: container app asks for aws.amazon.com/neuron and aws.amazon.com/neuroncore: ...
""")


def test_a_correction_names_the_pod_and_the_set_that_it_got() -> None:
    assert [write.correction for write in pod_writes(derive(moment(SWAPPED)))] == [
        "pod default/a got another set than it was assigned: NEURON_DEVS=6",
        "pod default/b got another set than it was assigned: NEURON_DEVS=5",
    ]


@pytest.mark.parametrize(("text", "expected"), EVENTS)
def test_what_owners_of_pods_are_told(text: str, expected: str) -> None:
    events = pod_events(derive(moment(text)))
    assert len(events) == bool(expected)
    for event in events:
        assert event.pod == ref("a")
        begins, _, ends = expected.partition("...")
        assert f"{event.reason}: {event.text}".startswith(begins)
        assert event.text.endswith(ends or event.text)


def test_a_later_snapshot_has_the_same_event_again() -> None:
    before = moment("a app:4 | has a=0,1,5,9")
    later = before.with_inventory(inventory(unhealthy={12: "sick"}))
    assert pod_events(derive(before)) == pod_events(derive(later))


def test_a_constraint_that_cannot_be_read_keeps_no_pod_from_its_cores() -> None:
    assert derive(moment(f"a {ON_LOAD_AND_SERVE} allow-devices=x | {TOGETHER}")).ledger.mask_of(uid_of("a")) == 0b11


def test_the_unhealthy_devices_of_each_pod_are_known_with_their_reasons() -> None:
    snapshot = derive(
        moment("a app:2 | b app:core:1 | has a=0,1 b=core:18 c=5 | broken 1,5 | missing 9"),
    )
    assert snapshot.unhealthy_devices == {ref("a"): {1: "sick"}, ref("b"): {9: MISSING}}


def test_what_is_disabled_or_held_down_is_no_unhealthy_device_of_its_pod() -> None:
    before = moment("a app:1 | off 1 | has a=1")
    assert not derive(before).unhealthy_devices


def test_a_pod_is_wrongly_labelled_until_its_label_says_what_its_devices_are() -> None:
    pods = [pod(name, app(1), labels={UNHEALTHY_LABEL: "true"} if name in "bc" else {}) for name in "abcd"]
    node = inventory(unhealthy={0: "sick", 1: "sick"})
    snapshot = derive(inputs(*pods, node=node, recorded=records("a=0 b=1 c=2 d=3")))
    assert [one.reference.name for one in wrongly_labelled(snapshot)] == ["a", "c"]
