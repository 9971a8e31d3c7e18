"""Events, as they are read. How they are written is in ``writes``."""

from __future__ import annotations

from neuron_plugin.cluster.objects import ApiObject, ApiResource, Wire


class _About(Wire, frozen=True):
    uid: str = ""


class Event(ApiObject, frozen=True):
    """Something that was reported about an object. The server leaves empty parts out or sends null."""

    involved_object: _About = _About()
    reason: str = ""
    message: str = ""
    type: str = ""
    count: int | None = None
    event_time: str | None = None
    last_timestamp: str | None = None

    @property
    def last_seen(self) -> str:
        """When it was last reported (RFC 3339); events of the newer API have one time only."""
        return self.last_timestamp or self.event_time or self.metadata.creation_timestamp or ""


EVENTS = ApiResource("/api/v1", "events", Event)
"""The core API's: its selectors by the object that an event is about are the older ones, and served everywhere."""
