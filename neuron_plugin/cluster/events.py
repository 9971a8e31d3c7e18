"""Events, as they are read. ``writes`` creates them."""

from __future__ import annotations

from neuron_plugin.cluster.objects import ApiObject, ApiResource, Wire


class _About(Wire, frozen=True):
    uid: str = ""


class Event(ApiObject, frozen=True):
    """An event about an object. The server omits empty fields or sends null."""

    involved_object: _About = _About()
    reason: str = ""
    message: str = ""
    type: str = ""
    count: int | None = None
    event_time: str | None = None
    last_timestamp: str | None = None

    @property
    def last_seen(self) -> str:
        """When the event was last reported (RFC 3339); events of the newer API have only one time."""
        return self.last_timestamp or self.event_time or self.metadata.creation_timestamp or ""


EVENTS = ApiResource("/api/v1", "events", Event)
"""Events of the core API: every server has its field selectors for the involved object."""
