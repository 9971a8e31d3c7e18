"""Leases: what is written into one, and when one has run out.

Nobody compares clocks here. A lease has run out when *its observer* has seen no change of it for the lease's duration,
on the observer's own clock; the times inside it are for people.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from neuron_plugin.cluster.api import MERGE_PATCH, ApiRequest, JsonObject
from neuron_plugin.cluster.kinds import LEASES
from neuron_plugin.cluster.records import HOLDER_URL_KEY
from neuron_plugin.cluster.writes import micro_timestamp

if TYPE_CHECKING:
    from neuron_plugin.cluster.records import Lease, ObjectReference


def utc_now() -> datetime:
    """Return the wall clock's time, for people to read."""
    return datetime.now(UTC)


class Sighting:
    """When one lease was last seen to change, by the observer's clock."""

    def __init__(self) -> None:
        self._version = ""
        self._changed_at = 0.0

    def see(self, lease: Lease, now: float) -> None:
        """Take what was read or watched at ``now``."""
        if lease.resource_version != self._version:
            self._version = lease.resource_version
            self._changed_at = now

    def age_seconds(self, now: float) -> float:
        """How long ago that was."""
        return now - self._changed_at

    def expired(self, lease: Lease, now: float) -> bool:
        """Whether it was left alone for its whole duration, or is held by nobody."""
        return not lease.holder or self.age_seconds(now) >= lease.duration_seconds


@dataclass(frozen=True, slots=True)
class LeaseName:
    """Which lease, and who writes it.

    ``owner`` (a node, say) takes the lease with it when it is deleted. ``url`` is where the holder is reached; it is
    told in an annotation, and two of one name but with different URLs are two.
    """

    namespace: str
    name: str
    holder: str
    owner: ObjectReference | None = None
    url: str = ""

    @property
    def path(self) -> str:
        """The path of the lease."""
        return LEASES.item(self.name, self.namespace)

    def holds(self, seen: Lease) -> bool:
        """Whether the lease as it was ``seen`` is held by this writer, or by one that it succeeds."""
        return (seen.holder, seen.holder_url) == (self.holder, self.url)


def create_lease(lease: LeaseName, *, duration_seconds: float, now: datetime) -> ApiRequest:
    """Make a lease, held from the start if it names a holder."""
    metadata: JsonObject = {"name": lease.name, "namespace": lease.namespace}
    if lease.url:
        metadata["annotations"] = {HOLDER_URL_KEY: lease.url}
    if lease.owner is not None:
        owner = lease.owner
        metadata["ownerReferences"] = [
            {"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid}
        ]
    body: JsonObject = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata,
        "spec": _held(lease.holder, duration_seconds, now) | {"acquireTime": micro_timestamp(now)},
    }
    return ApiRequest("POST", LEASES.collection(lease.namespace), body=body)


def renew_lease(lease: LeaseName, *, duration_seconds: float, now: datetime) -> ApiRequest:
    """Say who holds it without reading first: right where there is one writer, as a plugin that gives its own up."""
    spec = _held(lease.holder, duration_seconds, now)
    return ApiRequest("PATCH", lease.path, body={"spec": spec}, content_type=MERGE_PATCH)


def claim_lease(lease: LeaseName, seen: Lease, *, duration_seconds: float, now: datetime) -> ApiRequest:
    """Take or renew the lease as it was ``seen``: the version makes it a 409 if anybody else wrote since."""
    spec = _held(lease.holder, duration_seconds, now)
    if seen.holder != lease.holder:
        spec |= {"acquireTime": micro_timestamp(now), "leaseTransitions": seen.transitions + 1}
    return _guarded(lease, seen, spec, url=lease.url)


def release_lease(lease: LeaseName, seen: Lease, *, now: datetime, settled: bool = True) -> ApiRequest:
    """Give the lease up, so that another need not wait it out.

    Nobody holds it then. If what the holder began may still take effect (not ``settled``), its name stays for a second
    more, which tells the next one that it takes over and is not handed over to.
    """
    return _guarded(lease, seen, _held("" if settled else lease.holder, 1, now), url="")


def _held(holder: str, duration_seconds: float, now: datetime) -> JsonObject:
    return {
        "holderIdentity": holder,
        "leaseDurationSeconds": round(duration_seconds),
        "renewTime": micro_timestamp(now),
    }


def _guarded(lease: LeaseName, seen: Lease, spec: JsonObject, *, url: str) -> ApiRequest:
    metadata: JsonObject = {"resourceVersion": seen.resource_version, "uid": seen.uid}
    if url != seen.holder_url:
        metadata["annotations"] = {HOLDER_URL_KEY: url or None}
    return ApiRequest("PATCH", lease.path, body={"metadata": metadata, "spec": spec}, content_type=MERGE_PATCH)
