"""Elections in faked time, against the simulated API server without its sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from neuron_plugin.backoff import Clock
from neuron_plugin.cluster.api import ApiRequest, Response
from neuron_plugin.cluster.leases import Election, TermChange
from neuron_plugin.cluster.objects import LEASES, Lease
from neuron_plugin.cluster.writes import LeaseName
from neuron_plugin.simulation.api_server_kinds import parse_path
from tests.support.api_server import Fault, StandInApiServer

NEVER = 1e9
PATH = LEASES.item("neuron-extender", "kube-system")


class Cluster(StandInApiServer):
    """The server of all candidates: a call takes ``delay_seconds``."""

    delay_seconds = 0.0

    def lease(self) -> Lease:
        return LEASES.decode(self._objects.read(parse_path(PATH)).encoded)

    def delete_lease(self) -> None:
        self._objects.delete(parse_path(PATH))


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

    @property
    def changes(self) -> list[TermChange]:
        return [change for _, change in self.news.changes]

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


Stand = Callable[..., Candidate]


@asynccontextmanager
async def election_of(cluster: Cluster) -> AsyncIterator[Stand]:
    loop = asyncio.get_running_loop()
    candidates: list[Candidate] = []

    def stand(name: str, url: str = "") -> Candidate:
        link, news = Link(cluster), News()
        election = Election(
            link,
            LeaseName("kube-system", "neuron-extender", name, url=url or f"https://{name}:12345"),
            news,
            settled=lambda: candidate.settled,
            clock=Clock(loop.time, asyncio.sleep, lambda: 0.5),
            utc=lambda: datetime.fromtimestamp(1e9 + loop.time(), UTC),
        )
        task = asyncio.create_task(election.run(), name=f"election of {name}")
        candidate = Candidate(link, election, news, task)
        candidates.append(candidate)
        return candidate

    try:
        yield stand
    finally:
        for candidate in candidates:
            await candidate.stop()


def leaders(*candidates: Candidate) -> int:
    return sum(candidate.election.leading for candidate in candidates)
