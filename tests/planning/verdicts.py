"""What a real kube-scheduler has left to pods, against what ``planning/rules`` leaves to them, node by node.

    python -m tests.planning.verdicts FILE.json.gz ...

Each disagreement is printed, with pod, node and our reasons; then the command fails. A file has worlds: nodes, pods
that are placed, and cases of a pod and the nodes that passed all filters (``feasible``), or the node that it was to be
bound to (``chosen``). It was recorded on kube-scheduler 1.36.2 by an extender that refuses every node, or every bind.
Namespaces, StorageClasses and claims are common to all worlds of a file. A node may say how many volumes of a driver
can be attached (``csi``). Where choices are recorded kube-scheduler scored by what pods prefer only.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from neuron_plugin.allocation import NeuronPod
from neuron_plugin.allocation.node import node_info
from neuron_plugin.allocation.node_rules import HostPort, NodeSelectorTerm, NodeUse, Requirement, node_use
from neuron_plugin.allocation.volumes import Claim, StorageClass, Volume
from neuron_plugin.cluster.nodes import neuron_node
from neuron_plugin.cluster.objects import NODES
from neuron_plugin.cluster.pods import PODS, neuron_pod, pod_use
from neuron_plugin.planning.population import Population
from neuron_plugin.planning.scene import Cluster, Scene
from neuron_plugin.planning.volumes import Storage
from neuron_plugin.topology import catalogue

CORDONED = "node.kubernetes.io/unschedulable"
ZONE = "topology.kubernetes.io/zone"


@dataclass(frozen=True)
class Disagreement:
    """A node that a pod may have here and not there, or the other way round."""

    world: str
    pod: str
    node: str
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        ours = "; ".join(self.reasons)
        said = (
            f"kube-scheduler lets it pass, we do not: {ours}" if ours else "kube-scheduler refuses it, we let it pass"
        )
        return f"world {self.world}, pod {self.pod}, node {self.node}: {said}"


def worlds(path: Path) -> Mapping[str, Any]:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        known: Mapping[str, Any] = json.load(file)
        return known


def compare(recorded: Mapping[str, Any]) -> Iterator[Disagreement]:
    """Every disagreement of one record."""
    for world in recorded["worlds"]:
        scene = scene_of(recorded, world)
        for case in world["cases"]:
            pod = neuron_pod(PODS.decode(msgspec.json.encode({**case["pod"], "status": {}})))
            if "chosen" in case:
                yield from _compare_choice(scene, pod, case["chosen"], str(world["seed"]))
                continue
            passed = set(case["feasible"])
            for name, reasons in verdict(scene, pod).items():
                if (name in passed) == bool(reasons):
                    yield Disagreement(str(world["seed"]), str(pod.reference), name, reasons)


def _compare_choice(scene: Scene, pod: NeuronPod, chosen: str, world: str) -> Iterator[Disagreement]:
    """kube-scheduler draws lots among equals, so what it has chosen has to be one of our best nodes."""
    reasons = verdict(scene, pod)
    fits = [name for name, why in reasons.items() if not why]
    scores = scene.allowed(pod).scores(fits)
    if not chosen:
        yield from (Disagreement(world, str(pod.reference), name, ()) for name in fits)
    elif reasons[chosen]:
        yield Disagreement(world, str(pod.reference), chosen, reasons[chosen])
    elif scores[chosen] < max(scores.values()):
        yield Disagreement(world, str(pod.reference), chosen, (f"it prefers another: {scores}",))


def verdict(scene: Scene, pod: NeuronPod) -> dict[str, tuple[str, ...]]:
    """For each node all that speaks against it. The two ways to ask say the same."""
    among, volumes, allowed = scene.among(pod), scene.volumes(pod), scene.allowed(pod)
    reasons = {
        name: (*filter(None, [volumes.waits]), *scene.against(pod, name, among, volumes))
        for name in scene.cluster.nodes
    }
    assert {name for name, why in reasons.items() if not why} == {name for name in reasons if name in allowed}
    return reasons


def scene_of(recorded: Mapping[str, Any], world: Mapping[str, Any]) -> Scene:
    nodes = {}
    for manifest in world["nodes"]:
        decoded = neuron_node(NODES.decode(msgspec.json.encode(_tainted(manifest))), catalogue())
        nodes[decoded.name] = node_info(decoded, ())
    population, uses = Population(recorded["namespaces"]), dict[str, list[Any]]()
    ports = defaultdict[str, frozenset[HostPort]](frozenset)
    for number, placed in enumerate(world["pods"]):
        manifest = placed["pod"]
        deleted = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if placed["terminating"] else {}
        shown = {**manifest, "metadata": {**manifest["metadata"], **deleted}, "status": {"phase": placed["phase"]}}
        pod = PODS.decode(msgspec.json.encode(shown))
        if use := pod_use(pod):
            population.put(str(number), use.placed)
            uses.setdefault(use.node, []).append((use.needs, use.ports))
            ports[use.node] |= use.ports
        else:
            # Two pods that were bound by hand can have one port. kube-scheduler keeps a set, so it is free for it once
            # the second one has ended (pkg/scheduler/framework/types.go, HostPortInfo).
            ports[pod.node_name] -= neuron_pod(pod).rules.ports
    known = {name: NodeUse(node_use(uses.get(name, [])).amounts, ports[name]) for name in nodes}
    limits = {node["metadata"]["name"]: node["csi"] for node in world["nodes"] if "csi" in node}
    return Scene(Cluster(nodes, {}, known, population, replace(_storage(recorded), limits=limits)))


def _tainted(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """A node as the cluster had it: the node controller gives a cordoned node a taint, which the manifest lacks."""
    spec = node["spec"]
    if not spec.get("unschedulable") or any(taint["key"] == CORDONED for taint in spec["taints"]):
        return node
    return {**node, "spec": {**spec, "taints": [*spec["taints"], {"key": CORDONED, "effect": "NoSchedule"}]}}


def _storage(recorded: Mapping[str, Any]) -> Storage:
    classes = {
        name: StorageClass("example.com/none", waits=True, topologies=(_zone_term(zones),) if zones else ())
        for name, zones in recorded["classes"].items()
    }
    claims, volumes = dict[tuple[str, str], Claim](), dict[str, Volume]()
    for namespace in recorded["namespaces"]:
        for name, what in recorded["claims"].items():
            if isinstance(what, str):
                claims[namespace, name] = Claim(storage_class=what)
            else:
                volume = f"{namespace}-{name}"
                of_one_pod = isinstance(what, dict) and bool(what.get("once"))
                claims[namespace, name] = Claim(volume, once=of_one_pod)
                terms = (_zone_term(what),) if isinstance(what, list) else None
                volumes[volume] = Volume(volume, terms, driver="example.com", handle=volume)
    return Storage(claims, volumes, classes)


def _zone_term(zones: list[str]) -> NodeSelectorTerm:
    return NodeSelectorTerm((Requirement(ZONE, "In", tuple(zones)),))


def main(paths: list[str]) -> int:
    failed = 0
    for path in paths:
        recorded = worlds(Path(path))
        found = list(compare(recorded))
        for disagreement in found:
            sys.stdout.write(f"{disagreement}\n")
        cases = sum(len(world["cases"]) for world in recorded["worlds"])
        number = len(recorded["worlds"])
        sys.stdout.write(f"{path}: {cases} pods in {number} worlds, {len(found)} disagreements\n")
        failed += bool(found)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
