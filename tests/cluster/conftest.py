from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from neuron_plugin.cluster.transport import KubernetesApi, connect
from neuron_plugin.simulation.api_server import StandInApiServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def server() -> AsyncIterator[StandInApiServer]:
    async with StandInApiServer() as server:
        yield server


@pytest.fixture
async def api(server: StandInApiServer, tmp_path: Path) -> AsyncIterator[KubernetesApi]:
    async with await connect(server.write_kubeconfig(tmp_path / "kubeconfig")) as api:
        yield api
