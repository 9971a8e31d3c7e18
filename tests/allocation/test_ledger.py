"""The ledger is what the live pods hold, against an account kept in plain dictionaries."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from neuron_plugin.allocation.ledger import Holder, HolderLedger, Holding, PodReference, PodUid
from neuron_plugin.allocation.resources import Resource
from neuron_plugin.topology import NO_CORES, CoreMask
from tests.topology.oracle import INF1, TRN1, as_cores, as_mask

uids = st.sampled_from([PodUid(f"uid-{number}") for number in range(5)])
containers = st.sampled_from(["init", "main", "side"])
masks = st.integers(0, INF1.all_mask).map(CoreMask)
resources = st.sampled_from(Resource)


def pod(uid: str, name: str = "web-0") -> PodReference:
    return PodReference(PodUid(uid), "default", name)


class LedgerAgainstDictionaries(RuleBasedStateMachine):
    """Pods hold, change and end in any order; the account is uid → (container, resource) → cores."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = HolderLedger()
        self.account: dict[str, dict[tuple[str, Resource], frozenset[int]]] = {}
        self.earlier: list[tuple[HolderLedger, Mapping[PodUid, Holder]]] = []

    @initialize()
    def nobody_holds_anything(self) -> None:
        assert self.ledger.used_mask == NO_CORES

    def remember(self) -> None:
        self.earlier.append((self.ledger, dict(self.ledger.holders)))

    @rule(uid=uids, container=containers, resource=resources, mask=masks)
    def a_container_takes(self, uid: PodUid, container: str, resource: Resource, mask: CoreMask) -> None:
        self.remember()
        self.ledger = self.ledger.with_holding(pod(uid), Holding(container, resource, mask))
        self.account.setdefault(uid, {})[container, resource] = as_cores(mask)

    @rule(uid=uids, container=containers, resource=resources, mask=masks)
    def p50_the_same_again_is_counted_once(
        self, uid: PodUid, container: str, resource: Resource, mask: CoreMask
    ) -> None:
        self.a_container_takes(uid, container, resource, mask)
        again = self.ledger.with_holding(pod(uid), Holding(container, resource, mask))
        assert again == self.ledger

    @rule(uid=uids, held=st.dictionaries(st.tuples(containers, resources), masks, max_size=3))
    def a_pod_is_known_anew(self, uid: PodUid, held: dict[tuple[str, Resource], CoreMask]) -> None:
        self.remember()
        holdings = tuple(Holding(container, resource, mask) for (container, resource), mask in held.items())
        self.ledger = self.ledger.with_holder(Holder(pod(uid), holdings))
        self.account[uid] = {place: as_cores(mask) for place, mask in held.items()}

    @rule(uid=uids)
    def a_pod_ends(self, uid: PodUid) -> None:
        self.remember()
        self.ledger = self.ledger.without(uid)
        self.account.pop(uid, None)

    @invariant()
    def every_question_has_the_accounts_answer(self) -> None:
        held = {uid: frozenset[int]().union(*places.values()) for uid, places in self.account.items()}
        assert as_cores(self.ledger.used_mask) == frozenset[int]().union(*held.values())
        for number in range(5):
            holder = self.ledger.holders.get(PodUid(f"uid-{number}"))
            assert as_cores(holder.mask if holder else 0) == held.get(PodUid(f"uid-{number}"), frozenset())
        for resource in Resource:
            under = [
                cores for places in self.account.values() for place, cores in places.items() if place[1] is resource
            ]
            assert as_cores(self.ledger.held_as(resource)) == frozenset[int]().union(*under)
        for core in range(INF1.core_count):
            holders = {holder.pod.uid for holder in self.ledger.holders_of(1 << core)}
            assert holders == {uid for uid, cores in held.items() if core in cores}
        assert {holder.pod.uid for holder in self.ledger} == set(self.account)

    @invariant()
    def no_earlier_ledger_has_changed(self) -> None:
        assert all(dict(ledger.holders) == holders for ledger, holders in self.earlier)


TestLedgerAgainstDictionaries = LedgerAgainstDictionaries.TestCase
TestLedgerAgainstDictionaries.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


def test_t31_the_end_of_a_pods_namesake_frees_nothing_of_it() -> None:
    old, new = (Holder(pod(uid), (Holding("main", Resource.NEURON, mask),)) for uid, mask in _OLD_AND_NEW)
    ledger = HolderLedger().with_holder(old).with_holder(new).without(old.pod.uid)
    assert list(ledger) == [new]
    assert ledger.without(old.pod.uid) == ledger


_OLD_AND_NEW = (("old", TRN1.device_mask(0)), ("new", TRN1.device_mask(1)))


def test_an_init_and_an_app_container_may_share_silicon() -> None:
    row = TRN1.devices_mask(range(4))
    ledger = (
        HolderLedger()
        .with_holding(pod("a"), Holding("init", Resource.NEURONDEVICE, row))
        .with_holding(pod("a"), Holding("main", Resource.NEURONDEVICE, TRN1.device_mask(2)))
    )
    assert ledger.holders[PodUid("a")].mask == row
    assert len(ledger.holders[PodUid("a")].holdings) == 2


def test_a_container_under_two_names_has_two_holdings() -> None:
    ledger = HolderLedger()
    for resource in (Resource.NEURONCORE, Resource.NEURON):
        ledger = ledger.with_holding(pod("a"), Holding("main", resource, TRN1.device_mask(2)))
    assert ledger.held_as(Resource.NEURON) == ledger.held_as(Resource.NEURONCORE) == TRN1.device_mask(2)
    assert ledger.held_as(Resource.NEURONDEVICE) == NO_CORES


def test_what_was_given_is_found_by_what_the_kubelet_drew_for_it() -> None:
    row, drawn, part = TRN1.devices_mask(range(4)), TRN1.devices_mask((0, 3)), TRN1.devices_mask((1, 2))
    ledger = (
        HolderLedger()
        .with_holding(pod("a"), Holding("init", Resource.NEURON, row))
        .with_holding(pod("a"), Holding("main", Resource.NEURON, part, drawn))
    )
    assert ledger.given_for(Resource.NEURON, drawn) == part
    assert ledger.given_for(Resource.NEURON, row) == row
    assert ledger.given_for(Resource.NEURON, part) == ledger.given_for(Resource.NEURONCORE, drawn) == NO_CORES


def test_t25_a_holder_keeps_cores_that_the_node_has_lost() -> None:
    lost = CoreMask(as_mask(frozenset({500})))
    ledger = HolderLedger().with_holding(pod("a"), Holding("main", Resource.NEURONCORE, lost))
    assert ledger.used_mask == lost
    assert not TRN1.all_mask & ~ledger.used_mask & lost


def test_nobody_holds_no_cores() -> None:
    ledger = HolderLedger().with_holding(pod("a"), Holding("main", Resource.NEURONCORE, CoreMask(1)))
    assert ledger.holders_of(NO_CORES) == ()


def test_a_pod_is_named_by_namespace_and_name() -> None:
    assert str(PodReference(PodUid("u"), "team", "web-0")) == "team/web-0"
