"""Which proxy the environment names for the API server.

Whoever sets ``HTTPS_PROXY`` and ``NO_PROXY`` in a cluster writes them for Go, where networks count
(``172.20.0.0/16``) and the machine itself is never behind a proxy (``golang.org/x/net/http/httpproxy``). Python's own
reading of them knows no networks, and in a pod the API server *is* an address in the network of services.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def proxy_for(url: str) -> str | None:
    """The URL of the proxy for calls to ``url``; None to call it directly."""
    from urllib.request import getproxies

    named = getproxies()  # by scheme, and the text of NO_PROXY under "no"
    target = urlsplit(url)
    proxy = named.get(target.scheme)
    if not proxy or not target.hostname or _is_direct(target.hostname, target.port, named.get("no", "")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_direct(host: str, port: int | None, no_proxy: str) -> bool:
    address = _address(host)
    if host == "localhost" or (address and address.is_loopback):
        return True
    entries = (entry.strip().lower().removesuffix(f":{port}") for entry in no_proxy.split(","))
    return any(_means(entry, host, address) for entry in entries if entry)


def _means(entry: str, host: str, address: _Address | None) -> bool:
    """Whether an entry is ``*``, the host's address or network, or its domain (``*.`` or ``.`` before it may be)."""
    if entry == "*":
        return True
    if address:
        return _contains(entry.strip("[]"), address)
    domain = entry.removeprefix("*").removeprefix(".")
    return host.endswith(f".{domain}") or host == entry


def _contains(network: str, address: _Address) -> bool:
    try:
        return address in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def _address(host: str) -> _Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
