"""What a pod really holds, from what the kubelet lists and what we gave.

PodResources lists regular containers and sidecars, by name and without UID, and never plain init containers
(pkg/kubelet/apis/podresources, 1.36). What those hold is known only from the calls that gave it to them, which may
have been noted under the pod, under an equal pod that the kubelet admitted later, or under a stand-in; and, after a
restart, from the kubelet's own file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from neuron_plugin.allocation import (
    ContainerKind,
    ContainerRequest,
    HolderLedger,
    Holding,
    PodReference,
    PodUid,
    Resource,
    union_of,
)
from neuron_plugin.kubelet import PodDevices
from neuron_plugin.plugin.kin import kin_of
from neuron_plugin.plugin.pods import NodePod, demanded_cores
from neuron_plugin.plugin.records import (
    RESOURCE_NAMES,
    Records,
    ids_mask,
    is_recorded_for_another,
    recorded_holding,
)
from neuron_plugin.plugin.standins import is_nameless
from neuron_plugin.topology import Geometry


def listed_holdings(geometry: Geometry, found: PodDevices) -> tuple[Holding, ...]:
    """The Neuron part of what the kubelet lists for a pod; ids that are none of ours are passed over."""
    ours = (devices for devices in found.containers if devices.resource in RESOURCE_NAMES)
    return tuple(
        Holding(devices.container, Resource(devices.resource), mask, mask)
        for devices in ours
        if (mask := ids_mask(geometry, Resource(devices.resource), devices.ids))
    )


def true_holdings(
    geometry: Geometry,
    pod: NodePod,
    listed: tuple[Holding, ...],
    ledger: HolderLedger,
    confirmed: Collection[PodUid] = (),
    records: Records = (),
) -> tuple[Holding, ...] | None:
    """What every requesting container of a pod holds, in the order of its request.

    Before that what it cannot have asked for and was yet given with what is listed: the kubelet may mean the next pod
    of the same name, which no watch has shown. None while the kubelet does not list all of them yet: the pod is being
    admitted. What ``confirmed`` pods hold is theirs. ``records`` are the kubelet's own, see there.
    """
    by_container = {holding.container: holding for holding in listed}
    if any(part.kind is not ContainerKind.INIT and part.container not in by_container for part in pod.request):
        return None
    # A pod of which nothing is listed may not be admitted yet, and what was noted for it another's: only records tell.
    given = list(_given(ledger, pod.pod, listed, confirmed))
    nameless = [holder.holdings[0] for holder in ledger if listed and is_nameless(holder)]
    theirs = union_of(holding for uid in confirmed if uid != pod.pod.uid for holding in _holdings_of(ledger, uid))
    found = [
        _as_given(by_container[part.container], given)
        if part.container in by_container
        else _of_init_container(geometry, pod, part, given, nameless, records, theirs)
        for part in pod.request
    ]
    if not listed and None in found:
        return None
    truth = [holding for holding in found if holding is not None]
    return (*_rest(given, listed, union_of(truth)), *truth)


def with_unlisted(pod: PodReference, listed: tuple[Holding, ...], ledger: HolderLedger) -> tuple[Holding, ...]:
    """What a pod holds that only the kubelet knows by name: what is listed, and what its init containers were given.

    The latter stands in the ledger under nameless stand-ins, or already under the pod.
    """
    names = {holding.container for holding in listed}
    sets = {(holding.resource, holding.mask) for holding in listed}
    unnamed = HolderLedger({one.pod.uid: one for one in ledger if is_nameless(one) or one.pod.uid == pod.uid})
    given = (one for one in _given(unnamed, pod, listed, ()) if one.container not in names)
    return (*listed, *(one for one in given if (one.resource, one.mask) not in sets))


def _given(
    ledger: HolderLedger, pod: PodReference, listed: Iterable[Holding], confirmed: Collection[PodUid]
) -> Iterator[Holding]:
    """What we gave in the calls that were this pod's: its own first, then what was noted under others meanwhile.

    The pod's own holder counts only if it has what the kubelet lists: else those were another pod's calls.
    """
    holders = [holder for holder in ledger if holder.pod.uid == pod.uid or holder.pod.uid not in confirmed]
    kin = {one.pod.uid: one for each in listed for one in kin_of(holders, each.resource, each.mask)}
    for holder in sorted(kin.values(), key=lambda holder: holder.pod.uid != pod.uid):
        yield from holder.holdings


def _rest(given: Iterable[Holding], listed: Iterable[Holding], mask: int) -> Iterator[Holding]:
    """The sets from which listed ids were drawn, as far as they are more than ``mask``."""
    for one in given:
        same = (each for each in listed if each.resource is one.resource)
        if one.mask & ~mask and any(_is_part(each.on_account, one.on_account) for each in same):
            yield one


def _as_given(listed: Holding, given: Iterable[Holding]) -> Holding:
    """The kubelet's ids, unless we gave the container a linked part of its init container's ids in their place.

    Then the ids were drawn from a larger set that we gave the same pod, and so was the part.
    """
    same = [one for one in given if one.resource is listed.resource]
    remembered = next((one for one in same if one.drawn == listed.mask), None)
    if remembered:
        return replace(remembered, container=listed.container)
    if not any(_is_part(listed.mask, one.mask) for one in same):
        return listed
    parts = [one for one in same if one.mask.bit_count() == listed.mask.bit_count() and not one.drawn]
    named = next((one for one in parts if one.container == listed.container), None)
    if not named and (not parts or any(one.mask == listed.mask for one in parts)):
        return listed
    return replace(listed, mask=(named or parts[0]).mask)


def _of_init_container(
    geometry: Geometry,
    pod: NodePod,
    part: ContainerRequest,
    given: Iterable[Holding],
    nameless: Iterable[Holding],
    records: Records,
    theirs: int,
) -> Holding | None:
    """What a plain init container was given: by the kubelet's own file, else by its name, else by its size.

    Where no later container re-uses it, nothing that is listed ties it to the pod. ``theirs`` is certainly other pods',
    whatever the file says.
    """
    uid, size = pod.pod.uid, demanded_cores(geometry, part)
    recorded = recorded_holding(geometry, records, uid, part)
    if recorded and not recorded.mask & theirs:
        return _as_given(recorded, given)
    later = pod.request[pod.request.index(part) :]
    alone = all(other.kind is ContainerKind.INIT for other in later if other.resource is part.resource)
    unclaimed = (one for one in nameless if alone and not is_recorded_for_another(geometry, records, uid, one))
    same = [one for one in (*given, *unclaimed) if one.resource is part.resource and one.mask.bit_count() == size]
    found = next((one for one in same if one.container == part.container), next(iter(same), None))
    return replace(found, container=part.container) if found else None


def _is_part(part: int, whole: int) -> bool:
    return part & whole == part and part != whole


def _holdings_of(ledger: HolderLedger, uid: PodUid) -> tuple[Holding, ...]:
    holder = ledger.holders.get(uid)
    return holder.holdings if holder else ()
