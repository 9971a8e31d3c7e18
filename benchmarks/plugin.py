"""How much the node daemon costs, beside a floor measured in the same run.

    python benchmarks/plugin.py [--calls 2000] [--idle-seconds 10]

The floor of Allocate is a grpc.aio server in a process of its own whose handler answers a constant: what Python's gRPC
costs before anything is decided. Calls to both alternate, so both meet the same machine. Start-up, memory and idle CPU
are those of ``neuron-plugin run`` as a process, with and without the API server. Ratios travel between machines,
milliseconds do not.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import grpc

from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2_grpc as pb_grpc
from neuron_plugin.simulation.api_server import StandInApiServer
from neuron_plugin.simulation.kubelet import StandInKubelet
from neuron_plugin.simulation.node import write_node

RESOURCE = "aws.amazon.com/neuroncore"
TICKS = os.sysconf("SC_CLK_TCK")
WARM_UP_CALLS = 50

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
        command += ["--kubelet-dir", str(root / "dp"), "--pod-resources-socket", str(root / "pr" / "kubelet.sock")]
        self.health_port = free_port()
        command += ["--health-address", "127.0.0.1", "--health-port", str(self.health_port)]
        self.started = time.perf_counter()
        self.process = subprocess.Popen([*command, *flags], stderr=subprocess.DEVNULL)  # noqa: S603 - our own command

    def cpu_seconds(self) -> float:
        """User and system time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def rss_mb(self) -> float:
        """Resident memory now."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def scrape(self) -> None:
        """Read probes and metrics once, as a cluster does: the libraries behind them count, too."""
        for page in ("healthz", "readyz", "metrics", "decisions"):
            with urllib.request.urlopen(f"http://127.0.0.1:{self.health_port}/{page}", timeout=5) as response:
                response.read()

    def stop(self) -> None:
        """End it and wait."""
        self.process.terminate()
        self.process.wait()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def allocate_microseconds(floor_socket: Path, plugin_socket: Path, calls: int) -> tuple[list[float], list[float]]:
    """Latencies of alternating calls to the floor and to the plugin."""
    request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=["0", "1"])])
    options = (("grpc.default_authority", "localhost"),)
    with (
        grpc.insecure_channel(f"unix:{floor_socket}", options) as floor_channel,
        grpc.insecure_channel(f"unix:{plugin_socket}", options) as plugin_channel,
    ):
        stubs = pb_grpc.DevicePluginStub(floor_channel), pb_grpc.DevicePluginStub(plugin_channel)
        taken: tuple[list[float], list[float]] = ([], [])
        for _ in range(calls + WARM_UP_CALLS):
            for stub, times in zip(stubs, taken, strict=True):
                start = time.perf_counter()
                stub.Allocate(request, timeout=5, wait_for_ready=True)
                times.append((time.perf_counter() - start) * 1e6)
    return taken[0][WARM_UP_CALLS:], taken[1][WARM_UP_CALLS:]


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
            if not cluster:
                await asyncio.to_thread(compare_allocate, root, calls)
            await asyncio.to_thread(daemon.scrape)
            await asyncio.sleep(3)
            before = daemon.cpu_seconds()
            await asyncio.sleep(idle_seconds)
            idle = (daemon.cpu_seconds() - before) / idle_seconds
            print(f"{label}: RSS {daemon.rss_mb():.0f} MB, idle CPU {idle:.2%} of a core over {idle_seconds:g} s")
        finally:
            await asyncio.to_thread(daemon.stop)


def compare_allocate(root: Path, calls: int) -> None:
    """Allocate of the daemon beside the floor."""
    floor_socket = root / "floor.sock"
    floor = subprocess.Popen([sys.executable, "-c", FLOOR, str(floor_socket)])  # noqa: S603 - the text above
    try:
        plugin_socket = next((root / "dp").glob("*neuroncore*.sock"))
        floor_us, plugin_us = allocate_microseconds(floor_socket, plugin_socket, calls)
    finally:
        floor.terminate()
        floor.wait()
    ratio = statistics.median(plugin_us) / statistics.median(floor_us)
    print(
        f"Allocate p50: plugin {statistics.median(plugin_us):.0f} us, floor {statistics.median(floor_us):.0f} us, "
        f"ratio {ratio:.2f} ({calls} calls each, alternating)"
    )


def main() -> None:
    """Measure both ways of running."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--idle-seconds", type=float, default=10.0)
    arguments = parser.parse_args()
    for cluster in (False, True):
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory)
            write_node(root / "node", "trn1.32xlarge")
            asyncio.run(measure(root, arguments.calls, arguments.idle_seconds, cluster=cluster))


if __name__ == "__main__":
    main()
