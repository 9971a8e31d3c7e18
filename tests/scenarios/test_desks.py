"""A pod that waits is told the same wherever somebody asks: its event, the commands, the page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from neuron_plugin.allocation.event_reasons import EventReason
from neuron_plugin.cli.main import main
from neuron_plugin.placement.planner import Planner
from neuron_plugin.planning import RULES
from neuron_plugin.simulation import api_server_objects
from neuron_plugin.wording import first_of
from tests.placement.doors import Cluster
from tests.support.api_server import StandInApiServer
from tests.support.stories import rows
from tests.ui.site import site

BORN = "2001-09-09T01:46:40Z"
"""When a test begins: each pod of it is old enough to be told why it waits."""
POD = "waits"


class Desks:
    """All places where it is said why a pod waits; a method gives the text of one."""

    def __init__(self, cluster: Cluster, kubeconfig: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.cluster, self.url = cluster, ""
        self._kubeconfig, self._capsys = kubeconfig, capsys

    async def come(self, nodes: str, pods: str, *, gated: bool) -> None:
        """Pods come one after the other, the last one is the one that waits; and some minutes pass."""
        cluster = self.cluster
        cluster.nodes(nodes)
        *others, last = pods.split(" | ")
        for name, wish in (*(("first", each) for each in others), (POD, last)):
            is_known = "scheduler=" not in wish
            cluster.wanted(name, wish, gated=gated and is_known)
            if not gated and is_known:
                await cluster.attempt(name)
                cluster.unschedulable(name)
            await cluster.place_all()
        planner = Planner(cluster.context, cluster.room, rules=RULES, after_seconds=60.0)
        for _ in range(3):
            await cluster.look(after=60.0)
            await planner.look()

    async def say(self) -> dict[str, str]:
        """What each says."""
        async with site(self.cluster.world) as self.url:
            return {name: await desk(self) for name, desk in (ALL | SHORTLY).items()}

    async def event(self) -> str:
        """What its event says; of a pod that is not held back by our gate alone, a move that helps has its own."""
        notes = dict(self.cluster.events(POD))
        return notes.get(EventReason.WAITING) or notes[EventReason.ROOM_BY_MOVE]

    async def explain(self) -> str:
        return text_of(await self._typed("explain", POD))

    async def explain_of_an_extender(self) -> str:
        return text_of(await self._typed("explain", POD, "--extender", self.url))

    async def page_explain(self) -> str:
        return text_of(await self._got(f"/explain/default/{POD}?format=json"))

    async def plan(self) -> str:
        return planned(await self._typed("plan"))

    async def plan_of_an_extender(self) -> str:
        return planned(await self._typed("plan", "--extender", self.url))

    async def pods(self) -> str:
        return str((await self._typed("pods"))["reasons"][f"default/{POD}"])

    async def pods_of_an_extender(self) -> str:
        return str((await self._typed("pods", "--extender", self.url))["reasons"][f"default/{POD}"])

    async def page_waiting(self) -> str:
        return planned(await self._got("/ui/waiting.json"))

    async def _typed(self, *arguments: str) -> Any:
        at = () if "--extender" in arguments else ("--kubeconfig", str(self._kubeconfig))
        await asyncio.to_thread(main, [*arguments, *at, "-o", "json"])
        return json.loads(self._capsys.readouterr().out)

    async def _got(self, path: str) -> Any:
        async with aiohttp.ClientSession() as session, session.get(self.url + path) as answer:
            return await answer.json()


def text_of(explained: Any) -> str:
    """An explanation as an event has it."""
    holders = f"In the way: {first_of(explained['inTheWay'], 3)}" if explained["inTheWay"] else ""
    parts = [explained["sentence"], holders, explained["move"].removesuffix("."), explained["helps"]]
    return ". ".join(filter(None, parts))


def planned(report: Any) -> str:
    """What a plan says of the pod; of one for which a move makes room, that move alone."""
    (pod,) = [pod for pod in report["waiting"] if pod["pod"] == f"default/{POD}"]
    moves = [f"{move['pod']} from node {move['source']} to {move['target']}" for move in pod["moves"]]
    return pod["reason"] or f"a move of {', '.join(moves)}"


ALL: dict[str, Callable[[Desks], Awaitable[str]]] = {
    "event": Desks.event,
    "explain": Desks.explain,
    "explain --extender": Desks.explain_of_an_extender,
    "plan": Desks.plan,
    "plan --extender": Desks.plan_of_an_extender,
    "the page's explanation": Desks.page_explain,
    "the page's list": Desks.page_waiting,
}
SHORTLY: dict[str, Callable[[Desks], Awaitable[str]]] = {
    "pods": Desks.pods,
    "pods --extender": Desks.pods_of_an_extender,
}
"""They give the sentence alone, without who is in the way and what helps."""

AT_EITHER_DOOR = """
    others hold all: a 0-15 | c cpu => neuron=16
        => 0 of 1 Neuron node: 1 has 0 of 16 devices free; 1 node has no Neuron. In the way: default/a-0
    no free set is linked: a 0 4 8 12 => neuron=4
        => 0 of 1 Neuron node: 1 has 12 of 16 devices free, but no linked set of 4. In the way: default/a-0
    never so many: a | c cpu => neuron=7
        => 0 of 1 Neuron node: 1: Instance type trn1.32xlarge does not support requests for device: 7. Please request
           a different number of devices. It supports 1 or 4 or 8 or 16; 1 node has no Neuron
    too little CPU and a taint: a | b hard=team => neuron=4 cpu=80
        => 0 of 2 Neuron nodes: 2 have 64 of cpu left, the pod asks for 80, 1 has the taint team:NoSchedule, which the
           pod does not tolerate
    pods whose devices are not known: a unclear:3 => neuron=1
        => 0 of 1 Neuron node: 1 has a pod whose Neuron assignment is not known yet
    a claim for storage that is not there: a => neuron=1 volume=data
        => PersistentVolumeClaim data does not exist
    a word that is none: a => neuron=1 placement=spraed
        => annotation neuron-plugin.io/placement is 'spraed', expected pack or spread
    the old version of a Deployment: a => neuron=16 deployment=web:1 | neuron=16 deployment=web:2
        => 0 of 1 Neuron node: 1 has 0 of 16 devices free. In the way: default/first. The old pods of the same
           Deployment hold it: with strategy.rollingUpdate.maxSurge 0 they end first
    a scheduler that is none: a default:0 => neuron=1 scheduler=my-scheduler
        => No scheduler has looked at it: schedulerName my-scheduler is served by nobody here; pods with Neuron run
           here under default-scheduler
"""
BEHIND_THE_GATE = """
    another pod may come here: a => neuron=16 claim=nic | neuron=4
        => 0 of 1 Neuron node: 1 is left to a pod that was handed to its scheduler without a node.
           In the way: default/first
    what cannot be judged: a => neuron=1 claim=nic
        => Where it can run cannot be judged here, because it has resource claims of another driver
    a group that is not complete: a => neuron=4 group=job:2
        => 1 of the 2 pods of its group job are there
    a group that has no room together: a 0 => neuron=16 group=job:2 | neuron=16 group=job:2
        => Its group job does not fit as a whole: there is room together for 0 of 2 waiting pods, at least 2 need it.
           0 of 1 Neuron node: 1 has 15 of 16 devices free. In the way: default/a-0
    the gate of another: a => neuron=1 gate=kueue.x-k8s.io/admission
        => Waits for its scheduling gate to be lifted: kueue.x-k8s.io/admission
"""


@pytest.fixture
def desks(
    server: StandInApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Desks:
    monkeypatch.setattr(api_server_objects, "now_text", lambda: BORN)
    return Desks(Cluster(server), server.write_kubeconfig(tmp_path / "kubeconfig"), capsys)


@pytest.mark.parametrize("gated", [True, False], ids=["gates", "extender"])
@pytest.mark.parametrize(("nodes", "pods", "text"), rows(AT_EITHER_DOOR))
async def test_every_desk_says_the_same_of_a_pod_that_waits(
    desks: Desks, *, gated: bool, nodes: str, pods: str, text: str
) -> None:
    await desks.come(nodes, pods, gated=gated)
    sentence = text.partition(". In the way")[0]
    assert await desks.say() == dict.fromkeys(ALL, text) | dict.fromkeys(SHORTLY, sentence)


@pytest.mark.parametrize(("nodes", "pods", "text"), rows(BEHIND_THE_GATE))
async def test_every_desk_says_the_same_of_a_pod_that_waits_as_only_gated_pods_do(
    desks: Desks, nodes: str, pods: str, text: str
) -> None:
    await desks.come(nodes, pods, gated=True)
    sentence = text.partition(". In the way")[0]
    assert await desks.say() == dict.fromkeys(ALL, text) | dict.fromkeys(SHORTLY, sentence)


@pytest.mark.parametrize("gated", [True, False], ids=["gates", "extender"])
async def test_every_desk_names_the_move_that_would_help(desks: Desks, *, gated: bool) -> None:
    await desks.come("a movable:3 | b movable:3", "neuron=16", gated=gated)
    said = await desks.say()
    sentence, move = "0 of 2 Neuron nodes: 2 have 15 of 16 devices free", "a move of default/a-0 from node a to b"
    assert [name for name in ALL if move not in said[name]] == []
    assert {said[name] for name in SHORTLY} == {sentence}
