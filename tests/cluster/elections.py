"""Elections in faked time, against the simulated API server's objects without its sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from neuron_plugin.backoff import Clock
from neuron_plugin.cluster.api import ApiRequest, Response, UnreachableError
from neuron_plugin.cluster.leases import Change, Election
from neuron_plugin.cluster.objects import LEASES, Lease
from neuron_plugin.cluster.writes import LeaseName
from neuron_plugin.simulation.api_server_kinds import JsonObject, Refusal, Target, parse_path
from tests.support.api_validation import ValidatingObjects

PATH = LEASES.item("neuron-extender", "kube-system")


class Cluster:
    """An API server in the same loop: a call takes ``delay_seconds``, and may be cut off for one candidate."""

    def __init__(self) -> None:
        self.objects = ValidatingObjects()
        self.delay_seconds = 0.0

    def lease(self) -> Lease:
        return LEASES.decode(self.objects.read(parse_path(PATH)).encoded)

    def delete_lease(self) -> None:
        self.objects.delete(parse_path(PATH), {})

    def link(self) -> Link:
        return Link(self)

    def serve(self, request: ApiRequest) -> Response:
        try:
            return Response(200, self._act(request, parse_path(request.path)))
        except Refusal as refusal:
            return Response(refusal.code, msgspec.json.encode(refusal.status()))

    def _act(self, request: ApiRequest, target: Target) -> bytes:
        body: JsonObject = dict(request.body or {})
        match request.method:
            case "GET":
                return self.objects.read(target).encoded
            case "POST":
                return self.objects.create(target.kind, body, target.namespace).encoded
            case _:
                return self.objects.patch(target, body).encoded


@dataclass
class Link:
    """One candidate's way to the cluster."""

    cluster: Cluster
    cut: bool = False
    lose_answers: bool = False
    forbidden: str = ""
    calls: list[ApiRequest] = field(default_factory=list)

    async def request(self, request: ApiRequest, *, timeout_seconds: float) -> Response:
        self.calls.append(request)
        if self.cut or self.cluster.delay_seconds > timeout_seconds:
            await asyncio.sleep(timeout_seconds)
            raise UnreachableError(request.method, request.path, "cut", may_have_arrived=self.cut)
        await asyncio.sleep(self.cluster.delay_seconds)
        if request.method == self.forbidden:
            return Response(403, b'{"reason":"Forbidden","message":"leases is forbidden: User cannot"}')
        response = self.cluster.serve(request)
        if self.lose_answers and request.method != "GET":
            raise UnreachableError(request.method, request.path, "lost", may_have_arrived=True)
        return response

    def stream(self, request: ApiRequest, *, silence_seconds: float) -> Any:
        raise NotImplementedError(request, silence_seconds)


@dataclass
class News:
    """What a candidate's observer was called with, and when."""

    changes: list[tuple[float, Change]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def changed(self, change: Change) -> None:
        self.changes.append((asyncio.get_running_loop().time(), change))

    def heard(self, failure: str) -> None:
        self.failures.append(failure)


@dataclass
class Candidate:
    link: Link
    election: Election
    news: News
    task: asyncio.Task[Any]
    settled: bool = True

    @property
    def changes(self) -> list[Change]:
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
        link, news = cluster.link(), News()
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
