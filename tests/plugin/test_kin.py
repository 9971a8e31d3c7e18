"""What hangs together in the kubelet's account."""

from __future__ import annotations

from neuron_plugin.allocation import Holder, Holding
from neuron_plugin.plugin.kin import kin_of
from tests.plugin.world import CORE, NEURON, TRN1, devices, ref


def holder(name: str, *ids: int, drawn: tuple[int, ...] = ()) -> Holder:
    return Holder(ref(name), (Holding("app", NEURON, devices(*ids), devices(*drawn)),))


def names(*holders: Holder, ids: tuple[int, ...]) -> set[str]:
    return {one.pod.name for one in kin_of(holders, NEURON, devices(*ids))}


def test_whoever_has_some_of_the_ids_is_kin_and_so_is_whoever_has_some_of_theirs() -> None:
    chain = holder("c", 5, 6), holder("b", 3, 4, 5), holder("a", 0, 3), holder("apart", 8)
    assert names(*chain, ids=(0,)) == {"a", "b", "c"}
    assert names(*chain, ids=(7,)) == set()


def test_what_counts_are_the_ids_that_the_kubelet_drew_where_others_were_given() -> None:
    swapped = holder("a", 0, 1, drawn=(0, 3))
    assert names(swapped, ids=(3,)) == {"a"}
    assert names(swapped, ids=(1,)) == set()


def test_the_same_silicon_under_another_resource_name_makes_no_kin() -> None:
    other = Holder(ref("b"), (Holding("app", CORE, TRN1.cores_mask((0,))),))
    assert kin_of([other], NEURON, devices(0)) == []
