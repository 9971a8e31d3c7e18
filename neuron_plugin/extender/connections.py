"""How a caller's connection ends.

aiohttp drops a connection, and with it every answer still due, as soon as the caller has closed its own sending side;
HTTP lets a caller do that and then read on (RFC 9112, 9.6). Here it gets what it asked for, and then the connection
ends. Under TLS nothing changes: asyncio knows no half-closed TLS connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

if TYPE_CHECKING:
    from aiohttp.web_request import BaseRequest


class Runner(web.AppRunner):
    """Serves an application over connections that outlive their caller's last request by its answer."""

    async def _make_server(self) -> web.Server:
        plain = await super()._make_server()
        return _Server(plain.request_handler, request_factory=plain.request_factory, **self._kwargs)


class _Server(web.Server):
    def __call__(self) -> web.RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)


class _Connection(web.RequestHandler):
    """Once the caller sends no more, nothing here waits for it: the connection ends with the last request's handler.

    A handler whose body was cut short ends by the deadline for bodies.
    """

    _asks_no_more = False

    def eof_received(self) -> bool:  # type: ignore[override]  # aiohttp narrows asyncio's bool | None to None
        """The caller has closed its sending side; True keeps ours open for the answers that are due."""
        if self.ssl_context is not None or not (self._messages or self._answer_is_due):
            return False
        self._asks_no_more = True
        if not self._messages:
            self.close()  # after the answer that is under way
        return True

    @property
    def _answer_is_due(self) -> bool:
        """Whether a request is being handled whose answer has not begun.

        One that has begun is in the transport's hands, or it is a watch: a watcher that closes has usually gone.
        """
        request = self._current_request
        return self._waiter is None and (request is None or not request.writer.output_size)

    async def finish_response(
        self, request: BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send one answer; behind the last one, close without lingering for the rest of a body that cannot come."""
        sent = await super().finish_response(request, resp, start_time)
        if self._asks_no_more and not self._messages:
            self.force_close()
        return sent
