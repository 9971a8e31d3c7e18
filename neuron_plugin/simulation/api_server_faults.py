"""What the simulated API server can be told to do wrong."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field

from neuron_plugin.cluster import ApiRequest
from neuron_plugin.cluster.api import Response
from neuron_plugin.simulation.api_server_kinds import Refusal
from neuron_plugin.simulation.api_server_store import CutError


class UnsentError(CutError):
    """There is no connection: the request has not arrived."""


@dataclass(frozen=True, slots=True)
class Match:
    """Which requests: all by default. ``path`` is a regular expression found anywhere in the path."""

    method: str = ""
    path: str = ""
    watch: bool | None = None

    def meets(self, method: str, path: str, *, watch: bool) -> bool:
        """Whether a request is meant."""
        return (
            self.method in {"", method}
            and (self.watch is None or self.watch == watch)
            and re.search(self.path, path) is not None
        )


@dataclass(slots=True)
class Fault:
    """One fault of the server, for the next ``times`` requests that match.

    In this order: the request is held until ``gate`` is set, and ``delay_seconds``; ``drop`` cuts the connection
    before anything is done, and ``unsent`` lets a caller without sockets have none; ``status`` refuses instead of doing
    it (``retry_after_seconds`` goes with it); ``lose_answer`` does it and cuts the connection, or answers ``status``:
    a write is done and its writer does not know; ``ends`` answers a watch with 200 and ends it at once; ``body``
    answers 200 with these bytes.
    """

    match: Match = field(default_factory=Match)
    times: int = 1
    gate: asyncio.Event | None = None
    delay_seconds: float = 0.0
    drop: bool = False
    unsent: bool = False
    status: int = 0
    retry_after_seconds: int | None = None
    lose_answer: bool = False
    ends: bool = False
    body: bytes | None = None

    async def before(self) -> Response | None:
        """Do what happens before the request is served; an answer means that it is not served.

        Raises:
            CutError: the connection is to be cut.
            Refusal: the request is refused.
        """
        if self.gate is not None:
            await self.gate.wait()
        await asyncio.sleep(self.delay_seconds)
        if self.drop or self.unsent:
            raise UnsentError if self.unsent else CutError
        if self.status and not self.lose_answer:
            raise self.refusal()
        return Response(200, b"") if self.ends else None if self.body is None else Response(200, self.body)

    def after(self) -> None:
        """Do what happens once the request is served.

        Raises:
            CutError: the connection is to be cut.
            Refusal: the request is answered as if it were refused.
        """
        if self.lose_answer:
            raise self.refusal() if self.status else CutError

    def refusal(self) -> Refusal:
        """The answer of ``status``."""
        details = {} if self.retry_after_seconds is None else {"retryAfterSeconds": self.retry_after_seconds}
        return Refusal(self.status, "the test asked for this refusal", reason="InjectedFault", **details)


def take_fault(faults: list[Fault], request: ApiRequest) -> Fault | None:
    """Return the first fault that is meant for a request, and count it."""
    watch = request.query.get("watch") == "true"
    fault = next((fault for fault in faults if fault.match.meets(request.method, request.path, watch=watch)), None)
    if fault:
        fault.times -= 1
        if fault.times <= 0:
            faults.remove(fault)
    return fault
