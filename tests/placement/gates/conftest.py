"""A replica that places gated pods, on a simulated API server."""

from __future__ import annotations

import pytest

from neuron_plugin.cluster import KubernetesApi
from tests.placement.gates.bench import GatesBench
from tests.support.api_server import StandInApiServer


@pytest.fixture
def gated(server: StandInApiServer, api: KubernetesApi) -> GatesBench:
    return GatesBench(server, api, release_when_full="auto")
