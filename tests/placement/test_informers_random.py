"""Whatever happens in a cluster, and in whatever order the watches say so: the state is what a fresh list gives."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from neuron_plugin.allocation import NeuronPod
from neuron_plugin.allocation.keys import GATE
from neuron_plugin.allocation.node_rules import PodRules
from neuron_plugin.backoff import Clock
from neuron_plugin.cluster import ApiRequest, LeaseName
from neuron_plugin.cluster.api import Response
from neuron_plugin.cluster.reflector import PACE
from neuron_plugin.cluster.writes import create_lease, delete_lease, renew_lease, utc_now
from neuron_plugin.placement.daemon import TIMES
from neuron_plugin.placement.informers import Informers
from neuron_plugin.placement.state import ClusterState
from neuron_plugin.simulation.api_server_kinds import NODES, POD_GROUPS, PODS, RESOURCE_CLAIMS, AnyJson, Refusal
from tests.simulation.dra import DRIVER, claim_spec, exactly, linked
from tests.support.api_server import StandInApiServer
from tests.support.manifests import container, node_manifest, pod_manifest
from tests.support.world import CORE, DEVICE, TYPES, record_of

STEPS = int(os.environ.get("CLUSTER_STEPS", "120"))
SEEDS = 6
NODE_NAMES = ("by-claim", "by-count", "other")
CLAIM_NAMES = ("c1", "c2", "c3")
POD_NAMES = tuple(f"p{number}" for number in range(6))
LABELS = ("red", "blue")
LATEST = 0.5
"""Seconds by which the watch of one kind may be behind that of another."""
SETTLED = 2 * PACE.backoff_limit + LATEST * 20 + TIMES.departed + 2 * TIMES.tick
"""Seconds after which every watch has said everything, and what a deleted pod leaves is over."""
LONG = 10**6
"""How long a Lease lasts, in seconds: longer than a test."""


class LateWatches:
    """The server, of which each watch says what it says some time later, and each kind by a delay of its own."""

    def __init__(self, server: StandInApiServer, dice: random.Random) -> None:
        self._server = server
        self._dice = dice

    async def request(self, request: ApiRequest, *, timeout_seconds: float) -> Response:
        return await self._server.request(request, timeout_seconds=timeout_seconds)

    @asynccontextmanager
    async def stream(self, request: ApiRequest, *, silence_seconds: float) -> AsyncIterator[AsyncIterator[bytes]]:
        async with self._server.stream(request, silence_seconds=silence_seconds) as lines:
            yield self._late(lines)

    async def _late(self, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for line in lines:
            await asyncio.sleep(self._dice.choice((0, 0, 0.1, LATEST)))
            yield line


@asynccontextmanager
async def following(server: Any) -> AsyncIterator[ClusterState]:
    loop, state = asyncio.get_running_loop(), ClusterState()
    clock = Clock(now=loop.time, sleep=asyncio.sleep)
    informers = Informers(server, state, TYPES, lease_namespace="kube-system", dra_driver=DRIVER, clock=clock)
    task = asyncio.create_task(informers.run())
    try:
        await informers.synced()
        await informers.leases_listed(5)
        await asyncio.sleep(2 * TIMES.tick)
        yield state
    finally:
        task.cancel()
        await asyncio.wait([task])


class Cluster:
    """Users, controllers, kubelets and schedulers of a small cluster."""

    def __init__(self, server: StandInApiServer, seed: int) -> None:
        self.server = server
        self.dice = random.Random(seed)  # noqa: S311 - a story that can be repeated
        self.lives = 0

    async def step(self) -> None:
        happenings: list[tuple[int, Callable[[], Any]]] = [
            (14, self.create_pod),
            (4, self.create_other),
            (10, self.bind),
            (8, self.change_pod),
            (8, self.set_phase),
            (10, self.delete_pod),
            (8, self.create_claim),
            (8, self.allocate),
            (6, self.reserve),
            (5, self.release_claim),
            (5, self.change_node),
            (3, self.delete_node),
            (3, self.change_group),
            (2, self.server.end_watches),
            (1, self.server.compact),
        ]
        with suppress(Refusal):
            self.dice.choices([act for _, act in happenings], [weight for weight, _ in happenings])[0]()
        if self.dice.random() < 0.1:
            await self.change_lease()
        await asyncio.sleep(self.dice.choice((0, 0, 0.05, LATEST)))

    def any_of(self, *kinds: Any) -> AnyJson:
        found = [one for kind in kinds for one in self.server.objects(kind)]
        if not found:
            raise Refusal(404, "nothing is there")
        return self.dice.choice(found)

    # Pods.

    def create_pod(self) -> None:
        """One that asks by count or by claims, gated or bound, alone or in a group."""
        dice, name = self.dice, self.dice.choice(POD_NAMES)
        by_claims = dice.random() < 0.6
        manifest = pod_manifest(
            name,
            dice.choice((CORE, DEVICE)),
            0 if by_claims else dice.choice((1, 4)),
            annotations={"NEURON_DEVS": "3"} if dice.random() < 0.3 else {},
        )
        self.lives += 1
        manifest["metadata"] |= {"uid": f"life-{self.lives}", "labels": {"app": dice.choice(LABELS)}}
        if by_claims:
            claims = dice.sample(CLAIM_NAMES, dice.choice((1, 1, 2)))
            uses = [{"name": claim, "resourceClaimName": claim} for claim in claims]
            manifest["spec"] |= {"resourceClaims": uses}
            manifest["spec"]["containers"][0]["resources"] = {"claims": [{"name": claim} for claim in claims]}
        if dice.random() < 0.3:
            manifest["metadata"]["annotations"] |= {"neuron-plugin.io/group": dice.choice(LABELS)}
        if dice.random() < 0.2:
            term = {"labelSelector": {"matchLabels": {"app": dice.choice(LABELS)}}, "topologyKey": "zone"}
            manifest["spec"]["affinity"] = {
                "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
            }
        if dice.random() < 0.7:
            manifest["spec"]["schedulingGates"] = [{"name": GATE}]
        self.server.create_pod(manifest)

    def create_other(self) -> None:
        asked = container("main", DEVICE, 0)
        asked["resources"]["requests"] |= {"cpu": "4"}
        manifest = pod_manifest(self.dice.choice(POD_NAMES), containers=[asked], node=self.dice.choice(NODE_NAMES))
        self.server.create_pod(manifest)

    def bind(self) -> None:
        """Also one that no one has placed, and of which a claim is not allocated."""
        pod = self.any_of(PODS)
        name = pod["metadata"]["name"]
        if pod["spec"].get("schedulingGates"):
            self.server.patch_pod("default", name, {"spec": {"schedulingGates": None}})
        if not pod["spec"].get("nodeName"):
            self.server.bind("default", name, node=self.dice.choice(NODE_NAMES))

    def change_pod(self) -> None:
        change = self.dice.choice(
            (
                {"labels": {"app": self.dice.choice(LABELS)}},
                {"annotations": {"neuron-plugin.io/group": self.dice.choice((*LABELS, None))}},
                {"annotations": {"NEURON_DEVS": self.dice.choice(("1", "2", None))}},
            )
        )
        self.server.patch_pod("default", self.any_of(PODS)["metadata"]["name"], {"metadata": change})

    def set_phase(self) -> None:
        pod = self.any_of(PODS)
        if pod["spec"].get("nodeName"):
            running = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}
            status = self.dice.choice((running, running, {"phase": "Succeeded", "containerStatuses": []}))
            self.server.set_pod_status("default", pod["metadata"]["name"], status)

    def delete_pod(self) -> None:
        self.server.delete_pod(
            "default", self.any_of(PODS)["metadata"]["name"], grace_seconds=self.dice.choice((0, 30))
        )

    # Claims.

    def create_claim(self) -> None:
        spec = self.dice.choice(
            (
                claim_spec(),
                linked(4),
                claim_spec(exactly(allocationMode="All")),
                claim_spec(exactly(deviceClassName="nic")),
            )
        )
        self.lives += 1
        metadata = {"name": self.dice.choice(CLAIM_NAMES), "uid": f"claim-{self.lives}"}
        self.server.create(RESOURCE_CLAIMS, {"metadata": metadata, "spec": spec}, "default")

    def allocate(self) -> None:
        claim = self.any_of(RESOURCE_CLAIMS)
        first, node = self.dice.choice((0, 4)), self.dice.choice(NODE_NAMES[:2])
        ours = claim["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] == DRIVER
        results = [
            {
                "request": "neurons",
                "driver": DRIVER if ours else "nic",
                "pool": node,
                "device": f"neuron-{first + offset}",
            }
            for offset in range(2)
        ]
        pin = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        allocation = {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": [pin]}}
        status = {"allocation": self.dice.choice((allocation, allocation, None))}
        self.server.patch_status(RESOURCE_CLAIMS, claim["metadata"]["name"], status, "default")

    def reserve(self) -> None:
        """For the pods that use it, in any order, some of which may be gone by now."""
        name = self.any_of(RESOURCE_CLAIMS)["metadata"]["name"]
        pods = [pod for pod in self.server.objects(PODS) if name in str(pod["spec"].get("resourceClaims"))]
        self.dice.shuffle(pods)
        uses = [{"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]} for pod in pods]
        self.server.patch_status(RESOURCE_CLAIMS, name, {"reservedFor": uses[: self.dice.randrange(4)]}, "default")

    def release_claim(self) -> None:
        self.server.delete(RESOURCE_CLAIMS, self.any_of(RESOURCE_CLAIMS)["metadata"]["name"], "default")

    # All else.

    def change_node(self) -> None:
        name = self.dice.choice(NODE_NAMES)
        sick = {self.dice.randrange(16): "ECC"} if self.dice.random() < 0.5 else {}
        manifest = node_manifest(
            name,
            self.dice.choice(("trn1.32xlarge", "trn1.32xlarge", "inf2.48xlarge")),
            unhealthy={device: why for device, why in sick.items() if device < 12},
            claim_driver=DRIVER if name == "by-claim" else "",
        )
        manifest["metadata"]["labels"] |= {"zone": self.dice.choice(LABELS)}
        manifest["status"]["allocatable"] |= {"cpu": "8"}
        if any(node["metadata"]["name"] == name for node in self.server.objects(NODES)):
            change = {key: manifest["metadata"][key] for key in ("labels", "annotations")}
            self.server.patch_node(name, {"metadata": change, "spec": {"unschedulable": self.dice.random() < 0.2}})
        else:
            self.server.create_node(manifest)

    def delete_node(self) -> None:
        self.server.delete_node(self.any_of(NODES)["metadata"]["name"])

    def change_group(self) -> None:
        name = self.dice.choice(LABELS)
        if any(group["metadata"]["name"] == name for group in self.server.objects(POD_GROUPS)):
            self.server.delete(POD_GROUPS, name, "default")
        else:
            policy = {"schedulingPolicy": {"gang": {"minCount": self.dice.choice((2, 3))}}}
            self.server.create(POD_GROUPS, {"metadata": {"name": name}, "spec": policy}, "default")

    async def change_lease(self) -> None:
        """A plugin takes its Lease, gives it up, or is uninstalled."""
        node = self.dice.choice(NODE_NAMES)
        held = LeaseName("kube-system", f"neuron-plugin-{node}", node)
        given_up = LeaseName(held.namespace, held.name, "")
        for request in self.dice.choice(
            (
                [create_lease(held, duration_seconds=LONG, now=utc_now())],
                [renew_lease(held, duration_seconds=LONG, now=utc_now())],
                [renew_lease(given_up, duration_seconds=LONG, now=utc_now())],
                [delete_lease(held)],
            )
        ):
            self.server.answer(request)


def probe(label: str) -> NeuronPod:
    """A gated pod with this label."""
    manifest = pod_manifest("probe")
    manifest["metadata"] |= {"labels": {"app": label}}
    manifest["spec"] |= {"schedulingGates": [{"name": GATE}]}
    return record_of(manifest)


def seen(state: ClusterState) -> AnyJson:
    """What the state says that decides, in no order."""
    shapes = (record_of(pod_manifest("probe", DEVICE, count)).requests for count in (1, 4, 8))
    choices, rules = state.choices, (PodRules(), PodRules(needs=(("cpu", 5000),)), PodRules(claim_driver=DRIVER))
    probes = [probe(label) for label in LABELS]
    return {
        "nodes": {
            name: {
                "node": info.node,
                "has": {uid: int(info.ledger.mask_of(uid)) for uid in info.ledger.by_pod},
                "closed": info.closed is not None,
                "unclear": {(pod.uid, reason.code) for pod, reason in info.unclear},
                "stale": info.stale,
                "free": int(info.free_mask),
                "void": {pod.uid for pod in info.void},
                "use": state.uses[name],
                "tight": state.is_tight(name),
                "kept off": [state.is_kept_off(pod, [name]) for pod in probes],
            }
            for name, info in state.nodes.items()
        },
        "pods": dict(state.pods),
        "gated": dict(state.gated),
        "groups": {group: (set(pods), state.least_of(group)) for group, pods in state.members.items()},
        "least": dict(state.min_counts),
        "feasible": [set(choices.feasible(each)) for each in rules],
        "best": [choices.answers(shape).best(state.nodes.keys()) for shape in shapes],
        "departed": dict(state.departed),
    }


@pytest.mark.looptime
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_after_whatever_happened_the_state_is_what_a_fresh_list_gives(seed: int) -> None:
    server = StandInApiServer()
    cluster = Cluster(server, seed)
    for _ in NODE_NAMES:
        cluster.change_node()
    async with following(LateWatches(server, cluster.dice)) as state:
        for _ in range(STEPS // SEEDS):
            for _ in range(cluster.dice.choice((1, 1, 3, 8))):
                await cluster.step()
            await asyncio.sleep(SETTLED)
            async with following(server) as fresh:
                assert seen(state) == seen(fresh)
