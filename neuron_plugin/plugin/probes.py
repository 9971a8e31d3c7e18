"""Is the daemon alive, and can pods get devices from it?

Alive is what a restart would mend: our own sockets, dialled as the kubelet dials them. An API server that is away, a
kubelet that is away or a machine without devices is none of that. Ready is what a rollout waits for: the kubelet
follows every resource, so that pods can get it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path

from neuron_plugin.kubelet import DevicePluginServer, dial
from neuron_plugin.plugin.responder import Page, text_page

DIAL_SECONDS = 2.0
"""Below a probe's usual time-out of some seconds, so that the reason is told."""

Dial = Callable[[Path, float], Awaitable[str | None]]


async def liveness(servers: Sequence[DevicePluginServer], ask: Dial = dial) -> Page:
    """``/healthz``: every socket of ours that should answer does, or which does not and why."""
    faults = [fault for fault in await asyncio.gather(*(_fault_of(server, ask) for server in servers)) if fault]
    return text_page("\n".join(faults), HTTPStatus.SERVICE_UNAVAILABLE) if faults else text_page("ok")


async def _fault_of(server: DevicePluginServer, ask: Dial) -> str:
    socket = server.socket_path
    fault = await ask(socket, DIAL_SECONDS) if socket else None
    if fault and server.socket_path == socket:  # else it was being replaced just now, and that is its life
        return f"{server.resource} does not answer on {socket}: {fault}"
    return ""


def readiness(servers: Sequence[DevicePluginServer], *, found: bool, silent_sources: Mapping[str, str]) -> Page:
    """``/readyz``: every resource is registered and followed by the kubelet, or what is missing.

    ``found``: there is a device to offer. ``silent_sources`` are sources of news about the hardware that are not
    running, and why: pods can be served without them, so they are named and keep nobody waiting.
    """
    missing = [f"{server.resource}: {server.state.value}" for server in servers if not server.registered.is_set()]
    if not found:
        missing = ["no Neuron device has been found: is the driver loaded?"]
    notes = [f"{source} is not running: {why}" for source, why in silent_sources.items()]
    status = HTTPStatus.SERVICE_UNAVAILABLE if missing else HTTPStatus.OK
    return text_page("\n".join([*(missing or ["ok"]), *notes]), status)
