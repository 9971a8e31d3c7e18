"""The pictures of the docs, ``make pictures``: the live page in five states, of clusters in memory.

They are looked at, not compared: whoever changes the page makes them again and sees what has become of it.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, NamedTuple

from playwright.async_api import Browser

from neuron_plugin.allocation import PodReference, PodUid, Resource
from neuron_plugin.allocation.node import Reservation
from neuron_plugin.monitor.use import Use, use_of
from neuron_plugin.topology import CoreMask
from tests.support.browser import chromium, tab
from tests.support.manifests import gated_manifest, node_manifest, pod_manifest
from tests.support.world import World
from tests.ui.site import site

PICTURES = Path(__file__).resolve().parents[2] / "docs/pictures"
TRN1, TRN2, INF2 = "trn1.32xlarge", "trn2.48xlarge", "inf2.48xlarge"
DEVICE, CORE = Resource.NEURON, Resource.NEURONCORE
SAMPLES, SAMPLE_SECONDS = 240, 120
MINUTE, HOUR = 60, 3600
WORKLOADS = {
    3: ("serving/rerank", "serving/embed"),
    4: ("research/moe", "research/vit", "research/sweep", "ml/distil", "ml/lora"),
    6: ("serving/vllm", "serving/whisper"),
    8: ("ml/llama-8b", "ml/qwen-14b", "research/diffusion"),
    16: ("ml/llama-70b", "ml/mixtral", "research/pretrain"),
}
"""Of ``many``, by the devices of each pod."""
PHONE = 390


class Cluster(World):
    """A cluster whose pods have a namespace, an age and a group."""

    def runs(self, name: str, node: str, ids: str, *, resource: Resource = DEVICE, age: int = 5 * HOUR) -> None:
        """A pod has these ids of the node; ``name`` is NAMESPACE/NAME, and NAME without its number is its group's."""
        key = "NEURON_CORES" if resource is CORE else "NEURON_DEVS"
        given = {key: ids, "NEURON_ALLOCATED": "true"}
        self._pod(name, resource, len(ids.split(",")), age=age, node=node, annotations=given)

    def waits(self, name: str, count: int, *, age: int, priority: int = 0) -> None:
        """A pod waits for so many devices."""
        self._pod(name, DEVICE, count, age=age, priority=priority)

    def _pod(
        self,
        name: str,
        resource: Resource,
        count: int,
        *,
        age: int,
        node: str = "",
        priority: int = 0,
        annotations: dict[str, str] | None = None,
    ) -> None:
        namespace, _, name = name.partition("/")
        manifest = pod_manifest(name, resource, count, node=node, priority=priority, annotations=annotations)
        created = datetime.now(UTC) - timedelta(seconds=age)
        manifest["metadata"] |= {"namespace": namespace, "creationTimestamp": created.strftime("%Y-%m-%dT%H:%M:%SZ")}
        group, _, number = name.rpartition("-")
        if number.isdecimal() and group:
            manifest["spec"]["schedulingGroup"] = {"podGroupName": group}
        self.show(manifest)


def ids(first: int, count: int) -> str:
    return ",".join(map(str, range(first, first + count)))


def a_day() -> Cluster:
    """Nine nodes, some full, some free; one pod waits and one device is broken."""
    cluster = Cluster()
    for name, kind in (("trn1", TRN1), ("inf2", INF2)):
        for number in range(1, 5 if kind == TRN1 else 4):
            cluster.node(f"{name}-{number}", kind)
    cluster.node("trn2-1", TRN2)
    cluster.node("trn2-2", TRN2)
    cluster.node("trn1-4", TRN1, unhealthy={10: "uncorrected ECC errors: 1"})
    cluster.runs("ml/llama-70b-0", "trn2-1", ids(0, 16))
    cluster.runs("ml/llama-8b-0", "trn1-1", ids(0, 8))
    cluster.runs("ml/llama-8b-1", "trn1-1", ids(8, 8))
    cluster.runs("ml/llama-8b-2", "trn1-2", ids(0, 8))
    cluster.runs("ml/lora-ada", "trn1-2", ids(8, 4))
    cluster.runs("research/moe-0", "trn1-3", ids(0, 4))
    cluster.runs("research/moe-1", "trn1-3", ids(4, 4))
    cluster.runs("research/probe", "trn1-3", "12")
    cluster.runs("research/eval-7", "trn1-3", "26,27,28", resource=CORE)
    cluster.runs("ml/distil-0", "trn1-4", ids(0, 4))
    cluster.runs("research/vit-0", "trn2-2", ids(0, 4))
    cluster.runs("research/vit-1", "trn2-2", ids(4, 4))
    cluster.runs("serving/vllm-0", "inf2-1", ids(0, 4))
    cluster.runs("serving/vllm-1", "inf2-1", ids(4, 4))
    cluster.runs("serving/vllm-2", "inf2-1", ids(8, 4))
    cluster.runs("serving/rerank", "inf2-2", ids(0, 2))
    cluster.runs("serving/embed-0", "inf2-2", "4", resource=CORE)
    cluster.runs("serving/embed-1", "inf2-2", "5", resource=CORE)
    cluster.runs("serving/whisper", "inf2-2", ids(3, 2))
    cluster.waits("ml/llama-70b-1", 16, age=12 * MINUTE, priority=100)
    return cluster


def a_bad_day() -> Cluster:
    """The same cluster: devices of pods are broken, nodes are closed, and more pods wait."""
    cluster = a_day()
    cluster.node("trn1-1", TRN1, unhealthy={5: "uncorrected ECC errors: 3"})
    held = "processes of pod research/sweep-3, which has ended, may still use it"
    cluster.node("trn1-3", TRN1, unhealthy={9: held, 15: "core reset failed"}, held_down=[9], disabled=[10])
    cluster.node("inf2-1", INF2, missing=[6])
    cluster.node("trn2-2", TRN2, unhealthy={12: "HBM: row repair failed"})
    cluster.show_node({**node_manifest("trn1-2", TRN1), "spec": {"unschedulable": True}})
    cluster.state.set_stale(frozenset(["inf2-3"]))
    cluster.state.reserve(Reservation(PodReference(PodUid("w"), "ml", "llama-70b-1"), "trn1-4", CoreMask(0xFF << 8)))
    cluster.show(gated_manifest("sweep-4", DEVICE, 3, promised=("inf2-2", "7,8,9"), gates=()))
    cluster.waits("research/sweep-5", 4, age=50 * MINUTE)
    cluster.waits("research/seven", 7, age=3 * HOUR)
    return cluster


def many(nodes: int = 200) -> Cluster:
    """So many nodes, most of them full; some are broken or cordoned, and one is silent."""
    chance = random.Random(5)  # noqa: S311 - a picture
    cluster = Cluster()
    for number in range(nodes):
        kind = (TRN1, TRN1, TRN2, INF2)[number % 4]
        name = f"{kind.partition('.')[0]}-{number + 1}"
        unhealthy = {chance.randrange(12): "uncorrected ECC errors: 2"} if chance.random() < 0.05 else {}
        missing = [chance.randrange(12)] if chance.random() < 0.02 else []
        manifest = node_manifest(name, kind, unhealthy=unhealthy, missing=missing)
        cluster.show_node(manifest | ({"spec": {"unschedulable": True}} if chance.random() < 0.02 else {}))
        first = 0
        for size in chance.choice([(4, 4, 4, 4), (8, 8), (16,)]) if kind != INF2 else (3, 3, 6):
            if chance.random() < 0.8:
                cluster.runs(f"{chance.choice(WORKLOADS[size])}-{number}{first:02}", name, ids(first, size))
            first += size
    cluster.state.set_stale(frozenset(["trn2-27"]))
    for number in range(4):
        cluster.waits(f"ml/sweep-{number}", 16, age=(5 + number) * MINUTE)
    return cluster


def hours(cluster: World) -> list[Use]:
    """Eight hours of use that end as the cluster is."""
    now = use_of(cluster.state.nodes.values(), int(time.time()))
    chance, found, used = random.Random(3), [], float(now.used)  # noqa: S311 - a picture
    total = sum(now[1:])
    for place in range(SAMPLES):
        at = now.at - place * SAMPLE_SECONDS
        broken, other = (now.broken, now.other) if place < SAMPLES // 8 else (0, now.other // 2)
        free = max(0, total - int(used) - broken - other)
        unlinked = min(free, now.unlinked)
        found.append(Use(at, total - free - broken - other, free - unlinked, unlinked, other, broken))
        used = min(max(used + chance.choice([0, 0, 0, 0, 0, 4, -4, 8, -8, -1, 1]), total * 0.2), total * 0.95)
    return found[::-1]


class State(NamedTuple):
    """One picture: of which cluster, in which theme and window, and what has been opened."""

    name: str
    cluster: Callable[[], Cluster]
    theme: Literal["light", "dark"] = "light"
    width: int = 1400
    height: int = 1000
    opened: str = ""


STATES = (
    State("light", a_day),
    State("dark", a_day, theme="dark", opened="#pod/ml%2Fllama-8b-0"),
    State("phone", a_bad_day, width=PHONE, height=1500),
    State("many", many, theme="dark"),
    State("bad-day", a_bad_day, opened="#node/trn1-3"),
)


async def take(started: Browser, state: State, folder: Path) -> Path:
    """Make one picture; the file."""
    cluster = state.cluster()
    async with tab(started, state.width, state.height) as browser, site(cluster, samples=hours(cluster)) as url:
        await browser.page.emulate_media(color_scheme=state.theme, reduced_motion="reduce")
        if state.width == PHONE:
            size = {"width": state.width, "height": state.height, "deviceScaleFactor": 2, "mobile": True}
            await browser.call("Emulation.setDeviceMetricsOverride", **size)
        await browser.open(f"{url}/ui/{state.opened}")
        await browser.until("document.querySelectorAll('.card .set').length > 0")
        verdicts = "[...document.querySelectorAll('.verdict')].map((each) => each.textContent)"
        await browser.until(f"{verdicts}.length > 0 && !{verdicts}.includes('...')")
        await browser.until("!!document.querySelector('#use path.used')")
        await asyncio.sleep(0.5)  # what has come into sight is drawn
        file = folder / f"{state.name}.png"
        await browser.page.screenshot(path=file)
        return file


async def main(names: Sequence[str] = ()) -> None:
    """Make all pictures, or those of these names."""
    async with chromium() as started:
        for state in [each for each in STATES if not names or each.name in names]:
            print(await take(started, state, PICTURES))  # noqa: T201 - what the chore has made


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
