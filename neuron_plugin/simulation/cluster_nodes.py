"""The nodes of a simulated cluster: with the real node daemon, or played.

A worker is a machine, its kubelet, and our plugin as a process of its own; the node's object is kept here, its labels
and what the kubelet says that it has. A played node has no machine, no sockets and no processes. Some hundred of them
show a large cluster; one without Neuron stands beside the others in every playground. Its pods run at once and until
they are deleted. A pod with Neuron has what its assignment says; one without an assignment has the best sets of what is
free, as from a plugin.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from random import Random

import msgspec

from neuron_plugin.allocation import NeuronPod, NodeInventory, Rejection, Resource
from neuron_plugin.allocation.assignment import write_assignment
from neuron_plugin.allocation.keys import ALLOCATED_KEY, PREFLIGHT_GROUP_KEY, PREFLIGHT_KEY
from neuron_plugin.allocation.node import node_info
from neuron_plugin.allocation.placement import assignment_of
from neuron_plugin.allocation.pod import TERMINAL_PHASES
from neuron_plugin.allocation.resources import parse_ids
from neuron_plugin.cluster import LeaseName
from neuron_plugin.cluster.leases import LEASE_PREFIX
from neuron_plugin.cluster.nodes import neuron_node
from neuron_plugin.cluster.objects import NODES as NODE_RECORDS
from neuron_plugin.cluster.pods import PODS as POD_RECORDS
from neuron_plugin.cluster.pods import neuron_pod
from neuron_plugin.cluster.writes import create_lease, renew_lease, utc_now
from neuron_plugin.hardware import GENERATIONS
from neuron_plugin.hardware.inventory import ELECTED
from neuron_plugin.placement.check_pods import CheckedPlace
from neuron_plugin.plugin.publisher import publication
from neuron_plugin.simulation.api_server import SimulatedApiServer
from neuron_plugin.simulation.api_server_kinds import NODES, PODS, AnyJson, Refusal
from neuron_plugin.simulation.api_server_rules import now_text
from neuron_plugin.simulation.kubelet import SimulatedKubelet
from neuron_plugin.simulation.kubelet_dra import DraManager, DraManagerTimes
from neuron_plugin.simulation.kubelet_sync import ContainerExit, PodSync
from neuron_plugin.simulation.machines import labels_of, resources_of, ultraserver_of
from neuron_plugin.simulation.node import SimulatedNode, write_node
from neuron_plugin.simulation.node_tree import NEWEST_DRIVER
from neuron_plugin.topology import Unit, catalogue

READY_SECONDS = 180.0
"""How long started daemons may take: each needs some 2 s of CPU, and the machine may be busy."""
STOP_SECONDS = 10.0
"""How long a daemon may take to end."""
_CHILD = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))
if os.getppid() != int(sys.argv.pop(1)):
    sys.exit(1)
from neuron_plugin.__main__ import entry
entry()
"""
"""A process that is killed with its parent (PR_SET_PDEATHSIG), or has none any more."""
DRA_TIMES = DraManagerTimes(retry=3.0, watcher=0.2, reconcile=5.0)
"""A claim that had to wait is prepared again sooner than by the real kubelet: someone looks on."""
RESCAN_SECONDS = 2.0
"""Faults are looked for five times as often as by default: someone waits for what they change."""
UTILIZATION_SECONDS, IDLE_AFTER_SECONDS = 5.0, 20.0
"""So is what containers do with their cores."""


CHECK_SECONDS = 3.0
"""How long a pre-flight check takes: a real one needs a minute, and someone waits for it."""
LEASE_SECONDS, RENEW_SECONDS = 40.0, 15.0
"""How long a node's plugin counts as alive after it last said so, and how often it says so."""
_READY = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
_MOST_VANISHED = 32
"""Pods whose end is published at once."""


# With the real daemon.


@dataclass(frozen=True, slots=True)
class Containers:
    """What the containers of a node do: a pre-flight check ends as the machine is, others run until they are ended."""

    node: SimulatedNode

    async def run(self, pod: AnyJson, container: str) -> ContainerExit:  # noqa: ARG002 - all containers of a pod do the same
        """See ``Runtime``."""
        if PREFLIGHT_KEY not in (pod["metadata"].get("labels") or {}):
            await asyncio.Event().wait()  # no deadline: until it is ended
        await asyncio.sleep(CHECK_SECONDS)
        there = self.node.description
        odd = [device for device, state in sorted(there.devices.items()) if not state.loaded or state.overrides]
        bad = sorted({*odd, *there.missing})
        if text := (pod["metadata"].get("annotations") or {}).get(PREFLIGHT_GROUP_KEY):
            cores = parse_ids(msgspec.json.decode(text, type=CheckedPlace).cores)
            own = {core // there.generation.cores_per_device for core in cores}
            bad = [device for device in bad if device in own]
        return (
            ContainerExit(1, "\n".join(f"device={device} cannot be used" for device in bad)) if bad else ContainerExit()
        )


class SimulatedWorker:
    """A node named ``name``, the ``place``-th of its family, from 0.

    Its files are made in ``root``, and ``cgroup_root`` is its ``/sys/fs/cgroup``.

    ``config`` is the file with all settings of its daemon, for commands that inspect the node. ``pods`` are its
    pods as its kubelet has them, ``up`` says whether that runs. With ``by_claims`` it gives its devices by claims.
    """

    def __init__(
        self,
        api: SimulatedApiServer,
        root: Path,
        name: str,
        instance_type: str,
        place: int = 0,
        *,
        daemon_flags: Sequence[str] = (),
        by_claims: bool = False,
    ) -> None:
        self._api = api
        self.name = name
        self._place = place
        server = ultraserver_of(instance_type, place)
        self.node: SimulatedNode = write_node(
            root, instance_type, usage_counters=False, work_counters=True, ultraserver=server
        )
        self.config = root / "plugin.json"
        self.log = root / "plugin.log"
        self.kubelet_dir, self.pod_resources_dir, self.cgroup_root = root / "dp", root / "pr", root / "cgroup"
        self.state_dir, self.registry_dir, self.cdi_dir = root / "state", root / "registry", root / "cdi"
        for directory in (self.kubelet_dir, self.pod_resources_dir, self.state_dir, self.registry_dir):
            directory.mkdir()
        self.dra: DraManager | None = None
        if by_claims:
            self.dra = DraManager(root, api, name, DRA_TIMES)
        chance = Random(0)  # noqa: S311 - chooses ids, guards nothing; every demo goes the same way
        self.kubelet = SimulatedKubelet(
            self.kubelet_dir,
            self.pod_resources_dir,
            plugins_registry=self.registry_dir,
            random=chance,
            cgroup_root=self.cgroup_root,
            dra=self.dra,
            cdi_dir=self.cdi_dir,
        )
        self.pods = PodSync(api, self.kubelet, runtime=Containers(self.node))
        self._boots = 1
        self.up = True
        self.health_port = free_port()
        self.daemon: asyncio.subprocess.Process | None = None
        self._daemon_flags = tuple(daemon_flags)
        self._reported: AnyJson = {}

    @property
    def pod_resources_socket(self) -> Path:
        """Where the kubelet serves PodResources."""
        return self.pod_resources_dir / "kubelet.sock"

    async def start(self, kubeconfig: Path) -> None:
        """The node joins the cluster: its object, its kubelet, its daemon."""
        self.register()
        settings = {
            "mode": "dra" if self.dra else "device-plugin",
            "node-name": self.name,
            "kubeconfig": kubeconfig,
            "sysfs": self.node.paths.sysfs,
            "dev": self.node.paths.dev,
            "logical-core-file": self.node.paths.logical_nc_config,
            "kubelet-dir": self.kubelet_dir,
            "plugins-registry": self.registry_dir,
            "cdi-dir": self.cdi_dir,
            "pod-resources-socket": self.pod_resources_socket,
            "cgroup": self.cgroup_root,
            "state-dir": self.state_dir,
            "health-address": "127.0.0.1",
            "health-port": self.health_port,
            "rescan-seconds": RESCAN_SECONDS,
            "utilization-seconds": UTILIZATION_SECONDS,
            "idle-after-seconds": IDLE_AFTER_SECONDS,
        }
        self.config.write_bytes(msgspec.json.encode(settings, enc_hook=str))  # JSON is YAML
        await self.kubelet.start()
        await self.start_daemon()

    def register(self) -> None:
        """Make the node's object, with the labels that a kubelet and a cloud provider write, and what it has by now."""
        labels = labels_of(self.name, self.node.description.instance_type, self._place)
        self._api.create_node({"metadata": {"name": self.name, "labels": labels}})
        self._reported = {}
        self.report_capacity()

    async def stop(self) -> None:
        """End the daemon, then the kubelet."""
        await self.stop_daemon()
        await self.pods.close()

    async def start_daemon(self) -> None:
        """Start the node daemon; its log goes to ``log``."""
        self.daemon = await start_process(self.log, "run", "--config", str(self.config), *self._daemon_flags)

    async def stop_daemon(self) -> int | None:
        """Ask the node daemon to end, as Kubernetes would; its exit status, or None when it did not run."""
        daemon, self.daemon = self.daemon, None
        return await end_process(daemon)

    # What befalls the whole node.

    async def stop_kubelet(self) -> None:
        """End the kubelet; containers run on, and nobody starts the daemon again."""
        self.up = False
        await self.pods.stop()

    async def start_kubelet(self) -> None:
        """Start it again."""
        await self.pods.start()
        self.up = True
        self._reported = {}

    async def power_off(self) -> None:
        """Take the machine away at once, with all that runs on it."""
        was_up, self.up = self.up, False
        daemon, self.daemon = self.daemon, None
        if daemon and daemon.returncode is None:
            daemon.kill()
            await daemon.wait()
        if was_up:
            await self.pods.stop()
        await self.pods.lose_containers()
        for written in self.cdi_dir.glob("*"):  # /var/run is memory
            written.unlink()

    async def power_on(self) -> None:
        """Start the machine and its kubelet; then the daemon's pod is started, too."""
        await asyncio.to_thread(self.node.reboot)
        self._boots += 1
        await self.start_kubelet()
        await self.start_daemon()

    @property
    def is_registered(self) -> bool:
        """Whether the daemon has offered all that the machine has to the kubelet, or is its driver of claims."""
        if self.dra:
            return bool(self.dra.drivers)
        offered = offered_by(self.node.description.instance_type)
        return all(self.kubelet.capacity(name.value).allocatable == count for name, count in offered.items())

    async def wait_until_offered(self, resource: Resource, count: int) -> None:
        """Wait until the kubelet has so many healthy ids of a resource.

        Raises:
            TimeoutError: with the last lines of the daemon's log.
        """
        try:
            await self.kubelet.wait_for_capacity(resource.value, count, timeout_seconds=READY_SECONDS)
        except TimeoutError as error:
            raise self.late(str(error)) from error

    def late(self, what: str) -> TimeoutError:
        """The error that says why the daemon is not ready, with the last lines of its log."""
        last = "\n".join(self.log.read_text().splitlines()[-5:])
        return TimeoutError(f"node {self.name}: {what}; the daemon's log ends with:\n{last}")

    async def work(self, seconds: float) -> None:
        """Let so much time pass for the cores of the node: the containers of its pods use them."""
        held = {int(name.removeprefix("neuron")) for name in self.kubelet.held_nodes()}
        await asyncio.to_thread(self.node.work, seconds, held)

    def report_capacity(self) -> bool:
        """Write what the node has and can give into its status, as the kubelet does; False when nothing changed."""
        counts = {resource.value: self.kubelet.capacity(resource.value) for resource in Resource}
        capacity = {name: str(count.capacity) for name, count in counts.items()}
        allocatable = {name: str(count.allocatable) for name, count in counts.items()}
        status = _status(self.node.description.instance_type, capacity, allocatable, f"{self.name}-{self._boots}")
        if status == self._reported:
            return False
        self._reported = status
        self._api.patch_status(NODES, self.name, status)
        return True


def offered_by(instance_type: str) -> dict[Resource, int]:
    """How much of each resource an empty node of this type has."""
    geometry = catalogue()[instance_type].geometry
    return {
        resource: geometry.core_count if resource.unit is Unit.CORE else geometry.device_count for resource in Resource
    }


def _status(instance_type: str, capacity: dict[str, str], allocatable: dict[str, str], boot: str) -> AnyJson:
    """The status of a node with so much Neuron, and with what else its type has."""
    others = resources_of(instance_type)
    amounts = {"capacity": capacity | others, "allocatable": allocatable | others}
    return amounts | {"conditions": [_READY], "nodeInfo": {"bootID": boot}}


def free_port() -> int:
    """A port of loopback that is free at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


async def start_process(log: Path, *arguments: str) -> asyncio.subprocess.Process:
    """Start a command of this program, its standard error in ``log``; it ends with this process, however that ends."""
    with log.open("ab") as stream:
        command = (sys.executable, "-c", _CHILD, str(os.getpid()), *arguments)
        starting = asyncio.ensure_future(asyncio.create_subprocess_exec(*command, stderr=stream))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:  # the caller is gone
            process = await starting
            process.kill()
            await process.wait()
            raise


async def end_process(process: asyncio.subprocess.Process | None) -> int | None:
    """Ask a process to end and wait for it, with patience; its exit status, None where there is none."""
    if process is None or process.returncode is not None:
        return process.returncode if process else None
    process.terminate()
    try:
        async with asyncio.timeout(STOP_SECONDS):
            return await process.wait()
    except TimeoutError:
        process.kill()
        return await process.wait()


# Played.


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
        offered = offered_by(self._type) if self._inventory else {}
        counts = {resource.value: str(count) for resource, count in offered.items()}
        labels, status = labels_of(self.name, self._type, self._place), _status(self._type, counts, counts, self.name)
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
