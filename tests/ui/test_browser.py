"""The page in a real browser: what a person sees, and what keys do. Under CI it runs always; elsewhere it is skipped
where no Chromium is installed."""

from __future__ import annotations

import json
import re
import time

import pytest
from axe_playwright_python.async_playwright import Axe

from neuron_plugin.allocation import PodReference, PodUid
from neuron_plugin.allocation.node import Reservation
from neuron_plugin.allocation.utilization import ContainerUtilization
from neuron_plugin.monitor.use import Use
from neuron_plugin.placement.account import PARTS, Account, DeviceTime, Share, Split
from neuron_plugin.placement.history import Cause
from neuron_plugin.topology import CoreMask
from tests.support.browser import Tab
from tests.support.manifests import container, gated_manifest, node_manifest, pod_manifest
from tests.support.playground import Playground
from tests.support.world import World
from tests.ui.looking import (
    BROWSER_TESTS,
    DEVICE,
    INF2,
    NAMES,
    TRN1,
    card,
    device,
    fill,
    marked,
    small,
    with_text,
)
from tests.ui.site import opened, site

pytestmark = BROWSER_TESTS


async def test_pods_and_faults_show_without_a_reload_and_heal(browser: Tab) -> None:
    world = small()
    async with opened(browser, world):
        await browser.until(f"document.querySelectorAll('.card').length === 3 && {device('trn1-a', 0)}?.dataset.state")
        states = {
            number: await browser.value(f"{device('trn1-a', number)}.dataset.state") for number in (0, 4, 5, 9, 15)
        }
        assert states == {0: "used", 4: "used", 5: "free", 9: "unhealthy", 15: "missing"}
        assert await browser.value(marked("trn1-a")) == ["unhealthy 9", "missing 15"]
        await browser.value("window.same = document")
        pod = world.held("late", "trn1-b", DEVICE, "4,5,6,7")
        await browser.until(f"{device('trn1-b', 4)}.dataset.state === 'used'")
        assert "default/late" in await browser.value(f"{device('trn1-b', 7)}.parentNode.textContent")
        await browser.until(f"{card('trn1-b')}.querySelectorAll('.frame.lit').length >= 4")
        world.node("trn1-b", TRN1, unhealthy={0: "ECC"})
        await browser.until(f"{device('trn1-b', 0)}.dataset.state === 'unhealthy'")
        world.gone(pod)
        world.node("trn1-b", TRN1)
        await browser.until(f"['0','4'].every((id) => {device('trn1-b', 0)}.dataset.state === 'free')")
        await browser.until(f"{device('trn1-b', 4)}.dataset.state === 'free'")
        assert await browser.value("window.same === document"), "nothing was loaded again"


async def test_a_node_is_shown_once_its_hardware_is_known(browser: Tab) -> None:
    world = small()
    world.show_node({"metadata": {"name": "late", "uid": "1"}})
    async with opened(browser, world):
        await browser.until(f"{NAMES} === 'trn1-a,inf2-a,trn1-b'")
        world.node("late", INF2)
        await browser.until(f"{NAMES} === 'trn1-a,inf2-a,late,trn1-b'")
        world.show_node({"metadata": {"name": "late", "uid": "1"}})
        await browser.until(f"{NAMES} === 'trn1-a,inf2-a,trn1-b'")


async def test_nodes_are_grouped_sorted_filtered_and_coloured_as_chosen(browser: Tab) -> None:
    world = small()
    world.held("full", "inf2-a", DEVICE, ",".join(map(str, range(12))))
    async with opened(browser, world):
        await browser.until(f"{NAMES} === 'trn1-a,inf2-a,trn1-b'")  # the worst, then by type
        headings = "[...document.querySelectorAll('#nodes h3')].map((each) => each.firstChild.textContent).join()"
        assert await browser.value(headings) == f"Need attention,{INF2},{TRN1}"
        await browser.choose("#group", "fullness")
        await browser.until(f"{headings} === 'Need attention,full,empty'")
        await browser.choose("#group", "none")
        await browser.until(f"{NAMES} === 'trn1-a,inf2-a,trn1-b'")
        await browser.choose("#sort", "name")
        await browser.until(f"{NAMES} === 'inf2-a,trn1-a,trn1-b'")
        await browser.choose("#type", INF2)
        await browser.until(f"{NAMES} === 'inf2-a'")
        await browser.value("document.getElementById('clear').click()")
        await browser.until(f"{NAMES} === 'inf2-a,trn1-a,trn1-b'")
        world.held("more", "trn1-b", DEVICE, "0,1,2,3,4,5,6,7")
        await browser.choose("#sort", "use")
        await browser.until(f"{NAMES} === 'inf2-a,trn1-b,trn1-a'")
        await browser.choose("#group", "fullness")
        await browser.until(f"{headings} === 'full,half allocated or less'")
        await browser.press("/")
        for key in "serve":
            await browser.press(key)
        await browser.until(f"{NAMES} === 'trn1-a'")
        assert await browser.value("document.getElementById('shown').textContent") == "1 of 3 nodes"
        before = await browser.value(fill("trn1-a", "default/train"))
        await browser.choose("#colour", "health")
        await browser.until(f"{fill('trn1-a', 'default/train')} !== {json.dumps(before)}")
        assert "allocated" in await browser.value("document.getElementById('legend').innerText")


async def test_pods_of_one_workload_have_one_colour_though_they_come_after_their_nodes(browser: Tab) -> None:
    world = small()
    async with opened(browser, world):
        await browser.until("document.querySelectorAll('.card').length === 3")
        for number, group in enumerate(["gang", "gang", ""]):
            manifest = pod_manifest(
                f"rank-{number}", DEVICE, 1, node="inf2-a", annotations={"NEURON_DEVS": str(number)}
            )
            manifest["spec"] |= {"schedulingGroup": {"podGroupName": group}} if group else {}
            world.show(manifest)
        await browser.until(f"{device('inf2-a', 2)}.dataset.state === 'used'")
        one, two, other = [await browser.value(fill("inf2-a", f"default/rank-{number}")) for number in range(3)]
        assert one == two != other
        names = "[...document.querySelectorAll('#legend li')].map((each) => each.textContent)"
        assert {"default/gang", "default/rank-2"} <= set(await browser.value(names))


async def test_a_held_down_device_is_no_broken_one_and_has_its_reason_and_end(browser: Tab) -> None:
    world, reason = small(), "processes of pod ml/old, which has ended, may still use it"
    async with opened(browser, world, "#node/trn1-b"):
        await browser.until(f"{device('trn1-b', 3)}.dataset.state === 'free'")
        world.node("trn1-b", TRN1, unhealthy={3: reason, 5: "ECC"}, held_down=[3])
        await browser.until(f"{device('trn1-b', 3)}.dataset.state === 'held down'")
        assert await browser.value(f"{device('trn1-b', 5)}.dataset.state") == "unhealthy"
        assert await browser.value(marked("trn1-b")) == ["unhealthy 5", "held-down 3"]
        text = await browser.value("document.getElementById('drawer').innerText")
        held = (
            rf"Out of service\s+Device\s+State\s+Since\s+Until\s+3\s+held down: {reason}\s+\S+\s+no process of the pod"
        )
        assert re.search(held, text)
        assert re.search(r"5\s+unhealthy: ECC\s+\d\d:\d\d:\d\d", text), "since when it is unhealthy"
        assert "held down" in await browser.value("document.getElementById('legend').innerText")


async def test_a_device_that_is_kept_for_a_waiting_pod_is_not_shown_as_free(browser: Tab) -> None:
    world = small()
    pod = PodReference(PodUid("w"), "ml", "waits")
    world.state.reserve(Reservation(pod, "trn1-b", CoreMask(0b1111)))
    async with opened(browser, world, "#node/trn1-b"):
        await browser.until(f"{device('trn1-b', 1)}.dataset.state === 'reserved'")
        assert await browser.value(f"{device('trn1-b', 2)}.dataset.state") == "free"
        assert await browser.value(marked("trn1-b")) == ["reserved 0", "reserved 1"]
        assert await browser.value(f"{card('trn1-b')}.querySelector('.badge').textContent") == "reserved"
        assert re.search(r"0-1\s+reserved: for ml/waits", await browser.value("document.body.innerText"))


async def test_a_broken_device_keeps_its_pod_s_fill_under_a_cross_and_the_numbers_add_up(browser: Tab) -> None:
    world = small()
    async with opened(browser, world):
        await browser.until(f"{device('trn1-a', 0)}?.dataset.state === 'used'")
        before = await browser.value(fill("trn1-a", "default/train"))
        world.node("trn1-a", TRN1, missing=list(range(16)))  # the driver is gone
        await browser.until(f"{device('trn1-a', 0)}.dataset.health === 'missing'")
        states = [await browser.value(f"{device('trn1-a', number)}.dataset.state") for number in (0, 3, 4, 5)]
        assert states == ["used", "used", "used", "missing"]
        assert await browser.value(fill("trn1-a", "default/train")) == before, "whose it is"
        assert await browser.value(marked("trn1-a")) == [f"missing {number}" for number in range(16)]
        title = await browser.value(f"{device('trn1-a', 0)}.parentNode.querySelector('title').textContent")
        assert title.startswith("device 0: missing")
        assert title.endswith("default/train")
        state = await browser.value(f"{card('trn1-a')}.querySelector('.state').textContent")
        assert state == "5 of 5 allocated broken; 11 missing"
        chips = (await browser.value("document.getElementById('numbers').innerText")).split("\n")
        assert {"44 devices", "5 allocated", "28 free", "5 allocated and broken", "16 missing"} <= set(chips)
        now = "Devices now: 5 allocated and broken; 0 allocated; 28 free, linked; 0 free, not linked; 11 not available"
        await browser.until(f"document.querySelector('#use svg').getAttribute('aria-label') === '{now}'")  # drawn later


async def test_a_cordoned_node_is_marked_and_its_devices_do_not_count_as_free(browser: Tab) -> None:
    world = small()
    async with opened(browser, world, "#node/trn1-b"):
        await browser.until(f"{device('trn1-b', 0)}?.dataset.state === 'free'")
        world.show_node({**node_manifest("trn1-b", TRN1), "spec": {"unschedulable": True}})
        await browser.until(f"{card('trn1-b')}.querySelector('.badge')?.textContent === 'cordoned'")
        chips = (await browser.value("document.getElementById('numbers').innerText")).split("\n")
        assert {"21 free", "16 free on closed nodes"} <= set(chips)
        assert "trn1-b cordoned" in await browser.value("document.getElementById('attention').innerText")
        assert "Takes no pods: The node is cordoned." in await browser.value("document.body.innerText")


async def test_what_needs_attention_is_one_sentence_whose_parts_filter_the_nodes(browser: Tab) -> None:
    world = World()
    for number in range(1, 4):
        world.node(f"trn1-{number}", TRN1)
    async with opened(browser, world):
        await browser.until("document.getElementById('attention').innerText === 'Nothing needs attention.'")
        assert await browser.value("document.querySelectorAll('#numbers .warn, #numbers .bad').length") == 0
        world.held("train", "trn1-1", DEVICE, "0,1,2,3")
        world.node("trn1-1", TRN1, unhealthy={2: "ECC"})
        world.node("trn1-2", TRN1, missing=[7])
        world.show_node({**node_manifest("trn1-3", TRN1), "spec": {"unschedulable": True}})
        world.pod("big", DEVICE, 7)
        parts = "[...document.querySelectorAll('#attention button')].map((each) => each.textContent)"
        wanted = ["1 pod on broken devices", "1 pod waits", "trn1-3 cordoned", "1 broken device without a pod"]
        await browser.until(f"{parts}.join() === {json.dumps(','.join(wanted))}")
        for place, names in ((0, "trn1-1"), (2, "trn1-3"), (3, "trn1-2"), (1, "")):
            press = f"document.querySelectorAll('#attention button')[{place}].click()"
            await browser.value(press)
            await browser.until(f"{NAMES} === '{names}'")
        assert await browser.value("document.getElementById('none').hidden") is False, "no node has sets of seven"
        await browser.value(press)
        await browser.until(f"{NAMES} === 'trn1-1,trn1-2,trn1-3'")


async def test_a_pod_s_set_is_one_shape_with_its_name_and_stands_out_with_its_group(browser: Tab) -> None:
    world = small()
    for number, node in enumerate(["trn1-b", "inf2-a"]):
        manifest = pod_manifest(f"rank-{number}", DEVICE, 4, node=node, annotations={"NEURON_DEVS": "0,1,2,3"})
        manifest["spec"]["schedulingGroup"] = {"podGroupName": "gang"}
        world.show(manifest)
    async with opened(browser, world):
        await browser.until(f"!!{fill('inf2-a', 'default/rank-1')} && !!{fill('trn1-b', 'default/rank-0')}")
        names = "[...document.querySelectorAll('#nodes .name')].map((each) => each.textContent).sort().join()"
        assert await browser.value(names) == "rank-0,rank-1,train"
        assert await browser.value(f"{card('trn1-b')}.querySelectorAll('.set').length") == 1
        over = "dispatchEvent(new PointerEvent('pointerover', {bubbles: true}))"
        await browser.value(f"{device('trn1-b', 1)}.{over}")
        mates = "[...document.querySelectorAll('.set.mate')].map((each) => each.dataset.pod).sort().join()"
        assert await browser.value(mates) == "default/rank-0,default/rank-1"
        assert await browser.value("document.querySelector('.set.traced').dataset.pod") == "default/rank-0"
        await browser.value(f"{device('trn1-b', 9)}.{over}")  # a free one
        assert await browser.value("document.querySelectorAll('.set.traced').length") == 0


async def test_the_largest_free_set_is_outlined_and_the_free_sizes_are_named(browser: Tab) -> None:
    world = small()
    async with opened(browser, world):
        await browser.until(f"!!{device('trn1-b', 0)}?.dataset.state")
        sizes = "[...{}.querySelectorAll('.size')].map((each) => each.className + each.textContent).join()"
        assert await browser.value(sizes.format(card("trn1-a"))) == "size some1,size4,size8,size16"
        assert await browser.value(sizes.format(card("trn1-b"))) == "size some1,size some4,size some8,size some16"
        assert await browser.value(sizes.format(card("inf2-a"))) == ",".join(f"size some{n}" for n in (1, 2, 4, 8, 12))
        outline = f"{card('trn1-b')}.querySelector('.largest').getBBox()"
        box = f"(({{x, y, width, height}}) => [x, y, width, height].map(Math.round).join())({outline})"
        assert await browser.value(box) == "12,12,190,190"
        world.held("row", "trn1-b", DEVICE, "0,1,2,3")
        await browser.until(f"{box} === '12,112,190,90'")


async def test_gated_and_promised_pods_are_shown_as_such_until_they_are_bound(browser: Tab) -> None:
    world = small()
    world.show(gated_manifest("waits", DEVICE, 16))
    promised = gated_manifest("coming", DEVICE, 4, promised=("trn1-b", "4,5,6,7"), gates=())
    world.show(promised)
    async with opened(browser, world, "#node/trn1-b"):
        await browser.until(f"{card('trn1-b')}?.querySelector('.set')?.classList.contains('promised')")
        assert await browser.value(f"{device('trn1-b', 4)}.dataset.state") == "used"
        assert await browser.value(f"{card('trn1-a')}.querySelectorAll('.promised').length") == 0
        await browser.page.emulate_media(color_scheme="dark")
        name = f"getComputedStyle({card('trn1-b')}.querySelector('.name[data-pod$=coming]')).fill"
        assert await browser.value(f"{name} === getComputedStyle(document.body).color"), "a pale shape is dark then"
        await browser.value("document.querySelector('#waiting summary').click()")
        await browser.until("document.getElementById('waiting').innerText.includes('asks for main: 16 neuron (gated)')")
        text = await browser.value("document.body.innerText")
        assert {"1 waiting", "1 promised"} <= set(text.split("\n"))
        assert re.search(r"default/coming\s+main\s+4-7\s+8-15\s+Promised", text)
        promised["spec"]["nodeName"] = "trn1-b"
        world.show(promised)
        await browser.until(f"!{card('trn1-b')}.querySelector('.promised')")
        assert "Promised" not in await browser.value("document.body.innerText")


async def test_coloured_by_pod_no_two_have_the_same_paint(browser: Tab) -> None:
    world = World()
    for node in range(10):
        world.node(f"node-{node}", TRN1)
        for number in range(16):
            world.held(f"pod-{node}-{number}", f"node-{node}", DEVICE, str(number))
    async with opened(browser, world):
        await browser.until("document.querySelectorAll('.set').length > 0")
        await browser.choose("#colour", "pod")
        paints = """[...document.querySelectorAll('.set:not(.marks)')].map((each) => [each.style.fill,
            each.nextSibling?.matches('.marks') ? each.nextSibling.style.fill : ""])"""
        await browser.until(f"{paints}.length === 160")
        found = [tuple(each) for each in await browser.value(paints)]
        assert len(set(found)) == 160
        assert len([mark for _, mark in found if not mark]) == 30, "the first ones have no marks"
        drawn = "[...document.querySelectorAll('#patterns pattern')].map((each) => [each.id, each.innerHTML])"
        looks = [text for _, text in await browser.value(drawn)]
        assert len(set(looks)) == len(looks), "and each mark looks otherwise"


async def test_waiting_pods_are_lines_with_what_they_can_expect_and_why_when_opened(browser: Tab) -> None:
    world = World()
    world.node("trn1-a", TRN1)
    for number in range(4):
        world.held(f"small-{number}", "trn1-a", DEVICE, str(4 * number))
    world.pod("row", DEVICE, 4)
    world.pod("all", DEVICE, 16)
    urgent = world.pod("urgent", DEVICE, 7, priority=1000)
    async with opened(browser, world):
        texts = "[...each.children].map((one) => one.textContent)"
        lines = f"[...document.querySelectorAll('#waiting summary')].map((each) => {texts})"
        await browser.until(f"{lines}.length === 3 && !{lines}.flat().includes('...')")
        assert await browser.value(lines) == [
            ["default/urgent", "priority 1000", "never"],
            ["default/all", "", "no room"],
            ["default/row", "", "no room"],
        ]
        assert "does not support" not in await browser.value("document.getElementById('waiting').innerText")
        await browser.value("document.querySelectorAll('#waiting summary')[2].click()")
        await browser.until("!!document.querySelector('#waiting table')")
        text = await browser.value("document.getElementById('waiting').innerText")
        assert re.search(r"Node\s+Answer\s+In the way\s+trn1-a\s.* linked .*devices 0-3: default/small-0", text)
        world.gone(urgent)
        await browser.until(f"{lines}.length === 2")


async def test_without_javascript_the_tables_are_shown_and_dark_where_that_is_preferred(browser: Tab) -> None:
    world = small()
    world.pod("seven", DEVICE, 7)
    async with site(world) as url:
        await browser.call("Emulation.setScriptExecutionDisabled", value=True)
        await browser.open(f"{url}/ui/")
        await browser.until("location.pathname === '/ui/table' && document.readyState === 'complete'")
        text = await browser.value("document.body.innerText")
        assert re.search(r"trn1-b\s+trn1.32xlarge\s+0-15\s+16 of 1, 4 of 4, 2 of 8, 1 of 16", text)
        assert "seven" in text
        red = "Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])"
        await browser.page.emulate_media(color_scheme="light")
        light = await browser.value(red)
        await browser.page.emulate_media(color_scheme="dark")
        assert light > 4 * await browser.value(red)


async def test_the_device_hours_of_the_last_day_are_shown_by_namespace(browser: Tab) -> None:
    world = small()
    hours = {("ml", "busy"): 6, ("ml", "idle"): 2, ("", "free"): 8}
    shares = {Share(namespace, "x", "trn1", state): parts * PARTS for (namespace, state), parts in hours.items()}
    account = Account(0, 0)
    account.count(Split(DeviceTime(shares), DeviceTime()), 3600)
    world.state.history.device_hours = account
    async with opened(browser, world):
        await browser.until("document.querySelectorAll('#hours tbody tr').length === 2")
        text = await browser.value("document.getElementById('hours').innerText")
    assert re.search(r"ml\s+8.0\s+50.0 %\s+6.0\s+2.0\s+-", text)
    assert re.search(r"nobody's\s+8.0\s+50.0 %\s+-\s+-\s+8.0", text)


async def test_who_was_evicted_to_make_room_stands_on_a_time_line(browser: Tab) -> None:
    world = small()
    victim = world.held("victim", "trn1-b", DEVICE, "0,1,2,3")
    urgent = PodReference(PodUid("u"), "ml", "urgent")
    async with opened(browser, world):
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


async def test_a_change_elsewhere_leaves_focus_and_closed_reasons_as_they_are(browser: Tab) -> None:
    world = small()
    world.pod("seven", DEVICE, 7)
    async with opened(browser, world, "#node/trn1-a"):
        await browser.until("document.getElementById('waiting').innerText.includes('default/seven')")
        toggle = "document.querySelector('#waiting summary').click()"
        await browser.value(toggle)
        await browser.until("document.querySelector('#waiting details').open")
        await browser.value(toggle)
        await browser.until("!document.querySelector('#waiting details').open")
        await browser.value("document.querySelector('#drawer a[aria-label=Close]').focus()")
        world.held("late", "trn1-b", DEVICE, "4,5,6,7")
        world.held("here", "trn1-a", DEVICE, "4,5,6,7")
        await browser.until("document.getElementById('drawer').innerText.includes('default/here')")
        assert await browser.value("document.activeElement.getAttribute('aria-label')") == "Close"
        assert await browser.value("document.querySelector('#waiting details').open") is False


async def test_the_keyboard_alone_leads_to_a_node_its_devices_a_pod_and_back(browser: Tab) -> None:
    world = small()
    async with opened(browser, world):
        await browser.until(
            "document.querySelectorAll('.card').length === 3 && !!document.querySelector('#nodes .device')"
        )
        await browser.value("document.querySelector('.card').focus()")
        await browser.press("ArrowRight")
        await browser.until("document.activeElement.querySelector('strong').textContent === 'inf2-a'")
        await browser.press("ArrowLeft")
        await browser.press("Enter")
        await browser.until("document.activeElement.id === 'drawer'")
        text = await browser.until("document.getElementById('drawer').innerText")
        assert re.search(r"trn1-a\s+trn1.32xlarge: 16 devices of 2 cores", text)
        assert re.search(r"default/train\s+main\s+0-3\s+0-7\s+Assigned", text)
        assert re.search(r"9\s+unhealthy: uncorrected ECC errors: 1", text)
        assert re.search(r"Free sets\s*1 .9\s*4 .0", text)
        for _ in ("next", "Close", *range(10)):  # devices 0 to 9; no node comes before this one
            await browser.press("Tab")
        focused = await browser.value("document.activeElement.getAttribute('aria-label')")
        assert focused == "device 9: unhealthy (uncorrected ECC errors: 1), not free"
        await browser.press("Enter")
        reading = "document.querySelector('#drawer .reading').innerText"
        await browser.until(f"{reading}.startsWith('{focused}; cores 18-19')")
        await browser.value("document.querySelector('#drawer [data-device=\"2\"]').focus()")
        await browser.press(" ")
        await browser.until(f"{reading}.includes('default/train')")
        await browser.value("document.querySelector('#drawer .reading a').click()")
        await browser.until("document.getElementById('drawer-title').innerText === 'default/train'")
        await browser.press("Escape")
        await browser.until("document.getElementById('drawer').hidden")
        await browser.value("location.hash = '#node/trn1-a'")
        await browser.until("document.activeElement.id === 'drawer'")
        await browser.value("document.querySelector('#drawer a[aria-label^=next]').click()")
        await browser.until("document.getElementById('drawer-title').innerText === 'inf2-a'")
        await browser.press("Escape")
        await browser.until("document.getElementById('drawer').hidden")
        assert await browser.value("document.activeElement.querySelector('strong').textContent") == "inf2-a"


async def test_a_pod_s_drawer_has_its_containers_health_group_and_the_way_to_its_node(browser: Tab) -> None:
    world = small()
    for number in range(2):
        manifest = pod_manifest(
            f"rank-{number}", DEVICE, 2, node="trn1-b", annotations={"NEURON_DEVS": f"{8 * number}|{8 * number + 1}"}
        )
        manifest["spec"]["containers"] = [container("main", DEVICE, 1), container("side", DEVICE, 1)]
        manifest["spec"]["schedulingGroup"] = {"podGroupName": "gang"}
        world.show(manifest)
    world.node("trn1-b", TRN1, unhealthy={1: "ECC"})
    async with opened(browser, world):
        await browser.until(f"!!{fill('trn1-b', 'default/rank-0')}")
        await browser.click(device("trn1-b", 0))
        await browser.until("document.getElementById('drawer').innerText.includes('default/rank-1')")
        text = await browser.value("document.getElementById('drawer').innerText")
        assert re.search(r"Node\s+trn1-b\s+Health\s+device 1 unhealthy: ECC\s", text)
        assert re.search(r"main\s+app\s+1 neuron\s+0\s+0-1\s+not known\s+side\s+app\s+1 neuron\s+1\s+2-3\s", text)
        assert re.search(r"The others of its workload\s.*default/rank-1\s+Assigned\s+trn1-b\s+8-9", text, re.DOTALL)
        await browser.value("location.hash = '#pod/default%2Fnobody'")
        await browser.until("document.getElementById('drawer').innerText.includes('There is no such pod.')")


async def test_states_differ_by_their_mark_and_not_by_colour_alone(browser: Tab) -> None:
    world = World()
    world.node("trn1-a", TRN1, unhealthy={1: "ECC", 3: "held"}, missing=[2], held_down=[3], disabled=[4])
    world.state.reserve(Reservation(PodReference(PodUid("w"), "ml", "waits"), "trn1-a", CoreMask(0b11 << 10)))
    async with opened(browser, world):
        await browser.until(f"{device('trn1-a', 2)}?.dataset.state === 'missing'")
        paths = f"[...{card('trn1-a')}.querySelectorAll('.mark')].map((each) => each.lastChild.getAttribute('d'))"
        cross, other_cross, *others = await browser.value(paths)
        assert cross == other_cross
        assert len({cross, *others}) == 4
        frame = f"getComputedStyle({card('trn1-a')}.querySelectorAll('.frame')[{{}}]).strokeDasharray"
        assert await browser.value(frame.format(1)) == "none"
        assert await browser.value(frame.format(2)) != "none", "a missing one has a dashed frame"
        frames = "[...document.querySelectorAll('#legend .frame')]"
        dashes = await browser.value(f"{frames}.map((each) => getComputedStyle(each).strokeDasharray)")
        assert [each != "none" for each in dashes] == [False, True, False, False, False], "in the legend, too"
        labels = "[...document.querySelectorAll('.card svg')].every((each) => each.getAttribute('aria-label'))"
        assert await browser.value(labels)


QUESTIONS = {
    "Who has device 2 of trn1-a?": ([device("trn1-a", 2)], r"Pod\s+.\s+default/train\s"),
    "Which cores has each of its containers?": ([device("trn1-a", 2)], r"main\s+app\s+4 neuron\s+0-3\s+0-7"),
    "Which pods run beside it?": (
        [device("trn1-a", 2), with_text("#drawer dd a", "trn1-a")],
        r"default/serve\s+main\s+4",
    ),
    "Why does default/big wait?": ([with_text("#waiting summary", "default/big")], r"devices 0-15: default/\w+"),
    "What is its priority, and who made it?": (
        [with_text("#waiting summary", "default/big"), with_text("#waiting a", "All about")],
        r"Asks for\s+main: 16 neuron\s+Priority\s+7",
    ),
    "Which node is worst?": ([], r"Need attention\s+2 nodes . 9 of 28 free\s+trn1-a\s"),
    "What is wrong with it, and since when?": (
        [card("trn1-a") + ".querySelector('strong')"],
        r"9\s+unhealthy: uncorrected .*\s+before the",
    ),
    "Which node is cordoned?": ([], r"inf2-a cordoned"),
    "Which nodes could take a pod of 16 devices?": ([with_text("#attention button", "waits")], r"2 of 3 nodes"),
    "How many devices are free, and how many linked?": ([], r"24 free\s+8 largest free set"),
}


async def test_a_newcomer_s_questions_are_answered_within_three_clicks(browser: Tab) -> None:
    world = small()
    world.show_node({**node_manifest("inf2-a", INF2), "spec": {"unschedulable": True}})
    world.held("other", "trn1-b", DEVICE, "15")
    world.pod("big", DEVICE, 16, priority=7)
    async with site(world) as url:
        for question, (clicks, answer) in QUESTIONS.items():
            assert len(clicks) <= 3, question
            await browser.open("about:blank")
            await browser.open(f"{url}/ui/")
            await browser.until("document.querySelectorAll('#nodes .device').length === 44")
            for place in clicks:
                await browser.click(place)
            pattern = json.dumps(answer)
            await browser.until(f"new RegExp({pattern}).test(document.body.innerText)")


async def test_use_over_time_goes_in_steps_can_be_read_and_downloaded(browser: Tab) -> None:
    world, now = small(), int(time.time())
    samples = [Use(now - 3600, 0, 40, 0, 0), Use(now - 1800, 20, 19, 0, 0, 1)]
    async with opened(browser, world, samples=samples):
        readings = "[...document.querySelectorAll('.readings > *')].map((each) => each.textContent).join()"
        # The nodes may be drawn before the history has come; one broken device of forty is seen with it.
        await browser.until("document.querySelector('#use path.broken')?.getBBox().height >= 4")
        await browser.until(f"{readings}.startsWith('now,allocated and broken 0,allocated 5')")
        wide = "document.querySelector('#use svg').clientWidth - document.querySelector('.chart').clientWidth"
        assert await browser.value(wide) == 0
        await browser.value("document.querySelector('#use svg').focus()")
        for _ in range(2):
            await browser.press("ArrowLeft")
        await browser.until(f"{readings}.includes('allocated and broken 1,allocated 20,free, linked 19')")
        move = """document.querySelector('.chart').dispatchEvent(new PointerEvent('pointermove',
            {clientX: document.querySelector('.chart').getBoundingClientRect().left + 60}))"""
        await browser.value(move)
        await browser.until(f"{readings}.includes('allocated and broken 0,allocated 0,free, linked 40')")
        kept = """(() => { let kept; URL.createObjectURL = (blob) => { kept = blob; return "#"; };
            document.getElementById("download").click(); return kept.text(); })()"""
        text = await browser.value(kept)
        assert text.startswith("<svg")
        assert "fill: rgb" in text, "it is drawn without the page's style sheet"


async def test_theme_and_filters_are_as_they_were_left(browser: Tab) -> None:
    async with site(small()) as url:
        await browser.open(f"{url}/ui/")
        await browser.until(f"{NAMES} === 'trn1-a,inf2-a,trn1-b'")
        before = await browser.value("document.documentElement.dataset.theme")
        await browser.value("document.getElementById('theme').click()")
        await browser.choose("#type", INF2)
        await browser.choose("#colour", "namespace")
        await browser.until(f"{NAMES} === 'inf2-a'")
        await browser.open("about:blank")
        await browser.open(f"{url}/ui/")
        await browser.until(f"{NAMES} === 'inf2-a'")
        assert await browser.value("document.documentElement.dataset.theme") != before
        chosen = "['type', 'colour'].map((id) => document.getElementById(id).value).join()"
        assert await browser.value(chosen) == f"{INF2},namespace"


@pytest.mark.parametrize("opened", ["", "#node/trn1-a", "#pod/default%2Ftrain"])
async def test_on_a_phone_nothing_is_wider_than_the_screen(browser: Tab, opened: str) -> None:
    world, name = small(), "a-pod-with-quite-a-long-name-as-controllers-make-them-7f9c6d5b8-x2x4z"
    world.held(name, "inf2-a", DEVICE, "0,2,4,6,8,10")
    world.pod(f"waiting-{name}", DEVICE, 7)
    async with site(world) as url:
        size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
        await browser.call("Emulation.setDeviceMetricsOverride", **size)
        await browser.open(f"{url}/ui/{opened}")
        await browser.until("document.querySelectorAll('.card').length === 3 && !!document.querySelector('#use svg')")
        await browser.until("!!document.querySelector('#waiting summary')")
        await browser.value("document.querySelector('#waiting summary').click()")
        await browser.until("document.getElementById('waiting').innerText.includes('does not support requests')")
        assert await browser.value("document.documentElement.scrollWidth") == 390


async def test_nodes_are_in_sight_in_a_small_window_though_pods_wait(browser: Tab) -> None:
    world = small()
    for number in range(20):
        world.pod(f"waits-{number}", DEVICE, 16)
    async with site(world) as url:
        await browser.page.set_viewport_size({"width": 800, "height": 600})
        await browser.open(f"{url}/ui/")
        await browser.until("document.querySelectorAll('#waiting li').length === 20")
        assert await browser.value("document.querySelector('.card svg').getBoundingClientRect().bottom") < 600


async def test_names_from_outside_are_shown_as_text(browser: Tab) -> None:
    world = World()
    world.node("<img src=x onerror=alert(1)>", TRN1, unhealthy={1: "<i>"})
    world.held("<b>x</b>", "<img src=x onerror=alert(1)>", DEVICE, "0")
    async with site(world) as url:
        await browser.open(f"{url}/ui/#node/{'%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E'}")
        await browser.until("document.getElementById('drawer').innerText.includes('default/<b>x</b>')")
        assert await browser.value("document.querySelectorAll('main img, aside img, aside b, aside i').length") == 0


async def test_many_nodes_are_small_fit_on_one_screen_and_are_drawn_once(browser: Tab) -> None:
    world = World()
    for number in range(500):
        world.node(f"node-{number}", TRN1 if number % 3 else INF2, missing=[15] if number == 400 else ())
        world.held(f"pod-{number}", f"node-{number}", DEVICE, "0,1,2,3" if number % 2 else "0")
    async with site(world) as url:
        started = time.monotonic()
        await browser.open(f"{url}/ui/")
        await browser.until("document.querySelectorAll('.card.small .set:not(.marks)').length === 500")
        shown = time.monotonic() - started
        paint = await browser.value("performance.getEntriesByName('first-contentful-paint')[0].startTime / 1000")
        print(f"500 nodes: first paint after {paint:.2f} s, shown after {shown:.2f} s")  # noqa: T201 - figures to look at with pytest -s
        assert await browser.value("document.querySelector('#nodes').getBoundingClientRect().bottom") < 1000
        assert (await browser.value(NAMES)).startswith("node-400,node-0,node-3,"), "the worst first"
        assert await browser.value(f"{card('node-400')}.querySelectorAll('.cross').length") == 1
        await browser.value("window.first = document.querySelector('.card')")
        world.held("late", "node-1", DEVICE, "4,5,6,7")
        started = time.monotonic()
        await browser.until(f"!!{fill('node-1', 'default/late')}")
        print(f"a pod of one node shown after {time.monotonic() - started:.2f} s")  # noqa: T201 - a figure to look at with pytest -s
        assert await browser.value("window.first === document.querySelector('.card')"), "only the change is drawn"
        await browser.choose("#text", "node-40")
        (
            await browser.until("document.querySelectorAll('.card.large .set:not(.marks)').length === 11"),
            "few nodes are large",
        )


@pytest.mark.parametrize("number", [8, 200])
async def test_the_network_is_a_tree_that_the_keyboard_opens_and_that_is_short_however_many_nodes_there_are(
    browser: Tab, number: int
) -> None:
    world = World()
    for place in range(number):
        manifest = node_manifest(f"node-{place}", TRN1)
        keys = {"topology.kubernetes.io/zone": "z", "topology.k8s.aws/network-node-layer-1": f"leaf-{place // 16}"}
        keys |= {"topology.k8s.aws/ultraserver-id": f"us-{place // 4}"}
        manifest["metadata"]["labels"] |= keys
        world.show_node(manifest)
    world.held("pod", "node-5", DEVICE, "0")
    rows = "[...document.querySelectorAll('#network summary')].map((each) => each.innerText.replace(/\\s+/g, ' '))"
    free = f"{16 * number - 1} of {16 * number} devices free, {number - 1} of {number} nodes whole"
    async with opened(browser, world):
        await browser.until(f"{rows}.length > 0")
        if number == 8:
            shown = await browser.value(rows)
            assert [row.partition(" free")[0] for row in shown] == [
                "zone z, network-node-layer-1 leaf-0 127 of 128 devices", "ultraserver us-0 64 of 64 devices",
                "ultraserver us-1 63 of 64 devices",
            ]  # fmt: skip
            assert await browser.value("document.querySelectorAll('#network .members a').length") == 8
        else:
            assert await browser.value(rows) == [f"zone z {free}"]
            await browser.value("document.querySelector('#network summary').focus()")
            await browser.press("Enter")
            await browser.until(f"{rows}.length === 14")
            assert await browser.value("document.activeElement.innerText.startsWith('zone z')"), "the focus stays"
        assert (await Axe().run(browser.page)).response["violations"] == []
        world.held("late", "node-7", DEVICE, "0")
        await browser.until(f"{rows}[0].includes('{16 * number - 2} of')")


async def test_the_playground_s_page_shows_pods_a_refusal_and_a_fault_that_heals(browser: Tab) -> None:
    with Playground("--nodes", "trn1.32xlarge=1,inf2.48xlarge=1") as up:
        up.wait_for("In a second shell:")
        url = re.findall(r"In a browser: (\S+)", up.printed())[0]
        await browser.open(url)
        await browser.until("document.querySelectorAll('.card').length === 2")
        up.run("run", "--ask", "neuron=4", "--ask", "neuron=13", "--ask", "neuroncore=3")
        await browser.until("document.querySelectorAll('.device[data-state=used]').length >= 6")
        await browser.until("document.getElementById('waiting').innerText.includes('never')")
        up.run("fault", "trn1-1", "device", "13", "gone")
        await browser.until(f"{device('trn1-1', 13)}.dataset.state === 'missing'")
        await browser.value("location.hash = document.querySelector('.device[data-state=used]').closest('a').hash")
        await browser.until("document.getElementById('drawer').innerText.includes('Allocated')")
        await browser.value("location.hash = '#pod/default%2Fpod-2'")  # the one that waits
        await browser.until("/Events\\s[^]*NeuronWaiting/.test(document.getElementById('drawer').innerText)")
        up.run("fault", "trn1-1", "device", "13", "back")
        await browser.until(f"{device('trn1-1', 13)}.dataset.state !== 'missing'")


async def test_a_device_shows_how_busy_it_is_and_slanted_lines_while_it_is_idle(browser: Tab) -> None:
    world = small()
    uid = next(pod.uid for pod in world.state.pods.values() if pod.reference.name == "train")
    async with opened(browser, world):
        await browser.until(f"{device('trn1-a', 0)}?.dataset.state === 'used'")
        used = f"{card('trn1-a')}.querySelectorAll"
        assert await browser.value(f"{used}('.use *').length") == 0, "nothing is known yet"
        world.state.see_utilization("trn1-a", {uid: {"main": ContainerUtilization(75, 2**30)}})
        await browser.until(f"{used}('.level.busy').length === 4")
        widths = f"[...{used}('.level')].slice(0, 2).map((each) => Number(each.getAttribute('width')))"
        whole, part = await browser.value(widths)
        assert part == pytest.approx(0.75 * whole)
        assert "75 % busy" in await browser.value(f"{device('trn1-a', 3)}.parentNode.textContent")
        idle = ContainerUtilization(0, 2**30, idle_since=int(time.time()) - 7200)
        world.state.see_utilization("trn1-a", {uid: {"main": idle}})
        await browser.until(f"{used}('.idle').length === 4 && !{used}('.level').length")
        assert "idle since" in await browser.value(f"{device('trn1-a', 3)}.parentNode.textContent")
        assert "idle" in await browser.value("document.querySelector('#legend').textContent")
        await browser.value(f"{with_text('#attention button', '4 devices idle')}.click()")
        await browser.until(f"{NAMES} === 'trn1-a'")
        await browser.choose("#size", "small")
        await browser.until(f"!!{card('trn1-a')}.querySelector('.small .idle')")
        await browser.value("location.hash = '#pod/default%2Ftrain'")
        await browser.until("/0 % busy, idle since/.test(document.querySelector('#drawer table').innerText)")
