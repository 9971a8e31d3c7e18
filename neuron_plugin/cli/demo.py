"""``neuron-plugin demo``: the whole way of a pod, from its creation to its devices, without cluster or hardware.

The plugin and the extender are the real ones, each as its own process, over the real protocols. The machine, the
kubelet, the API server and the scheduler's calls are the stand-ins of ``simulation/``.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from argparse import ArgumentTypeError, Namespace
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from neuron_plugin.allocation import Resource
from neuron_plugin.cli import devices, topology
from neuron_plugin.cli.command import CommandError, Exit, Parser, Subparsers, UsageError, add_command
from neuron_plugin.cli.demo_steps import schedule, step, title
from neuron_plugin.cli.simulate_types import known_types
from neuron_plugin.inspection.text import plural
from neuron_plugin.topology import InstanceType, Unit, catalogue

if TYPE_CHECKING:
    from neuron_plugin.simulation import SimulatedCluster

INSTANCE_TYPE = "trn1.32xlarge"
LONGEST_ROOT_BYTES = 54
"""A socket's path has 107 bytes at most, and those of the plugin some 50 below the demo's directory."""

DESCRIPTION = f"""\
Start the plugin on a simulated machine and the scheduler extender, and follow pods from their creation to what their
containers receive.

Without --ask: on a {INSTANCE_TYPE} a pod of two containers, a pod of cores, one that must be refused, and two that want
the same silicon under different names. With --ask: the pods that you ask for, one after the other."""

EXAMPLES = """
neuron-plugin demo
neuron-plugin demo --type trn2.48xlarge --ask neuron=4 --ask neuron=7
neuron-plugin demo --type inf2.48xlarge --ask neuroncore=1 --ask neuron=3,neuroncore=2
neuron-plugin demo --keep ./demo && neuron-plugin devices --root ./demo/node
"""

Asked: TypeAlias = tuple[tuple[Resource, int], ...]
"""What one pod asks for, container by container."""


def register(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "demo",
        run,
        summary="see pods get their linked devices, or a refusal, in a simulated cluster on this machine",
        description=DESCRIPTION,
        examples=EXAMPLES,
    )
    parser.add_argument(
        "--ask",
        metavar="RESOURCE=COUNT[,...]",
        type=_asked,
        action="append",
        help="create a pod that asks for this, one container each; again for one more pod",
    )
    parser.add_argument(
        "--type", metavar="TYPE", default=INSTANCE_TYPE, help=f"the machine, with --ask (default: {INSTANCE_TYPE})"
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
    """Play the demo; it takes some seconds.

    Raises:
        UsageError: an unknown type, or one for the story that is told without --ask; a directory in use.
    """
    known_types(arguments.type)
    if arguments.type != INSTANCE_TYPE and not arguments.ask:
        raise UsageError(f"--type {arguments.type} needs pods to place: give --ask, such as --ask neuron=1")
    if arguments.keep:
        arguments.keep.mkdir(parents=True, exist_ok=True)
        return _played(arguments.keep, arguments)
    with tempfile.TemporaryDirectory(prefix="neuron-demo-") as directory:
        return _played(Path(directory), arguments)


def _asked(text: str) -> Asked:
    """``neuron=4,neuroncore=2``: two containers."""
    resources = {resource.short_name: resource for resource in Resource}
    found: list[tuple[Resource, int]] = []
    for part in text.split(","):
        name, _, count = part.partition("=")
        if name not in resources or not (count.isascii() and count.isdigit() and int(count)):
            raise ArgumentTypeError(f"{part!r} is no request: expected one of {', '.join(resources)}, =, and a count")
        found.append((resources[name], int(count)))
    return tuple(found)


@asynccontextmanager
async def _cluster(root: Path, instance_type: str, numbering: str) -> AsyncIterator[SimulatedCluster]:
    """The cluster for the length of the block."""
    from neuron_plugin.simulation import (
        SimulatedCluster,
        SimulationError,
    )

    try:
        async with SimulatedCluster(root, instance_type, daemon_flags=("--numbering", numbering)) as cluster:
            yield cluster
    except SimulationError as error:  # such as a directory in use
        raise UsageError(str(error)) from error
    except TimeoutError as error:
        raise CommandError(
            f"the simulated cluster did not get on in time ({str(error) or 'its daemons are not ready'}): is this "
            "machine very busy? Try again, with --keep DIR to read the logs"
        ) from error


def _played(root: Path, arguments: Namespace) -> Exit:
    if (length := len(os.fsencode(root))) > LONGEST_ROOT_BYTES:
        raise UsageError(
            f"{root} has {length} bytes, expected at most {LONGEST_ROOT_BYTES}: the paths of sockets below it would be "
            "too long; give --keep a shorter directory"
        )
    try:
        asyncio.run(_play(root, arguments))
    except asyncio.CancelledError:
        return Exit.INTERRUPTED
    return Exit.FINE


def _end_with_the_daemons() -> None:
    """Let what would end this process alone, such as a closed terminal, end the demo as Ctrl-C does."""
    if task := asyncio.current_task():
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)


async def _play(root: Path, arguments: Namespace) -> None:
    _end_with_the_daemons()
    instance = catalogue()[arguments.type]
    title(f"A simulated {instance.name} with {plural(instance.devices, 'device')}, its kubelet and an API server")
    async with _cluster(root, instance.name, arguments.numbering) as cluster:
        await _offer(cluster, instance)
        if arguments.ask:
            await _pods(cluster, arguments.ask)
        else:
            await _story(cluster)
        await asyncio.to_thread(_show_node, cluster)
    print("\nEverything above went over the real protocols. To go on:")
    print("  neuron-plugin demo --ask neuron=4 --ask neuron=7    your own pods; --type for another machine")
    print("  neuron-plugin --help")


async def _offer(cluster: SimulatedCluster, instance: InstanceType) -> None:
    cores = instance.devices * instance.cores_per_device // instance.logical_core_size
    counts = {each: cores if each.unit is Unit.CORE else instance.devices for each in Resource}
    for resource, count in counts.items():
        await cluster.wait_until_offered(resource, count)
    step(1, "the plugin found the devices in sysfs and lists them to the kubelet")
    offered = ", ".join(f"{resource.value}: {count}" for resource, count in counts.items())
    step(2, f"the kubelet advertises them: {offered}")


async def _pods(cluster: SimulatedCluster, pods: Sequence[Asked]) -> None:
    for number, asked in enumerate(pods, 1):
        name = f"pod-{number}"
        title(f"{name} asks for {', '.join(f'{resource.short_name}={count}' for resource, count in asked)}")
        await schedule(cluster, name, {f"container-{place}": request for place, request in enumerate(asked, 1)})


async def _story(cluster: SimulatedCluster) -> None:
    device, core = Resource.NEURONDEVICE, Resource.NEURONCORE
    title("A pod with two containers: one device for the loader, a row of four for the trainer")
    await schedule(cluster, "train", {"loader": (device, 1), "trainer": (device, 4)})
    title("A pod that needs two cores")
    await schedule(cluster, "serve", {"server": (core, 2)})
    title("A pod that asks for seven devices, which no Trn1 can link")
    await schedule(cluster, "seven", {"main": (device, 7)})
    title("The same silicon under another name: all 32 cores, while pods hold some as devices")
    await schedule(cluster, "greedy", {"main": (core, 32)})
    free = cluster.kubelet.capacity(Resource.NEURON.value)
    offered = f"{Resource.NEURON.value} has {free.capacity} devices and {free.allocatable} to give"
    print(f"     The kubelet knows it without the extender, too: {offered}.")


def _show_node(cluster: SimulatedCluster) -> None:
    """What an administrator sees on the node, by the commands that are there for it."""
    for module in (devices, topology):
        name = module.__name__.rpartition(".")[2]
        title(f"neuron-plugin {name}")
        parser = Parser(prog="neuron-plugin")
        module.register(parser.add_subparsers(dest="command"))
        flags = ["--root", str(cluster.node.root), "--pod-resources-socket", str(cluster.pod_resources_socket)]
        arguments = parser.parse_args([name, *flags])
        arguments.run(arguments)
