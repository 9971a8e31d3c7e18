"""Fixtures for every room of the placement controller: a cluster in memory, or a daemon on a simulated server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from neuron_plugin.cluster import KubernetesApi
from neuron_plugin.placement.context import Times
from neuron_plugin.placement.daemon import ControllerTimes
from neuron_plugin.placement.informers import InformerTimes
from tests.support.api_server import StandInApiServer
from tests.support.bench import Bench
from tests.support.running import Extender, client_of, extender_on
from tests.support.scheduler import StandInScheduler
from tests.support.served import TRN1, serving
from tests.support.world import World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def bench(world: World) -> Bench:
    return Bench(world)


@pytest.fixture
async def server() -> AsyncIterator[StandInApiServer]:
    async with StandInApiServer() as server:
        yield server


@pytest.fixture
async def api(server: StandInApiServer, tmp_path: Path) -> AsyncIterator[KubernetesApi]:
    async with client_of(server, tmp_path) as api:
        yield api


@pytest.fixture
async def extender(api: KubernetesApi) -> AsyncIterator[Extender]:
    """A single replica, ready, that looks often."""
    times = ControllerTimes(placing=Times(events=0.02), informers=InformerTimes(tick=0.02))
    async with extender_on(api, times=times) as extender:
        yield await extender.ready()


@pytest.fixture
async def port(world: World) -> AsyncIterator[int]:
    world.node("node", TRN1)
    async with serving(world) as port:
        yield port


@pytest.fixture
async def scheduler(extender: Extender) -> AsyncIterator[StandInScheduler]:
    async with StandInScheduler(extender.url) as scheduler:
        yield scheduler
