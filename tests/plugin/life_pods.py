"""The pods of a simulated node's life: what was asked, what the API server says, what the containers received.

One record for all three, because the question is always whether they agree. What the containers received is the truth
that everything else is held against.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from neuron_plugin.allocation import (
    Assignment,
    ContainerKind,
    ContainerSpec,
    PodReference,
    PodRequest,
    PodUid,
    Resource,
    pod_request,
    read_assignment,
)
from neuron_plugin.cluster import PODS, Pod
from neuron_plugin.simulation import container
from tests.plugin.world import CORE, DEVICE, app, init, sidecar

NODE = "node"


class Shape:
    """What a pod asks for, worked out once: hundreds of thousands of pods have one of these."""

    def __init__(self, *specs: ContainerSpec) -> None:
        self.request: PodRequest = pod_request(specs)
        self.kinds = {part.container: part.kind for part in self.request}
        self.has_init = ContainerKind.INIT in self.kinds.values()
        self.has_many_init = [*self.kinds.values()].count(ContainerKind.INIT) > 1
        self.lasting = frozenset(name for name, kind in self.kinds.items() if kind is not ContainerKind.INIT)
        self.needs = _needs(self.request)
        manifests = [
            container(part.container, part.resource, part.count, sidecar=part.kind is ContainerKind.SIDECAR)
            for part in self.request
        ]
        first = sum(kind is not ContainerKind.APP for kind in self.kinds.values())
        self.manifest = {"initContainers": manifests[:first], "containers": manifests[first:]}

    def __str__(self) -> str:
        return ", ".join(f"{part.kind.value} {part.count} {part.resource.short_name}" for part in self.request)


def _needs(request: PodRequest) -> dict[Resource, int]:
    """What kube-scheduler counts: all that last together, or the largest init container beside the sidecars."""
    lasting: Counter[Resource] = Counter()
    largest: Counter[Resource] = Counter()
    for part in request:
        if part.kind is ContainerKind.INIT:
            largest[part.resource] = max(largest[part.resource], part.count)
        else:
            lasting[part.resource] += part.count
    return {resource: max(lasting[resource], largest[resource]) for resource in (lasting | largest)}


PLAIN_SHAPES = (
    Shape(app(1)),
    Shape(app(1, DEVICE)),
    Shape(app(1, CORE)),
    Shape(app(2, CORE)),
    Shape(app(4)),
    Shape(app(1, CORE), app(1, CORE, "second")),
    Shape(app(1), app(1, CORE, "second")),
    Shape(sidecar(1, CORE), app(2, CORE)),
)
INIT_SHAPES = (
    Shape(init(2, CORE), app(2, CORE)),
    Shape(init(4, CORE), app(2, CORE)),
    Shape(init(4, CORE), sidecar(1, CORE), app(1, CORE)),
    Shape(init(4, CORE), sidecar(1, CORE), app(2, CORE)),
    Shape(init(4, CORE), sidecar(1, CORE), app(4, CORE)),
    Shape(init(4, CORE), sidecar(2, CORE), app(2, CORE)),
    Shape(init(4, CORE), init(2, CORE, "second"), app(2, CORE)),
    Shape(init(4), app(2)),
    Shape(init(1), app(2)),
)
SIDECAR_FIRST_SHAPES = (
    Shape(sidecar(1, CORE), init(4, CORE), app(2, CORE)),
    Shape(sidecar(1, CORE), init(2, CORE), app(2, CORE)),
)
"""Whose init set a plugin that was killed finds by the kubelet's own file only."""


@dataclass(eq=False)
class LivePod:
    """A pod from its creation until the last of its processes has died.

    ``stored``: the API server has it. ``active``: the kubelet has it, so its devices may not be given away. ``alive``:
    its processes run, whatever anybody thinks of it. ``recorded`` is the kubelet's account, ``given`` what the
    containers received.
    """

    name: str
    uid: PodUid
    shape: Shape
    annotations: dict[str, str] = field(default_factory=dict)
    stored: bool = True
    bound: bool = False
    terminal: bool = False
    active: bool = False
    admitted: bool = False
    alive: bool = False
    recorded: dict[str, tuple[Resource, frozenset[int]]] = field(default_factory=dict)
    given: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name}/{self.uid}"

    @property
    def pod(self) -> PodReference:
        return PodReference(self.uid, "default", self.name)

    @property
    def waits(self) -> bool:
        """Whether the kubelet has yet to admit it."""
        return self.active and not self.admitted

    @property
    def lasting(self) -> Iterator[tuple[str, int]]:
        """What the containers received that run until the pod's end."""
        return ((name, mask) for name, mask in self.given.items() if name in self.shape.lasting)

    @property
    def mask(self) -> int:
        mask = 0
        for each in self.given.values():
            mask |= each
        return mask

    @property
    def decision(self) -> Assignment | None:
        return read_assignment(str(self), self.annotations, self.shape.request)

    def record(self) -> Pod:
        """As the API server's watch shows it now."""
        manifest = {
            "metadata": {"name": self.name, "namespace": "default", "uid": self.uid, "annotations": self.annotations},
            "spec": {"nodeName": NODE if self.bound else "", **self.shape.manifest},
            "status": {"phase": "Failed" if self.terminal else "Running" if self.admitted else "Pending"},
        }
        return PODS.decode(msgspec.json.encode(manifest))
