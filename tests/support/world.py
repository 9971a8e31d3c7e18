"""A cluster in memory for the extender's tests: manifests in, verbs asked, no API server."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from neuron_plugin.allocation import (
    Capacity,
    NeuronNode,
    NeuronPod,
    PodReference,
    PodRequest,
    PodUid,
    Rejection,
    Resource,
)
from neuron_plugin.allocation.rejection import UNKNOWN_NODE
from neuron_plugin.cluster.nodes import neuron_node
from neuron_plugin.cluster.objects import NODES
from neuron_plugin.cluster.pods import PODS, neuron_pod
from neuron_plugin.placement.claims import Shown
from neuron_plugin.placement.extender.filter import Filtered, filter_nodes, score_nodes
from neuron_plugin.placement.informers import keep_pod, show_pod
from neuron_plugin.placement.state import ClusterState
from neuron_plugin.placement.storage import ALWAYS, STORAGE
from neuron_plugin.simulation.api_server_kinds import KINDS
from neuron_plugin.topology import catalogue, product_names
from tests.support.api_server import StandInApiServer
from tests.support.manifests import node_manifest, pod_manifest

CORE, DEVICE = Resource.NEURONCORE, Resource.NEURON


TYPES = catalogue()


class World:
    """A state that gets manifests as the watches would bring them."""

    def __init__(self, version: int = 0, **settings: Any) -> None:
        self.state = ClusterState(version, product_names(TYPES), **settings)
        self._shown: dict[str, Shown] = {}
        self._kept: dict[str, object] = {}

    def node(self, name: str, instance_type: str, **described: Any) -> None:
        """A node is there, or has changed."""
        self.show_node(node_manifest(name, instance_type, **described))

    def show_node(self, manifest: Mapping[str, Any]) -> None:
        self.state.put_node(node_of(manifest))

    def pod(self, name: str, resource: Resource = CORE, amount: int = 0, **described: Any) -> dict[str, Any]:
        """A pod is there; gives its manifest."""
        manifest = pod_manifest(name, resource, amount, **described)
        self.show(manifest)
        return manifest

    def show_kept(self, plural: str, manifest: Mapping[str, Any]) -> None:
        """A namespace, a disruption budget or an object of storage is there, or has changed."""
        kind = {**ALWAYS, **STORAGE}[plural]
        uid = manifest["metadata"]["uid"]
        record = kind.keep(kind.resource.decode(msgspec.json.encode(manifest)))
        if record != self._kept.get(uid):
            kind.put(self.state, uid, self._kept.get(uid), record)
        self._kept[uid] = record

    def kept_gone(self, plural: str, uids: Collection[str]) -> None:
        """Of these objects of a kind only those are left."""
        kind = {**ALWAYS, **STORAGE}[plural]
        for uid in [
            uid for uid, record in self._kept.items() if uid not in uids and isinstance(record, kind.resource.record)
        ]:
            kind.put(self.state, uid, self._kept.pop(uid), None)

    def show(self, manifest: Mapping[str, Any], **status: str) -> None:
        """The watch shows a pod."""
        self._show(manifest, _kept(msgspec.json.encode({**manifest, "status": status or manifest.get("status", {})})))

    def gone(self, manifest: Mapping[str, Any]) -> None:
        """The watch shows a pod deleted."""
        self._show(manifest, None)

    def _show(self, manifest: Mapping[str, Any], record: Shown) -> None:
        uid = manifest["metadata"]["uid"]
        before = self._shown.pop(uid, None) or self.state.pods.get(uid)
        show_pod(self.state, uid, before, record)
        if record is not None:
            self._shown[uid] = record

    def held(self, name: str, node: str, resource: Resource, ids: str, **described: Any) -> dict[str, Any]:
        """A pod is bound and says which ids it was given."""
        key = "NEURON_CORES" if resource is CORE else "NEURON_DEVS"
        amount = len(ids.split(","))
        return self.pod(name, resource, amount, node=node, annotations={key: ids}, **described)

    def capacity(self, node: str) -> Capacity | Rejection:
        """What a node can give; a reason for an unknown one."""
        info = self.state.nodes.get(node)
        return info.capacity if info else UNKNOWN_NODE

    def filter(self, manifest: Mapping[str, Any], names: Sequence[str] | None = None) -> Filtered:
        record = record_of(manifest)
        return filter_nodes(self.state, record, list(names or self.state.nodes))

    def fits(self, resource: Resource, amount: int, node: str) -> bool:
        """Whether a new pod of one container would pass there."""
        return self.filter(pod_manifest("probe", resource, amount), [node]).passed == [node]

    def why_not(self, resource: Resource, amount: int, node: str) -> str:
        """The reason a new pod of one container is refused with."""
        ((rejection, _),) = self.filter(pod_manifest("probe", resource, amount), [node]).rejected.items()
        return rejection.text

    def scores(self, resource: Resource, amount: int, names: Sequence[str], *, alone: bool = True) -> list[int]:
        request = request_of(record_of(pod_manifest("probe", resource, amount)))
        return score_nodes(self.state, request, list(names), alone=alone)


@lru_cache(4096)
def _kept(encoded: bytes) -> Shown:
    return keep_pod(PODS.decode(encoded))


def node_of(manifest: Mapping[str, Any]) -> NeuronNode:
    return neuron_node(NODES.decode(msgspec.json.encode(manifest)), TYPES)


def record_of(manifest: Mapping[str, Any]) -> NeuronPod:
    return neuron_pod(PODS.decode(msgspec.json.encode(manifest)))


def request_of(record: NeuronPod) -> PodRequest:
    assert not isinstance(record.request, Rejection), record.request.detail
    return record.request


def pod_of(manifest: Mapping[str, Any]) -> PodReference:
    metadata = manifest["metadata"]
    return PodReference(PodUid(metadata["uid"]), metadata["namespace"], metadata["name"])


def show_kept(world: World, server: StandInApiServer, unseen: Collection[str] = ()) -> None:
    """The watches show the namespaces, budgets and storage that a server has, but for kinds that are ``unseen``."""
    for kind in KINDS:
        if kind.plural in {**ALWAYS, **STORAGE} and kind.plural not in unseen:
            objects = server.objects(kind)
            for manifest in objects:
                world.show_kept(kind.plural, manifest)
            world.kept_gone(kind.plural, {manifest["metadata"]["uid"] for manifest in objects})
