"""Gated pods at a simulated API server, and one replica that places them; time passes when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from neuron_plugin.allocation import NeuronPod, Resource
from neuron_plugin.allocation.keys import GATE, NODE_KEY
from neuron_plugin.backoff import Clock
from neuron_plugin.cluster import ApiServer, LeaseName
from neuron_plugin.placement.context import Context, Times
from neuron_plugin.placement.gates.placer import Placer
from neuron_plugin.placement.gates.upkeep import Upkeep
from neuron_plugin.placement.leadership import CONDITION, Readiness
from neuron_plugin.placement.room import Room
from neuron_plugin.placement.writer import Writer
from neuron_plugin.simulation.api_server_kinds import EVENTS, LEASES, NODES, PODS, AnyJson
from tests.support.api_server import Match, StandInApiServer
from tests.support.manifests import node_manifest, pod_manifest
from tests.support.world import World, show_kept

NEURON, CORE = Resource.NEURON, Resource.NEURONCORE
EPOCH = 1e9
"""The unix time when a test begins, in seconds."""
GROUP = "neuron-plugin.io/group"
LEASE = "neuron-extender"
TIMES = Times()
PATCH = Match(method="PATCH", path="/pods/")
DOUBTFUL = {"resourceClaims": [{"name": "nic", "resourceClaimName": "nic"}]}
"""Of a pod that cannot be judged: a claim of another driver."""
JOB_KEY = "jobset.sigs.k8s.io/job-key"


class GatesBench:
    """A replica that leads. Nodes and pods are made at the server and seen at once."""

    def __init__(
        self,
        server: StandInApiServer,
        api: ApiServer,
        release_when_full: float | str | None,
        holder: str = "",
        **settings: Any,
    ) -> None:
        """``holder`` is this replica's name in the Lease, if there is an election; the Lease is its own then.

        ``settings`` are those of the state.
        """
        self.server = server
        self.api = api
        self.now = 0.0
        self.created: dict[str, float] = {}
        self.world = World(**settings)
        self.state = self.world.state
        self.ready = Readiness({CONDITION: ""})
        self.rested: list[float] = []
        self.context = Context(
            api,
            self.state,
            self.ready,
            "one",
            clock=Clock(now=lambda: self.now, sleep=self._sleep),
            unix_seconds=lambda: EPOCH + self.now,
        )
        self.metrics = self.context.metrics
        self.writer = Writer(self.context)
        if holder and not server.objects(LEASES):
            server.create(LEASES, {"metadata": {"name": LEASE}, "spec": {}}, "kube-system")
        if holder:
            server.change(LEASES, LEASE, {"spec": {"holderIdentity": holder}}, "kube-system")
        self.room = Room(self.context, self.writer, lease=LeaseName("kube-system", LEASE, holder) if holder else None)
        self.placer = Placer(self.context, self.writer, self.room)
        self.upkeep = Upkeep(self.context, self.writer, self.placer, release_when_full=release_when_full)

    async def _sleep(self, seconds: float) -> None:
        self.rested.append(seconds)
        await asyncio.sleep(0)

    def node(
        self,
        name: str,
        cpu: str = "64",
        offers: Mapping[str, str] | None = None,
        instance_type: str = "trn1.32xlarge",
        **described: Any,
    ) -> None:
        """A node is there, or has changed; ``offers`` are further resources."""
        manifest = node_manifest(name, instance_type, **described)
        offered = {**manifest["status"]["allocatable"], "cpu": cpu, "pods": "110", **(offers or {})}
        manifest["status"]["allocatable"] = offered
        if any(node["metadata"]["name"] == name for node in self.server.objects(NODES)):
            self.server.delete_node(name)
        self.server.create_node(manifest)
        self.world.show_node(manifest)

    def labelled_node(self, name: str, **labels: str) -> None:
        self.node(name)
        self.change_node(name, {"metadata": {"labels": labels}})

    def change_node(self, name: str, change: AnyJson) -> None:
        """A change is merged into a node."""
        self.world.show_node(self.server.patch_node(name, change))

    def pod(
        self,
        name: str,
        resource: Resource = NEURON,
        amount: int = 1,
        *,
        gates: Sequence[str] = (GATE,),
        group: str = "",
        size: int = 0,
        labels: Mapping[str, str] | None = None,
        owner: str = "",
        cpu: str = "",
        **described: Any,
    ) -> AnyJson:
        """A gated pod; ``owner`` is KIND/NAME, and ``spec`` is merged into the manifest's."""
        spec = described.pop("spec", {})
        annotations = dict(described.pop("annotations", {}))
        if group:
            annotations |= {GROUP: group, f"{GROUP}-size": str(size)}
        manifest = pod_manifest(name, resource, amount, annotations=annotations, **described)
        manifest["metadata"]["labels"] = dict(labels or {})
        if owner:
            kind, _, made_by = owner.partition("/")
            version = "batch/v1" if kind == "Job" else "apps/v1"
            reference = {"apiVersion": version, "kind": kind, "name": made_by, "uid": "u", "controller": True}
            manifest["metadata"]["ownerReferences"] = [reference]
        if cpu:
            requests = manifest["spec"]["containers"][0]["resources"]["requests"]
            manifest["spec"]["containers"][0]["resources"]["requests"] = {**requests, "cpu": cpu}
        manifest["spec"] |= {"schedulingGates": [{"name": gate} for gate in gates], **spec}
        created = self.server.create_pod(manifest)
        self.sync()
        return created

    def sync(self) -> None:
        """The watches show what the server has."""
        pods = self.server.objects(PODS)
        for pod in pods:
            since = datetime.fromtimestamp(self.created.setdefault(pod["metadata"]["uid"], EPOCH + self.now), UTC)
            metadata = {**pod["metadata"], "creationTimestamp": since.isoformat()}
            self.world.show({**pod, "metadata": metadata}, **pod.get("status", {}))
        for uid in self.state.pods.keys() - {pod["metadata"]["uid"] for pod in pods}:
            self.state.remove_pod(uid)
        show_kept(self.world, self.server)

    async def step(self, *, after: float = 0.0) -> None:
        """What the replica sees and places, and what comes of it."""
        self.now += after
        self.sync()
        self.placer.step()
        await self.placer.drain()
        await asyncio.sleep(0)
        self.sync()

    async def place_all(self) -> None:
        """Steps until nothing more is written."""
        for _ in range(4):
            await self.step()

    async def look(self, *, after: float = 0.0) -> None:
        """One step and one look of the upkeep."""
        await self.step(after=after)
        await self.upkeep.look()
        await self.placer.drain()
        self.sync()

    def bind(self, name: str, node: str) -> None:
        """The pod's scheduler binds it."""
        self.server.bind("default", name, node=node)
        self.sync()

    def unschedulable(self, name: str) -> None:
        """The pod's scheduler finds no node for it."""
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        self.server.set_pod_status("default", name, {"conditions": [condition]})
        self.sync()

    def of(self, name: str) -> AnyJson:
        """The pod as the server has it."""
        return self.server.get(PODS, name, "default")

    def record(self, name: str) -> NeuronPod:
        """The pod as the state has it."""
        return self.state.pods[self.of(name)["metadata"]["uid"]]

    def gates(self, name: str) -> list[str]:
        return [gate["name"] for gate in self.of(name)["spec"].get("schedulingGates") or ()]

    def annotations(self, name: str) -> dict[str, str]:
        return self.of(name)["metadata"].get("annotations") or {}

    def place(self, name: str) -> str:
        """The node that the pod was promised; empty without."""
        return self.annotations(name).get(NODE_KEY, "")

    def terms(self, name: str) -> list[AnyJson]:
        """The terms of the pod's required node affinity."""
        affinity = self.of(name)["spec"].get("affinity", {}).get("nodeAffinity", {})
        terms: list[AnyJson] = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get(
            "nodeSelectorTerms", []
        )
        return terms

    def events(self, name: str) -> list[tuple[str, str]]:
        """Reason and note of each event about a pod."""
        return [
            (event["reason"], event["note"])
            for event in self.server.objects(EVENTS)
            if event["regarding"]["name"] == name
        ]

    def requests(self, method: str = "PATCH") -> int:
        """How many requests of a method about pods the server has seen."""
        return sum(seen.method == method and "/pods" in seen.path for seen in self.server.requests)


def exclusive(job: str, topology_key: str) -> AnyJson:
    """The anti-affinity by which JobSet keeps the pods of other Jobs out of a Job's topology domain."""
    others = [{"key": JOB_KEY, "operator": "Exists"}, {"key": JOB_KEY, "operator": "NotIn", "values": [job]}]
    term = {"labelSelector": {"matchExpressions": others}, "topologyKey": topology_key}
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
