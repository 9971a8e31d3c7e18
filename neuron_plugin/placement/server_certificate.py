"""A server's certificate, read again whenever its files are replaced."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import NoReturn

from neuron_plugin.settings import SettingsError

CHECK_SECONDS = 10.0
"""Between two looks at the files."""
_log = logging.getLogger(__name__)


class ServerCertificate:
    """A certificate chain, a key and clients' CA in files that may be replaced, and the context that serves them.

    TLS 1.2 at least, and clients' certificates when a CA is given. A certificate is read again into the live context,
    so connections go on and the next handshake gets the new one.
    """

    def __init__(self, chain: Path, key: Path, client_ca: Path | None) -> None:
        """Load them.

        Raises:
            SettingsError: a file cannot be read or is invalid; names the setting and the file.
        """
        self._files = {"tls-cert": chain, "tls-key": key} | ({"client-ca": client_ca} if client_ca else {})
        self._seen = self._contents()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._load(self.context)
        if client_ca:
            self.context.verify_mode = ssl.CERT_REQUIRED

    def reload_if_changed(self) -> bool:
        """Read the files again if they were replaced; a pair that does not match yet is left for the next look.

        Such a pair would leave the live context without a certificate, so it is tried on another one first. A replaced
        CA stays trusted until the next start.
        """
        try:
            contents = self._contents()
            if contents == self._seen:
                return False
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
            self._load(self.context)
        except SettingsError as error:
            _log.warning("certificate not reloaded", extra={"cause": str(error)})
            return False
        self._seen = contents
        _log.info("certificate reloaded", extra={"path": str(self._files["tls-cert"])})
        return True

    async def watch(self) -> NoReturn:
        """Look every few seconds: Kubernetes replaces a mounted Secret by switching a symlink."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            self.reload_if_changed()

    def _load(self, context: ssl.SSLContext) -> None:
        chain, key, client_ca = self._files["tls-cert"], self._files["tls-key"], self._files.get("client-ca")
        try:  # with an empty password, because OpenSSL would ask for one at the terminal
            context.load_cert_chain(chain, key, password="")
        except ssl.SSLError as error:
            expected = "a certificate chain and the key of its first certificate, not encrypted"
            raise SettingsError(f"tls-cert {chain} with tls-key {key}: {_reason(error)}; expected {expected}") from None
        try:
            if client_ca:
                context.load_verify_locations(client_ca)
        except ssl.SSLError as error:
            raise SettingsError(f"client-ca is {client_ca}: {_reason(error)}; expected certificates in PEM") from None

    def _contents(self) -> tuple[bytes, ...]:
        contents = []
        for setting, file in self._files.items():
            kind = b"PRIVATE KEY-----" if setting == "tls-key" else b"CERTIFICATE-----"
            try:
                contents.append(file.read_bytes())
            except OSError as error:
                raise SettingsError(f"{setting} is {file}: {error.strerror}") from None
            if kind not in contents[-1]:
                raise SettingsError(f"{setting} is {file}, which holds no {kind.decode().strip('-').lower()} in PEM")
        return tuple(contents)


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")
