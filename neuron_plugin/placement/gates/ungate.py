"""Releasing gated pods by hand, while no controller places them or after it is gone for good.

A pod with claims that are not allocated keeps its gate while all devices of their driver have the taint that keeps
kube-scheduler's allocator off. Without the gate no one would ever allocate them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from neuron_plugin.allocation import NeuronPod
from neuron_plugin.allocation.claims import PLACED_TAINT, NeuronClaim
from neuron_plugin.allocation.keys import GATE
from neuron_plugin.cluster import ApiError, ApiServer, Scope
from neuron_plugin.cluster.api import PAGE_SECONDS, send
from neuron_plugin.cluster.claims import RESOURCE_CLAIMS, RESOURCE_SLICES, neuron_claim
from neuron_plugin.cluster.objects import pages
from neuron_plugin.cluster.pods import PODS, neuron_pod
from neuron_plugin.placement.gates.writes import release_plainly

_ROUNDS = 5
"""A pod that somebody else changed at the same moment is looked at again in the next one."""


async def release_gated(
    api: ApiServer, names: Collection[str] | None, namespace: str = ""
) -> tuple[list[str], dict[str, str]]:
    """Take the gate off these pods (NAMESPACE/NAME), or off all; who was released, and why others were not.

    With a ``namespace`` only its pods are looked at.

    Raises:
        ClusterError: the API server did not answer; what was done is done, and doing it again is harmless.
    """
    unbound = Scope(namespace, field_selector="spec.nodeName=")
    released: list[str] = []
    refused: dict[str, str] = {}
    for _ in range(_ROUNDS):
        refused.clear()
        changed, unallocated = False, None
        async for page in pages(api, PODS, unbound, page_timeout_seconds=PAGE_SECONDS):
            for pod in map(neuron_pod, page.records):
                name = str(pod.reference)
                if GATE not in pod.rules.gates or not (names is None or name in names):
                    continue
                try:
                    if pod.claims:
                        unallocated = unallocated or await _read_claims(api)
                        if claim := unallocated.of(pod):
                            refused[name] = (
                                f"its {claim} is not allocated, and while all devices have the taint {PLACED_TAINT} "
                                "only the placement controller can do that"
                            )
                            continue
                    await send(api, release_plainly(pod), timeout_seconds=PAGE_SECONDS)
                    released.append(name)
                except ApiError as error:
                    if not error.missing:
                        refused[name] = str(error)
                        changed |= error.conflict
        if not changed:
            break
    return released, refused


@dataclass(frozen=True, slots=True)
class _Claims:
    """The claims of each driver of which all devices have our taint, by namespace and name."""

    by_driver: Mapping[str, Mapping[tuple[str, str], NeuronClaim]]

    def of(self, pod: NeuronPod) -> str:
        """A claim of a pod that no one but the placement controller can allocate, or may be one; empty without."""
        for claims in self.by_driver.values():
            for pod_claim in pod.claims:
                claim = claims.get((pod.reference.namespace, pod_claim.claim))
                if claim is None or (claim.requests and not claim.allocated):
                    return f"ResourceClaim {pod_claim.claim or pod_claim.name}"
        return ""


async def _read_claims(api: ApiServer) -> _Claims:
    """Read them; none on a server without claims.

    Raises:
        ClusterError: the API server did not answer, or without the right to look.
    """
    tainted, open_to_all = set[str](), set[str]()
    try:
        async for slices in pages(api, RESOURCE_SLICES, page_timeout_seconds=PAGE_SECONDS):
            for each in slices.records:
                for taints in each.taints.values():
                    (tainted if PLACED_TAINT in taints else open_to_all).add(each.driver)
    except ApiError as error:
        if not error.missing:
            raise
    drivers = tainted - open_to_all
    claims: dict[str, dict[tuple[str, str], NeuronClaim]] = {driver: {} for driver in drivers}
    if drivers:
        async for page in pages(api, RESOURCE_CLAIMS, page_timeout_seconds=PAGE_SECONDS):
            for record in page.records:
                for driver, known in claims.items():
                    known[record.namespace, record.name] = neuron_claim(record, driver)
    return _Claims(claims)
