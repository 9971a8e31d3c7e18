"""How the page is kept live: in many tabs, in tabs that were left, and while the controller is silent or away."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress

import pytest

from tests.support import browser as support
from tests.support.browser import Tab, chromium, tab
from tests.support.world import World
from tests.ui.looking import (
    ALL_SHOWN,
    BROWSER_TESTS,
    DEVICE,
    TRN1,
    device,
    small,
)
from tests.ui.site import site

pytestmark = BROWSER_TESTS


@pytest.mark.usefixtures("started")
async def test_a_page_that_hangs_does_not_hide_what_was_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def look_at_it() -> None:
        async with chromium() as started, tab(started) as hung:
            monkeypatch.setattr(support, "SECONDS", 0.5)
            monkeypatch.setattr(support, "END_SECONDS", 0.5)
            await hung.value("setTimeout(() => { for (;;); })")
            await hung.until("window.never")

    with pytest.raises(AssertionError, match=r"(?s)never true: window.never.*it hangs"):
        await asyncio.wait_for(look_at_it(), 30)


LATE = f"{device('trn1-b', 4)}?.dataset.state === 'used'"
WITHOUT_SHARING = {
    "there is none": "delete self.SharedWorker",
    "it fails": """self.SharedWorker = class { port = new MessageChannel().port1;
        constructor() { setTimeout(() => this.onerror()); } }""",
    "it says nothing": """self.SharedWorker = class { port = new MessageChannel().port1; };
        const slow = setInterval; self.setInterval = (work, ms) => slow(work, ms / 50);""",
}


async def test_more_tabs_than_a_browser_opens_connections_to_a_host_are_all_live(browser: Tab) -> None:
    world, tabs = small(), [browser]
    async with site(world) as url:
        for _ in range(8):
            await tabs[-1].open(f"{url}/ui/")
            await tabs[-1].until(ALL_SHOWN)
            tabs.append(await browser.another())
        world.held("late", "trn1-b", DEVICE, "4,5,6,7")
        for each in tabs[:-1]:
            await each.until(LATE)
        await tabs[0].page.close()  # the one that came first
        world.node("trn1-b", TRN1, unhealthy={0: "ECC"})
        for each in tabs[1:-1]:
            await each.until(f"{device('trn1-b', 0)}.dataset.state === 'unhealthy'")


@pytest.mark.parametrize("without", ["", *WITHOUT_SHARING.values()], ids=["shared", *WITHOUT_SHARING])
async def test_a_page_that_is_left_keeps_no_stream_and_is_live_when_one_comes_back_to_it(
    browser: Tab, without: str
) -> None:
    world = small()
    await browser.page.add_init_script(without)
    async with site(world) as url:
        for number in range(8):
            await browser.open(f"{url}/ui/")
            await browser.until(ALL_SHOWN)
            await browser.open(f"{url}/readyz?{number}")
        world.held("late", "trn1-b", DEVICE, "4,5,6,7")
        await browser.until("location.pathname === '/readyz'")
        await browser.value("void setTimeout(() => history.back())")
        await browser.until(LATE)
        assert await browser.value("document.getElementById('connection').textContent") == "live"


async def test_a_tab_in_the_background_keeps_no_stream_where_streams_cannot_be_shared(browser: Tab) -> None:
    world, tabs = small(), [browser]
    async with site(world) as url:
        for hidden in [True] * 8 + [False]:
            await tabs[-1].page.add_init_script(WITHOUT_SHARING["there is none"])
            await tabs[-1].open(f"{url}/ui/")
            await tabs[-1].until(ALL_SHOWN)
            turn = "Object.defineProperty(document, 'hidden', {{value: {}, configurable: true}}); "
            turn += "document.dispatchEvent(new Event('visibilitychange'))"
            if hidden:
                await tabs[-1].value(turn.format("true"))
                tabs.append(await browser.another())
        world.held("late", "trn1-b", DEVICE, "4,5,6,7")
        await tabs[-1].until(LATE)
        await tabs[0].value(turn.format("false"))
        await tabs[0].until(LATE)


class Freezer:
    """Passes connections on to a server until it is frozen, as a process that is stopped: connections stay open."""

    def __init__(self, url: str) -> None:
        self._port = int(url.rpartition(":")[2])
        self._flows = asyncio.Event()
        self._flows.set()

    def freeze(self) -> None:
        self._flows.clear()

    def thaw(self) -> None:
        self._flows.set()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._port)

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            with suppress(ConnectionError):
                while data := await source.read(65536):
                    await self._flows.wait()
                    target.write(data)
                    await target.drain()
            target.close()

        await asyncio.gather(copy(reader, to_server), copy(from_server, writer))


async def test_a_silent_controller_dims_the_page_which_says_since_when(browser: Tab) -> None:
    world = World()
    world.node("trn1-b", TRN1)
    async with site(world) as url:
        freezer = Freezer(url)
        server = await asyncio.start_server(freezer, "127.0.0.1")
        await browser.open(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/ui/")
        await browser.until("document.getElementById('connection').textContent === 'live'")
        freezer.freeze()
        await browser.until("document.body.classList.contains('lost')")
        text = await browser.value("document.getElementById('connection').textContent")
        assert text == "not live, trying again"
        as_of = await browser.value("document.getElementById('as-of').textContent")
        assert re.fullmatch(r"as of \d\d:\d\d:\d\d", as_of)
        said = f"Nothing is known since {as_of.removeprefix('as of ')}: the controller is silent."
        await browser.until(f"document.getElementById('attention').innerText === '{said}'")
        assert float(await browser.value("getComputedStyle(document.querySelector('#columns')).opacity")) < 1
        freezer.thaw()
        world.held("meanwhile", "trn1-b", DEVICE, "0")
        await browser.until(f"{device('trn1-b', 0)}.dataset.state === 'used'")
        await browser.until("!document.body.classList.contains('lost')")
        await browser.until("document.getElementById('attention').innerText === 'Nothing needs attention.'")
        server.close()


async def test_the_page_says_that_the_extender_is_away_and_goes_on_when_it_is_back(browser: Tab) -> None:
    world = small()
    async with site(world) as url:
        await browser.open(f"{url}/ui/")
        await browser.until("document.getElementById('connection').textContent === 'live'")
    await browser.until("document.getElementById('connection').textContent.startsWith('not live')")
    said = "document.getElementById('attention').textContent"
    await browser.until(f"/since [0-9:]+: the controller does not answer/.test({said})")
    world.held("meanwhile", "trn1-b", DEVICE, "0")
    async with site(world, port=int(url.rpartition(":")[2])):
        await browser.until(f"{device('trn1-b', 0)}.dataset.state === 'used'")
        await browser.until("document.getElementById('connection').textContent === 'live'")
