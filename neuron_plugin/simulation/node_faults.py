"""What befalls a whole node of a cluster that runs by itself: its kubelet, or the machine; asked for over HTTP."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from neuron_plugin.cluster import ApiRequest
from neuron_plugin.cluster.api import Response
from neuron_plugin.simulation.api_server_kinds import Refusal
from neuron_plugin.simulation.machines import NODE_FAULTS, NODE_FAULTS_PATH
from neuron_plugin.simulation.node_lifecycle import NOT_READY_SECONDS, TOLERATION_SECONDS

if TYPE_CHECKING:
    from neuron_plugin.simulation.cluster import SimulatedCluster

REBOOT_SECONDS = 3.0
"""That a machine is off: less than a real one, because someone waits for it."""
_SILENT = (
    f"not ready after {NOT_READY_SECONDS:g} s of silence; after {TOLERATION_SECONDS:g} s more its pods are evicted, "
    "unless they tolerate it otherwise"
)


class NodeFaults:
    """The answers to such requests."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._lost: set[str] = set()
        self._one_by_one = asyncio.Lock()

    async def answer(self, request: ApiRequest) -> Response:
        """Do what a request asks, and say in a sentence what is so now.

        Raises:
            Refusal: there is no such node or fault, or it cannot be now.
        """
        name, what, deed = [*request.path.removeprefix(NODE_FAULTS_PATH).split("/"), "", ""][:3]
        async with self._one_by_one:
            text = await self._befall(name, what, deed)
        return Response(200, msgspec.json.encode({"message": f"node {name}: {text}"}))

    async def _befall(self, name: str, what: str, deed: str) -> str:
        node = self._cluster.node(name)
        if node is None:
            raise Refusal(404, f"no node of the playground is called {name}", name=name, kind="nodes")
        if deed not in NODE_FAULTS.get(what, ()):
            raise Refusal(404, "the server could not find the requested resource")
        if (deed != "back" and name in self._lost) or (deed == "back" and name not in self._lost):
            raise Refusal(409, f"node {name} is {'lost' if name in self._lost else 'not lost'}", name=name)
        if what == "kubelet" and node.up is (deed == "start"):
            raise Refusal(409, f"the kubelet of node {name} {'runs' if node.up else 'does not run'}", name=name)
        match deed:
            case "restart":
                await node.stop_kubelet()
                await node.start_kubelet()
                return "its kubelet has started again; containers ran on"
            case "stop":
                await node.stop_kubelet()
                return f"its kubelet is stopped, and containers run on; it is {_SILENT}"
            case "start":
                await node.start_kubelet()
                return "its kubelet runs again"
            case "reboot":
                await node.power_off()
                await asyncio.sleep(REBOOT_SECONDS)
                await node.power_on()
                before = "; a pod with devices fails that its kubelet admits before its plugin is there"
                return f"the machine has started again{before if name in self._cluster.workers else ''}"
            case "lost":
                self._lost.add(name)
                await node.power_off()
                return f"the machine is lost; it is {_SILENT}"
            case _:
                self._lost.discard(name)
                await node.power_on()
                return "the machine is back"
