"""What is tallied is what a walk over all pods finds, after every change and in thought."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.allocation.node_rules import PlacedPod, PodSelector, PodTerm, Requirement, pod_labels
from neuron_plugin.planning.population import Altered, AnyPopulation, Population

NAMESPACES: Mapping[str, Mapping[str, str]] = {"a": {"team": "x"}, "b": {"team": "y"}, "c": {}}
WEB = Requirement("app", "In", ("web",))
SELECTORS = (
    PodSelector(("a",), (WEB,)),
    PodSelector((), (WEB,), (Requirement("team", "In", ("x", "y")),)),
    PodSelector(("a", "b", "c"), ()),
    PodSelector(("a",), None),
)
PODS = st.builds(
    PlacedPod,
    node=st.sampled_from(["n1", "n2"]),
    labels=st.builds(pod_labels, st.sampled_from(sorted(NAMESPACES)), st.sampled_from([{"app": "web"}, {}])),
    bound=st.booleans(),
    terminating=st.booleans(),
    anti_affinity=st.sampled_from([(), (PodTerm(SELECTORS[0], "zone"),)]),
    claims=st.sampled_from([(), ("data",)]),
)
CHANGES = st.lists(st.tuples(st.sampled_from("pqr"), st.none() | PODS, st.sampled_from(SELECTORS)), max_size=12)


def expected(pods: Mapping[str, PlacedPod], selector: PodSelector) -> dict[str, tuple[int, int, int, int]]:
    found: dict[str, list[int]] = {}
    for pod in pods.values():
        if selector.matches(pod.labels, NAMESPACES):
            lasts = not pod.terminating
            counts = (1, pod.bound, lasts, pod.bound and lasts)
            before = found.get(pod.node, [0, 0, 0, 0])
            found[pod.node] = [known + more for known, more in zip(before, counts, strict=True)]
    return {node: (counts[0], counts[1], counts[2], counts[3]) for node, counts in found.items()}


def assert_alike(population: AnyPopulation, pods: Mapping[str, PlacedPod]) -> None:
    for selector in SELECTORS:
        tally = {node: tuple(counts) for node, counts in population.tally((selector,)).items() if counts.placed}
        assert tally == expected(pods, selector)
    meant = pod_labels("a", {"app": "web"})
    holders = Counter(pod.node for pod in pods.values() if pod.anti_affinity)
    assert sum((Counter(by_node) for _, by_node in population.keeping_off(meant)), Counter()) == holders
    assert population.keeps_any_off() or not any(pod.anti_affinity for pod in pods.values())
    for node in ("n1", "n2"):
        claimants = [pod for pod in pods.values() if pod.node == node and pod.claims]
        assert Counter(population.claimants(node)) == Counter(claimants)
    for namespace in NAMESPACES:
        uses = any(pod.claims and pod.labels.namespace == namespace for pod in pods.values())
        assert population.uses_claim(namespace, "data") is uses


@given(changes=CHANGES)
def test_what_was_asked_once_is_kept_up_to_date(changes: list[tuple[str, PlacedPod | None, PodSelector]]) -> None:
    population, pods = Population(NAMESPACES), dict[str, PlacedPod]()
    for uid, pod, selector in changes:
        before = {node: tuple(counts) for node, counts in population.tally((selector,)).items()}
        matters = population.put(uid, pod)
        if pod:
            pods[uid] = pod
        else:
            pods.pop(uid, None)
        after = {node: tuple(counts) for node, counts in population.tally((selector,)).items()}
        assert matters or before == after, "who waits for such pods is looked at again"
    assert_alike(population, pods)
    assert_alike(population.copy(), pods)


@given(
    start=st.dictionaries(st.sampled_from("pqrs"), PODS), gone=st.sets(st.sampled_from("pqrs")), come=PODS, later=PODS
)
def test_a_population_in_thought_is_one_with_these_changes(
    start: dict[str, PlacedPod], gone: set[str], come: PlacedPod, later: PlacedPod
) -> None:
    population = Population(NAMESPACES)
    for uid, pod in start.items():
        population.put(uid, pod)
    left = {uid: pod for uid, pod in start.items() if uid not in gone} | {"new": come}
    altered = Altered(population, gone, [come])
    assert_alike(altered, left)
    altered.change(later, 1)
    assert_alike(altered, left | {"later": later})
    altered.change(later, -1)
    assert_alike(altered, left)
    assert_alike(population, start)


def test_labels_that_are_alike_are_one_object() -> None:
    assert pod_labels("ns", {"a": "1", "b": "2"}) is pod_labels("ns", {"b": "2", "a": "1"})
