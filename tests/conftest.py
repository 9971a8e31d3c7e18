"""What holds for every test."""

from __future__ import annotations

import asyncio
import signal
import sys

from hypothesis import settings

pytest_plugins = ["tests.support.controller_fixtures"]

# pytest-asyncio 1.5 on Python 3.11 makes a loop that nobody asked for when its first test begins, and leaves it to the
# garbage collector, whose warning then fails an innocent test. With a loop policy that has none set, it makes none.
asyncio.set_event_loop(None)

# jsonschema would make grammars for a format that no schema here has: seconds in each process, before the first test.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

# A shell lets what it runs in the background ignore Ctrl-C, and every process that a test starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A property fails for what it finds, not because other work on the machine made one example slow.
settings.register_profile("without deadlines", deadline=None)
settings.load_profile("without deadlines")
