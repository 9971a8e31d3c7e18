"""What holds for every test."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = ["tests.support.controller_fixtures"]

# pytest-asyncio 1.5 on Python 3.11 makes a loop that nobody asked for when its first test begins, and leaves it to the
# garbage collector, whose warning then fails an innocent test. With a loop policy that has none set, it makes none.
asyncio.set_event_loop(None)

# jsonschema would make grammars for a format that no schema here has: seconds in each process, before the first test.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

# A shell lets what it runs in the background ignore Ctrl-C, and every process that a test starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A property fails for what it finds, not because other work on the machine made one example slow. `nox -s soak` tries
# each with more examples.
settings.register_profile("tests", deadline=None, max_examples=60)
settings.register_profile("soak", deadline=None, max_examples=1000)
settings.load_profile("tests")


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Share pytest's rewriting of the tests among the processes, which each would do for all of them in a fresh clone.

    Each begins at another file, and finds the bytecode of the others where it comes to their files.
    """
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if processes == 1 or session.config.args_source is not session.config.ArgsSource.TESTPATHS:
        return
    root = Path(__file__).parents[1]
    files = sorted(root.glob("tests/**/test_*.py"))
    first = len(files) * int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw")) // processes
    for file in (*files[first:], *files[:first]):
        with contextlib.suppress(Exception):  # the collection imports it again, and says what is wrong
            importlib.import_module(".".join(file.relative_to(root).with_suffix("").parts))


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, which pytest alone does without
def pytest_xdist_auto_num_workers() -> int:
    """Two for each CPU with ``--numprocesses auto``: tests wait half of their time, for daemons, clocks and sockets.

    Sixteen at most, because each collects all tests first.
    """
    return min(2 * len(os.sched_getaffinity(0)), 16)


@pytest.hookimpl(trylast=True)  # after pytest-randomly
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Two processes begin with the tests that take so long that they have a timeout of their own.

    Each process gets an equal part of the list. In the end nobody waits for one of them alone, and the tests that share
    a playground stay in one process.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    long = [item for item in items if item.get_closest_marker("timeout")]
    short = [item for item in items if not item.get_closest_marker("timeout")]
    half, middle = len(long) // 2, len(items) // 2
    items[:] = [*long[:half], *short[: middle - half], *long[half:], *short[middle - half :]]
