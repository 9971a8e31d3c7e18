"""The page served on loopback, with everything that it reads, from a cluster in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from aiohttp import web

from neuron_plugin.cluster import ApiServer
from neuron_plugin.decision_log import DecisionLog, decisions_document
from neuron_plugin.http_server import serving
from neuron_plugin.monitor.api import Monitor
from neuron_plugin.monitor.pages import inspection_routes
from neuron_plugin.monitor.use import Use
from neuron_plugin.placement.leadership import Readiness
from neuron_plugin.ui import Picture
from neuron_plugin.ui.pages import use_document
from tests.support.browser import Tab
from tests.support.world import World


@asynccontextmanager
async def site(
    world: World, token: str = "", port: int = 0, *, samples: Sequence[Use] = (), api: ApiServer | None = None
) -> AsyncIterator[str]:
    """Gives the URL of the server; ``port`` is one that an earlier server had, or any.

    ``samples`` are what the page remembers of the use over time, in place of what it has counted itself.
    """
    picture, monitor = Picture(token), Monitor(world.state, Readiness({}))

    async def decisions(_: web.Request) -> web.Response:
        return web.Response(body=decisions_document(DecisionLog()), content_type="application/json")

    async def ready(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def use(_: web.Request) -> web.Response:
        return web.Response(body=use_document(samples), content_type="application/json")

    app = web.Application(middlewares=picture.guard())
    if samples:
        app.add_routes([web.get("/ui/use.json", use)])  # the first route of a path is the one that answers
    app.add_routes(
        [*monitor.routes(), *inspection_routes(world.state, Readiness({})), *picture.routes(world.state, api)]
    )
    app.add_routes([web.get("/decisions", decisions), web.get("/readyz", ready)])
    sampling = asyncio.create_task(picture.run(world.state), name="picture")
    async with serving(app, "127.0.0.1", port) as served_port:
        try:
            yield f"http://127.0.0.1:{served_port}"
        finally:
            monitor.stop()
            sampling.cancel()
            with suppress(asyncio.CancelledError):
                await sampling


@asynccontextmanager
async def opened(browser: Tab, world: World, at: str = "", *, samples: Sequence[Use] = ()) -> AsyncIterator[None]:
    """The page of a cluster in a tab; ``at`` is what follows its address, such as the fragment of a node."""
    async with site(world, samples=samples) as url:
        await browser.open(f"{url}/ui/{at}")
        yield
