"""How long to wait before trying again: exponential, jittered, bounded.

One rule for everything that is tried again. The jitter is there so that a thousand nodes that lost their API server
at the same moment do not all come back at the same moment.
"""

from __future__ import annotations

from collections.abc import Callable


class Backoff:
    """Delays that double from ``first_seconds`` up to ``longest_seconds``, each cut at random by up to half.

    ``chance`` gives numbers from 0 to 1, such as ``random.random``.
    """

    def __init__(self, chance: Callable[[], float], *, first_seconds: float, longest_seconds: float) -> None:
        self._chance = chance
        self._first_seconds = first_seconds
        self._longest_seconds = longest_seconds
        self._delay_seconds = first_seconds

    def next_seconds(self) -> float:
        """The next delay."""
        delay = self._delay_seconds
        self._delay_seconds = min(delay * 2, self._longest_seconds)
        return delay * (1 + self._chance()) / 2

    def reset(self) -> None:
        """It went well: begin anew with the shortest delay."""
        self._delay_seconds = self._first_seconds
