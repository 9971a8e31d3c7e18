"""A standby sends the scheduler on to the leader, whose URL stands in the Lease.

So every replica can be ready, and behind one ordinary Service. kube-scheduler's client (Go's ``net/http``) follows a
307 with the same verb, body and client certificate, and checks the server by the name that its configuration gives.
Nothing rests on it: who is sent to a replica that leads no more gets that one's refusal and tries again.

A standby also ends the connection behind its answer. kube-scheduler keeps two and uses them for as long as they work,
so without that it would be sent on for ever; so it dials the Service anew until it has the leader itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from neuron_plugin.extender.server import BODY_SECONDS

_TEMPORARY_REDIRECT = 307


class Candidate(Protocol):
    """What is asked of an election."""

    @property
    def leading(self) -> bool:
        """Whether this replica is the leader."""

    @property
    def leader_url(self) -> str:
        """Where another one is that leads; empty if none is known to."""


def to_the_leader(candidate: Candidate) -> Middleware:
    """What a replica does with verbs while it does not lead; everything else is a reading, and as good here."""

    @web.middleware
    async def send_on(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method != "POST" or candidate.leading:
            return await handler(request)
        url = candidate.leader_url
        answer = await _sent_on(request, url) if url else await handler(request)
        answer.force_close()
        return answer

    return send_on


async def _sent_on(request: web.Request, url: str) -> web.Response:
    """A client that is still sending may not read an answer, so the body is taken in first, under the usual limits."""
    with contextlib.suppress(TimeoutError, ConnectionError, web.HTTPRequestEntityTooLarge):
        async with asyncio.timeout(BODY_SECONDS):
            await request.read()
    return web.Response(status=_TEMPORARY_REDIRECT, headers={"Location": url + request.path_qs})
