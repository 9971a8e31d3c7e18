"""What could not be learned, as a value: a look at a broken node goes on without it, and says so."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unknown:
    """Why it is not known, and what would help."""

    why: str
    action: str = ""


NO_DEVICE = Unknown("there is no device", "mend what the checks 'driver' and 'devices' report first")
