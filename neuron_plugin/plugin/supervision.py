"""Keeping a daemon's jobs going: what one job did not foresee must not take the node's devices away."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from neuron_plugin.backoff import Backoff

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0


async def keep_going(
    name: str, job: Callable[[], Awaitable[None]], *, chance: Callable[[], float] = random.random
) -> None:
    """Run ``job`` until it returns; after an error of any kind log it, wait (longer each time) and run it again.

    ``chance`` gives numbers from 0 to 1.
    """
    backoff = Backoff(chance, first_seconds=FIRST_PAUSE_SECONDS, longest_seconds=LONGEST_PAUSE_SECONDS)
    while True:
        try:
            return await job()
        except Exception:
            pause = backoff.next_seconds()
            logger.exception("a job failed and is started again", extra={"job": name, "in_seconds": pause})
        await asyncio.sleep(pause)
