"""Suppositions, annotations and the kubelet's account: which of them counts, and what is left of the others."""

from __future__ import annotations

from neuron_plugin.allocation import Holder, Holding, PodReference
from neuron_plugin.plugin.standins import named_stand_in, nameless_stand_in
from neuron_plugin.plugin.tenancy import Tenancy
from tests.plugin.world import CORE, NEURON, TRN1, devices, ref

STAND_IN = nameless_stand_in(7)


def neuron(*ids: int, container: str = "app") -> Holding:
    return Holding(container, NEURON, devices(*ids))


def supposed(pod: PodReference, *ids: int) -> Tenancy:
    return Tenancy().supposing(pod, neuron(*ids), 1.0)


def confirmed(tenancy: Tenancy, name: str, *ids: int) -> Tenancy:
    return tenancy.confirming(Holder(ref(name), (neuron(*ids),)), STAND_IN, 2.0)


def who(tenancy: Tenancy) -> dict[str, int]:
    return {holder.pod.name: holder.mask for holder in tenancy.ledger}


def test_p83_nothing_is_remembered_of_a_stand_in_once_it_is_known_whose_its_ids_are() -> None:
    tenancy = confirmed(supposed(nameless_stand_in(0), 3), "a", 3)
    assert who(tenancy) == {"a": devices(3)}
    assert not tenancy.since


def test_p83_nothing_is_remembered_of_a_pod_that_is_gone() -> None:
    tenancy = confirmed(supposed(ref("a"), 3), "a", 3).without(ref("a").uid, (), STAND_IN, 3.0)
    assert tenancy == Tenancy()


def test_what_a_pod_turns_out_not_to_hold_is_kept_from_that_moment_on_and_not_counted_as_the_pods() -> None:
    tenancy = confirmed(supposed(ref("a"), 3), "a", 5)
    assert who(tenancy) == {"a": devices(5), "": devices(3)}
    assert tenancy.since == {STAND_IN.uid: 2.0, ref("a").uid: 1.0}
    assert tenancy.confirmed == {ref("a").uid}


def test_what_a_pod_was_confirmed_to_hold_is_not_kept_for_another_when_it_is_confirmed_anew() -> None:
    assert who(confirmed(confirmed(Tenancy(), "a", 3), "a", 5)) == {"a": devices(5)}


def test_a_stand_in_that_the_kubelet_names_is_not_confirmed_because_its_uid_is_not_known() -> None:
    truth = Holder(named_stand_in("default", "a"), (neuron(3),))
    assert not Tenancy().confirming(truth, STAND_IN, 2.0).confirmed


def test_an_annotation_counts_only_where_nobody_is_supposed_to_hold_the_same() -> None:
    told = Holder(ref("b"), (neuron(3, 4),))
    assert who(Tenancy().believing(told)) == {"b": devices(3, 4)}
    for other in (ref("a"), nameless_stand_in(0), named_stand_in("default", "other")):
        assert supposed(other, 4).believing(told) == supposed(other, 4)
    assert who(supposed(named_stand_in("default", "b"), 4).believing(told)) == {"b": devices(3, 4)}


def test_the_same_cores_under_another_name_count_as_the_same() -> None:
    tenancy = Tenancy().supposing(nameless_stand_in(0), Holding("", CORE, TRN1.cores_mask((6,))), 1.0)
    assert who(confirmed(tenancy, "a", 3)) == {"a": devices(3)}


def test_what_the_kubelet_drew_for_a_stand_in_and_gives_away_again_is_its_no_more_whatever_was_given_for_it() -> None:
    of_old = Holding("", NEURON, devices(0, 1), drawn=devices(0, 2))
    tenancy = Tenancy().supposing(nameless_stand_in(0), of_old, 1.0)
    assert who(tenancy.supposing(ref("a"), neuron(2, 3), 2.0)) == {"a": devices(2, 3)}


def test_a_doubted_pod_gives_way_to_what_another_is_confirmed_to_hold() -> None:
    tenancy = confirmed(Tenancy(), "a", 3)
    assert who(confirmed(tenancy, "b", 3)) == {"a": devices(3), "b": devices(3)}
    assert who(confirmed(tenancy.doubting(ref("a").uid), "b", 3)) == {"b": devices(3)}
