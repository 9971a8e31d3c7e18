"""Fixtures: a tab of a real browser. Under CI it is always there; elsewhere a test is skipped without Chromium."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Error

from tests.cli.conftest import cli
from tests.support.browser import CHROMIUM, Tab, chromium, tab

__all__ = ["cli"]

CI = bool(os.environ.get("CI"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started() -> AsyncIterator[Browser]:
    if not (CHROMIUM or CI):
        pytest.skip("no Chromium is installed")
    async with AsyncExitStack() as stack:
        try:
            browser = await stack.enter_async_context(chromium())
        except Error:  # as in a container that forbids what it needs
            if CI:
                raise
            pytest.skip("Chromium is installed and does not start")
        yield browser


@pytest_asyncio.fixture(loop_scope="module")
async def browser(started: Browser) -> AsyncIterator[Tab]:
    """A tab of an empty profile."""
    async with tab(started) as opened:
        yield opened
        # A server that a test has ended refuses connections, which the browser logs.
        assert [each for each in opened.problems if "net::ERR_" not in each] == []
