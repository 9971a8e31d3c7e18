"""Whether this replica may answer the scheduler: synced, the leader, and the last leader's writes over.

Until the lists are in, an answer would be a guess. While another replica leads, a bind could take devices that the
leader has given away. A write that the last leader sent at its last moment may land after this replica has taken over.
It can only bind or place a pod that is not bound yet. So a new leader lists the pods consistently. If a pod that asks
for Neuron is unbound, it waits until such a write's time is over, and lists again. Only then it is ready. It need not
wait if the last leader gave the Lease up with everything settled.

If the last leader was an earlier process of this very replica, that process has ended before this one began. Its
connections were closed with it, and the API server ends a request with its connection. Writes that reached the store
are older than this replica's own write of the Lease. Then a moment after the start and a list are enough.

The other side is in ``binding``: no bind starts that could outlive this replica's own term.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Mapping, Sequence
from http import HTTPStatus
from types import MappingProxyType
from typing import Protocol

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from neuron_plugin.backoff import CLOCK, Clock
from neuron_plugin.cluster import ClusterError, Election
from neuron_plugin.cluster.leases import TermChange
from neuron_plugin.placement.informers import Informers

_log = logging.getLogger(__name__)

SYNCED = "synced"
CONDITION = "leader"
NOT_LEADER = "this replica of the extender is not the leader"
ELECTION = "election"
NOT_READ = "the leader's Lease was not read yet"
_TAKING_OVER = "taking over from the last leader"
CLOSING_SECONDS = 0.5
"""A process has ended, and with it its connections, when the next one of its container begins to load; this comes on
top of the loading."""
_LIST_SECONDS = 60.0
"""For the lists that a new leader takes before it decides."""
_RETRY_SECONDS = 1.0
"""Before these lists are asked for again."""


class Readiness:
    """Conditions by name, each unmet at first, with its reason; the part that knows a condition sets it."""

    def __init__(self, conditions: Mapping[str, str]) -> None:
        self._reasons = dict(conditions)
        self.conditions: Mapping[str, str] = MappingProxyType(self._reasons)
        """Why each condition does not hold; empty if it holds."""
        self.why_not = "; ".join(filter(None, conditions.values()))
        """The reasons for not serving; empty if ready."""

    def met(self, condition: str) -> None:
        """The condition holds from now on."""
        self.unmet(condition, "")

    def unmet(self, condition: str, reason: str) -> None:
        """The condition does not hold from now on."""
        self._reasons[condition] = reason
        self.why_not = "; ".join(filter(None, self._reasons.values()))


class Successor(Protocol):
    """A part that takes over the last leader's work: reservations, or checks of groups."""

    async def take_over(self) -> None:
        """Take over. An API server that does not answer must not delay this long."""


class Leadership:
    """Turns the election's news into readiness, as its observer.

    ``landing_seconds`` is how long after its start a write may still take effect (``Times.landing``),
    ``closing_seconds`` how long after the end of the process that sent it. ``patience_seconds`` is how long the Lease
    may be out of reach before a replica reports that it is of no use as a standby either.
    """

    def __init__(
        self,
        readiness: Readiness,
        informers: Informers,
        *,
        landing_seconds: float,
        patience_seconds: float,
        closing_seconds: float = CLOSING_SECONDS,
        successors: Sequence[Successor] = (),
        clock: Clock = CLOCK,
    ) -> None:
        self._readiness = readiness
        self._informers = informers
        self._landing_seconds = landing_seconds
        self._patience_seconds = patience_seconds
        self._closing_seconds = closing_seconds
        self.successors = successors
        """The parts that take over the last leader's work."""
        self._clock = clock
        self._started = clock.now()
        self._news = asyncio.Event()
        self._won: TermChange | None = None
        self._heard_at = float("-inf")

    def changed(self, change: TermChange) -> None:
        """Won or lost. Lost takes effect at once."""
        self._won = None if change is TermChange.LOST else change
        if self._won is None:
            self._readiness.unmet(CONDITION, NOT_LEADER)
        self._news.set()

    def heard(self, failure: str, leader: str) -> None:
        """The Lease was read, and taken or renewed if due; else ``failure`` says why. ``leader`` is another replica."""
        if self._won is None:
            self._readiness.unmet(CONDITION, f"{NOT_LEADER}, {leader} is" if leader else NOT_LEADER)
        if not failure:
            self._heard_at = self._clock.now()
            self._readiness.met(ELECTION)
        elif self._clock.now() - self._heard_at >= self._patience_seconds:
            self._readiness.unmet(ELECTION, f"the leader's Lease cannot be read or written: {failure}")

    async def run(self) -> None:
        """Take over each time the election is won, until cancelled."""
        while True:
            await self._news.wait()  # no deadline: a replica that never leads has nothing to do here
            self._news.clear()
            if self._won is None:
                continue
            won, since = self._won, self._clock.now()
            self._readiness.unmet(CONDITION, _TAKING_OVER)
            await self._list()
            if won is TermChange.TAKEN:
                await self._outwait(since + self._landing_seconds)
            elif won is TermChange.RESTARTED:
                await self._outwait(self._started + self._closing_seconds)
            for successor in self.successors:
                await successor.take_over()
            if not self._news.is_set():
                self._readiness.met(CONDITION)

    async def lead_alone(self) -> None:
        """Without an election: lead, as if the last leader was killed when this replica started."""
        started = self._clock.now()
        self._won = TermChange.TAKEN
        self._readiness.unmet(CONDITION, _TAKING_OVER)
        await self._informers.pods_listed()
        await self._outwait(started + self._landing_seconds)
        self._readiness.met(CONDITION)

    async def _outwait(self, until: float) -> None:
        """Wait until no earlier write can land any more, and list again; no wait if every pod is bound."""
        if self._informers.any_unbound():
            await self._clock.sleep(max(0.0, until - self._clock.now()))
            await self._list()

    async def _list(self) -> None:
        """List until it succeeds, or leadership is lost."""
        while self._won is not None:
            try:
                await self._informers.list_consistently(_LIST_SECONDS)
            except ClusterError as error:
                _log.warning("taking over waits for a list of pods", extra={"cause": str(error)})
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return


def redirect_to_leader(election: Election, verbs: Collection[str], *, body_seconds: float) -> Middleware:
    """Send callers of these verbs on to the leader, whose URL stands in the Lease, while this replica does not lead.

    So all replicas can stand behind one ordinary Service. Go's ``net/http``, kube-scheduler's client, follows a 307
    with the same verb, body and client certificate. It checks the server by the name that its configuration gives.
    Nothing rests on it: a replica that no longer leads refuses, and the scheduler tries again.

    A standby also ends the connection behind its answer. Of those kube-scheduler keeps two, and uses them for as long
    as they work, so it would be redirected for ever. Now it dials the Service again until it has the leader itself.
    A body is waited for ``body_seconds``. Pages for people (GET) are as good from a standby.
    """

    @web.middleware
    async def redirect(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path.rpartition("/")[2] not in verbs or election.leading:
            return await handler(request)
        if not (url := election.leader_url):
            answer = await handler(request)
        else:
            # A client that is still sending may not read an answer: take the body in first, under the usual limits.
            with contextlib.suppress(TimeoutError, ConnectionError, web.HTTPRequestEntityTooLarge):
                async with asyncio.timeout(body_seconds):
                    await request.read()
            answer = web.Response(status=HTTPStatus.TEMPORARY_REDIRECT, headers={"Location": url + request.path_qs})
        answer.force_close()
        return answer

    return redirect
