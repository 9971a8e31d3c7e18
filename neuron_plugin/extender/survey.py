"""The cluster's state from one look at the API server, for explanations without an extender at hand."""

from __future__ import annotations

from neuron_plugin.cluster.api import ApiServer
from neuron_plugin.cluster.kinds import NODES, PODS
from neuron_plugin.cluster.lists import pages
from neuron_plugin.extender.feeds import keep_pod
from neuron_plugin.extender.observation import node_facts
from neuron_plugin.extender.state import ClusterState
from neuron_plugin.topology.instances import Catalogue

PAGE_SECONDS = 30.0


async def survey(api: ApiServer, types: Catalogue) -> ClusterState:
    """What an extender that starts now would know.

    Raises:
        ClusterError: the API server refused, did not answer, or its answer cannot be read.
    """
    state = ClusterState(types)
    async for page in pages(api, PODS, page_timeout_seconds=PAGE_SECONDS):
        for pod in page.records:
            if record := keep_pod(pod):
                state.put_pod(record)
    async for nodes in pages(api, NODES, page_timeout_seconds=PAGE_SECONDS):
        for node in nodes.records:
            state.put_node(node_facts(node))
    return state
