"""The events about a pod, read from the API server when somebody looks at the pod: nothing here keeps events."""

from __future__ import annotations

import msgspec

from neuron_plugin.cluster import ApiServer, ClusterError, Scope
from neuron_plugin.cluster.events import EVENTS
from neuron_plugin.cluster.objects import pages

_REQUEST_SECONDS = 5.0


class EventView(msgspec.Struct, frozen=True, rename="camel"):
    """One event. ``at`` is when it was last reported (RFC 3339), ``uid`` the pod's: several can have had one name."""

    at: str
    type: str
    reason: str
    note: str
    count: int
    uid: str


class EventsView(msgspec.Struct, frozen=True):
    """The events of a pod, the latest first. ``problem`` says why they could not be read, else it is empty."""

    events: tuple[EventView, ...] = ()
    problem: str = ""


async def pod_events(api: ApiServer, namespace: str, name: str) -> EventsView:
    """Read them; a refusal, such as for a missing right, is a part of the answer."""
    about = Scope(namespace, field_selector=f"involvedObject.kind=Pod,involvedObject.name={name}")
    try:
        found = [
            EventView(one.last_seen, one.type, one.reason, one.message, one.count or 1, one.involved_object.uid)
            async for page in pages(api, EVENTS, about, page_timeout_seconds=_REQUEST_SECONDS)
            for one in page.records
        ]
    except ClusterError as error:
        return EventsView(problem=str(error))
    return EventsView(tuple(sorted(found, key=lambda event: event.at, reverse=True)))
