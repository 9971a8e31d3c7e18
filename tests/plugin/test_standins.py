"""Holders whose pod is not known."""

from __future__ import annotations

from neuron_plugin.allocation import Holder, Holding
from neuron_plugin.plugin.standins import (
    is_known,
    is_nameless,
    is_outdated,
    named_stand_in,
    nameless_stand_in,
    stands_in,
)
from tests.plugin.world import CORE, NEURON, devices, ref

HELD = (Holding("", NEURON, devices(0, 1)), Holding("#1", CORE, devices(2)))
NAMELESS, NAMED, KNOWN = (Holder(pod, HELD) for pod in (nameless_stand_in(7), named_stand_in("default", "a"), ref("a")))


def test_stand_ins_are_told_from_pods_and_from_each_other() -> None:
    assert [is_known(holder.pod) for holder in (NAMELESS, NAMED, KNOWN)] == [False, False, True]
    assert [stands_in(holder) for holder in (NAMELESS, NAMED, KNOWN)] == [True, True, False]
    assert [is_nameless(holder) for holder in (NAMELESS, NAMED, KNOWN)] == [True, False, False]


def test_keys_never_meet() -> None:
    pods = [nameless_stand_in(0), nameless_stand_in(1), named_stand_in("a", "b"), named_stand_in("a", "c"), ref("b")]
    assert len({pod.uid for pod in pods}) == len(pods)
    assert str(named_stand_in("a", "b")) == "a/b"


def test_only_a_nameless_one_is_outdated_and_only_by_its_own_resource() -> None:
    assert is_outdated(NAMELESS, NEURON, devices(1, 5))
    assert not is_outdated(NAMELESS, CORE, devices(1))
    assert not is_outdated(NAMELESS, NEURON, devices(1, 2))
    assert not is_outdated(NAMED, NEURON, devices(1))
    assert not is_outdated(KNOWN, NEURON, devices(1))
