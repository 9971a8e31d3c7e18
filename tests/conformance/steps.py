"""Steps that most expectations share."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from neuron_plugin.allocation.keys import ALLOCATED_KEY
from neuron_plugin.kubelet import PodDevices
from tests.conformance.node import (
    CORE,
    DEVICES,
    NEURON,
    Capacity,
    ContainerSpec,
    Node,
    PodSpec,
    PodView,
    Received,
    until,
)


def asking(name: str, count: int = 1, *, resource: str = NEURON, exits: int | None = None) -> PodSpec:
    """A pod of one container that asks for so many."""
    return PodSpec(name, (ContainerSpec("app", {resource: count}, exits=exits),))


async def start_offering(node: Node, **settings: object) -> None:
    """Start the plugin; returns when the node shows its devices, under this name and as cores.

    A kubelet runs a pod that asks for a resource it has not heard of yet, without any device.
    """
    await node.start_plugin(**settings)
    await shows(node, DEVICES)

    async def shows_cores() -> bool:
        return (await node.capacity(CORE)).allocatable > 0

    await until(node, shows_cores, f"some {CORE}")


async def shows(node: Node, allocatable: int, capacity: int = DEVICES, seconds: float | None = None) -> None:
    """Wait until the node shows so many devices."""
    wanted = Capacity(capacity, allocatable)

    async def look() -> bool:
        return await node.capacity(NEURON) == wanted

    await until(node, look, f"{wanted} of {NEURON}", seconds)


async def runs(node: Node, pod: PodSpec) -> PodView:
    """Create a pod and wait until it runs and has said what it received."""
    await node.create(pod)
    return await is_running(node, pod.name)


async def is_running(node: Node, name: str, *, starts: int = 0) -> PodView:
    """Wait until a pod runs, has said what it received, and was started so often at least."""

    async def look() -> PodView | None:
        view = await node.view(name)
        assert view is not None, f"pod {name} is gone"
        assert view.phase not in ("Failed", "Succeeded"), f"pod {name}: {view.phase} {view.reason} {view.message}"
        said = all(each.received and each.starts >= starts for each in view.containers.values())
        return view if view.running and said else None

    return await until(node, look, f"pod {name} running")


async def becomes(node: Node, name: str, holds: Callable[[PodView], object], what: str) -> PodView:
    """Wait until something holds of what is seen of a pod; ``what`` is waited for."""

    async def look() -> PodView | None:
        view = await node.view(name)
        return view if view and holds(view) else None

    return await until(node, look, f"{what} of pod {name}")


async def is_confirmed(node: Node, name: str) -> PodView:
    """Wait until the plugin has learnt that it was this pod, and has said so on it."""
    return await becomes(node, name, lambda view: view.annotations.get(ALLOCATED_KEY) == "true", "the confirmation")


async def health_becomes(node: Node, name: str, health: str) -> None:
    """Wait until a pod's status says this of the health of its only device."""
    await becomes(node, name, lambda view: {*view.containers["app"].health.values()} == {health}, f"a device {health}")


async def reaches(node: Node, name: str, phase: str) -> PodView:
    """Wait until a pod is in a phase."""

    async def look() -> PodView | None:
        view = await node.view(name)
        assert view is not None, f"pod {name} is gone"
        return view if view.phase == phase else None

    return await until(node, look, f"pod {name} {phase}")


async def is_gone(node: Node, name: str) -> None:
    """Wait until there is no such pod."""

    async def look() -> bool:
        return await node.view(name) is None

    await until(node, look, f"the end of pod {name}")


def received(view: PodView, container: str = "app") -> Received:
    """What a container found at its last start."""
    found = view.containers[container].received
    assert found is not None, f"{container} has not said what it received"
    return found


async def held(node: Node, name: str, resource: str = NEURON) -> Mapping[str, tuple[str, ...]]:
    """The ids each container of a pod holds, by PodResources; nothing for a pod that is not listed."""
    return {
        each.container: each.ids
        for pod in await node.pod_resources.list()
        if is_called(pod, name)
        for each in pod.containers
        if each.resource == resource
    }


def is_called(pod: PodDevices, name: str) -> bool:
    """Whether it is this pod; a real node puts something of its run before the name."""
    return pod.name == name or pod.name.endswith(f"-{name}")
