"""A few read-only pages over HTTP, for probes and for people.

An HTTP library would be a quarter of what this daemon takes in memory, and four fixed pages need little: read a
request's head, under a deadline and a size limit, answer it, and close. Whoever is slow, endless or many costs a
connection and no more, and never the daemon.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

logger = logging.getLogger(__name__)

MOST_HEAD_BYTES = 8192
CONVERSATION_SECONDS = 10.0
MOST_CONNECTIONS = 32
RETRY_SECONDS = 10.0
"""Between two attempts to listen on an address that is taken."""

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Page:
    """What is answered."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = TEXT


Pages = Mapping[str, Callable[[], Awaitable[Page]]]
"""What makes each page, by its path."""


def text_page(text: str, status: HTTPStatus = HTTPStatus.OK) -> Page:
    """A page of plain text, a newline at its end."""
    return Page(f"{text}\n".encode(), status)


class Responder:
    """Serves ``pages`` to GET and HEAD."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._open = 0
        self.port: int | None = None
        """Where it listens; None while it does not."""

    async def run(self, address: str, port: int) -> None:
        """Serve until cancelled; while the address is not to be had, say so once and try again."""
        told = False
        async with asyncio.TaskGroup() as conversations:
            while True:
                try:
                    await self._listen(address, port, conversations)
                except OSError as error:
                    if not told:
                        logger.error(  # noqa: TRY400 - its traceback would tell nothing more
                            "no probes and metrics: choose another --health-port, or 0 for none",
                            extra={"address": address, "port": port, "why": error.strerror or str(error)},
                        )
                    told = True
                await asyncio.sleep(RETRY_SECONDS)

    async def _listen(self, address: str, port: int, conversations: asyncio.TaskGroup) -> None:
        def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            conversations.create_task(self._converse(reader, writer), name="probe")

        server = await asyncio.start_server(converse, address, port, limit=MOST_HEAD_BYTES)
        try:
            self.port = server.sockets[0].getsockname()[1]
            logger.info("probes and metrics", extra={"address": address, "port": self.port})
            await asyncio.Event().wait()  # no deadline: until cancelled
        finally:
            self.port = None
            server.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, one answer, and the end."""
        self._open += 1
        try:
            async with asyncio.timeout(CONVERSATION_SECONDS):
                if self._open <= MOST_CONNECTIONS:
                    writer.write(await self._answer_to(reader))
                    await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, OSError):
            pass  # the caller is gone or too slow: there is nobody to tell
        finally:
            self._open -= 1
            writer.close()

    async def _answer_to(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _response(text_page("too long a request", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))
        method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if method not in {"GET", "HEAD"}:
            return _response(text_page("expected GET", HTTPStatus.METHOD_NOT_ALLOWED))
        return _response(await self._page(path), with_body=method == "GET")

    async def _page(self, path: str) -> Page:
        make = self._pages.get(path)
        if make is None:
            return text_page(f"expected one of {' '.join(self._pages)}", HTTPStatus.NOT_FOUND)
        try:
            return await make()
        except Exception:
            logger.exception("a page could not be made", extra={"path": path})
            return text_page("see the log", HTTPStatus.INTERNAL_SERVER_ERROR)


def _response(page: Page, *, with_body: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {page.status.value} {page.status.phrase}\r\n"
        f"Content-Type: {page.content_type}\r\n"
        f"Content-Length: {len(page.body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (page.body if with_body else b"")
