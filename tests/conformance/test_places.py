"""Where we place pods a real kube-scheduler places them, too: random clusters of nodes without kubelets, with Neuron.

    pytest tests/conformance/test_places.py --kubeconfig admin.conf [--clusters 100]

The API server has a kube-scheduler and nothing of ours. Other nodes of it are cordoned. In every second cluster the
pods are placed together and released in any order, in the others one by one: then an unpinned copy has to be bound to
the same node, too, while all others are cordoned. A pod that fits nowhere by the rules of kube-scheduler stays
unschedulable when it is released by hand.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest

from neuron_plugin.allocation import NodeInventory, PodReference
from neuron_plugin.allocation.assignment import write_assignment
from neuron_plugin.allocation.keys import GATE, NODE_KEY
from neuron_plugin.allocation.placement import assignment_of
from neuron_plugin.cluster.objects import NODES
from neuron_plugin.cluster.pods import PODS
from neuron_plugin.monitor.look import look
from neuron_plugin.placement.gates import writes
from neuron_plugin.planning.judgement import Judgement, Standing, judge_all
from neuron_plugin.plugin.publisher import publication
from neuron_plugin.topology import catalogue
from tests.conformance.policy_server import CORE, DEVICE, NEURON, Body, Server, opened

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
TRN1 = catalogue()["trn1.32xlarge"]
INVENTORY = NodeInventory(TRN1.geometry, tuple(range(TRN1.devices)), device_name=TRN1.device_name)
READY = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
CORDONED = "node.kubernetes.io/unschedulable"
NOT_READY = {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
SECONDS = 30.0


@pytest.fixture
async def server(request: pytest.FixtureRequest) -> AsyncIterator[Server]:
    kubeconfig: Path | None = request.config.getoption("--kubeconfig", default=None)
    if kubeconfig is None:
        pytest.skip("needs a real kube-scheduler: --kubeconfig")
    async with opened(kubeconfig, f"places-{secrets.token_hex(3)}") as opened_server:
        listed = (await opened_server.ask("GET", NODES.collection()))["items"]
        open_ones = [NODES.item(node["metadata"]["name"]) for node in listed if not node["spec"].get("unschedulable")]
        for node in open_ones:
            await opened_server.ask("PATCH", node, {"spec": {"unschedulable": True}})
            await _until(partial(opened_server.ask, "GET", node), _is_settled)
        try:
            yield opened_server
        finally:
            for node in open_ones:
                await opened_server.ask("PATCH", node, {"spec": {"unschedulable": None}})


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    number = metafunc.config.getoption("--clusters", default=10)
    metafunc.parametrize("seed", range(number))


@pytest.mark.timeout(300)
async def test_pods_are_bound_where_they_were_placed_and_nowhere_else_where_there_is_none(
    server: Server, seed: int
) -> None:
    draw = random.Random(seed)  # noqa: S311 - clusters, not secrets
    there = _Cluster(server, draw, f"{server.run}-{seed}")
    await there.make()
    if seed % 2:
        await there.place_one_by_one()
    else:
        await there.place_together()


class _Cluster:
    """Nodes and pods under names of their own; they are deleted when the run ends."""

    def __init__(self, server: Server, draw: random.Random, name: str) -> None:
        self._server = server
        self._draw = draw
        self._name = name
        self._nodes = [f"{name}-{letter}" for letter in "abcdefg"[: draw.randint(4, 7)]]
        self._pods = PODS.collection(name)
        self._waiting: list[str] = []
        self._specs: dict[str, Body] = {}
        """Of the pods that wait, as they are without a gate."""

    async def make(self) -> None:
        """Nodes with Neuron, pods without that are bound, and gated pods that wait."""
        draw, server = self._draw, self._server
        await server.make("/api/v1/namespaces", {"metadata": {"name": self._name, "labels": {"team": "a"}}})
        account = f"/api/v1/namespaces/{self._name}/serviceaccounts"
        await _until(lambda: server.ask("GET", account), lambda accounts: accounts["items"])
        for name in self._nodes:
            await server.make(NODES.collection(), _node(draw, name))
            await server.send(publication(name, INVENTORY))
        await self._settled()
        for number in range(draw.randint(3, 9)):
            bound = _pod(draw, f"bound-{number}", {})
            bound["spec"]["nodeName"] = draw.choice(self._nodes)
            await server.make(self._pods, bound)
        for number in range(5):
            asks = draw.choice([{NEURON: "1"}, {NEURON: "1"}, {NEURON: "8"}, {DEVICE: "1"}])
            await self._gated(_pod(draw, f"waiting-{number}", asks))

    async def _gated(self, manifest: Body) -> None:
        name, spec = manifest["metadata"]["name"], manifest["spec"]
        self._waiting.append(name)
        self._specs[name] = spec
        await self._server.make(self._pods, {**manifest, "spec": {**spec, "schedulingGates": [{"name": GATE}]}})

    async def _judged(self, names: Sequence[str]) -> list[Judgement]:
        state = await look(self._server.api, catalogue())
        pods = [pod for pod in state.waiting() if pod.reference.namespace == self._name]
        scene = state.scene().fork()
        return judge_all(scene, [pod for pod in pods if pod.reference.name in names], rules=None)

    async def place_together(self) -> None:
        """Place all that fit and release them in any order, until no more fits; then nothing fits by any rule."""
        left = set(self._waiting)
        while placed := [one for one in await self._judged(sorted(left)) if one.place]:
            self._draw.shuffle(placed)
            for one in placed:
                await self._release(one)
            for one in placed:
                assert one.place
                assert await self._bound(one.pod.reference) == one.place[0], f"{one.pod.reference} in {self._name}"
                left.remove(one.pod.reference.name)
        await self._stay(await self._judged(sorted(left)))

    async def place_one_by_one(self) -> None:
        """Place one pod after the other, each twice: pinned, and as a copy that has no other node."""
        for name in self._waiting:
            (judged,) = await self._judged([name])
            if not judged.place:
                await self._stay([judged])
                continue
            await self._release(judged)
            assert await self._bound(judged.pod.reference) == judged.place[0], judged.pod.reference
            manifest = await self._server.ask("GET", f"{self._pods}/{name}")
            await self._server.forget(f"{self._pods}/{name}")
            await self._copy(manifest, judged)

    async def _copy(self, manifest: Body, judged: Judgement) -> None:
        assert judged.place
        others = [name for name in self._nodes if name != judged.place[0]]
        cordoned = [name for name in others if await self._cordon(name)]
        await self._settled()  # pods and nodes come by two watches: the scheduler may see the copy before the cordons
        first, labels = manifest["metadata"]["name"], manifest["metadata"]["labels"]
        says = {key: text for key, text in manifest["metadata"]["annotations"].items() if key.startswith("NEURON_")}
        name = f"{first}-copy"
        metadata = {
            "name": name,
            "labels": {key: text for key, text in labels.items() if key != NODE_KEY},
            "annotations": says,
        }
        made = await self._server.make(self._pods, {"metadata": metadata, "spec": self._specs[first]})
        reference = PodReference(made["metadata"]["uid"], self._name, name)
        assert await self._bound(reference) == judged.place[0], f"the copy {reference}"
        for other in cordoned:
            await self._server.ask("PATCH", NODES.item(other), {"spec": {"unschedulable": None}})
        await self._settled()

    async def _settled(self) -> None:
        """Wait until the node controller has given its taint to the nodes that are cordoned, and to no other."""
        for name in self._nodes:
            await _until(partial(self._server.ask, "GET", NODES.item(name)), _is_settled)

    async def _cordon(self, name: str) -> bool:
        node = await self._server.ask("GET", NODES.item(name))
        if node["spec"].get("unschedulable"):
            return False
        await self._server.ask("PATCH", NODES.item(name), {"spec": {"unschedulable": True}})
        return True

    async def _release(self, judged: Judgement) -> None:
        assert judged.place
        node, placement = judged.place
        said = write_assignment(assignment_of(TRN1.geometry, placement, time.time_ns()))
        await self._server.send(writes.place(judged.pod, node, said))

    async def _stay(self, judged: Sequence[Judgement]) -> None:
        """Release pods by hand, one after the other: each is refused everywhere."""
        for one in judged:
            if one.standing is not Standing.RULES:
                continue
            await self._server.send(writes.release_plainly(one.pod))
            path = f"{self._pods}/{one.pod.reference.name}"
            pod = await _until(partial(self._server.ask, "GET", path), _is_tried)
            assert not pod["spec"].get("nodeName"), f"{one.pod.reference} fits {pod['spec']['nodeName']}: {one.text}"
            await self._server.forget(path)

    async def _bound(self, pod: PodReference) -> str:
        """The node of a pod; or why it has none after some time."""
        path = f"{self._pods}/{pod.name}"
        found = await _until(lambda: self._server.ask("GET", path), lambda pod: pod["spec"].get("nodeName"))
        node: str = found["spec"].get("nodeName", "")
        return node or str(found["status"].get("conditions"))


async def _until(ask: Callable[[], Awaitable[Body]], holds: Callable[[Body], object]) -> Body:
    """The first answer of which something holds; the last one if none is in time."""
    ends = time.monotonic() + SECONDS
    while not holds(answer := await ask()) and time.monotonic() < ends:
        await asyncio.sleep(0.05)
    return answer


def _is_tried(pod: Body) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return bool(pod["spec"].get("nodeName")) or any(one.get("reason") == "Unschedulable" for one in conditions)


def _is_settled(node: Body) -> bool:
    taints = {taint["key"] for taint in node["spec"].get("taints") or ()}
    return (CORDONED in taints) == bool(node["spec"].get("unschedulable")) and not taints & NOT_READY


# Random clusters.


def _node(draw: random.Random, name: str) -> Body:
    labels = {HOST: name, ZONE: draw.choice(["z0", "z1", "z2"]), "rack": draw.choice(["r1", "r2"])}
    if draw.random() < 0.1:
        del labels["rack"]
    taint = {"key": "dedicated", "value": "ml", "effect": draw.choice(["NoSchedule", "PreferNoSchedule"])}
    amounts = {"cpu": draw.choice(["4", "8"]), "memory": "16Gi", "pods": draw.choice(["4", "20", "20"])}
    counts = {NEURON: str(TRN1.devices), DEVICE: str(TRN1.devices), CORE: str(TRN1.geometry.core_count)}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": [taint] if draw.random() < 0.2 else [], "unschedulable": draw.random() < 0.05},
        "status": {"capacity": amounts | counts, "allocatable": amounts | counts, "conditions": [READY]},
    }


def _pod(draw: random.Random, name: str, asks: Mapping[str, str]) -> Body:
    """Labels, and with some probability each of the rules that kube-scheduler has."""
    labels = {"app": draw.choice("xyz"), **({"tier": "front"} if draw.random() < 0.4 else {})}
    cpu = {"cpu": draw.choice(["100m", "500m", "2"])}
    resources = {"requests": {**cpu, **asks}, "limits": dict(asks)}
    spec: Body = {
        "containers": [{"name": "main", "image": "none", "resources": resources}],
        "automountServiceAccountToken": False,
    }
    affinity: Body = {}
    for kind, odds in (("podAntiAffinity", 0.3), ("podAffinity", 0.2 if asks else 0.0)):
        if draw.random() < odds:
            affinity[kind] = {"requiredDuringSchedulingIgnoredDuringExecution": [_term(draw)]}
            if draw.random() < 0.3:
                term = {"weight": draw.randint(1, 100), "podAffinityTerm": _term(draw)}
                affinity[kind]["preferredDuringSchedulingIgnoredDuringExecution"] = [term]
    if affinity:
        spec["affinity"] = affinity
    if asks and draw.random() < 0.5:
        spec["topologySpreadConstraints"] = [_spread(draw)]
    if asks and draw.random() < 0.3:
        spec["tolerations"] = [{"key": "dedicated", "operator": "Exists"}]
    if asks and draw.random() < 0.15:
        spec["nodeSelector"] = draw.choice([{ZONE: "z0"}, {"rack": "r1"}])
    if draw.random() < 0.2:
        port = {"containerPort": 80, "hostPort": draw.choice([8080, 8081])}
        spec["containers"][0]["ports"] = [port]
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


def _term(draw: random.Random) -> Body:
    return {
        "topologyKey": draw.choice([ZONE, HOST, HOST, "rack"]),
        "labelSelector": {"matchLabels": {"app": draw.choice("xyz")}},
        **({"namespaceSelector": {}} if draw.random() < 0.2 else {}),
    }


def _spread(draw: random.Random) -> Body:
    hard = draw.random() < 0.8
    return {
        "maxSkew": draw.randint(1, 2),
        "topologyKey": draw.choice([ZONE, HOST]),
        "whenUnsatisfiable": "DoNotSchedule" if hard else "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": draw.choice("xyz")}},
        **({"nodeAffinityPolicy": "Ignore"} if draw.random() < 0.2 else {}),
        **({"nodeTaintsPolicy": "Honor"} if draw.random() < 0.2 else {}),
        **({"minDomains": draw.randint(1, 3)} if hard and draw.random() < 0.2 else {}),
    }
