"""A node whose kubelet and plugin are played: it has no machine, no sockets and no processes.

Some hundred of them show a large cluster; one without Neuron stands beside the others in every playground. Its pods run
at once and until they are deleted. A pod with Neuron has what its assignment says; one without an assignment has the
best sets of what is free, as from a plugin.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from dataclasses import replace
from http import HTTPStatus

import msgspec

from neuron_plugin.allocation import NeuronPod, NodeInventory, Rejection, Resource
from neuron_plugin.allocation.assignment import write_assignment
from neuron_plugin.allocation.keys import ALLOCATED_KEY, PREFLIGHT_KEY
from neuron_plugin.allocation.node import node_info
from neuron_plugin.allocation.placement import assignment_of
from neuron_plugin.allocation.pod import TERMINAL_PHASES
from neuron_plugin.cluster import LeaseName
from neuron_plugin.cluster.leases import LEASE_PREFIX
from neuron_plugin.cluster.nodes import neuron_node
from neuron_plugin.cluster.objects import NODES as NODE_RECORDS
from neuron_plugin.cluster.pods import PODS as POD_RECORDS
from neuron_plugin.cluster.pods import neuron_pod
from neuron_plugin.cluster.writes import create_lease, renew_lease, utc_now
from neuron_plugin.hardware import GENERATIONS
from neuron_plugin.hardware.inventory import ELECTED
from neuron_plugin.plugin.publisher import publication
from neuron_plugin.simulation.api_server import SimulatedApiServer
from neuron_plugin.simulation.api_server_kinds import NODES, PODS, AnyJson, Refusal
from neuron_plugin.simulation.api_server_rules import now_text
from neuron_plugin.simulation.machines import labels_of, resources_of, ultraserver_of
from neuron_plugin.simulation.node_tree import NEWEST_DRIVER
from neuron_plugin.topology import Unit, catalogue

LEASE_SECONDS, RENEW_SECONDS = 40.0, 15.0
"""How long a node's plugin counts as alive after it last said so, and how often it says so."""
_READY = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
_MOST_VANISHED = 32
"""Pods whose end is published at once."""


class PlayedNode:
    """The node ``name``, the ``place``-th of its family, from 0."""

    def __init__(self, api: SimulatedApiServer, name: str, instance_type: str, place: int) -> None:
        self.name = name
        self.up = True
        self._api = api
        self._type = instance_type
        self._place = place
        self._seen: dict[str, AnyJson] = {}
        """Its pods by UID, as they were last acted on."""
        self._vanished: tuple[str, ...] = ()
        self._renewed_at = 0.0
        instance, server = catalogue().get(instance_type), ultraserver_of(instance_type, place)
        self._inventory = instance and NodeInventory(
            instance.geometry,
            tuple(range(instance.devices)),
            device_name=instance.device_name,
            driver_version=NEWEST_DRIVER,
            logical_core_size=instance.logical_core_size,
            physical_cores_per_device=GENERATIONS[instance.device_name].cores_per_device,
            ultraserver={name: server[attribute] for name, attribute in ELECTED.items() if attribute in server},
        )

    def register(self) -> None:
        """Make the node's object, with what it has."""
        counts = dict[str, str]()
        if self._inventory:
            geometry = self._inventory.geometry
            counts = {
                resource.value: str(geometry.core_count if resource.unit is Unit.CORE else geometry.device_count)
                for resource in Resource
            }
        amounts = counts | resources_of(self._type)
        status: AnyJson = {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [_READY],
            "nodeInfo": {"bootID": self.name},
        }
        labels = labels_of(self.name, self._type, self._place)
        self._api.create_node({"metadata": {"name": self.name, "labels": labels}, "status": status})
        self._publish()

    async def stop_kubelet(self) -> None:
        """See nothing, and say nothing, from now on."""
        self.up = False

    async def start_kubelet(self) -> None:
        """Go on as before."""
        self.up = True
        self._api.patch_status(NODES, self.name, {"conditions": [_READY]})
        self.look([pod for pod in self._api.objects(PODS) if pod["spec"].get("nodeName") == self.name])

    power_off, power_on = stop_kubelet, start_kubelet

    def upkeep(self, now: float) -> None:
        """Make a lost object again, and say from time to time that the plugin is there."""
        if not self.up:
            return
        try:
            self._api.get(NODES, self.name)
        except Refusal:
            self.register()
        if self._inventory and now - self._renewed_at >= RENEW_SECONDS:
            self._renewed_at = now
            lease = LeaseName("kube-system", f"{LEASE_PREFIX}{self.name}", holder=self.name)
            renewed = self._api.answer(renew_lease(lease, duration_seconds=LEASE_SECONDS, now=utc_now()))
            if renewed.status == HTTPStatus.NOT_FOUND:
                self._api.answer(create_lease(lease, duration_seconds=LEASE_SECONDS, now=utc_now()))

    def look(self, manifests: Iterable[AnyJson]) -> None:
        """See all pods of this node as they are; run new ones, and end those that are deleted."""
        if not self.up:
            return
        pods = {manifest["metadata"]["uid"]: manifest for manifest in manifests}
        ended = self._seen.keys() - pods.keys()
        for uid, manifest in pods.items():
            if manifest["status"].get("phase") in TERMINAL_PHASES:
                continue
            with contextlib.suppress(Refusal):  # changed since it was listed: the next look sees that
                if "deletionTimestamp" in manifest["metadata"]:
                    self._end(manifest)
                    ended.add(uid)
                elif uid not in self._seen:
                    self._seen[uid] = manifest
                    self._run(manifest)
        vanished = [uid for uid in sorted(ended) if uid in self._seen and _read(self._seen.pop(uid)).request]
        if vanished and self._inventory:
            self._vanished = (*self._vanished, *vanished)[-_MOST_VANISHED:]
            self._publish()

    def _run(self, manifest: AnyJson) -> None:
        metadata, pod = manifest["metadata"], _read(manifest)
        name, namespace = metadata["name"], metadata["namespace"]
        if pod.request:
            given = self._given(pod)
            if isinstance(given, Rejection):
                failed = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": given.text}
                self._api.patch_status(PODS, name, failed, namespace)
                return
            self._api.change(PODS, name, {"metadata": {"annotations": given}}, namespace)
        if PREFLIGHT_KEY in (metadata.get("labels") or {}):  # a machine that is played has no faults
            self._api.patch_status(PODS, name, {"phase": "Succeeded"}, namespace)
            return
        started = {"ready": True, "started": True, "restartCount": 0, "state": {"running": {"startedAt": now_text()}}}
        statuses = [{"name": container["name"], **started} for container in manifest["spec"].get("containers") or ()]
        ready = [{"type": "Ready", "status": "True", "lastTransitionTime": now_text()}]
        status = {"phase": "Running", "containerStatuses": statuses, "conditions": ready}
        self._api.patch_status(PODS, name, status, namespace)

    def _given(self, pod: NeuronPod) -> dict[str, str] | Rejection:
        """The annotations with which a pod has its devices."""
        if isinstance(pod.request, Rejection):
            return pod.request
        if pod.assignment is not None:
            return pod.assignment if isinstance(pod.assignment, Rejection) else {ALLOCATED_KEY: "true"}
        node = neuron_node(NODE_RECORDS.decode(msgspec.json.encode(self._api.get(NODES, self.name))), catalogue())
        here = [other for other in self._api.objects(PODS) if other["spec"].get("nodeName") == self.name]
        others = [_read(other) for other in here if other["status"].get("phase") not in TERMINAL_PHASES]
        info = node_info(node, [other for other in others if other.assignment is not None])
        if isinstance(info.capacity, Rejection):
            return info.capacity
        placement = info.capacity.place(pod.requests)
        if isinstance(placement, Rejection):
            return placement
        assignment = assignment_of(info.capacity.geometry, placement, time.time_ns())
        return write_assignment(assignment) | {ALLOCATED_KEY: "true"}

    def _end(self, manifest: AnyJson) -> None:
        name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
        self._api.patch_status(PODS, name, {"phase": "Succeeded"}, namespace)
        self._api.delete_pod(namespace, name, grace_seconds=0)

    def _publish(self) -> None:
        """Write the inventory on the node, as the plugin does."""
        if self._inventory:
            said = publication(self.name, replace(self._inventory, vanished_pods=self._vanished))
            self._api.answer(said)


def _read(manifest: AnyJson) -> NeuronPod:
    return neuron_pod(POD_RECORDS.decode(msgspec.json.encode(manifest)))
