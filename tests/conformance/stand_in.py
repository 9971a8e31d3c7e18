"""The suite's node without a cluster: the simulated kubelet and API server, the daemon in this process.

What is judged here is also what a playground shows: the same kubelet between the same API server and its containers.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import msgspec

from neuron_plugin.allocation import Resource
from neuron_plugin.kubelet import PodResourcesClient
from neuron_plugin.plugin.daemon import NodeDaemon
from neuron_plugin.plugin.machine import DaemonTimes
from neuron_plugin.plugin.settings import PluginSettings
from neuron_plugin.simulation import write_node
from neuron_plugin.simulation.api_server import SimulatedApiServer
from neuron_plugin.simulation.api_server_kinds import PODS, RESOURCE_CLAIMS, AnyJson
from neuron_plugin.simulation.kubelet import KubeletOptions, SimulatedKubelet
from neuron_plugin.simulation.kubelet_dra import DraManager, DraManagerTimes
from neuron_plugin.simulation.kubelet_sync import ContainerExit, PodSync
from neuron_plugin.simulation.resource_claims import sync_claims
from neuron_plugin.simulation.supervisor import turns
from neuron_plugin.topology import catalogue
from tests.conformance.cluster_node import OPEN, ClusterNode
from tests.conformance.node import INSTANCE_TYPE, OPENABLE, Ability, Capacity

NODE = "stand-in"
DRA_TIMES = DraManagerTimes(retry=0.1, watcher=0.05, health=0.1, wipe=0.5, reconcile=0.2)
HOLD = "import os, sys; os.open(sys.argv[1], os.O_RDONLY); print('open', flush=True); sys.stdin.read()"
ADMIT_AGAIN_SECONDS = 0.5
"""How long after its start a kubelet admits the pods of before again. The plugin has registered by then."""
LINGER_SECONDS = 0.5
"""How long the processes of a pod deleted by force are left alone; a kubelet gives them two seconds."""
RUN_SECONDS = 1.0
"""How long a container runs that exits."""
LOOK_SECONDS = 0.05
"""Between two looks of the kubelet at its pods."""
KILLED = 137


class Scripts:
    """What the suite's containers do, by their scripts. Those that open a device do it in a process of their own."""

    def __init__(self, device: Path) -> None:
        self.processes: dict[str, asyncio.subprocess.Process] = {}
        """By pod UID."""
        self._device = device
        self._kills: dict[str, list[asyncio.Event]] = defaultdict(list)

    async def run(self, pod: AnyJson, container: str) -> ContainerExit:
        """See ``Runtime``."""
        parts = [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]
        script = next(part["command"][-1] for part in parts if part["name"] == container)
        uid, killed = pod["metadata"]["uid"], asyncio.Event()
        self._kills[uid].append(killed)
        if OPEN in script:
            process = await self._open()
            self.processes[uid] = process
        try:
            if exits := re.search(r"exit (\d+)$", script):
                await asyncio.sleep(RUN_SECONDS)
                return ContainerExit(int(exits[1]))
            await killed.wait()
            return ContainerExit(KILLED)
        finally:
            self._kills[uid].remove(killed)
            if OPEN in script:
                process.kill()
                await process.communicate()

    async def kill(self, uid: str) -> None:
        """End the containers of a pod; returns when they have ended."""
        for killed in self._kills[uid]:
            killed.set()
        while self._kills[uid]:
            await asyncio.sleep(0)
        await asyncio.sleep(0)

    def has_begun(self, pod: AnyJson) -> bool:
        """Whether the containers of a pod have opened what they open."""
        opens = any(OPEN in part["command"][-1] for part in pod["spec"]["containers"])
        return not opens or pod["metadata"]["uid"] in self.processes

    async def _open(self) -> asyncio.subprocess.Process:
        """A process that keeps a device open as one of a container does."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", HOLD, str(self._device), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        await process.stdout.readline()
        return process


class StandInNode(ClusterNode):
    """See ``node.Node``."""

    patience_seconds = 10.0
    poll_seconds = 0.01
    grace_seconds = 0.5

    def __init__(self, root: Path) -> None:
        self._server = SimulatedApiServer()
        super().__init__(self._server, NODE, "none")
        self.machine = write_node(root / "node", INSTANCE_TYPE, usage_counters=False)
        self.kubelet_dir = root / "dp"
        self._root = root
        for name in ("dp", "pr", "reg"):
            (root / name).mkdir()
        options = KubeletOptions(
            sync_delay=ADMIT_AGAIN_SECONDS,
            grace_seconds=self.grace_seconds,
            termination_seconds=LINGER_SECONDS,
            watcher_seconds=LOOK_SECONDS,
        )
        self._kubelet = SimulatedKubelet(
            self.kubelet_dir,
            root / "pr",
            random=Random(1),  # noqa: S311 - the order of Go's maps
            options=options,
            plugins_registry=root / "reg",
            cgroup_root=root / "cgroup",
            dra=DraManager(root, self._server, NODE, DRA_TIMES),
            cdi_dir=root / "cdi",
        )
        self._scripts = Scripts(self.machine.paths.dev / f"neuron{OPENABLE}")
        self._pods = PodSync(self._server, self._kubelet, runtime=self._scripts)
        self._server.serve_logs(self._log)
        self.pod_resources_socket = root / "pr/kubelet.sock"
        self.pod_resources = PodResourcesClient(self.pod_resources_socket)
        self._stop_plugin = asyncio.Event()
        self._plugin: asyncio.Task[None] | None = None

    @classmethod
    @asynccontextmanager
    async def running(cls, root: Path) -> AsyncIterator[StandInNode]:
        """The node while the block lasts, without a plugin."""
        node = cls(root)
        async with node._server, node._kubelet:
            node._server.create_node({"metadata": {"name": NODE}})
            looking = asyncio.create_task(node._look(), name="kubelet sync")
            yield node
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
            await node.stop_plugin()
            await node._pods.close()

    async def _look(self) -> None:
        async for _ in turns(self._server, PODS, RESOURCE_CLAIMS, seconds=LOOK_SECONDS):
            sync_claims(self._server)
            self._pods.look(self._server.objects(PODS))

    def _log(self, namespace: str, name: str, container: str) -> str | None:
        begun = self._scripts.has_begun(self._server.get(PODS, name, namespace))
        return self._pods.log(namespace, name, container) if begun else None

    def require(self, ability: Ability) -> None:
        del ability  # it can do everything

    # The plugin.

    async def start_plugin(self, **settings: object) -> None:
        paths = self.machine.paths
        fixed: dict[str, object] = {
            "node_name": NODE,
            "kubeconfig": self._server.write_kubeconfig(self._root / "kubeconfig"),
            "sysfs": paths.sysfs,
            "dev": paths.dev,
            "logical_core_file": paths.logical_nc_config,
            "kubelet_dir": self.kubelet_dir,
            "plugins_registry": self._root / "reg",
            "pod_resources_socket": self.pod_resources_socket,
            "cdi_dir": self._root / "cdi",
            "cgroup": self._root / "cgroup",
        }
        times = DaemonTimes(empty=0.3)  # of a minute that a real node may take
        daemon = NodeDaemon(_settings({**fixed, **settings}), catalogue(), times=times)
        self._stop_plugin = asyncio.Event()
        self._plugin = asyncio.create_task(daemon.run(self._stop_plugin), name="plugin")

    async def stop_plugin(self) -> None:
        plugin, self._plugin = self._plugin, None
        if plugin:
            self._stop_plugin.set()
            await plugin
            await self._notice_the_end()

    async def _notice_the_end(self) -> None:
        """A process takes longer to start than a kubelet to notice the last one's end; in one process it would not.

        A kubelet that is down notices nothing.
        """
        with contextlib.suppress(TimeoutError):
            for resource in Resource:
                await self._kubelet.wait_for_capacity(resource.value, 0, timeout_seconds=1)

    async def kill_plugin(self) -> None:
        await self.stop_plugin()

    # Its containers.

    async def end_containers(self, name: str) -> None:
        await self._scripts.kill(self.uids[name])

    async def processes(self, name: str) -> Collection[int]:
        process = self._scripts.processes.get(self.uids[name])
        return {process.pid} if process and process.returncode is None else set()

    # The kubelet.

    async def capacity(self, resource: str) -> Capacity:
        shown = self._kubelet.capacity(resource)
        return Capacity(shown.capacity, shown.allocatable)

    async def restart_kubelet(self) -> None:
        await self._pods.stop()
        await self._pods.start()

    async def stop_kubelet(self) -> None:
        await self._pods.stop()

    async def start_kubelet(self) -> None:
        await self._pods.start()

    async def spoil_checkpoint(self) -> None:
        self._kubelet.spoil_checkpoint()


def _settings(values: Mapping[str, object]) -> PluginSettings:
    """As a configuration file with these values would be read."""
    plain = msgspec.to_builtins({name.replace("_", "-"): value for name, value in values.items()}, enc_hook=str)
    settings = msgspec.convert(plain, PluginSettings, dec_hook=lambda kind, value: kind(value))
    return msgspec.structs.replace(settings, rescan_seconds=0.1)  # nobody may set so little
