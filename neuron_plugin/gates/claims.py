"""Claims of gated pods: allocated before a pod is handed to its scheduler, and taken back where its place is.

kube-scheduler takes a claim that is allocated as it is, and no allocator of its own runs
(pkg/scheduler/framework/plugins/dynamicresources). It only reserves the claim for the pod. A taint on the devices keeps
its own choice off, because nothing else keeps two allocators apart.

An allocated claim has a finalizer, which is written first. Each write carries the version that was read, so of two
writers one gets a conflict. A pod whose claims were allocated, and whose own PATCH was not sent, has its place by its
claims: the next leader completes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from neuron_plugin.allocation import NeuronPod, NodeInventory, Placement
from neuron_plugin.allocation.claims import ClaimResult, NeuronClaim, devices_of, pool_of
from neuron_plugin.cluster import ApiRequest, ApiServer, ClusterError
from neuron_plugin.cluster.api import MERGE_PATCH, JsonObject, send
from neuron_plugin.cluster.claims import FINALIZER, RESOURCE_CLAIMS, allocation_of

Results = tuple[tuple[str, tuple[ClaimResult, ...]], ...]
"""The devices for each of a pod's claims, by the claim's name."""


def results_of(pod: NeuronPod, placement: Placement, inventory: NodeInventory, node: str) -> Results:
    """The devices that a placement means, for each claim of a pod that it is for."""
    by_claim: dict[str, list[ClaimResult]] = {}
    names, pool = {pod_claim.name: pod_claim.claim for pod_claim in pod.claims}, pool_of(node)
    for container in placement:
        claim, _, request = container.request.name.partition("/")
        unit = container.request.resource.unit
        devices = devices_of(inventory.geometry, unit, container.mask, inventory.logical_core_size)
        by_claim.setdefault(names[claim], []).extend(ClaimResult(request, pool, device.name) for device in devices)
    return tuple((claim, tuple(results)) for claim, results in by_claim.items())


class TermEndsError(ClusterError):
    """Nothing was sent: this replica's term as leader may end before an answer comes."""


class ClaimWriter:
    """Writes the allocations of one driver. ``known`` are the claims as the watch shows them, by namespace and name."""

    def __init__(
        self,
        api: ApiServer,
        driver: str,
        known: Mapping[tuple[str, str], NeuronClaim],
        unix_ns: Callable[[], int],
    ) -> None:
        self._api = api
        self._driver = driver
        self._known = known
        self._unix_ns = unix_ns

    async def allocate(
        self, pod: NeuronPod, node: str, results: Results, *, timeout_seconds: float, check_term: Callable[[], None]
    ) -> None:
        """Allocate the claims of a pod that are not allocated so already; ``check_term`` is called before each.

        Raises:
            ClusterError: one of them was not written, or that is not known. The claims before it stay allocated.
        """
        for name, devices in results:
            claim = self._known.get((pod.reference.namespace, name))
            if claim is None or (claim.allocated and (claim.node, claim.results) == (node, devices)):
                continue
            check_term()
            if claim.allocated:
                claim = await self._write(claim, None, timeout_seconds)
            if FINALIZER not in claim.finalizers:
                finalizers = [*claim.finalizers, FINALIZER]
                claim = await self._patch(claim, "", {"metadata": {"finalizers": finalizers}}, timeout_seconds)
            time = datetime.fromtimestamp(self._unix_ns() // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            await self._write(claim, allocation_of(self._driver, node, devices, time), timeout_seconds)

    async def free(self, pod: NeuronPod, *, timeout_seconds: float) -> None:
        """Take the allocation off the claims of a pod that are not reserved for any pod.

        Raises:
            ClusterError: one of them was not written, or that is not known.
        """
        for pod_claim in pod.claims:
            claim = self._known.get((pod.reference.namespace, pod_claim.claim))
            if claim and claim.results and not claim.reserved_for:
                await self._write(claim, None, timeout_seconds)

    async def _write(self, claim: NeuronClaim, allocation: JsonObject | None, timeout_seconds: float) -> NeuronClaim:
        return await self._patch(claim, "/status", {"status": {"allocation": allocation}}, timeout_seconds)

    async def _patch(
        self, claim: NeuronClaim, subresource: str, body: JsonObject, timeout_seconds: float
    ) -> NeuronClaim:
        """One PATCH of a claim as it was read; gives the claim with its new version."""
        metadata = body.get("metadata")
        versioned = {**(metadata if isinstance(metadata, dict) else {}), "resourceVersion": claim.version}
        path = RESOURCE_CLAIMS.item(claim.name, claim.namespace) + subresource
        request = ApiRequest("PATCH", path, body={**body, "metadata": versioned}, content_type=MERGE_PATCH)
        written = RESOURCE_CLAIMS.decode(await send(self._api, request, timeout_seconds=timeout_seconds))
        finalizers = written.metadata.finalizers or ()
        return replace(claim, version=written.resource_version, finalizers=finalizers)
