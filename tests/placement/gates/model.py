"""A cluster in memory in which pods are placed by both doors while everything else goes wrong.

The simulated API server keeps pods, claims and nodes, and answers when the model says so: at once, late, with its
answer lost, or not at all. Two replicas follow it with a delay of their own; one leads. A scheduler binds released pods
late, or never, and asks the extender about pods without the gate; users edit and delete pods; the leader moves and
preempts pods, which end when they like and are made again; nodes lose CPU to other pods, vanish and come back; devices
get sick. What belongs to one subject, with what has to hold there, is in the parts of `model_*`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from http import HTTPStatus
from random import Random
from uuid import UUID

import msgspec
import pytest

from neuron_plugin.allocation import PodReference, PodUid
from neuron_plugin.allocation.keys import GATE, MOVABLE_KEY, NODE_KEY, POD_UID_KEY
from neuron_plugin.allocation.resources import parse_ids
from neuron_plugin.cluster import ApiRequest, UnreachableError
from neuron_plugin.cluster.api import Response
from neuron_plugin.placement.reserves import RECORDS_KEY, read_records
from neuron_plugin.simulation.api_server_kinds import LEASES as SERVED_LEASES
from neuron_plugin.simulation.api_server_kinds import NODES as SERVED_NODES
from neuron_plugin.simulation.api_server_kinds import PODS as SERVED_PODS
from neuron_plugin.simulation.api_server_kinds import RESOURCE_CLAIMS as SERVED_CLAIMS
from neuron_plugin.simulation.api_server_kinds import (
    AnyJson,
    parse_path,
)
from tests.placement.gates.model_checks import NAMESPACE, Checks
from tests.placement.gates.model_hours import Hours
from tests.placement.gates.model_kubelet import Kubelets
from tests.placement.gates.model_part import EPOCH
from tests.placement.gates.model_replica import HEARD, LEASE, Replica
from tests.placement.gates.model_rules import Rules
from tests.placement.gates.model_upkeep import Lookout
from tests.placement.gates.model_users import GROUP, JOB_INDEX, Users, claim_of, gates_of, number_of, requests_of
from tests.simulation.dra import DRIVER, devices_of
from tests.support.api_server import StandInApiServer
from tests.support.manifests import node_manifest

NODE_NAMES = ("a", "b", "c", "d", "claims")
CLAIM_NODE = "claims"
"""Its devices are given by claims, and the kubelet counts none."""
LANDING = 5.0
WRITE = 2.5
"""When a PATCH is given up; the model answers no later."""
CLOSING = 0.5
"""How long after the end of a process the server may still do what it was asked by it."""
MOST_BEHIND = 100
"""Changes that a watch may be behind before all are seen at once: else it would be further behind with each step."""
UNTANGLED = 20
REST, LONGEST_REST = 60, 70
"""Seconds in which all comes to rest, the last ten only if a pod that fits waits until then: things change for ever."""
OFTEN = {"device hours": 0.1, "events": 0.1}
"""How likely a leader begins one of its jobs where it is at work; 0.4 of the others."""
ENDED = ("Failed", "Succeeded")


class Model:
    """The cluster, its two replicas, its scheduler and its users."""

    def __init__(self, seed: int, patch: pytest.MonkeyPatch) -> None:
        patch.setattr("neuron_plugin.simulation.api_server_objects.now_text", self.text)
        ids = Random(seed)  # noqa: S311
        patch.setattr("uuid.uuid4", lambda: UUID(int=ids.getrandbits(128), version=4))
        self.chance = Random(seed)  # noqa: S311
        self.now = 1000.0
        self.ticks = 0
        self.names = 0
        self.server = StandInApiServer()
        self.made: dict[str, AnyJson] = {}
        """The pods of users as they were made, by their UIDs."""
        self.ranks: dict[str, tuple[int, ...] | None] = {}
        """Of pods of groups, by their UIDs."""
        self.evicted = 0
        self.server.create(SERVED_LEASES, {"metadata": {"name": LEASE}, "spec": {}}, "kube-system")
        self.placed_in_group: defaultdict[str, set[str]] = defaultdict(set)
        """By group, the pods that had a place at some time."""
        self.checks, self.lookout = Checks(self, seed), Lookout(self, seed)
        self.rules, self.hours, self.users = Rules(self), Hours(self), Users(self)
        self.parts = (self.checks, self.lookout, self.rules, self.hours, self.users, Kubelets(self))
        for name in NODE_NAMES:
            self.add_node(name)
        for rank in "01":
            self.users.create_ring(rank)
        self.replicas = [Replica(self, number) for number in range(2)]
        self.leader: Replica | None = None
        self.leads_from = 0.0
        self.late: deque[tuple[float, ApiRequest, bool, Replica]] = deque()
        """When writes land of which the sender has given up, whether its process was frozen meanwhile, the sender."""
        self.too_late: set[str] = set()
        """Pods on which a write of a frozen process has landed when another was leading already."""
        self.violations: list[AssertionError] = []
        self.most_pods = 40
        self.away: set[str] = set()
        """Nodes whose plugin is away."""
        self.binding: dict[str, str] = {}
        """Pods that the scheduler has assumed on a node while the extender binds them."""
        self.lead(self.replicas[0])

    def unix_ns(self) -> int:
        self.ticks += 1
        return int((EPOCH + self.now) * 1e9) + self.ticks

    def text(self) -> str:
        return datetime.fromtimestamp(EPOCH + self.now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    async def sleep(self, seconds: float) -> None:
        del seconds
        await asyncio.sleep(0)

    # What happens in the cluster.

    def add_node(self, name: str, sick: tuple[int, ...] = ()) -> None:
        driver = DRIVER if name == CLAIM_NODE else ""
        manifest = node_manifest(name, "trn1.32xlarge", unhealthy=dict.fromkeys(sick, "ECC"), claim_driver=driver)
        manifest["metadata"]["uid"] = f"node-{name}"
        manifest["metadata"]["labels"] |= self.rules.labels(name)
        manifest["status"]["allocatable"] = {**manifest["status"]["allocatable"], "cpu": "64", "pods": "110"}
        manifest["status"]["nodeInfo"] = {"bootID": self.checks.boot_id(name)}
        if name in self.nodes:
            self.server.patch_node(name, {"metadata": {"annotations": manifest["metadata"]["annotations"]}})
        else:
            self.server.create_node(manifest)

    def schedule(self, pod: AnyJson) -> None:
        """What the cluster's scheduler does with a released pod: where it is pinned to, if CPU, counts and rules do."""
        affinity = pod["spec"].get("affinity", {}).get("nodeAffinity")
        names = [name for name in self.nodes if self.has_room(pod, name) and self.rules.allow(pod, name)]
        names = [name for name in names if not self.lookout.refuses(pod, name)]
        name, annotations = pod["metadata"]["name"], pod["metadata"].get("annotations", {})
        if names and not affinity and not annotations.get(POD_UID_KEY):
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
        before = set(replica.state.assumed)
        body = msgspec.json.encode({"Pod": pod, "NodeNames": names})
        answer = msgspec.json.decode(replica.service.answer("filter", body))
        self.chosen(replica, before, filtered=True)
        if passed := answer.get("NodeNames"):
            reference = PodReference(PodUid(metadata["uid"]), "default", metadata["name"])
            node = self.binding[reference.name] = self.chance.choice(passed)
            bind: asyncio.Task[object] = asyncio.create_task(replica.binder.bind(reference, node))
            replica.binds.add(bind)
            bind.add_done_callback(replica.binds.discard)
            bind.add_done_callback(lambda _: self.binding.pop(reference.name, None))

    def allocate(self, name: str) -> None:
        """What the plugin does when a pod comes: one without devices, or whose devices another has, gets others."""
        self.rules.bind_volumes(self.pods[name])
        held = list(self.held())
        placements = {name: (node, cores) for node, name, cores, _ in held}
        bound = {name: cores for node, name, cores, bound_to in held if bound_to}
        node, cores = placements.get(name, ("", frozenset()))
        where = self.pods[name]["spec"]["nodeName"]
        for other in bound.keys() - {name}:
            if placements[other][0] == node and placements[other][1] & cores:
                is_known = {name, other} & (self.too_late | self.lookout.given)
                assert is_known, f"{name} was placed on what {other} has"
                keys = (NODE_KEY, POD_UID_KEY, "NEURON_DEVS", "NEURON_CORES")
                self.server.patch_pod("default", name, {"metadata": {"annotations": dict.fromkeys(keys)}})
                node = ""
                break
        if not node:
            taken = [cores for other, cores in bound.items() if other != name and placements[other][0] == where]
            self.lookout.give(name, frozenset().union(*taken))
        elif node in HEARD:
            self.server.patch_pod("default", name, {"metadata": {"annotations": {"NEURON_ALLOCATED": "true"}}})

    def has_room(self, pod: AnyJson, name: str) -> bool:
        allocatable = self.nodes[name]["status"]["allocatable"]
        used: defaultdict[str, int] = defaultdict(int)
        for other in self.server.objects(SERVED_PODS):
            if other["spec"].get("nodeName") == name and other["status"].get("phase") not in ENDED:
                for key, amount in requests_of(other).items():
                    used[key] += amount
        return all(used[key] + amount <= int(allocatable.get(key, 0)) for key, amount in requests_of(pod).items())

    @property
    def pods(self) -> dict[str, AnyJson]:
        """Those of users, by their names."""
        pods = self.server.objects(SERVED_PODS)
        return {pod["metadata"]["name"]: pod for pod in pods if pod["metadata"]["namespace"] != NAMESPACE}

    @property
    def nodes(self) -> dict[str, AnyJson]:
        return {node["metadata"]["name"]: node for node in self.server.objects(SERVED_NODES)}

    def unbound(self) -> list[AnyJson]:
        return [pod for pod in self.pods.values() if not pod["spec"].get("nodeName")]

    def chosen(self, replica: Replica, before: Collection[str], *, filtered: bool = False) -> None:
        """A replica has chosen nodes for pods: what no part of the model may find wrong, by what the replica sees.

        Of nodes that a scheduler has filtered it need not look at the scheduler's rules.
        """
        for uid, assumed in replica.state.assumed.items():
            if uid not in before and assumed.pod.uid in self.made:
                for part in self.parts if not filtered else [self.checks, self.lookout]:
                    part.chosen(replica, assumed.pod, assumed.pod.place)

    # One step.

    async def step(self) -> None:
        chance, pods = self.chance, self.pods
        self.now += chance.choice((0.0, 0.01, 0.05, 0.3, 2.0))
        self.land_late()  # first: what lands within its time is there when somebody looks after it
        for part in self.parts:
            part.tick()
        match chance.randrange(30):
            case 0 | 1 if len(pods) < self.most_pods:
                self.users.create_any()
            case 26 | 27:
                for name, pod in pods.items():
                    if pod["metadata"].get("deletionTimestamp") and chance.random() < 0.7:
                        self.end(name)
            case 3 | 2 if len(pods) < self.most_pods:
                self.users.create_group()
            case 4 if chance.random() < 0.4:
                self.users.create_other()
            case 29 | 22 | 23 | 24:
                chance.choice(self.parts).act()
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
            case 12 | 13 | 14 | 15 | 16 | 17:
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
            self.users.create_ring(rank)
        elif pod["metadata"].get("deletionTimestamp") and "ownerReferences" in pod["metadata"]:
            self.users.create()

    def change_node(self, name: str) -> None:
        self.lookout.changed[name] = self.now
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
        for task in (*replica.tasks.values(), replica.taking_over, *replica.binds):
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
            target, known = parse_path(request.path), set(self.too_late)
            if is_frozen:
                body: AnyJson = dict(request.body or {})
                self.too_late.add(target.name or body["metadata"]["name"])
            if self.apply(request, sender).status >= HTTPStatus.BAD_REQUEST:
                self.too_late = known

    async def let_work(self) -> None:
        """A replica sees some changes, works, and gets some answers."""
        replica = self.chance.choice([*self.replicas, self.leader or self.replicas[0]])
        most = self.chance.choice((0, 1, 3, 20))
        replica.follow(most if replica.changes.qsize() <= MOST_BEHIND else None)
        if replica is self.leader and self.now >= self.leads_from:
            if replica.ready.why_not:
                replica.lead()
            else:
                replica.place()
                replica.work(name for name in replica.jobs if self.chance.random() < OFTEN.get(name, 0.4))
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
                self.answer(request, future, replica)
        for _ in range(3):
            await asyncio.sleep(0)

    def answer(self, request: ApiRequest, future: asyncio.Future[Response], sender: Replica) -> None:
        future.set_result(Response(500, b"{}") if self.chance.random() < 0.03 else self.apply(request, sender))

    def apply(self, request: ApiRequest, sender: Replica) -> Response:
        """What the API server does with a request, and what has to hold of it."""
        if answer := self.lookout.answer(request):
            return answer
        target = parse_path(request.path)
        body: AnyJson = dict(request.body or {})
        before = self.pods.get(target.name) if target.kind is SERVED_PODS else None
        for part in self.parts:
            part.asked(sender, request, target)
        response = self.server.answer(request)
        if response.status < HTTPStatus.BAD_REQUEST:
            for part in self.parts:
                part.done(request, target, before)
        if response.status < HTTPStatus.BAD_REQUEST and target.kind is SERVED_LEASES and request.method == "PATCH":
            for record in read_records(body["metadata"]["annotations"][RECORDS_KEY]):
                if record.group and record.is_for_pod:
                    self.placed_in_group[record.group_name[1]].add(record.name)
        if response.status >= HTTPStatus.BAD_REQUEST or target.kind is not SERVED_PODS:
            return response
        if before and request.method == "PATCH" and not target.subresource:
            assert not body.get("spec") or gates_of(before) == {GATE}, f"{target.name} released before other gates went"
            self.check_group(self.pods[target.name])
        elif before and target.subresource == "eviction" and "dryRun" not in body["deleteOptions"]:
            is_movable = before["metadata"].get("annotations", {}).get(MOVABLE_KEY) == "true"
            may_go = is_movable or before["spec"]["priority"] < 10 or self.lookout.ignores_disruption(before)
            assert may_go, f"{target.name} was evicted, and nothing is above it"
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
        yield from self.checks.held()
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
                yield (
                    annotations.get(NODE_KEY, node) if is_placed else node,
                    pod["metadata"]["name"],
                    frozenset(ids),
                    node,
                )

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
        for part in self.parts:
            part.check()
        for violation in self.violations:
            raise violation

    def fit_and_wait(self, replica: Replica) -> Iterator[str]:
        """Pods without a group that our gate alone holds back although they fit."""
        for name, pod in self.pods.items():
            waiting = replica.state.pods.get(PodUid(pod["metadata"]["uid"]))
            if waiting and gates_of(pod) == {GATE} and not waiting.group and waiting.uid not in replica.state.assumed:
                best = replica.state.scene().best(waiting)
                if best and not replica.state.refusal(waiting):
                    yield f"{name} fits {best} and waits"

    async def settle(self) -> None:
        """Nothing goes wrong any more, and time passes."""
        self.away.clear()
        for name in NODE_NAMES:
            self.add_node(name)
        for part in self.parts:
            part.calm()
        for pod in self.pods.values():
            if gates_of(pod) - {GATE}:
                self.open_other_gates(pod)
        replica = self.leader or self.replicas[0]
        self.lead(replica)
        self.now = max(self.now, self.leads_from) + LANDING
        self.land_late()
        for second in range(LONGEST_REST):
            if second >= REST and not any(self.fit_and_wait(replica)):
                break
            self.now += 1.0
            replica.follow()
            if replica.ready.why_not:
                replica.lead()
            else:
                replica.place()
                replica.work(replica.jobs)
            for _ in range(8):
                await asyncio.sleep(0)
                for flight in list(replica.flights):
                    replica.flights.remove(flight)
                    if not flight[2].done():
                        flight[2].set_result(self.apply(flight[1], replica))
            if second == UNTANGLED:  # of promises of one core, all but one are taken back before it comes to devices
                self.too_late.clear()
            for name, pod in self.pods.items():
                if pod["metadata"].get("deletionTimestamp"):
                    self.end(name)
            for part in self.parts:
                part.rest()
            if second >= UNTANGLED:
                for pod in self.unbound():
                    if not gates_of(pod):
                        self.schedule(pod)
            self.check()
