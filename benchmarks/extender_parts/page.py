"""The live page: what its viewers cost the extender, and how soon a browser shows a thousand nodes."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from itertools import count
from multiprocessing.connection import Connection

import aiohttp
import msgspec
from aiohttp import web

from extender_parts.clusters import filled_service, record_of
from extender_parts.measuring import log_to_nowhere, percentile, served
from neuron_plugin.allocation import Resource
from neuron_plugin.http_server import serving
from neuron_plugin.monitor.api import Monitor
from neuron_plugin.monitor.pages import inspection_routes
from neuron_plugin.placement.extender.server import verb_routes
from neuron_plugin.placement.leadership import Readiness
from neuron_plugin.placement.settings import FilterMode
from neuron_plugin.ui import Picture
from tests.support.browser import CHROMIUM, chromium, tab
from tests.support.manifests import pod_manifest

NODES = 1000
PAINTED_NODES = 500
"""As many as the page shows on one screen."""
VIEWERS = 10
TURNS = 7
CALLS = 60
PAUSE_SECONDS = 0.04
"""Some 25 new pods a second, each of which changes a node: more than a busy cluster has."""
BOTH = "neuronnodes,neuronpods"
"""What a viewer lists and watches."""
LISTS = ("neuronnodes", "neuronpods", BOTH)
ASK_SECONDS = 5.0
_GROUP = "apis/neuron-plugin.io/v1"
_numbers = count()


async def page() -> None:
    """Lists, filter beside viewers, and the first paint."""
    with served(_serve, NODES) as port:
        await lists(port)
        await filter_beside_viewers(port)
    with served(_serve, PAINTED_NODES) as port:
        await first_paint(port)


async def lists(port: int) -> None:
    """The extender's CPU for the two lists: after a change, and for the next viewers."""
    for name in LISTS:
        first, others = [], []
        for _ in range(TURNS):
            first.append(await _cpu_of_lists(port, name, 1, changed=True))
            others.append(await _cpu_of_lists(port, name, VIEWERS, changed=False) / VIEWERS)
        least, most, next_one = min(first), max(first), statistics.median(others)
        print(
            f"list of {name}, {NODES} nodes with two pods each, CPU of the extender: {statistics.median(first):.0f} ms "
            f"({least:.0f}-{most:.0f}), of one more viewer {next_one:.1f} ms"
        )


async def filter_beside_viewers(port: int) -> None:
    """Filter's latency, and the extender's CPU for each new pod, with and without viewers, in turns.

    "best" is the ratio of the tenth percentiles of all turns: what other work on the machine has disturbed least.
    """
    alone, beside = [], []
    for _ in range(TURNS):
        alone.append(await _filtering(port))
        with served(_view, port):
            beside.append(await _filtering(port))
    medians = [[statistics.median(found) for found, _ in turns] for turns in (alone, beside)]
    cpu = [statistics.median(each for _, each in turns) for turns in (alone, beside)]
    best = [percentile([each for found, _ in turns for each in found], 0.1) for turns in (alone, beside)]
    ratios = [with_viewers / without for without, with_viewers in zip(*medians, strict=True)]
    without, with_viewers = map(statistics.median, medians)
    print(f"filter, {NODES} nodes, {1 / PAUSE_SECONDS:.0f} new pods a second, alone and beside {VIEWERS} viewers:")
    print(f"  median {without:.2f} and {with_viewers:.2f} ms; CPU for each pod {cpu[0]:.1f} and {cpu[1]:.1f} ms")
    print(
        f"  ratio of the medians, {TURNS} turns: {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f}-{max(ratios):.2f}); best {best[1] / best[0]:.2f}"
    )


async def first_paint(port: int) -> None:
    """From the navigation to the frame after the one in which all nodes are there."""
    if not CHROMIUM:
        print("first paint: no Chromium is installed")
        return
    found = []
    there = f"document.querySelectorAll('.card .device.free').length === {PAINTED_NODES}"
    painted = "requestAnimationFrame(() => { window.painted = performance.now(); })"
    script = f"(() => {{ const look = () => {there} ? {painted} : requestAnimationFrame(look); look(); }})()"
    async with chromium() as started, tab(started) as browser:
        await browser.page.add_init_script(script)
        for _ in range(TURNS):
            await browser.open("about:blank")
            await browser.open(f"http://127.0.0.1:{port}/ui/")
            found.append(await browser.until("window.painted") / 1000)
    print(
        f"first paint of {PAINTED_NODES} nodes in headless Chromium, {TURNS} times: "
        f"median {statistics.median(found):.2f} s, {min(found):.2f}-{max(found):.2f} s"
    )


async def _cpu_of_lists(port: int, name: str, times: int, *, changed: bool) -> float:
    """Milliseconds of CPU that the server takes for so many lists, after a change or without one."""
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        await _get(session, "/cpu?change=1" if changed else "/cpu")
        before = float(await _get(session, "/cpu"))
        for _ in range(times):
            await _get(session, f"/{_GROUP}/{name}")
        return (float(await _get(session, "/cpu")) - before) * 1000


async def _get(session: aiohttp.ClientSession, path: str) -> bytes:
    async with session.get(path) as answer:
        assert answer.ok, await answer.text()
        return await answer.read()


async def _filtering(port: int) -> tuple[list[float], float]:
    """Of one new pod after the other: filter's milliseconds, and the server's CPU for each pod."""
    found, headers = [], {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=headers) as session:
        names = msgspec.json.decode(await _get(session, "/names"))
        before = float(await _get(session, "/cpu"))
        for _ in range(CALLS):
            manifest = pod_manifest(f"new-{next(_numbers)}", Resource.NEURON, 1)
            body = json.dumps({"Pod": manifest, "Nodes": None, "NodeNames": names})
            await asyncio.sleep(PAUSE_SECONDS)
            async with session.post("/pod", data=json.dumps(manifest)) as answer:
                assert answer.ok  # the viewers are being sent it while filter is asked
            started = time.perf_counter()
            async with session.post("/filter", data=body) as answer:
                text = await answer.read()
            found.append((time.perf_counter() - started) * 1000)
            assert len(msgspec.json.decode(text)["NodeNames"]) == 1
        cpu = float(await _get(session, "/cpu")) - before
    return found[5:], cpu / CALLS * 1000


def _serve(pipe: Connection, nodes: int) -> None:
    log_to_nowhere()
    asyncio.run(_serving(pipe, nodes))


async def _serving(pipe: Connection, nodes: int) -> None:
    """Verbs and page on one port; ``/cpu`` says how much CPU this process has taken."""
    service, state, names = filled_service(nodes, FilterMode.BEST)
    picture = Picture()

    async def cpu(request: web.Request) -> web.Response:
        if "change" in request.query:
            state.set_stale(frozenset() if state.nodes[names[0]].stale else frozenset(names[:1]))
        return web.Response(text=str(time.process_time()))

    async def pod(request: web.Request) -> web.Response:
        state.put_pod(record_of(await request.json()))  # as the watch would bring it
        return web.Response()

    async def known(_: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(names))

    async def decisions(_: web.Request) -> web.Response:
        return web.json_response({"decisions": []})

    app = web.Application(client_max_size=128 << 20)
    app.add_routes([*verb_routes(service), *Monitor(state, Readiness({})).routes(), *picture.routes(state)])
    app.add_routes([*inspection_routes(state, Readiness({})), web.get("/cpu", cpu), web.get("/names", known)])
    app.add_routes([web.get("/decisions", decisions), web.post("/pod", pod)])
    sampling = asyncio.create_task(picture.run(state), name="picture")
    async with serving(app, "127.0.0.1", 0) as port:
        pipe.send(port)
        await sampling


def _view(pipe: Connection, port: int) -> None:
    asyncio.run(_viewing(pipe, port))


async def _viewing(pipe: Connection, port: int) -> None:
    """What ten open pages read."""
    async with aiohttp.ClientSession(
        f"http://127.0.0.1:{port}", connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout()
    ) as session:
        ready = asyncio.Barrier(VIEWERS + 1)
        watching = [asyncio.create_task(_watch(session, ready)) for _ in range(VIEWERS)]
        watching += [asyncio.create_task(_ask_what_waits(session)) for _ in range(VIEWERS)]
        await ready.wait()
        pipe.send("viewing")
        await asyncio.gather(*watching)


async def _ask_what_waits(session: aiohttp.ClientSession) -> None:
    """As a page does while pods wait."""
    while True:
        await asyncio.sleep(ASK_SECONDS)
        await _get(session, "/ui/waiting.json")


async def _watch(session: aiohttp.ClientSession, ready: asyncio.Barrier) -> None:
    version = msgspec.json.decode(await _get(session, f"/{_GROUP}/{BOTH}"))["metadata"]["resourceVersion"]
    query = f"?watch=true&allowWatchBookmarks=true&resourceVersion={version}"
    async with session.get(f"/{_GROUP}/{BOTH}{query}") as answer:
        assert answer.ok
        await ready.wait()
        async for _ in answer.content.iter_any():
            pass
