"""What a pod really holds, from what the kubelet lists and what we gave.

PodResources lists regular containers and sidecars, by name and without UID, and never plain init containers
(pkg/kubelet/apis/podresources, 1.36). What those hold is known only from the calls that gave it to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from neuron_plugin.allocation.ledger import Holder, Holding, Ledger
from neuron_plugin.allocation.requests import ContainerRequest, Kind
from neuron_plugin.allocation.resources import Resource, mask_of
from neuron_plugin.kubelet.pod_resources import PodDevices
from neuron_plugin.plugin.pods import NodePod
from neuron_plugin.topology.geometry import CoreMask, Geometry
from neuron_plugin.topology.sets import Unit

_NAMES = frozenset(resource.value for resource in Resource)


def listed_holdings(geometry: Geometry, found: PodDevices) -> tuple[Holding, ...]:
    """The Neuron part of what the kubelet lists for a pod; ids that are none of ours are passed over."""
    ours = (devices for devices in found.containers if devices.resource in _NAMES)
    return tuple(
        Holding(devices.container, Resource(devices.resource), mask)
        for devices in ours
        if (mask := _mask(geometry, Resource(devices.resource), devices.ids))
    )


def true_holdings(
    geometry: Geometry, pod: NodePod, listed: tuple[Holding, ...], ledger: Ledger
) -> tuple[Holding, ...] | None:
    """What every requesting container of a pod holds, in the order of its request.

    None while the kubelet does not list all of them yet: the pod is being admitted.
    """
    by_container = {holding.container: holding for holding in listed}
    if any(part.kind is not Kind.INIT and part.container not in by_container for part in pod.request):
        return None
    found = (
        _as_given(ledger, pod, by_container[part.container])
        if part.container in by_container
        else _of_init_container(geometry, ledger, pod, part, listed)
        for part in pod.request
    )
    return tuple(holding for holding in found if holding is not None)


def _as_given(ledger: Ledger, pod: NodePod, listed: Holding) -> Holding:
    """The kubelet's ids, unless we gave the container a linked part of its init container's ids in their place."""
    own = ledger.holders.get(pod.pod.uid)
    if own is None or listed.mask & ~own.mask:
        return listed
    given = (one for one in own.holdings if (one.container, one.resource) == (listed.container, listed.resource))
    return next((one for one in given if one.mask.bit_count() == listed.mask.bit_count()), listed)


def _of_init_container(
    geometry: Geometry, ledger: Ledger, pod: NodePod, part: ContainerRequest, listed: tuple[Holding, ...]
) -> Holding | None:
    """What a plain init container was given: noted under the pod, or under the stand-in of its first calls."""
    size = part.count * (geometry.cores_per_device if part.resource.unit is Unit.DEVICE else 1)
    own = ledger.holders.get(pod.pod.uid)
    noted = (one for one in (own.holdings if own else ()) if one.container == part.container)
    supposed = (one for one in _stand_in_holdings(ledger, listed) if one.mask.bit_count() == size)
    given = next(noted, None) or next((one for one in supposed if one.resource is part.resource), None)
    return Holding(part.container, part.resource, given.mask) if given else None


def _stand_in_holdings(ledger: Ledger, listed: Iterable[Holding]) -> Iterator[Holding]:
    """What stand-ins hold that overlap what the kubelet lists for the pod: they stood in for this pod."""
    mask = 0
    for holding in listed:
        mask |= holding.mask
    for holder in ledger.holders_of(mask):
        if stands_in(holder):
            yield from holder.holdings


def stands_in(holder: Holder) -> bool:
    """Whether this holder's pod is not known to the API server's watch yet."""
    return holder.pod.uid.startswith(STAND_IN)


STAND_IN = "stand-in/"
"""Prefix of the key of a holder whose UID is not known; no Kubernetes UID has a slash."""


def _mask(geometry: Geometry, resource: Resource, ids: Iterable[str]) -> CoreMask:
    return mask_of(geometry, resource.unit, tuple(int(each) for each in ids if each.isascii() and each.isdecimal()))
