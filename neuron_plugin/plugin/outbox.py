"""What the daemon wants the API server to know, sent until it does.

Whoever writes here never waits: Allocate does not care whether the API server is up. The newest word on a subject
replaces an unsent older one. A refusal is final (asking again would be refused again); silence is not, and what could
not be sent goes behind the others, so that one subject's trouble is not everybody's.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from neuron_plugin.backoff import Backoff
from neuron_plugin.cluster.api import ApiError, ApiRequest, ApiServer, ClusterError, send

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 10.0
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 30.0
_SERVER_TROUBLE = 500
_TOO_MANY_REQUESTS = 429


class Outbox:
    """Requests by subject, in the order in which the subjects came up."""

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        """``chance`` spreads retries of many nodes."""
        self._unsent: dict[str, ApiRequest] = {}
        self._news = asyncio.Event()
        self._backoff = Backoff(chance, first_seconds=FIRST_PAUSE_SECONDS, longest_seconds=LONGEST_PAUSE_SECONDS)

    def put(self, subject: str, request: ApiRequest) -> None:
        """Have ``request`` sent; an unsent one on the same subject is out of date now."""
        self._unsent[subject] = request
        self._news.set()

    @property
    def unsent(self) -> int:
        """How many requests are not sent yet."""
        return len(self._unsent)

    async def run(self, api: ApiServer) -> None:
        """Send what there is and what comes, until cancelled."""
        while True:
            while self._unsent:
                if await self._send_first(api):
                    self._backoff.reset()
                else:
                    await asyncio.sleep(self._backoff.next_seconds())
            self._news.clear()
            await self._news.wait()

    async def _send_first(self, api: ApiServer) -> bool:
        """Send the oldest; False when it has to be tried again."""
        subject, request = next(iter(self._unsent.items()))
        try:
            await send(api, request, timeout_seconds=TIMEOUT_SECONDS)
        except ApiError as error:
            if error.status >= _SERVER_TROUBLE or error.status == _TOO_MANY_REQUESTS:
                return self._postpone(subject, error)
            level = logging.DEBUG if error.missing or error.other_object else logging.WARNING  # the pod has ended
            logger.log(level, "the API server refused", extra={"subject": subject, "why": str(error)})
        except ClusterError as error:
            return self._postpone(subject, error)
        if self._unsent.get(subject) is request:
            del self._unsent[subject]
        return True

    def _postpone(self, subject: str, error: ClusterError) -> bool:
        logger.debug("not told the API server yet", extra={"subject": subject, "why": str(error)})
        self._unsent[subject] = self._unsent.pop(subject)
        return False
