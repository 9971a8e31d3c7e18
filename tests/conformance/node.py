"""What the suite needs of a node, so that one body of a test does for a stand-in kubelet and a real one.

A node has a simulated machine with Neuron devices, a kubelet, an API server and our plugin. Drivers: ``stand_in`` in
this process, ``real`` on a host whose kubelet runs.
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from neuron_plugin.allocation import ContainerKind, Resource
from neuron_plugin.kubelet import PodResourcesClient
from neuron_plugin.simulation import SimulatedNode
from neuron_plugin.simulation.api_server_kinds import AnyJson

NEURON = Resource.NEURON.value
CORE = Resource.NEURONCORE.value

INSTANCE_TYPE = "inf2.24xlarge"
DEVICES = 6
"""Of that type, in a line."""
CORES_PER_DEVICE = 2

OPENABLE = 0
"""The device whose node a process can open; behind those of a simulated machine there is no driver."""

T = TypeVar("T")


class Ability(enum.Enum):
    """What not every node can do; a test that needs it is skipped where it is missing."""

    RESTART_KUBELET = "restarting the kubelet (--kubelet-restart-command)"
    PREPARE_CLAIMS = "claims of Dynamic Resource Allocation (--mode dra, Kubernetes 1.34 or newer)"
    STOP_KUBELET = "stopping the kubelet (--kubelet-stop-command and --kubelet-start-command)"
    OPEN_DEVICES = "a device that a process can open and nobody has open (--openable-device)"
    SPOIL_CHECKPOINT = "making the kubelet's checkpoint unreadable (--spoil-checkpoint), and stopping the kubelet"
    WAIT_FOR_GRACE = "waiting the kubelet's five minutes of grace (--slow)"


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """A container that says what it received, then runs until it is ended, or exits with ``exits``.

    ``compute`` is what it asks for of CPU and memory: as requests alone, or ``guaranteed`` as limits, too. One that
    ``opens`` keeps the node of ``OPENABLE`` open and does not end when it is asked to; it needs all devices, or that
    one by a claim. ``claims`` are the names of those that it uses.
    """

    name: str = "app"
    limits: Mapping[str, int] = field(default_factory=dict)
    kind: ContainerKind = ContainerKind.APP
    exits: int | None = None
    compute: Mapping[str, str] = field(default_factory=dict)
    guaranteed: bool = False
    opens: bool = False
    claims: tuple[str, ...] = ()

    @property
    def resources(self) -> AnyJson:
        """As a manifest has them."""
        devices = {resource: str(count) for resource, count in self.limits.items()}
        limits = {**devices, **(self.compute if self.guaranteed else {})}
        claims = [{"name": name} for name in self.claims]
        return {"limits": limits, "requests": {**devices, **self.compute}} | ({"claims": claims} if claims else {})


@dataclass(frozen=True, slots=True)
class PodSpec:
    """A pod for this very node, past every scheduler. It restarts its containers unless one is to exit.

    ``annotations`` are what a scheduler would have written at the binding.
    """

    name: str
    containers: tuple[ContainerSpec, ...]
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def claims(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for each in self.containers for name in each.claims))

    @property
    def ends(self) -> bool:
        return any(each.exits is not None for each in self.containers if each.kind is ContainerKind.APP)


@dataclass(frozen=True, slots=True)
class Received:
    """What a container found at its last start: variables with NEURON in the name, device nodes by name."""

    env: Mapping[str, str]
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ContainerView:
    """``running``: or, of a plain init container, done. ``waiting`` is why not; ``health`` as its status has it."""

    running: bool = False
    starts: int = 0
    waiting: str = ""
    received: Received | None = None
    health: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod as the API server, and its containers' output, show it.

    ``resize`` is why a change of its CPU is not done yet, ``cpu`` what its first container has by the kubelet's word.
    """

    uid: str
    phase: str
    reason: str = ""
    message: str = ""
    containers: Mapping[str, ContainerView] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    resize: str = ""
    cpu: str = ""

    @property
    def running(self) -> bool:
        return self.phase == "Running" and all(each.running for each in self.containers.values())


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the node shows of a resource; a resource it does not know has none of it."""

    capacity: int = 0
    allocatable: int = 0


class Node(Protocol):
    """One node. ``patience_seconds`` is how long something may take to show; ``grace_seconds`` the kubelet's own."""

    machine: SimulatedNode
    kubelet_dir: Path
    pod_resources_socket: Path
    pod_resources: PodResourcesClient
    patience_seconds: float
    poll_seconds: float
    grace_seconds: float

    def require(self, ability: Ability) -> None:
        """Skip the test where this node cannot do that."""

    async def start_plugin(self, **settings: object) -> None:
        """Start our plugin; ``settings`` as in the configuration file, with underscores."""

    async def stop_plugin(self) -> None:
        """End it as Kubernetes would (SIGTERM)."""

    async def kill_plugin(self) -> None:
        """End it without a word, as nearly as this node can."""

    async def create(self, pod: PodSpec) -> None:
        """Create a pod."""

    async def view(self, name: str) -> PodView | None:
        """The pod as it is now, None if there is none."""

    async def delete(self, name: str, *, force: bool = False) -> None:
        """Delete a pod; ``force``: with ``--force --grace-period=0``."""

    async def end_containers(self, name: str) -> None:
        """Kill the processes of a pod; a kubelet that runs restarts them."""

    async def processes(self, name: str) -> Collection[int]:
        """Those of a pod, also after it was deleted; a stand-in's has one only if it opens a device."""

    async def claim(self, name: str, *devices: str) -> None:
        """Make a claim to which these devices of the node are allocated, whoever has them."""

    async def slice(self) -> Mapping[str, tuple[str, ...]]:
        """The devices that the node offers for claims, and the keys of their taints; nothing without a slice."""

    async def annotate_node(self, key: str, value: str | None) -> None:
        """Set an annotation of the Node object, or remove it."""

    async def resize(self, name: str, cpu: str) -> None:
        """Ask for other CPU for a pod's only container, in place."""

    async def capacity(self, resource: str) -> Capacity:
        """What the node shows."""

    async def restart_kubelet(self) -> None:
        """Stop and start it; containers run on."""

    async def stop_kubelet(self) -> None:
        """Stop it; containers run on."""

    async def start_kubelet(self) -> None:
        """Start it again."""

    async def spoil_checkpoint(self) -> None:
        """Make what a stopped kubelet remembers of devices unreadable."""


async def until(node: Node, look: Callable[[], Awaitable[T | None]], what: str, seconds: float | None = None) -> T:
    """The first result of ``look`` that is anything; fails with ``what`` was waited for."""
    deadline = time.monotonic() + (node.patience_seconds if seconds is None else seconds)
    while not (found := await look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited in vain for: {what}")
        await asyncio.sleep(node.poll_seconds)
    return found
