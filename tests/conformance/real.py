"""The suite's node on a real cluster: pods through its API server, our plugin as a process of this host.

Has to run on the node itself, as root: it makes device nodes for the simulated machine, starts the plugin on the
kubelet's sockets and ends containers' processes. Pods go to the node by ``spec.nodeName``. Nothing of the cluster is
changed but that: pods named ``np-conformance-...`` in the namespace ``default``, removed in the end, and what the
plugin writes on its node.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import secrets
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from neuron_plugin.allocation import ContainerKind
from neuron_plugin.allocation.keys import DISABLE_KEY
from neuron_plugin.cluster import ApiError, ApiRequest, ApiServer
from neuron_plugin.cluster.api import JSON, MERGE_PATCH, STRATEGIC_MERGE_PATCH, send
from neuron_plugin.cluster.client import connect
from neuron_plugin.cluster.writes import describe_node
from neuron_plugin.hardware import device_processes
from neuron_plugin.kubelet import PodResourcesClient, PodResourcesError
from neuron_plugin.plugin.container import CDI_FILE_NAME
from neuron_plugin.plugin.settings import PluginSettings
from neuron_plugin.plugin.uninstall import uninstall_nodes
from neuron_plugin.settings import as_text
from neuron_plugin.simulation import write_char_node, write_node
from tests.conformance.claims import allocated, claim_manifest, health_of, offered
from tests.conformance.node import (
    INSTANCE_TYPE,
    OPENABLE,
    Ability,
    Capacity,
    ContainerSpec,
    ContainerView,
    PodSpec,
    PodView,
    Received,
    until,
)
from tests.conformance.preflight import require_usable_node

PODS = "/api/v1/namespaces/default/pods"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CHECKPOINT = "kubelet_internal_checkpoint"
SCRIPT = """
env | grep NEURON | sed 's/^/ENV /'
for node in /dev/neuron*; do [ -e "$node" ] && echo "NODE ${node##*/}"; done
echo READY
trap 'exit 0' TERM
"""
"""What a container says of itself before it runs on."""
OPEN = f"exec 3</dev/neuron{OPENABLE} || exit 1\n"
STAY = "trap '' TERM\n"
RUN_ON = "while true; do sleep 1 & wait; done"
SECONDS_TO_BE_KNOWN = 2
"""Until the plugin has asked the kubelet for the pod by name. Later it has to ask for all, which makes the kubelet
forget what an ended pod held, and with it the health of that."""
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


class RealNode:
    """See ``node.Node``."""

    patience_seconds = 90.0
    poll_seconds = 0.5
    grace_seconds = 300.0

    def __init__(self, root: Path, options: RealOptions, api: ApiServer) -> None:
        self.machine = write_node(root / "node", INSTANCE_TYPE, char_nodes=True, usage_counters=False)
        self.kubelet_dir = options.kubelet_dir
        self.pod_resources_socket = options.pod_resources_socket
        self.pod_resources = PodResourcesClient(options.pod_resources_socket)
        self._log = root / "plugin.log"
        self._options = options
        self._api = api
        self._run = secrets.token_hex(3)
        self._specs: dict[str, PodSpec] = {}
        self._uids: dict[str, str] = {}
        self._claims: list[str] = []
        self._kubelet_runs = True
        self._plugin: asyncio.subprocess.Process | None = None

    @classmethod
    @asynccontextmanager
    async def running(cls, root: Path, options: RealOptions) -> AsyncIterator[RealNode]:
        """The node while the block lasts, without a plugin; its pods are removed in the end."""
        async with await connect(options.kubeconfig) as api:
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
        write_char_node(self.machine.root, path, os.major(numbers), os.minor(numbers))
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

    # Pods.

    async def create(self, pod: PodSpec) -> None:
        self._specs[pod.name] = pod
        created = await self._ask("POST", PODS, body=self._manifest(pod))
        self._uids[pod.name] = created["metadata"]["uid"]

    async def view(self, name: str) -> PodView | None:
        found = await self._find(name)
        if found is None:
            return None
        status = found.get("status", {})
        told = {
            each["name"]: each
            for key in ("initContainerStatuses", "containerStatuses")
            for each in status.get(key) or ()
        }
        containers = {
            each.name: await self._container_view(name, each, told.get(each.name, {}))
            for each in self._specs[name].containers
        }
        return PodView(
            uid=found["metadata"]["uid"],
            phase=status.get("phase", ""),
            reason=status.get("reason", ""),
            message=status.get("message", ""),
            containers=containers,
            annotations=found["metadata"].get("annotations") or {},
            labels=found["metadata"].get("labels") or {},
            resize=_resize(status),
            cpu=_cpu(status),
        )

    async def delete(self, name: str, *, force: bool = False) -> None:
        body = {"gracePeriodSeconds": 0} if force else {}
        with contextlib.suppress(ApiError):
            await self._ask("DELETE", f"{PODS}/{self._name(name)}", body=body)

    async def end_containers(self, name: str) -> None:
        """By the pod's UID in the cgroup of each process; its pause container stays, or the sandbox would go, too."""
        for pid in await self.processes(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def processes(self, name: str) -> Collection[int]:
        return await asyncio.to_thread(_processes_of, self._uids[name])

    async def claim(self, name: str, *devices: str) -> None:
        """kube-controller-manager reserves it for a pod of this node, and takes the allocation off when that ended."""
        own = self._name(name)
        self._claims.append(own)
        await self._ask("POST", CLAIMS, body=claim_manifest(own))
        status = {"status": allocated(self._options.node_name, devices)}
        await self._ask("PATCH", f"{CLAIMS}/{own}/status", body=status, content_type=MERGE_PATCH)

    async def slice(self) -> Mapping[str, tuple[str, ...]]:
        found = await self._ask("GET", SLICES)
        return offered(found["items"], self._options.node_name)

    async def annotate_node(self, key: str, value: str | None) -> None:
        change = describe_node(self._options.node_name, annotations={key: value})
        await send(self._api, change, timeout_seconds=_TIMEOUT_SECONDS)

    async def resize(self, name: str, cpu: str) -> None:
        (container,) = self._specs[name].containers
        change: dict[str, Any] = {
            "spec": {"containers": [{"name": container.name, "resources": {"requests": {"cpu": cpu}}}]}
        }
        await self._ask("PATCH", f"{PODS}/{self._name(name)}/resize", body=change, content_type=STRATEGIC_MERGE_PATCH)

    async def _find(self, name: str) -> dict[str, Any] | None:
        try:
            return await self._ask("GET", f"{PODS}/{self._name(name)}")
        except ApiError as error:
            if error.missing:
                return None
            raise

    async def _container_view(self, pod: str, spec: ContainerSpec, status: Mapping[str, Any]) -> ContainerView:
        state = status.get("state") or {}
        waiting = state.get("waiting") or {}
        done = (state.get("terminated") or {}).get("exitCode") == 0
        starts = int(status.get("restartCount", 0)) + ("waiting" not in state and bool(state))
        return ContainerView(
            running="running" in state or (spec.kind is ContainerKind.INIT and done),
            starts=starts,
            waiting=f"{waiting.get('reason', '')}: {waiting.get('message', '')}" if waiting else "",
            received=await self._received(pod, spec.name) if starts else None,
            health=health_of(status.get("allocatedResourcesStatus") or ()),
        )

    async def _received(self, pod: str, container: str) -> Received | None:
        """What the container's present start has said, None until it has said all."""
        request = ApiRequest("GET", f"{PODS}/{self._name(pod)}/log", {"container": container})
        try:
            lines = (await send(self._api, request, timeout_seconds=_TIMEOUT_SECONDS)).decode().splitlines()
        except ApiError:
            return None
        if "READY" not in lines:
            return None
        env = dict(line.removeprefix("ENV ").split("=", 1) for line in lines if line.startswith("ENV "))
        return Received(env, tuple(sorted(line.removeprefix("NODE ") for line in lines if line.startswith("NODE "))))

    def _manifest(self, pod: PodSpec) -> dict[str, Any]:
        containers = {
            kind: [self._container(each) for each in pod.containers if each.kind is kind] for kind in ContainerKind
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": self._name(pod.name), "annotations": dict(pod.annotations)},
            "spec": {
                "nodeName": self._options.node_name,
                "restartPolicy": "Never" if pod.ends else "Always",
                "terminationGracePeriodSeconds": 1,
                "tolerations": [{"operator": "Exists"}],
                "automountServiceAccountToken": False,
                "initContainers": [
                    self._container(each) for each in pod.containers if each.kind is not ContainerKind.APP
                ],
                "containers": containers[ContainerKind.APP],
                "resourceClaims": [{"name": name, "resourceClaimName": self._name(name)} for name in pod.claims],
            },
        }

    def _container(self, spec: ContainerSpec) -> dict[str, Any]:
        script = OPEN + SCRIPT + STAY if spec.opens else SCRIPT
        if spec.exits is not None:
            script += f"sleep {SECONDS_TO_BE_KNOWN}; exit {spec.exits}"
        elif spec.kind is not ContainerKind.INIT:
            script += RUN_ON
        sidecar = {"restartPolicy": "Always"} if spec.kind is ContainerKind.SIDECAR else {}
        return {
            "name": spec.name,
            "image": self._options.pod_image,
            "command": ["sh", "-c", script],
            "resources": spec.resources,
            **sidecar,
        }

    # The kubelet.

    async def capacity(self, resource: str) -> Capacity:
        """As the Node object says, which the kubelet renews every 10 s: until it agrees with the kubelet, unsettled."""
        status = (await self._ask("GET", f"/api/v1/nodes/{self._options.node_name}"))["status"]
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

    def _name(self, name: str) -> str:
        """Of its own for each run: the kubelet's memory of an earlier pod of that name must not matter."""
        return f"np-conformance-{self._run}-{name}"

    async def _ask(
        self, method: str, path: str, body: dict[str, Any] | None = None, content_type: str = JSON
    ) -> dict[str, Any]:
        request = ApiRequest(method, path, body=body, content_type=content_type)
        answer: dict[str, Any] = json.loads(await send(self._api, request, timeout_seconds=_TIMEOUT_SECONDS))
        return answer

    async def _tidy_up(self) -> None:
        if not self._kubelet_runs:
            await self.start_kubelet()
        for name in self._specs:
            await self.delete(name)
        for name in self._specs:
            await until(self, lambda name=name: self._is_gone(name), f"the end of pod {name}")  # type: ignore[misc]  # the default binds the name
        for name in self._claims:
            with contextlib.suppress(ApiError):
                await self._ask("DELETE", f"{CLAIMS}/{name}", body={})
        await self.stop_plugin()
        await uninstall_nodes(self._api, [self._options.node_name], PluginSettings().lease_namespace)
        await self.annotate_node(DISABLE_KEY, None)
        (self._options.cdi_dir / CDI_FILE_NAME).unlink(missing_ok=True)

    async def _is_gone(self, name: str) -> bool:
        return await self._find(name) is None


def _flag(name: str, value: object) -> tuple[str, ...]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return (f"--{flag}" if value else f"--no-{flag}",)
    return f"--{flag}", as_text(value)


def _resize(status: Mapping[str, Any]) -> str:
    """Why a change of CPU is not begun, by the pod's condition; empty when it is."""
    pending = [each for each in status.get("conditions") or () if each["type"] == "PodResizePending"]
    return "".join(f"{each.get('reason', '')}: {each.get('message', '')}" for each in pending)


def _cpu(status: Mapping[str, Any]) -> str:
    told: Mapping[str, Any] = next(iter(status.get("containerStatuses") or ()), {})
    return str(((told.get("resources") or {}).get("requests") or {}).get("cpu", ""))


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
