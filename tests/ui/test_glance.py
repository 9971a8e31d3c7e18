"""What a person takes in at a glance: names and colours, what is wrong, who waits, on a desk, a phone and a wall."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from axe_playwright_python.async_playwright import Axe

from neuron_plugin.allocation.utilization import ContainerUtilization
from neuron_plugin.monitor.use import Use
from tests.support.browser import Tab
from tests.support.manifests import gated_manifest, node_manifest, pod_manifest
from tests.support.world import World
from tests.ui.looking import BROWSER_TESTS, CORE, DEVICE, INF2, NAMES, TRN1, card, device, fill, small
from tests.ui.site import opened, site

pytestmark = BROWSER_TESTS

PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
CHIPS = "[...document.querySelectorAll('#numbers li')].map((each) => each.textContent)"


def replica(name: str, ids: str, controller: str, node: str = "trn1-b") -> dict[str, Any]:
    """A pod of a controller, KIND/NAME, that has these devices."""
    manifest = pod_manifest(name, DEVICE, len(ids.split(",")), node=node, annotations={"NEURON_DEVS": ids})
    kind, _, owner = controller.partition("/")
    manifest["metadata"]["ownerReferences"] = [{"kind": kind, "name": owner, "controller": True}]
    return manifest


def member(name: str, *, group: str, promised: tuple[str, str] = ("", "")) -> dict[str, Any]:
    """A gated pod of a group, for a row of devices."""
    manifest = gated_manifest(name, DEVICE, 4, promised=promised)
    manifest["spec"]["schedulingGroup"] = {"podGroupName": group}
    return manifest


async def test_crosses_and_counters_agree_whoever_has_the_devices(browser: Tab) -> None:
    world = small()
    world.node("trn1-a", TRN1, unhealthy={1: "ECC", 9: "ECC", 12: "held"}, missing=[2, 15], held_down=[12])
    async with opened(browser, world):
        await browser.until(f"{device('trn1-a', 2)}?.dataset.health === 'missing'")
        crosses = "document.querySelectorAll('#nodes .mark.{}').length"
        assert [await browser.value(crosses.format(each)) for each in ("unhealthy", "missing")] == [2, 2]
        assert {"2 unhealthy", "2 missing", "2 allocated and broken", "1 held down"} <= set(await browser.value(CHIPS))


async def test_a_counter_that_is_zero_is_not_shown(browser: Tab) -> None:
    world = World()
    world.node("trn1-b", TRN1)
    async with opened(browser, world):
        await browser.until(f"{CHIPS}.length > 0")
        shown = ["1 nodes", "16 devices", "16 free", "16 largest free set"]
        assert await browser.value(CHIPS) == shown


async def test_replicas_of_a_deployment_are_one_hue_through_a_rollout_and_others_are_not(browser: Tab) -> None:
    world = small()
    for number in range(6):
        version = "7f9c6d5b8" if number < 4 else "5d8c9b7f4"
        world.show(replica(f"web-{number}", str(number), f"ReplicaSet/web-{version}"))
    world.show(replica("other", "8", "ReplicaSet/other-7f9c6d5b8"))
    async with opened(browser, world):
        await browser.until(f"!!{fill('trn1-b', 'default/other')}")
        fills = [await browser.value(fill("trn1-b", f"default/web-{number}")) for number in range(6)]
        assert len(set(fills)) == 1
        assert await browser.value(fill("trn1-b", "default/other")) != fills[0]
        names = await browser.value("[...document.querySelectorAll('#legend li')].map((each) => each.textContent)")
        assert names[-4:] == ["default/other", "default/serve", "default/train", "default/web"]


async def test_a_colour_stays_when_another_choice_is_taken_back_and_when_the_workload_comes_back(browser: Tab) -> None:
    world = small()
    first, second = replica("a", "0", "Job/a"), replica("b", "1", "Job/b")
    for manifest in (second, first):
        world.show(manifest)
    async with opened(browser, world):
        await browser.until(f"!!{fill('trn1-b', 'default/a')}")
        before = await browser.value(fill("trn1-b", "default/b"))
        world.gone(first)
        await browser.until(f"!{fill('trn1-b', 'default/a')}")
        world.show(replica("c", "2", "Job/c"))
        await browser.until(f"!!{fill('trn1-b', 'default/c')}")
        newer = await browser.value(fill("trn1-b", "default/c"))
        for choice in ("namespace", "health", "pod", "workload"):
            await browser.choose("#colour", choice)
            await browser.value("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
        world.show(first)
        await browser.until(f"!!{fill('trn1-b', 'default/a')}")
        assert await browser.value(fill("trn1-b", "default/b")) == before
        assert await browser.value(fill("trn1-b", "default/c")) == newer
        assert await browser.value(fill("trn1-b", "default/a")) not in {before, newer}


async def test_names_stay_inside_their_shapes_and_never_cover_a_cross(browser: Tab) -> None:
    world, long = World(), "a-pod-with-quite-a-long-name-7f9c6d5b8-x2x4z"
    world.node("trn1-a", TRN1, unhealthy={2: "ECC", 9: "ECC"}, missing=[15])
    world.held("llama-8b-instruct-0", "trn1-a", DEVICE, "0,1,2,3")  # a cross to the right of the middle
    world.held("eval-7", "trn1-a", DEVICE, "4")
    world.held("MMMMMMMMMMMM", "trn1-a", DEVICE, "5")
    world.held(long, "trn1-a", DEVICE, "8,9,10,11,12,13,14,15")
    world.node("inf2-a", INF2, unhealthy={0: "ECC"})
    world.held("broken", "inf2-a", DEVICE, "0")  # no room beside its cross
    world.held("whisper-large-v3", "inf2-a", DEVICE, "3,4")  # one below the other
    world.held("bends", "inf2-a", DEVICE, "7,8,9")
    look = """[...document.querySelectorAll('#nodes .name')].map((name) => {
        const svg = name.closest("svg"), box = (each) => each.getBoundingClientRect();
        const text = box(name), shape = box(svg.querySelector(`.set[data-pod="${name.dataset.pod}"]`));
        const apart = (a, b) => a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top;
        const within = (a, b) => a.left >= b.left - 1 && a.right <= b.right + 1
            && a.top >= b.top - 1 && a.bottom <= b.bottom + 1;
        const crosses = [...svg.querySelectorAll(".mark path:not(.halo)")];
        return [name.textContent, within(text, shape), crosses.every((each) => apart(text, box(each)))];
    })"""
    async with opened(browser, world):
        await browser.until("document.querySelectorAll('#nodes .name').length >= 6")
        found = {name: (inside, apart) for name, inside, apart in await browser.value(look)}
        assert {each for each in found if found[each] != (True, True)} == set()
        assert {"eval-7", "bends"} <= found.keys()
        assert "broken" not in found
        shortened = [each for each in found if each.startswith("a-pod") and each.endswith("x2x4z")]
        assert len(shortened) == 1, "both ends of a name say most"
        upright = "document.querySelector('.name[data-pod$=whisper-large-v3]').getAttribute('transform')"
        assert "rotate(-90" in await browser.value(upright)


async def test_the_worst_nodes_come_first_whatever_their_type(browser: Tab) -> None:
    world = small()  # trn1-a has broken devices without pods
    world.node("inf2-b", INF2, missing=[0])
    world.held("hurt", "inf2-b", DEVICE, "0,1")
    world.show_node({**node_manifest("trn2-c", "trn2.48xlarge"), "spec": {"unschedulable": True}})
    async with opened(browser, world):
        await browser.until(f"{NAMES} === 'inf2-b,trn1-a,trn2-c,inf2-a,trn1-b'")
        types = "[...document.querySelectorAll('.card .type')].map((each) => getComputedStyle(each).display !== 'none')"
        assert await browser.value(types) == [True, True, True, False, False], "where no heading says it"


async def test_small_pictures_have_names_that_tell_them_apart(browser: Tab) -> None:
    world = World()
    names = [f"ip-10-0-{number // 30}-{number}.us-west-2.compute.internal" for number in range(60)]
    for name in names:
        world.node(name, INF2)
    async with opened(browser, world):
        await browser.until("document.querySelectorAll('.card.small').length === 60")
        shown = await browser.value("[...document.querySelectorAll('.card.small')].map((each) => each.innerText)")
        assert shown == [name.removeprefix("ip-10-0-").removesuffix(".us-west-2.compute.internal") for name in names]
        said = await browser.value("document.querySelector('.card.small').title")
        assert said.startswith(f"{names[0]}, {INF2}: 12 devices in a ring")


async def test_on_a_phone_the_waiting_pods_come_before_the_nodes(browser: Tab) -> None:
    world = small()
    for number in range(20):
        world.pod(f"waits-{number}", DEVICE, 16)
    top = "document.querySelector('{}').getBoundingClientRect().top"
    async with site(world) as url:
        await browser.call("Emulation.setDeviceMetricsOverride", **PHONE)
        await browser.open(f"{url}/ui/")
        await browser.until("document.querySelectorAll('#waiting li').length === 20")
        assert await browser.value(f"{top.format('#waiting')} < {top.format('#controls')}")
        assert await browser.value(f"{top.format('.card')} < {PHONE['height']}"), "and they leave room"


async def test_no_word_of_a_drawer_s_tables_is_broken(browser: Tab) -> None:
    world = small()
    world.held("scattered", "trn1-b", CORE, "0,2,4,6,8,10,12,14,16,18,20,22")
    world.node("trn1-b", TRN1, unhealthy={13: "uncorrected ECC errors: 1", 15: "uncorrected ECC errors: 2"})
    async with opened(browser, world, "#node/trn1-b"):
        await browser.until("document.querySelectorAll('#drawer table').length === 2")
        broken = """[...document.querySelectorAll('#drawer td')].flatMap((cell) => {
            const texts = document.createNodeIterator(cell, NodeFilter.SHOW_TEXT), found = [];
            for (let text; (text = texts.nextNode()); ) for (const { 0: word, index } of text.data.matchAll(/\\S+/g)) {
                const range = document.createRange();
                range.setStart(text, index);
                range.setEnd(text, index + word.length);
                const tops = [...range.getClientRects()].map((each) => each.top);
                if (new Set(tops).size > 1 && !/[a-z]-/.test(word)) found.push(word);
            }
            return found;
        })"""
        assert await browser.value(broken) == []
        wide = "document.getElementById('drawer').scrollWidth - document.getElementById('drawer').clientWidth"
        assert await browser.value(wide) == 0
        heads = "[...document.querySelectorAll('#drawer th')].map((each) => each.textContent)"
        assert "Until" not in await browser.value(heads), "a column without a text is left out"


async def test_the_theme_button_says_what_it_will_do(browser: Tab) -> None:
    async with site(small()) as url:
        await browser.page.emulate_media(color_scheme="dark")
        await browser.open(f"{url}/ui/")
        await browser.until("document.getElementById('theme').textContent === 'Light theme'")
        await browser.click("document.getElementById('theme')")
        assert await browser.value("document.getElementById('theme').textContent") == "Dark theme"
        assert await browser.value("document.documentElement.dataset.theme") == "light"


async def test_every_time_has_one_form(browser: Tab) -> None:
    world, now = small(), int(time.time())
    since = datetime(2026, 1, 2, 15, 4, 5, tzinfo=UTC).timestamp()
    async with opened(
        browser, world, "#node/trn1-a", samples=[Use(int(since), 0, 44, 0, 0), Use(now - 60, 5, 39, 0, 0)]
    ):
        await browser.until("document.getElementById('as-of').textContent.startsWith('as of')")
        world.node("trn1-a", TRN1, unhealthy={9: "uncorrected ECC errors: 1", 10: "ECC"}, missing=[15])
        uid = next(pod.uid for pod in world.state.pods.values() if pod.reference.name == "train")
        idle = ContainerUtilization(0, 2**30, idle_since=now - 7200)
        world.state.see_utilization("trn1-a", {uid: {"main": idle}})
        title = f"{device('trn1-a', 3)}.parentNode.textContent"
        await browser.until(f"{title}.includes('idle since')")
        await browser.until("/10\\s+unhealthy: ECC\\s+\\d/.test(document.getElementById('drawer').innerText)")
        text = f"{await browser.value('document.body.innerText')} {await browser.value(title)}"
        moments = re.findall(r"(?:as of|since|unhealthy: ECC\s) ?(\S+(?: \d\S+)?)", text)
        assert moments
        assert [each for each in moments if not re.fullmatch(r"(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d", each)] == []
        assert f"known since {datetime.fromtimestamp(since).astimezone():%Y-%m-%d %H:%M:%S}" in text
        assert not re.search(r"\d [AP]M|\d/\d+/\d", text)


async def test_a_group_is_one_line_that_says_how_far_it_is_and_what_keeps_it(browser: Tab) -> None:
    world = World()
    world.node("trn1-a", TRN1)
    world.show(member("train-0", group="train", promised=("trn1-a", "0,1,2,3")))
    for number in range(1, 8):
        world.show(member(f"train-{number}", group="train"))
    world.held("small", "trn1-a", DEVICE, "4")
    world.pod("alone", DEVICE, 16)
    async with opened(browser, world):
        summaries = "[...document.querySelectorAll('#waiting summary')]"
        lines = f"{summaries}.map((each) => each.innerText.split('\\n').join(' '))"
        await browser.until(f"{lines}.length === 2 && !{lines}.join().includes('...')")
        alone, train = sorted(await browser.value(lines))
        assert re.fullmatch(r"default/alone .*no room", alone)
        assert train == "default/train 1 of 8 placed, needs room for 5 more: default/small is in the way no room"
        assert await browser.value(f"{CHIPS}.includes('8 waiting')"), "pods are counted"
        await browser.click(f"{summaries}.find((each) => /train/.test(each.innerText))")
        await browser.until("!!document.querySelector('#waiting table')")
        text = await browser.value("document.querySelector('#waiting details[open]').innerText")
        assert text.count("3 of 16 devices free") == 1
        assert all(f"default/train-{number}" in text for number in range(1, 8))


@pytest.mark.parametrize("size", ["large", "small"])
async def test_a_click_on_a_pod_s_shape_opens_the_pod_and_beside_it_the_node(browser: Tab, size: str) -> None:
    world = small()
    for number, cores in enumerate(["30", "31"]):
        world.held(f"half-{number}", "trn1-b", CORE, cores)
    world.held("row", "trn1-b", DEVICE, "0,1,2,3")

    async def click(across: float, down: float, name: str) -> None:
        """Click on the picture of trn1-b, by shares of it; ``name`` is what opens."""
        box = await browser.value(f"{card('trn1-b')}.querySelector('svg').getBoundingClientRect().toJSON()")
        await browser.page.mouse.click(box["x"] + across * box["width"], box["y"] + down * box["height"])
        await browser.until(f"document.getElementById('drawer-title')?.textContent === '{name}'")
        await browser.press("Escape")
        await browser.until("document.getElementById('drawer').hidden")

    async with site(world) as url:
        await browser.page.set_viewport_size({"width": 1280, "height": 1400})
        await browser.open(f"{url}/ui/")
        await browser.until("document.querySelectorAll('.card .set').length === 5")
        await browser.choose("#size", size)
        await browser.until(f"!!{card('trn1-b')}?.querySelector('svg.{size} .set')")
        await click(0.5, 0.14, "default/row")  # between two of its devices
        await click(0.84, 0.85, "default/half-0")
        await click(0.91, 0.85, "default/half-1")
        await click(0.5, 0.85, "trn1-b")


@pytest.mark.parametrize("nodes", [9, 300])
async def test_a_wall_shows_all_nodes_on_one_screen_the_worst_first(browser: Tab, nodes: int) -> None:
    world = World()
    for number in range(nodes):
        world.node(f"node-{number}", TRN1, missing=[3] if number == nodes - 1 else ())
        world.held(f"pod-{number}", f"node-{number}", DEVICE, "0,1,2,3")
    world.pod("waits", DEVICE, 16)
    items = "[...document.querySelectorAll('#nodes li')]"
    bottom = f"Math.max(...{items}.map((each) => each.getBoundingClientRect().bottom))"
    async with site(world) as url:
        for height in (1000, 700):
            await browser.page.set_viewport_size({"width": 1920, "height": height})
            await browser.open(f"{url}/ui/?wall")
            await browser.until(f"document.querySelectorAll('#nodes .set:not(.marks)').length === {nodes}")
            assert await browser.value("document.documentElement.scrollHeight") == height
            assert await browser.value(bottom) < height
            assert await browser.value(bottom) > 0.5 * height, "and they are as large as that allows"
            assert (await browser.value(NAMES)).startswith(f"node-{nodes - 1},node-0,")
            assert await browser.value("getComputedStyle(document.getElementById('controls')).display") == "none"
            assert "1 pod on broken devices" in await browser.value("document.getElementById('attention').innerText")
        await browser.click("document.getElementById('wall')")
        await browser.until("getComputedStyle(document.getElementById('controls')).display !== 'none'")


OPENED = {
    "nodes": "",
    "a node": "#node/trn1-a",
    "a pod": "#pod/default%2Ftrain",
    "a pod that waits": "#pod/default%2Fwaits-0",
    "a wall": "?wall",
    "tables": "table",
}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("phone", [False, True], ids=["desk", "phone"])
@pytest.mark.parametrize("opened", OPENED.values(), ids=OPENED.keys())
async def test_axe_finds_nothing(browser: Tab, opened: str, theme: str, *, phone: bool) -> None:
    world = small()
    world.node("trn1-b", TRN1, missing=[2])
    world.held("hurt", "trn1-b", DEVICE, "0,1,2,3")
    world.show_node({**node_manifest("inf2-a", INF2), "spec": {"unschedulable": True}})
    for number in range(3):
        world.show(member(f"waits-{number}", group="gang"))
    async with site(world) as url:
        await browser.page.emulate_media(color_scheme="dark" if theme == "dark" else "light", reduced_motion="reduce")
        if phone:
            await browser.call("Emulation.setDeviceMetricsOverride", **PHONE)
        await browser.open(f"{url}/ui/{opened}")
        await browser.until("document.readyState === 'complete'")
        if opened != "table":
            await browser.until(
                "document.querySelectorAll('.card .set').length > 0 && !!document.querySelector('#use path')"
            )
            await browser.until("!document.getElementById('waiting').innerText.includes('...')")
            await browser.value("document.querySelector('#waiting summary').click()")
        found = await Axe().run(browser.page)
        assert found.response["violations"] == []
