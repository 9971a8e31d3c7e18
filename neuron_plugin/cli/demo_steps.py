"""A pod's way in the demo, step by step as it happens: the numbers are those of docs/how-it-works.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from neuron_plugin.allocation import ALLOCATED_KEY, CORES_KEY, DEVICES_KEY, Resource

if TYPE_CHECKING:
    from neuron_plugin.simulation import AdmittedContainer, AdmittedPod, SimulatedCluster


async def schedule(cluster: SimulatedCluster, name: str, containers: Mapping[str, tuple[Resource, int]]) -> None:
    """Steps 3 to 11 of a pod that fits, 3 to 5 of one that does not."""
    from neuron_plugin.simulation import SimulatedPod

    limits = {container: {resource.value: count} for container, (resource, count) in containers.items()}
    cluster.api.create_pod(SimulatedPod(name, limits).manifest())
    step(3, f"pod {name} is created; the scheduler picks it up")
    answer = await cluster.filter(name)
    step(4, "the scheduler calls the extender's filter with the pod and the nodes")
    if not answer.nodes:
        step(5, f"refused. The pod stays Pending, and its event reads: {answer.message(1)}")
        return
    step(5, f"the extender leaves the nodes with a free linked set: {', '.join(answer.nodes)}")
    await _start(cluster, name, answer.nodes[0])


async def _start(cluster: SimulatedCluster, name: str, node: str) -> None:
    """Steps 6 to 11."""
    await cluster.bind(name)
    step(6, f"the scheduler calls the extender's bind with node {node}")
    record = cluster.pod(name)
    written = [f"{key}: {record.annotations[key]}" for key in (DEVICES_KEY, CORES_KEY) if key in record.annotations]
    step(7, f"the extender annotates the pod: {', '.join(written)}")
    step(8, f"... and binds it to {record.node_name} in the same request")
    admitted = await cluster.admit(name)
    step(9, "the kubelet asks which ids are preferred, then calls Allocate, once for each container")
    await cluster.wait_for_annotation(name, ALLOCATED_KEY, "true")
    step(10, "the plugin steers it to the annotated ids, and marks the pod when it is certain: NEURON_ALLOCATED: true")
    step(11, "the containers receive:")
    _print_received(admitted)


def _print_received(admitted: AdmittedPod) -> None:
    for container in admitted.containers:
        print(f"      {container.name}: {' '.join(_received(container))}")


def _received(container: AdmittedContainer) -> Iterable[str]:
    for node in container.devices:
        yield f"--device=/dev/{Path(node.host_path).name}:{node.container_path}"
    for name, value in container.envs.items():
        yield f"--env {name}={value}"


def title(text: str) -> None:
    """What comes now."""
    print(f"\n== {text}", flush=True)


def step(number: int, text: str) -> None:
    """One step, as it has happened."""
    print(f" {number:>2}  {text}", flush=True)
