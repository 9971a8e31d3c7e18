"""The suite's node on a real cluster: pods through its API server, our plugin as a process of this host.

Has to run on the node itself, as root: it makes device nodes for the simulated machine, starts the plugin on the
kubelet's sockets and ends containers' processes. Pods go to the node by ``spec.nodeName``. Nothing of the cluster is
changed but that: pods named ``np-conformance-...`` in the namespace ``default``, removed in the end, and what the
plugin writes on its node.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from neuron_plugin.allocation.keys import DISABLE_KEY
from neuron_plugin.cluster import ApiError, ApiServer
from neuron_plugin.hardware import device_processes
from neuron_plugin.kubelet import PodResourcesClient, PodResourcesError
from neuron_plugin.plugin.container import CDI_FILE_NAME
from neuron_plugin.plugin.settings import PluginSettings
from neuron_plugin.plugin.uninstall import uninstall_nodes
from neuron_plugin.settings import as_text
from neuron_plugin.simulation import write_node
from neuron_plugin.simulation.node import write_entry
from neuron_plugin.simulation.node_tree import CharNode
from tests.conformance.cluster_node import CLAIMS, ClusterNode
from tests.conformance.node import (
    INSTANCE_TYPE,
    OPENABLE,
    Ability,
    Capacity,
    until,
)
from tests.conformance.preflight import require_usable_node
from tests.support.official_client import official_client

CHECKPOINT = "kubelet_internal_checkpoint"
UNSETTLED = -1
"""Allocatable while the Node object and the kubelet say different things."""
_TIMEOUT_SECONDS = 20.0
_PAUSE_COMMANDS = frozenset({"pause", "/pause"})


@dataclass(frozen=True, slots=True)
class RealOptions:
    """What the command line says of the cluster."""

    kubelet_dir: Path
    plugins_registry: Path
    pod_resources_socket: Path
    kubeconfig: Path
    node_name: str
    pod_image: str
    cdi_dir: Path
    openable_device: Path
    spoils_checkpoint: bool = False
    restart_command: str = ""
    stop_command: str = ""
    start_command: str = ""
    slow: bool = False
    dra: bool = False


class RealNode(ClusterNode):
    """See ``node.Node``."""

    patience_seconds = 90.0
    poll_seconds = 0.5
    grace_seconds = 300.0

    def __init__(self, root: Path, options: RealOptions, api: ApiServer) -> None:
        super().__init__(api, options.node_name, options.pod_image)
        self.machine = write_node(root / "node", INSTANCE_TYPE, char_nodes=True, usage_counters=False)
        self.kubelet_dir = options.kubelet_dir
        self.pod_resources_socket = options.pod_resources_socket
        self.pod_resources = PodResourcesClient(options.pod_resources_socket)
        self._log = root / "plugin.log"
        self._options = options
        self._kubelet_runs = True
        self._plugin: asyncio.subprocess.Process | None = None

    @classmethod
    @asynccontextmanager
    async def running(cls, root: Path, options: RealOptions) -> AsyncIterator[RealNode]:
        """The node while the block lasts, without a plugin; its pods are removed in the end."""
        async with official_client(options.kubeconfig) as api:
            node = cls(root, options, api)
            await require_usable_node(options.kubelet_dir, node.pod_resources, api, options.node_name)
            try:
                yield node
            finally:
                await node._tidy_up()
                print(node._log.read_text() if node._log.exists() else "")  # noqa: T201 - pytest shows it with a failure

    def require(self, ability: Ability) -> None:
        stops = bool(self._options.stop_command and self._options.start_command)
        able = {
            Ability.RESTART_KUBELET: bool(self._options.restart_command),
            Ability.STOP_KUBELET: stops,
            Ability.SPOIL_CHECKPOINT: stops and self._options.spoils_checkpoint,
            Ability.OPEN_DEVICES: ability is Ability.OPEN_DEVICES and self._make_openable(),
            Ability.WAIT_FOR_GRACE: self._options.slow,
            Ability.PREPARE_CLAIMS: self._options.dra,
        }
        if not able.get(ability, False):
            pytest.skip(f"needs {ability.value}")

    def _make_openable(self) -> bool:
        """Give one device the numbers of a character device of this host that has a driver."""
        device = self._options.openable_device
        if not device.is_char_device() or device_processes([device]):
            return False
        numbers = device.stat().st_rdev
        path = self.machine.paths.dev / f"neuron{OPENABLE}"
        write_entry(self.machine.root, path, CharNode(os.major(numbers), os.minor(numbers)))
        self.machine.set_attribute(OPENABLE, "dev", f"{os.major(numbers)}:{os.minor(numbers)}\n")
        return True

    # The plugin.

    async def start_plugin(self, **settings: object) -> None:
        paths, options = self.machine.paths, self._options
        fixed: dict[str, object] = {
            "node_name": options.node_name,
            "kubeconfig": options.kubeconfig,
            "sysfs": paths.sysfs,
            "dev": paths.dev,
            "logical_core_file": paths.logical_nc_config,
            "kubelet_dir": options.kubelet_dir,
            "plugins_registry": options.plugins_registry,
            "pod_resources_socket": options.pod_resources_socket,
            "cdi_dir": options.cdi_dir,
            "rescan_seconds": 1,
        }
        flags = [text for name, value in {**fixed, **settings}.items() for text in _flag(name, value)]
        with self._log.open("ab") as log:
            self._plugin = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "neuron_plugin.cli.main",
                "run",
                *flags,
                stderr=log,
                stdin=asyncio.subprocess.DEVNULL,
            )

    async def stop_plugin(self) -> None:
        await self._end_plugin(signal.SIGTERM)

    async def kill_plugin(self) -> None:
        await self._end_plugin(signal.SIGKILL)

    async def _end_plugin(self, number: signal.Signals) -> None:
        plugin, self._plugin = self._plugin, None
        if plugin and plugin.returncode is None:
            plugin.send_signal(number)
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                await plugin.wait()

    async def end_containers(self, name: str) -> None:
        """By the pod's UID in the cgroup of each process; its pause container stays, or the sandbox would go, too."""
        for pid in await self.processes(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def processes(self, name: str) -> Collection[int]:
        return await asyncio.to_thread(_processes_of, self.uids[name])

    # The kubelet.

    async def capacity(self, resource: str) -> Capacity:
        """As the Node object says, which the kubelet renews every 10 s: until it agrees with the kubelet, unsettled."""
        status = (await self.ask("GET", f"/api/v1/nodes/{self._options.node_name}"))["status"]
        said = int(status["allocatable"].get(resource, 0))
        try:
            healthy = len((await self.pod_resources.allocatable()).get(resource, ()))
        except PodResourcesError:
            healthy = said  # the kubelet is down: what was said last is all there is
        return Capacity(int(status["capacity"].get(resource, 0)), said if said == healthy else UNSETTLED)

    async def restart_kubelet(self) -> None:
        await _run(self._options.restart_command)

    async def stop_kubelet(self) -> None:
        await _run(self._options.stop_command)
        self._kubelet_runs = False

    async def start_kubelet(self) -> None:
        await _run(self._options.start_command)
        self._kubelet_runs = True

    async def spoil_checkpoint(self) -> None:
        (self.kubelet_dir / CHECKPOINT).write_text("not what a kubelet wrote\n")

    # Inside.

    async def _tidy_up(self) -> None:
        if not self._kubelet_runs:
            await self.start_kubelet()
        for name in self.specs:
            await self.delete(name)
        for name in self.specs:
            await until(self, lambda name=name: self._is_gone(name), f"the end of pod {name}")  # type: ignore[misc]  # the default binds the name
        for name in self.claims:
            with contextlib.suppress(ApiError):
                await self.ask("DELETE", f"{CLAIMS}/{name}", body={})
        await self.stop_plugin()
        await uninstall_nodes(self.api, [self._options.node_name], PluginSettings().lease_namespace)
        await self.annotate_node(DISABLE_KEY, None)
        (self._options.cdi_dir / CDI_FILE_NAME).unlink(missing_ok=True)

    async def _is_gone(self, name: str) -> bool:
        return await self.find(name) is None


def _flag(name: str, value: object) -> tuple[str, ...]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return (f"--{flag}" if value else f"--no-{flag}",)
    return f"--{flag}", as_text(value)


def _processes_of(uid: str) -> list[int]:
    named = re.compile(re.sub("[-_]", "[-_]", uid))
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if not process.name.isdigit() or not named.search((process / "cgroup").read_text()):
                continue
            if (process / "comm").read_text().strip() not in _PAUSE_COMMANDS:
                found.append(int(process.name))
    return found


async def _run(command: str) -> None:
    process = await asyncio.create_subprocess_exec(*shlex.split(command), stdin=asyncio.subprocess.DEVNULL)
    async with asyncio.timeout(120):
        status = await process.wait()
    assert status == 0, f"{command!r} ended with {status}"
