"""A page of a daemon of ours: asked once, with a deadline."""

from __future__ import annotations

from neuron_plugin.inspection.unknown import Unknown

ASK_SECONDS = 10.0

_MOST_BYTES = 64 << 20
_FINE, _NOT_READY = 200, 503
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where to ask a daemon that listens everywhere


def page_of(address: str, port: int, path: str, *, seconds: float = ASK_SECONDS) -> str | Unknown:
    """What the daemon that serves probes on ``address`` says at ``path``, ready or not."""
    import http.client

    host = _EVERYWHERE.get(address, address)
    connection = http.client.HTTPConnection(host, port, timeout=seconds)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        page = answer.read(_MOST_BYTES).decode("utf-8", "backslashreplace")
    except (OSError, UnicodeError, http.client.HTTPException) as error:  # UnicodeError: no name of a host
        return Unknown(f"no daemon answers on {host}:{port} ({error})", f"does it run here, with --health-port {port}?")
    finally:
        connection.close()
    if answer.status in {_FINE, _NOT_READY}:
        return page
    return Unknown(f"{host}:{port} answers {answer.status} {answer.reason} to {path}", "is it a neuron-plugin?")
