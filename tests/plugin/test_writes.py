"""What pods should say by a snapshot: annotations, labels, and events for their owners."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neuron_plugin.allocation import NeuronPod, Resource
from neuron_plugin.allocation.claims import PodClaim
from neuron_plugin.allocation.keys import UNHEALTHY_LABEL
from neuron_plugin.hardware.health_signals import MISSING
from neuron_plugin.plugin.inputs import Inputs, RecordedAllocation, claim_allocations
from neuron_plugin.plugin.snapshot import derive
from neuron_plugin.plugin.writes import pod_events, pod_writes, wrongly_labelled
from tests.plugin.world import (
    CORE,
    NEURON,
    STATIC_UID,
    answer,
    app,
    assigned,
    entry,
    inputs,
    inventory,
    moment,
    pod,
    ref,
    uid_of,
)

A, B = uid_of("a"), uid_of("b")


def has(*ids: int, name: str = "app", resource: Resource = NEURON) -> RecordedAllocation:
    """What the kubelet's record says of a container of pod a."""
    return entry(A, name, resource, *ids)


THREE, FIVE = [has(3)], [has(5)]
UNLINKED = [has(0, 1, 5, 9)]
BY_CLAIM = tuple(claim_allocations([A], "claim-uid", "a-devices", ["neuron-3"]))
MIXED = pod("a", app(1, name="one"), app(1, CORE, "two"), annotations={"AWS_NEURON_IDS": "6"})
MIRROR = pod("static", app(1), annotations={"kubernetes.io/config.hash": STATIC_UID})
UNREADABLE = {"unreadable": "future"}
SWAPPED = moment("a app:1=5 | b app:1=6 @2 | has b=5")
"""``b`` was given what ``a`` was assigned."""


def annotated(**annotations: str) -> NeuronPod:
    return pod("a", app(1), annotations=annotations)


def privileged(*containers: str, count: int = 1) -> NeuronPod:
    return replace(pod("a", app(count), started=True), privileged=containers)


def claiming(*containers: str) -> NeuronPod:
    claims = (PodClaim("devices", "a-devices", (("app", ""),)),)
    return replace(pod("a", started=True), privileged=containers, claims=claims)


def constrained(**texts: str) -> NeuronPod:
    keys = {f"neuron-plugin.io/{key.replace('_', '-')}": text for key, text in texts.items()}
    return pod("a", *(app(1, CORE, name) for name in ("load", "serve")), annotations=keys)


def with_cores(made: NeuronPod, *cores: int) -> Inputs:
    recorded = [entry(A, name, CORE, core) for name, core in zip(("load", "serve"), cores, strict=False)]
    return inputs(made, recorded=recorded, node=inventory(device_name="Trainium1"))


def written(before: Inputs) -> str:
    """Pod and annotations of each write without ``NEURON_``, ``-`` for one that is removed; ``!``: a correction."""
    writes = []
    for one in pod_writes(derive(before)):
        texts = (f"{key.removeprefix('NEURON_')}={value or '-'}" for key, value in sorted(one.annotations.items()))
        writes.append(" ".join([one.pod.name, *texts, *"!" * bool(one.correction)]))
    return "; ".join(writes)


WRITES: dict[str, tuple[Inputs, str]] = {
    "p55 an assignment that came true is only marked": (moment("a app:2=2,3 | has a=2,3"), "a ALLOCATED=true"),
    "one that is marked already": (
        inputs(assigned("a", app(2), sets=[[2, 3]], allocated=True), recorded=[has(2, 3)]),
        "",
    ),
    "a pod without an assignment": (moment("a app:core:2 | has a=core:2,3"), "a ALLOCATED=true ALLOC_TIME=0 CORES=2,3"),
    "one of two containers is recorded": (moment("a app.one:1 app.two:1 | has a/one=5"), ""),
    "the other one is answered": (
        moment("a app.one:1 app.two:1 | has a/one=5", pending=(answer(6, pod=ref("a"), container="two"),)),
        "",
    ),
    "both are recorded": (
        moment("a app.one:1 app.two:1 | has a/one=5 a/two=6"),
        "a ALLOCATED=true ALLOC_TIME=0 DEVS=5|6",
    ),
    "p46 the cores that were given, and not the drawn ids": (
        moment("a init:4 app:1 | has a/init=0-3 a=3>0"),
        "a ALLOCATED=true ALLOC_TIME=0 DEVS=0,1,2,3|0",
    ),
    "p49 an assignment that cannot be read is removed": (
        inputs(annotated(NEURON_CORES="5", AWS_NEURON_IDS="x"), recorded=FIVE),
        "a AWS_NEURON_IDS=5 ALLOCATED=true ALLOC_TIME=0 CORES=- DEVS=5 RESOURCE_TYPE=aws.amazon.com/neuron",
    ),
    "p65 the vendor's dialect is corrected where it is used": (
        inputs(annotated(AWS_NEURON_IDS="6", NEURON_RESOURCE_TYPE=NEURON.value), recorded=FIVE),
        "a AWS_NEURON_IDS=5 ALLOCATED=true ALLOC_TIME=0 DEVS=5 RESOURCE_TYPE=aws.amazon.com/neuron !",
    ),
    "a vendor's list that cannot say two resources is removed": (
        inputs(MIXED, recorded=[has(5, name="one"), has(0, name="two", resource=CORE)]),
        "a AWS_NEURON_IDS=- ALLOCATED=true ALLOC_TIME=0 CORES=0 DEVS=5",
    ),
    "the mirror of a static pod": (
        inputs(MIRROR, recorded=[entry(STATIC_UID, "app", NEURON, 5)]),
        "static ALLOCATED=true ALLOC_TIME=0 DEVS=5",
    ),
    "an init container that is not recorded": (moment("a init:2=2,3 app:1=2 | has a=2"), ""),
    "one that PodResources does not list": (
        moment("a init:2=2,3 app:1=2 | has a=2", file=UNREADABLE),
        "a ALLOCATED=true",
    ),
    "a sidecar, which it would list": (moment("a sidecar:1=3 app:1=2 | has a=2", file=UNREADABLE), ""),
    "an init container that nothing confirms": (moment("a init:2=2,3", file=UNREADABLE), ""),
    "p56 p63 a swap, the unserved pod first": (
        SWAPPED,
        "a ALLOCATED=false ALLOC_TIME=1 DEVS=6 !; b ALLOCATED=true ALLOC_TIME=2 DEVS=5 !",
    ),
    "p56 a pod that asks for another resource takes nothing over": (
        moment("a app:device:1=5 | b app:1=6 @2 | has b=5"),
        "b ALLOCATED=true ALLOC_TIME=2 DEVS=5 !",
    ),
    "a pod whose set a third one has takes nothing from a pod that waits": (
        moment("a app:1=5 | b app:1=6 @2 | has c=device:5"),
        "",
    ),
    "both of a swap are served": (
        inputs(*SWAPPED.pods.pods.values(), recorded=[has(6), entry(B, "app", NEURON, 5)]),
        "a ALLOCATED=true ALLOC_TIME=1 DEVS=6 !; b ALLOCATED=true ALLOC_TIME=2 DEVS=5 !",
    ),
}


@pytest.mark.parametrize(("before", "expected"), WRITES.values(), ids=WRITES)
def test_which_annotations_are_written_on_pods(before: Inputs, expected: str) -> None:
    assert written(before) == expected


EVENTS: dict[str, tuple[Inputs, str]] = {
    "p49 an assignment that cannot be read": (
        inputs(annotated(NEURON_DEVS="x")),
        "InvalidNeuronAssignment: pod default/a has NEURON_DEVS='x': 'x' is no id: ...",
    ),
    "p49 an assignment of a device that is not there": (
        inputs(annotated(NEURON_DEVS="77")),
        "InvalidNeuronAssignment: pod default/a has device ids (77,), ... of 16 devices with 2 cores each",
    ),
    "p49 an assignment of another count": (
        inputs(annotated(NEURON_DEVS="1,2")),
        "InvalidNeuronAssignment: pod default/a has NEURON_DEVS='1,2': expected 1 ids for container app",
    ),
    "a pod that is served without an assignment": (moment("a app:core:2 | has a=core:2,3"), ""),
    "a privileged container with a part of the node": (
        inputs(privileged("app"), recorded=THREE),
        "PrivilegedContainer: container app is privileged: ... and only 3 of them are the pod's",
    ),
    "a privileged container with the whole node": (inputs(privileged("app", count=16), recorded=[has(*range(16))]), ""),
    "another container is privileged": (inputs(privileged("other"), recorded=THREE), ""),
    "no container is privileged": (inputs(privileged(), recorded=THREE), ""),
    "a privileged container that has not started": (
        inputs(replace(privileged("app"), started=False), recorded=THREE),
        "",
    ),
    "a privileged container without devices": (inputs(privileged("app")), ""),
    "a privileged container with a claim": (
        inputs(claiming("app"), recorded=BY_CLAIM),
        "PrivilegedContainer: container app is privileged: ... and only 3 of them are the pod's",
    ),
    "a privileged container beside the one with the claim": (inputs(claiming("sidecar"), recorded=BY_CLAIM), ""),
    "p47 devices that are not linked": (
        moment("a app:4 | has a=0,1,5,9"),
        "UnlinkedDevices: aws.amazon.com/neuron ids 0, 1, 5, 9 of container app are not linked: ...",
    ),
    "p47 linked devices": (moment("a app:4 | has a=0-3"), ""),
    "p47 unlinked devices that were assigned": (moment("a app:4=0,1,5,9 | has a=0,1,5,9"), ""),
    "p47 unlinked devices in place of assigned ones": (
        moment("a app:4=0-3 | has a=0,1,5,9"),
        "UnlinkedDevices: aws.amazon.com/neuron ids 0, 1, 5, 9 of container app are not linked: ...",
    ),
    "a product that the node does not have": (
        with_cores(constrained(device_name="Trn2"), 0, 4),
        "ConstraintNotKept: neuron-plugin.io/device-name is trn2, ... of this node are trainium1 or trn1",
    ),
    "a denied device": (
        with_cores(constrained(deny_devices="2"), 0, 4),
        "ConstraintNotKept: device 2 is not among those that ... and neuron-plugin.io/deny-devices leave",
    ),
    "containers on different devices": (
        with_cores(constrained(same_device="load,serve"), 0, 4),
        "ConstraintNotKept: neuron-plugin.io/same-device names containers load, serve, ... have devices 0,2",
    ),
    "constraints that hold, and a preference that does not": (
        with_cores(
            constrained(device_name="trn1", allow_devices="0", same_device="load,serve", prefer_devices="7"), 0, 1
        ),
        "",
    ),
    "a constraint of a pod without devices": (with_cores(constrained(device_name="trn2")), ""),
    "a constraint that cannot be read": (
        with_cores(constrained(allow_devices="x"), 0, 1),
        "InvalidNeuronConstraint: annotation neuron-plugin.io/allow-devices is 'x': 'x' is no id: ...",
    ),
    "a request that cannot be served": (
        inputs(pod("a", replace(app(1), limits={NEURON.value: "1", CORE.value: "1"}))),
        "InvalidNeuronRequest: container app asks for aws.amazon.com/neuron and aws.amazon.com/neuroncore: ...",
    ),
}


def test_a_correction_names_the_pod_and_the_set_that_it_got() -> None:
    assert [write.correction for write in pod_writes(derive(SWAPPED))] == [
        "pod default/a got another set than it was assigned: NEURON_DEVS=6",
        "pod default/b got another set than it was assigned: NEURON_DEVS=5",
    ]


@pytest.mark.parametrize(("before", "expected"), EVENTS.values(), ids=EVENTS)
def test_what_owners_of_pods_are_told(before: Inputs, expected: str) -> None:
    events = pod_events(derive(before))
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
    assert derive(with_cores(constrained(allow_devices="x"), 0, 1)).ledger.mask_of(A) == 0b11


def test_the_unhealthy_devices_of_each_pod_are_known_with_their_reasons() -> None:
    node = inventory(unhealthy={1: "sick", 5: "sick", 9: MISSING})
    recorded = [has(0, 1), entry(B, "app", CORE, 18), entry(uid_of("unseen"), "app", NEURON, 5)]
    snapshot = derive(inputs(pod("a", app(2)), pod("b", app(1, CORE)), node=node, recorded=recorded))
    assert snapshot.unhealthy_devices == {ref("a"): {1: "sick"}, ref("b"): {9: MISSING}}


def test_what_is_disabled_or_held_down_is_no_unhealthy_device_of_its_pod() -> None:
    before = moment("a app:1 | off 1 | has a=1")
    assert not derive(before).unhealthy_devices


def test_a_pod_is_wrongly_labelled_until_its_label_says_what_its_devices_are() -> None:
    labelled = {UNHEALTHY_LABEL: "true"}
    pods = pod("a", app(1)), pod("b", app(1), labels=labelled), pod("c", app(1), labels=labelled), pod("d", app(1))
    recorded = [entry(uid_of(name), "app", NEURON, number) for number, name in enumerate("abcd")]
    snapshot = derive(inputs(*pods, node=inventory(unhealthy={0: "sick", 1: "sick"}), recorded=recorded))
    assert [one.reference.name for one in wrongly_labelled(snapshot)] == ["a", "c"]
