"""A whole extender on loopback, beside the stand-in API server and the stand-in scheduler."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from neuron_plugin.cluster import KubernetesApi
from neuron_plugin.cluster.client import connect
from neuron_plugin.monitor.pages import MonitorPages
from neuron_plugin.placement.daemon import TIMES, ControllerTimes, ExtenderDaemon
from neuron_plugin.placement.settings import ExtenderSettings
from neuron_plugin.simulation.api_server_kinds import PODS, AnyJson
from neuron_plugin.topology import catalogue
from tests.support.api_server import Match, StandInApiServer
from tests.support.manifests import node_manifest

SETTINGS = ExtenderSettings(port=0, health_port=0, health_address="127.0.0.1", leader_election=False)
DEADLINE_SECONDS = 20.0
TRN1 = "trn1.32xlarge"
BINDING = Match(method="POST", path="/binding$")


async def until(holds: Callable[[], object]) -> None:
    """Wait for what other tasks bring about."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not holds():
            await asyncio.sleep(0.005)


class Extender:
    """One running replica, and its HTTP face."""

    def __init__(self, daemon: ExtenderDaemon, stop: asyncio.Event, task: asyncio.Task[None]) -> None:
        self.daemon = daemon
        self.stop = stop
        self.task = task

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.daemon.port}"

    @property
    def health_url(self) -> str:
        return f"http://127.0.0.1:{self.daemon.health_port}"

    async def ready(self) -> Extender:
        await until(lambda: self.task.done() or not self.daemon.ready.why_not)
        if self.task.done():
            self.task.result()
        return self

    async def get(self, path: str, *, health: bool = False) -> tuple[int, str]:
        url = (self.health_url if health else self.url) + path
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return response.status, await response.text()

    async def post(self, path: str, content: object, **headers: str) -> Any:
        body = content if isinstance(content, bytes) else msgspec.json.encode(content)
        headers = {"Content-Type": "application/json", **headers}
        async with (
            aiohttp.ClientSession() as session,
            session.post(self.url + path, data=body, headers=headers) as response,
        ):
            assert response.status == 200
            return msgspec.json.decode(await response.read())


@asynccontextmanager
async def extender_on(
    api: KubernetesApi, settings: ExtenderSettings = SETTINGS, times: ControllerTimes = TIMES
) -> AsyncIterator[Extender]:
    """A replica that is started, not yet ready, and stopped in the end."""
    stop = asyncio.Event()
    daemon = ExtenderDaemon(settings, catalogue(), api, times=times, pages=[MonitorPages()])
    task = asyncio.create_task(daemon.run(stop), name="extender")
    await until(lambda: task.done() or hasattr(daemon, "health_port"))
    try:
        yield Extender(daemon, stop, task)
    finally:
        stop.set()
        await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), DEADLINE_SECONDS)
        gc.unfreeze()  # the process goes on to other tests


@asynccontextmanager
async def client_of(server: StandInApiServer, directory: Path) -> AsyncIterator[KubernetesApi]:
    async with await connect(server.write_kubeconfig(directory / "kubeconfig")) as api:
        yield api


async def add_node(server: StandInApiServer, extender: Extender, name: str, instance_type: str = TRN1) -> None:
    server.create_node(node_manifest(name, instance_type))
    await until(lambda: name in extender.daemon.state.nodes)


async def add_pod(server: StandInApiServer, extender: Extender, manifest: AnyJson) -> AnyJson:
    created = server.create_pod(manifest)
    await until(lambda: created["metadata"]["uid"] in extender.daemon.state.pods)
    return created


def written(server: StandInApiServer, name: str) -> AnyJson:
    found: AnyJson = server.get(PODS, name, "default")["metadata"].get("annotations") or {}
    return found
