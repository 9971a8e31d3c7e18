"""What the daemon wants the API server to know, sent until it does.

Whoever writes here never waits: Allocate does not care whether the API server is up. The newest word on a subject
replaces an unsent older one. A refusal is final (asking again would be refused again); silence is not, and what could
not be sent goes behind the others, so that one subject's trouble is not everybody's.

Not being permitted is neither: rights may come after the daemon (a chart applied in another order) or come back (a
token that is being renewed), but mostly they do not. What was not permitted is set aside, out of the others' way, and
tried again every now and then.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from neuron_plugin.backoff import Backoff
from neuron_plugin.cluster import ApiError, ApiRequest, ApiServer, ClusterError, send

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 10.0
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 30.0
FIRST_PERMISSION_SECONDS = 5.0
LONGEST_PERMISSION_SECONDS = 300.0
"""Between two rounds of what was not permitted."""
MOST_NOT_PERMITTED = 256
"""Events of each pod would gather for ever where they are not wanted; the oldest are given up."""
_SERVER_TROUBLE = 500
_TOO_MANY_REQUESTS = 429
_NOT_PERMITTED = frozenset({401, 403})


class Outbox:
    """Requests by subject, in the order in which the subjects came up."""

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        """``chance`` spreads retries of many nodes."""
        self._unsent: dict[str, ApiRequest] = {}
        self._not_permitted: dict[str, ApiRequest] = {}
        self._told: dict[str, None] = {}
        self._again_at = 0.0
        self._patience = Backoff(
            chance, first_seconds=FIRST_PERMISSION_SECONDS, longest_seconds=LONGEST_PERMISSION_SECONDS
        )
        self._news = asyncio.Event()
        self._backoff = Backoff(chance, first_seconds=FIRST_PAUSE_SECONDS, longest_seconds=LONGEST_PAUSE_SECONDS)

    def put(self, subject: str, request: ApiRequest) -> None:
        """Have ``request`` sent; an unsent one on the same subject is out of date now."""
        self._not_permitted.pop(subject, None)
        self._unsent[subject] = request
        self._news.set()

    @property
    def unsent(self) -> int:
        """How many requests are not sent yet."""
        return len(self._unsent) + len(self._not_permitted)

    async def run(self, api: ApiServer) -> None:
        """Send what there is and what comes, until cancelled."""
        while True:
            while self._unsent:
                if await self._send_first(api):
                    self._backoff.reset()
                else:
                    await asyncio.sleep(self._backoff.next_seconds())
            self._news.clear()
            try:
                async with asyncio.timeout_at(self._again_at if self._not_permitted else None):
                    await self._news.wait()
            except TimeoutError:
                self._unsent, self._not_permitted = {**self._not_permitted, **self._unsent}, {}

    async def _send_first(self, api: ApiServer) -> bool:
        """Send the oldest; False when it has to be tried again."""
        subject, request = next(iter(self._unsent.items()))
        try:
            await send(api, request, timeout_seconds=TIMEOUT_SECONDS)
        except ApiError as error:
            if error.status >= _SERVER_TROUBLE or error.status == _TOO_MANY_REQUESTS:
                return self._postpone(subject, error)
            if error.status in _NOT_PERMITTED:
                self._set_aside(subject, request, error)
                return True
            level = logging.DEBUG if error.missing or error.other_object else logging.WARNING  # the pod has ended
            logger.log(level, "the API server refused", extra={"subject": subject, "why": str(error)})
        except ClusterError as error:
            return self._postpone(subject, error)
        else:
            self._permitted(subject)
        if self._unsent.get(subject) is request:
            del self._unsent[subject]
        return True

    def _set_aside(self, subject: str, request: ApiRequest, error: ApiError) -> None:
        """Say so the first time; unless there is a newer word by now, which may fare better, try again later."""
        if subject not in self._told:
            self._told[subject] = None
            logger.warning("not permitted, tried again later", extra={"subject": subject, "why": str(error)})
        if not self._not_permitted:
            self._again_at = asyncio.get_running_loop().time() + self._patience.next_seconds()
        if self._unsent.get(subject) is request:
            self._not_permitted[subject] = self._unsent.pop(subject)
        if len(self._not_permitted) > MOST_NOT_PERMITTED:
            del self._not_permitted[next(iter(self._not_permitted))]
        if len(self._told) > MOST_NOT_PERMITTED:
            del self._told[next(iter(self._told))]

    def _permitted(self, subject: str) -> None:
        if subject in self._told:
            del self._told[subject]
            self._patience.reset()
            logger.info("permitted now", extra={"subject": subject})

    def _postpone(self, subject: str, error: ClusterError) -> bool:
        logger.debug("not told the API server yet", extra={"subject": subject, "why": str(error)})
        self._unsent[subject] = self._unsent.pop(subject)
        return False
