"""How long Prepare of a claim takes, beside a floor measured in the same run.

    python benchmarks/prepare.py [--calls 1000]

The floor is a grpc.aio server in a process of its own. Its handler reads the claim from the same API server, as every
driver has to, and answers a constant. Calls to both alternate, so both meet the same machine. The plugin is
``neuron-plugin run --mode dra`` as a process; the claim has a row of four devices. Ratios travel between machines,
milliseconds do not.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc

from neuron_plugin.kubelet._proto.dra.v1 import api_pb2 as pb
from neuron_plugin.kubelet._proto.dra.v1 import api_pb2_grpc as pb_grpc
from neuron_plugin.simulation import write_node
from neuron_plugin.simulation.api_server_kinds import PODS, RESOURCE_CLAIMS
from tests.simulation.dra import claims, exactly, pod
from tests.support.api_server import StandInApiServer

WARM_UP_CALLS = 50
NODE = "worker-1"
DEVICES = tuple(f"neuron-{device}" for device in range(4))
FLOOR = """
import asyncio, sys
from pathlib import Path
import grpc
from neuron_plugin.cluster import ApiRequest
from neuron_plugin.cluster.api import send
from neuron_plugin.cluster.claims import RESOURCE_CLAIMS
from neuron_plugin.cluster.client import connect
from neuron_plugin.kubelet._proto.dra.v1 import api_pb2 as pb, api_pb2_grpc as pb_grpc

class Floor(pb_grpc.DRAPluginServicer):
    async def NodePrepareResources(self, request, context):
        response = pb.NodePrepareResourcesResponse()
        for claim in request.claims:
            read = ApiRequest("GET", RESOURCE_CLAIMS.item(claim.name, claim.namespace))
            RESOURCE_CLAIMS.decode(await send(self.api, read, timeout_seconds=5))
            for device in range(4):
                response.claims[claim.uid].devices.add(
                    request_names=["neurons"], pool_name="p", device_name=f"neuron-{device}", cdi_device_ids=["a/b=c"])
        return response

async def main():
    server, floor = grpc.aio.server(), Floor()
    async with await connect(Path(sys.argv[2])) as floor.api:
        pb_grpc.add_DRAPluginServicer_to_server(floor, server)
        server.add_insecure_port("unix:" + sys.argv[1])
        await server.start()
        await server.wait_for_termination()

asyncio.run(main())
"""


@contextmanager
def running(*command: str) -> Iterator[None]:
    """A process for the length of the block."""
    process = subprocess.Popen([sys.executable, *command], stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def a_claim(server: StandInApiServer) -> pb.Claim:
    """A claim for four devices that is allocated and reserved for a pod of the node."""
    server.create_node({"metadata": {"name": NODE}})
    server.create(
        RESOURCE_CLAIMS, {"metadata": {"name": "c"}, "spec": {"devices": {"requests": [exactly()]}}}, "default"
    )
    manifest = pod(claim="c")
    manifest["spec"]["nodeName"] = NODE
    server.create_pod(manifest)
    uid = server.get(PODS, "a", "default")["metadata"]["uid"]
    results = [
        {"request": "neurons", "driver": "neuron.aws.com", "pool": f"{NODE}-neuron", "device": name} for name in DEVICES
    ]
    status = {
        "allocation": {"devices": {"results": results}, "allocationTimestamp": "2026-01-01T00:00:00Z"},
        "reservedFor": [{"resource": "pods", "name": "a", "uid": uid}],
    }
    server.patch_status(RESOURCE_CLAIMS, "c", status, "default")
    (made,) = claims(server)
    return pb.Claim(namespace="default", name="c", uid=made["metadata"]["uid"])


async def prepare(stub: pb_grpc.DRAPluginAsyncStub, claim: pb.Claim) -> float:
    """One call, in milliseconds.

    Raises:
        RuntimeError: the claim was not prepared.
    """
    started = time.perf_counter()
    response = await stub.NodePrepareResources(pb.NodePrepareResourcesRequest(claims=[claim]))
    taken = (time.perf_counter() - started) * 1e3
    answer = response.claims[claim.uid]
    if answer.error or len(answer.devices) != len(DEVICES):
        raise RuntimeError(answer.error or f"{len(answer.devices)} devices, expected {len(DEVICES)}")
    return taken


async def measure(root: Path, calls: int) -> None:
    """Both handlers in turns."""
    server, registry = StandInApiServer(), root / "r"
    for directory in (registry, root / "dp", root / "cdi"):
        directory.mkdir()
    await server.start()
    claim, kubeconfig = a_claim(server), server.write_kubeconfig(root / "kubeconfig")
    node = write_node(root / "node", "trn1.32xlarge")
    command = ["-m", "neuron_plugin", "run", "--mode", "dra", "--node-name", NODE, "--kubeconfig", str(kubeconfig)]
    command += ["--sysfs", str(node.paths.sysfs), "--dev", str(node.paths.dev), "--cdi-dir", str(root / "cdi")]
    command += ["--kubelet-dir", str(root / "dp"), "--plugins-registry", str(registry), "--health-port", "0"]
    with running(*command), running("-c", FLOOR, str(root / "floor"), str(kubeconfig)):
        while not (root / "floor").exists() or not list(registry.iterdir()):
            await asyncio.sleep(0.1)
        sockets = {"floor": root / "floor", "plugin": next(registry.iterdir())}
        taken: dict[str, list[float]] = {name: [] for name in sockets}
        channels = {name: grpc.aio.insecure_channel(f"unix:{path}") for name, path in sockets.items()}
        stubs = {name: pb_grpc.DRAPluginStub(channel) for name, channel in channels.items()}
        for number in range(WARM_UP_CALLS + calls):
            for name, stub in stubs.items():
                milliseconds = await prepare(stub, claim)
                if number >= WARM_UP_CALLS:
                    taken[name].append(milliseconds)
        for channel in channels.values():
            await channel.close()
    await server.stop()
    medians = {name: statistics.median(each) for name, each in taken.items()}
    for name, each in taken.items():
        high = statistics.quantiles(each, n=100)[98]
        print(f"{name}: median {medians[name]:.2f} ms, 99 % {high:.2f} ms")
    print(f"Prepare takes {medians['plugin'] / medians['floor']:.2f} times the floor")


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1000)
    calls = parser.parse_args().calls
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(measure(Path(directory), calls))


if __name__ == "__main__":
    main()
