"""How long to wait before trying again: exponential, jittered, bounded."""

from __future__ import annotations

from random import Random


class Backoff:
    """Delays that double from ``first_seconds`` up to ``longest_seconds``, each cut by a random part up to half."""

    def __init__(self, random: Random, *, first_seconds: float = 0.1, longest_seconds: float = 15.0) -> None:
        self._random = random
        self._first_seconds = first_seconds
        self._longest_seconds = longest_seconds
        self._delay_seconds = first_seconds

    def next_seconds(self) -> float:
        """The next delay."""
        delay = self._delay_seconds * self._random.uniform(0.5, 1.0)
        self._delay_seconds = min(self._delay_seconds * 2, self._longest_seconds)
        return delay

    def reset(self) -> None:
        """Begin anew with the shortest delay."""
        self._delay_seconds = self._first_seconds
