"""The extender put together: watches, election, binds and the servers, from start to SIGTERM.

The order of the end matters: unready first, so that the scheduler's Service lets go; then watchers are sent away and
binds under way are waited for; only then the Lease is given up and the server closed.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace

from aiohttp import web
from prometheus_client import CollectorRegistry

from neuron_plugin.cluster import TERMS, ApiServer, Election, LeaseName, Terms
from neuron_plugin.extender.binding import TIMES, Binder, BindTimes
from neuron_plugin.extender.change_log import ChangeLog
from neuron_plugin.extender.closings import Closings
from neuron_plugin.extender.feeds import Feeds
from neuron_plugin.extender.inspection import inspection_routes
from neuron_plugin.extender.leadership import CONDITION, ELECTION, NOT_LEADER, NOT_READ, Leadership, fence
from neuron_plugin.extender.metrics import ExtenderMetrics, StateCollector
from neuron_plugin.extender.monitor import Monitor
from neuron_plugin.extender.pod_writes import ApiPodWrites
from neuron_plugin.extender.probes import probe_routes
from neuron_plugin.extender.readiness import Readiness
from neuron_plugin.extender.redirection import to_the_leader
from neuron_plugin.extender.reporting import Reporting
from neuron_plugin.extender.server import application, runner, verb_routes
from neuron_plugin.extender.service import ExtenderService
from neuron_plugin.extender.settings import ExtenderSettings
from neuron_plugin.extender.state import ClusterState
from neuron_plugin.extender.tls import ServerCertificate
from neuron_plugin.topology import Catalogue

_log = logging.getLogger(__name__)

SETTLE_SECONDS = 1.0
DRAIN_SECONDS = 2.0
"""Of the five seconds a shutdown may take: giving up the Lease may take two, closing the servers some tenths.

A bind that is not decided by then is told to the scheduler as undecided, and the next process finds what became of it.
"""


class ExtenderDaemon:
    """One replica of the extender; ``run`` ends when ``stop`` is set."""

    def __init__(
        self,
        settings: ExtenderSettings,
        types: Catalogue,
        api: ApiServer,
        *,
        terms: Terms = TERMS,
        times: BindTimes = TIMES,
    ) -> None:
        """Nothing runs or is read before ``run``."""
        self._settings = settings
        self._identity = settings.identity or socket.gethostname()
        self._registry = CollectorRegistry()
        self._metrics = ExtenderMetrics(self._registry)
        unmet = {"synced": "the first lists are not in yet", CONDITION: NOT_LEADER}
        self.readiness = Readiness(unmet | ({ELECTION: NOT_READ} if settings.leader_election else {}))
        self.state = ClusterState(types)
        self._changes = ChangeLog(time.time_ns())  # so fine that no two replicas tell different changes by one version
        self.state.observe(self._changes)
        self._monitor = Monitor(self.state, self._changes)
        namespace = settings.lease_namespace if settings.plugin_leases else ""
        self._feeds = Feeds(api, self.state, self._metrics, lease_namespace=namespace)
        times = replace(times, answer=settings.answer_seconds)
        self._leadership = Leadership(
            self.readiness, self._feeds, landing_seconds=times.landing, patience_seconds=terms.renew_deadline
        )
        self._election = self._candidate(api, terms) if settings.leader_election else None
        self.binder = Binder(
            self.state,
            ApiPodWrites(api),
            fence=fence(self.readiness, self._election, times.write),
            dialects=settings.dialects,
            times=times,
        )
        self.service = ExtenderService(
            self.state, self.binder, self.readiness, self._metrics, preempt_unoffered=settings.preempt_unoffered
        )
        self._reporting = Reporting(
            api, self.state, Closings(self._metrics), self.readiness, instance=self._identity, clock=time.monotonic
        )
        self._registry.register(
            StateCollector(
                self.state,
                ages=self._feeds.ages,
                drift=self.binder.unseen,
                under_way=lambda: self.binder.under_way,
                leading=lambda: not self.readiness.conditions[CONDITION],
            )
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set, then leave in order.

        Raises:
            OSError: an address cannot be listened on, or a certificate not be read.
        """
        async with self._serving(), asyncio.TaskGroup() as group:
            tasks = [group.create_task(job, name=name) for name, job in self._jobs().items()]
            await stop.wait()
            await self._leave()
            for task in tasks:
                task.cancel()

    def _jobs(self) -> dict[str, Coroutine[None, None, None]]:
        jobs: dict[str, Coroutine[None, None, None]] = {
            "feeds": self._feeds.run(self.readiness),
            "settle": self._settle(),
            "spare collections": self._spare_collections(),
            "report": self._reporting.run(),
        }
        if self._election:
            return jobs | {"election": self._election.run(), "leadership": self._leadership.run()}
        return jobs | {"lead": self._leadership.lead_alone(self._feeds.pods.synced.wait)}

    async def _leave(self) -> None:
        _log.info("stopping", extra={"binds_under_way": self.binder.under_way})
        self.readiness.unmet("stopping", "this replica is shutting down")
        self._monitor.stop()
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await self.binder.drain()
        except TimeoutError:
            _log.warning("binds left undecided", extra={"binds_under_way": self.binder.under_way})

    async def _spare_collections(self) -> None:
        """Take what the first lists brought out of the collector's sight.

        It lives long and holds no cycles, and each full collection went through all of it with the loop stopped:
        0.1-0.2 s with 5000 nodes, under 1 ms without them. What is replaced later is still freed at once. Nothing is
        collected first, as at this moment there was no garbage to find, only 0.1 s to lose.
        """
        await self._feeds.synced()
        gc.freeze()

    async def _settle(self) -> None:
        while True:
            await self.binder.settle()
            await asyncio.sleep(SETTLE_SECONDS)

    def _candidate(self, api: ApiServer, terms: Terms) -> Election:
        settings = self._settings
        lease = LeaseName(settings.lease_namespace, settings.lease_name, self._identity, url=settings.url)
        return Election(api, lease, self._leadership, settled=self._settled, terms=terms)

    def _settled(self) -> bool:
        """Whether nothing that this replica wrote may still take effect."""
        return not self.binder.under_way and all(held.confirmed for held in self.state.reservations.values())

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        """Both servers, up for the length of the block."""
        settings = self._settings
        probes = probe_routes(self.readiness, self._registry, self.binder.journal)
        looks = [*inspection_routes(self.state), *probes]
        routes = [*verb_routes(self.service), *self._monitor.routes(), *looks]
        certificate = _certificate(settings)
        context = certificate.context if certificate else None
        app = application(routes, settings.max_body_mib)
        if self._election:
            app.middlewares.append(to_the_leader(self._election))
        async with _site(app, settings.address, settings.port, context) as port:
            _log.info("serving", extra={"address": settings.address, "port": port, "tls": settings.tls})
            self.port = port
            async with _site(application(looks, 1), settings.health_address, settings.health_port) as health_port:
                self.health_port = health_port
                watching = asyncio.create_task(certificate.watch(), name="certificate") if certificate else None
                try:
                    yield
                finally:
                    if watching:
                        watching.cancel()


def _certificate(settings: ExtenderSettings) -> ServerCertificate | None:
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return ServerCertificate(settings.tls_cert, settings.tls_key, settings.client_ca)


@asynccontextmanager
async def _site(
    app: web.Application, address: str, port: int, context: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """Serve an application for the length of the block; gives the port, which the system chooses for 0."""
    serving = runner(app)
    await serving.setup()
    try:
        await web.TCPSite(serving, address, port, ssl_context=context, reuse_address=True).start()
        yield serving.addresses[0][1]
    finally:
        await serving.cleanup()
