"""The page in a real browser: what a person sees, and what keys do. Under CI it runs always; elsewhere it is skipped
where no Chromium is installed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from neuron_plugin.allocation import PodReference, PodUid, Resource
from neuron_plugin.allocation.node import Reservation
from neuron_plugin.scheduling.history import Cause
from neuron_plugin.topology import CoreMask
from tests.support.browser import CHROMIUM, Browser
from tests.support.manifests import gated_manifest, node_manifest, pod_manifest
from tests.support.playground import Playground
from tests.support.world import World
from tests.ui.site import site

CI = bool(os.environ.get("CI"))
pytestmark = [
    pytest.mark.skipif(not (CHROMIUM or CI), reason="no Chromium is installed"),
    pytest.mark.timeout(180),
]

PICTURES = Path(__file__).resolve().parents[2] / "docs/pictures"
WRITE = bool(os.environ.get("WRITE_PICTURES"))
TRN1, INF2 = "trn1.32xlarge", "inf2.48xlarge"
DEVICE, CORE = Resource.NEURON, Resource.NEURONCORE
NAMES = "[...document.querySelectorAll('#nodes li:not([hidden]) strong')].map((each) => each.textContent).join()"
LEAST_CONTRAST = 4.5
"""Of text, by WCAG 2.2 AA."""


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with AsyncExitStack() as stack:
        try:
            started = await stack.enter_async_context(Browser())
        except (TimeoutError, asyncio.CancelledError):  # as in a container that forbids what it needs
            if CI:
                raise
            pytest.skip("Chromium is installed and does not start")
        yield started
        # A server that a test has ended refuses connections, which the browser logs.
        assert [each for each in started.problems if "net::ERR_" not in each] == []


def small() -> World:
    world = World()
    world.node("trn1-a", TRN1, unhealthy={9: "uncorrected ECC errors: 1"}, missing=[15])
    world.node("trn1-b", TRN1)
    world.node("inf2-a", INF2)
    world.held("train", "trn1-a", DEVICE, "0,1,2,3")
    world.held("serve", "trn1-a", CORE, "8")
    return world


def device(node: str, number: int) -> str:
    return f'document.querySelectorAll(`.card[href="#node/{node}"] .device`)[{number}]'


async def test_pods_and_faults_show_without_a_reload_and_heal(browser: Browser) -> None:
    world = small()
    async with site(world) as url:
        await browser.open(f"{url}/ui/")
        await browser.until(f"document.querySelectorAll('.card').length === 3 && {device('trn1-a', 0)}.dataset.state")
        states = {
            number: await browser.value(f"{device('trn1-a', number)}.dataset.state") for number in (0, 4, 5, 9, 15)
        }
        assert states == {0: "used", 4: "used", 5: "free", 9: "unhealthy", 15: "missing"}
        assert await browser.value(f"{device('trn1-a', 0)}.style.fill") != await browser.value(
            f"{device('trn1-a', 9)}.style.fill"
        )
        await browser.value("window.same = document")
        pod = world.held("late", "trn1-b", DEVICE, "4,5,6,7")
        await browser.until(f"{device('trn1-b', 4)}.dataset.state === 'used'")
        assert "default/late" in await browser.value(f"{device('trn1-b', 7)}.parentNode.textContent")
        await browser.until(f"{device('trn1-b', 7)}.parentNode.classList.contains('lit')")
        world.node("trn1-b", TRN1, unhealthy={0: "ECC"})
        await browser.until(f"{device('trn1-b', 0)}.dataset.state === 'unhealthy'")
        world.gone(pod)
        world.node("trn1-b", TRN1)
        await browser.until(f"['0','4'].every((id) => {device('trn1-b', 0)}.dataset.state === 'free')")
        await browser.until(f"{device('trn1-b', 4)}.dataset.state === 'free'")
        assert await browser.value("window.same === document"), "nothing was loaded again"


async def test_a_node_is_shown_once_its_hardware_is_known(browser: Browser) -> None:
    world = small()
    world.show_node({"metadata": {"name": "late", "uid": "1"}})
    async with site(world) as url:
        await browser.open(f"{url}/ui/")
        await browser.until(f"{NAMES} === 'inf2-a,trn1-a,trn1-b'")
        world.node("late", INF2)
        await browser.until(f"{NAMES} === 'inf2-a,late,trn1-a,trn1-b'")
        world.show_node({"metadata": {"name": "late", "uid": "1"}})
        await browser.until(f"{NAMES} === 'inf2-a,trn1-a,trn1-b'")


async def test_nodes_are_sorted_filtered_and_coloured_as_chosen(browser: Browser) -> None:
    world = small()
    async with site(world) as url:
        await browser.open(f"{url}/ui/")
        await browser.until(f"{NAMES} === 'inf2-a,trn1-a,trn1-b'")
        await browser.choose("#sort", "use")
        await browser.until(f"{NAMES} === 'trn1-a,inf2-a,trn1-b'")
        await browser.choose("#type", INF2)
        await browser.until(f"{NAMES} === 'inf2-a'")
        await browser.choose("#type", "")
        await browser.press("/")
        for key in "serve":
            await browser.press(key)
        await browser.until(f"{NAMES} === 'trn1-a'")
        before = await browser.value(f"{device('trn1-a', 0)}.style.fill")
        await browser.choose("#colour", "health")
        await browser.until(f"{device('trn1-a', 0)}.style.fill !== {json.dumps(before)}")
        assert "used" in await browser.value("document.getElementById('legend').innerText")


async def test_pods_of_one_group_have_one_colour_though_they_come_after_their_nodes(browser: Browser) -> None:
    world = small()
    async with site(world) as url:
        await browser.open(f"{url}/ui/")
        await browser.until("document.querySelectorAll('.card').length === 3")
        await browser.choose("#colour", "group")
        for number, group in enumerate(["gang", "gang", ""]):
            manifest = pod_manifest(
                f"rank-{number}", DEVICE, 1, node="inf2-a", annotations={"NEURON_DEVS": str(number)}
            )
            manifest["spec"] |= {"schedulingGroup": {"podGroupName": group}} if group else {}
            world.show(manifest)
        await browser.until(f"{device('inf2-a', 2)}.dataset.state === 'used'")
        one, two, other = [await browser.value(f"{device('inf2-a', number)}.style.fill") for number in range(3)]
        assert one == two != other
        names = "[...document.querySelectorAll('#legend li')].map((each) => each.textContent)"
        assert {"default/gang", "default/rank-2"} <= set(await browser.value(names))


async def test_a_held_down_device_is_no_broken_one_and_has_its_reason_and_end(browser: Browser) -> None:
    world, reason = small(), "processes of pod ml/old, which has ended, may still use it"
    async with site(world) as url:
        await browser.open(f"{url}/ui/#node/trn1-b")
        await browser.until(f"{device('trn1-b', 3)}.dataset.state === 'free'")
        world.node("trn1-b", TRN1, unhealthy={3: reason, 5: "ECC"}, held_down=[3])
        await browser.until(f"{device('trn1-b', 3)}.dataset.state === 'held down'")
        assert await browser.value(f"{device('trn1-b', 5)}.dataset.state") == "unhealthy"
        fills = [await browser.value(f"{device('trn1-b', number)}.style.fill") for number in (3, 5)]
        assert fills[0] != fills[1]
        text = await browser.value("document.getElementById('detail').innerText")
        assert re.search(rf"Hold-downs\s+Device\s+Reason\s+Until\s+3\s+{reason}\s+no process of the pod is alive", text)
        assert re.search(r"5\s+10-11\s+unhealthy: ECC\s+\d+/\d+/\d+", text), "since when it is unhealthy"
        await browser.choose("#colour", "hold-down")
        await browser.until(f"document.getElementById('legend').innerText.includes({json.dumps(reason)})")


async def test_a_device_that_is_kept_for_a_waiting_pod_is_not_shown_as_free(browser: Browser) -> None:
    world = small()
    pod = PodReference(PodUid("w"), "ml", "waits")
    world.state.reserve(Reservation(pod, "trn1-b", CoreMask(0b1111)))
    async with site(world) as url:
        await browser.open(f"{url}/ui/#node/trn1-b")
        await browser.until(f"{device('trn1-b', 1)}.dataset.state === 'reserved'")
        assert await browser.value(f"{device('trn1-b', 2)}.dataset.state") == "free"
        assert re.search(r"1\s+2-3\s+reserved: for ml/waits", await browser.value("document.body.innerText"))


async def test_what_a_pod_has_and_what_is_broken_are_both_shown_and_the_numbers_add_up(browser: Browser) -> None:
    world = small()
    async with site(world) as url:
        await browser.open(f"{url}/ui/")
        await browser.until(f"{device('trn1-a', 0)}?.dataset.state === 'used'")
        before = await browser.value(f"{device('trn1-a', 0)}.style.fill")
        world.node("trn1-a", TRN1, missing=list(range(16)))  # the driver is gone
        await browser.until(f"{device('trn1-a', 0)}.dataset.health === 'missing'")
        states = [await browser.value(f"{device('trn1-a', number)}.dataset.state") for number in (0, 3, 4, 5)]
        assert states == ["used", "used", "used", "missing"]
        assert await browser.value(f"{device('trn1-a', 0)}.style.fill") == before, "whose it is"
        band = "document.querySelectorAll(`.card[href='#node/trn1-a'] .band`)"
        shown = f"[...{band}].map((each) => getComputedStyle(each).display !== 'none')"
        assert await browser.value(shown) == [True] * 5 + [False] * 11, "what is wrong with it"
        title = await browser.value(f"{device('trn1-a', 0)}.parentNode.querySelector('title').textContent")
        assert title.startswith("device 0: missing")
        assert title.endswith("default/train")
        state = await browser.value("document.querySelector(`.card[href='#node/trn1-a'] .state`).textContent")
        assert state == "5 used, 5 of them unhealthy or missing; 11 missing"
        assert "used\n5 unhealthy or missing" in await browser.value("document.getElementById('numbers').innerText")
        pairs = """[...document.querySelectorAll('#numbers div')].map((each) =>
            [each.querySelector('dt').firstChild.textContent, each.querySelector('dd').textContent])"""
        found = dict(await browser.value(pairs))
        assert [found[name] for name in ("devices", "used", "free", "missing")] == ["44", "5", "28", "11"]
        use = await browser.value("document.querySelector('#use svg').getAttribute('aria-label')")
        assert use.startswith("Devices now: 0 used; 5 used, but broken; 28 free, linked; 0 free, not linked; 11 not")


async def test_a_cordoned_node_is_marked_and_its_devices_do_not_count_as_free(browser: Browser) -> None:
    world = small()
    async with site(world) as url:
        await browser.open(f"{url}/ui/#node/trn1-b")
        await browser.until(f"{device('trn1-b', 0)}?.dataset.state === 'free'")
        world.show_node({**node_manifest("trn1-b", TRN1), "spec": {"unschedulable": True}})
        await browser.until("document.querySelector(`.card[href='#node/trn1-b']`).classList.contains('closed')")
        text = await browser.value("document.getElementById('numbers').innerText")
        assert re.search(r"nodes closed\s+1\s", text)
        assert re.search(r"free\s+21\s", text)
        assert re.search(r"on closed nodes\s+16\s", text)
        assert "Takes no pods: The node is cordoned." in await browser.value("document.body.innerText")


async def test_gated_and_promised_pods_are_shown_as_such_until_they_are_bound(browser: Browser) -> None:
    world = small()
    world.show(gated_manifest("waits", DEVICE, 16))
    promised = gated_manifest("coming", DEVICE, 4, promised=("trn1-b", "4,5,6,7"), gates=())
    world.show(promised)
    async with site(world) as url:
        await browser.open(f"{url}/ui/#node/trn1-b")
        await browser.until(f"{device('trn1-b', 4)}?.classList.contains('promised')")
        assert await browser.value(f"{device('trn1-b', 4)}.dataset.state") == "used"
        assert not await browser.value(f"{device('trn1-a', 0)}.classList.contains('promised')")
        text = await browser.value("document.body.innerText")
        assert re.search(r"pods waiting\n1 gated\s+1\s", text)
        assert re.search(r"pods promised\s+1\s", text)
        assert "default/waits asks for main: 16 aws.amazon.com/neuron (gated)" in text
        assert re.search(r"default/coming\s+main\s+4-7\s+8-15\s+promised, not bound yet", text)
        promised["spec"]["nodeName"] = "trn1-b"
        world.show(promised)
        await browser.until(f"!{device('trn1-b', 4)}.classList.contains('promised')")
        assert "promised" not in await browser.value("document.body.innerText")


async def test_no_two_pods_have_the_same_paint(browser: Browser) -> None:
    world = World()
    for node in range(10):
        world.node(f"node-{node}", TRN1)
        for number in range(16):
            world.held(f"pod-{node}-{number}", f"node-{node}", DEVICE, str(number))
    async with site(world) as url:
        await browser.open(f"{url}/ui/")
        fills = "[...document.querySelectorAll('.device[data-state=used]')].map((each) => each.style.fill)"
        await browser.until(f"{fills}.length === 160")
        found = await browser.value(fills)
        assert len(set(found)) == 160
        drawn = "[...document.querySelectorAll('#patterns pattern')].map((each) => [each.id, each.outerHTML])"
        looks = [re.sub(r' id="[^"]+"', "", text) for _, text in await browser.value(drawn)]
        assert len(set(looks)) == len(looks), "and each paint looks otherwise"


async def test_the_pods_on_top_of_the_list_are_explained(browser: Browser) -> None:
    world = small()
    for number in range(12):
        world.pod(f"early-{number:02}", DEVICE, 7)
    for number in range(3):
        world.pod(f"urgent-{number}", DEVICE, 7, priority=1000)
    async with site(world) as url:
        await browser.open(f"{url}/ui/")
        listed = "[...document.querySelectorAll('#waiting-pods li')].map((each) => each.textContent)"
        await browser.until(f"{listed}[2]?.includes('does not support requests')")
        await browser.until(f"{listed}[9]?.includes('does not support requests')")
        texts = await browser.value(listed)
        assert [text.partition(" ")[0] for text in texts[:4]] == [
            *(f"default/urgent-{number}" for number in range(3)),
            "default/early-00",
        ]
        assert not [text for text in texts[:10] if "does not support requests" not in text]
        assert "neuron-plugin explain default/early-11" in texts[14]


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


async def test_a_frozen_extender_dims_the_page_which_says_since_when(browser: Browser) -> None:
    world = small()
    async with site(world) as url:
        freezer = Freezer(url)
        server = await asyncio.start_server(freezer, "127.0.0.1")
        quicker = "const slow = window.setTimeout; window.setTimeout = (f, ms) => slow(f, ms / 10);"
        await browser.call("Page.addScriptToEvaluateOnNewDocument", source=quicker)
        await browser.open(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/ui/")
        await browser.until("document.getElementById('connection').textContent === 'live'")
        freezer.freeze()
        await browser.until("document.body.classList.contains('lost')")
        text = await browser.value("document.getElementById('connection').textContent")
        assert re.fullmatch(r"not live since \d+:\d+:\d+ [AP]M: the extender is silent; trying again", text)
        assert float(await browser.value("getComputedStyle(document.querySelector('main')).opacity")) < 1
        freezer.thaw()
        world.held("meanwhile", "trn1-b", DEVICE, "0")
        await browser.until(f"{device('trn1-b', 0)}.dataset.state === 'used'")
        await browser.until("!document.body.classList.contains('lost')")
        server.close()


async def test_without_javascript_the_tables_are_shown(browser: Browser) -> None:
    world = small()
    world.pod("seven", DEVICE, 7)
    async with site(world) as url:
        await browser.call("Emulation.setScriptExecutionDisabled", value=True)
        await browser.open(f"{url}/ui/")
        await browser.until("location.pathname === '/ui/table' && document.readyState === 'complete'")
        text = await browser.value("document.body.innerText")
        assert re.search(r"trn1-b\s+trn1.32xlarge\s+0,1,[0-9,]+,15\s+16 of 1, 4 of 4, 2 of 8, 1 of 16", text)
        assert "seven" in text


async def test_who_was_evicted_to_make_room_stands_on_a_time_line(browser: Browser) -> None:
    world = small()
    victim = world.held("victim", "trn1-b", DEVICE, "0,1,2,3")
    urgent = PodReference(PodUid("u"), "ml", "urgent")
    async with site(world) as url:
        await browser.open(f"{url}/ui/")
        await browser.until(f"{device('trn1-b', 0)}.dataset.state === 'used'")
        assert await browser.value("document.getElementById('room').hidden")
        world.state.history.evicted(Cause.MOVE, PodReference(PodUid("m"), "ml", "small"), "trn1-a", urgent, "inf2-a")
        world.state.history.offer([victim["metadata"]["uid"]], urgent)
        world.gone(victim)
        await browser.until("document.querySelectorAll('#room title').length === 2")
        titles = await browser.value("[...document.querySelectorAll('#room title')].map((each) => each.textContent)")
        assert titles[0].endswith("ml/small moved from trn1-a to inf2-a, to make room for ml/urgent")
        assert titles[1].endswith("default/victim preempted from trn1-b, to make room for ml/urgent")
        await browser.value("document.querySelector('#room summary').click()")
        text = await browser.value("document.getElementById('room').innerText")
        assert re.search(r"preempted\s+default/victim\s+trn1-b\s+-\s+ml/urgent", text)


async def test_a_change_elsewhere_leaves_focus_and_closed_reasons_as_they_are(browser: Browser) -> None:
    world = small()
    world.pod("seven", DEVICE, 7)
    async with site(world) as url:
        await browser.open(f"{url}/ui/#node/trn1-a")
        await browser.until("document.getElementById('waiting').innerText.includes('does not support requests')")
        await browser.value("document.querySelector('#waiting summary').click()")
        await browser.value("document.querySelector('#detail a').focus()")
        world.held("late", "trn1-b", DEVICE, "4,5,6,7")
        world.held("here", "trn1-a", DEVICE, "4,5,6,7")
        await browser.until("document.getElementById('detail').innerText.includes('default/here')")
        assert await browser.value("document.activeElement.textContent") == "Close"
        assert await browser.value("document.querySelector('#waiting details').open") is False


async def test_the_keyboard_alone_leads_to_a_node_and_back(browser: Browser) -> None:
    world = small()
    async with site(world) as url:
        await browser.open(f"{url}/ui/")
        await browser.until("document.querySelectorAll('.card').length === 3")
        await browser.value("document.querySelector('.card').focus()")
        await browser.press("ArrowRight")
        assert await browser.value("document.activeElement.querySelector('strong').textContent") == "trn1-a"
        await browser.press("Enter")
        await browser.until("document.activeElement.id === 'detail'")
        text = await browser.until("document.getElementById('detail').innerText")
        assert "Node trn1-a" in text
        assert re.search(r"default/train\s+main\s+0-3\s+0-7\s+chosen, not confirmed yet", text)
        assert re.search(r"9\s+18-19\s+unhealthy: uncorrected ECC errors: 1", text)
        assert re.search(r"Free sets\s+Devices\s+Number\s+1\s+9\s+4\s+0", text)
        if WRITE:
            await browser.screenshot(PICTURES / "node.png", "#detail")
        await browser.press("Escape")
        await browser.until("document.getElementById('detail').hidden")
        assert await browser.value("document.activeElement.querySelector('strong').textContent") == "trn1-a"


async def test_a_waiting_pod_is_listed_with_the_reason_until_it_is_gone(browser: Browser) -> None:
    world = small()
    pod = world.pod("seven", DEVICE, 7)
    async with site(world) as url:
        await browser.open(f"{url}/ui/")
        await browser.until("document.getElementById('waiting').innerText.includes('default/seven')")
        await browser.until("document.getElementById('waiting').innerText.includes('does not support requests')")
        world.gone(pod)
        await browser.until("document.getElementById('waiting').hidden")


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_every_text_stands_out_from_its_background(browser: Browser, theme: str) -> None:
    contrast = """(() => {
        const light = (text) => { const [r, g, b] = text.match(/[\\d.]+/g).map((part) => part / 255)
            .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
        const back = (node) => { for (; node; node = node.parentElement) {
            const found = getComputedStyle(node).backgroundColor;
            if (found !== "rgba(0, 0, 0, 0)") return found; } return "rgb(255, 255, 255)"; };
        const texts = [...document.querySelectorAll("body *")].filter((each) => !each.closest("svg, noscript")
            && [...each.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim()));
        return texts.map((each) => { const [a, b] = [light(getComputedStyle(each).color), light(back(each))];
            return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), each.outerHTML.slice(0, 90)]; });
    })()"""
    world = small()
    async with site(world) as url:
        await browser.open(f"{url}/ui/#node/trn1-a")
        await browser.until(
            "document.querySelectorAll('.card').length === 3 && !document.getElementById('detail').hidden"
        )
        if (await browser.value("document.documentElement.dataset.theme")) != theme:
            await browser.value("document.getElementById('theme').click()")
        found = await browser.until(contrast)
        assert len(found) > 40
        assert [each for each in found if each[0] < LEAST_CONTRAST] == []


async def test_states_differ_by_pattern_and_not_by_colour_alone(browser: Browser) -> None:
    world = small()
    async with site(world) as url:
        await browser.open(f"{url}/ui/")
        await browser.until(f"{device('trn1-a', 15)}.dataset?.state === 'missing'")
        patterns = "[...document.querySelectorAll('#patterns pattern')]"
        marks = f"{patterns}.map((each) => [each.id, each.querySelectorAll('path').length])"
        drawn = dict(await browser.value(marks))
        unhealthy = re.findall(r"#([\w-]+)", await browser.value(f"{device('trn1-a', 9)}.style.fill"))[0]
        assert drawn[unhealthy] == 1
        dashes = await browser.value(f"getComputedStyle({device('trn1-a', 15)}).strokeDasharray")
        assert dashes != "none"
        labels = "[...document.querySelectorAll('.card svg')].every((each) => each.getAttribute('aria-label'))"
        assert await browser.value(labels)


async def test_use_over_time_is_drawn_and_can_be_downloaded(browser: Browser) -> None:
    world = small()
    async with site(world) as url:
        await browser.open(f"{url}/ui/")
        await browser.until(
            "document.querySelector('#use svg')?.getAttribute('aria-label').startsWith('Devices now: 5 used;')"
        )
        kept = """(() => { let kept; URL.createObjectURL = (blob) => { kept = blob; return "#"; };
            document.getElementById("download").click(); return kept.text(); })()"""
        text = await browser.value(kept)
        assert text.startswith("<svg")
        assert "<pattern" in text


async def test_the_page_says_that_the_extender_is_away_and_goes_on_when_it_is_back(browser: Browser) -> None:
    world = small()
    async with site(world) as url:
        await browser.open(f"{url}/ui/")
        await browser.until("document.getElementById('connection').textContent === 'live'")
    await browser.until("document.getElementById('connection').textContent.startsWith('not live')")
    world.held("meanwhile", "trn1-b", DEVICE, "0")
    async with site(world, port=int(url.rpartition(":")[2])):
        await browser.until(f"{device('trn1-b', 0)}.dataset.state === 'used'")
        await browser.until("document.getElementById('connection').textContent === 'live'")


async def test_names_from_outside_are_shown_as_text(browser: Browser) -> None:
    world = World()
    world.node("<img src=x onerror=alert(1)>", TRN1, unhealthy={1: "<i>"})
    world.held("<b>x</b>", "<img src=x onerror=alert(1)>", DEVICE, "0")
    async with site(world) as url:
        await browser.open(f"{url}/ui/#node/{'%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E'}")
        await browser.until("document.getElementById('detail').innerText.includes('default/<b>x</b>')")
        assert await browser.value("document.querySelectorAll('main img, main b, main i').length") == 0


async def test_a_thousand_nodes_are_drawn_once_and_patched(browser: Browser) -> None:
    world = World()
    for number in range(1000):
        world.node(f"node-{number}", TRN1 if number % 3 else INF2)
        world.held(f"pod-{number}", f"node-{number}", DEVICE, "0,1,2,3" if number % 2 else "0")
    async with site(world) as url:
        started = time.monotonic()
        await browser.open(f"{url}/ui/")
        await browser.until("document.querySelectorAll('.card').length === 1000")
        print(f"1000 nodes shown after {time.monotonic() - started:.2f} s")  # noqa: T201 - a figure to look at with pytest -s
        await browser.value("window.first = document.querySelector('.card')")
        world.held("late", "node-1", DEVICE, "4,5,6,7")
        started = time.monotonic()
        await browser.until(f"{device('node-1', 4)}.dataset.state === 'used'")
        print(f"a pod of one node shown after {time.monotonic() - started:.2f} s")  # noqa: T201 - a figure to look at with pytest -s
        assert await browser.value("window.first === document.querySelector('.card')"), "only the change is drawn"


async def test_the_playground_s_page_shows_pods_a_refusal_and_a_fault_that_heals(browser: Browser) -> None:
    with Playground("--nodes", "trn1.32xlarge=1,inf2.48xlarge=1") as up:
        up.wait_for("In a second shell:")
        url = re.findall(r"In a browser: (\S+)", up.printed())[0]
        await browser.open(url)
        await browser.until("document.querySelectorAll('.card').length === 2")
        up.run("run", "--ask", "neuron=4", "--ask", "neuron=13", "--ask", "neuroncore=3")
        await browser.until("document.querySelectorAll('.device[data-state=used]').length >= 6")
        await browser.until("document.getElementById('waiting').innerText.includes('13 were requested')")
        up.run("fault", "trn1-1", "device", "13", "gone")
        await browser.until(f"{device('trn1-1', 13)}.dataset.state === 'missing'")
        if WRITE:
            up.run("fault", "trn1-1", "ecc", "10", "--sram", "1")
            await browser.until(f"{device('trn1-1', 10)}.dataset.state === 'unhealthy'")
            up.run("fault", "inf2-1", "ecc", "1", "--sram", "1")  # a device that a pod has
            await browser.until(f"{device('inf2-1', 1)}.dataset.health === 'unhealthy'")
            await asyncio.sleep(2)  # what has lit up is as before
            await browser.screenshot(PICTURES / "cluster.png")
        await browser.value("location.hash = document.querySelector('.device[data-state=used]').closest('a').hash")
        await browser.until("document.getElementById('detail').innerText.includes('confirmed by the kubelet')")
        up.run("fault", "trn1-1", "device", "13", "back")
        await browser.until(f"{device('trn1-1', 13)}.dataset.state !== 'missing'")


def test_the_pictures_in_the_docs_are_there() -> None:
    for name in ("cluster", "node"):
        assert (PICTURES / f"{name}.png").read_bytes().startswith(b"\x89PNG")
