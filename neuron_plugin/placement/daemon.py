"""The placement controller put together: informers, election, the placer, binds and the servers, from start to SIGTERM.

The order of the end matters. First the controller turns unready, so that the scheduler's Service stops sending. Then it
sends watchers away, and waits for writes under way. Only then it gives up the Lease and closes the server.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from aiohttp.typedefs import Middleware
from aiohttp.web import RouteDef
from prometheus_client import Metric

from neuron_plugin.allocation.keys import PREFLIGHT_KEY
from neuron_plugin.allocation.preflight import CheckScope
from neuron_plugin.backoff import CLOCK, every, keep_running
from neuron_plugin.build import build
from neuron_plugin.cluster import ApiServer, Election, LeaseName
from neuron_plugin.cluster.leases import LEADER_LEASE, Terms
from neuron_plugin.decision_log import DecisionLog, decisions_document
from neuron_plugin.http_server import ProbeAnswer, serving, status_application
from neuron_plugin.placement.claims import ClaimWriter
from neuron_plugin.placement.context import Context, Times
from neuron_plugin.placement.device_hours import DeviceHours
from neuron_plugin.placement.events import NodeEvents
from neuron_plugin.placement.extender.binding import Binder
from neuron_plugin.placement.extender.filter import LeadEnding, Leads
from neuron_plugin.placement.extender.server import BODY_SECONDS, MOST_BODY_BYTES, VERBS, ExtenderService, verb_routes
from neuron_plugin.placement.gates.placer import Placer
from neuron_plugin.placement.gates.upkeep import Upkeep
from neuron_plugin.placement.gates.webhook import application as webhook_application
from neuron_plugin.placement.group_checks import GroupChecks
from neuron_plugin.placement.informers import Informers, InformerTimes
from neuron_plugin.placement.leadership import (
    CONDITION,
    ELECTION,
    NOT_LEADER,
    NOT_READ,
    SYNCED,
    Leadership,
    Readiness,
    redirect_to_leader,
)
from neuron_plugin.placement.metrics import METRICS, device_seconds, new_counts, state_samples
from neuron_plugin.placement.planner import Planner
from neuron_plugin.placement.preflight import PreflightChecks
from neuron_plugin.placement.room import Room
from neuron_plugin.placement.server_certificate import ServerCertificate
from neuron_plugin.placement.settings import ExtenderSettings, MakeRoom
from neuron_plugin.placement.state import ClusterState
from neuron_plugin.placement.writer import Writer
from neuron_plugin.planning import MoveRules
from neuron_plugin.topology import Catalogue, product_names

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ControllerTimes:
    """The times of the parts and of the daemon itself, in seconds.

    ``settle``: between two looks at assumed pods; ``device_hours``: between two looks at the use of devices.
    ``leases``: how long a start waits for the plugins' Leases, which it need not have the right to read. ``idle``:
    longer than Go keeps idle connections (90 s), so that the scheduler never writes into one that is just being closed.

    ``drain`` is for the writes at the end, of the five seconds a shutdown may take: giving up the Lease may take two,
    closing the servers some tenths. A write that is not decided by then is answered as undecided, and the next process
    finds its result.
    """

    terms: Terms = field(default_factory=Terms)
    placing: Times = field(default_factory=Times)
    informers: InformerTimes = field(default_factory=InformerTimes)
    settle: float = 1.0
    device_hours: float = 15.0
    leases: float = 1.0
    idle: float = 120.0
    drain: float = 2.0


TIMES = ControllerTimes()


class Pages(Protocol):
    """Further pages about a state that the daemon keeps: the monitor API, explanations, the live page."""

    on_both_ports: bool
    """Whether they are served on the scheduler's port, too, and not on the health port alone."""

    def routes(self, state: ClusterState, api: ApiServer, ready: Readiness) -> list[RouteDef]:
        """The routes to serve; ``api`` is asked for facts that the state does not have."""

    def guard(self) -> list[Middleware]:
        """The middlewares of every request of the health port."""

    def metrics(self, state: ClusterState, *, leading: bool) -> Iterable[Metric]:
        """The metrics of the pages; called in a scrape's thread."""

    async def run(self, state: ClusterState) -> None:
        """Background work of the pages, until cancelled."""

    def stop(self) -> None:
        """The daemon ends: send watchers away."""


class ExtenderDaemon:
    """One replica of the controller; ``run`` ends when ``stop`` is set. It is the ``Status`` of its HTTP servers."""

    def __init__(
        self,
        settings: ExtenderSettings,
        types: Catalogue,
        api: ApiServer,
        *,
        times: ControllerTimes = TIMES,
        pages: Sequence[Pages] = (),
    ) -> None:
        """Nothing runs or is read before ``run``."""
        self._api = api
        self._settings = settings
        self._times = times
        self._pages = pages
        identity = settings.identity or socket.gethostname()
        unmet = {SYNCED: "the first lists are not in yet", CONDITION: NOT_LEADER}
        self.ready = Readiness(unmet | ({ELECTION: NOT_READ} if settings.leader_election else {}))
        # Fine enough that no two replicas give different changes the same number.
        self.state = ClusterState(
            time.time_ns(),
            product_names(types),
            strategy=settings.placement,
            preferences=settings.preferences,
            levels=settings.topology_levels,
        )
        self._metrics = new_counts()
        self._informers = Informers(
            api,
            self.state,
            types,
            self._metrics,
            lease_namespace=settings.lease_namespace if settings.plugin_leases else "",
            dra_driver=settings.dra_driver,
            times=times.informers,
        )
        checked, by_claims = CheckScope(), bool(settings.dra_driver and settings.preflight.claim_template)
        if settings.preflight.pod:
            checked = CheckScope(settings.lease_namespace, groups=settings.preflight.checks_groups, claims=by_claims)
        self.state.check(checked)
        annotations = {PREFLIGHT_KEY: checked.text}
        lease = LeaseName(settings.lease_namespace, LEADER_LEASE, identity, url=settings.url, annotations=annotations)
        self._leadership = Leadership(
            self.ready,
            self._informers,
            landing_seconds=times.placing.landing,
            patience_seconds=times.terms.renew_deadline,
        )
        self._election: Election | None = None
        if settings.leader_election:
            self._election = Election(api, lease, self._leadership, settled=self._settled, terms=times.terms)
        context = Context(
            api,
            self.state,
            self.ready,
            identity,
            metrics=self._metrics,
            decisions=DecisionLog(),
            election=self._election,
            times=replace(times.placing, reserve=settings.group_reserve),
        )
        self._context = context
        claims = None
        if settings.dra_driver:
            claims = ClaimWriter(api, settings.dra_driver, self._informers.claims, context.unix_ns)
        self._writer = Writer(context, settings.dialects, claims)
        per_minute = settings.make_room_evictions_per_minute
        rules = MoveRules(
            most_victims=min(MoveRules().most_victims, per_minute), by_priority=settings.make_room_by_priority
        )
        # The leader's Lease keeps the reservations: without an election no pod is evicted.
        self._room = Room(
            context,
            self._writer,
            lease=lease if settings.leader_election else None,
            rules=rules,
            evictions_per_minute=per_minute,
        )
        self._leads = Leads(context, self._writer)
        self.binder = Binder(context, self._writer, self._leads)
        self.service = ExtenderService(
            context, self.binder, self._leads, answer=settings.answer, strategy=settings.placement
        )
        self._group_checks = GroupChecks(context, self._writer, settings.preflight, checked.namespace)
        self._device_hours = DeviceHours(context, settings.lease_namespace) if settings.device_hours else None
        accounts = [self._device_hours] if self._device_hours else []
        # The room comes last: it forgets the records it has read unless this replica leads soon.
        self._leadership.successors = (self._writer, self._group_checks, *accounts, self._room)
        self._placer = Placer(context, self._writer, self._room, self._group_checks)
        self._upkeep = Upkeep(context, self._writer, self._placer, release_when_full=settings.release_after)
        self._events = NodeEvents(context)
        self._preflight = PreflightChecks(context, self._writer, settings.preflight, checked.namespace)
        self._planner = Planner(
            context,
            self._room,
            rules=rules,
            after_seconds=settings.make_room_after,
            plans_moves=settings.make_room is not MakeRoom.OFF,
            makes_moves=settings.make_room is MakeRoom.ACT,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set, then leave in order.

        Parts that only report are started again after an error. An error in any other part ends this replica; another
        leads.

        Raises:
            OSError: an address cannot be listened on, or a certificate not be read.
        """
        placing = self._times.placing
        async with self._serving(), asyncio.TaskGroup() as group:
            jobs: dict[str, Coroutine[None, None, None]] = {
                "informers": self._informers.run(),
                "settle": every(self._times.settle, self.binder.settle),
                "synced": self._synced(),
                "gates": self._placer.run(),
                "upkeep": keep_running("upkeep", partial(every, placing.tick, self._upkeep.look)),
                "events": keep_running("events", partial(every, placing.events, self._events.look)),
                "room": keep_running("room", self._planner.run),
            }
            if self._settings.preflight.pod:
                look = partial(every, placing.preflight, self._preflight.look)
                jobs["preflight"] = keep_running("preflight", look)
            if self._settings.preflight.checks_groups:
                look = partial(every, placing.preflight, self._group_checks.look)
                jobs["checks of groups"] = keep_running("checks of groups", look)
            if self._election:
                jobs |= {"election": self._election.run(), "leadership": self._leadership.run()}
            else:
                jobs["lead"] = self._leadership.lead_alone()
            if self._device_hours:
                looks = partial(every, self._times.device_hours, self._device_hours.look)
                jobs["device-hours"] = keep_running("device-hours", looks)
            for number, pages in enumerate(self._pages):
                jobs[f"pages {number}"] = keep_running("pages", partial(pages.run, self.state))
            tasks = [group.create_task(job, name=name) for name, job in jobs.items()]
            await stop.wait()
            _log.info("stopping", extra={"binds_under_way": self.binder.under_way})
            self.ready.unmet("stopping", "this replica is shutting down")
            for pages in self._pages:
                pages.stop()
            last = [group.create_task(self._device_hours.end(), name="last device-hours")] if self._device_hours else []
            try:
                async with asyncio.timeout(self._times.drain):
                    await self.binder.drain()
                    await self._placer.drain()
            except TimeoutError:
                _log.warning("binds left undecided", extra={"binds_under_way": self.binder.under_way})
            await asyncio.gather(*last)
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
        written = self._device_hours.written if self._device_hours and leading else {}
        samples = state_samples(
            self.state,
            leading=leading,
            ages=self._informers.ages(),
            unseen=self._writer.unseen(),
            under_way=self.binder.under_way,
            endings={ending.value: self._leads.endings[ending] for ending in LeadEnding},
            now=CLOCK.now(),
            unix_now=time.time(),
        )
        samples |= {
            "plugin_build_info": {tuple(build()): 1},
            "device_seconds_total": device_seconds(written),
        }
        yield from METRICS.families(self._metrics.samples() | samples)
        for pages in self._pages:
            yield from pages.metrics(self.state, leading=leading)

    def decisions(self) -> bytes:
        """The latest binds and other decisions; encoded now, in a thread, in about 10 ms."""
        return decisions_document(self._context.decisions)

    async def _synced(self) -> None:
        """Serve once the first lists are in, and exclude their objects from garbage collection.

        They live long and hold no cycles, and each full collection would walk all of them with the loop stopped:
        0.1-0.2 s with 5000 nodes, under 1 ms without them. Replaced objects are still freed at once. Nothing is
        collected first: that would take 0.1 s, and measurements found no garbage then.
        """
        await self._informers.synced()
        await self._informers.leases_listed(self._times.leases)
        self.ready.met(SYNCED)
        gc.freeze()

    def _settled(self) -> bool:
        """Whether no write of this replica may still take effect."""
        return not (self.binder.under_way or self._placer.under_way) and all(
            pod.confirmed or pod.expected for pod in self.state.assumed.values()
        )

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        """All servers, up for the length of the block."""
        settings = self._settings
        app = status_application(self, max_body_bytes=MOST_BODY_BYTES)
        app.add_routes(verb_routes(self.service))
        if self._election:
            app.middlewares.append(redirect_to_leader(self._election, VERBS, body_seconds=BODY_SECONDS))
        health_app = status_application(self)
        for pages in self._pages:
            routes = pages.routes(self.state, self._api, self.ready)
            health_app.add_routes(routes)
            app.add_routes(routes if pages.on_both_ports else [])
            health_app.middlewares.extend(pages.guard())
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
        """The TLS context of a port, whose certificate is read again when it changes; None without one."""
        if not (self._settings.tls_cert and self._settings.tls_key):
            yield None
            return
        certificate = ServerCertificate(self._settings.tls_cert, self._settings.tls_key, client_ca)
        watching = asyncio.create_task(certificate.watch(), name="certificate")
        try:
            yield certificate.context
        finally:
            watching.cancel()
