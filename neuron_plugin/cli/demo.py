"""``neuron-plugin demo``: the whole way of a pod, from its creation to its devices, without cluster or hardware.

The plugin and the extender are the real ones, each as its own process, over the real protocols. The machine, the
kubelet, the API server and the scheduler's calls are the stand-ins of ``simulation/``.
"""

from __future__ import annotations

import asyncio
import tempfile
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from neuron_plugin.allocation.annotations import ALLOCATED_KEY, CORES_KEY, DEVICES_KEY
from neuron_plugin.allocation.resources import Resource
from neuron_plugin.cli import devices, topology
from neuron_plugin.cli.command import Exit, Parser, Subparsers, add_command

if TYPE_CHECKING:
    from neuron_plugin.simulation.cluster import SimulatedCluster, SimulatedPod
    from neuron_plugin.simulation.kubelet_pods import AdmittedContainer, AdmittedPod

INSTANCE_TYPE = "trn1.32xlarge"
DEVICES = 16
CORES = 32

EXAMPLES = """
neuron-plugin demo
neuron-plugin demo --numbering host
neuron-plugin demo --keep ./demo && neuron-plugin devices --root ./demo/node
"""


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "demo",
        run,
        summary="see a pod get its linked devices, in a simulated cluster on this machine",
        description=(
            f"Start the plugin on a simulated {INSTANCE_TYPE} and the scheduler extender, and follow pods from their "
            "creation to what their containers receive: a pod of two containers, a pod of cores, one that must be "
            "refused, and two that want the same silicon under different names."
        ),
        examples=EXAMPLES,
    )
    parser.add_argument(
        "--numbering",
        choices=("auto", "host", "container"),
        default="auto",
        help="device numbers inside containers, as for 'run' (default: auto)",
    )
    parser.add_argument(
        "--keep", metavar="DIR", type=Path, help="leave the simulated node and all logs in this directory"
    )


def run(arguments: Namespace) -> int:
    """Play the demo; it takes some seconds."""
    if arguments.keep:
        arguments.keep.mkdir(parents=True, exist_ok=True)
        asyncio.run(_play(arguments.keep, arguments.numbering))
        return Exit.FINE
    with tempfile.TemporaryDirectory(prefix="neuron-demo-") as directory:
        asyncio.run(_play(Path(directory), arguments.numbering))
    return Exit.FINE


async def _play(root: Path, numbering: str) -> None:
    from neuron_plugin.simulation.cluster import SimulatedCluster  # noqa: PLC0415 - aiohttp and grpc

    _title(f"A simulated {INSTANCE_TYPE} with {DEVICES} linked devices, its kubelet and an API server")
    async with SimulatedCluster(root, INSTANCE_TYPE, daemon_flags=("--numbering", numbering)) as cluster:
        await _offer(cluster)
        await _two_containers(cluster)
        await _cores(cluster)
        await _refused(cluster)
        await _conflict(cluster)
        await asyncio.to_thread(_show_node, cluster)
    print("\nEverything above went over the real protocols. To go on: neuron-plugin --help")


async def _offer(cluster: SimulatedCluster) -> None:
    for resource in Resource:
        await cluster.wait_until_offered(resource, CORES if resource is Resource.NEURONCORE else DEVICES)
    _step(1, "the plugin found the devices in sysfs and lists them to the kubelet")
    offered = ", ".join(f"{one.value}: {CORES if one is Resource.NEURONCORE else DEVICES}" for one in Resource)
    _step(2, f"the kubelet advertises them: {offered}")


async def _two_containers(cluster: SimulatedCluster) -> None:
    from neuron_plugin.simulation.cluster import SimulatedPod  # noqa: PLC0415 - as above

    _title("A pod with two containers: one device for the loader, a row of four for the trainer")
    limits = {"loader": {Resource.NEURONDEVICE.value: 1}, "trainer": {Resource.NEURONDEVICE.value: 4}}
    await _place(cluster, SimulatedPod("train", limits), DEVICES_KEY)


async def _cores(cluster: SimulatedCluster) -> None:
    from neuron_plugin.simulation.cluster import SimulatedPod  # noqa: PLC0415 - as above

    _title("A pod that needs two cores")
    await _place(cluster, SimulatedPod("serve", {"server": {Resource.NEURONCORE.value: 2}}), CORES_KEY)


async def _refused(cluster: SimulatedCluster) -> None:
    from neuron_plugin.simulation.cluster import SimulatedPod  # noqa: PLC0415 - as above

    _title("A pod that asks for seven devices, which no Trn1 can link")
    await _refuse(cluster, SimulatedPod("seven", {"main": {Resource.NEURONDEVICE.value: 7}}))


async def _conflict(cluster: SimulatedCluster) -> None:
    from neuron_plugin.simulation.cluster import SimulatedPod  # noqa: PLC0415 - as above

    _title("The same silicon under another name: all 32 cores, while pods hold some as devices")
    await _refuse(cluster, SimulatedPod("greedy", {"main": {Resource.NEURONCORE.value: CORES}}))
    free = cluster.kubelet.capacity(Resource.NEURON.value)
    offered = f"{Resource.NEURON.value} has {free.capacity} devices and {free.allocatable} to give"
    print(f"     The kubelet knows it without the extender, too: {offered}.")


async def _place(cluster: SimulatedCluster, pod: SimulatedPod, key: str) -> None:
    """Steps 3 to 11 of a pod that fits."""
    cluster.api.create_pod(pod.manifest())
    _step(3, f"pod {pod.name} is created; the scheduler picks it up")
    answer = await cluster.filter(pod.name)
    _step(4, "the scheduler calls the extender's filter with the pod and the nodes")
    _step(5, f"the extender leaves the nodes with a free linked set: {', '.join(answer.nodes)}")
    await cluster.bind(pod.name)
    _step(6, f"the scheduler calls the extender's bind with node {answer.nodes[0]}")
    record = cluster.pod(pod.name)
    _step(7, f"the extender annotates the pod: {key}: {record.annotations[key]}")
    _step(8, f"... and binds it to {record.node_name} in the same request")
    admitted = await cluster.admit(pod.name)
    _step(9, "the kubelet asks which ids are preferred, then calls Allocate, once for each container")
    await cluster.wait_for_annotation(pod.name, ALLOCATED_KEY, "true")
    _step(10, "the plugin steers it to the annotated ids, and marks the pod when it is certain: NEURON_ALLOCATED: true")
    _step(11, "the containers receive:")
    _print_received(admitted)


async def _refuse(cluster: SimulatedCluster, pod: SimulatedPod) -> None:
    """Steps 3 to 5 of a pod that must not be placed."""
    cluster.api.create_pod(pod.manifest())
    _step(3, f"pod {pod.name} is created; the scheduler picks it up")
    answer = await cluster.filter(pod.name)
    _step(4, "the scheduler calls the extender's filter with the pod and the nodes")
    _step(5, f"refused. The pod's event reads: {answer.message(1)}")


def _print_received(admitted: AdmittedPod) -> None:
    for container in admitted.containers:
        print(f"      {container.name}: {' '.join(_received(container))}")


def _received(container: AdmittedContainer) -> Iterable[str]:
    for node in container.devices:
        yield f"--device=/dev/{Path(node.host_path).name}:{node.container_path}"
    for name, value in container.envs.items():
        yield f"--env {name}={value}"


def _show_node(cluster: SimulatedCluster) -> None:
    """What an administrator sees on the node, by the commands that are there for it."""
    for module in (devices, topology):
        name = module.__name__.rpartition(".")[2]
        _title(f"neuron-plugin {name}")
        parser = Parser(prog="neuron-plugin")
        module.register(parser.add_subparsers(dest="command"))
        flags = ["--root", str(cluster.node.root), "--pod-resources-socket", str(cluster.pod_resources_socket)]
        arguments = parser.parse_args([name, *flags])
        arguments.run(arguments)


def _title(text: str) -> None:
    print(f"\n== {text}", flush=True)


def _step(number: int, text: str) -> None:
    print(f" {number:>2}  {text}", flush=True)
