"""This node's pods and their claims, from the API server into the node's inputs.

All pods that are bound to the node are kept, not only those that ask for Neuron: a process that has a device open
belongs to a known pod or to none. Beside them a second watch follows the pods that were placed on this node and are not
bound yet, by a label: their sets are kept for them.

Claims are read one by one: the node's account may get a claim by its name, and list none. So each claim that a pod of
this node names is read once, and again where it is not reserved for its pod yet: what a started pod has by a claim
counts also where the kubelet has lost its record.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from neuron_plugin.allocation import NeuronPod, PodUid
from neuron_plugin.allocation.claims import NeuronClaim
from neuron_plugin.allocation.keys import NODE_KEY
from neuron_plugin.allocation.pod import node_label
from neuron_plugin.backoff import every
from neuron_plugin.cluster import ApiRequest, ApiServer, ClusterError, Pod, Reflector, Scope
from neuron_plugin.cluster.api import REQUEST_SECONDS, send
from neuron_plugin.cluster.claims import RESOURCE_CLAIMS, neuron_claim
from neuron_plugin.cluster.pods import PODS, neuron_pod
from neuron_plugin.metrics import MetricCounts
from neuron_plugin.plugin.node import LocalNode

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Between two looks at which claims this node's pods have."""
FIRST_LOOK_SECONDS = 0.05
"""While the pods are not listed yet: the kubelet's first calls wait for their claims."""


class PodWatch:
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
        counts: MetricCounts,
        *,
        connect_seconds: float,
    ) -> None:
        self._counts = counts
        self.interrupted = counts.interrupted
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

        def kept(pod: Pod) -> NeuronPod | None:
            known = neuron_pod(pod)  # of a long name the label has only a part
            return known if known.promised == self._node_name and not known.ended else None

        promised: Reflector[Pod, NeuronPod] = Reflector(api, PODS, kept, scope=unbound)

        def changed(uid: str, old: NeuronPod | None, new: NeuronPod | None) -> None:  # noqa: ARG001 - a listener
            self._node.see_pods(replace(self._node.pods, promised=tuple(promised.values.values())))

        promised.subscribe(changed)
        await promised.run()

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
        self._counts.listed(kind, records, seconds)
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


class ClaimWatch:
    """Reads claims for as long as ``run`` runs. ``read`` is set once the claims of all pods were asked for."""

    def __init__(self, node: LocalNode, driver: str) -> None:
        self.read = asyncio.Event()
        self._node = node
        self._driver = driver
        self._api: ApiServer | None = None

    async def run(self, api: ApiServer) -> None:
        """Keep the node's claims as its pods name them, until cancelled."""
        self._api = api
        try:
            await every(lambda: LOOK_SECONDS if self.read.is_set() else FIRST_LOOK_SECONDS, self._look)
        finally:
            self._api = None

    async def _look(self) -> None:
        named = {
            (pod.reference.namespace, pod_claim.claim): pod.uid
            for pod in self._node.pods.pods.values()
            for pod_claim in pod.claims
            if pod_claim.claim
        }
        fresh = {}
        for key, uid in named.items():
            known = self._node.claims.get(key)
            if (known is None or uid not in known.reserved_for) and (claim := await self.read_claim(*key)):
                fresh[key] = claim
        claims = {**self._node.claims, **fresh}
        self._node.see_claims({key: claim for key, claim in claims.items() if key in named})
        if self._node.pods.listed_at is not None:
            self.read.set()

    async def read_claim(self, namespace: str, name: str) -> NeuronClaim | None:
        """A claim as the API server has it now; None where there is none, or no answer."""
        if self._api is None:
            return None
        request = ApiRequest("GET", RESOURCE_CLAIMS.item(name, namespace))
        try:
            claim = RESOURCE_CLAIMS.decode(await send(self._api, request, timeout_seconds=REQUEST_SECONDS))
        except ClusterError as error:
            logger.debug("claim not read", extra={"claim": f"{namespace}/{name}", "error": str(error)})
            return None
        return neuron_claim(claim, self._driver)
