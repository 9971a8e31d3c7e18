"""What holds for every test."""

from __future__ import annotations

import asyncio

# pytest-asyncio 1.5 on Python 3.11 makes a loop that nobody asked for when its first test begins, and leaves it to the
# garbage collector, whose warning then fails an innocent test. With a loop policy that has none set, it makes none.
asyncio.set_event_loop(None)
