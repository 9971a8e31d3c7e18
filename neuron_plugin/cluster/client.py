"""The connection to the API server: sending, under deadlines, with fresh credentials.

Tokens expire and CAs are rotated. A service account's token is read every minute. A new session with the current files
is made, without a restart, if the server refuses the credentials, if the credentials of an exec plugin have expired, or
if the handshake fails.

aiohttp takes some tenths of a second to import, and the kubelet waits for the plugin's sockets meanwhile. So
``connect`` imports it, in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from neuron_plugin.backoff import CLOCK, Clock
from neuron_plugin.cluster.api import ApiRequest, ConnectionSettingsError, Response, UnreachableError, refusal
from neuron_plugin.cluster.credentials import (
    NO_OVERRIDES,
    TOKEN_SECONDS,
    Credentials,
    CredentialsError,
    Overrides,
    of_kubeconfig,
    of_service_account,
    read_token,
)
from neuron_plugin.loading import load

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator


log = logging.getLogger(__name__)

_BUFFER_BYTES = 16 << 20
"""aiohttp refuses lines of more than twice its buffer; the default of 64 KiB is too small for a pod."""

_KEEPALIVE = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 30_000))
"""Detect within 30 s that the other end of a connection is gone, whether the connection is idle or sends.

Renewals of a Lease are lost meanwhile, and it expires after 40 s.
"""


class Kubeconfig(NamedTuple):
    """A kubeconfig of one or several files, and the overrides of a command line."""

    paths: tuple[Path, ...]
    overrides: Overrides = NO_OVERRIDES


Source: TypeAlias = "Path | Kubeconfig | str | None"
"""A kubeconfig, the URL of a server without authentication, or None for the pod's service account."""


@dataclass(frozen=True, slots=True)
class ClientTimes:
    """Seconds. ``connect`` limits connecting with its handshake; ``renewal`` is between two renewals.

    ``loading`` limits the reading of a kubeconfig: its exec plugin may ask an identity provider.
    """

    connect: float = 10.0
    renewal: float = 10.0
    loading: float = 20.0


TIMES = ClientTimes()


async def connect(source: Source, *, clock: Clock = CLOCK, times: ClientTimes = TIMES) -> KubernetesApi:
    """Load the settings and make a client; no connection is opened yet.

    Close the result, or use it as a context manager.

    Raises:
        ConnectionSettingsError: the settings are missing or unusable.
    """
    await load("aiohttp")
    return KubernetesApi(await _open_session(source, clock, times), source, clock, times)


class KubernetesApi:
    """``ApiServer`` over HTTP. Made by ``connect``."""

    def __init__(self, client: _Session, source: Source, clock: Clock, times: ClientTimes) -> None:
        self._client = client
        self._source = source
        self._clock = clock
        self._times = times
        self._renewed_at = float("-inf")
        self._renewing = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; calls in progress fail."""
        await self._client.close()

    async def request(self, request: ApiRequest, *, timeout_seconds: float) -> Response:
        """See ``ApiServer.request``; the deadline covers everything from loading credentials to the last byte."""
        try:
            async with asyncio.timeout(timeout_seconds):
                with contextlib.closing(await self._send(request)) as answer:
                    return await _read(request, answer)
        except TimeoutError as error:
            cause = f"no answer within {timeout_seconds:g} s"
            raise UnreachableError(request.method, request.path, cause, may_have_arrived=True) from error

    @contextlib.asynccontextmanager
    async def stream(
        self, request: ApiRequest, *, silence_seconds: float
    ) -> AsyncGenerator[AsyncIterator[bytes], None]:
        """See ``ApiServer.stream``."""
        with contextlib.closing(await self._send(request, silence_seconds)) as answer:
            if answer.status >= HTTPStatus.BAD_REQUEST:
                raise refusal(await _read(request, answer), request)
            async with contextlib.aclosing(_lines(request, answer)) as lines:
                yield lines

    async def _send(self, request: ApiRequest, silence_seconds: float | None = None) -> Any:
        """Send; retry with new credentials if the server refuses them. The caller closes the answer."""
        client, answer = self._client, None
        if client.is_expired and await self._renew(client):
            client = self._client
        try:
            answer = await client.send(request, silence_seconds)
        except _TlsError:
            if not await self._renew(client):
                raise
        if answer is None or (answer.status == HTTPStatus.UNAUTHORIZED and await self._renew(client)):
            answer = await self._client.send(request, silence_seconds)
        return answer

    async def _renew(self, refused: _Session) -> bool:
        """Reload the credentials, unless that was just tried; whether there is a newer session than ``refused``.

        The connections of the old session are closed: an open watch fails, and its reflector opens it again.
        """
        async with self._renewing:
            if self._client is not refused:
                return True
            if self._clock.now() - self._renewed_at < self._times.renewal:
                return False
            self._renewed_at = self._clock.now()
            try:
                self._client = await _open_session(self._source, self._clock, self._times)
            except ConnectionSettingsError as error:
                log.warning("credentials for the API server cannot be loaded again", extra={"error": str(error)})
                return False
        await refused.close()
        log.info("credentials for the API server loaded again")
        return True


class _TlsError(UnreachableError):
    """The handshake failed: the CA may have been rotated since it was read."""


def _open_socket(address: Any) -> socket.socket:
    """Make a socket with keepalive; ``address`` is a result of ``getaddrinfo``."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):  # Linux has them all
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


class _Session:
    """Connections with the same credentials."""

    def __init__(self, credentials: Credentials, proxy: str | None, clock: Clock, connect_seconds: float) -> None:
        import aiohttp

        self.proxy = proxy
        self._credentials = credentials
        self._clock = clock
        self._connect_seconds = connect_seconds
        self._token = ""
        self._token_read_at = float("-inf")
        # With ``trust_env`` aiohttp would look for a proxy and a ``.netrc`` at each request, in a thread. Credentials
        # of a ``.netrc`` are not for an API server and conflict with a token.
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=credentials.tls or True, socket_factory=_open_socket),
            cookie_jar=aiohttp.DummyCookieJar(),  # an API server sets no cookies, and each look for them costs time
            read_bufsize=_BUFFER_BYTES,
            trust_env=False,
        )

    @property
    def is_expired(self) -> bool:
        return time.time() >= self._credentials.expires_at

    async def close(self) -> None:
        await self._http.close()

    async def send(self, request: ApiRequest, silence_seconds: float | None) -> Any:
        """Send one request; the caller closes the answer."""
        import aiohttp
        import yarl

        headers = [("Accept", "application/json"), ("Content-Type", request.content_type)]
        headers += [("User-Agent", "neuron-plugin"), *self._credentials.acts_as]
        if authorization := self._authorization():
            headers.append(("Authorization", authorization))
        query = f"?{urlencode(request.query, safe='/', quote_via=quote)}" if request.query else ""
        with _library_errors(request):
            return await self._http.request(
                request.method,
                yarl.URL(self._credentials.server + request.path + query, encoded=True),
                headers=headers,
                data=None if request.body is None else msgspec.json.encode(request.body),
                proxy=self.proxy,
                server_hostname=self._credentials.tls_server_name or None,
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=self._connect_seconds, sock_read=silence_seconds
                ),
            )

    def _authorization(self) -> str:
        """The value of the header; a token file is read every minute."""
        path, now = self._credentials.token_file, self._clock.now()
        if path is None:
            return self._credentials.authorization
        if now - self._token_read_at >= TOKEN_SECONDS:
            try:
                self._token, self._token_read_at = read_token(path), now
            except (CredentialsError, OSError) as error:
                cause = f"API server token: {error}; is the service account's volume mounted?"
                raise ConnectionSettingsError(cause) from error
        return f"Bearer {self._token}"


async def _read(request: ApiRequest, answer: Any) -> Response:
    """Read a complete answer. A ``Retry-After`` with a date is ignored: no API server sends one."""
    retry_after = answer.headers.get("Retry-After", "")
    seconds = float(retry_after) if retry_after.isascii() and retry_after.isdecimal() else None
    with _library_errors(request):
        return Response(answer.status, await answer.read(), seconds)


async def _lines(request: ApiRequest, answer: Any) -> AsyncGenerator[bytes, None]:
    with _library_errors(request):
        async for line in answer.content:
            if line.endswith(b"\n"):  # else it was cut off
                yield line[:-1]


@contextlib.contextmanager
def _library_errors(request: ApiRequest) -> Iterator[None]:
    """Turn the libraries' errors into ours."""
    import aiohttp

    try:
        yield
    except aiohttp.ClientSSLError as error:
        raise _TlsError(request.method, request.path, _why(error), may_have_arrived=False) from error
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise UnreachableError(request.method, request.path, _why(error), may_have_arrived=False) from error
    except (aiohttp.ClientError, aiohttp.http.HttpProcessingError, OSError, ValueError, RuntimeError) as error:
        # An OSError may be a TimeoutError, a RuntimeError is a connection that we have closed, and a line of a watch
        # that is too long is an error of HTTP processing, too.
        raise UnreachableError(request.method, request.path, f"{error!r}", may_have_arrived=True) from error


def _why(error: Exception) -> str:
    """The cause of an error, without aiohttp's own settings."""
    import aiohttp

    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"no trusted connection to {error.host}:{error.port}: {error.certificate_error}"
    if isinstance(error, aiohttp.ClientSSLError):
        return f"no trusted connection to {error.host}:{error.port}: {error.os_error}"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"no connection to {error.host}:{error.port}: {error.os_error.strerror or error.os_error}"
    return str(error)


async def _open_session(source: Source, clock: Clock, times: ClientTimes) -> _Session:
    """Read the credentials; any fault in them becomes a ``ConnectionSettingsError``."""
    try:
        if source is None:
            return _Session(of_service_account(os.environ), None, clock, times.connect)
        if isinstance(source, str):
            return _Session(Credentials(source.rstrip("/")), _environment_proxy(source), clock, times.connect)
        kubeconfig = source if isinstance(source, Kubeconfig) else Kubeconfig((source,))
        async with asyncio.timeout(times.loading):
            credentials = await of_kubeconfig(*kubeconfig)
        return _Session(credentials, credentials.proxy or _environment_proxy(credentials.server), clock, times.connect)
    except TimeoutError:
        cause = f"not loaded within {times.loading:g} s; does its exec plugin wait for input?"
    except OSError as error:
        cause = f"{error.strerror}: {error.filename}" if error.filename else str(error)
    except CredentialsError as error:
        cause = str(error).rstrip(".")
    in_a_pod = "to run in a pod, or a kubeconfig to be given"
    expected = "a kubeconfig that kubectl accepts: fix it, or give another" if source else in_a_pod
    named = os.pathsep.join(map(str, source.paths)) if isinstance(source, Kubeconfig) else source
    settings = named or ("the pod's service account" if source is None else "the command line")
    raise ConnectionSettingsError(f"API server settings from {settings}: {cause}; expected {expected}")


def _environment_proxy(url: str) -> str | None:
    """The proxy for calls to ``url`` by ``HTTPS_PROXY`` and ``NO_PROXY``; None to call it directly.

    Only for kubeconfigs: in a pod the API server is an address in the network of services, never behind a proxy.
    """
    from urllib.request import getproxies, proxy_bypass

    target = urlsplit(url)
    proxy = getproxies().get(target.scheme)
    # The machine itself is never behind a proxy (``golang.org/x/net/http/httpproxy``).
    if not proxy or target.hostname in {"localhost", "127.0.0.1", "::1"} or proxy_bypass(target.netloc):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"
