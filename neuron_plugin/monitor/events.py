"""The events about a pod or a node, read from the API server on request: nothing here keeps events."""

from __future__ import annotations

import msgspec

from neuron_plugin.cluster import ApiServer, ClusterError, Scope
from neuron_plugin.cluster.api import REQUEST_SECONDS
from neuron_plugin.cluster.events import EVENTS
from neuron_plugin.cluster.objects import pages


class EventView(msgspec.Struct, frozen=True, rename="camel"):
    """One event. ``at`` is when it was last reported (RFC 3339), ``uid`` the object's, as names are used again."""

    at: str
    type: str
    reason: str
    note: str
    count: int
    uid: str


class EventsView(msgspec.Struct, frozen=True):
    """The events of an object, the latest first. ``problem`` says why they could not be read, else it is empty."""

    events: tuple[EventView, ...] = ()
    problem: str = ""


async def pod_events(api: ApiServer, namespace: str, name: str) -> EventsView:
    """The events of a pod."""
    return await events_about(api, "Pod", name, namespace)


async def events_about(api: ApiServer, kind: str, name: str, namespace: str = "") -> EventsView:
    """Read the events, for a node in all namespaces; a refusal, as for a missing right, is a part of the answer."""
    about = Scope(namespace, field_selector=f"involvedObject.kind={kind},involvedObject.name={name}")
    try:
        events = [
            EventView(
                event.last_seen, event.type, event.reason, event.message, event.count or 1, event.involved_object.uid
            )
            async for page in pages(api, EVENTS, about, page_timeout_seconds=REQUEST_SECONDS)
            for event in page.records
        ]
    except ClusterError as error:
        return EventsView(problem=str(error))
    return EventsView(tuple(sorted(events, key=lambda event: event.at, reverse=True)))
