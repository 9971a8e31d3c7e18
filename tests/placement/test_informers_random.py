"""Whatever happens in a cluster, and in whatever order the watches say so: the state is what a fresh list gives.

After every event the state is compared with one that is made of what the watches know by then, and now and then, once
the watches have caught up, with that of a controller that starts.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from neuron_plugin.allocation import Dialect
from neuron_plugin.allocation.keys import GATE, NODE_KEY, POD_UID_KEY, RELEASED_KEY
from neuron_plugin.allocation.node import Reservation
from neuron_plugin.allocation.node_rules import PodRules, PodSelector, Requirement, pod_labels
from neuron_plugin.allocation.placement import assignment_of
from neuron_plugin.backoff import Clock
from neuron_plugin.cluster import ApiRequest, ApiServer, LeaseName
from neuron_plugin.cluster.api import Response
from neuron_plugin.cluster.reflector import PACE
from neuron_plugin.cluster.writes import create_lease, delete_lease, renew_lease, utc_now
from neuron_plugin.placement.informers import TIMES, Informers
from neuron_plugin.placement.state import AssumedPod, ClusterState
from neuron_plugin.simulation.api_server_kinds import (
    BUDGETS,
    CLAIMS,
    CSI_DRIVERS,
    CSI_NODES,
    NAMESPACES,
    NODES,
    POD_GROUPS,
    PODS,
    RESOURCE_CLAIMS,
    STORAGE_CLASSES,
    VOLUMES,
    AnyJson,
    Refusal,
    ServedKind,
)
from neuron_plugin.topology import CoreMask
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
VOLUME_CLAIMS = ("data", "models")
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


def informers_of(api: ApiServer, state: ClusterState) -> Informers:
    clock = Clock(now=asyncio.get_running_loop().time, sleep=asyncio.sleep)
    return Informers(api, state, TYPES, lease_namespace="kube-system", dra_driver=DRIVER, clock=clock)


@asynccontextmanager
async def running(informers: Informers) -> AsyncIterator[None]:
    task = asyncio.create_task(informers.run())
    try:
        await informers.synced()
        await informers.leases_listed(5)
        await asyncio.sleep(2 * TIMES.tick)
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


class Checked:
    """Informers and their state, which is compared with one made of what the watches know, after every event."""

    def __init__(self, api: ApiServer) -> None:
        self.api = api
        self.state = ClusterState()
        self.informers = informers_of(api, self.state)
        self.checks = 0
        self.differs: list[tuple[Any, Any]] = []
        self._due = False
        for reflector in reflectors_of(self.informers).values():
            reflector.subscribe(lambda *_: self.changed())

    def changed(self) -> None:
        """Compare once what runs now is through: a list is taken in as one event."""
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._check)

    def _check(self) -> None:
        self._due = False
        is_now, expected = seen(self.state), seen(self._made_of_what_is_known())
        if is_now != expected:
            self.differs.append((is_now, expected))
        self.checks += 1

    def _made_of_what_is_known(self) -> ClusterState:
        made = ClusterState()
        fresh = informers_of(self.api, made)
        for kind, reflector in reflectors_of(self.informers).items():
            reflectors_of(fresh)[kind]._store.replace(reflector.values, 1, version_at_start=0)
        made.storage = replace(made.storage, waits=self.state.storage.waits)
        for group, count in self.state.min_counts.items():  # their watch begins once the server has them
            made.set_min_count(group, count)
        for group, wish in self.state.wishes.items():
            made.set_wish(group, wish)
        made.set_stale(frozenset(name for name, info in self.state.nodes.items() if info.stale))
        for uid, (pod, until) in self.state.departed.items():
            made.put_pod(pod)
            made.remove_pod(uid, kept_until=until)
        for assumed in self.state.assumed.values():
            made.assume(assumed)
        for reservation in self.state.reserved.values():
            made.reserve(reservation)
        return made


def reflectors_of(informers: Informers) -> dict[str, Any]:
    return {**informers._followed, **informers._around, **informers._storage}


class Cluster:
    """Users, controllers, kubelets and schedulers of a small cluster, and the doors of the placement controller."""

    def __init__(self, server: StandInApiServer, dice: random.Random, state: ClusterState) -> None:
        self.server = server
        self.dice = dice
        self.state = state
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
            (3, self.change_namespace),
            (3, self.change_budget),
            (8, self.change_storage),
            (6, self.assume),
            (3, self.forget),
            (4, self.reserve_cores),
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
        self.tie_to_others(manifest)
        if dice.random() < 0.7:
            manifest["spec"]["schedulingGates"] = [{"name": GATE}]
        self.server.create_pod(manifest)

    def tie_to_others(self, manifest: AnyJson) -> None:
        """What other pods and volumes have to do with it."""
        dice = self.dice
        if dice.random() < 0.3:
            term = {"labelSelector": {"matchLabels": {"app": dice.choice(LABELS)}}, "topologyKey": "zone"}
            if dice.random() < 0.5:
                term["namespaceSelector"] = {"matchLabels": {"team": dice.choice(LABELS)}}
            manifest["spec"]["affinity"] = {
                "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
            }
        if dice.random() < 0.3:
            claim = {"claimName": dice.choice(VOLUME_CLAIMS)}
            manifest["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": claim}]

    def create_other(self) -> None:
        asked = container("main", DEVICE, 0)
        asked["resources"]["requests"] |= {"cpu": "4"}
        manifest = pod_manifest(self.dice.choice(POD_NAMES), containers=[asked], node=self.dice.choice(NODE_NAMES))
        manifest["metadata"]["labels"] = {"app": self.dice.choice(LABELS)}
        self.tie_to_others(manifest)
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
        """Its owner, or a leader before this one, which has promised it a node or has let it go."""
        pod = self.any_of(PODS)
        own = {POD_UID_KEY: pod["metadata"]["uid"]}
        change = self.dice.choice(
            (
                {"annotations": {**own, NODE_KEY: self.dice.choice(NODE_NAMES), "NEURON_DEVS": "5"}},
                {"annotations": {**own, RELEASED_KEY: "true"}},
                {"annotations": {POD_UID_KEY: None}},
                {"labels": {"app": self.dice.choice(LABELS)}},
                {"annotations": {"neuron-plugin.io/group": self.dice.choice((*LABELS, None))}},
                {"annotations": {"NEURON_DEVS": self.dice.choice(("1", "2", None))}},
            )
        )
        self.server.patch_pod("default", pod["metadata"]["name"], {"metadata": change})

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
            spec: AnyJson = {"schedulingPolicy": {"gang": {"minCount": self.dice.choice((2, 3))}}}
            if self.dice.random() < 0.5:
                spec["schedulingConstraints"] = {"topology": [{"key": "zone"}]}
            self.server.create(POD_GROUPS, {"metadata": {"name": name}, "spec": spec}, "default")

    def put(self, kind: ServedKind, name: str, manifest: AnyJson) -> None:
        """An object is made or changed, or sometimes deleted."""
        namespace = "default" if kind.namespaced else ""
        if not any(one["metadata"]["name"] == name for one in self.server.objects(kind)):
            self.server.create(kind, {"metadata": {"name": name}, **manifest}, namespace)
        elif self.dice.random() < 0.4:
            self.server.delete(kind, name, namespace)
        else:
            self.server.change(kind, name, manifest, namespace)

    def change_namespace(self) -> None:
        movable = {"neuron-plugin.io/movable": self.dice.choice(("true", None))}
        metadata = {"labels": {"team": self.dice.choice(LABELS)}, "annotations": movable}
        self.put(NAMESPACES, "default", {"metadata": {"name": "default", **metadata}})

    def change_budget(self) -> None:
        selector = {"matchLabels": {"app": self.dice.choice(LABELS)}}
        status = {"disruptionsAllowed": self.dice.randrange(3), "currentHealthy": 3, "desiredHealthy": 2}
        self.put(BUDGETS, self.dice.choice(LABELS), {"spec": {"selector": selector}, "status": status})

    def change_storage(self) -> None:
        dice, name = self.dice, self.dice.choice(VOLUME_CLAIMS)
        zones = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [dice.choice(LABELS)]}]}]
        csi = {"driver": "ebs", "volumeHandle": name}
        volume = {"csi": csi, "nodeAffinity": {"required": {"nodeSelectorTerms": zones}}}
        claim = {"volumeName": dice.choice((name, "")), "storageClassName": "fast", "accessModes": ["ReadWriteOncePod"]}
        modes, drivers = ("Immediate", "WaitForFirstConsumer"), [{"name": "ebs", "allocatable": {"count": 1}}]
        kind, called, manifest = dice.choice(
            (
                (CLAIMS, name, {"spec": claim}),
                (VOLUMES, name, {"spec": volume}),
                (STORAGE_CLASSES, "fast", {"provisioner": "ebs", "volumeBindingMode": dice.choice(modes)}),
                (CSI_NODES, dice.choice(NODE_NAMES), {"spec": {"drivers": dice.choice((drivers, []))}}),
                (CSI_DRIVERS, "ebs", {"spec": {"storageCapacity": dice.random() < 0.5}}),
            )
        )
        self.put(kind, called, manifest)

    # What our own doors decide meanwhile.

    def assume(self) -> None:
        """A pod gets its best place, if it has none."""
        pods = [pod for pod in self.state.waiting() if pod.request and not pod.refusal]
        if pods and (found := self.state.scene().best(pod := self.dice.choice(pods))):
            node, placement = found
            inventory = self.state.nodes[node].inventory
            assert inventory
            assigned = assignment_of(inventory.geometry, placement, 1)
            bound = self.dice.random() < 0.5
            placed = replace(pod, node=node if bound else "", promised="" if bound else node, assignment=assigned)
            until = asyncio.get_running_loop().time() + 5 if bound and self.dice.random() < 0.5 else float("inf")
            self.state.assume(AssumedPod(placed, (Dialect.NEURON_PLUGIN,), 0.0, until=until))

    def forget(self) -> None:
        for uid in list(self.state.assumed)[:1]:
            self.state.forget(uid)

    def reserve_cores(self) -> None:
        if self.state.reserved and self.dice.random() < 0.5:
            self.state.release(next(iter(self.state.reserved)))
        elif waiting := self.state.waiting():
            pod = self.dice.choice(waiting)
            mask = CoreMask(0b1111 << self.dice.randrange(16))
            self.state.reserve(Reservation(pod.reference, self.dice.choice(NODE_NAMES), mask))

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


SELECTORS = [
    (PodSelector(namespaces, (Requirement("app", "In", (label,)),), team),)
    for namespaces, label, team in product(
        (("default",), ()), LABELS, (None, *((Requirement("team", "In", (name,)),) for name in LABELS))
    )
]
PROBES = [pod_labels("default", {"app": label}) for label in LABELS]
WITH_VOLUMES = replace(record_of(pod_manifest("needy", DEVICE, 1)), rules=PodRules(claims=VOLUME_CLAIMS))


def without_empty(counts: Iterable[tuple[Any, Any]]) -> AnyJson:
    return {key: value for key, value in counts if value}


def seen(state: ClusterState) -> AnyJson:
    """What the state says that decides, in no order."""
    shapes = [record_of(pod_manifest("probe", DEVICE, count)).requests for count in (1, 4, 8)]
    choices, rules = state.choices, (PodRules(), PodRules(needs=(("cpu", 5000),)), PodRules(claim_driver=DRIVER))
    population, scene = state.population, state.scene()
    return {
        "nodes": {
            name: {
                "node": info.node,
                "has": {uid: int(info.ledger.mask_of(uid)) for uid in info.ledger.by_pod},
                "closed": info.closed is not None,
                "unclear": sorted(reason.code for _, reason in info.unclear),  # of two that overlap either is named
                "stale": info.stale,
                "free": int(info.free_mask),
                "void": {pod.uid for pod in info.void},
                "kept": set(info.reservations),
                "use": replace(state.uses[name], amounts=without_empty(state.uses[name].amounts.items())),
                "tight": state.is_tight(name),
                "volumes": set(population.claimants(name)),
            }
            for name, info in state.nodes.items()
        },
        "pods": dict(state.pods),
        "leased": set(state.leased),
        "gated": dict(state.gated),
        "roaming": dict(state.roaming),
        "waiting": [pod.uid for pod in state.waiting()],
        "placed": {uid: population.get(uid) for uid in (*state.pods, *state.assumed) if population.get(uid)},
        "tallies": [dict(population.tally(selectors)) for selectors in SELECTORS],
        "kept off": [{term: dict(by_node) for term, by_node in population.keeping_off(each)} for each in PROBES],
        "anti keys": set(population.anti_keys),
        "users": [population.users_of("default", claim) for claim in VOLUME_CLAIMS],
        "groups": {name: {pod.uid for pod in state.members_of(("default", name))} for name in LABELS},
        "least": dict(scene.cluster.min_counts),
        "wishes": dict(state.wishes),
        "namespaces": dict(state.namespaces),
        "movable": state.movable_namespaces,
        "budgets": dict(state.budgets),
        "storage": state.storage,
        "feasible": [choices.feasible(each).of(state.nodes.keys()) for each in rules],
        "with volumes": scene.eligible(WITH_VOLUMES),
        "best": [choices.answers(shape).best(state.nodes.keys()) for shape in shapes],
        "departed": dict(state.departed),
        "assumed": dict(state.assumed),
        "reserved": dict(state.reserved),
    }


@pytest.mark.looptime
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_t32_after_every_event_the_state_is_what_a_fresh_list_gives(seed: int) -> None:
    server, dice = StandInApiServer(), random.Random(seed)  # noqa: S311 - a story that can be repeated
    checked = Checked(LateWatches(server, dice))
    cluster = Cluster(server, dice, checked.state)
    needy = pod_manifest("needy", DEVICE, 1)  # storage is followed from the start
    needy["metadata"]["namespace"] = "apart"
    needy["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    server.create_pod(needy)
    for _ in NODE_NAMES:
        cluster.change_node()
    async with running(checked.informers):
        for _ in range(STEPS // SEEDS):
            for _ in range(dice.choice((1, 1, 3, 8))):
                await cluster.step()
                for is_now, expected in checked.differs:
                    assert is_now == expected
            await asyncio.sleep(SETTLED)
            for uid in list(checked.state.assumed):
                checked.state.forget(uid)
            for key in list(checked.state.reserved):
                checked.state.release(key)
            fresh = ClusterState()
            async with running(informers_of(server, fresh)):
                assert seen(checked.state) == seen(fresh)
        checks_before = checked.checks
        server.create_pod(pod_manifest("last", DEVICE, 1))
        await asyncio.sleep(SETTLED)
        assert checked.checks > checks_before, "the state was not compared after an event"
        assert not checked.differs
