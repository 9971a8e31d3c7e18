"""Headless Chromium from the system's packages, driven by Playwright: just enough to look at a page and to type.

Playwright brings no browser here: none is downloaded. It runs one with a back/forward cache, as a person's does.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from playwright.async_api import Browser, BrowserContext, CDPSession, ConsoleMessage, Error, Page, async_playwright

_COMMANDS = (os.environ.get("CHROMIUM", ""), "chromium-headless-shell", "chromium", "chromium-browser")
CHROMIUM = next(filter(None, map(shutil.which, _COMMANDS)), None)
SECONDS = 60.0
END_SECONDS = 10.0
"""For what comes after a failure: it must not hide why a test has failed, even where the page hangs."""
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run")
_QUIET = ("--disable-background-networking", "--disable-component-update", "--disable-sync")
_Opened = TypeVar("_Opened", Browser, BrowserContext)


class Tab:
    """One page of a browser; ``problems`` are errors and warnings that any page of it has logged."""

    def __init__(self, page: Page, protocol: CDPSession, problems: list[str]) -> None:
        self.page = page
        self.problems = problems
        self._protocol = protocol

    async def another(self) -> Tab:
        """A further tab of the same browser."""
        return await _tab(self.page.context, self.problems)

    async def call(self, method: str, **parameters: Any) -> None:
        """One call of the DevTools protocol, for what Playwright has no word for."""
        await self._protocol.send(method, parameters)

    async def open(self, url: str) -> None:
        """Go to a page; what it loads may come later."""
        while True:
            try:
                await self.page.goto(url, wait_until="commit", timeout=1000 * SECONDS)
            except Error as error:
                if "ERR_NETWORK_CHANGED" not in str(error):  # an interface of the machine came or went
                    raise
            else:
                return

    async def value(self, script: str) -> Any:
        """What an expression gives in the page; promises are waited for."""
        async with asyncio.timeout(SECONDS):
            return await self.page.evaluate(script)

    async def until(self, script: str) -> Any:
        """Wait until an expression is true in the page; what it gives. An error counts as not yet."""
        found = None
        try:
            async with asyncio.timeout(SECONDS):
                while not found:
                    try:
                        found = await self.page.evaluate(script)
                    except Error:
                        found = None
                    await asyncio.sleep(0 if found else 0.05)
        except TimeoutError:
            text = "nothing: it hangs"
            with suppress(TimeoutError):
                async with asyncio.timeout(END_SECONDS):
                    text = await self.page.evaluate("document.body.innerText")
            raise AssertionError(f"never true: {script}; {self.problems}; the page reads:\n{text}") from None
        return found

    async def click(self, script: str) -> None:
        """Click on the element that an expression gives, once it is there, as a mouse does.

        The page may draw it again meanwhile: then a person clicks on the one that is there now.
        """
        async with asyncio.timeout(SECONDS):
            while True:
                await self.until(f"!!({script})")
                element = (await self.page.evaluate_handle(script)).as_element()
                with suppress(Error):
                    if element:
                        return await element.click(timeout=1000 * SECONDS)

    async def press(self, key: str) -> None:
        """Press and release one key."""
        await self.page.keyboard.press(key)

    async def choose(self, selector: str, value: str) -> None:
        """Choose an option of a select, or write into a field, as a user would."""
        script = """(each, value) => { each.value = value;
            for (const type of ["input", "change"]) each.dispatchEvent(new Event(type, {bubbles: true})); }"""
        await self.page.eval_on_selector(selector, script, value)


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """A browser that has just been started."""
    assert CHROMIUM, "no Chromium is installed: expected chromium-headless-shell, chromium or chromium-browser"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=[*_FLAGS, *_QUIET],
            ignore_default_args=["--disable-back-forward-cache"],
            timeout=1000 * SECONDS,
        )
        async with _closed(browser):
            yield browser


@asynccontextmanager
async def tab(browser: Browser, width: int = 1280, height: int = 1000) -> AsyncIterator[Tab]:
    """A tab of an empty profile, which further tabs may share."""
    async with _closed(await browser.new_context(viewport={"width": width, "height": height})) as context:
        yield await _tab(context, [])


@asynccontextmanager
async def _closed(opened: _Opened) -> AsyncIterator[_Opened]:
    """Closed at the end of the block, as far as it can be closed."""
    try:
        yield opened
    finally:
        with suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await opened.close()


async def _tab(context: BrowserContext, problems: list[str]) -> Tab:
    def see(said: ConsoleMessage) -> None:
        if said.type in {"error", "warning"}:
            problems.append(said.text)

    page = await context.new_page()
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", see)
    return Tab(page, await context.new_cdp_session(page), problems)
