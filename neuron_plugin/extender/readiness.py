"""Whether this replica may answer the scheduler, and if not, why not.

Until the lists are in, an answer would be a guess; while another replica leads, a bind could take what that one has
given away. Each condition is set by the part that knows it; the probes and every verb ask here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType


class Readiness:
    """Conditions by name, each unmet at first, with its reason."""

    def __init__(self, conditions: Mapping[str, str]) -> None:
        self._reasons = dict(conditions)

    @property
    def conditions(self) -> Mapping[str, str]:
        """Why each condition does not hold, or the empty text where it does."""
        return MappingProxyType(self._reasons)

    @property
    def why_not(self) -> str:
        """The reasons for not serving, or the empty text."""
        return "; ".join(filter(None, self._reasons.values()))

    def met(self, condition: str) -> None:
        """The condition holds from now on."""
        self._reasons[condition] = ""

    def unmet(self, condition: str, reason: str) -> None:
        """The condition does not hold from now on."""
        self._reasons[condition] = reason
