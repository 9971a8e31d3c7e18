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
    """Run ``job`` until it returns; after an error of any kind log it, wait and run it again.

    The wait grows with each error, and begins anew once the job has gone on for longer than the longest.
    ``chance`` gives numbers from 0 to 1.
    """
    loop = asyncio.get_running_loop()
    backoff = Backoff(chance, first_seconds=FIRST_PAUSE_SECONDS, longest_seconds=LONGEST_PAUSE_SECONDS)
    while True:
        began = loop.time()
        try:
            return await job()
        except Exception:
            if loop.time() - began > LONGEST_PAUSE_SECONDS:
                backoff.reset()
            pause = backoff.next_seconds()
            logger.exception("a job failed and is started again", extra={"job": name, "in_seconds": pause})
        await asyncio.sleep(pause)
