"""The nodes of a simulated cluster: workers with the real node daemon, and played nodes.

A worker has a machine, a kubelet and our plugin as a process. A played node has no machine, sockets or processes, so
that a cluster can have hundreds of nodes; nodes without Neuron are played, too. Pods on a played node run at once until
they are deleted. A pod with Neuron gets its assignment, or the best free sets if it has none.
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
"""How long a daemon may take to stop."""
_CHILD = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))
if os.getppid() != int(sys.argv.pop(1)):
    sys.exit(1)
from neuron_plugin.__main__ import entry
entry()
"""
"""The program of a daemon that is killed with its parent (PR_SET_PDEATHSIG)."""
DRA_TIMES = DraManagerTimes(retry=3.0, watcher=0.2, reconcile=5.0)
"""Shorter than a real kubelet's, because a person waits."""
RESCAN_SECONDS = 2.0
"""A fifth of the default, because a person waits for the effect of a fault."""
UTILIZATION_SECONDS, IDLE_AFTER_SECONDS = 5.0, 20.0
"""Also shorter than by default."""
CHECK_SECONDS = 3.0
"""How long a pre-flight check takes; a real one needs a minute."""
LEASE_SECONDS, RENEW_SECONDS = 40.0, 15.0
"""Duration and renewal of the Lease of a played node's plugin."""
_READY = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
_MOST_VANISHED = 32
"""Ended pods that the inventory of a played node names."""


# Workers.


@dataclass(frozen=True, slots=True)
class Containers:
    """A node's containers: a pre-flight check fails if the machine has a fault; others run until they are killed."""

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
    """A node with a real daemon, the ``place``-th of its family, from 0. Its files are in ``root``.

    ``config`` is the daemon's settings file, also for commands that inspect the node. ``cgroup_root`` stands for
    ``/sys/fs/cgroup``. ``up`` says whether the kubelet runs. With ``by_claims`` the node offers its devices by claims.
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
        chance = Random(0)  # noqa: S311 - chooses ids, guards nothing; every demo is the same
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
        """Register the node, and start its kubelet and its daemon."""
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
        """Create the node's object with its labels and current capacity."""
        labels = labels_of(self.name, self.node.description.instance_type, self._place)
        self._api.create_node({"metadata": {"name": self.name, "labels": labels}})
        self._reported = {}
        self.report_capacity()

    async def stop(self) -> None:
        """Stop the daemon, then the kubelet."""
        await self.stop_daemon()
        await self.pods.close()

    async def start_daemon(self) -> None:
        """Start the node daemon; its log goes to ``log``."""
        self.daemon = await start_process(self.log, "run", "--config", str(self.config), *self._daemon_flags)

    async def stop_daemon(self) -> int | None:
        """Stop the node daemon with SIGTERM; its exit status, or None if it did not run."""
        daemon, self.daemon = self.daemon, None
        return await end_process(daemon)

    # Faults of the whole node.

    async def stop_kubelet(self) -> None:
        """Stop the kubelet. Containers keep running, and the daemon is not restarted."""
        self.up = False
        await self.pods.stop()

    async def start_kubelet(self) -> None:
        """Start the kubelet again."""
        await self.pods.start()
        self.up = True
        self._reported = {}

    async def power_off(self) -> None:
        """Kill everything that runs on the machine."""
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
        """Start the machine, its kubelet, and the daemon."""
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
        """Wait until this many ids of a resource are allocatable.

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
        """Advance the work counters of the node's cores by so much time."""
        held = {int(name.removeprefix("neuron")) for name in self.kubelet.held_nodes()}
        await asyncio.to_thread(self.node.work, seconds, held)

    def report_capacity(self) -> bool:
        """Write the node's capacity and allocatable resources into its status; False if nothing changed."""
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
    """A node's status with this much Neuron, and the other resources of its type."""
    others = resources_of(instance_type)
    amounts = {"capacity": capacity | others, "allocatable": allocatable | others}
    return amounts | {"conditions": [_READY], "nodeInfo": {"bootID": boot}}


def free_port() -> int:
    """A free port of loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


async def start_process(log: Path, *arguments: str) -> asyncio.subprocess.Process:
    """Start a command of this program with standard error in ``log``. It is killed when this process ends."""
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
    """Terminate a process, and kill it if it takes too long; its exit status, or None without a process."""
    if process is None or process.returncode is not None:
        return process.returncode if process else None
    process.terminate()
    try:
        async with asyncio.timeout(STOP_SECONDS):
            return await process.wait()
    except TimeoutError:
        process.kill()
        return await process.wait()


# Played nodes.


class PlayedNode:
    """A node without a machine, the ``place``-th of its family, from 0."""

    def __init__(self, api: SimulatedApiServer, name: str, instance_type: str, place: int) -> None:
        self.name = name
        self.up = True
        self._api = api
        self._type = instance_type
        self._place = place
        self._seen: dict[str, AnyJson] = {}
        """Its handled pods by UID."""
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
        """Create the node's object with its capacity."""
        offered = offered_by(self._type) if self._inventory else {}
        counts = {resource.value: str(count) for resource, count in offered.items()}
        labels, status = labels_of(self.name, self._type, self._place), _status(self._type, counts, counts, self.name)
        self._api.create_node({"metadata": {"name": self.name, "labels": labels}, "status": status})
        self._publish()

    async def stop_kubelet(self) -> None:
        """Handle no pods and renew no Lease from now on."""
        self.up = False

    async def start_kubelet(self) -> None:
        """Handle pods again."""
        self.up = True
        self._api.patch_status(NODES, self.name, {"conditions": [_READY]})
        self.look([pod for pod in self._api.objects(PODS) if pod["spec"].get("nodeName") == self.name])

    power_off, power_on = stop_kubelet, start_kubelet

    def upkeep(self, now: float) -> None:
        """Register a deleted node again, and renew the plugin's Lease."""
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
        """Take the node's current pods: run new ones, and end deleted ones."""
        if not self.up:
            return
        pods = {manifest["metadata"]["uid"]: manifest for manifest in manifests}
        ended = self._seen.keys() - pods.keys()
        for uid, manifest in pods.items():
            if manifest["status"].get("phase") in TERMINAL_PHASES:
                continue
            with contextlib.suppress(Refusal):  # changed meanwhile: the next look sees that
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
        if PREFLIGHT_KEY in (metadata.get("labels") or {}):  # a played node has no faults
            self._api.patch_status(PODS, name, {"phase": "Succeeded"}, namespace)
            return
        started = {"ready": True, "started": True, "restartCount": 0, "state": {"running": {"startedAt": now_text()}}}
        statuses = [{"name": container["name"], **started} for container in manifest["spec"].get("containers") or ()]
        ready = [{"type": "Ready", "status": "True", "lastTransitionTime": now_text()}]
        status = {"phase": "Running", "containerStatuses": statuses, "conditions": ready}
        self._api.patch_status(PODS, name, status, namespace)

    def _given(self, pod: NeuronPod) -> dict[str, str] | Rejection:
        """The annotations that give a pod its devices."""
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
        """Publish the inventory, as the plugin does."""
        if self._inventory:
            said = publication(self.name, replace(self._inventory, vanished_pods=self._vanished))
            self._api.answer(said)


def _read(manifest: AnyJson) -> NeuronPod:
    return neuron_pod(POD_RECORDS.decode(msgspec.json.encode(manifest)))
