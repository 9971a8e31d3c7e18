"""What the tests of the reflector share: which requests are meant, what the server saw, and a scripted server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from neuron_plugin.cluster.api import ApiRequest, Response
from tests.support.api_server import Match, StandInApiServer

# What conftest.py hands over.
Manifest = Callable[..., dict[str, Any]]
Follow = Callable[..., Any]

WATCHES = Match(method="GET", watch=True)
LISTS = Match(method="GET", path="/pods$", watch=False)


def watches(server: StandInApiServer) -> list[dict[str, str]]:
    return [seen.query for seen in server.requests if seen.query.get("watch") == "true"]


def lists(server: StandInApiServer) -> list[dict[str, str]]:
    return [seen.query for seen in server.requests if seen.query.get("watch") != "true"]


class ScriptedServer:
    """An API server whose every watch is made by a function; lists are empty."""

    def __init__(self, lines: Callable[[], AsyncIterator[bytes]], *, list_seconds: float = 0.0) -> None:
        self.calls: list[str] = []
        self.opened_at: list[float] = []
        self.queries: list[dict[str, str]] = []
        self._lines = lines
        self._list_seconds = list_seconds

    async def request(self, request: ApiRequest, *, timeout_seconds: float) -> Response:
        assert timeout_seconds > 0
        assert "limit" in request.query
        self.calls.append("list")
        await asyncio.sleep(self._list_seconds)
        return Response(200, b'{"metadata":{"resourceVersion":"1"}}')

    @asynccontextmanager
    async def stream(self, request: ApiRequest, *, silence_seconds: float) -> AsyncIterator[AsyncIterator[bytes]]:
        assert silence_seconds > 0
        assert request.query["watch"] == "true"
        self.calls.append("watch")
        self.queries.append(dict(request.query))
        self.opened_at.append(asyncio.get_running_loop().time())
        yield self._lines()


BOOKMARK = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}'
