"""The wire to the API server: the one module that imports ``kubernetes``.

The library is used for what is tedious and easy to get wrong (kubeconfig, in-cluster accounts, exec plugins, TLS) and
at its lowest level, because its models cost fifty times the CPU of ours. What that level leaves undone is done here:
the token is asked for by name, every call has a deadline, and credentials that went stale (an expired token, a rotated
CA) are loaded anew by making a new client, without a restart.

Nothing here imports it at import time: ``connect`` does, in a thread, when the sockets that the kubelet waits for are
already served; and only the modules that are used, not all that its packages offer.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from neuron_plugin.cluster.api import ApiRequest, ConnectionSettingsError, Response, UnreachableError, refusal

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
    from pathlib import Path
    from types import ModuleType

log = logging.getLogger(__name__)

_UNAUTHORIZED = 401
_FAILURES_START = 400
_CONNECT_SECONDS = 10.0
_RENEWAL_PAUSE_SECONDS = 10.0
_LOADING_SECONDS = 20.0  # an exec plugin may have to ask an identity provider
_MAX_LINE_BYTES = 64 << 20
_USER_AGENT = "neuron-plugin"
_CROWDED_PACKAGES = ("kubernetes", "kubernetes.aio")


@dataclass(frozen=True, slots=True)
class _Library:
    """The foreign modules, imported late."""

    aiohttp: ModuleType
    client: ModuleType
    configuration: ModuleType
    config: ModuleType


def _import_library() -> _Library:
    for package in _CROWDED_PACKAGES:
        _enter(package)
    import aiohttp  # noqa: PLC0415 - 0.15 s of CPU, see the module's docstring
    from kubernetes.aio import config  # noqa: PLC0415 - as above
    from kubernetes.aio.client import api_client, configuration  # noqa: PLC0415 - as above

    return _Library(aiohttp, api_client, configuration, config)


def _enter(package: str) -> None:
    """Let modules of a package be imported without its ``__init__``, which would import everything else in it.

    These two would bring the synchronous client, requests, a second loader of configuration and, where it finds it,
    jsonschema: 11 MB and 0.1 s of CPU in the image, 30 MB and 1.8 s in a development environment.
    """
    found = None if package in sys.modules else importlib.util.find_spec(package)
    if found is None:
        return  # imported whole by somebody else; or missing, of which the import tells better
    sys.modules[package] = module = importlib.util.module_from_spec(found)
    parent, _, name = package.rpartition(".")
    if parent:
        setattr(sys.modules[parent], name, module)


async def connect(kubeconfig: Path | None, *, clock: Callable[[], float] = time.monotonic) -> KubernetesApi:
    """Load the settings and make a client; no connection is opened yet.

    ``kubeconfig`` None means the pod's own service account. Close the result, or use it as a context manager.

    Raises:
        ConnectionSettingsError: the settings are missing or unusable.
    """
    library = await asyncio.to_thread(_import_library)
    return KubernetesApi(library, kubeconfig, await _open_client(library, kubeconfig), clock)


async def _open_client(library: _Library, kubeconfig: Path | None) -> _Client:
    """Read the settings and build a client with its own connections and TLS context."""
    source = str(kubeconfig) if kubeconfig else "the pod's service account"
    try:
        settings = library.configuration.Configuration(client_session_kwargs=_session_settings())
        if kubeconfig is None:
            library.config.load_incluster_config(client_configuration=settings)
        else:
            # Of a file that is not there the library would log a warning of its own, and then miss a key in it.
            await asyncio.to_thread(kubeconfig.stat)
            async with asyncio.timeout(_LOADING_SECONDS):
                await library.config.load_kube_config(
                    str(kubeconfig), client_configuration=settings, persist_config=False
                )
        client = library.client.ApiClient(configuration=settings)
    except TimeoutError as error:
        trouble = f"not loaded within {_LOADING_SECONDS:g} s; does its exec plugin wait for somebody?"
        raise ConnectionSettingsError(f"API server settings from {source}: {trouble}") from error
    except Exception as error:
        # The loader raises whatever the file made it stumble over: KeyError, YAMLError, binascii.Error.
        expected = "a kubeconfig" if kubeconfig else "to run in a pod, or a kubeconfig to be named"
        raise ConnectionSettingsError(f"API server settings from {source}: {error!r}; expected {expected}") from error
    client.user_agent = _USER_AGENT
    return _Client(client)


def _session_settings() -> dict[str, object]:
    """Let the environment name a proxy, but ask it only if it does.

    aiohttp asks it anew for every request, for a proxy and for a ``.netrc`` (which is none of an API server's business,
    and refuses to stand beside a token), in a thread each: a quarter of what a binding request costs.
    """
    from urllib.request import getproxies  # noqa: PLC0415 - 50 ms of CPU; aiohttp has imported it by now

    return {"trust_env": bool(getproxies())}


class _Client:
    """The library's client and its number of users: a replaced one is closed when its last watch ends."""

    def __init__(self, api_client: Any) -> None:
        self.api_client = api_client
        self._users = 0
        self._retired = False

    @contextlib.asynccontextmanager
    async def in_use(self) -> AsyncIterator[None]:
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            await self._close_if_over()

    async def retire(self) -> None:
        self._retired = True
        await self._close_if_over()

    async def _close_if_over(self) -> None:
        if self._retired and not self._users:
            await self.api_client.close()


class KubernetesApi:
    """``ApiServer`` over HTTP. Made by ``connect``."""

    def __init__(self, library: _Library, kubeconfig: Path | None, client: _Client, clock: Callable[[], float]) -> None:
        self._library = library
        self._kubeconfig = kubeconfig
        self._client = client
        self._clock = clock
        self._renewed_at = float("-inf")
        self._renewing = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections as soon as the calls under way are over."""
        await self._client.retire()

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
        limits = self._library.aiohttp.ClientTimeout(
            total=None, sock_connect=min(_CONNECT_SECONDS, silence_seconds), sock_read=silence_seconds
        )
        async with self._answer(request, limits) as answer:
            if answer.status >= _FAILURES_START:
                raise refusal(answer.status, await self._read(request, answer), request)
            async with contextlib.aclosing(self._lines(request, answer)) as lines:
                yield lines

    async def _ask(self, request: ApiRequest) -> Response:
        limits = self._library.aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS)
        async with self._answer(request, limits) as answer:
            return Response(answer.status, await self._read(request, answer))

    @contextlib.asynccontextmanager
    async def _answer(self, request: ApiRequest, limits: object) -> AsyncGenerator[Any, None]:
        """Send, again with new credentials if they were refused, and keep the client open while the answer is read."""
        client = self._client
        async with contextlib.AsyncExitStack() as held:
            try:
                answer = await self._send(held, client, request, limits)
            except _TlsError:
                if not await self._renew(client):
                    raise
                answer = await self._send(held, self._client, request, limits)
            else:
                if answer.status == _UNAUTHORIZED and await self._renew(client):
                    answer = await self._send(held, self._client, request, limits)
            yield answer

    async def _send(self, held: contextlib.AsyncExitStack, client: _Client, request: ApiRequest, limits: object) -> Any:
        """Hand one request to the library, which sends a token only where its name is given."""
        await held.enter_async_context(client.in_use())
        with self._troubles(request):
            method, url, headers, body, post = await client.api_client.param_serialize(
                request.method,
                request.path,
                query_params=list(request.query.items()),
                header_params={"Accept": "application/json", "Content-Type": request.content_type},
                body=request.body,
                auth_settings=["BearerToken"],
            )
            answer = (
                await client.api_client.call_api(method, url, headers, body, post, _request_timeout=limits)
            ).response
        held.callback(answer.close)
        return answer

    async def _read(self, request: ApiRequest, answer: Any) -> bytes:
        with self._troubles(request):
            body: bytes = await answer.read()
        return body

    async def _lines(self, request: ApiRequest, answer: Any) -> AsyncGenerator[bytes, None]:
        with self._troubles(request):
            async with contextlib.aclosing(split_lines(answer.content.iter_any())) as lines:
                async for line in lines:
                    yield line

    async def _renew(self, stale: _Client) -> bool:
        """Load credentials and CA again after they were refused; at most every ten seconds.

        True if there is a newer client.
        """
        async with self._renewing:
            if self._client is not stale:
                return True
            if self._clock() - self._renewed_at < _RENEWAL_PAUSE_SECONDS:
                return False
            self._renewed_at = self._clock()
            try:
                self._client = await _open_client(self._library, self._kubeconfig)
            except ConnectionSettingsError as error:
                log.warning("credentials for the API server cannot be loaded again", extra={"error": str(error)})
                return False
        await stale.retire()
        log.info("credentials for the API server loaded again")
        return True

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
        except self._library.config.ConfigException as error:
            raise ConnectionSettingsError(
                f"API server token: {error}; is the service account's volume mounted?"
            ) from error


class _TlsError(UnreachableError):
    """The handshake failed: the CA may have been rotated since it was read."""


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
