"""Pods that ask by claims are pods like any other once they are joined with their claims."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from neuron_plugin.allocation import Assignment, Constraints, NeuronPod, PodReference, PodUid, Rejection, Resource
from neuron_plugin.allocation.claims import ClaimRequest, ClaimResult, NeuronClaim, PodClaim
from neuron_plugin.allocation.keys import GATE
from neuron_plugin.allocation.node_rules import PodRules
from neuron_plugin.allocation.rejection import INVALID_REQUEST
from neuron_plugin.cluster.pods import PodUse
from neuron_plugin.placement.claims import ClaimedPods, Shown, with_claims
from neuron_plugin.topology import Unit, catalogue

DRIVER = "neuron.aws.com"
KEY = ("ml", "c")
TRN1, INF2 = (catalogue()[name].geometry for name in ("trn1.32xlarge", "inf2.48xlarge"))


def pod(name: str = "p", *, gated: bool = True, node: str = "", **fields: Any) -> NeuronPod:
    gates = (GATE,) if gated else ()
    rules = PodRules(gates=gates, resource_claims=True)
    claims = (PodClaim("dev", "c", (("main", ""),)),)
    return NeuronPod(PodReference(PodUid(name), "ml", name), (), node=node, rules=rules, claims=claims, **fields)


def claim(count: int = 4, unit: Unit = Unit.DEVICE, **fields: Any) -> NeuronClaim:
    return NeuronClaim("u", "ml", "c", requests=(ClaimRequest("r", unit, count),), **fields)


def allocated(*names: str, node: str = "a", unit: Unit = Unit.DEVICE, **fields: Any) -> NeuronClaim:
    results = tuple(ClaimResult("r", f"{node}-neuron", name) for name in names)
    return claim(len(names), unit, allocated=True, results=results, node=node, **fields)


def joined(one: NeuronPod, known: NeuronClaim) -> NeuronPod:
    found = with_claims(one, {KEY: known}, DRIVER, [TRN1])
    assert found is not None
    return found


def test_a_pod_asks_for_what_its_claim_asks_for() -> None:
    found = joined(pod(), claim(4))
    (part,) = found.requests
    assert (part.name, part.resource, part.count) == ("dev/r", Resource.NEURON, 4)
    assert found.rules.claim_driver == DRIVER
    assert not found.rules.resource_claims
    assert (found.assignment, found.promised) == (None, "")


def test_a_pod_with_a_claim_loses_what_it_did_since_the_claim_was_allocated() -> None:
    running = pod(gated=False, node="a")
    assert joined(running, allocated("neuron-1", allocated_at=900.0)).work_since == 900


def test_all_devices_are_as_many_as_the_largest_node_has() -> None:
    assert joined(pod(), claim(0)).requests[0].count == 16


def test_an_allocated_claim_is_the_pods_assignment_and_its_place() -> None:
    found = joined(pod(), allocated("neuron-4", "neuron-5"))
    assert isinstance(found.assignment, Assignment)
    assert found.assignment.containers[0].ids == (4, 5)
    assert found.promised == "a"


def test_cores_of_a_claim_are_those_that_its_devices_name() -> None:
    found = joined(pod(), allocated("neuron-3-cores-6-7", unit=Unit.CORE))
    assert isinstance(found.assignment, Assignment)
    assert (found.requests[0].resource, found.assignment.containers[0].ids) == (Resource.NEURONCORE, (6, 7))


def test_a_bound_pod_is_promised_nothing_and_is_confirmed() -> None:
    found = joined(pod(gated=False, node="a"), allocated("neuron-4"))
    assert isinstance(found.assignment, Assignment)
    assert (found.promised, found.assignment.allocated) == ("", True)


def test_a_pod_that_is_gone_is_shown_no_more_when_its_claim_changes() -> None:
    shown = list[tuple[str, Shown]]()
    pods = ClaimedPods(DRIVER, lambda uid, _, now: shown.append((uid, now)))
    pods.put_claim(KEY, claim())
    pods.put_pod("p", None, pod())
    pods.put_pod("p", pod(), None)
    assert [now is None for _, now in shown] == [False, True]
    pods.put_claim(KEY, allocated("neuron-4"))
    assert len(shown) == 2


def test_a_pod_waits_for_a_claim_that_is_not_known() -> None:
    assert with_claims(pod(), {}, DRIVER, [TRN1]) is None


def test_a_claim_for_other_devices_leaves_the_pod_as_it_is() -> None:
    foreign = NeuronClaim("u", "ml", "c", others=True)
    assert joined(pod(), foreign) == pod()


def test_what_cannot_be_judged_is_the_pods_refusal_until_somebody_has_allocated_it() -> None:
    refused = replace(claim(), requests=replace(INVALID_REQUEST, detail="why"))
    assert str(joined(pod(), refused).refusal) == "why"
    mixed = replace(claim(), others=True)
    assert "another driver" in str(joined(pod(), mixed).refusal)
    assert joined(pod(), replace(mixed, allocated=True, node="a")).refusal is None


def test_a_pod_that_asks_by_count_and_by_claim_is_refused() -> None:
    both = replace(pod(), request=joined(pod(), claim()).request)
    assert "by count and by claim" in str(joined(both, claim()).refusal)


def test_what_a_devices_attributes_have_to_be_is_part_of_the_request() -> None:
    attributes = (("neuron.aws.com/topology4_id", 2),)
    found = joined(pod(), replace(claim(), requests=(ClaimRequest("r", Unit.DEVICE, 4, attributes),)))
    assert found.requests[0].attributes == attributes


def test_a_claim_with_a_logical_core_size_goes_to_products_that_have_one() -> None:
    constraints = joined(pod(), replace(claim(), logical_core_size=2)).requests[0].constraints
    assert isinstance(constraints, Constraints)
    assert constraints.products == {"trainium2", "trainium3"}


def test_a_logical_core_size_of_one_claim_holds_for_the_pod() -> None:
    two = replace(pod(), claims=(PodClaim("dev", "c"), PodClaim("other", "o")))
    claims = {KEY: claim(), ("ml", "o"): replace(claim(), name="o", logical_core_size=2)}
    found = with_claims(two, claims, DRIVER, [TRN1])
    assert found
    assert [isinstance(part.constraints, Constraints) for part in found.requests] == [True, True]


def test_what_kube_scheduler_has_allocated_counts_whether_it_can_be_judged_here_or_not() -> None:
    unjudged = replace(allocated("neuron-4", "neuron-5"), requests=replace(INVALID_REQUEST, detail="firstAvailable"))
    found = joined(pod(gated=False, node="a", movable=True), unjudged)
    assert isinstance(found.assignment, Assignment)
    assert [part.ids for part in found.assignment.containers] == [(4, 5)]
    assert found.movable is False
    assert joined(pod(gated=False, node="a", movable=True), allocated("neuron-4")).movable


def test_whole_devices_that_a_claim_for_cores_was_given_count_as_whole() -> None:
    """Where the class of cores selects published devices, kube-scheduler gives one for each core."""
    given = replace(allocated("neuron-4", "neuron-5"), requests=(ClaimRequest("r", Unit.CORE, 2),))
    found = joined(pod(gated=False, node="a"), given)
    assert isinstance(found.assignment, Assignment)
    (part,) = found.assignment.containers
    assert (part.request.resource, part.ids) == (Resource.NEURON, (4, 5))


class Seen:
    """What was shown of each pod, in order."""

    def __init__(self) -> None:
        self.last: dict[str, Shown] = {}
        self.pods = ClaimedPods(DRIVER, self._show)

    def _show(self, uid: str, before: Shown, after: Shown) -> None:
        assert self.last.get(uid) == before
        self.last[uid] = after

    def of(self, uid: str = "p") -> NeuronPod:
        found = self.last[uid]
        assert isinstance(found, NeuronPod)
        return found


def test_the_two_watches_may_come_in_either_order() -> None:
    seen = Seen()
    seen.pods.put_pod("p", None, pod())
    assert "ResourceClaim c, which does not exist" in str(seen.of().refusal)
    seen.pods.put_claim(KEY, claim())
    assert seen.of().requests
    other = Seen()
    other.pods.put_claim(KEY, claim())
    other.pods.put_pod("p", None, pod())
    assert other.last == seen.last


def test_only_a_gated_pod_is_shown_before_its_claim_is_known() -> None:
    seen = Seen()
    seen.pods.put_pod("p", None, pod(gated=False))
    assert seen.last == {}
    from_template = replace(pod("q"), claims=(PodClaim("dev", "", (("main", ""),)),))
    seen.pods.put_pod("q", None, from_template)
    assert "the ResourceClaim that its template for dev makes" in str(seen.of("q").refusal)


def test_a_gated_pod_whose_claim_goes_waits_for_it_as_one_that_never_had_it() -> None:
    seen = Seen()
    seen.pods.put_claim(KEY, claim(4))
    seen.pods.put_pod("p", None, pod())
    seen.pods.put_claim(KEY, None)
    assert "ResourceClaim c, which does not exist" in str(seen.of().refusal)


def test_an_allocation_that_appears_is_shown() -> None:
    seen = Seen()
    seen.pods.put_pod("p", None, pod())
    seen.pods.put_claim(KEY, claim())
    seen.pods.put_claim(KEY, allocated("neuron-4"))
    assert seen.of().promised == "a"


def test_a_bound_pod_whose_claim_is_not_known_closes_its_node_until_it_goes() -> None:
    seen = Seen()
    seen.pods.put_claim(KEY, allocated("neuron-4"))
    seen.pods.put_pod("p", None, pod(gated=False, node="a"))
    seen.pods.put_claim(KEY, None)
    assert isinstance(seen.of().assignment, Rejection)
    assert "its ResourceClaim c is not known" in str(seen.of().assignment)
    seen.pods.put_pod("p", pod(gated=False, node="a"), None)
    assert seen.last["p"] is None


def bound(name: str, **fields: Any) -> NeuronPod:
    return pod(name, gated=False, node="a", **fields)


def asks(seen: Seen) -> dict[str, int]:
    """How many devices each pod has that was shown."""
    return {
        uid: sum(part.count for part in shown.requests) if isinstance(shown, NeuronPod) else 0
        for uid, shown in seen.last.items()
        if shown is not None
    }


def test_the_devices_of_a_shared_claim_count_for_the_first_live_pod_that_it_is_reserved_for() -> None:
    seen = Seen()
    for name in ("a", "b", "c"):
        seen.pods.put_pod(name, None, bound(name))
    seen.pods.put_claim(KEY, allocated("neuron-4", reserved_for=(PodUid("gone"), PodUid("b"), PodUid("c"))))
    assert asks(seen) == {"a": 0, "b": 1, "c": 0}
    seen.pods.put_pod("b", bound("b"), None)
    assert asks(seen) == {"a": 0, "c": 1}
    seen.pods.put_pod("c", bound("c"), bound("c", phase="Failed"))
    assert asks(seen)["a"] == 1


def test_a_shared_claim_that_is_reserved_for_no_pod_yet_counts_for_a_bound_one_or_else_the_oldest() -> None:
    seen = Seen()
    seen.pods.put_claim(KEY, allocated("neuron-4"))
    for name, created in (("young", 2.0), ("old", 1.0)):
        seen.pods.put_pod(name, None, pod(name, created=created))
    assert asks(seen) == {"young": 0, "old": 1}
    assert [seen.of(name).promised for name in ("young", "old")] == ["a", "a"]
    seen.pods.put_pod("young", pod("young", created=2.0), bound("young", created=2.0))
    assert asks(seen) == {"young": 1, "old": 0}


def test_each_pod_of_a_shared_claim_asks_for_it_until_it_is_allocated() -> None:
    seen = Seen()
    seen.pods.put_claim(KEY, claim(4))
    for name in ("p", "q"):
        seen.pods.put_pod(name, None, pod(name))
    assert asks(seen) == {"p": 4, "q": 4}


def test_a_pod_with_claims_of_others_takes_only_cpu_of_its_node_and_is_released_if_it_is_gated() -> None:
    foreign = NeuronClaim("u", "ml", "c", others=True)
    seen = Seen()
    seen.pods.put_claim(KEY, foreign)
    seen.pods.put_pod("p", None, pod(gated=False, node="a"))
    assert isinstance(seen.last["p"], PodUse)
    seen.pods.put_pod("q", None, pod("q"))
    assert seen.of("q").request == ()


def test_pods_without_claims_pass_through() -> None:
    seen, plain = Seen(), replace(pod(), claims=())
    seen.pods.put_pod("p", None, plain)
    assert seen.of() == plain
    seen.pods.put_pod("p", plain, None)
    assert seen.last["p"] is None


def test_a_larger_machine_changes_what_all_devices_are() -> None:
    seen = Seen()
    seen.pods.put_claim(KEY, claim(0))
    seen.pods.put_pod("p", None, pod())
    for machines, most in (([INF2], 12), ([INF2, TRN1], 16)):
        seen.pods.see_machines(frozenset(machines))
        assert seen.of().requests[0].count == most


@pytest.mark.parametrize(
    ("attribute", "count"),
    [
        (("neuron.aws.com/instanceType", "inf2.48xlarge"), 12),
        (("neuron.aws.com/topology4_id", 3), 4),
        (("neuron.aws.com/instanceType", "trn2.48xlarge"), 16),
    ],
    ids=str,
)
def test_all_devices_are_all_that_have_what_a_selector_wants(attribute: tuple[str, str | int], count: int) -> None:
    asked = replace(claim(), requests=(ClaimRequest("r", Unit.DEVICE, 0, (attribute,)),))
    found = with_claims(pod(), {KEY: asked}, DRIVER, [TRN1, INF2])
    assert found
    assert found.requests[0].count == count


def test_a_pod_goes_where_the_claim_is_that_it_shares() -> None:
    pods = replace(pod(), claims=(PodClaim("dev", "c"), PodClaim("own", "own")))
    claims = {KEY: allocated("neuron-4", node="a"), ("ml", "own"): replace(claim(), name="own")}
    found = with_claims(pods, claims, DRIVER, [TRN1], [KEY])
    assert found
    assert [part.name for part in found.requests] == ["own/r"]
    (term,) = found.rules.terms or ()
    assert term.matches("a", {})
    assert not term.matches("b", {})
