from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# Plugins ask for "the" event loop before a test without one; unless it is set to None, Python makes a loop
# that is never closed, and its ResourceWarning fails whichever test the garbage collector runs in.
asyncio.set_event_loop(None)


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory with a name short enough for sockets in it; pytest's own are too long."""
    with tempfile.TemporaryDirectory(prefix="np-") as path:
        yield Path(path)
