"""One controller of the model: all that leads, and what it has seen of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from neuron_plugin.allocation import NeuronPod
from neuron_plugin.backoff import Clock
from neuron_plugin.cluster import ApiRequest, LeaseName
from neuron_plugin.cluster.api import Response
from neuron_plugin.cluster.claims import RESOURCE_CLAIMS as CLAIM_RECORDS
from neuron_plugin.cluster.claims import neuron_claim
from neuron_plugin.cluster.pods import PODS as POD_RECORDS
from neuron_plugin.placement.claims import ClaimedPods, ClaimWriter
from neuron_plugin.placement.context import Context
from neuron_plugin.placement.device_hours import DeviceHours
from neuron_plugin.placement.events import NodeEvents
from neuron_plugin.placement.extender.binding import Binder
from neuron_plugin.placement.extender.filter import Leads
from neuron_plugin.placement.extender.server import ExtenderService
from neuron_plugin.placement.gates.placer import Placer
from neuron_plugin.placement.gates.upkeep import Upkeep
from neuron_plugin.placement.group_checks import GroupChecks
from neuron_plugin.placement.informers import keep_pod, machines_of, show_pod
from neuron_plugin.placement.leadership import CONDITION, SYNCED, Readiness
from neuron_plugin.placement.planner import Planner
from neuron_plugin.placement.preflight import PreflightChecks
from neuron_plugin.placement.room import Room
from neuron_plugin.placement.writer import Writer
from neuron_plugin.planning import MoveRules
from neuron_plugin.simulation.api_server_kinds import (
    CLAIMS,
    EVENTS,
    STORAGE_CLASSES,
    VOLUMES,
    AnyJson,
)
from neuron_plugin.simulation.api_server_kinds import NODES as SERVED_NODES
from neuron_plugin.simulation.api_server_kinds import PODS as SERVED_PODS
from neuron_plugin.simulation.api_server_kinds import RESOURCE_CLAIMS as SERVED_CLAIMS
from neuron_plugin.simulation.api_server_store import Inbox, ObjectChange
from tests.placement.gates.model_checks import NAMESPACE
from tests.placement.gates.model_upkeep import TIMES
from tests.simulation.dra import DRIVER
from tests.support.world import World

if TYPE_CHECKING:
    from tests.placement.gates.model import Model

LEASE = "neuron-extender"
HEARD = ("a", "b")
"""Nodes whose plugin renews a Lease."""
WATCHED = (SERVED_NODES, SERVED_PODS, SERVED_CLAIMS, CLAIMS, VOLUMES, STORAGE_CLASSES)
KEPT = {kind.kind: kind.plural for kind in WATCHED[3:]}


class WatchedPlacer(Placer):
    """A placer whose pods that are handed over are looked at when that is decided."""

    def __init__(self, replica: Replica, context: Context, writer: Writer, room: Room, checks: GroupChecks) -> None:
        super().__init__(context, writer, room, checks)
        self._replica = replica

    def release_plainly(self, pod: NeuronPod, reason: str) -> None:
        self._replica.model.lookout.handed_over(self._replica, pod)
        super().release_plainly(pod, reason)


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
        self.changes = server.follow(*WATCHED)
        self.joined = ClaimedPods(DRIVER, partial(show_pod, self.state))
        self.seen: dict[str, Any] = {}
        self.nodes: dict[str, AnyJson] = {}
        """As the watch has shown them."""
        self.kept: dict[str, set[str]] = {plural: set() for plural in KEPT.values()}
        self.state.check(model.checks.scope)
        for kind in WATCHED:
            for manifest in server.objects(kind):
                self.show(manifest, gone=False)
        self.ready = Readiness({SYNCED: "", CONDITION: "not the leader"})
        clock = Clock(now=lambda: model.now, sleep=model.sleep)
        self.context = context = Context(
            self,
            self.state,
            self.ready,
            str(self.number),
            times=TIMES,
            clock=clock,
            unix_seconds=lambda: model.unix_ns() / 1e9,
        )
        self.writer = Writer(context, claims=ClaimWriter(self, DRIVER, self.joined.claims, context.unix_ns))
        lease = LeaseName("kube-system", LEASE, str(self.number))
        self.room = Room(context, self.writer, lease=lease, evictions_per_minute=100)
        self.group_checks = GroupChecks(context, self.writer, model.checks.settings, NAMESPACE)
        self.placer = WatchedPlacer(self, context, self.writer, self.room, self.group_checks)
        self.upkeep = Upkeep(context, self.writer, self.placer, release_when_full=model.lookout.release_when_full)
        self.planner = Planner(context, self.room, rules=MoveRules(), after_seconds=2.0, makes_moves=True)
        self.leads = Leads(context, self.writer)
        self.binder = Binder(context, self.writer, self.leads)
        self.service = ExtenderService(context, self.binder, self.leads)
        self.hours = DeviceHours(context, NAMESPACE)
        preflight = PreflightChecks(context, self.writer, model.checks.settings, model.checks.scope.namespace)
        self.jobs: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "room": self.tend,
            "upkeep": self.upkeep.look,
            "group checks": self.group_checks.look,
            "device hours": self.hours.look,
            "events": NodeEvents(context).look,
            **({"preflight": preflight.look} if model.checks.scope.namespace else {}),
        }
        """What a leader does beside placing, each thing one time after the other."""
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.taking_over: asyncio.Task[None] | None = None
        self.binds: set[asyncio.Task[object]] = set()

    async def request(self, request: ApiRequest, *, timeout_seconds: float) -> Response:
        """An ``ApiServer``: the model answers when it likes, but not later than the time-out."""
        try:
            for part in self.model.parts:
                part.sent(self, request)
        except AssertionError as error:  # whoever has sent it must not catch that
            self.model.violations.append(error)
        if request.method == "POST" and request.path.startswith(EVENTS.group):
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
            found = None if gone else keep_pod(POD_RECORDS.decode(msgspec.json.encode(manifest)), claims=True)
            self.joined.put_pod(metadata["uid"], self.seen.pop(metadata["uid"], None), found)
            if found:
                self.seen[metadata["uid"]] = found
        elif manifest["kind"] == "ResourceClaim":
            record = CLAIM_RECORDS.decode(msgspec.json.encode(manifest))
            self.joined.put_claim((record.namespace, record.name), None if gone else neuron_claim(record, DRIVER))
        elif plural := KEPT.get(manifest["kind"]):
            self.kept[plural].add(metadata["uid"])
            self.world.show_kept(plural, manifest)
            if gone:
                self.kept[plural].discard(metadata["uid"])
                self.world.kept_gone(plural, self.kept[plural])
        elif gone:
            self.nodes.pop(metadata["name"], None)
            self.state.remove_node(metadata["name"], metadata["uid"])
        else:
            self.nodes[metadata["name"]] = manifest
            self.model.checks.see_node(self, manifest)
            self.world.show_node(manifest)
        self.joined.see_machines(machines_of(self.state, DRIVER))

    async def tend(self) -> None:
        await self.room.tend()
        await self.binder.settle()
        await self.planner.look()

    def work(self, names: Iterable[str]) -> None:
        """Do these jobs, unless they are being done."""
        for name in names:
            if name not in self.tasks or self.tasks[name].done():
                if name in self.tasks:
                    self.tasks[name].result()
                self.tasks[name] = asyncio.create_task(self.jobs[name](), name=name)

    def place(self) -> None:
        """A step of the placer; what it has chosen has to be good as far as this replica can see."""
        before = set(self.state.assumed)
        self.placer.step()
        self.model.chosen(self, before)

    async def take_over(self) -> None:
        for successor in (self.writer, self.group_checks, self.hours, self.room):
            await successor.take_over()

    def lead(self) -> None:
        """Take over what the last leader has reserved, and then be ready."""
        if self.taking_over is None:
            self.follow()  # a new leader lists consistently
            self.taking_over = asyncio.create_task(self.take_over())
        elif self.taking_over.done():
            self.taking_over = None
            self.ready.met("leader")
