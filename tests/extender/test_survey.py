from __future__ import annotations

import pytest

from neuron_plugin.cluster.api import UnreachableError
from neuron_plugin.cluster.transport import KubernetesApi
from neuron_plugin.extender.survey import survey
from neuron_plugin.simulation.api_server import StandInApiServer
from neuron_plugin.simulation.manifests import node_manifest, pod_manifest
from neuron_plugin.topology.instances import catalogue
from tests.extender.running import Extender, until
from tests.extender.world import DEVICE


async def test_a_survey_sees_what_a_running_extender_sees(
    server: StandInApiServer, api: KubernetesApi, extender: Extender
) -> None:
    server.create_node(node_manifest("node", "trn1.32xlarge"))
    server.create_pod(pod_manifest("bound", DEVICE, 1, node="node", annotations={"NEURON_DEVS": "3"}))
    server.create_pod(pod_manifest("waiting", DEVICE, 4))
    server.create_pod(pod_manifest("plain", DEVICE, 0))
    await until(lambda: extender.daemon.state.nodes and len(extender.daemon.state.pods) == 2)

    found = await survey(api, catalogue())

    assert dict(found.pods) == dict(extender.daemon.state.pods)
    assert found.nodes["node"] == extender.daemon.state.nodes["node"]


async def test_an_absent_api_server_is_told(server: StandInApiServer, api: KubernetesApi) -> None:
    await server.stop()

    with pytest.raises(UnreachableError):
        await survey(api, catalogue())
