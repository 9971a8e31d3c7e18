"""The connection to the API server: where it is, what it trusts, who we are, and sending.

The ``kubernetes`` package reads the settings, keeps tokens fresh and sends. Its models cost fifty times the CPU of
ours, and its ``ApiClient`` 10 MB, so requests go out one level lower. What that level leaves undone is done here: the
token is asked for, every call has a deadline, and the libraries' many errors become ours.

Tokens expire and CAs are rotated. A client reads both once (a service account's token every minute). When the server
refuses the credentials, or the handshake fails, a new client is made from what the files say now, without a restart.

This is the only module that imports the library, and only in ``connect``, in a thread: the plugin serves the sockets
that the kubelet waits for first.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import socket
import sys
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Self, TypeAlias, cast
from urllib.parse import quote, urlencode, urlsplit

from neuron_plugin.backoff import CLOCK, Clock
from neuron_plugin.cluster.api import ApiRequest, ConnectionSettingsError, Response, UnreachableError, refusal

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator
    from pathlib import Path

log = logging.getLogger(__name__)

_CONNECT_SECONDS = 10.0
_RENEWAL_PAUSE_SECONDS = 10.0
_LOADING_SECONDS = 20.0  # an exec plugin may have to ask an identity provider
_BUFFER_BYTES = 16 << 20
"""aiohttp refuses a line of more than twice its buffer; the library's 2 MiB are too few for the largest pods."""

_KEEPALIVE = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 30_000))
"""Notices within 30 s that the other end of a connection is gone, whether the connection waits or sends.

That is before the Leases of nodes expire (40 s), whose renewals do not arrive meanwhile.
"""


Source: TypeAlias = "Path | str | None"
"""A kubeconfig; or the URL of a server that asks for no credentials; or None: the pod's own service account."""


async def connect(source: Source, *, clock: Clock = CLOCK) -> KubernetesApi:
    """Load the settings and make a client; no connection is opened yet.

    Close the result, or use it as a context manager.

    Raises:
        ConnectionSettingsError: the settings are missing or unusable.
    """
    await asyncio.to_thread(_import_library)
    return KubernetesApi(await _open_client(source), source, clock)


class KubernetesApi:
    """``ApiServer`` over HTTP. Made by ``connect``."""

    def __init__(self, client: Any, source: Source, clock: Clock) -> None:
        self._client = client
        self._source = source
        self._clock = clock
        self._renewed_at = float("-inf")
        self._renewing = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; calls under way fail."""
        await self._client.close()

    async def request(self, request: ApiRequest, *, timeout_seconds: float) -> Response:
        """See ``ApiServer.request``; the deadline covers everything from loading credentials to the last byte."""
        try:
            async with asyncio.timeout(timeout_seconds), self._exchange(request) as answer:
                return await _read(request, answer)
        except TimeoutError as error:
            cause = f"no answer within {timeout_seconds:g} s"
            raise UnreachableError(request.method, request.path, cause, may_have_arrived=True) from error

    @contextlib.asynccontextmanager
    async def stream(
        self, request: ApiRequest, *, silence_seconds: float
    ) -> AsyncGenerator[AsyncIterator[bytes], None]:
        """See ``ApiServer.stream``."""
        async with self._exchange(request, silence_seconds) as answer:
            if answer.status >= HTTPStatus.BAD_REQUEST:
                raise refusal(await _read(request, answer), request)
            async with contextlib.aclosing(_lines(request, answer)) as lines:
                yield lines

    @contextlib.asynccontextmanager
    async def _exchange(self, request: ApiRequest, silence_seconds: float | None = None) -> AsyncGenerator[Any, None]:
        """Send, again with new credentials if they were refused, and close the answer after the block."""
        client, answer = self._client, None
        try:
            answer = await _send(client, request, silence_seconds)
        except _TlsError:
            if not await self._renew(client):
                raise
        if answer is None or (answer.status == HTTPStatus.UNAUTHORIZED and await self._renew(client)):
            answer = await _send(self._client, request, silence_seconds)
        with contextlib.closing(answer):
            yield answer

    async def _renew(self, refused: Any) -> bool:
        """Load credentials again, at most every ten seconds; whether there is a newer client than ``refused``.

        The connections of the old client are closed: an open watch fails, and is opened again by its reflector.
        """
        async with self._renewing:
            if self._client is not refused:
                return True
            if self._clock.now() - self._renewed_at < _RENEWAL_PAUSE_SECONDS:
                return False
            self._renewed_at = self._clock.now()
            try:
                self._client = await _open_client(self._source)
            except ConnectionSettingsError as error:
                log.warning("credentials for the API server cannot be loaded again", extra={"error": str(error)})
                return False
        await refused.close()
        log.info("credentials for the API server loaded again")
        return True


class _TlsError(UnreachableError):
    """The handshake failed: the CA may have been rotated since it was read."""


def _open_socket(address: Any) -> socket.socket:
    """Make the socket of a connection, with keepalive; ``address`` is as ``getaddrinfo`` gives it."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):  # Linux has them all
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


async def _send(client: Any, request: ApiRequest, silence_seconds: float | None) -> Any:
    """Send one request; the caller closes the answer."""
    import aiohttp
    from kubernetes.aio.config import ConfigException

    headers = {"Accept": "application/json", "Content-Type": request.content_type, "User-Agent": "neuron-plugin"}
    try:
        token = (await client.configuration.auth_settings()).get("BearerToken")  # a service account's is read again
    except (ConfigException, OSError) as error:
        cause = f"API server token: {error}; is the service account's volume mounted?"
        raise ConnectionSettingsError(cause) from error
    if token:
        headers[token["key"]] = token["value"]
    query = f"?{urlencode(request.query, safe='/', quote_via=quote)}" if request.query else ""
    url = client.configuration.host + request.path + query
    limits = aiohttp.ClientTimeout(total=None, connect=_CONNECT_SECONDS, sock_read=silence_seconds)
    with _library_errors(request):
        sent = client.request(request.method, url, headers=headers, body=request.body, _request_timeout=limits)
        return (await sent).response


async def _read(request: ApiRequest, answer: Any) -> Response:
    """Read a complete answer. A ``Retry-After`` that is a date, which no API server sends, does not count."""
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
        cause = f"no trusted connection to {error.host}:{error.port}: {error.os_error}"
        raise _TlsError(request.method, request.path, cause, may_have_arrived=False) from error
    except aiohttp.ClientConnectorError as error:
        cause = f"no connection to {error.host}:{error.port}: {error.os_error.strerror or error.os_error}"
        raise UnreachableError(request.method, request.path, cause, may_have_arrived=False) from error
    except aiohttp.ConnectionTimeoutError as error:
        raise UnreachableError(request.method, request.path, f"{error}", may_have_arrived=False) from error
    except (aiohttp.ClientError, aiohttp.http.HttpProcessingError, OSError, ValueError, RuntimeError) as error:
        # An OSError may be a TimeoutError, a RuntimeError is a connection that we have closed, and a line of a watch
        # that is too long is an error of HTTP processing.
        raise UnreachableError(request.method, request.path, f"{error!r}", may_have_arrived=True) from error


async def _open_client(source: Source) -> Any:
    """Make the library's client; whatever is wrong with the settings becomes a ``ConnectionSettingsError``."""
    try:
        return await _load_client(source)
    except TimeoutError:
        cause = f"not loaded within {_LOADING_SECONDS:g} s; does its exec plugin wait for input?"
    except OSError as error:
        cause = f"{error.strerror}: {error.filename}" if error.filename else str(error)
    except (AttributeError, LookupError, TypeError):
        cause = "a part of it does not have the expected form"  # the loader's text is about Python's types
    except Exception as error:  # noqa: BLE001 - whatever the file made the loader raise: YAMLError, binascii.Error
        cause = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    in_a_pod = "to run in a pod, or a kubeconfig to be given"
    expected = "a kubeconfig that kubectl accepts: fix it, or give another" if source else in_a_pod
    settings = source or "the pod's service account"
    raise ConnectionSettingsError(f"API server settings from {settings}: {cause}; expected {expected}")


async def _load_client(source: Source) -> Any:
    import aiohttp
    from kubernetes.aio import config
    from kubernetes.aio.client.configuration import Configuration
    from kubernetes.aio.client.rest import RESTClientObject

    settings, loaders = Configuration(), cast("Any", config)
    if source is None:
        loaders.load_incluster_config(client_configuration=settings)
    elif isinstance(source, str):
        settings.host, settings.proxy = source.rstrip("/"), _environment_proxy(source)
    else:
        # Of a missing file the library would log a warning of its own, and then report a missing key.
        await asyncio.to_thread(source.stat)
        async with asyncio.timeout(_LOADING_SECONDS):
            await loaders.load_kube_config(str(source), client_configuration=settings, persist_config=False)
        settings.proxy = settings.proxy or _environment_proxy(settings.host)
    client: Any = RESTClientObject(settings)
    # With a trusted environment aiohttp would look, at each request and in a thread, for a proxy and for a ``.netrc``,
    # whose credentials are not for an API server and cannot stand beside a token.
    client.pool_manager = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=client.ssl_context, socket_factory=_open_socket),
        read_bufsize=_BUFFER_BYTES,
        trust_env=False,
    )
    return client


def _environment_proxy(url: str) -> str | None:
    """The proxy that ``HTTPS_PROXY`` and ``NO_PROXY`` name for calls to ``url``; None to call it directly.

    Only for kubeconfigs: in a pod the API server is an address in the network of services, never behind a proxy.
    """
    from urllib.request import getproxies, proxy_bypass

    target = urlsplit(url)
    proxy = getproxies().get(target.scheme)
    # The machine itself is never behind a proxy (``golang.org/x/net/http/httpproxy``).
    if not proxy or target.hostname in {"localhost", "127.0.0.1", "::1"} or proxy_bypass(target.netloc):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _import_library() -> None:
    """Import only what is used of ``kubernetes``: its readers of settings and its bare HTTP client.

    The ``__init__`` modules of its packages would bring along the synchronous client, requests and jsonschema: 11 MB
    and 0.1 s of CPU in the image. The reader of kubeconfigs imports ``ApiClient``, which it uses in functions that are
    not called here, and pydantic with it: 9 MB. No supported way avoids them, importlib's ``LazyLoader`` neither. So
    the version is held below the next major one, and a test fails when this does not work, or is not needed any more.
    """
    if "kubernetes.aio.config" in sys.modules:
        return
    for package in ("kubernetes", "kubernetes.aio"):
        spec = None if package in sys.modules else importlib.util.find_spec(package)
        if spec is None:
            continue  # imported as a whole already; or missing, which the import below reports
        sys.modules[package] = module = importlib.util.module_from_spec(spec)
        parent, _, name = package.rpartition(".")
        if parent:
            setattr(sys.modules[parent], name, module)
    import aiohttp  # noqa: F401 - loaded here, in a thread, for the functions above
    from kubernetes.aio import client
    from kubernetes.aio.client import configuration, rest  # noqa: F401 - as above

    vars(client)["ApiClient"] = None
    try:
        from kubernetes.aio import config  # noqa: F401 - as above
    finally:
        vars(client).pop("ApiClient", None)
