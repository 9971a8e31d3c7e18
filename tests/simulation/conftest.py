from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from neuron_plugin.simulation.node import SimulatedNode, write_node
from tests.simulation.api_client import Client
from tests.simulation.node_tree import MakeNode
from tests.support.api_server import StandInApiServer


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory with a name short enough for sockets in it; pytest's own are too long."""
    with tempfile.TemporaryDirectory(prefix="np-") as path:
        yield Path(path)


@pytest.fixture
async def server() -> AsyncIterator[StandInApiServer]:
    async with StandInApiServer() as server:
        yield server


@pytest.fixture
async def client(server: StandInApiServer) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession(server.url) as session:
        yield Client(session)


@pytest.fixture
def make_node(tmp_path: Path) -> MakeNode:
    """Write a machine without the usage counters, which take most of the time."""

    def make(instance_type: str = "inf2.24xlarge", **options: object) -> SimulatedNode:
        chosen = {"usage_counters": False, **options}
        return write_node(tmp_path / "node", instance_type, **chosen)  # type: ignore[arg-type]  # checked at run time

    return make
