"""What pods and nodes of the model say of each other: zones, taints, pods that keep apart or together, ports, volumes.

The scheduler of the model keeps these rules, and so does whoever chooses a node: by what it sees, or the pod is stuck.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from neuron_plugin.allocation import NeuronPod
from neuron_plugin.simulation.api_server_kinds import CLAIMS, STORAGE_CLASSES, VOLUMES, AnyJson, Refusal
from tests.placement.gates.model_part import Part

if TYPE_CHECKING:
    from tests.placement.gates.model import Model
    from tests.placement.gates.model_replica import Replica

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
ZONES = {"a": "east", "b": "east", "c": "west", "d": "west", "claims": "west"}
LAYER = "topology.k8s.aws/network-node-layer-1"
TAINT = {"key": "dedicated", "value": "x", "effect": "NoSchedule"}
FIRST, AT_ONCE = "first", "at-once"
"""StorageClasses: a volume is made where the first pod goes, or somewhere at once."""
SHARED = ("shared-0", "shared-1")
"""Claims for which a volume is made where the first of their pods goes."""
ONCE = "once"
"""A claim that one pod at a time may use."""


class Rules(Part):
    """The rules, as plain as they can be told."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        modes = {FIRST: "WaitForFirstConsumer", AT_ONCE: "Immediate"}
        for name, mode in modes.items():
            made = {"metadata": {"name": name}, "provisioner": "ebs", "volumeBindingMode": mode}
            model.server.create(STORAGE_CLASSES, made, "")
        for name in SHARED:
            self.create_claim(name, FIRST)
        self.create_claim(ONCE, FIRST, "ReadWriteOncePod")

    def labels(self, node: str) -> dict[str, str]:
        return {ZONE: ZONES[node], HOST: node, LAYER: ZONES[node]}

    def create_claim(self, name: str, storage_class: str, mode: str = "ReadWriteMany") -> None:
        spec = {"storageClassName": storage_class, "accessModes": [mode]}
        self.model.server.create(CLAIMS, {"metadata": {"name": name}, "spec": spec}, "default")

    def dress(self, manifest: AnyJson) -> None:
        """A pod says one thing about where it may be."""
        spec, labels = manifest["spec"], manifest["metadata"]["labels"]
        name = manifest["metadata"]["name"]
        match self.chance.choice(("", "", "", "", "zone", "tolerates", "lonely", "band", "spread", "port", "volume")):
            case "zone":
                spec["nodeSelector"] = {ZONE: self.chance.choice(("east", "west"))}
            case "tolerates":
                spec["tolerations"] = [{"key": "dedicated", "operator": "Exists"}]
            case "lonely":
                labels["kind"] = "lonely"
                spec["affinity"] = {"podAntiAffinity": required("lonely", HOST)}
            case "band":
                labels["kind"] = "band"
                spec["affinity"] = {"podAffinity": required("band", ZONE)}
            case "spread":
                labels["kind"] = "spread"
                rule = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}
                spec["topologySpreadConstraints"] = [{**rule, "labelSelector": {"matchLabels": {"kind": "spread"}}}]
            case "port":
                spec["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 80}]
            case "volume":
                claim = self.chance.choice((*SHARED, ONCE, name, f"late-{name}"))
                if claim in {name, f"late-{name}"}:
                    self.create_claim(claim, FIRST if claim == name else AT_ONCE)
                spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]

    def act(self) -> None:
        """A node gets a taint or loses it; a volume that was asked for is there."""
        nodes, late = list(self.model.nodes), [name for name in self.claims() if name.startswith("late-")]
        if nodes and self.chance.random() < 0.2:
            name = self.chance.choice(nodes)
            taints = [] if self.model.nodes[name]["spec"].get("taints") else [TAINT]
            self.model.server.patch_node(name, {"spec": {"taints": taints}})
        elif late:
            self.bind_claim(self.chance.choice(late), self.chance.choice(("east", "west")))

    def calm(self) -> None:
        for name in self.model.nodes:
            self.model.server.patch_node(name, {"spec": {"taints": []}})
        for name in self.claims():
            if name.startswith("late-"):
                self.bind_claim(name, "east")

    # Volumes.

    def claims(self) -> dict[str, AnyJson]:
        return {claim["metadata"]["name"]: claim["spec"] for claim in self.model.server.objects(CLAIMS)}

    def bind_claim(self, claim: str, zone: str) -> None:
        """A volume is made for a claim, in a zone."""
        if self.claims()[claim].get("volumeName"):
            return
        term = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]}
        spec = {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}
        self.model.server.create(VOLUMES, {"metadata": {"name": f"pv-{claim}"}, "spec": spec}, "")
        self.model.server.change(CLAIMS, claim, {"spec": {"volumeName": f"pv-{claim}"}}, "default")

    def bind_volumes(self, pod: AnyJson) -> None:
        """The pod is bound: a volume that waits for it is made where it is."""
        for claim in claims_of(pod):
            self.bind_claim(claim, ZONES[pod["spec"]["nodeName"]])

    def zone_of(self, claim: str) -> str | None:
        """Where the volume of a claim is; empty where the first pod decides, None while nobody can use it."""
        spec = self.claims()[claim]
        if not spec.get("volumeName"):
            return "" if spec["storageClassName"] == FIRST else None
        with suppress(Refusal):
            volume = self.model.server.get(VOLUMES, spec["volumeName"])
            term = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0]
            return str(term["matchExpressions"][0]["values"][0])
        return None

    # What has to hold of a pod on a node.

    def allow(self, pod: AnyJson, name: str) -> bool:
        """Whether the scheduler finds nothing against a pod on a node, besides counts."""
        others = [(other, other["spec"]["nodeName"]) for other in self.model.pods.values() if is_bound(other)]
        assumed = ((self.model.pods.get(other), node) for other, node in self.model.binding.items())
        others += [(other, node) for other, node in assumed if other and not is_bound(other)]
        terms = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
        pins = terms.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])
        pinned = any(all(fits_field(name, field) for field in term.get("matchFields", [])) for term in pins)
        return (pinned or not pins) and not self.against(pod, self.model.nodes[name], others, self.model.nodes)

    def against(
        self, pod: AnyJson, node: AnyJson, others: Iterable[tuple[AnyJson, str]], nodes: Mapping[str, AnyJson]
    ) -> str:
        """Which rule speaks against a pod on a node, with other pods on nodes of these names; empty if none."""
        spec, labels, name = pod["spec"], node["metadata"]["labels"], node["metadata"]["name"]
        if any(labels.get(key) != value for key, value in spec.get("nodeSelector", {}).items()):
            return "zone"
        if node["spec"].get("taints") and not any(one["key"] == "dedicated" for one in spec.get("tolerations", ())):
            return "taint"
        here = [other for other, where in others if where == name]
        if ports_of(pod) and any(map(ports_of, here)):
            return "port"
        kind = pod["metadata"].get("labels", {}).get("kind")
        alike = [where for other, where in others if other["metadata"].get("labels", {}).get("kind") == kind]
        if kind == "lonely" and name in alike:
            return "lonely"
        zones = Counter(ZONES[where] for where in alike)
        if kind == "band" and zones and not zones[ZONES[name]]:
            return "band"
        if kind == "spread" and not spec.get("affinity"):  # kube-scheduler keeps it not for a pod that has a pin
            fewest = min(zones[zone] for zone in {ZONES[each] for each in nodes})
            if zones[ZONES[name]] + 1 - fewest > 1:
                return "spread"
        for claim in claims_of(pod):
            if self.zone_of(claim) not in {"", ZONES[name]}:
                return "volume"
            if claim == ONCE and any(claim in claims_of(other) for other, _ in others):
                return "once"
        return ""

    def chosen(self, replica: Replica, pod: NeuronPod, node: str) -> None:
        """Nothing that the replica sees speaks against its choice."""
        why_not = self.seen_against(replica, pod, node)
        assert not why_not, f"{pod.reference} was placed on {node} against a rule: {why_not}"

    def seen_against(self, replica: Replica, pod: NeuronPod, node: str) -> str:
        """Which rule speaks against a pod on a node, as a replica sees it."""
        made, state = self.model.made, replica.state
        placed = {**state.pods, **{uid: assumed.pod for uid, assumed in state.assumed.items()}}
        others = [
            (made[uid], other.place)
            for uid, other in placed.items()
            if uid != pod.uid and uid in made and other.place in replica.nodes and not other.terminating
        ]
        return self.against(made[pod.uid], replica.nodes[node], others, replica.nodes)

    def check(self) -> None:
        """Of pods that are bound no two that keep apart are together, whoever has chosen their nodes."""
        bound = [pod for pod in self.model.pods.values() if is_bound(pod)]
        users = [pod for pod in bound if ONCE in claims_of(pod)]
        assert len(users) <= 1, "two pods have a volume of one pod"


def required(kind: str, key: str) -> AnyJson:
    term = {"labelSelector": {"matchLabels": {"kind": kind}}, "topologyKey": key}
    return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}


def fits_field(name: str, field: AnyJson) -> bool:
    return (name in field["values"]) is (field["operator"] == "In")


def is_bound(pod: AnyJson) -> bool:
    return bool(pod["spec"].get("nodeName")) and "other" not in pod["metadata"]["name"]


def ports_of(pod: AnyJson) -> bool:
    return bool(pod["spec"]["containers"][0].get("ports"))


def claims_of(pod: AnyJson) -> list[str]:
    return [volume["persistentVolumeClaim"]["claimName"] for volume in pod["spec"].get("volumes", ())]
