from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest

from tests.kubelet.conftest import directory
from tests.simulation.api_client import Client
from tests.support.api_server import StandInApiServer

__all__ = ["directory"]


@pytest.fixture
async def server() -> AsyncIterator[StandInApiServer]:
    async with StandInApiServer() as server:
        yield server


@pytest.fixture
async def client(server: StandInApiServer) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession(server.url) as session:
        yield Client(session)
