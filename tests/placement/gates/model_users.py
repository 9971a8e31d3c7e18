"""Who makes pods in the model: with the gate, which the webhook puts on, by the second door, by claims, in groups."""

from __future__ import annotations

from base64 import b64decode

import msgspec

from neuron_plugin.allocation.keys import GATE, MOVABLE_KEY, NODE_KEY, POD_UID_KEY, PREFLIGHT_KEY, SPARES_KEY
from neuron_plugin.placement.gates.webhook import admit
from neuron_plugin.simulation.api_server_kinds import RESOURCE_CLAIMS, AnyJson
from neuron_plugin.simulation.api_server_objects import json_patched
from tests.placement.gates.model_part import Part
from tests.simulation.dra import claim_spec, exactly, linked

SHAPES = (("aws.amazon.com/neuron", (1, 1, 4, 8, 16)), ("aws.amazon.com/neuroncore", (1, 2)))
GROUP = "neuron-plugin.io/group"
RING = "ring"
"""The group of high priority that has a spare node."""
JOB_INDEX, COMPLETION_INDEX = "jobset.sigs.k8s.io/job-index", "batch.kubernetes.io/job-completion-index"
OTHER_GATE = "kueue.x-k8s.io/admission"
OTHERS_CLAIM = "efa-"
"""How claims of another driver are called: where a pod with one can run, the placement controller cannot judge."""


class Users(Part):
    """Users and their controllers."""

    def create_any(self) -> None:
        door = self.chance.choice(("gates", "gates", "gates", "second", "claim", "doubt"))
        self.create(other_gate=door == "gates" and self.chance.random() < 0.1, door=door)

    def create_group(self) -> None:
        """A group, which may ask to be checked before it starts."""
        size, group, checked = self.chance.choice((2, 3, 4)), f"g{self.model.names}", self.chance.random() < 0.4
        for _ in range(size):
            self.create(group=group, size=size, count=self.chance.choice((4, 4, 8)), checked=checked)

    def create(
        self,
        *,
        group: str = "",
        size: int = 0,
        count: int = 0,
        rank: str = "",
        other_gate: bool = False,
        door: str = "gates",
        checked: bool = False,
    ) -> None:
        """A pod: with the gate, by the ``second`` door, asking by a ``claim``, or in ``doubt``."""
        model, chance = self.model, self.chance
        model.names += 1
        name = f"pod-{model.names}"
        resource, counts = chance.choice(SHAPES)
        if group:
            resource = "aws.amazon.com/neuron"
        limits = {resource: str(count or chance.choice(counts))}
        annotations = {GROUP: group, f"{GROUP}-size": str(size)} if group else {}
        if rank:
            annotations |= {COMPLETION_INDEX: "0", SPARES_KEY: "1"}
        if checked:
            annotations[PREFLIGHT_KEY] = "group"
        metadata: AnyJson = {"name": name, "namespace": "default", "uid": f"uid-{model.names}"}
        metadata |= {"annotations": annotations, "labels": {JOB_INDEX: rank} if rank else {}}
        spec: AnyJson = {"priority": 10 if rank else chance.choice((0, 0, 10))}
        if other_gate:
            spec["schedulingGates"] = [{"name": OTHER_GATE}]
        resources: AnyJson = {}
        if door == "claim":
            claim, limits = {"metadata": {"name": name}, "spec": linked(chance.choice((4, 4, 8, 16)))}, {}
        if door == "doubt":
            claim = {"metadata": {"name": f"{OTHERS_CLAIM}{name}"}}
            claim |= {"spec": claim_spec(exactly("links", deviceClassName="efa"))}
        if door in {"claim", "doubt"}:
            model.server.create(RESOURCE_CLAIMS, claim, "default")
            spec["resourceClaims"] = [{"name": "c", "resourceClaimName": claim["metadata"]["name"]}]
            resources["claims"] = [{"name": "c"}]
        amounts = {**limits, "cpu": str(chance.choice((1, 4, 16)))}
        spec["containers"] = [{"name": "main", "resources": {"limits": amounts, "requests": amounts, **resources}}]
        manifest: AnyJson = {"metadata": metadata, "spec": spec}
        if not group:
            for part in model.parts:
                part.dress(manifest)
        manifest = manifest if door == "second" else self.admitted(manifest)
        model.made[metadata["uid"]] = manifest
        model.server.create_pod(manifest)

    def dress(self, manifest: AnyJson) -> None:
        """Of many a controller makes another one, which may be movable."""
        metadata, kind = manifest["metadata"], self.chance.choice(("", "ReplicaSet", "ReplicaSet", "Job"))
        if kind:
            name = self.chance.choice(("web", "careful") if kind == "ReplicaSet" else ("careful", "strict"))
            version = "apps/v1" if kind == "ReplicaSet" else "batch/v1"
            metadata["ownerReferences"] = [
                {"apiVersion": version, "kind": kind, "name": name, "uid": name, "controller": True}
            ]
        if kind == "ReplicaSet":
            metadata["labels"]["app"] = "web"
            metadata["annotations"][MOVABLE_KEY] = "true"

    def admitted(self, manifest: AnyJson) -> AnyJson:
        """A pod as the webhook lets it in: it has the gate, and nothing of a placement, which it may be a copy of."""
        placed = [pod for pod in self.model.pods.values() if NODE_KEY in pod["metadata"].get("annotations", {})]
        if placed and self.chance.random() < 0.1:
            copied = self.chance.choice(placed)["metadata"]
            manifest["metadata"]["annotations"] |= {
                key: text for key, text in copied["annotations"].items() if key.startswith(("NEURON", NODE_KEY))
            }
            manifest["metadata"]["labels"] |= {NODE_KEY: copied["labels"].get(NODE_KEY, "")}
        request = {"uid": "review", "operation": "CREATE", "object": {"kind": "Pod", **manifest}}
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
        answer = msgspec.json.decode(admit(msgspec.json.encode(review), claims=True))["response"]
        assert answer["allowed"]
        admitted: AnyJson = json_patched(manifest, msgspec.json.decode(b64decode(answer["patch"])))
        said = {**admitted["metadata"]["annotations"], **admitted["metadata"]["labels"]}
        assert GATE in gates_of(admitted)
        assert said.keys().isdisjoint({NODE_KEY, POD_UID_KEY, "NEURON_DEVS", "NEURON_CORES", "NEURON_ALLOCATED"})
        return admitted

    def create_ring(self, rank: str) -> None:
        """A pod of the group that has a spare node. Its pods, each of another Job, are made again whenever they end."""
        self.create(group=RING, size=2, count=8, rank=rank)

    def create_other(self) -> None:
        """A pod without Neuron that is bound at once and takes CPU."""
        model = self.model
        model.names += 1
        node = self.chance.choice(list(model.nodes) or [""])
        container = {"name": "main", "resources": {"requests": {"cpu": str(self.chance.choice((8, 40)))}}}
        metadata = {"name": f"other-{model.names}", "namespace": "default", "uid": f"uid-{model.names}"}
        if node:
            model.server.create_pod({"metadata": metadata, "spec": {"nodeName": node, "containers": [container]}})


def number_of(name: str) -> int:
    """Which pod of all it is, by its name."""
    return int(name.rpartition("-")[2])


def gates_of(pod: AnyJson) -> set[str]:
    return {gate["name"] for gate in pod["spec"].get("schedulingGates", [])}


def requests_of(pod: AnyJson) -> dict[str, int]:
    """What a pod asks for; the API server fills in a request for each limit."""
    resources = pod["spec"]["containers"][0].get("resources", {})
    asked = {**resources.get("limits", {}), **resources.get("requests", {})}
    return {key: int(amount) for key, amount in asked.items()}


def claim_of(pod: AnyJson) -> str:
    """The name of the claim by which a pod asks for Neuron; empty without."""
    claims = (str(one["resourceClaimName"]) for one in pod["spec"].get("resourceClaims") or ())
    return next((name for name in claims if not name.startswith(OTHERS_CLAIM)), "")


def owner_of(pod: AnyJson) -> str:
    """Kind and name of a pod's controller; empty without."""
    return next((f"{one['kind']}/{one['name']}" for one in pod["metadata"].get("ownerReferences", ())), "")
