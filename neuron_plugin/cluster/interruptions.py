"""What follows when a list or a watch has ended: how long to wait, and whether that is worth a word.

Watches end all day, and most ends mean nothing. So each is counted, but only the first of a row of troubles is logged,
and the end of the row; and every end is waited after, a clean one too, longer each time until a watch has lasted.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from neuron_plugin.backoff import Backoff
from neuron_plugin.cluster.api import ApiError, ClusterError, DecodeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from neuron_plugin.cluster.observer import Observer

log = logging.getLogger(__name__)

_ORDINARY = frozenset({"end", "expired"})


class Interruptions:
    """The interruptions of one kind's reflector."""

    def __init__(
        self,
        kind: str,
        observer: Observer,
        chance: Callable[[], float],
        *,
        first_seconds: float,
        longest_seconds: float,
    ) -> None:
        self._kind = kind
        self._observer = observer
        self._backoff = Backoff(chance, first_seconds=first_seconds, longest_seconds=longest_seconds)
        self._longest_seconds = longest_seconds
        self._in_trouble = False

    def wait_after(self, error: ClusterError | None) -> float:
        """Count one; the seconds to wait. None is a clean end.

        A server that asks for time gets it, up to the longest wait, and the back-off's jitter on top: it asks many.
        """
        asked = error.retry_after_seconds if isinstance(error, ApiError) else None
        wait = self._backoff.next_seconds() + min(asked or 0.0, self._longest_seconds)
        cause = _cause(error)
        self._observer.interrupted(self._kind, cause, wait)
        if cause not in _ORDINARY and not self._in_trouble:
            self._in_trouble = True
            log.warning("the API server cannot be followed", extra={"kind": self._kind, "error": str(error)})
        return wait

    def heard(self) -> None:
        """Something came from the server."""
        if self._in_trouble:
            self._in_trouble = False
            log.info("the API server is heard again", extra={"kind": self._kind})

    def watch_lasted(self) -> None:
        """A watch worked: the next wait is a short one."""
        self._backoff.reset()


def _cause(error: ClusterError | None) -> str:
    if error is None:
        return "end"
    if isinstance(error, ApiError):
        return "expired" if error.expired else "refused"
    return "unreadable" if isinstance(error, DecodeError) else "unreachable"
