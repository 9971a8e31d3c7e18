"""Loading a library beside the event loop: some take tenths of a second to import."""

from __future__ import annotations

import asyncio
from importlib import import_module
from threading import Lock

_one_at_a_time = Lock()
"""Two threads that import parts of one package can each wait for the other's module, and one may get an incomplete
module."""


async def load(library: str) -> None:
    """Import a library in a thread."""
    await asyncio.to_thread(_load, library)


def _load(library: str) -> None:
    with _one_at_a_time:
        import_module(library)
