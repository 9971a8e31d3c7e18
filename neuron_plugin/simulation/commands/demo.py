"""``neuron-plugin demo``: a pod's way from its creation to its devices, without cluster or hardware.

Plugin and extender are real processes and use the real protocols. Machine, kubelet, API server and scheduler are
simulated. The steps have the numbers of docs/how-it-works.md.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import tempfile
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from neuron_plugin.allocation import Resource
from neuron_plugin.allocation.keys import CORES_KEY, DEVICES_KEY, GATE, NODE_KEY
from neuron_plugin.cli.command import CommandError, Exit, UsageError, program
from neuron_plugin.cli.main import main
from neuron_plugin.simulation.commands.simulate import known_types
from neuron_plugin.topology import catalogue
from neuron_plugin.wording import plural

if TYPE_CHECKING:
    from neuron_plugin.cluster import Pod
    from neuron_plugin.simulation import SimulatedCluster

INSTANCE_TYPE = "trn1.32xlarge"
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MOST_ASKED = 9999
"""The most devices or cores in a request."""
_COUNT = re.compile(r"0*[1-9]\d{,3}", re.ASCII)
LONGEST_ROOT_BYTES = 47
"""A socket path has at most 107 bytes. The plugin's sockets need some 50 below the demo's directory."""

DESCRIPTION = f"""\
Start the plugin on a simulated machine and the placement controller, and follow pods from their
creation to what their containers receive. The controller places them before the scheduler sees them
(gates); with --placement extender the scheduler asks it.

Without --ask: on a {INSTANCE_TYPE} a pod of two containers, a pod of cores, one that must be
refused, and two that want the same devices under different names. With --ask: the pods that you ask
for, one after the other."""

EXAMPLES = """
neuron-plugin demo
neuron-plugin demo --placement extender
neuron-plugin demo --type trn2.48xlarge --ask neuron=4 --ask neuron=7
neuron-plugin demo --keep ./demo && neuron-plugin devices --root ./demo/node-1
"""

Asked: TypeAlias = tuple[tuple[Resource, int], ...]
"""The requests of a pod's containers."""


STORY = (
    (
        "A pod with two containers: one device for the loader, a row of four for the trainer",
        "train",
        {"loader": (Resource.NEURONDEVICE, 1), "trainer": (Resource.NEURONDEVICE, 4)},
    ),
    ("A pod that needs two cores", "serve", {"server": (Resource.NEURONCORE, 2)}),
    ("A pod that asks for seven devices, which no Trn1 can link", "seven", {"main": (Resource.NEURONDEVICE, 7)}),
    (
        "The same devices under another name: all 32 cores, while pods hold some as devices",
        "greedy",
        {"main": (Resource.NEURONCORE, 32)},
    ),
)
"""Title, pod and containers of each step without --ask."""


def _asked(text: str) -> Asked:
    """Read requests; ``neuron=4,neuroncore=2`` are two containers."""
    resources, asked = {resource.short_name: resource for resource in Resource}, []
    for word in text.split(","):
        name, _, number = word.partition("=")
        if name not in resources or not _COUNT.fullmatch(number):
            expected = f"one of {', '.join(resources)}, =, and a count from 1 to {MOST_ASKED}"
            raise ArgumentTypeError(f"{word!r} is no request: expected {expected}")
        asked.append((resources[name], int(number)))
    return tuple(asked)


def add_ask_flag(parser: ArgumentParser) -> None:
    """Add ``--ask``, a pod for each time it is given."""
    ask = "create a pod that asks for this, one container each; again for one more pod"
    parser.add_argument("--ask", metavar="RESOURCE=COUNT[,...]", type=_asked, action="append", help=ask)


def add_flags(parser: ArgumentParser) -> None:
    """Add the flags for machine and pods."""
    add_ask_flag(parser)
    machine = f"the machine, with --ask (default: {INSTANCE_TYPE})"
    parser.add_argument("--type", metavar="TYPE", default=INSTANCE_TYPE, help=machine)
    placement = "who places the pods (default: gates)"
    parser.add_argument("--placement", choices=("gates", "extender"), default="gates", help=placement)
    numbering = "device numbers inside containers, as for 'run' (default: auto)"
    parser.add_argument("--numbering", choices=("auto", "host", "container"), default="auto", help=numbering)
    keep = "leave the simulated node and all logs in this directory"
    parser.add_argument("--keep", metavar="DIR", type=Path, help=keep)


def run(arguments: Namespace) -> int:
    """Play the demo; it takes some seconds.

    Raises:
        UsageError: an unknown type, or one for the demo without --ask; a directory in use.
        CommandError: the simulated cluster was not ready in time.
    """
    known_types(arguments.type)
    if arguments.type != INSTANCE_TYPE and not arguments.ask:
        raise UsageError(f"--type {arguments.type} needs pods to place: give --ask, such as --ask neuron=1")
    from neuron_plugin.simulation import SimulationError

    with EndOnSignals() as ending, ExitStack() as stack:
        root = arguments.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="neuron-demo-")))
        root.mkdir(parents=True, exist_ok=True)
        if (length := len(os.fsencode(root))) > LONGEST_ROOT_BYTES:
            raise UsageError(
                f"{root} has {length} bytes, expected at most {LONGEST_ROOT_BYTES}, or paths of sockets below it are "
                "too long: give --keep a shorter directory"
            )
        try:
            ending.run(lambda: _play(root, arguments))
        except asyncio.CancelledError:
            return Exit.INTERRUPTED
        except SimulationError as error:  # such as a directory in use
            raise UsageError(str(error)) from error
        except TimeoutError as error:
            raise CommandError(
                f"the simulated cluster was too slow ({str(error) or 'its daemons are not ready'}): "
                "is this machine very busy? Try again, with --keep DIR to read the logs"
            ) from error
    return Exit.SUCCESS


class EndOnSignals:
    """A context in which the first SIGINT, SIGTERM or SIGHUP cancels ``run``, and later signals are ignored.

    Enter it before anything is created that needs cleaning up. A signal before ``run`` cancels it at its start.
    """

    def __init__(self) -> None:
        self._received = False
        self._task: asyncio.Task[None] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._receive) for number in _ENDING}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():  # let the cleanup finish
            signal.signal(number, signal.SIG_IGN if self._received else handler)

    def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run to the end.

        Raises:
            asyncio.CancelledError: a signal came.
        """
        asyncio.run(self._run(work))

    async def _run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._task = asyncio.create_task(work(), name="until a signal")
        if self._received:
            self._task.cancel()
        await self._task

    def _receive(self, *_: object) -> None:
        if not self._received and self._task and not self._task.done():
            self._task.get_loop().call_soon_threadsafe(self._task.cancel)
        self._received = True


async def _play(root: Path, arguments: Namespace) -> None:
    from neuron_plugin.simulation import NODE_NAME, PlacedBy, SimulatedCluster

    instance = catalogue()[arguments.type]
    _title(f"A simulated {instance.name} with {plural(instance.devices, 'device')}, its kubelet and an API server")
    placed_by, flags = PlacedBy(arguments.placement), ("--numbering", arguments.numbering)
    async with SimulatedCluster(root, {NODE_NAME: instance.name}, daemon_flags=flags, placed_by=placed_by) as cluster:
        worker = cluster.worker
        _step(1, "the plugin found the devices in sysfs and lists them to the kubelet")
        counts = {resource.value: worker.kubelet.capacity(resource.value).allocatable for resource in Resource}
        offered = ", ".join(f"{name}: {count}" for name, count in counts.items())
        _step(2, f"the kubelet advertises them: {offered}")
        if not arguments.ask:
            for title, name, containers in STORY:
                _title(title)
                await _schedule(cluster, name, containers)
            free = worker.kubelet.capacity(Resource.NEURON.value)
            offered = f"{Resource.NEURON.value} has {free.capacity} devices and {free.allocatable} to give"
            print(f"     The kubelet knows it by itself, too: {offered}.")
        for number, requested in enumerate(arguments.ask or (), 1):
            requests = ", ".join(f"{resource.short_name}={count}" for resource, count in requested)
            _title(f"pod-{number} asks for {requests}")
            containers = {f"container-{place}": request for place, request in enumerate(requested, 1)}
            await _schedule(cluster, f"pod-{number}", containers)
        for command in ("devices", "topology"):  # an administrator's view of the node
            _title(f"neuron-plugin {command}")
            await asyncio.to_thread(main, [command, "--config", str(worker.config)])
    print("\nEverything above went over the real protocols. To go on:")
    print(f"  {program()} demo --ask neuron=4 --ask neuron=7    your own pods; --type for another machine")
    print(f"  {program()} playground    a cluster that stays up, to look around and to break things")
    print(f"  {program()} --help")


async def _schedule(cluster: SimulatedCluster, name: str, containers: Mapping[str, tuple[Resource, int]]) -> None:
    """Steps 3 to 11 of a pod that fits, 3 to 5 of one that does not."""
    from neuron_plugin.simulation import PlacedBy, pod_manifest

    cluster.api.create_pod(pod_manifest(name, containers))
    by_gates = cluster.placed_by is PlacedBy.GATES
    if not await (_place(cluster, name) if by_gates else _ask_extender(cluster, name)):
        return
    admitted = await cluster.admit(name)
    _step(9, "the kubelet asks which ids are preferred, then calls Allocate, once for each container")
    await cluster.wait_until_allocated(name)
    _step(10, "the plugin prefers the annotated ids, and confirms them on the pod: NEURON_ALLOCATED: true")
    _step(11, "the containers receive:")
    for container in admitted.containers:
        nodes = [f"--device=/dev/{Path(device.host_path).name}:{device.container_path}" for device in container.devices]
        env = [f"--env {variable}={value}" for variable, value in container.envs.items()]
        print(f"      {container.name}: {' '.join([*nodes, *env])}")


async def _place(cluster: SimulatedCluster, name: str) -> bool:
    """Steps 3 to 8 by gates; whether the pod fits."""
    _step(3, f"pod {name} is created with the gate {GATE}: no scheduler looks at it yet")
    _step(4, "the placement controller sees it, and looks for the node where it costs later pods least")
    if why := await cluster.placed(name):
        _step(5, f"refused. The gate stays, and the pod's event reads: {why}")
        return False
    record = cluster.pod(name)
    node = record.annotations[NODE_KEY]
    _step(5, f"it chooses {node}, and a free linked set there")
    _step(6, f"one request writes the set on the pod: {_assignment(record)}")
    _step(7, f"... adds {node} to its required node affinity, and takes the gate off")
    await cluster.bind(name)
    _step(8, f"the scheduler finds one node that fits, and binds the pod to {cluster.pod(name).node_name}")
    return True


async def _ask_extender(cluster: SimulatedCluster, name: str) -> bool:
    """Steps 3 to 8 where the scheduler asks the extender; whether the pod fits."""
    _step(3, f"pod {name} is created; the scheduler picks it up")
    answer = await cluster.filter(name)
    _step(4, "the scheduler calls the extender's filter with the pod and the nodes")
    if not answer.nodes:
        _step(5, f"refused. The pod stays Pending, and its event reads: {answer.message(1)}")
        return False
    _step(5, f"the extender leaves the nodes with a free linked set: {', '.join(answer.nodes)}")
    await cluster.bind(name)
    _step(6, f"the scheduler calls the extender's bind with node {answer.nodes[0]}")
    record = cluster.pod(name)
    _step(7, f"the extender annotates the pod: {_assignment(record)}")
    _step(8, f"... and binds it to {record.node_name} in the same request")
    return True


def _assignment(pod: Pod) -> str:
    return ", ".join(f"{key}: {pod.annotations[key]}" for key in (DEVICES_KEY, CORES_KEY) if key in pod.annotations)


def _title(text: str) -> None:
    print(f"\n== {text}", flush=True)


def _step(number: int, text: str) -> None:
    print(f" {number:>2}  {text}", flush=True)
