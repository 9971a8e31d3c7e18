"""The ledger against sets of core numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.allocation import Allocation, Ledger, PodReference, PodUid, Resource
from neuron_plugin.allocation.pod import mask_union
from neuron_plugin.topology import CoreMask
from tests.topology.oracle import INF1, as_cores

uids = st.sampled_from([PodUid(f"uid-{number}") for number in range(5)])
masks = st.integers(0, INF1.all_mask).map(CoreMask)
allocations = st.builds(
    Allocation,
    st.builds(PodReference, uids, st.just("default"), st.just("web-0")),
    st.sampled_from(["init", "main", "side"]),
    st.sampled_from(Resource),
    masks,
    masks,
)
ledgers = st.lists(allocations, max_size=8).map(lambda listed: Ledger(tuple(listed)))


@given(ledgers)
def test_what_is_used_is_the_union_and_never_the_sum(ledger: Ledger) -> None:
    used = set().union(*(as_cores(one.mask) for one in ledger.allocations))
    assert as_cores(ledger.used_mask) == used
    assert as_cores(mask_union(ledger.allocations)) == used


@given(ledgers, uids)
def test_p50_a_pod_has_what_its_containers_have(ledger: Ledger, uid: PodUid) -> None:
    own = [one for one in ledger.allocations if one.pod.uid == uid]
    assert list(ledger.of(uid)) == own
    assert as_cores(ledger.mask_of(uid)) == set().union(*(as_cores(one.mask) for one in own))


@given(ledgers)
def test_every_allocation_is_its_pods_and_no_other(ledger: Ledger) -> None:
    assert sorted(map(repr, ledger.allocations)) == sorted(repr(one) for each in ledger.by_pod.values() for one in each)


@given(ledgers, st.sampled_from(Resource), masks)
def test_use_by_name_and_by_core(ledger: Ledger, resource: Resource, mask: CoreMask) -> None:
    named = [one for one in ledger.allocations if one.resource is resource]
    assert as_cores(ledger.used_as(resource)) == set().union(*(as_cores(one.mask) for one in named))
    assert set(ledger.overlapping(mask)) == {one for one in ledger.allocations if as_cores(one.mask) & as_cores(mask)}


def test_an_empty_ledger_uses_nothing() -> None:
    assert Ledger().used_mask == 0
    assert Ledger().of(PodUid("any")) == ()


def test_the_kubelets_cores_are_those_it_drew_or_else_those_given() -> None:
    pod = PodReference(PodUid("1"), "default", "a")
    assert Allocation(pod, "main", Resource.NEURON, CoreMask(3)).kubelet_mask == 3
    assert Allocation(pod, "main", Resource.NEURON, CoreMask(3), CoreMask(12)).kubelet_mask == 12
