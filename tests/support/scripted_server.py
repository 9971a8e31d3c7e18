"""An ``ApiServer`` that simulates nothing: it says what a test has written down."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec

from neuron_plugin.cluster.api import ApiRequest, Response


async def nothing() -> AsyncIterator[bytes]:
    """The lines of a watch that ends at once."""
    return
    yield b""


async def _empty_list(request: ApiRequest) -> Response:
    assert "limit" in request.query
    return listed()


class ScriptedServer:
    """``answer`` answers each request, and ``lines`` are those of each watch.

    ``requests`` are those of both, ``timeout_seconds`` what the latest was given.
    """

    def __init__(
        self,
        answer: Callable[[ApiRequest], Awaitable[Response]] = _empty_list,
        lines: Callable[[], AsyncIterator[bytes]] = nothing,
    ) -> None:
        self.requests: list[ApiRequest] = []
        self.timeout_seconds = 0.0
        self._answer = answer
        self._lines = lines

    async def request(self, request: ApiRequest, *, timeout_seconds: float) -> Response:
        assert timeout_seconds > 0
        self.timeout_seconds = timeout_seconds
        self.requests.append(request)
        return await self._answer(request)

    @asynccontextmanager
    async def stream(self, request: ApiRequest, *, silence_seconds: float) -> AsyncIterator[AsyncIterator[bytes]]:
        assert silence_seconds > 0
        assert request.query["watch"] == "true"
        self.requests.append(request)
        yield self._lines()


def listed(*items: object) -> Response:
    """The answer to a list."""
    return Response(200, msgspec.json.encode({"metadata": {"resourceVersion": "1"}, "items": items}))
