"""What happens to a resource's registration and requests, told to whoever counts it.

The room logs by itself; metrics and readiness live elsewhere and listen here.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol


class RegistrationState(Enum):
    """Where one resource stands with the kubelet; `ADVERTISED` alone means that its devices can be allocated."""

    STOPPED = "stopped"
    WAITING = "waiting for kubelet.sock"
    REGISTERING = "registering"
    REGISTERED = "registered, waiting for the kubelet's ListAndWatch"
    ADVERTISED = "advertised"
    ENDING = "stopping the server of a registration that is worth nothing any more"
    BACKING_OFF = "waiting before the next attempt"


class Observer(Protocol):
    """Told of events as they happen, on the event loop; must not block or raise."""

    def state_changed(self, resource: str, state: RegistrationState) -> None:
        """The resource's registration has entered ``state``."""

    def registration_ended(self, resource: str, error: str | None) -> None:
        """One Register call came back: None if the kubelet accepted, else why it did not happen."""

    def preference_replaced(self, resource: str, fault: str) -> None:
        """A GetPreferredAllocation was answered without the handler; ``fault`` says what its own answer was."""

    def request_refused(self, resource: str, method: str, error: Exception) -> None:
        """An Allocate or PreStartContainer was answered with an error."""
