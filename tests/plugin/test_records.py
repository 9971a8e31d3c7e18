"""Whom the entries of the kubelet's own file belong to."""

from __future__ import annotations

from neuron_plugin.allocation import Holding
from neuron_plugin.kubelet import PodDevices, RecordedDevices
from neuron_plugin.kubelet.pod_resources import ContainerDevices
from neuron_plugin.plugin.records import uid_of, unlisted_holdings
from tests.plugin.world import CORE, NEURON, TRN1, devices, recorded

LISTED = PodDevices(
    "default",
    "a",
    (
        ContainerDevices("app", NEURON.value, ("1", "2")),
        ContainerDevices("side", CORE.value, ("9",)),
        ContainerDevices("app", "nvidia.com/gpu", ("GPU-0",)),
    ),
)
OWN = (recorded("u1", "app", NEURON, 1, 2), recorded("u1", "side", CORE, 9))


def test_a_listed_pod_is_the_one_whose_entries_are_all_it_lists() -> None:
    assert uid_of(OWN, LISTED) == "u1"
    assert uid_of((*OWN, recorded("u2", "app", NEURON, 1, 2)), LISTED) == "u1"


def test_other_ids_other_containers_and_no_entries_tie_nothing() -> None:
    assert uid_of((), LISTED) == ""
    assert uid_of(OWN[:1], LISTED) == ""
    assert uid_of((recorded("u1", "app", NEURON, 1, 3), OWN[1]), LISTED) == ""
    assert uid_of(OWN, PodDevices("default", "a", ())) == ""
    assert uid_of(OWN, PodDevices("default", "a", LISTED.containers[2:])) == ""


def test_two_pods_with_the_same_entries_are_neither() -> None:
    twins = tuple(RecordedDevices("u2", one.container, one.resource, one.ids) for one in OWN)
    assert uid_of((*OWN, *twins), LISTED) == ""


def test_what_is_not_listed_for_a_pod_is_its_init_containers() -> None:
    records = (*OWN, recorded("u1", "init", NEURON, 0, 1, 2, 3), recorded("u2", "init", NEURON, 8))
    assert unlisted_holdings(TRN1, records, LISTED) == (Holding("init", NEURON, devices(0, 1, 2, 3)),)
    assert unlisted_holdings(TRN1, records[1:], LISTED) == ()


def test_ids_of_others_and_ids_that_are_none_add_nothing() -> None:
    strange = (
        RecordedDevices("u1", "init", NEURON.value, frozenset({"x", "99", "9" * 5000, "-1"})),
        RecordedDevices("u1", "gpu", "nvidia.com/gpu", frozenset({"1"})),
    )
    assert unlisted_holdings(TRN1, (*OWN, *strange), LISTED) == ()
