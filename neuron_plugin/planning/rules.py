"""kube-scheduler's own rules for a pod on a node, besides Neuron: filters and preferences.

Pure functions of the pods' and nodes' specs, and of the pods' places. They follow kube-scheduler 1.36
(pkg/scheduler/framework/plugins) and are tested against the verdicts of a real one on thousands of pods
(``tests/planning/verdicts``). A reason is a predicate of the node, such as ``is cordoned``: it is counted over nodes.

A placement by gates pins a pod to its node by node affinity. Topology spread then looks at that node only, so
kube-scheduler no longer enforces a hard spread. It is judged and enforced here, as the pod was written.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import log
from typing import NamedTuple

from neuron_plugin.allocation import NodeInfo
from neuron_plugin.allocation.node_rules import (
    ANY_ADDRESS,
    NodeRules,
    NodeSelectorTerm,
    NodeUse,
    PodLabels,
    PodRules,
    PodSelector,
    PodTerm,
    Spread,
    Taint,
)
from neuron_plugin.planning.population import NO_COUNTS, AnyPopulation, NodeCounts

_CORDON = Taint("node.kubernetes.io/unschedulable", "NoSchedule")
_HARD_EFFECTS = frozenset({"NoSchedule", "NoExecute"})
_SOFT_EFFECT = "PreferNoSchedule"
_HOSTNAME = "kubernetes.io/hostname"
_MOST_SCORE = 100
"""framework.MaxNodeScore."""
MOST_PREFERENCES = 64
"""Distinct preferred node affinities whose nodes are remembered."""
_WEIGHTS = {"taints": 3, "nodes": 2, "pods": 2, "spread": 2}
"""Weights of kube-scheduler's default plugins (pkg/scheduler/apis/config/v1/default_plugins.go)."""


# A node by itself: NodeUnschedulable, TaintToleration, NodeAffinity.


def objections(pod: PodRules, name: str, node: NodeRules) -> Iterator[str]:
    """Why kube-scheduler does not place the pod on the node of this name, apart from other pods and volumes."""
    if node.cordoned and not _is_tolerated(pod, _CORDON):
        yield "is cordoned"
    for taint in node.taints:
        if taint.effect in _HARD_EFFECTS and not (node.cordoned and taint.key == _CORDON.key):
            if not _is_tolerated(pod, taint):
                yield f"has the taint {taint}, which the pod does not tolerate"
    if pod.claim_driver != node.claim_driver and (pod.claim_driver or pod.neuron):
        how = f"by claims of {node.claim_driver} only" if node.claim_driver else "by count, and the pod has claims"
        yield f"gives its Neuron devices {how}"
    for key, value in pod.node_selector:
        if node.labels.get(key) != value:
            label = f"{key}={node.labels[key]}" if key in node.labels else f"no label {key}"
            yield f"has {label}, the pod's nodeSelector wants {value}"
    if pod.terms is not None and not any(term.matches(name, node.labels) for term in pod.terms):
        wanted = " or ".join(filter(None, map(str, pod.terms)))
        yield f"does not match the pod's node affinity: {wanted}" if wanted else "matches no term of an empty affinity"


def _is_tolerated(pod: PodRules, taint: Taint) -> bool:
    return any(toleration.tolerates(taint) for toleration in pod.tolerations)


def _is_selected(pod: PodRules, name: str, labels: Mapping[str, str]) -> bool:
    """Whether the required node affinity and the nodeSelector match."""
    if any(labels.get(key) != value for key, value in pod.node_selector):
        return False
    return pod.terms is None or any(term.matches(name, labels) for term in pod.terms)


# A node and the pods on it: NodeResourcesFit, NodePorts.


def shortages(pod: PodRules, node: NodeRules, use: NodeUse) -> Iterator[str]:
    """The resources that are too short on the node for the pod, beside the pods that use it.

    A node that states no limit of pods takes any number.
    """
    allocatable = dict(node.allocatable)
    for name, asked in pod.needs:
        left = max(allocatable.get(name, 0) - use.amounts.get(name, 0), 0)
        if asked > left and (name != "pods" or name in allocatable):
            has = f"has {amount_text(name, left)} of {name} left" if name in allocatable else f"offers no {name}"
            yield f"{has}, the pod asks for {amount_text(name, asked)}"
    for address, protocol, number in sorted(pod.ports):
        taken = (at for at, kind, other in use.ports if (kind, other) == (protocol, number))
        if any(at == address or ANY_ADDRESS in {at, address} for at in taken):
            yield f"has host port {number}/{protocol} in use"


def neuron_shortages(pod: PodRules, node: NodeRules, use: NodeUse) -> Iterator[tuple[str, int, int]]:
    """The Neuron resources that kube-scheduler counts too few of: name, count, and number asked for.

    kube-scheduler counts each resource name by itself, not the free devices. If pods have devices under one name, the
    kubelet offers fewer under the others, some seconds later.
    """
    offered = dict(node.neuron)
    for name, asked in pod.neuron:
        left = offered.get(name, 0) - use.amounts.get(name, 0)
        if asked > left:
            yield name, max(left, 0) // 1000, asked // 1000


def most_beside(pod: PodRules, node: NodeRules, use: NodeUse) -> int | None:
    """How many pods with this request fit a node by kube-scheduler's counts; None if unbounded."""
    has = dict((*node.allocatable, *node.neuron))
    asked = [(name, amount) for name, amount in (*pod.needs, *pod.neuron) if amount and (name != "pods" or name in has)]
    counts = [max(has.get(name, 0) - use.amounts.get(name, 0), 0) // amount for name, amount in asked]
    return min([*counts, *([1] if pod.ports else [])], default=None)


def amount_text(name: str, thousandths: int) -> str:
    """Bytes in GiB, all else as it is."""
    of_bytes = name in {"memory", "ephemeral-storage"} or name.startswith("hugepages-")
    return f"{thousandths / 1000 / 1024**3:.4g}Gi" if of_bytes else f"{thousandths / 1000:.6g}"


# A node and the pods of the whole cluster: InterPodAffinity, PodTopologySpread.


class SpreadNodes:
    """The nodes that count for a topology spread constraint, each with its domain.

    ``nodes`` is followed, not copied: ``forget`` names one that has changed, has come or is gone.
    """

    def __init__(self, nodes: Mapping[str, NodeInfo]) -> None:
        self._nodes = nodes
        self._known: dict[object, tuple[PodRules, Spread, Sequence[str], dict[str, str], Counter[str]]] = {}

    def of(self, pod: PodRules, spread: Spread, keys: Sequence[str]) -> tuple[Mapping[str, str], Mapping[str, int]]:
        """The domain of each node that counts, and how many nodes each domain has.

        A node counts if it has all the ``keys`` of the pod's constraints and the policies include it.
        """
        by_affinity = (pod.node_selector, pod.terms) if spread.honors_affinity else None
        key = spread.topology_key, tuple(keys), by_affinity, pod.tolerations if spread.honors_taints else None
        if key not in self._known:
            self._known[key] = pod, spread, keys, {}, Counter[str]()
            for name in self._nodes:
                self._look(name, *self._known[key])
        *_, domains, counted = self._known[key]
        return domains, counted

    def forget(self, name: str) -> None:
        """This node has changed."""
        for known in self._known.values():
            self._look(name, *known)

    def _look(
        self,
        name: str,
        pod: PodRules,
        spread: Spread,
        keys: Sequence[str],
        domains: dict[str, str],
        counted: Counter[str],
    ) -> None:
        info = self._nodes.get(name)
        domain = self._domain(name, info.node.rules, pod, spread, keys) if info else None
        before = domains.pop(name, None)
        if before is not None:
            counted[before] -= 1
            if not counted[before]:
                del counted[before]
        if domain is not None:
            domains[name] = domain
            counted[domain] += 1

    def _domain(self, name: str, node: NodeRules, pod: PodRules, spread: Spread, keys: Sequence[str]) -> str | None:
        if not all(key in node.labels for key in keys):
            return None
        if spread.honors_affinity and not _is_selected(pod, name, node.labels):
            return None
        if spread.honors_taints:
            taints = [taint for taint in node.taints if taint.effect in _HARD_EFFECTS]
            if not all(_is_tolerated(pod, taint) for taint in taints):
                return None
        return node.labels[spread.topology_key]


class PreferredNodes:
    """The nodes by their score under the preferred node affinity of pods.

    ``nodes`` is followed, not copied: ``forget`` names one that has changed, has come or is gone.
    """

    def __init__(self, nodes: Mapping[str, NodeInfo]) -> None:
        self._nodes = nodes
        self._known: dict[tuple[tuple[int, NodeSelectorTerm], ...], tuple[dict[str, int], dict[int, set[str]]]] = {}
        """By preference, the sum of each node, and the nodes of each sum."""

    def best_first(self, pod: PodRules) -> Iterator[Collection[str]]:
        """The nodes that the pod prefers most, then the next, and so on."""
        terms = pod.preferences.nodes
        known = self._known.pop(terms, None)
        self._known[terms] = sums, by_sum = known or ({}, defaultdict(set))
        if known is None:
            for name in self._nodes:
                self._look(name, terms, sums, by_sum)
        if len(self._known) > MOST_PREFERENCES:
            del self._known[next(iter(self._known))]
        yield from (by_sum[total] for total in sorted(by_sum, reverse=True) if by_sum[total])

    def forget(self, name: str) -> None:
        """This node has changed."""
        for terms, known in self._known.items():
            self._look(name, terms, *known)

    def _look(
        self,
        name: str,
        terms: Sequence[tuple[int, NodeSelectorTerm]],
        sums: dict[str, int],
        by_sum: dict[int, set[str]],
    ) -> None:
        if (before := sums.pop(name, None)) is not None:
            by_sum[before].discard(name)
        if info := self._nodes.get(name):
            total = sums[name] = _preferred(terms, name, info.node.rules)
            by_sum[total].add(name)


def _preferred(terms: Sequence[tuple[int, NodeSelectorTerm]], name: str, node: NodeRules) -> int:
    return sum(weight for weight, term in terms if term.matches(name, node.labels))


class _Check(NamedTuple):
    """One rule's verdict on the domains of a node label: which are ``closed``, or the only ones that are ``open``."""

    key: str
    closed: Collection[str]
    open: Collection[str] | None
    needed_by: str
    """The rule that requires nodes to have the label; empty if none does."""
    text: str

    def why_not(self, labels: Mapping[str, str]) -> str:
        value = labels.get(self.key)
        if value is None:
            return f"has no label {self.key}, which the pod's {self.needed_by} needs" if self.needed_by else ""
        if value in self.closed or (self.open is not None and value not in self.open):
            return f"is in {self.key}={value}, {self.text}"
        return ""


@dataclass(frozen=True, slots=True)
class PodInCluster:
    """One pod as the rules among pods see it. ``pinned``: it will be bound to its node by node affinity."""

    rules: PodRules
    labels: PodLabels
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class _AllBut:
    """All nodes ``among`` some, or of the cluster (None), but these ``others``."""

    among: Collection[str] | None
    others: Collection[str]

    def __contains__(self, name: object) -> bool:
        return name not in self.others and (self.among is None or name in self.among)


class AmongPods:
    """The verdicts of the placed pods on one more pod on each node."""

    def __init__(
        self,
        pod: PodInCluster,
        nodes: Mapping[str, NodeInfo],
        population: AnyPopulation,
        spread_nodes: SpreadNodes,
    ) -> None:
        self._nodes = nodes
        self._population = population
        self._spread_nodes = spread_nodes
        self._single_nodes: list[tuple[Spread, NodeCounts, int]] = []
        self._checks = tuple(
            chain(self._affinity(pod), self._anti_affinity(pod), self._kept_off(pod), self._spread(pod))
        )

    def __bool__(self) -> bool:
        """Whether there is any such rule."""
        return bool(self._checks or self._single_nodes)

    def why_not(self, name: str) -> Iterator[str]:
        """Why the pod cannot be with, or apart from, the placed pods."""
        labels = self._nodes[name].node.rules.labels
        yield from filter(None, (check.why_not(labels) for check in self._checks))
        for spread, tally, own in self._single_nodes:
            if tally.get(name, NO_COUNTS).lasting + own > spread.max_skew:
                yield (
                    f"has {spread.max_skew} pods of the pod's spread over {spread.topology_key} or more, and "
                    "minDomains lets a pod that is bound to one node have no more beside it"
                )

    def _domains(self, key: str, names: Iterable[str]) -> set[str]:
        """The domains of some nodes, without nodes that are unknown or have no such label."""
        nodes = self._nodes
        values = {info.node.rules.labels.get(key) for name in names if (info := nodes.get(name))}
        return {value for value in values if value is not None}

    def _affinity(self, pod: PodInCluster) -> Iterator[_Check]:
        """A bound pod that matches all terms has to be there; the first pod of a series needs none."""
        terms = pod.rules.affinity
        selectors = tuple(_of_incoming(term.selector) for term in terms)
        tally = self._population.tally(selectors) if terms else {}
        bound = [name for name, counts in tally.items() if counts.bound]
        meant = any(self._domains(term.topology_key, tally) for term in terms)
        is_first = not meant and all(
            selector.matches(pod.labels, self._population.namespaces) for selector in selectors
        )
        for term in terms:
            values = None if is_first else self._domains(term.topology_key, bound)
            yield _Check(term.topology_key, (), values, "affinity", "where no pod runs that the pod's affinity wants")

    def _anti_affinity(self, pod: PodInCluster) -> Iterator[_Check]:
        for term in pod.rules.anti_affinity:
            if closed := self._domains(term.topology_key, self._population.tally((_of_incoming(term.selector),))):
                text = "where a pod is from which the pod's anti-affinity keeps it apart"
                yield _Check(term.topology_key, closed, None, "", text)

    def _kept_off(self, pod: PodInCluster) -> Iterator[_Check]:
        for term, names in self._population.keeping_off(pod.labels):
            if closed := self._domains(term.topology_key, names):
                text = "where the anti-affinity of another pod keeps the pod off"
                yield _Check(term.topology_key, closed, None, "", text)

    def _spread(self, pod: PodInCluster) -> Iterator[_Check]:
        hard = [spread for spread in pod.rules.spread if spread.hard]
        keys = [spread.topology_key for spread in hard]
        for spread in hard:
            tally, own = self._matching(pod, spread)
            domains, counted = self._spread_nodes.of(pod.rules, spread, keys)
            if pod.pinned and spread.honors_affinity and spread.min_domains > 1:
                self._single_nodes.append((spread, tally, own))
            placed, least = Counter[str](), Counter[str]()
            for name, counts in tally.items():
                if (domain := domains.get(name)) is not None:
                    placed[domain] += counts.lasting
                    # With the policy Ignore, kube-scheduler judges after the pin, too, and knows no promises.
                    least[domain] += counts.lasting if spread.honors_affinity else counts.lasting_bound
            fewest = min(map(least.__getitem__, counted), default=0) if len(counted) >= spread.min_domains else 0
            closed = {domain for domain, count in placed.items() if count + own - fewest > spread.max_skew}
            text = f"where a pod more would break the pod's spread: {spread.max_skew} more than the least at most"
            yield _Check(spread.topology_key, closed, None, "spread", text)

    def _matching(self, pod: PodInCluster, spread: Spread) -> tuple[NodeCounts, int]:
        """The pods that a constraint counts, and whether the pod itself is one of them.

        An empty selector counts no placed pod, but the pod itself (podtopologyspread/common.go).
        """
        selector = PodSelector((pod.labels.namespace,), spread.labels)
        own = int(selector.matches(pod.labels, self._population.namespaces))
        return ({} if spread.labels == () else self._population.tally((selector,))), own

    # Preferences of the pod.

    def scores(self, pod: PodInCluster, names: Sequence[str]) -> dict[str, int]:
        """The preference scores of these nodes, all of which the pod fits: the highest is the best.

        The scores and weights of TaintToleration, NodeAffinity, InterPodAffinity and PodTopologySpread. The terms of
        placed pods, and the cluster's default constraints, do not count: the pod does not state them.
        """
        if not names:
            return {}
        nodes = {name: self._nodes[name].node.rules for name in names}
        labels = {name: node.labels for name, node in nodes.items()}
        rules, totals = pod.rules, node_scores(pod.rules, nodes)
        if rules.preferences.pods:
            _add(totals, self._pod_scores(pod, names), "pods")
        if soft := [spread for spread in rules.spread if not spread.hard]:
            _add(totals, self._spread_scores(pod, soft, labels), "spread")
        return totals

    def best_first(self, pod: PodInCluster, preferred: PreferredNodes) -> Iterator[Container[str]]:
        """The nodes in the order of the pod's preference: the best first, then the next.

        The first of these with a node for the pod has the highest score, so no scores are needed. It ends when the
        order is no longer known without scores.
        """
        rules, terms = pod.rules, pod.rules.preferences.pods
        soft = [spread for spread in rules.spread if not spread.hard]
        if not (terms or soft):
            yield from preferred.best_first(rules)
            return
        sums = self._pod_sums(terms)
        if not (soft or rules.preferences.nodes):
            by_sum = defaultdict[int, set[str]](set)
            for name, total in sums.items():
                by_sum[total].add(name)
            yield from (by_sum[total] for total in sorted(by_sum, reverse=True) if total > 0)
            yield _AllBut(None, sums)
            yield from (by_sum[total] for total in sorted(by_sum, reverse=True) if total < 0)
            return
        if any(total > 0 for total in sums.values()):
            return
        among = next(preferred.best_first(rules), None) if rules.preferences.nodes else None
        keys = [spread.topology_key for spread in soft]
        for spread in soft:
            tally, _ = self._matching(pod, spread)
            domains, counted = self._spread_nodes.of(rules, spread, keys)
            placed = Counter[str]()
            for name, counts in tally.items():
                if (domain := domains.get(name)) is not None:
                    placed[domain] += counts.lasting
            least = min(map(placed.__getitem__, counted), default=0)
            best = {name for name, domain in domains.items() if placed[domain] == least}
            among = best if among is None else best.intersection(among)
        yield _AllBut(among, sums)

    def _pod_sums(self, terms: Sequence[tuple[int, PodTerm]]) -> dict[str, int]:
        """The weights of the pods to be near, or not near, by node; only nodes that have any."""
        nodes, sums = self._nodes, Counter[str]()
        by_key = defaultdict[str, Counter[str]](Counter)
        for weight, term in terms:
            for name, counts in self._population.tally((_of_incoming(term.selector),)).items():
                domain = info.node.rules.labels.get(term.topology_key) if (info := nodes.get(name)) else None
                if domain is not None and term.topology_key == _HOSTNAME:
                    sums[name] += weight * counts.placed
                elif domain is not None:
                    by_key[term.topology_key][domain] += weight * counts.placed
        for key, by_domain in by_key.items():
            for name, info in nodes.items():
                domain = info.node.rules.labels.get(key)
                sums[name] += by_domain[domain] if domain is not None else 0
        return {name: total for name, total in sums.items() if total}

    def _pod_scores(self, pod: PodInCluster, names: Sequence[str]) -> dict[str, int]:
        known = self._pod_sums(pod.rules.preferences.pods)
        sums = {name: known.get(name, 0) for name in names}
        least, most = min(sums.values()), max(sums.values())
        return {
            name: int(_MOST_SCORE * (count - least) / (most - least)) if most > least else 0
            for name, count in sums.items()
        }

    def _spread_scores(
        self, pod: PodInCluster, soft: Sequence[Spread], labels: Mapping[str, Mapping[str, str]]
    ) -> dict[str, int]:
        keys = [spread.topology_key for spread in soft]
        scored = [name for name, node_labels in labels.items() if all(key in node_labels for key in keys)]
        sums = dict.fromkeys(scored, 0.0)
        for spread in soft:
            tally, _ = self._matching(pod, spread)
            values = {labels[name][spread.topology_key] for name in scored}
            by_node = spread.topology_key == _HOSTNAME
            counts = Counter[str]()
            if not by_node:
                for name, domain in self._spread_nodes.of(pod.rules, spread, keys)[0].items():
                    counts[domain] += tally.get(name, NO_COUNTS).lasting if domain in values else 0
            weight = log((len(scored) if by_node else len(values)) + 2)
            for name in scored:
                count = tally.get(name, NO_COUNTS).lasting if by_node else counts[labels[name][spread.topology_key]]
                sums[name] += count * weight + spread.max_skew - 1
        rounded = {name: int(count + 0.5) for name, count in sums.items()}
        least, most = min(rounded.values(), default=0), max(rounded.values(), default=0)
        scores = {
            name: _MOST_SCORE * (most + least - count) // most if most else _MOST_SCORE
            for name, count in rounded.items()
        }
        return {name: scores.get(name, 0) for name in labels}


def node_scores(pod: PodRules, nodes: Mapping[str, NodeRules]) -> dict[str, int]:
    """A pod's preference score of each node, apart from other pods: the highest is the best.

    The scores and weights of TaintToleration and NodeAffinity.
    """
    totals = dict.fromkeys(nodes, 0)
    untolerated = {name: count for name, node in nodes.items() if node.taints and (count := soft_taints(pod, node))}
    if most := max(untolerated.values(), default=0):
        counts = {name: untolerated.get(name, 0) for name in nodes}
        _add(totals, {name: _MOST_SCORE - _MOST_SCORE * count // most for name, count in counts.items()}, "taints")
    if preferred := pod.preferences.nodes:
        terms = {name: _preferred(preferred, name, node) for name, node in nodes.items()}
        if most := max(terms.values(), default=0):
            _add(totals, {name: _MOST_SCORE * sum_of // most for name, sum_of in terms.items()}, "nodes")
    return totals


def _of_incoming(selector: PodSelector) -> PodSelector:
    """A selector of the pod that is placed, as kube-scheduler reads it.

    It compares the namespaceSelector with no labels at all, too (interpodaffinity/plugin.go,
    mergeAffinityTermNamespacesIfNotEmpty). So a selector that an absent label meets, such as NotIn, chooses every
    namespace.
    """
    chosen = selector.namespace_labels
    if not chosen or not all(requirement.is_met({}) for requirement in chosen):
        return selector
    return replace(selector, namespace_labels=())


def has_soft_taints(node: NodeRules) -> bool:
    """Whether a node has a PreferNoSchedule taint."""
    return any(taint.effect == _SOFT_EFFECT for taint in node.taints)


def soft_taints(pod: PodRules, node: NodeRules) -> int:
    """How many PreferNoSchedule taints of a node the pod does not tolerate."""
    return sum(taint.effect == _SOFT_EFFECT and not _is_tolerated(pod, taint) for taint in node.taints)


def _add(totals: dict[str, int], scores: Mapping[str, int], plugin: str) -> None:
    for name, score in scores.items():
        totals[name] += _WEIGHTS[plugin] * score
