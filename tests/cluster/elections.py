"""Elections in faked time, against the simulated API server without its sockets."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

import pytest

from neuron_plugin.backoff import Clock
from neuron_plugin.cluster.api import ApiRequest, Response
from neuron_plugin.cluster.leases import Election, TermChange
from neuron_plugin.cluster.objects import LEASES, Lease
from neuron_plugin.cluster.writes import LeaseName
from neuron_plugin.simulation.api_server_kinds import parse_path
from tests.support.api_server import Fault, StandInApiServer
from tests.support.stories import Scene

NEVER = 1e9
PATH = LEASES.item("neuron-extender", "kube-system")


class Cluster(StandInApiServer):
    """The server of all candidates: a call takes ``delay_seconds``."""

    delay_seconds = 0.0

    def lease(self) -> Lease:
        return LEASES.decode(self._objects.read(parse_path(PATH)).encoded)


@dataclass
class Link:
    """One candidate's way to the cluster, which may be cut off for it alone."""

    cluster: Cluster
    cut: bool = False
    lose_answers: bool = False
    forbidden: str = ""
    calls: list[ApiRequest] = field(default_factory=list)

    async def request(self, request: ApiRequest, *, timeout_seconds: float) -> Response:
        self.calls.append(request)
        fault = Fault(
            delay_seconds=NEVER if self.cut else self.cluster.delay_seconds,
            status=403 if request.method == self.forbidden else 0,
            lose_answer=self.lose_answers and request.method != "GET",
        )
        self.cluster.fail(fault)
        return await self.cluster.request(request, timeout_seconds=timeout_seconds)

    def stream(self, request: ApiRequest, *, silence_seconds: float) -> Any:
        raise NotImplementedError(request, silence_seconds)


@dataclass
class News:
    """What a candidate's observer was called with, and when."""

    changes: list[tuple[float, TermChange]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    leader: str = ""

    def changed(self, change: TermChange) -> None:
        self.changes.append((asyncio.get_running_loop().time(), change))

    def heard(self, failure: str, leader: str) -> None:
        self.failures.append(failure)
        self.leader = leader


@dataclass
class Candidate:
    link: Link
    election: Election
    news: News
    task: asyncio.Task[Any]
    settled: bool = True

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class Electing(Scene):
    """The candidates of one lease, by name; a candidate that stands again under its name replaces the one before."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.candidates: dict[str, Candidate] = {}
        self._stood: list[Candidate] = []

    @asynccontextmanager
    async def closing(self) -> AsyncIterator[Self]:
        """The elections end with the block."""
        try:
            yield self
        finally:
            for candidate in self._stood:
                await candidate.stop()

    # What happens. Several names at once are several candidates.

    def stand(self, names: str) -> None:
        """``stand a b``, or ``stand c=a`` for a candidate that the lease knows as ``a``, ``c=a@host`` elsewhere."""
        for word in names.split():
            name, _, identity = word.partition("=")
            identity, _, host = (identity or name).partition("@")
            self.candidates[name] = self._candidate(identity, f"https://{host or identity}:12345")

    def _candidate(self, identity: str, url: str) -> Candidate:
        loop, link, news = asyncio.get_running_loop(), Link(self.cluster), News()
        election = Election(
            link,
            LeaseName("kube-system", "neuron-extender", identity, url=url),
            news,
            settled=lambda: candidate.settled,
            clock=Clock(loop.time, asyncio.sleep, lambda: 0.5),
            utc=lambda: datetime.fromtimestamp(1e9 + loop.time(), UTC),
        )
        candidate = Candidate(link, election, news, asyncio.create_task(election.run(), name=f"election of {identity}"))
        self._stood.append(candidate)
        return candidate

    async def stop(self, names: str) -> None:
        for name in names.split():
            await self.candidates[name].stop()

    def undecided(self, name: str) -> None:
        """At its end it leaves something undecided."""
        self.candidates[name].settled = False

    def cut(self, names: str) -> None:
        for name in names.split():
            self.candidates[name].link.cut = True

    def lose(self, name: str) -> None:
        """Its writes arrive, their answers do not."""
        self.candidates[name].link.lose_answers = True

    def forbid(self, text: str) -> None:
        name, method = text.split()
        self.candidates[name].link.forbidden = method

    def restore(self, names: str) -> None:
        """The end of ``cut``, ``lose`` and ``forbid``."""
        for name in names.split():
            link = self.candidates[name].link
            link.cut, link.lose_answers, link.forbidden = False, False, ""

    def slow(self, seconds: str) -> None:
        self.cluster.delay_seconds = float(seconds)

    def delete(self) -> None:
        self.cluster._objects.delete(parse_path(PATH))

    def annotate(self) -> None:
        now = str(asyncio.get_running_loop().time())  # the same again would change nothing
        self.cluster._objects.patch(parse_path(PATH), {"metadata": {"annotations": {"written-at": now}}})

    # What follows.

    def leads(self, names: str = "") -> None:
        assert self.leaders() == names.split()

    def leaders(self) -> list[str]:
        return [name for name, candidate in self.candidates.items() if candidate.election.leading]

    async def always(self, seconds: str, leaders: str) -> None:
        """``always 40 -> 0-1``: how many lead, at least and at most, whenever one looks for so many seconds."""
        least, _, most = leaders.partition("-")
        for _ in range(round(float(seconds) / 0.2)):
            await asyncio.sleep(0.2)
            assert int(least) <= len(self.leaders()) <= int(most or least)

    def terms(self, text: str) -> None:
        """``terms a taken lost``: all that a candidate was told of its terms."""
        name, *expected = text.split()
        assert [change.name.lower() for _, change in self.candidates[name].news.changes] == expected

    def left(self, text: str) -> None:
        """``left a 7.2``: for how many seconds it may still act."""
        name, seconds = text.split()
        assert self.candidates[name].election.seconds_left() == pytest.approx(float(seconds), abs=0.01)

    def lease(self, holder: str = "") -> None:
        """Who holds it, and is to be found where it says."""
        lease = self.cluster.lease()
        assert (lease.holder, lease.holder_url) == (holder, holder and f"https://{holder}:12345")

    def transitions(self, expected: str) -> None:
        assert self.cluster.lease().transitions == int(expected)

    def knows(self, text: str) -> None:
        """``knows b a``: candidate b would send a request on to a."""
        name, *leader = text.split()
        assert self.candidates[name].election.leader_url == "".join(f"https://{one}:12345" for one in leader)

    def hears(self, text: str) -> None:
        """``hears b a``: b's observer was told that a leads."""
        name, *leader = text.split()
        assert self.candidates[name].news.leader == "".join(leader)

    def asked(self, text: str) -> None:
        """``asked a GET POST``: the methods of its calls, the same in a row once."""
        name, *expected = text.split()
        calls = self.candidates[name].link.calls
        assert [method for method, _ in itertools.groupby(call.method for call in calls)] == expected

    def smooth(self) -> None:
        """No turn of any candidate has failed."""
        assert not any(failure for candidate in self.candidates.values() for failure in candidate.news.failures)
