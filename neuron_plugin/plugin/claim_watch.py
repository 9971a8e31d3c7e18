"""The claims of this node's pods, read one by one from the API server.

The node's account may get a claim by its name, and list none. So each claim that a pod of this node names is read once,
and again where it is not reserved for its pod yet: what a started pod has by a claim counts also where the kubelet has
lost its record.
"""

from __future__ import annotations

import asyncio
import logging

from neuron_plugin.allocation.claims import NeuronClaim
from neuron_plugin.cluster import ApiRequest, ApiServer, ClusterError
from neuron_plugin.cluster.api import REQUEST_SECONDS, send
from neuron_plugin.cluster.claims import RESOURCE_CLAIMS, neuron_claim
from neuron_plugin.plugin.node import LocalNode

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Between two looks at which claims this node's pods have."""
FIRST_LOOK_SECONDS = 0.05
"""While the pods are not listed yet: the kubelet's first calls wait for their claims."""


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
            while True:
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
                await asyncio.sleep(LOOK_SECONDS if self.read.is_set() else FIRST_LOOK_SECONDS)
        finally:
            self._api = None

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
