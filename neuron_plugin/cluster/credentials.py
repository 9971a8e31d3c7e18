"""Reaching an API server: where it is, whom to trust there, and who we are.

All three go stale: tokens expire, CAs are rotated. A client reads them once (a service account's token every minute),
so when the server refuses them, or is not trusted any more, another client is made of what the files say now; watches
that are open stay with the old one until they end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import TYPE_CHECKING, Any

from neuron_plugin.cluster.api import ConnectionSettingsError
from neuron_plugin.cluster.proxies import proxy_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from neuron_plugin.cluster.library import Library

log = logging.getLogger(__name__)

_RENEWAL_PAUSE_SECONDS = 10.0
_LOADING_SECONDS = 20.0  # an exec plugin may have to ask an identity provider
_USER_AGENT = "neuron-plugin"
_IN_A_POD = "to run in a pod, or a kubeconfig to be named"

_PULSE = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 30_000))
"""How a connection whose other end vanished without a word is noticed: within 30 s, whether it was waiting or sending.

That is before the leases of nodes run out (40 s), whose renewals nobody hears meanwhile.
"""


class Client:
    """The library's client, its connections, and its number of users: once retired, it is closed by the last."""

    def __init__(self, library: Library, settings: Any) -> None:
        self.library_client = library.client.ApiClient(configuration=settings)
        self.library_client.user_agent = _USER_AGENT
        tls = self.library_client.rest_client.ssl_context
        self._connector = library.aiohttp.TCPConnector(ssl=tls, socket_factory=_socket_with_a_pulse)
        # Read at the first request. Were the environment trusted, it would be asked at each, in a thread, for a proxy
        # and for a ``.netrc``, which is none of an API server's business and refuses to stand beside a token.
        settings.client_session_kwargs = {"connector": self._connector, "trust_env": False}
        self._users = 0
        self._retired = False

    @contextlib.asynccontextmanager
    async def in_use(self) -> AsyncIterator[None]:
        """Keep it open for the length of the block."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            await self._close_if_over()

    async def retire(self) -> None:
        """Close the connections as soon as the calls under way are over."""
        self._retired = True
        await self._close_if_over()

    async def _close_if_over(self) -> None:
        if self._retired and not self._users:
            await self.library_client.close()
            await self._connector.close()


def _socket_with_a_pulse(address: Any) -> socket.socket:
    """Make the socket of a connection; ``address`` is as ``getaddrinfo`` gives it."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _PULSE:
        if hasattr(socket, name):  # Linux has them all
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


class Credentials:
    """The client at present, and the way to the next one. ``kubeconfig`` None means the pod's service account."""

    def __init__(self, library: Library, kubeconfig: Path | None, client: Client, clock: Callable[[], float]) -> None:
        self.client = client
        self._library = library
        self._kubeconfig = kubeconfig
        self._clock = clock
        self._renewed_at = float("-inf")
        self._renewing = asyncio.Lock()

    async def renew(self, stale: Client) -> bool:
        """Load everything again after it was refused, at most every ten seconds; whether there is a newer client."""
        async with self._renewing:
            if self.client is not stale:
                return True
            if self._clock() - self._renewed_at < _RENEWAL_PAUSE_SECONDS:
                return False
            self._renewed_at = self._clock()
            try:
                self.client = await open_client(self._library, self._kubeconfig)
            except ConnectionSettingsError as error:
                log.warning("credentials for the API server cannot be loaded again", extra={"error": str(error)})
                return False
        await stale.retire()
        log.info("credentials for the API server loaded again")
        return True


async def open_client(library: Library, kubeconfig: Path | None) -> Client:
    """Read the settings and make a client of them; no connection is opened yet.

    Raises:
        ConnectionSettingsError: the settings are missing or unusable.
    """
    source = str(kubeconfig) if kubeconfig else "the pod's service account"
    try:
        return Client(library, await _settings(library, kubeconfig))
    except TimeoutError as error:
        trouble = f"not loaded within {_LOADING_SECONDS:g} s; does its exec plugin wait for somebody?"
        raise ConnectionSettingsError(f"API server settings from {source}: {trouble}") from error
    except Exception as error:
        # The loader raises whatever the file made it stumble over: KeyError, YAMLError, binascii.Error.
        expected = "a kubeconfig that kubectl takes: mend it, or name another" if kubeconfig else _IN_A_POD
        trouble = f"{_in_words(error, kubeconfig)}; expected {expected}"
        raise ConnectionSettingsError(f"API server settings from {source}: {trouble}") from error


def _in_words(error: Exception, kubeconfig: Path | None) -> str:
    """One line of what is wrong. Where the loader takes one thing for another, its words are of Python's types."""
    if isinstance(error, (AttributeError, LookupError, TypeError)):
        return "some part of it is not of the form that it should have"
    if isinstance(error, OSError) and error.strerror:
        elsewhere = error.filename and error.filename != str(kubeconfig)
        return f"{error.strerror}: {error.filename}" if elsewhere else error.strerror
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


async def _settings(library: Library, kubeconfig: Path | None) -> Any:
    settings = library.configuration.Configuration()
    if kubeconfig is None:
        library.config.load_incluster_config(client_configuration=settings)
    else:
        # Of a file that is not there the library would log a warning of its own, and then miss a key in it.
        await asyncio.to_thread(kubeconfig.stat)
        async with asyncio.timeout(_LOADING_SECONDS):
            await library.config.load_kube_config(str(kubeconfig), client_configuration=settings, persist_config=False)
    settings.proxy = settings.proxy or proxy_for(settings.host)
    return settings
