"""What the running daemon says of itself on its probes and metrics: asked once, with a deadline."""

from __future__ import annotations

import re

from neuron_plugin.cli.doctor_facts import Unknown
from neuron_plugin.plugin.settings import PluginSettings

ASK_SECONDS = 2.0

_MOST_BYTES = 1 << 20
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where to ask a daemon that listens everywhere
_SILENT = " is not running: "
"""In what the readiness page notes of a source."""
_HELD_BACK = re.compile(r'^neuron_plugin_device_healthy\{device="(\d+)"\} 0(?:\.0)?$', re.MULTILINE)


def silent_sources(settings: PluginSettings) -> tuple[str, ...] | Unknown:
    """Sources that do not work, in the daemon's words."""
    page = _page(settings, "/readyz")
    return page if isinstance(page, Unknown) else tuple(line for line in page.splitlines() if _SILENT in line)


def held_back(settings: PluginSettings) -> tuple[int, ...] | Unknown:
    """Devices that the daemon does not hand out."""
    page = _page(settings, "/metrics")
    return page if isinstance(page, Unknown) else tuple(sorted(int(device) for device in _HELD_BACK.findall(page)))


def _page(settings: PluginSettings, path: str) -> str | Unknown:
    import http.client  # noqa: PLC0415 - only for this question

    if not settings.health_port:
        return Unknown("the daemon serves no probes", "give it a --health-port to be asked about its sources")
    host = _EVERYWHERE.get(settings.health_address, settings.health_address)
    connection = http.client.HTTPConnection(host, settings.health_port, timeout=ASK_SECONDS)
    try:
        connection.request("GET", path)
        return connection.getresponse().read(_MOST_BYTES).decode("utf-8", "backslashreplace")
    except (OSError, http.client.HTTPException) as error:
        return Unknown(f"no daemon answers on {host}:{settings.health_port} ({error})", "run this in the plugin's pod")
    finally:
        connection.close()
