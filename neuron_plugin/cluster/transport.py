"""The wire to the API server.

Requests go out through the ``kubernetes`` package at its lowest level, because its models cost fifty times the CPU of
ours. What that level leaves undone is done here: the token is asked for by name, every call has a deadline, refused
credentials are loaded anew without a restart, and the libraries' many errors become ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any, Self

from neuron_plugin.cluster.api import ApiRequest, ConnectionSettingsError, Response, UnreachableError, refusal
from neuron_plugin.cluster.credentials import Client, Credentials, open_client
from neuron_plugin.cluster.library import Library, import_library

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
    from pathlib import Path

_UNAUTHORIZED = 401
_FAILURES_START = 400
_CONNECT_SECONDS = 10.0
_MAX_LINE_BYTES = 64 << 20


async def connect(kubeconfig: Path | None, *, clock: Callable[[], float] = time.monotonic) -> KubernetesApi:
    """Load the settings and make a client; no connection is opened yet.

    ``kubeconfig`` None means the pod's own service account. Close the result, or use it as a context manager.

    Raises:
        ConnectionSettingsError: the settings are missing or unusable.
    """
    library = await asyncio.to_thread(import_library)
    client = await open_client(library, kubeconfig)
    return KubernetesApi(library, Credentials(library, kubeconfig, client, clock))


class KubernetesApi:
    """``ApiServer`` over HTTP. Made by ``connect``."""

    def __init__(self, library: Library, credentials: Credentials) -> None:
        self._library = library
        self._credentials = credentials

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections as soon as the calls under way are over."""
        await self._credentials.client.retire()

    async def request(self, request: ApiRequest, *, timeout_seconds: float) -> Response:
        """See ``ApiServer.request``; the deadline covers everything from loading credentials to the last byte."""
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._ask(request)
        except TimeoutError as error:
            trouble = f"no answer within {timeout_seconds:g} s"
            raise UnreachableError(request.method, request.path, trouble, may_have_arrived=True) from error

    @contextlib.asynccontextmanager
    async def stream(
        self, request: ApiRequest, *, silence_seconds: float
    ) -> AsyncGenerator[AsyncIterator[bytes], None]:
        """See ``ApiServer.stream``."""
        async with self._answer(request, silence_seconds) as answer:
            if answer.status >= _FAILURES_START:
                raise refusal(await self._read(request, answer), request)
            async with contextlib.aclosing(self._lines(request, answer)) as lines:
                yield lines

    async def _ask(self, request: ApiRequest) -> Response:
        async with self._answer(request) as answer:
            return await self._read(request, answer)

    @contextlib.asynccontextmanager
    async def _answer(self, request: ApiRequest, silence_seconds: float | None = None) -> AsyncGenerator[Any, None]:
        """Send, again with new credentials if they were refused, and keep the client open while the answer is read."""
        client = self._credentials.client
        async with contextlib.AsyncExitStack() as held:
            try:
                answer = await self._send(held, client, request, silence_seconds)
            except _TlsError:
                if not await self._credentials.renew(client):
                    raise
                answer = await self._send(held, self._credentials.client, request, silence_seconds)
            else:
                if answer.status == _UNAUTHORIZED and await self._credentials.renew(client):
                    answer = await self._send(held, self._credentials.client, request, silence_seconds)
            yield answer

    async def _send(
        self, held: contextlib.AsyncExitStack, client: Client, request: ApiRequest, silence_seconds: float | None
    ) -> Any:
        """Hand one request to the library, and hold what its answer needs."""
        await held.enter_async_context(client.in_use())
        message = await self._message(client, request)
        limits = self._library.aiohttp.ClientTimeout(total=None, connect=_CONNECT_SECONDS, sock_read=silence_seconds)
        with self._troubles(request):
            answer = (await client.library_client.call_api(*message, _request_timeout=limits)).response
        held.callback(answer.close)
        return answer

    async def _message(self, client: Client, request: ApiRequest) -> tuple[Any, ...]:
        """Write the request out; the library puts a token in only where it is named, and reads a new one if due."""
        try:
            message: tuple[Any, ...] = await client.library_client.param_serialize(
                request.method,
                request.path,
                query_params=list(request.query.items()),
                header_params={"Accept": "application/json", "Content-Type": request.content_type},
                body=request.body,
                auth_settings=["BearerToken"],
            )
        except (self._library.config.ConfigException, OSError) as error:
            trouble = f"API server token: {error}; is the service account's volume mounted?"
            raise ConnectionSettingsError(trouble) from error
        return message

    async def _read(self, request: ApiRequest, answer: Any) -> Response:
        with self._troubles(request):
            return Response(answer.status, await answer.read(), _retry_after_seconds(answer.headers))

    async def _lines(self, request: ApiRequest, answer: Any) -> AsyncGenerator[bytes, None]:
        with self._troubles(request):
            async with contextlib.aclosing(split_lines(answer.content.iter_any())) as lines:
                async for line in lines:
                    yield line

    @contextlib.contextmanager
    def _troubles(self, request: ApiRequest) -> Iterator[None]:
        """Turn the libraries' errors into ours."""
        http = self._library.aiohttp
        try:
            yield
        except http.ClientSSLError as error:
            raise _TlsError(request.method, request.path, f"{error}", may_have_arrived=False) from error
        except (http.ClientConnectorError, http.ConnectionTimeoutError) as error:
            raise UnreachableError(request.method, request.path, f"{error}", may_have_arrived=False) from error
        except (http.ClientError, OSError, ValueError) as error:  # an OSError may be a TimeoutError
            raise UnreachableError(request.method, request.path, f"{error!r}", may_have_arrived=True) from error


class _TlsError(UnreachableError):
    """The handshake failed: the CA may have been rotated since it was read."""


def _retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """Read the header; an HTTP date, which no API server sends, is none."""
    text = headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdecimal() else None


async def split_lines(chunks: AsyncIterator[bytes], max_bytes: int = _MAX_LINE_BYTES) -> AsyncGenerator[bytes, None]:
    """Cut a byte stream into lines; what follows the last newline was cut off and is dropped.

    aiohttp's own ``readline`` refuses lines longer than its buffer, which one large pod reaches.

    Raises:
        ValueError: a line is longer than ``max_bytes``.
    """
    pending: list[bytes] = []
    size = 0
    async for chunk in chunks:
        head, *rest = chunk.split(b"\n")
        pending.append(head)
        size += len(head)
        if size > max_bytes:
            raise ValueError(f"a line of the watch is longer than {max_bytes} bytes")
        if rest:
            yield b"".join(pending)
            for line in rest[:-1]:
                yield line
            pending, size = [rest[-1]], len(rest[-1])
