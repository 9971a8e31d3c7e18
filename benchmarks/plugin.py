"""How much the node daemon costs, beside a floor measured in the same run.

    python benchmarks/plugin.py [start|full|fault|churn|use] [--calls 2000] [--idle-seconds 10] [--faults 5] [--pods N]

The floor of Allocate is a grpc.aio server in a process of its own whose handler answers a constant: what Python's gRPC
costs before anything is decided. Calls to both alternate, so both meet the same machine. Start-up, memory and idle CPU
are those of ``neuron-plugin run`` as a process, with and without the API server. ``full`` calls a node of a hundred
pods, ``fault`` breaks devices and waits for the kubelet to hear of it, ``churn`` lets pods come and go beside health
flips and kubelet restarts, ``use`` reads the counters of the cores' work. Ratios travel between machines, milliseconds
do not.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from neuron_plugin.allocation import PodReference, PodUid, Resource
from neuron_plugin.allocation.utilization import read_utilization, write_utilization
from neuron_plugin.hardware.core_counters import CoreCounterReader, PhysicalCore
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2_grpc as pb_grpc
from neuron_plugin.plugin.health import LONGEST_HOLD_SECONDS
from neuron_plugin.plugin.utilization import ContainerKey, Reading, UseByContainer, is_news, use_after, utilization_of
from neuron_plugin.simulation import KubeletContainer, KubeletPod, SimulatedNode, write_node
from neuron_plugin.simulation.kubelet_plugins import PluginConnection
from neuron_plugin.simulation.node_tree import WORK_COUNTERS, work_file
from tests.support.api_server import StandInApiServer
from tests.support.kubelet import StandInKubelet
from tests.support.manifests import pod_manifest

RESOURCE = "aws.amazon.com/neuroncore"
NAMES = ("neuron", "neurondevice", "neuroncore")
TICKS = os.sysconf("SC_CLK_TCK")
WARM_UP_CALLS = 50
WARM_UP_PODS = 500
STAGES = 4
AT_ONCE = 5
FLIP_EVERY = 100
RESTART_EVERY = 500
"""Of the churn, in pods."""

FLOOR = """
import asyncio, sys
import grpc
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as pb, api_pb2_grpc as pb_grpc

class Floor(pb_grpc.DevicePluginServicer):
    async def Allocate(self, request, context):
        return pb.AllocateResponse(container_responses=[pb.ContainerAllocateResponse(
            envs={"NEURON_RT_VISIBLE_CORES": "0,1"},
            devices=[pb.DeviceSpec(container_path="/dev/neuron0", host_path="/dev/neuron0", permissions="rw")])])

async def main():
    server = grpc.aio.server()
    pb_grpc.add_DevicePluginServicer_to_server(Floor(), server)
    server.add_insecure_port("unix:" + sys.argv[1])
    await server.start()
    await server.wait_for_termination()

asyncio.run(main())
"""


class Daemon:
    """``neuron-plugin run`` on a simulated trn1.32xlarge, beside stand-ins."""

    def __init__(self, root: Path, *flags: str) -> None:
        node = root / "node"
        command = [sys.executable, "-m", "neuron_plugin.cli.main", "run"]
        command += ["--sysfs", str(node / "sys"), "--dev", str(node / "dev")]
        command += ["--logical-core-file", str(SimulatedNode.open(node).paths.logical_nc_config)]
        command += ["--kubelet-dir", str(root / "dp"), "--pod-resources-socket", str(root / "pr" / "kubelet.sock")]
        self.health_port = free_port()
        command += ["--health-address", "127.0.0.1", "--health-port", str(self.health_port)]
        self.started = time.perf_counter()
        self.process = subprocess.Popen([*command, *flags], stderr=subprocess.DEVNULL)

    def cpu_seconds(self) -> float:
        """User and system time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def rss_mb(self) -> float:
        """Resident memory now."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def scrape(self) -> int:
        """Read probes and metrics once, as a cluster does: the libraries behind them count, too. How many series."""
        for page in ("healthz", "readyz", "decisions", "metrics"):
            with urllib.request.urlopen(f"http://127.0.0.1:{self.health_port}/{page}", timeout=5) as response:
                text = response.read()
        return sum(not line.startswith(b"#") for line in text.splitlines())

    def descriptors(self) -> int:
        """Open files and sockets."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def threads(self) -> int:
        """Threads now."""
        return len(list(Path(f"/proc/{self.process.pid}/task").iterdir()))

    def stop(self) -> None:
        """End it and wait."""
        self.process.terminate()
        self.process.wait()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def timed_allocates() -> Iterator[list[float]]:
    """The microseconds that each Allocate of the stand-in kubelet took in the block, gRPC included."""
    taken: list[float] = []
    original = PluginConnection.allocate

    async def timed(client: PluginConnection, ids: Sequence[str]) -> pb.AllocateResponse:
        started = time.perf_counter()
        try:
            return await original(client, ids)
        finally:
            taken.append((time.perf_counter() - started) * 1e6)

    PluginConnection.allocate = timed  # type: ignore[assignment,method-assign]
    try:
        yield taken
    finally:
        PluginConnection.allocate = original  # type: ignore[method-assign]


async def compare_allocate(there: World, calls: int) -> None:
    """Allocate of the daemon, for a pod each, beside the same call to the floor; they alternate."""
    floor_socket = there.root / "floor.sock"
    floor = subprocess.Popen([sys.executable, "-c", FLOOR, str(floor_socket)])  # noqa: ASYNC220 - the text above
    request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=["0"])])
    floor_us: list[float] = []
    try:
        async with grpc.aio.insecure_channel(
            f"unix:{floor_socket}", (("grpc.default_authority", "localhost"),)
        ) as channel:
            stub = pb_grpc.DevicePluginStub(channel)
            with timed_allocates() as plugin_us:
                for _ in range(calls + WARM_UP_CALLS):
                    await there.end(await there.admit(neuroncore=1))
                    started = time.perf_counter()
                    await stub.Allocate(request, timeout=5, wait_for_ready=True)
                    floor_us.append((time.perf_counter() - started) * 1e6)
    finally:
        floor.terminate()
        floor.wait()
    for name, of in (("p50", statistics.median), ("p99", percentile_99)):
        plugin, bare = of(plugin_us[WARM_UP_CALLS:]), of(floor_us[WARM_UP_CALLS:])
        print(
            f"Allocate {name}: plugin {plugin:.0f} us, floor {bare:.0f} us, "
            f"ratio {plugin / bare:.2f} ({calls} calls each)"
        )


async def measure(root: Path, calls: int, idle_seconds: float, *, cluster: bool) -> None:
    """One daemon: start, Allocate, memory, idle CPU."""
    for name in ("dp", "pr"):
        (root / name).mkdir()
    async with StandInApiServer() as api, StandInKubelet(root / "dp", root / "pr") as kubelet:
        api.create_node({"metadata": {"name": "bench"}})
        config = str(api.write_kubeconfig(root / "kubeconfig"))
        daemon = Daemon(root, *(("--node-name", "bench", "--kubeconfig", config) if cluster else ("--no-cluster",)))
        try:
            await kubelet.wait_for_capacity(RESOURCE, 32, timeout_seconds=30)
            label = "with the API server" if cluster else "--no-cluster"
            print(f"{label}: start to registered {time.perf_counter() - daemon.started:.2f} s")
            if cluster:
                await asyncio.sleep(2)
                await compare_allocate(World(root, api, kubelet, daemon, itertools.count(1)), calls)
            await asyncio.sleep(3)  # the HTTP server comes last
            await asyncio.to_thread(daemon.scrape)
            await asyncio.sleep(1)
            before = daemon.cpu_seconds()
            await asyncio.sleep(idle_seconds)
            idle = (daemon.cpu_seconds() - before) / idle_seconds
            print(f"{label}: RSS {daemon.rss_mb():.0f} MB, idle CPU {idle:.2%} of a core over {idle_seconds:g} s")
        finally:
            await asyncio.to_thread(daemon.stop)


def percentile_99(values: list[float]) -> float:
    """What one call in a hundred exceeds."""
    return sorted(values)[len(values) * 99 // 100]


@dataclass(frozen=True, slots=True)
class World:
    """A daemon between its stand-ins, on a node called ``bench``."""

    root: Path
    api: StandInApiServer
    kubelet: StandInKubelet
    daemon: Daemon
    numbers: itertools.count[int]

    async def admit(self, **limits: int) -> KubeletPod:
        """A pod that is bound here without a decision, up to its containers' start."""
        name = f"pod-{next(self.numbers)}"
        ((resource, amount),) = limits.items()
        asked = Resource(f"aws.amazon.com/{resource}")
        manifest = pod_manifest(name, asked, amount, node="bench")
        manifest["metadata"]["uid"] = str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
        made = self.api.create_pod(manifest)
        wanted = (KubeletContainer("main", {asked.value: amount}),)
        return (await self.kubelet.admit(KubeletPod(made["metadata"]["uid"], "default", name, wanted))).pod

    async def end(self, pod: KubeletPod) -> None:
        """Its containers stop, the kubelet says so, and it is deleted."""
        self.kubelet.finish(pod.uid)
        ended = {"name": "main", "state": {"terminated": {"exitCode": 0}}}
        self.api.set_pod_status("default", pod.name, {"phase": "Succeeded", "containerStatuses": [ended]})
        self.api.delete_pod("default", pod.name, grace_seconds=0)


@asynccontextmanager
async def world(instance_type: str, cores: int, lnc: int | None = None) -> AsyncIterator[World]:
    """A daemon on a simulated machine, registered and followed."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        write_node(root / "node", instance_type)
        SimulatedNode.open(root / "node").set_logical_core_size(lnc)
        for name in ("dp", "pr"):
            (root / name).mkdir()
        async with StandInApiServer() as api, StandInKubelet(root / "dp", root / "pr") as kubelet:
            api.create_node({"metadata": {"name": "bench"}})
            config = str(api.write_kubeconfig(root / "kubeconfig"))
            daemon = Daemon(root, "--node-name", "bench", "--kubeconfig", config)
            try:
                await kubelet.wait_for_capacity(RESOURCE, cores, timeout_seconds=30)
                await asyncio.sleep(2)
                yield World(root, api, kubelet, daemon, itertools.count(1))
            finally:
                await asyncio.to_thread(daemon.stop)


async def measure_full(calls: int) -> None:
    """Allocate on a node of a hundred pods."""
    async with world("trn2.48xlarge", 128, lnc=1) as there:
        for _ in range(100):
            await there.admit(neuroncore=1)
        await asyncio.sleep(3)
        print("a hundred pods on the node:")
        await compare_allocate(there, calls)


async def measure_faults(faults: int) -> None:
    """From a broken device to the kubelet's counting one less, by the way the fault shows."""
    async with world("trn1.32xlarge", 32) as there:
        node = SimulatedNode.open(there.root / "node")
        ways: tuple[tuple[str, Callable[[int], None]], ...] = (
            (
                "kernel message",
                lambda device: node.log_kernel_message(f"nd{device}: NEURON_HW_ERR=HBM_UNCORRECTABLE_ERROR on HBM 0"),
            ),
            ("uncorrected ECC error in sysfs", lambda device: node.set_ecc(device, sram=1)),
            ("device node removed", node.remove_node),
        )
        devices = itertools.count()
        for name, break_it in ways:
            taken = [await seconds_to_unhealthy(there.kubelet, break_it, next(devices)) for _ in range(faults)]
            print(f"{name}: {statistics.median(taken):.3f} s to Unhealthy, longest {max(taken):.3f} s ({faults} times)")


async def seconds_to_unhealthy(kubelet: StandInKubelet, break_it: Callable[[int], None], device: int) -> float:
    """How long until the kubelet counts fewer cores."""
    healthy = kubelet.capacity(RESOURCE).allocatable
    began = time.perf_counter()
    break_it(device)
    while kubelet.capacity(RESOURCE).allocatable == healthy:
        await asyncio.sleep(0.002)
    return time.perf_counter() - began


async def measure_churn(pods: int, idle_seconds: float) -> None:
    """What is left of ``pods`` pods that came and went: in a day that is one each nine seconds for ten thousand."""
    async with world("trn1.32xlarge", 32) as there:
        node = SimulatedNode.open(there.root / "node")
        await churn(there, node, WARM_UP_PODS)
        await tell(there, "after the warm-up", idle_seconds)
        for stage in range(1, STAGES + 1):
            await churn(there, node, pods // STAGES)
            await tell(there, f"after {pods * stage // STAGES} more pods", idle_seconds if stage == STAGES else 1.0)


async def churn(there: World, node: SimulatedNode, pods: int) -> None:
    """Pods of one device or two cores come and go, a few at a time; devices vanish and return, the kubelet restarts."""
    running: list[KubeletPod] = []
    for number in range(pods):
        running.append(await (there.admit(neuroncore=2) if number % 2 else there.admit(neuron=1)))
        if len(running) == AT_ONCE:
            await there.end(running.pop(0))
        if number % FLIP_EVERY == 0:
            node.remove_node(15)
        if number % FLIP_EVERY == FLIP_EVERY // 2:
            node.restore_node(15)
        if number % RESTART_EVERY == RESTART_EVERY - 1:
            await there.kubelet.restart()
            async with asyncio.timeout(30):
                while not all(there.kubelet.capacity(f"aws.amazon.com/{name}").allocatable for name in NAMES):
                    await asyncio.sleep(0.01)
    for pod in running:
        await there.end(pod)
    # Device 15 came and went: once it is taken to flap, it is held for longer each time.
    await there.kubelet.wait_for_capacity(RESOURCE, 32, timeout_seconds=LONGEST_HOLD_SECONDS)


async def tell(there: World, when: str, idle_seconds: float) -> None:
    """One line of what the daemon uses at rest."""
    await asyncio.sleep(5)
    series = await asyncio.to_thread(there.daemon.scrape)
    before = there.daemon.cpu_seconds()
    await asyncio.sleep(idle_seconds)
    idle = (there.daemon.cpu_seconds() - before) / idle_seconds
    daemon = there.daemon
    print(
        f"{when}: RSS {daemon.rss_mb():.1f} MB, {daemon.descriptors()} descriptors, {daemon.threads()} threads, "
        f"{series} series, idle CPU {idle:.2%}",
        flush=True,
    )


def measure_use(readings: int) -> None:
    """CPU time of one reading of every core's counters and of all that follows from it, beside the bare reads."""
    for instance_type in ("trn1.32xlarge", "trn2.48xlarge"):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
            node = write_node(Path(directory), instance_type, usage_counters=False, work_counters=True)
            per_device = node.description.generation.cores_per_device
            cores = [(device, core) for device in node.description.chips for core in range(per_device)]
            files = [
                f"{node.paths.sysfs}/class/neuron_device/neuron{device}/{work_file(core, name)}"
                for device, core in cores
                for name in WORK_COUNTERS[:2]
            ]
            holders: dict[ContainerKey, frozenset[PhysicalCore]] = {}
            for device, core in cores:  # a pod on each device
                key = ContainerKey(PodReference(PodUid(str(uuid.UUID(int=device))), "ml", f"pod-{device}"), "main")
                holders[key] = holders.get(key, frozenset()) | {(device, core)}
            use: UseByContainer = {}
            reader, driver = CoreCounterReader(node.paths.sysfs), node.description.driver
            floor, ours = list[float](), list[float]()
            for number in range(readings):
                floor.append(cpu_milliseconds(lambda: [bare_read(file) for file in files]))
                started = time.thread_time()
                read = Reading(30.0 * number, 1e9 + 30.0 * number, reader.read(cores, driver))
                use = use_after(use, holders, read, {})
                utilization = utilization_of(use, read.unix, 300)
                is_news(utilization, utilization, 0)
                ours.append((time.thread_time() - started) * 1e3)
            text = write_utilization(utilization)
            decoded = cpu_milliseconds(lambda: read_utilization(text))
            print(
                f"{instance_type}: {len(cores)} cores, {len(files)} counters read and judged in "
                f"{statistics.median(ours):.2f} ms of CPU (bare reads {statistics.median(floor):.2f} ms); "
                f"the text for {len(holders)} pods has {len(text)} bytes and is read in {decoded * 1e3:.0f} us"
            )


def cpu_milliseconds(work: Callable[[], object]) -> float:
    """CPU time of one call."""
    started = time.thread_time()
    work()
    return (time.thread_time() - started) * 1e3


def bare_read(path: str) -> bytes:
    """One file as cheaply as Python can."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 4096)
    finally:
        os.close(descriptor)


def measure_start(calls: int, idle_seconds: float) -> None:
    """Start, memory and idle CPU, with the API server and without."""
    for cluster in (False, True):
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory)
            write_node(root / "node", "trn1.32xlarge")
            asyncio.run(measure(root, calls, idle_seconds, cluster=cluster))


def main() -> None:
    """Measure what is asked for, or everything but the churn, which takes minutes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", nargs="?", choices=("start", "full", "fault", "churn", "use"))
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--idle-seconds", type=float, default=10.0)
    parser.add_argument("--faults", type=int, default=5)
    parser.add_argument("--pods", type=int, default=10_000)
    arguments = parser.parse_args()
    if arguments.what in (None, "start"):
        measure_start(arguments.calls, arguments.idle_seconds)
    if arguments.what in (None, "full"):
        asyncio.run(measure_full(arguments.calls))
    if arguments.what in (None, "fault"):
        asyncio.run(measure_faults(arguments.faults))
    if arguments.what in (None, "use"):
        measure_use(50)
    if arguments.what == "churn":
        asyncio.run(measure_churn(arguments.pods, arguments.idle_seconds))


if __name__ == "__main__":
    main()
