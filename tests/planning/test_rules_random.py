"""kube-scheduler's rules as plain as they can be told, over all pods and nodes, against those that remember."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import log
from random import Random
from typing import Any

import pytest

from neuron_plugin.simulation.api_server_kinds import AnyJson
from tests.support.manifests import container, node_manifest, pod_manifest
from tests.support.world import DEVICE, World, record_of

WORLDS = 60
HOST, ZONE, TEAM = "kubernetes.io/hostname", "zone", "team"
CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
NAMESPACES: Mapping[str, Mapping[str, str]] = {"default": {TEAM: "red"}, "other": {TEAM: "blue"}}
NAMES = ("n0", "n1", "n2", "n3")
VALUES, APPS = ("1", "2", "10"), ("a", "b")
EFFECTS = ("NoSchedule", "NoExecute", "PreferNoSchedule", "PreferNoSchedule")


class Maker:
    """Nodes and pods by chance, of which each says few things of many."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)  # noqa: S311 - repeats a test's chance, guards nothing

    def rarely(self, likely: float = 0.3) -> bool:
        return self.chance.random() < likely

    def some(self, make: Any, most: int = 2, likely: float = 0.3) -> list[AnyJson]:
        return [make() for _ in range(most) if self.rarely(likely)]

    def node(self, name: str) -> AnyJson:
        node = node_manifest(name, "inf2.24xlarge")
        labels = {key: self.chance.choice(VALUES) for key in (ZONE, "size") if not self.rarely(0.1)}
        node["metadata"]["labels"] = {**labels, HOST: name}
        node["spec"] = {"taints": self.some(self.taint, likely=0.2), "unschedulable": self.rarely(0.1)}
        node["status"]["allocatable"] = {**node["status"]["allocatable"], "cpu": "7", "pods": "110"}
        return node

    def taint(self) -> AnyJson:
        key, value, effect = self.chance.choice("tu"), self.chance.choice("12"), self.chance.choice(EFFECTS)
        return {"key": key, "value": value, "effect": effect}

    def toleration(self) -> AnyJson:
        made: AnyJson = {"operator": "Exists"} if self.rarely() else {"value": self.chance.choice("12")}
        if self.rarely(0.8) or "value" in made:
            made["key"] = self.chance.choice(("t", "u", CORDON["key"]))
        return made | ({"effect": self.chance.choice(EFFECTS)} if self.rarely() else {})

    def requirement(self, keys: Sequence[str], values: Sequence[str]) -> AnyJson:
        key, operator = self.chance.choice(keys), self.chance.choice(("In", "In", "NotIn", "Exists", "DoesNotExist"))
        if key == "size" and self.rarely():
            return {"key": key, "operator": self.chance.choice(("Gt", "Lt")), "values": [self.chance.choice(VALUES)]}
        listed = {"values": self.chance.sample(values, self.chance.choice((1, 2)))} if "In" in operator else {}
        return {"key": key, "operator": operator, **listed}

    def node_term(self) -> AnyJson:
        expressions = [self.requirement((ZONE, "size"), VALUES) for _ in range(self.chance.choice((1, 1, 2)))]
        field = {"key": "metadata.name", "operator": self.chance.choice(("In", "NotIn")), "values": ["n1"]}
        return {"matchExpressions": expressions, **({"matchFields": [field]} if self.rarely(0.2) else {})}

    def selector(self) -> AnyJson:
        return {"matchExpressions": [self.requirement(("app", "app", "tier"), APPS)]}

    def pod_term(self) -> AnyJson:
        term = {"labelSelector": self.selector(), "topologyKey": self.chance.choice((ZONE, HOST))}
        if self.rarely(0.2):
            term["namespaces"] = self.chance.choice((["default"], ["other"], ["default", "other"]))
        if self.rarely(0.2):
            term["namespaceSelector"] = {"matchLabels": {TEAM: "blue"}}
        return term

    def spread(self) -> AnyJson:
        made: AnyJson = {"labelSelector": self.selector(), "maxSkew": self.chance.choice((1, 1, 2))}
        made["whenUnsatisfiable"] = self.chance.choice(("DoNotSchedule", "ScheduleAnyway"))
        for key in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
            made |= {key: self.chance.choice(("Honor", "Ignore"))} if self.rarely() else {}
        return made

    def labels(self) -> dict[str, str]:
        return {key: self.chance.choice(APPS) for key in ("app", "tier") if self.rarely(0.8)}

    def ports(self) -> list[AnyJson]:
        return [{"containerPort": 80, "hostPort": 80}] if self.rarely(0.15) else []

    def among(self, likely: float) -> AnyJson:
        return {
            "requiredDuringSchedulingIgnoredDuringExecution": self.some(self.pod_term, likely=likely),
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": self.chance.choice((1, 50)), "podAffinityTerm": term} for term in self.some(self.pod_term)
            ],
        }

    def incoming(self) -> AnyJson:
        asked = container("main", DEVICE, 1)
        requests = {**asked["resources"]["requests"], "cpu": "2"}
        asked = {**asked, "ports": self.ports(), "resources": {**asked["resources"], "requests": requests}}
        manifest = pod_manifest("incoming", containers=[asked])
        manifest["metadata"]["labels"] = self.labels()
        by_node: AnyJson = {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": self.chance.choice((1, 50)), "preference": term} for term in self.some(self.node_term)
            ]
        }
        if terms := self.some(self.node_term, likely=0.2):
            by_node["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}
        spreads = [{**self.spread(), "topologyKey": key} for key in (ZONE, HOST) if self.rarely()]
        manifest["spec"] |= {
            "nodeSelector": {ZONE: self.chance.choice(VALUES)} if self.rarely(0.1) else {},
            "tolerations": self.some(self.toleration, likely=0.5),
            "topologySpreadConstraints": spreads,
            "affinity": {"nodeAffinity": by_node, "podAffinity": self.among(0.1), "podAntiAffinity": self.among(0.1)},
        }
        return manifest

    def placed(self, number: int) -> AnyJson:
        """A pod that is bound, of which some keep others off."""
        manifest = pod_manifest("placed", containers=[{**container("main", DEVICE, 0), "ports": self.ports()}])
        namespace = self.chance.choice(("default", "default", "other"))
        named = {"name": f"placed-{number}", "uid": f"placed-{number}", "namespace": namespace}
        manifest["metadata"] |= {**named, "labels": self.labels()}
        terms = self.some(self.pod_term, likely=0.1)
        manifest["spec"]["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
        manifest["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "2"}}
        manifest["spec"]["nodeName"] = self.chance.choice(NAMES)
        return manifest


@pytest.mark.parametrize("seed", range(5))
def test_a_pod_is_let_where_kube_scheduler_would_let_it_and_prefers_what_it_would_prefer(seed: int) -> None:
    maker, chosen = Maker(seed), Counter[int]()
    for _ in range(WORLDS):
        world, nodes = World(), {name: maker.node(name) for name in NAMES}
        for name, labels in NAMESPACES.items():
            world.state.put_namespace(name, labels)
        for node in nodes.values():
            world.show_node(node)
        pods = [maker.placed(number) for number in range(maker.chance.randrange(7))]
        for other in pods:
            world.show(other)
        for _ in range(5):
            pod, scene = maker.incoming(), world.state.scene()
            record = record_of(pod)

            fits = {name for name in nodes if is_let(pod, name, nodes, pods)}
            chosen[len(fits)] += 1
            among, volumes = scene.among(record), scene.volumes(record)
            assert {name for name in nodes if not [*scene.against(record, name, among, volumes)]} == fits
            allowed = scene.allowed(record)
            assert {name for name in nodes if name in allowed} == fits
            found = scores(pod, sorted(fits), nodes, pods)
            assert allowed.scores(sorted(fits)) == found
            if not any(taint["effect"] == "PreferNoSchedule" for node in nodes.values() for taint in own_taints(node)):
                best = next((group for group in allowed.best_first() if any(name in group for name in fits)), ())
                assert {name for name in fits if name in best} <= highest(found)
    assert len(chosen) > 3, "rules that let pods nowhere, or everywhere, show nothing"


def highest(scored: Mapping[str, int]) -> set[str]:
    return {name for name, score in scored.items() if score == max(scored.values())}


# What kube-scheduler's documentation and plugins say.


def is_let(pod: AnyJson, name: str, nodes: Mapping[str, AnyJson], pods: Sequence[AnyJson]) -> bool:
    spec, node = pod["spec"], nodes[name]
    labels = node["metadata"]["labels"]
    hard = [taint for taint in taints_of(node) if taint["effect"] != "PreferNoSchedule"]
    if not all(is_tolerated(pod, taint) for taint in hard) or not is_selected(pod, name, nodes):
        return False
    here = [other for other in pods if other["spec"]["nodeName"] == name]
    if 2 * len(here) + 2 > 7 or (ports_of(pod) and any(map(ports_of, here))):
        return False
    affinity = spec["affinity"]
    wanted = affinity["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    together = [other for other in pods if wanted and all(means(term, pod, other) for term in wanted)]
    meant = any(
        term["topologyKey"] in nodes[where(other)]["metadata"]["labels"] for term in wanted for other in together
    )
    is_first = not meant and all(means(term, pod, pod) for term in wanted)
    for term in wanted:
        domain = labels.get(term["topologyKey"])
        if domain is None:
            return False
        if not is_first and domain not in domains(term, together, nodes):
            return False
    for term in affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]:
        if labels.get(term["topologyKey"]) in domains(term, [o for o in pods if means(term, pod, o)], nodes):
            return False
    for other in pods:
        for term in other["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]:
            if means(term, other, pod) and labels.get(term["topologyKey"]) in domains(term, [other], nodes):
                return False
    return all(fits_spread(pod, spread, name, nodes, pods) for spread in spreads(pod, "DoNotSchedule"))


def fits_spread(
    pod: AnyJson, spread: AnyJson, name: str, nodes: Mapping[str, AnyJson], pods: Sequence[AnyJson]
) -> bool:
    key = spread["topologyKey"]
    if key not in nodes[name]["metadata"]["labels"]:
        return False
    keys = [one["topologyKey"] for one in spreads(pod, "DoNotSchedule")]
    counts = spread_counts(pod, spread, keys, nodes, pods)
    domain = nodes[name]["metadata"]["labels"][key]
    own = int(selects(spread["labelSelector"], pod["metadata"]["labels"]))
    return counts.get(domain, 0) + own - min(counts.values(), default=0) <= int(spread["maxSkew"])


def spread_counts(
    pod: AnyJson, spread: AnyJson, keys: Iterable[str], nodes: Mapping[str, AnyJson], pods: Sequence[AnyJson]
) -> dict[str, int]:
    """How many pods each domain has that counts."""
    counted = [
        name
        for name, node in nodes.items()
        if all(key in node["metadata"]["labels"] for key in keys)
        and (spread.get("nodeAffinityPolicy") == "Ignore" or is_selected(pod, name, nodes))
        and (
            spread.get("nodeTaintsPolicy") != "Honor"
            or all(is_tolerated(pod, taint) for taint in own_taints(node) if taint["effect"] != "PreferNoSchedule")
        )
    ]
    counts = {nodes[name]["metadata"]["labels"][spread["topologyKey"]]: 0 for name in counted}
    for other in pods:
        if other["metadata"]["namespace"] == "default" and where(other) in counted:
            if selects(spread["labelSelector"], other["metadata"]["labels"]):
                counts[nodes[where(other)]["metadata"]["labels"][spread["topologyKey"]]] += 1
    return counts


def scores(pod: AnyJson, names: Sequence[str], nodes: Mapping[str, AnyJson], pods: Sequence[AnyJson]) -> dict[str, int]:
    """The sum of what the four plugins give, each from 0 to 100, by their weights."""
    if not names:
        return {}
    affinity, total = pod["spec"]["affinity"], Counter(dict.fromkeys(names, 0))
    soft = {
        name: sum(taint["effect"] == "PreferNoSchedule" and not is_tolerated(pod, taint) for taint in taints_of(node))
        for name, node in nodes.items()
        if name in names
    }
    if most := max(soft.values()):
        total.update({name: 3 * (100 - 100 * count // most) for name, count in soft.items()})
    preferred = affinity["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    sums = {
        name: sum(
            one["weight"] for one in preferred if matches(one["preference"], name, nodes[name]["metadata"]["labels"])
        )
        for name in names
    }
    if most := max(sums.values()):
        total.update({name: 2 * (100 * each // most) for name, each in sums.items()})
    near = affinity["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    apart = affinity["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    weighed = [(one["weight"], one["podAffinityTerm"]) for one in near]
    weighed += [(-one["weight"], one["podAffinityTerm"]) for one in apart]
    sums = dict.fromkeys(names, 0)
    for weight, term in weighed:
        for other in (other for other in pods if means(term, pod, other)):
            for name in names:
                if nodes[name]["metadata"]["labels"].get(term["topologyKey"]) in domains(term, [other], nodes):
                    sums[name] += weight
    least, most = min(sums.values()), max(sums.values())
    if most > least:
        total.update({name: 2 * int(100 * (each - least) / (most - least)) for name, each in sums.items()})
    if soft_spreads := spreads(pod, "ScheduleAnyway"):
        total.update({name: 2 * score for name, score in spread_scores(pod, soft_spreads, names, nodes, pods).items()})
    return dict(total)


def spread_scores(
    pod: AnyJson, soft: Sequence[AnyJson], names: Sequence[str], nodes: Mapping[str, AnyJson], pods: Sequence[AnyJson]
) -> dict[str, int]:
    keys = [spread["topologyKey"] for spread in soft]
    scored = [name for name in names if all(key in nodes[name]["metadata"]["labels"] for key in keys)]
    sums = dict.fromkeys(scored, 0.0)
    for spread in soft:
        key, counts = spread["topologyKey"], spread_counts(pod, spread, keys, nodes, pods)
        if key == HOST:
            counts = Counter(
                where(other)
                for other in pods
                if other["metadata"]["namespace"] == "default"
                and selects(spread["labelSelector"], other["metadata"]["labels"])
            )
        values = {nodes[name]["metadata"]["labels"][key] for name in scored}
        for name in scored:
            count = counts.get(nodes[name]["metadata"]["labels"][key], 0)
            sums[name] += count * log(len(values) + 2) + spread["maxSkew"] - 1
    rounded = {name: int(each + 0.5) for name, each in sums.items()}
    least, most = min(rounded.values(), default=0), max(rounded.values(), default=0)
    return {name: 100 * (most + least - each) // most if most else 100 for name, each in rounded.items()}


def spreads(pod: AnyJson, when: str) -> list[AnyJson]:
    return [one for one in pod["spec"]["topologySpreadConstraints"] if one["whenUnsatisfiable"] == when]


def where(pod: AnyJson) -> str:
    return str(pod["spec"]["nodeName"])


def ports_of(pod: AnyJson) -> bool:
    return bool(pod["spec"]["containers"][0]["ports"])


def own_taints(node: AnyJson) -> list[AnyJson]:
    return list(node["spec"]["taints"])


def taints_of(node: AnyJson) -> list[AnyJson]:
    return own_taints(node) + ([CORDON] if node["spec"]["unschedulable"] else [])


def is_tolerated(pod: AnyJson, taint: AnyJson) -> bool:
    return any(
        one.get("key", "") in {"", taint["key"]}
        and one.get("effect", "") in {"", taint["effect"]}
        and (one.get("operator") == "Exists" or one.get("value", "") == taint.get("value", ""))
        for one in pod["spec"]["tolerations"]
    )


def is_selected(pod: AnyJson, name: str, nodes: Mapping[str, AnyJson]) -> bool:
    labels = nodes[name]["metadata"]["labels"]
    required = pod["spec"]["affinity"]["nodeAffinity"].get("requiredDuringSchedulingIgnoredDuringExecution")
    if any(labels.get(key) != value for key, value in pod["spec"]["nodeSelector"].items()):
        return False
    return required is None or any(matches(term, name, labels) for term in required["nodeSelectorTerms"])


def matches(term: AnyJson, name: str, labels: Mapping[str, str]) -> bool:
    fields = term.get("matchFields", ())
    return all(meets(one, labels) for one in term["matchExpressions"]) and all(
        meets({**one, "key": "name"}, {"name": name}) for one in fields
    )


def meets(requirement: AnyJson, labels: Mapping[str, str]) -> bool:
    value, wanted = labels.get(requirement["key"]), requirement.get("values", [])
    match requirement["operator"]:
        case "In":
            return value in wanted
        case "NotIn":
            return value not in wanted
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return value is not None and int(value) > int(wanted[0])
    return value is not None and int(value) < int(wanted[0])


def selects(selector: AnyJson, labels: Mapping[str, str]) -> bool:
    return all(meets(one, labels) for one in selector["matchExpressions"])


def means(term: AnyJson, owner: AnyJson, other: AnyJson) -> bool:
    """Whether the term of a pod is about another one: by its namespace and its labels."""
    namespace, chosen = other["metadata"]["namespace"], term.get("namespaceSelector")
    named = term.get("namespaces") or ([] if chosen else [owner["metadata"]["namespace"]])
    is_chosen = chosen is not None and NAMESPACES[namespace][TEAM] == chosen["matchLabels"][TEAM]
    return (namespace in named or is_chosen) and selects(term["labelSelector"], other["metadata"]["labels"])


def domains(term: AnyJson, pods: Iterable[AnyJson], nodes: Mapping[str, AnyJson]) -> set[Any]:
    """The domains of the nodes of some pods."""
    labels = (nodes[where(other)]["metadata"]["labels"] for other in pods)
    return {each[term["topologyKey"]] for each in labels if term["topologyKey"] in each}
