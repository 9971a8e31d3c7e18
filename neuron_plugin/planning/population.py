"""The placed pods by their labels: pod affinity, topology spread and shared volumes are judged by them.

A pod counts as soon as its place is chosen, as in kube-scheduler's cache. Where a rule *needs* another pod, such as a
required affinity, only bound pods count: a promise may never be kept, and kube-scheduler takes promises up in any
order.

The pods that a rule means are tallied once, and each pod that comes or goes updates the tally. So no decision walks
over all pods.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from neuron_plugin.allocation import NeuronPod, PlacementStrategy, PodRequest, Rejection
from neuron_plugin.allocation.group import GroupName
from neuron_plugin.allocation.node_rules import PlacedPod, PodLabels, PodRules, PodSelector, PodTerm
from neuron_plugin.allocation.pod import NO_RULES

MOST_TALLIES = 256
"""Tallies remembered; the least recently used one makes room for a new one."""

MOST_LABELS_GONE = 1_000
"""Labels of deleted pods for which the matching tallies are still remembered."""
_NO_NAMESPACES: Mapping[str, Mapping[str, str]] = MappingProxyType({})


class PodKind(NamedTuple):
    """What pods of one kind have in common. Pods of a group have only the group: even priorities may differ.

    ``seen_as`` is the pod as other pods' rules, and its own, see it: its namespace, and the labels that some rule looks
    at. It is empty if no rule does.
    """

    priority: int
    request: PodRequest | Rejection
    strategy: PlacementStrategy | Rejection | None
    rules: PodRules
    group: GroupName | None
    seen_as: tuple[str, ...] = ()

    @classmethod
    def of(cls, pod: NeuronPod, anti_keys: Collection[str] = ()) -> PodKind:
        """The kind of a pod; the anti-affinity of placed pods looks at the labels ``anti_keys``.

        A pod that asks for nothing gets no part of its group's devices.
        """
        if pod.group and pod.request:
            return cls(0, (), None, NO_RULES, pod.group)
        return likeness(pod, anti_keys)


def likeness(pod: NeuronPod, anti_keys: Collection[str] = ()) -> PodKind:
    """The kind of a pod by itself, without its group."""
    rules, seen_as = pod.rules, tuple[str, ...]()
    if anti_keys or rules.claims or rules.spread or rules.selectors:
        own = {requirement.key for selector in rules.selectors for requirement in selector.labels or ()}
        own |= {requirement.key for spread in rules.spread for requirement in spread.labels or ()}
        labels = pod.labels.labels
        known = sorted(key for key in own.union(anti_keys) if key in labels)
        seen_as = (pod.reference.namespace, *(f"{key}={labels[key]}" for key in known))
    return PodKind(pod.priority, pod.request, pod.strategy, rules, None, seen_as)


class Counts(NamedTuple):
    """Pods of one node that a rule means. ``lasting`` are not being deleted, as topology spread counts them."""

    placed: int = 0
    bound: int = 0
    lasting: int = 0
    lasting_bound: int = 0

    def plus(self, pod: PlacedPod, change: int) -> Counts:
        """With one pod more or less."""
        lasts = not pod.terminating
        return Counts(
            self.placed + change,
            self.bound + change * pod.bound,
            self.lasting + change * lasts,
            self.lasting_bound + change * (pod.bound and lasts),
        )


NO_COUNTS = Counts()
NodeCounts = Mapping[str, Counts]
"""Counts by node, for nodes with any such pod."""
Selectors = tuple[PodSelector, ...]
"""A pod is meant if all of them match it."""


class _Tallied:
    """The pods that some selectors mean."""

    def __init__(self, selectors: Selectors, namespaces: Mapping[str, Mapping[str, str]]) -> None:
        self._selectors = selectors
        self._namespaces = namespaces
        self.by_node: dict[str, Counts] = {}

    def means(self, labels: PodLabels) -> bool:
        return all(selector.matches(labels, self._namespaces) for selector in self._selectors)

    def add(self, pod: PlacedPod, change: int) -> None:
        """Count a pod that is meant, or one less."""
        counts = self.by_node.pop(pod.node, NO_COUNTS).plus(pod, change)
        if counts.placed:
            self.by_node[pod.node] = counts


class Population:
    """The placed pods of a cluster. ``namespaces`` has each namespace's labels; it is followed, not copied.

    ``version`` differs after each change. The anti-affinity of placed pods looks at the pod labels ``anti_keys`` only:
    pods that share these labels are equal to it.
    """

    def __init__(self, namespaces: Mapping[str, Mapping[str, str]] = _NO_NAMESPACES) -> None:
        self.namespaces = namespaces
        self.version = 0
        self._pods: dict[str, PlacedPod] = {}
        self._tallies: dict[Selectors, _Tallied] = {}
        self._meant_by: dict[PodLabels, tuple[_Tallied, ...]] = {}
        """By labels, the tallies that mean such pods."""
        self._forgot = False
        """Whether some tally made room for others."""
        self._keeping_off: defaultdict[PodTerm, Counter[str]] = defaultdict(Counter)
        self._anti_keys = Counter[str]()
        self._claimants: defaultdict[str, dict[str, PlacedPod]] = defaultdict(dict)
        self._claims = Counter[tuple[str, str]]()

    def copy(self) -> Population:
        """The same pods as of now, for another thread, which makes its own tallies."""
        made = Population(dict(self.namespaces))
        made._pods = dict(self._pods)
        made._keeping_off.update((term, holders.copy()) for term, holders in self._keeping_off.items())
        made._anti_keys.update(self._anti_keys)
        made._claimants.update((node, dict(pods)) for node, pods in self._claimants.items() if pods)
        made._claims.update(self._claims)
        return made

    def get(self, uid: str) -> PlacedPod | None:
        """A pod, if it is placed."""
        return self._pods.get(uid)

    def put(self, uid: str, pod: PlacedPod | None) -> bool:
        """A pod is placed, or has changed; None if it is not placed any more. Gives whether that may matter to others.

        It does not if no earlier query means the pod.
        """
        before, matters = self._pods.get(uid), False
        if before == pod:
            return False
        if before:
            del self._pods[uid]
            matters = self._count(uid, before, -1)
        if pod:
            self._pods[uid] = pod
            matters |= self._count(uid, pod, 1)
        self.version += 1
        return matters or self._forgot

    def namespaces_changed(self) -> None:
        """The labels of a namespace have changed: all is tallied again when it is asked for."""
        self._tallies.clear()
        self._meant_by.clear()
        self.version += 1

    def tally(self, selectors: Selectors) -> NodeCounts:
        """The pods that all of these selectors mean, by node."""
        tallied = self._tallies.pop(selectors, None)
        if tallied is None:
            tallied, known = _Tallied(selectors, self.namespaces), dict[PodLabels, bool]()
            for pod in self._pods.values():
                if pod.labels not in known:
                    known[pod.labels] = tallied.means(pod.labels)
                if known[pod.labels]:
                    tallied.add(pod, 1)
            self._meant_by.clear()
        self._tallies[selectors] = tallied
        if len(self._tallies) > MOST_TALLIES:
            del self._tallies[next(iter(self._tallies))]
            self._forgot = True
        return tallied.by_node

    def keeping_off(self, labels: PodLabels) -> Iterator[tuple[PodTerm, Counter[str]]]:
        """Each anti-affinity of placed pods that means a pod of these labels, and how many have it by node."""
        return _matching(self._keeping_off, labels, self.namespaces)

    @property
    def anti_affinities(self) -> Mapping[PodTerm, Counter[str]]:
        """All anti-affinities of placed pods, and how many pods have each by node."""
        return self._keeping_off

    def keeps_any_off(self) -> bool:
        """Whether any placed pod has a required anti-affinity."""
        return bool(self._keeping_off)

    @property
    def anti_keys(self) -> Collection[str]:
        """See the class."""
        return self._anti_keys.keys()

    def claimants(self, node: str) -> Iterable[PlacedPod]:
        """The pods on a node that have PersistentVolumeClaims."""
        return self._claimants.get(node, {}).values()

    def uses_claim(self, namespace: str, claim: str) -> bool:
        """Whether a placed pod uses a PersistentVolumeClaim."""
        return self.users_of(namespace, claim) > 0

    def users_of(self, namespace: str, claim: str) -> int:
        """How many placed pods use a PersistentVolumeClaim."""
        return self._claims[namespace, claim]

    def _count(self, uid: str, pod: PlacedPod, change: int) -> bool:
        meant_by = self._meant_by.get(pod.labels) if self._tallies else ()
        if meant_by is None:
            if len(self._meant_by) > len(self._pods) + MOST_LABELS_GONE:
                self._meant_by.clear()
            meant_by = tuple([tallied for tallied in self._tallies.values() if tallied.means(pod.labels)])
            self._meant_by[pod.labels] = meant_by
        for tallied in meant_by:
            tallied.add(pod, change)
        matters = bool(meant_by or pod.anti_affinity or pod.claims)
        for term in pod.anti_affinity:
            holders = self._keeping_off[term]
            holders[pod.node] += change
            if not holders[pod.node]:
                del holders[pod.node]
            if not holders:
                del self._keeping_off[term]
            for requirement in term.selector.labels or ():
                self._anti_keys[requirement.key] += change
                if not self._anti_keys[requirement.key]:
                    del self._anti_keys[requirement.key]
        if pod.claims:
            if change > 0:
                self._claimants[pod.node][uid] = pod
            else:
                del self._claimants[pod.node][uid]
            for claim in pod.claims:
                self._claims[pod.labels.namespace, claim] += change
        return matters


class Altered:
    """A hypothetical population: some pods have gone from their nodes, and others have come.

    Tallies are updated with each further pod, as in the population itself: a group is placed pod by pod.
    """

    def __init__(self, population: Population, gone: Iterable[str], come: Iterable[PlacedPod]) -> None:
        self.namespaces = population.namespaces
        self._population = population
        self._tallies: dict[Selectors, _Tallied] = {}
        self._keeping_off = dict(population.anti_affinities)
        self._own_terms = set[PodTerm]()
        """Terms whose holders differ from the population's."""
        self._changes: list[tuple[PlacedPod, int]] = []
        for pod in filter(None, map(population.get, dict.fromkeys(gone))):
            self.change(pod, -1)
        for pod in come:
            self.change(pod, 1)

    def change(self, pod: PlacedPod, change: int) -> None:
        """A pod has come (1), or gone (-1)."""
        self._changes.append((pod, change))
        for tallied in self._tallies.values():
            if tallied.means(pod.labels):
                tallied.add(pod, change)
        for term in pod.anti_affinity:
            if term not in self._own_terms:
                self._own_terms.add(term)
                self._keeping_off[term] = Counter(self._keeping_off.get(term))
            holders = self._keeping_off[term]
            holders[pod.node] += change
            if not holders[pod.node]:
                del holders[pod.node]

    def tally(self, selectors: Selectors) -> NodeCounts:
        """As ``Population.tally``."""
        if (tallied := self._tallies.get(selectors)) is None:
            tallied = self._tallies[selectors] = _Tallied(selectors, self.namespaces)
            tallied.by_node = dict(self._population.tally(selectors))
            for pod, change in self._changes:
                if tallied.means(pod.labels):
                    tallied.add(pod, change)
        return tallied.by_node

    def keeping_off(self, labels: PodLabels) -> Iterator[tuple[PodTerm, Counter[str]]]:
        """As ``Population.keeping_off``."""
        return _matching(self._keeping_off, labels, self.namespaces)

    def keeps_any_off(self) -> bool:
        """As ``Population.keeps_any_off``; also where only pods that have gone do."""
        return bool(self._keeping_off)

    @property
    def anti_keys(self) -> set[str]:
        """As ``Population.anti_keys``; also where only pods that have gone have them."""
        return {requirement.key for term in self._keeping_off for requirement in term.selector.labels or ()}

    def claimants(self, node: str) -> list[PlacedPod]:
        """As ``Population.claimants``."""
        left = list(self._population.claimants(node))
        for pod, change in self._changes:
            if pod.node == node and pod.claims:
                left.append(pod) if change > 0 else left.remove(pod)
        return left

    def uses_claim(self, namespace: str, claim: str) -> bool:
        """As ``Population.uses_claim``."""
        uses = [change for pod, change in self._changes if claim in pod.claims and pod.labels.namespace == namespace]
        return self._population.users_of(namespace, claim) + sum(uses) > 0


def _matching(
    anti_affinities: Mapping[PodTerm, Counter[str]], labels: PodLabels, namespaces: Mapping[str, Mapping[str, str]]
) -> Iterator[tuple[PodTerm, Counter[str]]]:
    return ((term, by_node) for term, by_node in anti_affinities.items() if term.selector.matches(labels, namespaces))


AnyPopulation = Population | Altered
