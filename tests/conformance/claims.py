"""Claims and slices as the suite's nodes write and read them, on a stand-in API server or a real one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from neuron_plugin.allocation.claims import DRA_DRIVER, ClaimResult, pool_of
from neuron_plugin.cluster.claims import FINALIZER, allocation_of
from neuron_plugin.cluster.writes import utc_now
from neuron_plugin.simulation.api_server_kinds import AnyJson

REQUEST = "neurons"


def claim_manifest(name: str) -> AnyJson:
    """A claim of one request, which nobody is to allocate but the suite."""
    request = {"name": REQUEST, "exactly": {"deviceClassName": DRA_DRIVER}}
    return {"metadata": {"name": name, "finalizers": [FINALIZER]}, "spec": {"devices": {"requests": [request]}}}


def allocated(node: str, devices: Iterable[str]) -> AnyJson:
    """The ``status`` of a claim that has these devices of a node."""
    results = [ClaimResult(REQUEST, pool_of(node), device) for device in devices]
    return {"allocation": allocation_of(DRA_DRIVER, node, results, utc_now().strftime("%Y-%m-%dT%H:%M:%SZ"))}


def offered(slices: Iterable[Mapping[str, Any]], node: str) -> dict[str, tuple[str, ...]]:
    """The devices of a node in its slices, and the keys of their taints."""
    ours = (each["spec"] for each in slices if each["spec"]["driver"] == DRA_DRIVER)
    devices = (device for spec in ours if spec.get("nodeName") == node for device in spec.get("devices") or ())
    return {each["name"]: tuple(taint["key"] for taint in each.get("taints") or ()) for each in devices}


def health_of(resources: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """``allocatedResourcesStatus`` of KEP-4680, by id, over all resources and claims."""
    return {
        each["resourceID"]: each.get("health", "") for resource in resources for each in resource.get("resources") or ()
    }
