"""What each way of placement costs a real kube-scheduler: pods a second and CPU a pod.

It needs an API server that nobody else uses, with nothing that marks nodes without a kubelet as unreachable
(kube-controller-manager with a long --node-monitor-grace-period, or none), and a kube-scheduler binary. Nodes and pods
are objects alone: nothing runs. The runs go in turns, because a machine has quiet and loud minutes; each creates the
same pods in the same order, waits until all that can be are bound, counts every core by the pods' annotations, and
deletes them. ``gates`` makes them with the gate, and leaves the scheduler without an extender; ``none`` leaves
both out. The floor is an extender that decides nothing (``scheduler_floor.py``).

    python benchmarks/scheduler.py --kubeconfig FILE --kube-scheduler PATH --nodes 1000 --pods 2000 --turns 3

With ``--rate`` so many pods come each second, and how long each takes to be bound is printed, too.
With ``--beforehand`` the pods are there before scheduler and daemon start together, so that creating them takes no time
from placing them; what is measured is from the first binding to the last. The scheduler may
send as much as it likes, because by default it binds some 50 pods a second whatever is done; ``--qps 50`` is that.
With ``--rules`` the pods are of 50 applications; each has a hard spread over zones and keeps off nodes with a pod of
its own application. With ``--groups`` they come as groups of 4 to 64 for whole nodes, which only gates place as such.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from extender_parts.measuring import percentile, seeded

from neuron_plugin.allocation import Rejection, Resource
from neuron_plugin.allocation.keys import GATE, GROUP_KEY, GROUP_SIZE_KEY
from neuron_plugin.allocation.pod import assigned_allocations
from neuron_plugin.cluster import ApiError, ApiRequest, KubernetesApi, Pod, Reflector
from neuron_plugin.cluster.api import send
from neuron_plugin.cluster.client import connect
from neuron_plugin.cluster.objects import Scope, pages
from neuron_plugin.cluster.pods import PODS, neuron_pod
from neuron_plugin.topology import catalogue
from tests.support.manifests import node_manifest, pod_manifest

TYPE = "trn1.32xlarge"
GEOMETRY = catalogue()[TYPE].geometry
NAMESPACE = "default"
ZONE = "topology.kubernetes.io/zone"
LAYERS = {1: 512, 2: 64, 3: 8}
"""Nodes in a domain of each layer of the network."""
APPLICATIONS = 50
"""Of pods with rules."""
SCHEDULER = "neuron-benchmark"
PORT = 12777
SHAPES = {
    (Resource.NEURONCORE, 1): 45,
    (Resource.NEURONCORE, 2): 20,
    (Resource.NEURON, 1): 15,
    (Resource.NEURON, 4): 14,
    (Resource.NEURON, 8): 4,
    (Resource.NEURON, 16): 2,
}
"""What pods ask for, and how many of a hundred."""

PROGRAM = (sys.executable, "-m", "neuron_plugin.cli.main")
NONE, FLOOR, EXTENDER_ALL, EXTENDER, GATES = "none", "floor", "extender-all", "extender", "gates"
PLACEMENTS = (NONE, FLOOR, EXTENDER_ALL, EXTENDER, GATES)
BOUND = "spec.nodeName!="
"""A watch of these pods has one event for each: whoever measures takes CPU, too."""
QUIET_SECONDS = 15.0
"""Without another binding for so long, the pods that are left cannot be placed."""


def requests(pods: int) -> list[tuple[Resource, int]]:
    """The requests of so many pods, the same in every run."""
    return seeded(1).choices(list(SHAPES), list(SHAPES.values()), k=pods)


async def in_parallel(work: Iterable[Awaitable[object]], at_once: int = 16) -> None:
    """Await all of it, some at a time."""
    limit = asyncio.Semaphore(at_once)

    async def limited(one: Awaitable[object]) -> None:
        async with limit:
            await one

    await asyncio.gather(*map(limited, work))


async def ask(api: KubernetesApi, request: ApiRequest) -> bytes:
    """Send a request; one that is done already is no error."""
    try:
        return await send(api, request, timeout_seconds=60)
    except ApiError as error:
        if not (error.missing or error.conflict):
            raise
        return b""


def groups(pods: int) -> list[tuple[str, int]]:
    """The group of each pod and its size."""
    draw, found = seeded(2), list[tuple[str, int]]()
    while (left := pods - len(found)) > 0:
        size = min(draw.choice((4, 4, 8, 8, 16, 32, 64)), left)
        found += [(f"group-{len(found)}", size)] * size
    return found


def node(number: int) -> dict[str, Any]:
    """A node that is ready and runs nothing, in a network of four levels."""
    manifest = node_manifest(f"bench-{number:05}", TYPE)
    manifest["metadata"].pop("uid")
    manifest["status"]["capacity"] |= {"cpu": "128", "memory": "512Gi", "pods": "250"}
    manifest["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    layers = {f"topology.k8s.aws/network-node-layer-{n}": f"l{n}-{number // size}" for n, size in LAYERS.items()}
    manifest["metadata"]["labels"] |= layers | {ZONE: f"zone-{number // 64 % 3}"}
    return {"apiVersion": "v1", "kind": "Node", **manifest}


def pod(
    number: int,
    resource: Resource,
    count: int,
    placement: str,
    *,
    rules: bool = False,
    group: tuple[str, int] = ("", 0),
) -> dict[str, Any]:
    """A pod that the measured scheduler places on any of the nodes."""
    manifest = pod_manifest(f"bench-{number:05}", resource, count)
    manifest["metadata"].pop("uid")
    manifest["metadata"]["labels"] = {"benchmark": "scheduler"}
    manifest["spec"].pop("priority")
    manifest["spec"] |= {"schedulerName": SCHEDULER, "tolerations": [{"operator": "Exists"}]}
    if rules:
        labels = {"app": f"app-{number % APPLICATIONS}"}
        manifest["metadata"]["labels"] |= labels
        own = {"labelSelector": {"matchLabels": labels}}
        spread = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"} | own
        apart = {"topologyKey": "kubernetes.io/hostname"} | own
        manifest["spec"]["topologySpreadConstraints"] = [spread]
        manifest["spec"]["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    if group[1] and placement == GATES:
        manifest["metadata"]["annotations"] = {GROUP_KEY: group[0], GROUP_SIZE_KEY: str(group[1])}
    if placement == GATES:
        manifest["spec"]["schedulingGates"] = [{"name": GATE}]
    for container in manifest["spec"]["containers"]:
        container["image"] = "none"
    return {"apiVersion": "v1", "kind": "Pod", **manifest}


async def listed(api: KubernetesApi) -> list[Any]:
    """The pods of the benchmark."""
    found = [each async for page in pages(api, PODS, page_timeout_seconds=60) for each in page.records]
    return [each for each in found if each.name.startswith("bench-")]


async def empty(api: KubernetesApi) -> None:
    """Delete the pods."""
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    query = {"labelSelector": "benchmark=scheduler", "gracePeriodSeconds": "0"}
    await ask(api, ApiRequest("DELETE", path, query))
    while await listed(api):
        await asyncio.sleep(1)


def cpu_seconds(process: subprocess.Popen[bytes] | None) -> float:
    """User and system time that a process has used."""
    if process is None:
        return 0.0
    fields = Path(f"/proc/{process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def running(
    placement: str, kubeconfig: Path, scheduler: Path, qps: int
) -> Iterator[tuple[subprocess.Popen[bytes], subprocess.Popen[bytes] | None]]:
    """A scheduler and, but for ``none``, our daemon."""
    ours = None
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory, "log").open("wb")  # noqa: SIM115 - closed with the directory
        arguments = ["scheduler-config", "--scheduler-name", SCHEDULER, "--kubeconfig", str(kubeconfig), "-o", "json"]
        arguments += ["--url", f"http://127.0.0.1:{PORT}"]
        made = subprocess.run([*PROGRAM, *arguments], check=True, capture_output=True)
        config = msgspec.json.decode(made.stdout)
        if placement in {NONE, GATES}:
            config.pop("extenders")
        if placement == FLOOR:
            command = [sys.executable, str(Path(__file__).with_name("scheduler_floor.py"))]
            ours = subprocess.Popen([*command, str(kubeconfig), str(PORT)], stderr=log, stdout=log)
        elif placement != NONE:
            command = ["extender", "--kubeconfig", str(kubeconfig), "--port", str(PORT), "--health-port", "0"]
            command += ["--health-address", "127.0.0.1", "--no-plugin-leases"]
            command += ["--answer", "all" if placement == EXTENDER_ALL else "best"]
            ours = subprocess.Popen([*PROGRAM, *command], stderr=log, stdout=log)
        config["leaderElection"] = {"leaderElect": False}
        config.setdefault("clientConnection", {}).update(qps=qps, burst=2 * qps)
        file = Path(directory, "scheduler.json")
        file.write_bytes(msgspec.json.encode(config))
        process = subprocess.Popen([scheduler, "--config", file, "--secure-port", "0"], stderr=log, stdout=log)
        try:
            yield process, ours
        finally:
            for each in filter(None, (process, ours)):
                each.send_signal(signal.SIGTERM)
                each.wait()
            log.close()


async def run(api: KubernetesApi, placement: str, options: argparse.Namespace) -> None:
    """Place the pods once, and print what it took."""
    pods, rate = options.pods, options.rate
    asked = [(Resource.NEURON, 16)] * pods if options.groups else requests(pods)
    grouped = groups(pods) if options.groups else [("", 0)] * pods
    created, bound = dict[str, float](), dict[str, float]()

    def follow(_: str, __: object, each: Pod | None) -> None:
        if each and each.name.startswith("bench-"):
            bound.setdefault(each.name, time.monotonic())

    async def create(number: int, resource: Resource, count: int) -> None:
        await asyncio.sleep(started + number / rate - time.monotonic() if rate else 0)
        body = pod(number, resource, count, placement, rules=options.rules, group=grouped[number])
        created[body["metadata"]["name"]] = time.monotonic()
        await ask(api, ApiRequest("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", body=body))

    watch: Reflector[Pod, Pod] = Reflector(api, PODS, lambda each: each, scope=Scope(field_selector=BOUND))
    watch.subscribe(follow)
    started = time.monotonic()
    work = in_parallel(create(number, *each) for number, each in enumerate(asked))
    if options.beforehand:
        await work
    with running(placement, options.kubeconfig, options.kube_scheduler, options.qps) as processes:
        watching = asyncio.create_task(watch.run())
        if options.beforehand:
            while not bound:
                await asyncio.sleep(0.02)
        else:
            await asyncio.sleep(15.0)  # caches are filled, and our daemon has taken over
        before = [cpu_seconds(each) for each in processes]
        counted_from, started = len(bound), time.monotonic()
        creation = asyncio.create_task(asyncio.sleep(0) if options.beforehand else work)
        while len(bound) < pods and time.monotonic() - max([started, *bound.values()]) < QUIET_SECONDS:
            await asyncio.sleep(0.2)
        await creation
        watching.cancel()
        seconds = max(bound.values()) - started
        used = [cpu_seconds(each) - then for each, then in zip(processes, before, strict=True)]
    nodes, cores, twice = counted(await listed(api))
    waits = sorted(1000 * (at - created[name]) for name, at in bound.items())
    latency = f", bound after {waits[len(waits) // 2]:.0f} ms, 99 % {percentile(waits, 0.99):.0f} ms" if rate else ""
    in_that_time = len(bound) - counted_from
    scheduler_ms, ours_ms = (1000 * each / in_that_time for each in used)
    print(
        f"{placement:12} {len(bound):5} of {pods} bound, {in_that_time / seconds:6.1f} pods/s{latency}, CPU a pod: "
        f"scheduler {scheduler_ms:5.1f} ms, ours {ours_ms:4.1f} ms; "
        f"{cores} cores on {nodes} nodes, {twice} twice; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


def counted(pods: Iterable[Any]) -> tuple[int, int, int]:
    """Nodes with pods, cores that pods have by their annotations, and cores that two have."""
    holders: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for each in map(neuron_pod, pods):
        if each.node:
            allocations = assigned_allocations(each, GEOMETRY)
            for one in () if isinstance(allocations, Rejection) else allocations:
                holders[each.node].update(
                    core for core in range(GEOMETRY.all_mask.bit_length()) if one.mask >> core & 1
                )
    return len(holders), sum(map(len, holders.values())), sum(n > 1 for each in holders.values() for n in each.values())


async def measure(options: argparse.Namespace) -> None:
    """Make the nodes, run in turns, and leave nothing."""
    async with await connect(options.kubeconfig) as api:
        path = "/api/v1/nodes"
        try:
            await in_parallel(ask(api, ApiRequest("POST", path, body=node(each))) for each in range(options.nodes))
            await empty(api)
            print(f"{options.nodes} nodes of {TYPE}, {options.pods} pods", flush=True)
            for _ in range(options.turns):
                for placement in options.placement:
                    await asyncio.sleep(options.settle)
                    await run(api, placement, options)
                    await empty(api)
        finally:
            await empty(api)
            await in_parallel(
                ask(api, ApiRequest("DELETE", f"{path}/bench-{each:05}")) for each in range(options.nodes)
            )


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kubeconfig", type=Path)
    parser.add_argument("--kube-scheduler", type=Path, help="the binary")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=2000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--placement", nargs="+", choices=PLACEMENTS, default=(NONE, EXTENDER, GATES))
    parser.add_argument("--qps", type=int, default=5000, help="requests a second that the scheduler may send")
    parser.add_argument("--rate", type=float, default=0.0, help="pods created a second (default: as fast as possible)")
    parser.add_argument("--beforehand", action="store_true", help="make the pods before scheduler and daemon start")
    parser.add_argument("--rules", action="store_true", help="each pod has a hard spread and an anti-affinity")
    parser.add_argument("--groups", action="store_true", help="the pods are groups of 4 to 64 for whole nodes")
    parser.add_argument("--settle", type=float, default=15.0, help="seconds to wait before each run")
    options = parser.parse_args()
    if not (options.kubeconfig and options.kube_scheduler):
        print(f"not run: it needs a cluster, see {__file__}")
        return
    asyncio.run(measure(options))


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).resolve().parents[1]))
    main()
