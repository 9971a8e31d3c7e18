"""A cluster in memory in which pods are placed by both doors while everything else goes wrong.

The simulated API server keeps pods, claims and nodes, and answers when the model says so: at once, late, with its
answer lost, or not at all. Two replicas follow it with a delay of their own; one leads. A scheduler binds released pods
late, or never, and asks the extender about pods without the gate; users edit and delete pods; the leader moves and
preempts pods, which end when they like and are made again; nodes lose CPU to other pods, vanish and come back; devices
get sick.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from random import Random
from typing import Any, NoReturn

import msgspec

from neuron_plugin.allocation import PodReference, PodUid
from neuron_plugin.allocation.keys import GATE, MOVABLE_KEY, NODE_KEY, POD_UID_KEY, SPARES_KEY
from neuron_plugin.allocation.resources import parse_ids
from neuron_plugin.backoff import Clock
from neuron_plugin.cluster import ApiRequest, LeaseName, UnreachableError
from neuron_plugin.cluster.api import Response
from neuron_plugin.cluster.claims import RESOURCE_CLAIMS as CLAIM_RECORDS
from neuron_plugin.cluster.claims import neuron_claim
from neuron_plugin.cluster.pods import PODS as POD_RECORDS
from neuron_plugin.placement.claims import ClaimedPods, ClaimWriter
from neuron_plugin.placement.context import Context
from neuron_plugin.placement.extender.binding import Binder
from neuron_plugin.placement.extender.filter import Leads
from neuron_plugin.placement.extender.server import ExtenderService
from neuron_plugin.placement.gates.placer import Placer
from neuron_plugin.placement.gates.upkeep import Upkeep
from neuron_plugin.placement.informers import keep_pod, machines_of, show_pod
from neuron_plugin.placement.leadership import Readiness
from neuron_plugin.placement.planner import Planner
from neuron_plugin.placement.reserves import RECORDS_KEY, read_records
from neuron_plugin.placement.room import Room
from neuron_plugin.placement.writer import Writer
from neuron_plugin.planning import MoveRules
from neuron_plugin.simulation.api_server_kinds import LEASES as SERVED_LEASES
from neuron_plugin.simulation.api_server_kinds import NODES as SERVED_NODES
from neuron_plugin.simulation.api_server_kinds import PODS as SERVED_PODS
from neuron_plugin.simulation.api_server_kinds import RESOURCE_CLAIMS as SERVED_CLAIMS
from neuron_plugin.simulation.api_server_kinds import AnyJson, parse_path
from neuron_plugin.simulation.api_server_store import Inbox, ObjectChange
from tests.simulation.dra import DRIVER, devices_of, linked
from tests.support.api_server import StandInApiServer
from tests.support.manifests import node_manifest
from tests.support.world import World

NODE_NAMES = ("a", "b", "c", "d", "claims")
CLAIM_NODE = "claims"
"""Its devices are given by claims, and the kubelet counts none."""
HEARD = ("a", "b")
"""Nodes whose plugin renews a Lease."""
LEASE = "neuron-extender"
SHAPES = (("aws.amazon.com/neuron", (1, 1, 4, 8, 16)), ("aws.amazon.com/neuroncore", (1, 2)))
GROUP = "neuron-plugin.io/group"
RING = "ring"
JOB_INDEX, COMPLETION_INDEX = "jobset.sigs.k8s.io/job-index", "batch.kubernetes.io/job-completion-index"
"""The group of high priority that has a spare node."""
LANDING = 5.0
WRITE = 2.5
"""When a PATCH is given up; the model answers no later."""
CLOSING = 0.5
"""How long after the end of a process the server may still do what it was asked by it."""
MOST_BEHIND = 100
"""Changes that a watch may be behind before all are seen at once: else it would be further behind with each step."""
UNTANGLED = 20


class Replica:
    """One controller, and what it has seen of the server."""

    def __init__(self, model: Model, number: int) -> None:
        self.model = model
        self.number = number
        self.flights: list[tuple[float, ApiRequest, asyncio.Future[Response]]] = []
        self.changes = Inbox()
        self.start()

    def start(self) -> None:
        """A new process: it lists, and knows nothing else."""
        model = self.model
        self.world = World()
        self.state = self.world.state
        self.state.leased.update(HEARD)
        server = model.server
        server.unfollow(self.changes)
        self.changes = server.follow(SERVED_NODES, SERVED_PODS, SERVED_CLAIMS)
        self.joined = ClaimedPods(DRIVER, partial(show_pod, self.state))
        self.seen: dict[str, Any] = {}
        for kind in (SERVED_NODES, SERVED_PODS, SERVED_CLAIMS):
            for manifest in server.objects(kind):
                self.show(manifest, gone=False)
        self.ready = Readiness({"leader": "not the leader"})
        clock = Clock(now=lambda: model.now, sleep=model.sleep)
        context = Context(
            self, self.state, self.ready, str(self.number), clock=clock, unix_seconds=lambda: model.unix_ns() / 1e9
        )
        self.writer = Writer(context, claims=ClaimWriter(self, DRIVER, self.joined.claims, context.unix_ns))
        lease = LeaseName("kube-system", LEASE, str(self.number))
        self.room = Room(context, self.writer, lease=lease, evictions_per_minute=100)
        self.placer = Placer(context, self.writer, self.room)
        self.upkeep = Upkeep(context, self.writer, self.placer, release_when_full=None)
        self.planner = Planner(context, self.room, rules=MoveRules(), after_seconds=2.0, makes_moves=True)
        self.leads = Leads(context, self.writer)
        self.binder = Binder(context, self.writer, self.leads)
        self.service = ExtenderService(context, self.binder, self.leads)
        self.busy: asyncio.Task[None] | None = None
        self.taking_over: asyncio.Task[None] | None = None
        self.binds: set[asyncio.Task[object]] = set()

    async def request(self, request: ApiRequest, *, timeout_seconds: float) -> Response:
        """An ``ApiServer``: the model answers when it likes, but not later than the time-out."""
        if request.method == "POST" and not request.path.endswith(("/eviction", "/binding")):  # an event
            return self.model.server.answer(request)
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self.flights.append((self.model.now + timeout_seconds, request, future))
        return await future

    def stream(self, request: ApiRequest, *, silence_seconds: float) -> NoReturn:
        raise NotImplementedError(request, silence_seconds)

    def follow(self, most: int | None = None) -> None:
        """See the next changes of the server, by default all of them."""
        behind = self.changes.qsize()
        for _ in range(behind if most is None else min(most, behind)):
            change = self.changes.get_nowait()
            assert isinstance(change, ObjectChange)
            self.show(change.new.value, gone=change.gone)
        self.state.set_stale(frozenset(self.model.away))

    def show(self, manifest: AnyJson, *, gone: bool) -> None:
        metadata = manifest["metadata"]
        if manifest["kind"] == "Pod":
            created = self.model.created.get(metadata["uid"], 0.0)
            shown = {**manifest, "metadata": {**metadata, "creationTimestamp": utc_text(created)}}
            found = None if gone else keep_pod(POD_RECORDS.decode(msgspec.json.encode(shown)), claims=True)
            self.joined.put_pod(metadata["uid"], self.seen.pop(metadata["uid"], None), found)
            if found:
                self.seen[metadata["uid"]] = found
        elif manifest["kind"] == "ResourceClaim":
            record = CLAIM_RECORDS.decode(msgspec.json.encode(manifest))
            self.joined.put_claim((record.namespace, record.name), None if gone else neuron_claim(record, DRIVER))
        elif gone:
            self.state.remove_node(metadata["name"], metadata["uid"])
        else:
            self.world.show_node(manifest)
        self.joined.see_machines(machines_of(self.state, DRIVER))

    async def tend(self) -> None:
        """What a leader does beside placing."""
        await self.room.tend()
        await self.binder.settle()
        await self.planner.look()
        await self.upkeep._withdraw_void()
        await self.upkeep._take_back_stuck()

    async def take_over(self) -> None:
        await self.writer.take_over()
        await self.room.take_over()

    def lead(self) -> None:
        """Take over what the last leader has reserved, and then be ready."""
        if self.taking_over is None:
            self.follow()  # a new leader lists consistently
            self.taking_over = asyncio.create_task(self.take_over())
        elif self.taking_over.done():
            self.taking_over = None
            self.ready.met("leader")


class Model:
    """The cluster, its two replicas, its scheduler and its users."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)  # noqa: S311
        self.now = 1000.0
        self.ticks = 0
        self.names = 0
        self.server = StandInApiServer()
        self.created: dict[str, float] = {}
        """When pods were made, by their UIDs."""
        self.ranks: dict[str, tuple[int, ...] | None] = {}
        """Of pods of groups, by their UIDs."""
        self.evicted = 0
        self.server.create(SERVED_LEASES, {"metadata": {"name": LEASE}, "spec": {}}, "kube-system")
        self.placed_in_group: defaultdict[str, set[str]] = defaultdict(set)
        """By group, the pods that had a place at some time."""
        for name in NODE_NAMES:
            self.add_node(name)
        for rank in "01":
            self.create_ring(rank)
        self.replicas = [Replica(self, number) for number in range(2)]
        self.leader: Replica | None = None
        self.leads_from = 0.0
        self.late: deque[tuple[float, ApiRequest, bool, Replica]] = deque()
        """When writes land of which the sender has given up, whether its process was frozen meanwhile, the sender."""
        self.too_late: set[str] = set()
        """Pods on which a write of a frozen process has landed when another was leading already."""
        self.most_pods = 40
        self.away: set[str] = set()
        """Nodes whose plugin is away."""

    def unix_ns(self) -> int:
        self.ticks += 1
        return int(self.now * 1e9) + self.ticks

    async def sleep(self, seconds: float) -> None:
        del seconds
        await asyncio.sleep(0)

    # What happens in the cluster.

    def add_node(self, name: str, sick: tuple[int, ...] = ()) -> None:
        driver = DRIVER if name == CLAIM_NODE else ""
        manifest = node_manifest(name, "trn1.32xlarge", unhealthy=dict.fromkeys(sick, "ECC"), claim_driver=driver)
        manifest["metadata"]["uid"] = f"node-{name}"
        manifest["status"]["allocatable"] = {**manifest["status"]["allocatable"], "cpu": "64", "pods": "110"}
        if name in self.nodes:
            self.server.patch_node(name, {"metadata": {"annotations": manifest["metadata"]["annotations"]}})
        else:
            self.server.create_node(manifest)

    def create(
        self,
        *,
        group: str = "",
        size: int = 0,
        count: int = 0,
        rank: str = "",
        other_gate: bool = False,
        door: str = "gates",
    ) -> None:
        """A pod: with the gate, by the ``second`` door, or asking by a ``claim``."""
        self.names += 1
        resource, counts = self.chance.choice(SHAPES)
        if group:
            resource = "aws.amazon.com/neuron"
        limits = {resource: str(count or self.chance.choice(counts))}
        gates = [{"name": GATE}] + [{"name": "kueue.x-k8s.io/admission"}] * other_gate
        annotations = (
            {
                GROUP: group,
                f"{GROUP}-size": str(size),
            }
            if group
            else {}
        )
        if rank:
            annotations |= {COMPLETION_INDEX: "0", SPARES_KEY: "1"}
        name = f"pod-{self.names}"
        metadata: AnyJson = {"name": name, "namespace": "default", "uid": f"uid-{self.names}"}
        metadata |= {"annotations": annotations, "labels": {JOB_INDEX: rank} if rank else {}}
        if not group and self.chance.random() < 0.5:
            annotations[MOVABLE_KEY] = "true"
            owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u", "controller": True}
            metadata["ownerReferences"] = [owner]
        spec: AnyJson = {"schedulingGates": gates, "priority": 10 if rank else self.chance.choice((0, 0, 10))}
        if door == "second":
            spec["schedulingGates"] = []
        if door == "claim":
            claim = {"metadata": {"name": name}, "spec": linked(self.chance.choice((4, 4, 8, 16)))}
            self.server.create(SERVED_CLAIMS, claim, "default")
            spec["resourceClaims"] = [{"name": "c", "resourceClaimName": name}]
            limits = {}
        amounts = {**limits, "cpu": str(self.chance.choice((1, 4, 16)))}
        resources: AnyJson = {"limits": amounts, "requests": amounts}
        if door == "claim":
            resources["claims"] = [{"name": "c"}]
        spec["containers"] = [{"name": "main", "resources": resources}]
        self.created[f"uid-{self.names}"] = self.now
        self.server.create_pod({"metadata": metadata, "spec": spec})

    def create_ring(self, rank: str) -> None:
        """A pod of the group that has a spare node. Its pods, each of another Job, are made again whenever they end."""
        self.create(group=RING, size=2, count=8, rank=rank)

    def create_other(self) -> None:
        """A pod without Neuron that is bound at once and takes CPU."""
        self.names += 1
        node = self.chance.choice(list(self.nodes) or [""])
        container = {"name": "main", "resources": {"requests": {"cpu": str(self.chance.choice((8, 40)))}}}
        metadata = {"name": f"other-{self.names}", "namespace": "default", "uid": f"uid-{self.names}"}
        if node:
            self.server.create_pod({"metadata": metadata, "spec": {"nodeName": node, "containers": [container]}})

    def schedule(self, pod: AnyJson) -> None:
        """What the cluster's scheduler does with a released pod: its pin leaves one node, if CPU and counts do."""
        affinity = pod["spec"].get("affinity")
        names = list(self.nodes)
        if affinity:
            terms = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
            names = [name for name in names if name in terms[0]["matchFields"][0]["values"]]
        names = [name for name in names if self.has_room(pod, name)]
        name = pod["metadata"]["name"]
        if names and not affinity and not pod["metadata"].get("annotations", {}).get(POD_UID_KEY):
            self.ask_extender(pod, names)
            return
        if names and (claim := claim_of(pod)):
            if not devices_of(self.server.get(SERVED_CLAIMS, claim, "default")):
                names = []
            else:
                uses = [{"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]}]
                self.server.patch_status(SERVED_CLAIMS, claim, {"reservedFor": uses}, "default")
        if names:
            self.server.bind("default", name, node=self.chance.choice(names))
            self.allocate(name)
            self.server.set_pod_status("default", name, {"phase": "Running"})
        else:
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            self.server.set_pod_status("default", name, {"nominatedNodeName": None, "conditions": [condition]})

    def ask_extender(self, pod: AnyJson, names: list[str]) -> None:
        """Of a pod without a promise the scheduler asks whoever leads, and has that bind it."""
        replica, metadata = self.leader, pod["metadata"]
        if replica is None or replica.ready.why_not:
            return
        body = msgspec.json.encode({"Pod": pod, "NodeNames": names})
        answer = msgspec.json.decode(replica.service.answer("filter", body))
        if passed := answer.get("NodeNames"):
            reference = PodReference(PodUid(metadata["uid"]), "default", metadata["name"])
            bind: asyncio.Task[object] = asyncio.create_task(replica.binder.bind(reference, self.chance.choice(passed)))
            replica.binds.add(bind)
            bind.add_done_callback(replica.binds.discard)

    def allocate(self, name: str) -> None:
        """What the plugin does when a pod comes: one whose devices another pod has gets others."""
        held = list(self.held())
        placements = {name: (node, cores) for node, name, cores, _ in held}
        bound = {name for _, name, _, bound_to in held if bound_to}
        node, cores = placements.get(name, ("", frozenset()))
        for other in bound - {name}:
            if placements[other][0] == node and placements[other][1] & cores:
                assert {name, other} & self.too_late, f"{name} was placed on what {other} has"
                keys = (NODE_KEY, POD_UID_KEY, "NEURON_DEVS", "NEURON_CORES")
                self.server.patch_pod("default", name, {"metadata": {"annotations": dict.fromkeys(keys)}})
                return
        if node in HEARD:
            self.server.patch_pod("default", name, {"metadata": {"annotations": {"NEURON_ALLOCATED": "true"}}})

    def has_room(self, pod: AnyJson, name: str) -> bool:
        allocatable = self.nodes[name]["status"]["allocatable"]
        used: defaultdict[str, int] = defaultdict(int)
        for other in self.pods.values():
            if other["spec"].get("nodeName") == name:
                for key, amount in other["spec"]["containers"][0]["resources"]["requests"].items():
                    used[key] += int(amount)
        asked = pod["spec"]["containers"][0]["resources"]["requests"]
        return all(used[key] + int(amount) <= int(allocatable.get(key, 0)) for key, amount in asked.items())

    @property
    def pods(self) -> dict[str, AnyJson]:
        return {pod["metadata"]["name"]: pod for pod in self.server.objects(SERVED_PODS)}

    @property
    def nodes(self) -> dict[str, AnyJson]:
        return {node["metadata"]["name"]: node for node in self.server.objects(SERVED_NODES)}

    def unbound(self) -> list[AnyJson]:
        return [pod for pod in self.pods.values() if not pod["spec"].get("nodeName")]

    # One step.

    async def step(self) -> None:
        chance, pods = self.chance, self.pods
        self.now += chance.choice((0.0, 0.01, 0.05, 0.3, 2.0))
        self.land_late()  # first: what lands within its time is there when somebody looks after it
        match chance.randrange(30):
            case 0 | 1 if len(pods) < self.most_pods:
                door = chance.choice(("gates", "gates", "second", "claim"))
                self.create(other_gate=door == "gates" and chance.random() < 0.1, door=door)
            case 26 | 27:
                for name, pod in pods.items():
                    if pod["metadata"].get("deletionTimestamp") and chance.random() < 0.7:
                        self.end(name)
            case 3 | 2 if len(pods) < self.most_pods:
                size = chance.choice((2, 3, 4))
                group = f"g{self.names}"
                for _ in range(size):
                    self.create(group=group, size=size, count=chance.choice((4, 4, 8)))
            case 4 if chance.random() < 0.4:
                self.create_other()
            case 5 | 6 if pods:
                self.delete(chance.choice(list(pods)))
            case 7 if len(pods) > self.most_pods:  # busy times and quiet ones: large groups need the latter
                self.most_pods = chance.choice((4, 40))
                while len(self.pods) > self.most_pods:
                    self.delete(min(self.pods, key=number_of))  # what is made again comes last
            case 8 if self.unbound():
                self.edit(chance.choice(self.unbound()))
            case 28:
                self.away ^= {chance.choice(HEARD)}
            case 9 if chance.random() < 0.15:
                self.change_node(chance.choice(NODE_NAMES))
            case 10 if chance.random() < 0.2:
                self.lead(chance.choice([*self.replicas, *self.replicas, None]))
            case 11 if chance.random() < 0.1:
                self.restart(chance.choice(self.replicas))
            case 12 | 13 | 14 | 15:
                free = [pod for pod in self.unbound() if not gates_of(pod)]
                if free:
                    self.schedule(chance.choice(free))
            case _:
                await self.let_work()
        self.check()

    def edit(self, pod: AnyJson) -> None:
        """A user, or another controller, changes a pod that is not bound."""
        if gates_of(pod) - {GATE} and self.chance.random() < 0.7:
            self.open_other_gates(pod)
        else:
            self.change(pod, {"metadata": {"labels": {"edited": str(self.now)}}})

    def open_other_gates(self, pod: AnyJson) -> None:
        ours = [{"name": name} for name in gates_of(pod) & {GATE}]
        self.change(pod, {"spec": {"schedulingGates": ours}})

    def change(self, pod: AnyJson, change: AnyJson) -> None:
        self.server.patch_pod("default", pod["metadata"]["name"], change)

    def delete(self, name: str) -> None:
        """A pod ends, mostly with all of its group."""
        group = self.pods[name]["metadata"].get("annotations", {}).get(GROUP)
        whole = group and self.chance.random() < 0.8
        for other, pod in self.pods.items():
            if other == name or (whole and pod["metadata"].get("annotations", {}).get(GROUP) == group):
                self.end(other)

    def end(self, name: str) -> None:
        """The last container of a pod has stopped. What was evicted is made again; a claim goes with its pod."""
        pod = self.pods[name]
        self.server.delete_pod("default", name, grace_seconds=0)
        if claim := claim_of(pod):
            self.server.patch_status(SERVED_CLAIMS, claim, {"allocation": None, "reservedFor": None}, "default")
            self.server.change(SERVED_CLAIMS, claim, {"metadata": {"finalizers": None}}, "default")
            self.server.delete(SERVED_CLAIMS, claim, "default")
        elif rank := pod["metadata"].get("labels", {}).get(JOB_INDEX):
            self.create_ring(rank)
        elif pod["metadata"].get("deletionTimestamp") and "ownerReferences" in pod["metadata"]:
            self.create()

    def change_node(self, name: str) -> None:
        if name not in self.nodes:
            self.add_node(name)
        elif self.chance.random() < 0.3:
            self.server.delete_node(name)
        else:
            self.add_node(name, sick=tuple(self.chance.sample(range(16), self.chance.choice((0, 0, 1)))))

    def lead(self, replica: Replica | None) -> None:
        """Leadership goes to another replica, which waits out what the last one may have sent."""
        if replica is self.leader:
            return
        if self.leader:
            self.leader.ready.unmet("leader", "not the leader")
            if self.leader.taking_over:  # of this term: the next begins with a list, and takes over again
                self.leader.taking_over.cancel()
                self.leader.taking_over = None
            self.lose_all(self.leader)
        self.leader, self.leads_from = replica, self.now + LANDING
        self.hold_lease()

    def hold_lease(self) -> None:
        holder = str(self.leader.number) if self.leader else ""
        self.server.change(SERVED_LEASES, LEASE, {"spec": {"holderIdentity": holder}}, "kube-system")

    def restart(self, replica: Replica) -> None:
        """A process is killed. The next one may take the Lease over before another replica does."""
        is_leader = replica is self.leader
        replica.ready.unmet("leader", "killed")  # so that nothing of it goes on here
        self.lose_all(replica)
        late = list(self.late)
        self.late.clear()
        for until, request, is_frozen, sender in late:  # its requests end with its connections
            is_over = sender is replica and not is_frozen
            self.late.append((min(until, self.now + CLOSING) if is_over else until, request, is_frozen, sender))
        for task in (replica.busy, replica.taking_over, *replica.binds):
            if task:
                task.cancel()
        replica.start()
        if is_leader:
            self.leader = None
        if is_leader and self.chance.random() < 0.7:
            self.leader, self.leads_from = replica, max(self.leads_from, self.now + CLOSING)
        self.hold_lease()

    def lose_all(self, replica: Replica) -> None:
        """What a replica has sent may land later, and is never answered."""
        for deadline, request, future in replica.flights:
            self.lose(replica, deadline, request, future)
        replica.flights.clear()

    def lose(self, sender: Replica, deadline: float, request: ApiRequest, future: asyncio.Future[Response]) -> None:
        """The answer never comes; the write may land within its time, and rarely after it, from a frozen process."""
        if request.method != "GET" and self.chance.random() < 0.5:
            is_frozen = self.chance.random() < 0.3
            until = self.now + 34.0 * self.chance.random()
            if not is_frozen:
                until = min(until, deadline + self.chance.random() * (LANDING - WRITE))
            if until >= self.now:
                self.late.append((until, request, is_frozen, sender))
        if not future.done():
            error = UnreachableError(request.method, request.path, "no answer", may_have_arrived=True)
            future.set_exception(error)

    def land_late(self) -> None:
        for _ in range(len(self.late)):
            until, request, is_frozen, sender = self.late.popleft()
            if until > self.now:
                self.late.append((until, request, is_frozen, sender))
                continue
            name, known = parse_path(request.path).name, set(self.too_late)
            if is_frozen:
                self.too_late.add(name)
            if self.apply(request).status >= HTTPStatus.BAD_REQUEST:
                self.too_late = known

    async def let_work(self) -> None:
        """A replica sees some changes, works, and gets some answers."""
        replica = self.chance.choice(self.replicas)
        most = self.chance.choice((0, 1, 3, 20))
        replica.follow(most if replica.changes.qsize() <= MOST_BEHIND else None)
        if replica is self.leader and self.now >= self.leads_from:
            if replica.ready.why_not:
                replica.lead()
            else:
                replica.placer.step()
                if self.chance.random() < 0.3 and (replica.busy is None or replica.busy.done()):
                    replica.busy = asyncio.create_task(replica.tend())
        for _ in range(3):
            await asyncio.sleep(0)
        for deadline, request, future in list(replica.flights):
            outcome = self.chance.random()
            if future.done():
                replica.flights.remove((deadline, request, future))
            elif self.now > deadline or outcome < 0.05:
                replica.flights.remove((deadline, request, future))
                self.lose(replica, deadline, request, future)
            elif outcome < 0.6:
                replica.flights.remove((deadline, request, future))
                self.answer(request, future)
        for _ in range(3):
            await asyncio.sleep(0)

    def answer(self, request: ApiRequest, future: asyncio.Future[Response]) -> None:
        future.set_result(Response(500, b"{}") if self.chance.random() < 0.03 else self.apply(request))

    def apply(self, request: ApiRequest) -> Response:
        """What the API server does with a request, and what has to hold of it."""
        target = parse_path(request.path)
        body: AnyJson = dict(request.body or {})
        before = self.pods.get(target.name) if target.kind is SERVED_PODS else None
        response = self.server.answer(request)
        if response.status < HTTPStatus.BAD_REQUEST and target.kind is SERVED_LEASES and request.method == "PATCH":
            for record in read_records(body["metadata"]["annotations"][RECORDS_KEY]):
                if record.group and record.is_for_pod:
                    self.placed_in_group[record.group_name[1]].add(record.name)
        if response.status >= HTTPStatus.BAD_REQUEST or target.kind is not SERVED_PODS:
            return response
        assert before or request.method == "GET"
        if before and request.method == "PATCH" and not target.subresource:
            assert not body.get("spec") or gates_of(before) == {GATE}, f"{target.name} released before other gates went"
            self.check_group(self.pods[target.name])
        elif before and target.subresource == "eviction" and "dryRun" not in body["deleteOptions"]:
            is_movable = before["metadata"].get("annotations", {}).get(MOVABLE_KEY) == "true"
            assert is_movable or before["spec"]["priority"] < 10, f"{target.name} was evicted, and nothing is above it"
            self.evicted += 1
        elif before and target.subresource == "binding":
            self.allocate(target.name)
        return response

    def check_group(self, pod: AnyJson) -> None:
        """No pod of a group is released before all of it have, or had, their place, or it is written down."""
        annotations = pod["metadata"].get("annotations", {})
        if group := annotations.get(GROUP):
            placed = self.placed_in_group[group]
            if NODE_KEY in annotations:
                placed.add(pod["metadata"]["name"])
            if not gates_of(pod):
                assert len(placed) >= int(annotations[f"{GROUP}-size"]), f"group {group} torn: only {placed} placed"

    # What has to hold.

    def held(self) -> Iterator[tuple[str, str, frozenset[int], str]]:
        """Node, pod and cores of each placement that a pod carries, and the node that it is bound to."""
        for pod in self.pods.values():
            annotations, node = pod["metadata"].get("annotations", {}), pod["spec"].get("nodeName", "")
            is_placed = annotations.get(POD_UID_KEY) == pod["metadata"]["uid"]
            devices, cores = annotations.get("NEURON_DEVS"), annotations.get("NEURON_CORES")
            if claim := claim_of(pod):
                names = devices_of(self.server.get(SERVED_CLAIMS, claim, "default")) if node else []
                devices = ",".join(name.removeprefix("neuron-") for name in names)
            if devices or cores:
                ids = (
                    {2 * one + k for one in parse_ids(devices) for k in (0, 1)}
                    if devices
                    else set(parse_ids(cores or ""))
                )
                yield annotations[NODE_KEY] if is_placed else node, pod["metadata"]["name"], frozenset(ids), node

    def check(self) -> None:
        """No core is in two placements of bound pods, and a placed pod is bound where it was placed.

        A pod's rank is the same as long as it lives: a lost pod's place is kept by it.
        """
        used: dict[tuple[str, int], str] = {}
        for node, name, cores, bound_to in self.held():
            if bound_to:
                assert bound_to == node
                for core in cores:
                    other = used.setdefault((node, core), name)
                    # Of claims the driver refuses what another pod has; the second pod does not start.
                    is_refused = node == CLAIM_NODE and {other, name} & self.too_late
                    assert other == name or is_refused, (node, core, other, name)

        for pod in (pod for replica in self.replicas for pod in replica.state.pods.values() if pod.member):
            rank = pod.member.rank if pod.member else None
            assert self.ranks.setdefault(pod.uid, rank) == rank, f"{pod.reference} changes its rank"

    async def settle(self) -> None:
        """Nothing goes wrong any more, and time passes."""
        self.away.clear()
        for name in NODE_NAMES:
            self.add_node(name)
        for pod in self.pods.values():
            if gates_of(pod) - {GATE}:
                self.open_other_gates(pod)
        replica = self.leader or self.replicas[0]
        self.lead(replica)
        self.now = max(self.now, self.leads_from) + LANDING
        self.land_late()
        for second in range(60):
            self.now += 1.0
            replica.follow()
            if replica.ready.why_not:
                replica.lead()
            else:
                replica.placer.step()
                if replica.busy is None or replica.busy.done():
                    replica.busy = asyncio.create_task(replica.tend())
            for _ in range(8):
                await asyncio.sleep(0)
                for flight in list(replica.flights):
                    replica.flights.remove(flight)
                    if not flight[2].done():
                        flight[2].set_result(self.apply(flight[1]))
            if second == UNTANGLED:  # of promises of one core, all but one are taken back before it comes to devices
                self.too_late.clear()
            for name, pod in self.pods.items():
                if pod["metadata"].get("deletionTimestamp"):
                    self.end(name)
            if second >= UNTANGLED:
                for pod in self.unbound():
                    if not gates_of(pod):
                        self.schedule(pod)
            self.check()


def number_of(name: str) -> int:
    """Which pod of all it is, by its name."""
    return int(name.rpartition("-")[2])


def gates_of(pod: AnyJson) -> set[str]:
    return {gate["name"] for gate in pod["spec"].get("schedulingGates", [])}


def claim_of(pod: AnyJson) -> str:
    """The name of a pod's claim; empty without."""
    return next((str(one["resourceClaimName"]) for one in pod["spec"].get("resourceClaims") or ()), "")


def utc_text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
