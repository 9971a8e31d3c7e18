"""This node's pods, from the API server into the node's inputs.

All pods that are bound to the node are kept, not only those that ask for Neuron: a process that has a device open
belongs to a known pod or to none. Beside them a second watch follows the pods that were placed on this node and are not
bound yet, by a label: their sets are kept for them.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from neuron_plugin.allocation import NeuronPod, PodUid
from neuron_plugin.allocation.keys import NODE_KEY
from neuron_plugin.allocation.pod import node_label
from neuron_plugin.cluster import ApiServer, ClusterError, Pod, Reflector, Scope
from neuron_plugin.cluster.pods import PODS, neuron_pod
from neuron_plugin.plugin.counters import Counters
from neuron_plugin.plugin.node import LocalNode
from neuron_plugin.plugin.watch import ReflectorCounts

logger = logging.getLogger(__name__)


class PodWatch(ReflectorCounts):
    """Follows the pods of one node for as long as ``run`` runs.

    ``own_uid`` is the plugin's own pod: a LIST without it is of another node, or filtered, and proves nothing. Empty
    where the plugin does not run in a pod. A LIST ends after ``deadline_seconds``; before there is a client,
    ``connect_seconds`` are waited for one.
    """

    def __init__(
        self,
        node: LocalNode,
        node_name: str,
        own_uid: str,
        deadline_seconds: float,
        counters: Counters,
        *,
        connect_seconds: float,
    ) -> None:
        super().__init__(counters)
        self.tried = asyncio.Event()
        """Set once a connection was tried."""
        self._node = node
        self._node_name = node_name
        self._own_uid = own_uid
        self._deadline_seconds = deadline_seconds
        self._connect_seconds = connect_seconds
        self._reflector: Reflector[Pod, NeuronPod] | None = None

    @property
    def age_seconds(self) -> float | None:
        """How long ago the API server was last heard from; None before the first connection."""
        return self._reflector.age_seconds() if self._reflector else None

    async def run(self, api: ApiServer) -> None:
        """Follow the pods until cancelled."""
        bound = Scope(field_selector=f"spec.nodeName={self._node_name}")
        self._reflector = Reflector(api, PODS, neuron_pod, scope=bound, observer=self)
        self._reflector.subscribe(self._changed)
        self.tried.set()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._reflector.run(), name="bound pods")
                tasks.create_task(self._follow_promised(api), name="promised pods")
        finally:
            self._reflector = None

    async def _follow_promised(self, api: ApiServer) -> None:
        """Follow the pods that were placed here and are not bound.

        The API server sends an event of an unbound pod to these watches only, because the field selector names one
        value: the label alone would be compared with each event of each pod of the cluster.
        """
        unbound = Scope(field_selector="spec.nodeName=", label_selector=f"{NODE_KEY}={node_label(self._node_name)}")
        promised: Reflector[Pod, NeuronPod] = Reflector(api, PODS, self._if_promised, scope=unbound)

        def changed(uid: str, old: NeuronPod | None, new: NeuronPod | None) -> None:  # noqa: ARG001 - a listener
            self._node.see_pods(replace(self._node.pods, promised=tuple(promised.values.values())))

        promised.subscribe(changed)
        await promised.run()

    def _if_promised(self, pod: Pod) -> NeuronPod | None:
        """A pod that was placed on this very node: of a long name the label has only a part."""
        known = neuron_pod(pod)
        return known if known.promised == self._node_name and not known.ended else None

    async def list_pods(self) -> None:
        """Take in this node's pods as the API server knows them now; returns quietly at the deadline.

        The plugin offers devices before its client is loaded. The first of these calls therefore waits for the client.
        """
        try:
            async with asyncio.timeout(self._connect_seconds):
                await self.tried.wait()
            if self._reflector:
                await self._reflector.list_consistently(self._deadline_seconds)
        except (ClusterError, TimeoutError) as error:
            logger.warning("answering without a LIST of pods", extra={"error": str(error) or "not connected yet"})

    def listed(self, kind: str, records: int, seconds: float) -> None:
        """A complete list is in, says the reflector."""
        super().listed(kind, records, seconds)
        if self._reflector:
            began_at = self._reflector.listed_at if self._sees_own_pod else None
            self._node.see_pods(self._node.pods.with_list(self._reflector.values.values(), began_at))

    @property
    def _sees_own_pod(self) -> bool:
        return self._reflector is not None and (not self._own_uid or self._own_uid in self._reflector.values)

    def _changed(self, uid: str, old: NeuronPod | None, new: NeuronPod | None) -> None:  # noqa: ARG002 - a listener
        """An object was added, changed or deleted, or the latest LIST lacks it."""
        pods = self._node.pods
        if new is not None:
            self._node.see_pods(pods.with_pod(new))
        elif self._sees_own_pod:
            self._node.see_pods(pods.without(PodUid(uid)))
