"""What the scheduler extender costs, next to what the same bytes cost without deciding anything.

Each figure has its floor from the same run: filter stands beside decoding and re-encoding the same body, binds beside
plain binding POSTs on the same client. Run one part by name: ``verbs``, ``http``, ``memory``, ``binds``, ``start``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import multiprocessing
import os
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry

from neuron_plugin.allocation.ledger import Pod, PodUid
from neuron_plugin.allocation.resources import Resource
from neuron_plugin.cluster.kinds import NODES, PODS
from neuron_plugin.cluster.lists import pages
from neuron_plugin.cluster.transport import KubernetesApi, connect
from neuron_plugin.extender.binding import Binder
from neuron_plugin.extender.daemon import ExtenderDaemon
from neuron_plugin.extender.feeds import keep_pod
from neuron_plugin.extender.metrics import ExtenderMetrics
from neuron_plugin.extender.observation import node_facts
from neuron_plugin.extender.pod_writes import ApiPodWrites
from neuron_plugin.extender.readiness import Readiness
from neuron_plugin.extender.server import application, runner, verb_routes
from neuron_plugin.extender.service import ExtenderService
from neuron_plugin.extender.settings import ExtenderSettings
from neuron_plugin.extender.state import ClusterState
from neuron_plugin.simulation.api_server import Fault, Match, StandInApiServer
from neuron_plugin.simulation.manifests import container, node_manifest, pod_manifest
from neuron_plugin.telemetry import LogFormat, LogLevel, start_logging
from neuron_plugin.topology.instances import catalogue

TYPE = "trn1.32xlarge"
ROUNDS = 200
BIND_CLIENTS = 8
BINDS = 400
CROWD = 50_000


def main() -> None:
    """Run the parts asked for."""
    logging.getLogger().setLevel(logging.ERROR)
    parts: dict[str, Callable[[], None]] = {
        "verbs": verbs,
        "http": lambda: asyncio.run(http()),
        "memory": memory,
        "binds": lambda: asyncio.run(binds()),
        "start": lambda: asyncio.run(start()),
    }
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="?", choices=list(parts), help="only this part")
    chosen = parser.parse_args().part
    for name in [chosen] if chosen else parts:
        parts[name]()


# Verbs in one process: no sockets, so the figures are the extender's own.


def verbs() -> None:
    """Filter and prioritize by names, against decoding and re-encoding the same body."""
    log_to_nowhere()
    print("filter and prioritize in process, names, every node in a state of its own (ms of CPU)")
    print('"best" is the ratio of the tenth percentiles: what other work on the machine has disturbed least')
    print(" nodes  devices  refused  floor p50  filter p50    p99  ratio   best  first  prioritize p50  ratio  first")
    for nodes, devices in ((100, 4), (1000, 4), (5000, 1), (5000, 4), (5000, 8), (15000, 4)):
        service, _, names = filled_service(nodes)
        print(f"{nodes:>6} {devices:>8} {measured(service, filter_body(names, devices))}")
    service, state, names = filled_service(5000)
    found = changing(service, state, names)
    p50, p99 = statistics.median(found), percentile(found, 0.99)
    print(f"5000 nodes, one node's state changed before each filter: p50 {p50:.2f}, p99 {p99:.2f}")


def measured(service: ExtenderService, body: bytes) -> str:
    """The rest of a line; "first" is a call that nothing is remembered for.

    Floor and verb take turns, so that other work on the machine falls on both alike.
    """
    first = timed(lambda: service.filter(body))
    first_scores = timed(lambda: service.prioritize(body))
    floors, filters = beside_floor(lambda: service.filter(body), body)
    floor, p50 = statistics.median(floors), statistics.median(filters)
    best = percentile(filters, 0.1) / percentile(floors, 0.1)
    scores_floor, scores = map(statistics.median, beside_floor(lambda: service.prioritize(body), body))
    refused = len(msgspec.json.decode(service.filter(body))["FailedNodes"])
    return (
        f"{refused:>8} {floor:>10.2f} {p50:>11.2f} {percentile(filters, 0.99):>6.2f} {p50 / floor:>6.1f} {best:>6.1f} "
        f"{first:>6.1f}{scores:>16.2f} {scores / scores_floor:>6.1f} {first_scores:>6.1f}"
    )


def beside_floor(verb: Callable[[], object], body: bytes) -> tuple[list[float], list[float]]:
    """Milliseconds of the floor and of a verb, in turns."""
    pairs = [(timed(lambda: echo(body)), timed(verb)) for _ in range(ROUNDS)]
    return [floor for floor, _ in pairs], [took for _, took in pairs]


def log_to_nowhere() -> None:
    """Write the lines that a running extender writes, where they disturb nobody."""
    nowhere = Path(os.devnull).open("w", encoding="ascii")  # noqa: SIM115 - open as long as the process lives
    start_logging(LogFormat.JSON, LogLevel.INFO, nowhere)


def changing(service: ExtenderService, state: ClusterState, names: list[str]) -> list[float]:
    """Filter while one node's state changes before each call, as binds do it."""
    body, chance, found = filter_body(names), seeded(2), []
    for number in range(ROUNDS):
        node, device = chance.choice(names), chance.randrange(16)
        state.put_pod(record_of(bound_pod(f"late-{number}", node, device)))
        found.append(timed(lambda: service.filter(body)))
    return found


class _Args(msgspec.Struct):
    Pod: msgspec.Raw
    NodeNames: list[str]


_floor_decoder = msgspec.json.Decoder(_Args)


def echo(body: bytes) -> bytes:
    """The floor: every byte in and out, nothing decided."""
    args = _floor_decoder.decode(body)
    answer = {"NodeNames": args.NodeNames, "FailedNodes": {}, "FailedAndUnresolvableNodes": {}, "Error": ""}
    return msgspec.json.encode(answer)


def filled_service(nodes: int) -> tuple[ExtenderService, ClusterState, list[str]]:
    """A service over nodes in random, distinct states, two pods a node."""
    state = ClusterState(catalogue())
    names = []
    for node, *pods in cluster(nodes):
        names.append(node["metadata"]["name"])
        state.put_node(node_facts(NODES.decode(msgspec.json.encode(node))))
        for pod in pods:
            state.put_pod(record_of(pod))
    return service_on(state), state, names


def service_on(state: ClusterState) -> ExtenderService:
    """A service that does not bind."""
    binder = Binder(state, _NoWrites(), fence=lambda: "", dialects=())
    return ExtenderService(state, binder, Readiness({}), ExtenderMetrics(CollectorRegistry()))


def cluster(nodes: int) -> Iterator[list[dict[str, Any]]]:
    """Each node with its two pods. No two nodes have the same devices unhealthy and the same cores held."""
    chance, seen = seeded(1), set[object]()
    while len(seen) < nodes:
        unhealthy = tuple(sorted(chance.sample(range(16), chance.randrange(3))))
        device, cores = chance.randrange(8), tuple(sorted(chance.sample(range(16, 32), 2)))
        if (unhealthy, device, cores) in seen:
            continue
        number = len(seen)
        seen.add((unhealthy, device, cores))
        name = f"ip-10-{number // 250}-{number % 250}-17.ec2.internal"
        node = node_manifest(name, TYPE, unhealthy=dict.fromkeys(unhealthy, "ECC"))
        yield [node, bound_pod(f"pod-{number}", name, device), core_pod(f"core-pod-{number}", name, cores)]


def bound_pod(name: str, node: str, device: int) -> dict[str, Any]:
    """A pod that holds one device."""
    return pod_manifest(name, Resource.NEURON, 1, node=node, annotations={"NEURON_DEVS": str(device)})


def core_pod(name: str, node: str, cores: tuple[int, ...]) -> dict[str, Any]:
    """A pod that holds a core for each of its containers."""
    each = [container(f"c{core}", Resource.NEURONCORE, 1) for core in cores]
    return pod_manifest(name, containers=each, node=node, annotations={"NEURON_CORES": "|".join(map(str, cores))})


def seeded(number: int) -> random.Random:
    """Chance that is the same in every run."""
    return random.Random(number)


def percentile(values: list[float], share: float) -> float:
    """The value below which that share of the others lies."""
    return sorted(values)[int(len(values) * share)]


def record_of(manifest: dict[str, Any]) -> Any:
    """What the watch would keep of a pod."""
    return keep_pod(PODS.decode(msgspec.json.encode(manifest)))


def filter_body(names: list[str], devices: int = 4) -> bytes:
    """What kube-scheduler sends for a pod of so many devices."""
    return json.dumps(
        {"Pod": pod_manifest("new", Resource.NEURON, devices), "Nodes": None, "NodeNames": names}
    ).encode()


def timed(work: Callable[[], object]) -> float:
    """Milliseconds of CPU: other work on the machine does not count."""
    started = time.process_time()
    work()
    return (time.process_time() - started) * 1000


class _NoWrites:
    """Binding is measured elsewhere."""

    async def bind(self, *_: object, **__: object) -> None:
        """Not called."""

    async def annotate(self, *_: object, **__: object) -> None:
        """Not called."""

    async def read(self, *_: object, **__: object) -> None:
        """Not called."""


# Over HTTP, in processes of their own, as the scheduler meets it.


async def http() -> None:
    """Filter over keep-alive HTTP, against a server that only decodes and re-encodes."""
    print("filter over HTTP, names (ms, client included)")
    for nodes in (100, 1000, 5000):
        body = filter_body([node["metadata"]["name"] for node, *_ in cluster(nodes)])
        with served(_serve_floor, nodes) as floor_port, served(_serve_filter, nodes) as port:
            floor = await latencies(f"http://127.0.0.1:{floor_port}/filter", body)
            found = await latencies(f"http://127.0.0.1:{port}/filter", body)
        p50, floor50 = statistics.median(found), statistics.median(floor)
        p99 = sorted(found)[int(len(found) * 0.99)]
        print(
            f"{nodes:>6} nodes: floor p50 {floor50:.2f}, filter p50 {p50:.2f}, p99 {p99:.2f}, ratio {p50 / floor50:.2f}"
        )


async def latencies(url: str, body: bytes, rounds: int = ROUNDS) -> list[float]:
    """Milliseconds of each of many calls on one connection."""
    found = []
    async with aiohttp.ClientSession(headers={"Content-Type": "application/json"}) as session:
        for _ in range(rounds):
            started = time.perf_counter()
            async with session.post(url, data=body) as response:
                await response.read()
            found.append((time.perf_counter() - started) * 1000)
    return found[5:]


@contextmanager
def served(target: Callable[[Connection, Any], None], argument: object) -> Iterator[Any]:
    """A server in a process of its own; gives what it reports first: its port, its kubeconfig or its figures."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=target, args=(theirs, argument), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.terminate()
        process.join()


def _serve_filter(pipe: Connection, nodes: int) -> None:
    log_to_nowhere()
    asyncio.run(_serve(pipe, verb_routes(filled_service(nodes)[0])))


def _serve_floor(pipe: Connection, _: int) -> None:
    async def handle(request: web.Request) -> web.Response:
        return web.Response(body=echo(await request.read()), content_type="application/json")

    asyncio.run(_serve(pipe, [web.post("/filter", handle)]))


async def _serve(pipe: Connection, routes: list[web.RouteDef]) -> None:
    serving = runner(application(routes, 128))
    await serving.setup()
    await web.TCPSite(serving, "127.0.0.1", 0).start()
    pipe.send(serving.addresses[0][1])
    await asyncio.Event().wait()


# Memory: 5000 nodes and 10 000 Neuron pods among 50 000.


def memory() -> None:
    """Resident memory of an extender that follows a large cluster, after its first verbs."""
    with served(_serve_crowd, 5000) as kubeconfig, served(_hold, kubeconfig) as figures:
        before, after, nodes, pods = figures
    print(f"memory: {before} MB imported, {after} MB with {nodes} nodes and {pods} Neuron pods among {CROWD}")


def _serve_crowd(pipe: Connection, nodes: int) -> None:
    asyncio.run(_serve_crowded(pipe, nodes))


async def _serve_crowded(pipe: Connection, nodes: int) -> None:
    """A stand-in API server of many nodes and pods, most of which have nothing to do with Neuron."""
    async with StandInApiServer() as server:
        for node, *pods in cluster(nodes):
            server.create_node(node)
            for pod in pods:
                server.create_pod(pod)
        for number in range(CROWD - 2 * nodes):
            server.create_pod(pod_manifest(f"plain-{number}", Resource.NEURON, 0, node=f"node-{number % 1000}"))
        await _tell_kubeconfig(pipe, server)


def _hold(pipe: Connection, kubeconfig: str) -> None:
    asyncio.run(_follow(pipe, Path(kubeconfig)))


async def _follow(pipe: Connection, kubeconfig: Path) -> None:
    log_to_nowhere()
    async with await connect(kubeconfig) as api:
        before = _resident_mb()
        async with _daemon(api) as daemon:
            body = filter_body(list(daemon.state.nodes))
            daemon.service.filter(body)
            daemon.service.prioritize(body)
            pipe.send((before, _resident_mb(), len(daemon.state.nodes), len(daemon.state.pods)))
            await asyncio.Event().wait()


def _resident_mb() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() >> 20


# Binds.


def _serve_api(pipe: Connection, nodes: int) -> None:
    asyncio.run(_serve_cluster(pipe, nodes))


async def _serve_cluster(pipe: Connection, nodes: int, pods: int = BINDS * 2) -> None:
    """A stand-in API server with nodes and waiting pods; slow binds when the number of nodes is negative."""
    async with StandInApiServer() as server:
        for number in range(abs(nodes)):
            server.create_node(node_manifest(f"node-{number}", TYPE))
        for number in range(pods):
            server.create_pod(pod_manifest(f"pod-{number}", Resource.NEURON, 1))
        if nodes < 0:
            server.fail(Fault(Match(method="POST", path="/binding$"), times=10_000, delay_seconds=0.3))
        await _tell_kubeconfig(pipe, server)


async def _tell_kubeconfig(pipe: Connection, server: StandInApiServer) -> None:
    with tempfile.TemporaryDirectory() as directory:
        pipe.send(str(server.write_kubeconfig(Path(directory) / "kubeconfig")))
        await asyncio.Event().wait()


async def binds() -> None:
    """Binds per second against plain binding POSTs, and filter latency while binds wait on a slow API server."""
    with served(_serve_api, 60) as kubeconfig:
        async with await connect(Path(kubeconfig)) as api:
            raw = await _rate(range(BINDS), _raw_bind(api))
            async with _daemon(api) as daemon:
                ours = await _rate(range(BINDS, BINDS * 2), _our_bind(daemon))
    print(
        f"binds per second, {BIND_CLIENTS} clients: plain POSTs {raw:.0f}, extender {ours:.0f}, ratio {ours / raw:.2f}"
    )
    with served(_serve_api, -60) as kubeconfig:
        async with await connect(Path(kubeconfig)) as api, _daemon(api) as daemon:
            await _slow_binds(daemon)


async def _slow_binds(daemon: ExtenderDaemon) -> None:
    names = list(daemon.state.nodes)
    url, body = f"http://127.0.0.1:{daemon.port}/filter", filter_body(names)
    quiet = statistics.median(await latencies(url, body))
    stop = asyncio.Event()

    async def keep_binding(first: int) -> None:
        number = first
        while not stop.is_set():
            await _our_bind(daemon)(number)
            number += BIND_CLIENTS

    clients = [asyncio.create_task(keep_binding(number)) for number in range(BIND_CLIENTS)]
    busy = statistics.median(await latencies(url, body))
    stop.set()
    await asyncio.gather(*clients)
    text = f"{quiet:.2f} ms alone, {busy:.2f} ms while 8 binds wait 300 ms each, ratio {busy / quiet:.2f}"
    print(f"filter p50, {len(names)} nodes: {text}")


async def _rate(numbers: range, bind: Callable[[int], Awaitable[None]]) -> float:
    waiting = iter(numbers)

    async def client() -> None:
        for number in waiting:
            await bind(number)

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(BIND_CLIENTS)))
    return len(numbers) / (time.perf_counter() - started)


def _raw_bind(api: KubernetesApi) -> Callable[[int], Awaitable[None]]:
    writes = ApiPodWrites(api)
    annotations = {"NEURON_DEVS": "0", "NEURON_ALLOC_TIME": "1", "NEURON_ALLOCATED": "false"}

    async def bind(number: int) -> None:
        seen = await _uid_of(api, number)
        await writes.bind(seen, f"node-{number % 25}", annotations, timeout_seconds=5)

    return bind


def _our_bind(daemon: ExtenderDaemon) -> Callable[[int], Awaitable[None]]:
    uids = {record.pod.name: record.pod for record in daemon.state.pods.values()}

    async def bind(number: int) -> None:
        pod = uids[f"pod-{number}"]
        outcome = await daemon.binder.bind(pod, f"node-{25 + number % 35}")
        if outcome.error:
            raise RuntimeError(outcome.error)

    return bind


_uids: dict[str, Pod] = {}


async def _uid_of(api: KubernetesApi, number: int) -> Pod:
    if not _uids:
        async for page in pages(api, PODS, page_timeout_seconds=30):
            for pod in page.records:
                _uids[pod.name] = Pod(PodUid(pod.uid), pod.namespace, pod.name)
    return _uids[f"pod-{number}"]


@asynccontextmanager
async def _daemon(api: KubernetesApi) -> AsyncIterator[ExtenderDaemon]:
    settings = ExtenderSettings(port=0, health_port=0, health_address="127.0.0.1", leader_election=False)
    daemon, stop = ExtenderDaemon(settings, catalogue(), api), asyncio.Event()
    running = asyncio.create_task(daemon.run(stop))
    while daemon.readiness.why_not:
        await asyncio.sleep(0.01)
    try:
        yield daemon
    finally:
        stop.set()
        await running


# Start.


def _serve_nodes(pipe: Connection, nodes: int) -> None:
    """As ``_serve_api`` without a pod: if one waits, an extender first outwaits its predecessor's writes."""
    asyncio.run(_serve_cluster(pipe, nodes, pods=0))


async def start() -> None:
    """From the start of a process to its first good filter, 1000 nodes; and the CPU it took till its end."""
    with served(_serve_nodes, 1000) as kubeconfig:
        before, began = _cpu_of_children(), time.perf_counter()
        arguments = ["extender", "--kubeconfig", kubeconfig, "--port", "19345", "--health-port", "19346"]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "neuron_plugin.cli.main",
            *arguments,
            "--no-leader-election",
            stderr=asyncio.subprocess.DEVNULL,
        )
        body = filter_body([f"node-{number}" for number in range(1000)])
        try:
            while not await _good(body):
                await asyncio.sleep(0.02)
            took = time.perf_counter() - began
        finally:
            process.terminate()
            await process.wait()
        cpu = _cpu_of_children() - before
    print(f"start of the process to the first good filter, 1000 nodes: {took:.2f} s; {cpu:.2f} s of CPU in all")


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


async def _good(body: bytes) -> bool:
    url, headers = "http://127.0.0.1:19345/filter", {"Content-Type": "application/json"}
    try:
        async with aiohttp.ClientSession(headers=headers) as session, session.post(url, data=body) as response:
            return bool(json.loads(await response.read()).get("NodeNames"))
    except (aiohttp.ClientError, OSError):
        return False


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).resolve().parents[1]))
    main()
