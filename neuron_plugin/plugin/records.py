"""What the kubelet's own file adds to what it lists: the sets of plain init containers, and a pod's UID.

A supplement, see ``kubelet.checkpoint``. An entry counts only for a pod that is known to live: by its UID where the API
server has shown it, else because the kubelet lists a pod with exactly the other entries of this UID.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from neuron_plugin.allocation import ContainerRequest, Holding, Resource, mask_of
from neuron_plugin.kubelet import PodDevices, RecordedDevices
from neuron_plugin.plugin.pods import demanded_cores
from neuron_plugin.topology import CoreMask, Geometry

Records = tuple[RecordedDevices, ...]

_MOST_DIGITS = 9

RESOURCE_NAMES = frozenset(resource.value for resource in Resource)


def uid_of(records: Records, found: PodDevices) -> str:
    """The UID of a pod that the kubelet lists; empty where none or several have what it lists for this one.

    Entries of pods that are gone stay for a while, but an id is given to the next only after they went.
    """
    listed = {(one.container, one.resource, frozenset(one.ids)) for one in found.containers if _is_ours(one.resource)}
    if not listed:
        return ""
    by_uid: dict[str, set[tuple[str, str, frozenset[str]]]] = {}
    for record in records:
        by_uid.setdefault(record.pod_uid, set()).add((record.container, record.resource, record.ids))
    uids = [uid for uid, recorded in by_uid.items() if listed <= recorded]
    return uids[0] if len(uids) == 1 else ""


def unlisted_holdings(geometry: Geometry, records: Records, found: PodDevices) -> tuple[Holding, ...]:
    """What those containers of a listed pod hold that the kubelet never lists: plain init containers."""
    uid = uid_of(records, found)
    names = {one.container for one in found.containers}
    holdings = (holding for owner, holding in _holdings(geometry, records) if uid and owner == uid)
    return tuple(holding for holding in holdings if holding.container not in names)


def recorded_holding(geometry: Geometry, records: Records, uid: str, part: ContainerRequest) -> Holding | None:
    """What a container of a live pod was given, if the file says so and it is what the container asks for."""
    for owner, holding in _holdings(geometry, records):
        asked = (holding.container, holding.resource) == (part.container, part.resource)
        if owner == uid and asked and holding.mask.bit_count() == demanded_cores(geometry, part):
            return holding
    return None


def is_recorded_for_another(geometry: Geometry, records: Records, uid: str, holding: Holding) -> bool:
    """Whether the file names other pods, and not this one, for a set."""
    owners = {
        owner
        for owner, recorded in _holdings(geometry, records)
        if (recorded.resource, recorded.mask) == (holding.resource, holding.mask)
    }
    return bool(owners) and uid not in owners


def ids_mask(geometry: Geometry, resource: Resource, ids: Iterable[str]) -> CoreMask:
    """The cores behind the kubelet's ids; what is no id of ours adds nothing."""
    return mask_of(geometry, resource.unit, tuple(int(each) for each in ids if _is_number(each)))


def _holdings(geometry: Geometry, records: Records) -> Iterator[tuple[str, Holding]]:
    for record in records:
        if _is_ours(record.resource):
            resource = Resource(record.resource)
            mask = ids_mask(geometry, resource, record.ids)
            if mask:
                yield record.pod_uid, Holding(record.container, resource, mask, mask)


def _is_ours(resource: str) -> bool:
    return resource in RESOURCE_NAMES


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
