"""What is said of an allocation: in the log, in a pod's status, in an event."""

from __future__ import annotations

from collections.abc import Iterable

from neuron_plugin.allocation import Holder, PodReference, Rejection, Resource, format_ids, ids_of, mask_of
from neuron_plugin.kubelet import ContainerAllocation
from neuron_plugin.plugin.claims import Claim
from neuron_plugin.topology import Geometry

NO_MACHINE = "no Neuron device has been found on this node yet: is the driver loaded?"


def unlinked_text(resource: Resource, ids: tuple[int, ...], refusal: Rejection) -> str:
    """What is told of ids that are not linked, and why there were no better ones."""
    return f"{resource.value} {format_ids(ids)} are not linked. {refusal.text}"


def conflict_text(
    geometry: Geometry, resource: Resource, ids: tuple[int, ...], wanted_by: str, holders: Iterable[Holder]
) -> str:
    """Which ids cannot be given to whom, and who has which of them."""
    mask = mask_of(geometry, resource.unit, ids)
    held = "; ".join(
        f"{named(holder.pod)} holds {holding.resource.value} "
        f"{format_ids(ids_of(geometry, holding.resource.unit, holding.mask))}"
        for holder in holders
        for holding in holder.holdings
        if holding.mask & mask
    )
    return f"{resource.value} {format_ids(ids)} cannot be given to {wanted_by}: {held}"


def allocation_fields(
    resource: Resource, ids: tuple[int, ...], claim: Claim, pod: PodReference, allocation: ContainerAllocation
) -> dict[str, object]:
    """The fields of the one log line that each Allocate gets."""
    return {
        "resource": resource.value,
        "ids": format_ids(ids),
        "pod": named(pod),
        "container": claim.container or "unknown",
        "decided": claim.decided,
        "nodes": " ".join(f"{node.host_path}:{node.container_path}" for node in allocation.devices),
        "cdi": " ".join(allocation.cdi_devices),
        "env": dict(allocation.envs),
    }


def named(pod: PodReference) -> str:
    """A pod, for people."""
    return f"pod {pod}" if pod.name else "a pod not yet confirmed"
