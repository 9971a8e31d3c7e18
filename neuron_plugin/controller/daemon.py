"""The extender put together: informers, election, binds and the servers, from start to SIGTERM.

The order of the end matters: unready first, so that the scheduler's Service stops sending; then watchers are sent away
and binds under way are waited for; only then the Lease is given up and the server closed.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NoReturn, Protocol

from aiohttp.typedefs import Middleware
from aiohttp.web import RouteDef
from prometheus_client import Metric

from neuron_plugin.backoff import CLOCK, keep_running
from neuron_plugin.cluster import ApiServer, Election, LeaseName
from neuron_plugin.cluster.leases import Terms
from neuron_plugin.controller.settings import ExtenderSettings, MakeRoom
from neuron_plugin.decision_log import DecisionLog, decisions_document
from neuron_plugin.extender.binding import Binder, BindTimes
from neuron_plugin.extender.server import ExtenderService, ServerCertificate, redirect_to_leader, verb_routes
from neuron_plugin.gates.claims import ClaimWriter
from neuron_plugin.gates.demand_pods import DemandPods, PlaceholderForm
from neuron_plugin.gates.placer import Placer
from neuron_plugin.gates.upkeep import Upkeep
from neuron_plugin.gates.webhook import application as webhook_application
from neuron_plugin.http_server import ProbeAnswer, serving, status_application
from neuron_plugin.monitor.api import Monitor
from neuron_plugin.monitor.pages import inspection_routes
from neuron_plugin.monitor.use import use_metric
from neuron_plugin.planning import RULES, MoveRules
from neuron_plugin.scheduling.events import PERIOD_SECONDS, PodEvents
from neuron_plugin.scheduling.informers import Informers, InformerTimes
from neuron_plugin.scheduling.leadership import (
    CONDITION,
    ELECTION,
    NOT_LEADER,
    NOT_READ,
    SYNCED,
    Leadership,
    Readiness,
)
from neuron_plugin.scheduling.make_room import RoomPlanner, RoomTimes
from neuron_plugin.scheduling.metrics import ExtenderMetrics, state_metrics
from neuron_plugin.scheduling.moving import Mover
from neuron_plugin.scheduling.state import ClusterState
from neuron_plugin.topology import Catalogue, product_names

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ControllerTimes:
    """The times of the parts, and those of the daemon itself, in seconds. ``binds.answer`` is the setting's instead.

    ``events``: between two looks at what closes nodes. ``settle``: between two looks at assumed pods. ``leases``: how
    long a start waits for the plugins' Leases, which it need not have the right to read. ``idle``: longer than Go keeps
    idle connections (90 s), so that the scheduler never writes into one that is just being closed.

    ``drain`` is for the binds at the end, of the five seconds a shutdown may take: giving up the Lease may take two,
    closing the servers some tenths. A bind that is not decided by then is answered as undecided, and the next process
    finds what became of it.
    """

    terms: Terms = field(default_factory=Terms)
    binds: BindTimes = field(default_factory=BindTimes)
    informers: InformerTimes = field(default_factory=InformerTimes)
    room: RoomTimes = field(default_factory=RoomTimes)
    events: float = PERIOD_SECONDS
    settle: float = 1.0
    leases: float = 1.0
    idle: float = 120.0
    drain: float = 2.0


TIMES = ControllerTimes()


class Pages(Protocol):
    """Further pages of the health port, about a state that the daemon keeps."""

    def routes(self, state: ClusterState, api: ApiServer | None = None) -> list[RouteDef]:
        """What is served; ``api`` is asked for what the state does not have."""

    def guard(self) -> list[Middleware]:
        """What every request of the port goes through."""

    async def run(self, state: ClusterState) -> NoReturn:
        """What the pages need to be done meanwhile."""


class ExtenderDaemon:
    """One replica of the extender; ``run`` ends when ``stop`` is set. It is the ``Status`` of its HTTP servers."""

    def __init__(
        self,
        settings: ExtenderSettings,
        types: Catalogue,
        api: ApiServer,
        *,
        times: ControllerTimes = TIMES,
        pages: Pages | None = None,
    ) -> None:
        """Nothing runs or is read before ``run``."""
        self._settings = settings
        self._times = times
        self._api = api
        self._pages = pages
        self._identity = settings.identity or socket.gethostname()
        self._metrics = ExtenderMetrics()
        unmet = {SYNCED: "the first lists are not in yet", CONDITION: NOT_LEADER}
        self.ready = Readiness(unmet | ({ELECTION: NOT_READ} if settings.leader_election else {}))
        # So fine that no two replicas number different changes alike.
        self.state = ClusterState(time.time_ns(), product_names(types))
        self._monitor = Monitor(self.state, self.ready)
        namespace = settings.lease_namespace if settings.plugin_leases else ""
        driver = settings.dra_driver
        self._informers = Informers(
            api, self.state, types, self._metrics, lease_namespace=namespace, dra_driver=driver, times=times.informers
        )
        decisions = DecisionLog()
        lease = LeaseName(settings.lease_namespace, settings.lease_name, self._identity, url=settings.url)
        per_minute = settings.make_room_evictions_per_minute
        rules = MoveRules(most_victims=min(RULES.most_victims, per_minute), by_priority=settings.make_room_by_priority)
        mover = None
        if settings.leader_election:  # the leader's Lease keeps what is reserved
            mover = Mover(
                api,
                self.state,
                self.ready,
                self._metrics,
                decisions,
                lease=lease,
                instance=self._identity,
                rules=rules,
                evictions_per_minute=per_minute,
            )
        self._leadership = Leadership(
            self.ready,
            self._informers,
            landing_seconds=times.binds.landing,
            patience_seconds=times.terms.renew_deadline,
            successor=mover,
        )
        self._election: Election | None = None
        if settings.leader_election:
            self._election = Election(api, lease, self._leadership, settled=self._settled, terms=times.terms)
        self.binder = Binder(
            self.state,
            api,
            self.ready,
            election=self._election,
            dialects=settings.dialects,
            strategy=settings.placement,
            decisions=decisions,
            times=replace(times.binds, answer=settings.answer_seconds),
        )
        self.service = ExtenderService(
            self.state,
            self.binder,
            self.ready,
            self._metrics,
            answer=settings.answer,
            preempt_unoffered=settings.preempt_unoffered,
        )
        claims = None
        if settings.dra_driver:
            claims = ClaimWriter(api, settings.dra_driver, self._informers.claims, time.time_ns)
        self._placer = Placer(
            api,
            self.state,
            self.ready,
            self._metrics,
            instance=self._identity,
            election=self._election,
            dialects=settings.dialects,
            strategy=settings.placement,
            decisions=decisions,
            claims=claims,
        )
        self._upkeep = Upkeep(
            api,
            self.state,
            self.ready,
            self._placer,
            instance=self._identity,
            release_when_full=settings.release_after,
        )
        self._demand: DemandPods | None = None
        if settings.demand_image:
            form = PlaceholderForm(settings.lease_namespace, settings.demand_image, settings.demand_priority_class)
            self._demand = DemandPods(api, self.ready, self._upkeep, form, instance=self._identity)
        self._events = PodEvents(
            api, self.state, self.ready, self._metrics, instance=self._identity, period_seconds=times.events
        )
        self._room = RoomPlanner(
            api,
            self.state,
            self.ready,
            self._metrics,
            rules=rules,
            after_seconds=settings.make_room_after,
            instance=self._identity,
            strategy=settings.placement,
            mover=mover,
            plans_moves=settings.make_room is not MakeRoom.OFF,
            makes_moves=settings.make_room is MakeRoom.ACT,
            times=times.room,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set, then leave in order.

        What only reports is started again after an error. An error in anything else ends this replica; another leads.

        Raises:
            OSError: an address cannot be listened on, or a certificate not be read.
        """
        async with self._serving(), asyncio.TaskGroup() as group:
            jobs: dict[str, Coroutine[None, None, None]] = {
                "informers": self._informers.run(),
                "settle": self._settle(),
                "synced": self._synced(),
                "gates": self._placer.run(),
                "upkeep": keep_running("upkeep", self._upkeep.run),
                "events": keep_running("events", self._events.run),
                "room": keep_running("room", self._room.run),
            }
            if self._demand:
                jobs["demand"] = keep_running("demand", self._demand.run)
            if self._election:
                jobs |= {"election": self._election.run(), "leadership": self._leadership.run()}
            else:
                jobs["lead"] = self._leadership.lead_alone()
            if self._pages:
                jobs["pages"] = keep_running("pages", partial(self._pages.run, self.state))
            tasks = [group.create_task(job, name=name) for name, job in jobs.items()]
            await stop.wait()
            _log.info("stopping", extra={"binds_under_way": self.binder.under_way})
            self.ready.unmet("stopping", "this replica is shutting down")
            self._monitor.stop()
            try:
                async with asyncio.timeout(self._times.drain):
                    await self.binder.drain()
                    await self._placer.drain()
            except TimeoutError:
                _log.warning("binds left undecided", extra={"binds_under_way": self.binder.under_way})
            for task in tasks:
                task.cancel()

    async def liveness(self) -> ProbeAnswer:
        """Alive while the event loop answers: an outage of the API server is no reason for a restart."""
        return ProbeAnswer()

    async def readiness(self) -> ProbeAnswer:
        """Ready when synced and leading.

        A kubelet asks with ``?exclude=leader``: a standby that can take over or name the leader is as good.
        """
        return ProbeAnswer(self.ready.conditions)

    def collect(self) -> Iterable[Metric]:
        """Every metric family; called in a scrape's thread."""
        leading = not self.ready.conditions[CONDITION]
        yield from self._metrics.registry.collect()
        yield use_metric(list(self.state.nodes.values()) if leading else [])
        yield from state_metrics(
            self.state,
            leading=leading,
            ages=self._informers.ages(),
            unseen=self.binder.assumed.unseen(),
            under_way=self.binder.under_way,
            endings=self.binder.assumptions.endings,
            now=CLOCK.now(),
            unix_now=time.time(),
        )

    def decisions(self) -> bytes:
        """What was bound lately and what else there was; worked out now, some 10 ms in all, in a thread."""
        return decisions_document(self.binder.decisions)

    async def _synced(self) -> None:
        """Serve once the first lists are in, and take what they brought out of the collector's sight.

        It lives long and holds no cycles, and each full collection went through all of it with the loop stopped:
        0.1-0.2 s with 5000 nodes, under 1 ms without them. What is replaced later is still freed at once. Nothing is
        collected first, as at this moment there was no garbage to find, only 0.1 s to lose.
        """
        await self._informers.synced()
        await self._informers.leases_listed(self._times.leases)
        self.ready.met(SYNCED)
        gc.freeze()

    async def _settle(self) -> None:
        while True:
            await self.binder.settle()
            await asyncio.sleep(self._times.settle)

    def _settled(self) -> bool:
        """Whether nothing that this replica wrote may still take effect."""
        return not (self.binder.under_way or self._placer.under_way) and all(
            pod.confirmed or pod.expected for pod in self.state.assumed.values()
        )

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        """All servers, up for the length of the block."""
        settings = self._settings
        app = status_application(self, max_body_bytes=settings.max_body_mib << 20)
        app.add_routes(verb_routes(self.service))
        app.add_routes([*self._monitor.routes(), *inspection_routes(self.state, self._api)])
        if self._election:
            app.middlewares.append(redirect_to_leader(self._election))
        health_app = status_application(self)
        health_app.add_routes([*self._monitor.routes(), *inspection_routes(self.state, self._api)])
        if self._pages:
            health_app.add_routes(self._pages.routes(self.state, self._api))
            health_app.middlewares.extend(self._pages.guard())
        async with AsyncExitStack() as stack:
            tls = stack.enter_context(self._certificate(settings.client_ca))
            served = serving(app, settings.address, settings.port, tls=tls, idle_seconds=self._times.idle)
            self.port = await stack.enter_async_context(served)
            if settings.webhook_port:
                tls = stack.enter_context(self._certificate(None))
                application = webhook_application(claims=bool(settings.dra_driver))
                served = serving(application, settings.address, settings.webhook_port, tls=tls)
                await stack.enter_async_context(served)
            _log.info("serving", extra={"address": settings.address, "port": self.port, "tls": settings.tls})
            served = serving(health_app, settings.health_address, settings.health_port)
            self.health_port = await stack.enter_async_context(served)
            yield

    @contextmanager
    def _certificate(self, client_ca: Path | None) -> Iterator[ssl.SSLContext | None]:
        """How a port is served by TLS, its certificate read again when it changes; None without one."""
        if not (self._settings.tls_cert and self._settings.tls_key):
            yield None
            return
        certificate = ServerCertificate(self._settings.tls_cert, self._settings.tls_key, client_ca)
        watching = asyncio.create_task(certificate.watch(), name="certificate")
        try:
            yield certificate.context
        finally:
            watching.cancel()
