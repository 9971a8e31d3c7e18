"""One simulated node with the real node daemon on it: a machine, its kubelet, and our plugin as a process of its own.

The node's object is kept here: its labels, and what the kubelet says that it has.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import msgspec

from neuron_plugin.allocation import Resource
from neuron_plugin.allocation.keys import PREFLIGHT_GROUP_KEY, PREFLIGHT_KEY
from neuron_plugin.allocation.resources import parse_ids
from neuron_plugin.placement.check_pods import CheckedPlace
from neuron_plugin.simulation.api_server import SimulatedApiServer
from neuron_plugin.simulation.api_server_kinds import NODES, AnyJson
from neuron_plugin.simulation.kubelet import SimulatedKubelet
from neuron_plugin.simulation.kubelet_dra import DraManager, DraManagerTimes
from neuron_plugin.simulation.kubelet_sync import ContainerExit, PodSync
from neuron_plugin.simulation.machines import labels_of, resources_of, ultraserver_of
from neuron_plugin.simulation.node import SimulatedNode, write_node

READY_SECONDS = 60.0
"""How long a started daemon may take until its node has its devices."""
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

    async def wait_until_registered(self) -> None:
        """Wait until the daemon has offered every device of the machine to the kubelet, or is its driver of claims.

        Raises:
            TimeoutError: with the last lines of the daemon's log.
        """
        if self.dra is None:
            await self.wait_until_offered(Resource.NEURONDEVICE, len(self.node.description.loaded))
        try:
            async with asyncio.timeout(READY_SECONDS):
                while missing := self._not_registered():  # noqa: ASYNC110 - polled, as by a user
                    await asyncio.sleep(0.05)
        except TimeoutError as error:
            raise self._late(f"not registered: {', '.join(missing)}") from error

    def _not_registered(self) -> list[str]:
        if self.dra:
            return [] if self.dra.drivers else ["a driver of claims"]
        return [resource.value for resource in Resource if not self.kubelet.capacity(resource.value).allocatable]

    async def wait_until_offered(self, resource: Resource, count: int) -> None:
        """Wait until the kubelet has so many healthy ids of a resource.

        Raises:
            TimeoutError: with the last lines of the daemon's log.
        """
        try:
            await self.kubelet.wait_for_capacity(resource.value, count, timeout_seconds=READY_SECONDS)
        except TimeoutError as error:
            raise self._late(str(error)) from error

    def _late(self, what: str) -> TimeoutError:
        last = "\n".join(self.log.read_text().splitlines()[-5:])
        return TimeoutError(f"{what}; the daemon's log ends with:\n{last}")

    async def work(self, seconds: float) -> None:
        """Let so much time pass for the cores of the node: the containers of its pods use them."""
        held = {int(name.removeprefix("neuron")) for name in self.kubelet.held_nodes()}
        await asyncio.to_thread(self.node.work, seconds, held)

    def report_capacity(self) -> bool:
        """Write what the node has and can give into its status, as the kubelet does; False when nothing changed."""
        counts = {resource.value: self.kubelet.capacity(resource.value) for resource in Resource}
        others = resources_of(self.node.description.instance_type)
        status: AnyJson = {
            "capacity": {name: str(count.capacity) for name, count in counts.items()} | others,
            "allocatable": {name: str(count.allocatable) for name, count in counts.items()} | others,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            "nodeInfo": {"bootID": f"{self.name}-{self._boots}"},
        }
        if status == self._reported:
            return False
        self._reported = status
        self._api.patch_status(NODES, self.name, status)
        return True


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
