"""One cluster, and what each door makes of a pod in it: gates, the extender of a scheduler, and what a plan says.

Nodes and pods are words of a table's row. A node is its name and what it has: a Trn1 without another type, with labels
such as ``disk=ssd``, of which ``leaf`` is one of the network, and taints, ``soft=KEY`` or ``hard=KEY``. Pods hold its
devices, ``0-3`` one pod four of them, ``web:5`` one with the label ``app=web``; one of ``movable`` may be moved, one of
``unclear`` does not say what it has, one of ``neurondevice`` asks under that name, and ``other:web`` asks for no
Neuron. A node's host name is its name.

A pod is ``neuron=4 [APP]`` and what ``WORDS`` has, such as ``prefers=zone:b*50`` or ``apart=web``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from neuron_plugin.allocation import PlacementStrategy, Resource
from neuron_plugin.allocation.keys import GATE, GROUP_KEY, GROUP_SIZE_KEY, MOVABLE_KEY
from neuron_plugin.allocation.resources import parse_ids
from neuron_plugin.monitor.plan import PlanOptions, plan
from neuron_plugin.placement.extender.binding import Binder
from neuron_plugin.placement.extender.filter import Leads
from neuron_plugin.placement.extender.server import ExtenderService
from neuron_plugin.placement.settings import FilterMode
from neuron_plugin.simulation.api_server_kinds import AnyJson
from tests.placement.gates.bench import GatesBench
from tests.support.api_server import StandInApiServer
from tests.support.world import pod_of

HOST, NETWORK = "kubernetes.io/hostname", "topology.k8s.aws/network-node-layer-1"
EFFECTS = {"soft": "PreferNoSchedule", "hard": "NoSchedule"}
TYPES = {"inf2": "inf2.48xlarge", "inf1": "inf1.6xlarge", "trn2": "trn2.48xlarge"}
SHORT = {resource.short_name: resource for resource in Resource}


class Cluster(GatesBench):
    """A replica of the controller at which a pod can come to each door; nodes and pods are made of words."""

    def __init__(
        self, api: StandInApiServer, answer: FilterMode = FilterMode.BEST, holder: str = "", **settings: Any
    ) -> None:
        super().__init__(api, api, "auto", holder, **settings)
        leads = Leads(self.context, self.writer)
        self.binder = Binder(self.context, self.writer, leads)
        strategy = settings.get("strategy", PlacementStrategy.PACK)
        self.extender = ExtenderService(self.context, self.binder, leads, answer=answer, strategy=strategy)

    def nodes(self, text: str) -> None:
        """All nodes of a row, with their pods."""
        for each in text.split(" | "):
            name, *words = each.split()
            found: dict[str, Any] = {"labels": {HOST: name}, "taints": [], "pods": [], "type": "trn1.32xlarge"}
            if words == ["cpu"]:
                self.plain_node(name)
                continue
            for word in words:
                key, equals, value = word.partition("=")
                if key in EFFECTS:
                    found["taints"].append({"key": value, "effect": EFFECTS[key]})
                elif equals:
                    found["labels"][NETWORK if key == "leaf" else key] = value
                elif word in TYPES:
                    found["type"] = TYPES[word]
                else:
                    found["pods"].append(word)
            self.node(name, instance_type=found["type"])
            self.change_node(name, {"metadata": {"labels": found["labels"]}, "spec": {"taints": found["taints"]}})
            for number, word in enumerate(found["pods"]):
                self._holder(f"{name}-{number}", name, word)

    def plain_node(self, name: str) -> None:
        """One without Neuron."""
        offered = {"cpu": "64", "pods": "110"}
        manifest = {"metadata": {"name": name, "uid": name}, "status": {"allocatable": offered, "capacity": offered}}
        self.world.show_node(self.server.create_node(manifest))

    def _holder(self, name: str, node: str, word: str) -> None:
        app, _, ids = word.rpartition(":")
        if app == "other":
            self.pod(name, amount=0, gates=(), node=node, labels={"app": ids})
            return
        devices = parse_ids(ids)
        says = {} if app == "unclear" else {"NEURON_DEVS": ",".join(map(str, devices))}
        says |= {MOVABLE_KEY: "true"} if app == "movable" else {}
        own: dict[str, Any] = {"labels": {"app": app}, "annotations": says, "owner": "ReplicaSet/web"}
        resource = SHORT.get(app, Resource.NEURON)
        self.pod(name, resource, len(devices), gates=(), node=node, **own)

    def wanted(self, name: str, text: str, *, gated: bool) -> AnyJson:
        """A pod of a row, that waits."""
        described: dict[str, Any] = {"labels": {}, "annotations": {}, "spec": {}}
        for word in text.split():
            key, equals, value = word.partition("=")
            if key in SHORT:
                described |= {"resource": SHORT[key], "amount": int(value)}
            elif key in WORDS:
                _merge(described, WORDS[key](value))
            else:
                assert not equals, word
                described["labels"]["app"] = word
        gates = (*described.pop("gates", ()), *([GATE] if gated else ()))
        return self.pod(name, gates=gates, **described)

    def scores(self, name: str) -> dict[str, int]:
        """What the extender answers to filter and, if several nodes are left, to prioritize; a single one has 0."""
        allowed = self.state.scene().allowed(self.record(name))  # what kube-scheduler's own filters leave
        called = {
            "Pod": self.of(name),
            "Nodes": None,
            "NodeNames": [each for each in self.state.nodes if each in allowed],
        }
        found = json.loads(self.extender.answer("filter", json.dumps(called).encode())).get("NodeNames") or []
        if len(found) <= 1:
            return dict.fromkeys(found, 0)
        called["NodeNames"] = found
        scores = json.loads(self.extender.answer("prioritize", json.dumps(called).encode()))
        return {each["Host"]: each["Score"] for each in scores}

    async def attempt(self, name: str) -> str:
        """One attempt of a kube-scheduler that asks the extender; gives the node that it has bound the pod to."""
        scores = self.scores(name)
        if not scores:
            return ""
        best = max(scores, key=lambda each: scores[each])
        outcome = await self.binder.bind(pod_of(self.of(name)), best)
        assert not outcome.error
        self.sync()
        return best


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict):
            _merge(into.setdefault(key, {}), value)
        elif isinstance(value, list):
            into[key] = [*into.get(key, ()), *value]
        else:
            into[key] = value


# What a pod says of where it wants to be.

PREFERRED, REQUIRED = (f"{how}DuringSchedulingIgnoredDuringExecution" for how in ("preferred", "required"))


def _labelled(text: str) -> AnyJson:
    key, _, value = text.partition(":")
    return {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}


def _weighted(text: str) -> tuple[str, int]:
    what, _, weight = text.partition("*")
    return what, int(weight or 1)


def _prefers(text: str) -> AnyJson:
    what, weight = _weighted(text)
    return {"spec": {"affinity": {"nodeAffinity": {PREFERRED: [{"weight": weight, "preference": _labelled(what)}]}}}}


def _pod_term(text: str) -> AnyJson:
    """``web`` on a node, or ``web@KEY`` in a domain of another label."""
    app, _, key = text.partition("@")
    return {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key or HOST}


def _by_pods(kind: str) -> Callable[[str], AnyJson]:
    def word(text: str) -> AnyJson:
        what, weight = _weighted(text)
        return {"spec": {"affinity": {kind: {PREFERRED: [{"weight": weight, "podAffinityTerm": _pod_term(what)}]}}}}

    return word


def _spread(when: str) -> Callable[[str], AnyJson]:
    rest = {"maxSkew": 1, "whenUnsatisfiable": when}
    return lambda text: {"spec": {"topologySpreadConstraints": [_pod_term(text) | rest]}}


def _of_deployment(text: str) -> AnyJson:
    """``web:2`` is of the second version of a Deployment."""
    name, _, version = text.partition(":")
    return {"labels": {"pod-template-hash": version}, "owner": f"ReplicaSet/{name}-{version}"}


WORDS: Mapping[str, Callable[[str], AnyJson]] = {
    "prefers": _prefers,
    "near": _by_pods("podAffinity"),
    "apart": _by_pods("podAntiAffinity"),
    "evenly": _spread("ScheduleAnyway"),
    "must-be": lambda text: {
        "spec": {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [_labelled(text)]}}}}
    },
    "must-near": lambda text: {"spec": {"affinity": {"podAffinity": {REQUIRED: [_pod_term(text)]}}}},
    "must-apart": lambda text: {"spec": {"affinity": {"podAntiAffinity": {REQUIRED: [_pod_term(text)]}}}},
    "must-evenly": _spread("DoNotSchedule"),
    "selects": lambda text: {"spec": {"nodeSelector": dict([text.split(":")])}},
    "tolerates": lambda key: {"spec": {"tolerations": [{"key": key, "operator": "Exists"}]}},
    "placement": lambda text: {"annotations": {"neuron-plugin.io/placement": text}},
    "group": lambda text: {"annotations": dict(zip((GROUP_KEY, GROUP_SIZE_KEY), text.split(":"), strict=True))},
    "priority": lambda text: {"priority": int(text)},
    "cpu": lambda text: {"cpu": text},
    "gate": lambda text: {"gates": [text]},
    "scheduler": lambda text: {"spec": {"schedulerName": text}},
    "claim": lambda text: {"spec": {"resourceClaims": [{"name": text, "resourceClaimName": text}]}},
    "volume": lambda text: {"spec": {"volumes": [{"name": text, "persistentVolumeClaim": {"claimName": text}}]}},
    "deployment": _of_deployment,
}


# The doors: each takes a cluster, a pod's name and its words, and gives the node that the pod gets; empty if none.


async def by_gates(cluster: Cluster, name: str, text: str) -> str:
    cluster.wanted(name, text, gated=True)
    await cluster.place_all()
    return cluster.place(name)


async def by_extender(cluster: Cluster, name: str, text: str) -> str:
    cluster.wanted(name, text, gated=False)
    return await cluster.attempt(name)


async def by_plan(cluster: Cluster, name: str, text: str) -> str:
    """The node that a plan names. The pod is then placed by its gate, so that the next one finds it there."""
    cluster.wanted(name, text, gated=True)
    report = await plan(cluster.state, PlanOptions())
    (planned,) = [pod.node for pod in report.waiting if pod.pod == f"default/{name}"]
    await cluster.place_all()
    return planned


DOORS = {"gates": by_gates, "extender": by_extender, "plan": by_plan}
