"""The server's TLS: 1.2 at least, clients' certificates when a CA is given, own certificates replaced in flight.

A certificate is read again into the live context, so connections go on and the next handshake gets the new one.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import NoReturn

_log = logging.getLogger(__name__)
CHECK_SECONDS = 10.0


class ServerCertificate:
    """A certificate chain, a key and clients' CA in files that others may replace, and the context that serves them."""

    def __init__(self, chain: Path, key: Path, client_ca: Path | None) -> None:
        """Load them.

        Raises:
            OSError: a file cannot be read, or (ssl.SSLError) is not what it should be.
        """
        self._chain = chain
        self._key = key
        self._client_ca = client_ca
        self._seen = self._stamp()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._load(self.context)
        if client_ca:
            self.context.verify_mode = ssl.CERT_REQUIRED

    def reload_if_changed(self) -> bool:
        """Read the files again if they were replaced; a pair that does not match yet is left for the next look.

        Such a pair would leave the live context without any, so it is tried on another one first. A CA that was
        replaced stays trusted until the next start.
        """
        try:
            stamp = self._stamp()
            if stamp == self._seen:
                return False
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
            self._load(self.context)
        except OSError as error:  # ssl.SSLError is one
            _log.warning("certificate not reloaded", extra={"path": str(self._chain), "cause": str(error)})
            return False
        self._seen = stamp
        _log.info("certificate reloaded", extra={"path": str(self._chain)})
        return True

    async def watch(self) -> NoReturn:
        """Look every few seconds: Kubernetes replaces a mounted Secret by switching a symlink."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            self.reload_if_changed()

    def _load(self, context: ssl.SSLContext) -> None:
        context.load_cert_chain(self._chain, self._key)
        if self._client_ca:
            context.load_verify_locations(self._client_ca)

    def _stamp(self) -> tuple[tuple[int, int, int], ...]:
        files = (self._chain, self._key, self._client_ca)
        found = [file.stat() for file in files if file]
        return tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in found)
