"""How far one request travels through the code: files, functions, and returns to a file that was left already.

A reader who wants to know why an Allocate did what it did has to open these files. Every call into ``neuron_plugin``
counts, of every room, on the first request of its kind: nothing that the code remembers of earlier ones is there.
Left out are the libraries (gRPC, aiohttp), and what runs after the answer. With ``-v`` every function is listed.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

import neuron_plugin
from neuron_plugin.allocation import NeuronPod
from neuron_plugin.cluster.pods import PODS
from neuron_plugin.kubelet import CheckpointFile
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as pb
from neuron_plugin.kubelet.device_plugin import DevicePluginService
from neuron_plugin.kubelet_files import CHECKPOINT
from neuron_plugin.monitor.explain import explain, explain_text, question
from neuron_plugin.placement.context import Context
from neuron_plugin.placement.extender.binding import Binder
from neuron_plugin.placement.extender.filter import Leads
from neuron_plugin.placement.extender.server import ExtenderService
from neuron_plugin.placement.gates.placer import Placer
from neuron_plugin.placement.informers import keep_pod
from neuron_plugin.placement.leadership import Readiness
from neuron_plugin.placement.room import Room
from neuron_plugin.placement.writer import Writer
from neuron_plugin.plugin.allocator import Allocator
from neuron_plugin.plugin.inputs import NodePods
from neuron_plugin.plugin.metrics import new_counts
from neuron_plugin.plugin.node import LocalNode
from neuron_plugin.plugin.settings import PluginSettings
from neuron_plugin.simulation.api_server_kinds import PODS as SERVED_PODS
from tests.plugin.world import NEURON, app, assigned, inventory
from tests.support.api_server import StandInApiServer
from tests.support.manifests import gated_manifest
from tests.support.world import World

_ROOT = str(Path(neuron_plugin.__file__).parent)


class Trace:
    """The files and functions that ran, in the order of their calls."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.functions: set[tuple[str, str]] = set()

    def called(self, frame: FrameType, event: str, _argument: object) -> None:
        """See ``sys.setprofile``."""
        code = frame.f_code
        ours = code.co_filename.startswith(_ROOT) and "simulation" not in code.co_filename
        if event != "call" or not ours or code.co_name.startswith("<"):
            return
        file = code.co_filename[len(_ROOT) + 1 :]
        self.functions.add((file, code.co_qualname))
        if not self.files or self.files[-1] != file:
            self.files.append(file)

    def __str__(self) -> str:
        different = len(set(self.files))
        returns = len(self.files) - different
        return f"{different} files, {len(self.functions)} functions, {returns} returns to a file already left"


def forget() -> None:
    """Empty the caches of all functions of ours: what is remembered hides the files behind it."""
    for found in gc.get_objects():
        if isinstance(found, functools._lru_cache_wrapper) and found.__module__.startswith(neuron_plugin.__name__):
            found.cache_clear()


@contextmanager
def traced() -> Iterator[Trace]:
    """Trace what runs in the block, with nothing remembered."""
    forget()
    path = Trace()
    sys.setprofile(path.called)
    try:
        yield path
    finally:
        sys.setprofile(None)


class _Context:
    """A gRPC context that does nothing."""

    def add_done_callback(self, _callback: Callable[[object], None]) -> None:
        """Nothing is ever done."""


def show(name: str, path: Trace, *, verbose: bool) -> None:
    """Print one line, and the functions if asked for."""
    print(f"{name}: {path}")
    if verbose:
        for file, function in sorted(path.functions):
            print(f"    {file}: {function}")


async def plugin_paths(*, verbose: bool) -> None:
    """An Allocate and a GetPreferredAllocation of an assigned pod, and that pod's end."""
    pod = assigned("a", app(4), sets=[[4, 5, 6, 7]])
    with tempfile.TemporaryDirectory() as directory:
        node = LocalNode(CheckpointFile(Path(directory) / CHECKPOINT, [NEURON.value]), _NoCgroups())
        node.see_inventory(inventory())
        node.see_pods(NodePods({pod.uid: pod}))
        node.advertise()
        settings = PluginSettings(node_name="node")
        service = DevicePluginService(
            NEURON.value,
            Allocator(node, settings, None, new_counts()),
            node.advertisements[NEURON],
        )
        every = [str(one) for one in range(16)]
        preferred = pb.PreferredAllocationRequest(
            container_requests=[pb.ContainerPreferredAllocationRequest(available_deviceIDs=every, allocation_size=4)]
        )
        allocate = pb.AllocateRequest(
            container_requests=[pb.ContainerAllocateRequest(devices_ids=["4", "5", "6", "7"])]
        )
        calls: Sequence[tuple[str, Callable[[], Awaitable[Any]]]] = (
            ("preferred", lambda: service.GetPreferredAllocation(preferred, _Context())),  # type: ignore[arg-type]
            ("Allocate", lambda: service.Allocate(allocate, _Context())),  # type: ignore[arg-type]
        )
        assert node.snapshot
        for name, call in calls:
            with traced() as path:
                await call()
            show(name, path, verbose=verbose)
        uid = pod.uid
        with traced() as path:
            node.see_pods(node.pods.without(uid, stopped=True))
            node.advertise()
        show("a pod's end", path, verbose=verbose)


async def extender_paths(*, verbose: bool) -> None:
    """A filter of one node, the first, and the bind that follows."""
    world, server = World(), StandInApiServer()
    world.node("node", "trn1.32xlarge")
    context = Context(server, world.state, Readiness({}), "one")
    leads = Leads(context, writer := Writer(context))
    service = ExtenderService(context, Binder(context, writer, leads), leads)
    manifest = world.pod("first", NEURON, 4)
    server.create_pod(manifest)
    body = json.dumps({"Pod": manifest, "NodeNames": ["node"]}).encode()
    with traced() as path:
        service.answer("filter", body)
    show("filter", path, verbose=verbose)
    uid = manifest["metadata"]["uid"]
    body = json.dumps({"PodName": "first", "PodNamespace": "default", "PodUID": uid, "Node": "node"}).encode()
    with traced() as path:
        await service.bind(body)
    show("bind", path, verbose=verbose)


async def gates_paths(*, verbose: bool) -> None:
    """A gated pod from its event to the PATCH that places it; and why another one waits."""
    world, server = World(), StandInApiServer()
    context = Context(server, world.state, Readiness({}), "one")
    writer = Writer(context)
    placer = Placer(context, writer, Room(context, writer))
    world.node("node", "trn1.32xlarge")
    placer.step()
    for name in ("first", "second"):
        server.create_pod(gated_manifest(name, NEURON, 16))
    first, second = (msgspec.json.encode(pod) for pod in server.objects(SERVED_PODS))
    with traced() as path:
        record = keep_pod(PODS.decode(first))
        assert isinstance(record, NeuronPod)
        world.state.put_pod(record)
        placer.step()
        await placer.drain()
    assert not server.get(SERVED_PODS, "first", "default")["spec"].get("schedulingGates")
    show("gated pod", path, verbose=verbose)
    waits = keep_pod(PODS.decode(second))
    assert isinstance(waits, NeuronPod)
    world.state.put_pod(waits)
    with traced() as path:
        explain_text(explain(question(world.state, waits)))
    show("explain", path, verbose=verbose)


class _NoCgroups:
    def is_populated(self, _uid: str) -> bool | None:
        return None


if __name__ == "__main__":
    for paths in (plugin_paths, extender_paths, gates_paths):
        asyncio.run(paths(verbose="-v" in sys.argv))
