"""Releasing gated pods by hand, while no controller places them or after it is gone for good."""

from __future__ import annotations

from collections.abc import Collection

from neuron_plugin.allocation.keys import GATE
from neuron_plugin.cluster import ApiError, ApiServer, Scope
from neuron_plugin.cluster.api import PAGE_SECONDS, send
from neuron_plugin.cluster.objects import pages
from neuron_plugin.cluster.pods import PODS, neuron_pod
from neuron_plugin.placement.gates.writes import release_plainly

_UNBOUND = Scope(field_selector="spec.nodeName=")
_ROUNDS = 5
"""A pod that somebody else changed at the same moment is looked at again in the next one."""


async def release_gated(api: ApiServer, names: Collection[str] | None) -> tuple[list[str], dict[str, str]]:
    """Take the gate off these pods (NAMESPACE/NAME), or off all; who was released, and why others were not.

    Raises:
        ClusterError: the API server did not answer; what was done is done, and doing it again is harmless.
    """
    released: list[str] = []
    refused: dict[str, str] = {}
    for _ in range(_ROUNDS):
        refused.clear()
        changed = False
        async for page in pages(api, PODS, _UNBOUND, page_timeout_seconds=PAGE_SECONDS):
            for pod in map(neuron_pod, page.records):
                name = str(pod.reference)
                if GATE not in pod.rules.gates or not (names is None or name in names):
                    continue
                try:
                    await send(api, release_plainly(pod), timeout_seconds=PAGE_SECONDS)
                    released.append(name)
                except ApiError as error:
                    if not error.missing:
                        refused[name] = str(error)
                        changed |= error.conflict
        if not changed:
            break
    return released, refused
