"""What becomes of pods in the model that wait, or that were let go: told why, handed over, taken back, given devices.

Here are the plugin that gives devices to a pod that has no promise, the controllers that make pods again, and the
cluster's autoscaler, if it has one.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from neuron_plugin.allocation import NeuronPod, Rejection, Resource
from neuron_plugin.allocation.event_reasons import EventReason
from neuron_plugin.allocation.keys import GATE, RELEASED_KEY
from neuron_plugin.cluster import ApiRequest
from neuron_plugin.cluster.api import Response
from neuron_plugin.cluster.pods import PodUse
from neuron_plugin.placement.context import Times
from neuron_plugin.simulation.api_server_kinds import EVENTS, PODS, AnyJson, Target
from neuron_plugin.topology import CoreMask, Geometry, Unit, valid_sets
from tests.placement.gates.model_part import Part
from tests.placement.gates.model_users import gates_of, number_of, owner_of, requests_of
from tests.support.manifests import shipped_geometry

if TYPE_CHECKING:
    from tests.placement.gates.model import Model
    from tests.placement.gates.model_replica import Replica

TIMES = Times(stuck=5.0, avoid=60.0)
"""With less patience than a controller has: a life is short."""
TRN1: Geometry = shipped_geometry("trn1.32xlarge")
IGNORES = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
"""A rule of a Job's podFailurePolicy."""
JOBS, AUTOSCALER = "/apis/batch/v1/namespaces/default/jobs/", "/apis/karpenter.sh"


class Lookout(Part):
    """Somebody who looks after each pod that is not at rest."""

    def __init__(self, model: Model, seed: int) -> None:
        super().__init__(model)
        self.release_when_full = (None, "auto", 5.0)[seed % 3]
        self.has_autoscaler = seed % 2 == 1
        self.taken_back = 0
        self.avoided: dict[tuple[Replica, int, str, str], float] = {}
        """By replica, its term, owner and node: since when pods of the owner keep off."""
        self.let_go: dict[str, tuple[float, float]] = {}
        """By pod that was handed over without those nodes that have no linked set: when, and since when who led."""
        self.given: set[str] = set()
        """Pods for which the plugin has chosen the devices, maybe of those that were promised to others."""
        self.given_at: dict[tuple[str, Resource], float] = {}
        """By node and resource, when the plugin has last chosen devices there."""
        self.changed: dict[str, float] = {}
        """By node, when it last lost devices, or came."""

    def answer(self, request: ApiRequest) -> Response | None:
        """What the API server says of Jobs, and of an autoscaler."""
        if request.path.startswith(JOBS):
            rules = [IGNORES] if request.path.endswith("careful") else []
            return Response(200, msgspec.json.encode({"spec": {"podFailurePolicy": {"rules": rules}}}))
        if request.path == AUTOSCALER:
            return Response(200 if self.has_autoscaler else 404, b"{}")
        return None

    def ignores_disruption(self, pod: AnyJson) -> bool:
        return owner_of(pod) == "Job/careful"

    def refuses(self, pod: AnyJson, name: str) -> bool:
        """Whether a plugin of the scheduler that nobody else knows keeps a pod off a node."""
        return name in {"b", "d"} and number_of(pod["metadata"]["name"]) % 3 == 0

    # What is let go without a node.

    def sent(self, replica: Replica, request: ApiRequest) -> None:
        if request.method == "POST" and request.path.startswith(EVENTS.group):
            self.note_avoided(replica, request.body or {})

    def handed_over(self, replica: Replica, pod: NeuronPod) -> None:
        """A pod is handed over without any word about its node only where no open node has enough by count.

        Those that its scheduler has not found good lately do not count.
        """
        assert self.release_when_full == 5.0 or (self.release_when_full == "auto" and self.has_autoscaler)
        open_nodes = [
            name
            for name, info in replica.state.nodes.items()
            if not isinstance(info.capacity, Rejection)
            and name not in replica.state.avoided.get(pod.owner, {})
            and self.has_enough(replica, pod, name)
        ]
        assert not open_nodes, f"{pod.reference} is handed over, and {open_nodes} have enough by count"

    def has_enough(self, replica: Replica, pod: NeuronPod, name: str) -> bool:
        """Whether a scheduler would find enough for a pod on a node by count, as a replica sees it."""
        made, state = {**self.model.made, **self.model.checks.made}, replica.state
        here = {uid for uid, other in state.pods.items() if other.place == name and uid != pod.uid}
        here |= {uid for uid, assumed in state.assumed.items() if assumed.pod.place == name}
        used = sum((Counter(requests_of(made[uid])) for uid in here if uid in made), Counter[str]())
        around = [dict(use.needs) for use in replica.seen.values() if isinstance(use, PodUse) and use.node == name]
        used["cpu"] += sum(needs.get("cpu", 0) for needs in around) // 1000
        allocatable = replica.nodes[name]["status"]["allocatable"]
        asked = requests_of(made[pod.uid])
        fits = all(used[key] + amount <= int(allocatable.get(key, 0)) for key, amount in asked.items())
        return fits and not self.model.rules.seen_against(replica, pod, name)

    def done(self, request: ApiRequest, target: Target, before: AnyJson | None) -> None:
        if before is None or target.kind is not PODS:
            return
        body: Any = request.body or {}
        said = (body.get("metadata") or {}).get("annotations") or {}
        if request.method == "PATCH" and said.get(RELEASED_KEY) == "excluded":
            self.let_go[before["metadata"]["uid"]] = self.model.now, self.model.leads_from
        if request.method == "DELETE":
            self.take_back(before)
        is_eviction = target.subresource == "eviction" and "dryRun" not in str(request.body)
        if is_eviction and not before["spec"].get("nodeName"):
            self.taken_back += 1
            assert self.ignores_disruption(before), f"{target.name} is taken back, and its Job counts that as a failure"
            self.model.users.create()

    def take_back(self, pod: AnyJson) -> None:
        """A pod is deleted only if it is not bound, and its controller makes it again."""
        name = pod["metadata"]["name"]
        self.taken_back += 1
        assert owner_of(pod).startswith("ReplicaSet/"), f"{name} is deleted, and nobody makes it again"
        assert not pod["spec"].get("nodeName"), f"{name} is deleted, and it is bound"
        self.model.users.create()

    # What is avoided.

    def note_avoided(self, replica: Replica, event: Any) -> None:
        """The node of a pod that was taken back is avoided from now on by all pods of its owner."""
        if event["reason"] != EventReason.PLACEMENT_FAILED or "The scheduler did not find node" not in event["note"]:
            return
        node = event["note"].split()[5]
        if owner := owner_of(self.model.made[event["regarding"]["uid"]]):
            self.avoided[replica, id(replica.state), owner, node] = self.model.now

    def chosen(self, replica: Replica, pod: NeuronPod, node: str) -> None:
        owner = owner_of(self.model.made[pod.uid])
        since = self.model.now - self.avoided.get((replica, id(replica.state), owner, node), float("-inf"))
        assert since >= TIMES.avoid, f"{pod.reference} goes back to {node}, from where a pod of {owner} was taken back"

    # The plugin.

    def give(self, name: str, taken: frozenset[int]) -> None:
        """The plugin gives devices to a pod that came without any, of those that are not ``taken``.

        A pod that was let go without certain nodes has a linked set wherever its scheduler has sent it, unless a node
        has lost devices since, or another leader has gone on with what was kept for groups. Or another such pod has
        come there that asks by another name: what ended there was free to both, and the kubelet's counts are behind.
        """
        pod = self.model.pods[name]
        node, uid = pod["spec"]["nodeName"], pod["metadata"]["uid"]
        limits = pod["spec"]["containers"][0]["resources"].get("limits", {})
        resource = next((one for one in Resource if one.value in limits), None)
        if resource is None:
            return
        free = TRN1.all_mask & ~sum(1 << core for core in taken)
        count = int(limits[resource.value])
        linked = next((mask for mask in valid_sets(TRN1, resource.unit, count) if not mask & ~free), None)
        at, leads_from = self.let_go.get(uid, (0.0, -1.0))
        is_certain = leads_from == self.model.leads_from and self.changed.get(node, 0.0) < at
        is_certain &= not self.model.too_late
        is_certain &= all(self.given_at.get((node, other), 0.0) < at for other in Resource if other is not resource)
        assert linked or not is_certain, f"{name} came to {node}, where no linked set is left"
        ids = TRN1.ids_of(resource.unit, CoreMask(linked or free))[:count]
        if len(ids) < count:
            self.model.server.set_pod_status("default", name, {"phase": "Failed", "reason": "UnexpectedAdmissionError"})
            return
        key = "NEURON_CORES" if resource.unit is Unit.CORE else "NEURON_DEVS"
        self.given.add(name)
        self.given_at[node, resource] = self.model.now
        said = {key: ",".join(map(str, ids)), "NEURON_ALLOCATED": "true"}
        self.model.server.patch_pod("default", name, {"metadata": {"annotations": said}})

    # What is told.

    def finish(self) -> None:
        """Each pod that waits was told why, and a pod that is let go has a node."""
        told = {
            event["regarding"]["uid"]
            for event in self.model.server.objects(EVENTS)
            if event["reason"] == EventReason.WAITING
        }
        replica = self.model.leader
        assert replica
        for name, pod in self.model.pods.items():
            uid = pod["metadata"]["uid"]
            if gates_of(pod) == {GATE} and uid not in replica.state.reserved and uid in replica.state.gated:
                assert uid in told, f"{name} waits and was not told why"
