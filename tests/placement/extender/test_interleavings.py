"""Filter calls, binds, watch events, lost answers, duplicates and restarts in random order, against an oracle.

The oracle is the API server's truth alone: which live pod is bound where with which cores. After every step no core
has two live holders, no device more pods than its memory is enough for, and nothing that is bound, or that a pod was
led to, looks free to the extender; at the end nothing is left.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from contextlib import suppress
from functools import cache

import pytest

from neuron_plugin.allocation import Assignment, NeuronPod
from neuron_plugin.backoff import Clock
from neuron_plugin.cluster.api import ApiRequest, Response
from neuron_plugin.placement.context import Context
from neuron_plugin.placement.extender.binding import SUCCESSES, Binder, BindOutcome, Ending
from neuron_plugin.placement.extender.filter import EXPECTED_SECONDS, LeadEnding, Leads, filter_nodes
from neuron_plugin.placement.leadership import Readiness
from neuron_plugin.placement.writer import Writer
from neuron_plugin.simulation.api_server_kinds import PODS, AnyJson, Refusal
from neuron_plugin.simulation.api_server_store import Inbox, ObjectChange
from tests.support.api_server import Fault, StandInApiServer
from tests.support.manifests import node_manifest, pod_manifest
from tests.support.world import CORE, DEVICE, World, pod_of, record_of

STEPS = int(os.environ.get("INTERLEAVINGS_STEPS", "2500"))
"""Per seed, of which there are four; `nox -s soak` takes 25 000."""

NODE_TYPES = ("inf1.6xlarge", "inf2.24xlarge", "trn1.32xlarge", "inf1.xlarge")
NODE_MANIFESTS = {f"node-{index}": node_manifest(f"node-{index}", NODE_TYPES[index % 4]) for index in range(100)}
NODES = list(NODE_MANIFESTS)
CORES_PER_DEVICE = {f"node-{index}": (4, 2, 2, 4)[index % 4] for index in range(100)}
MEMORY = {f"node-{index}": (8192, 32768, 32768, 8192)[index % 4] for index in range(100)}
"""MiB of each device."""
MEMORY_KEY = "neuron-plugin.io/memory"
LANDING = 5.0
MOST_PODS = 500
"""At one time; 25 000 steps make and end several thousand."""


class Unreliable(StandInApiServer):
    """A server whose answers are as chance has it; some binds land long after their caller gave up."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance
        self.late: list[ApiRequest] = []

    async def request(self, request: ApiRequest, *, timeout_seconds: float) -> Response:
        await self._dawdle()
        fate = self.chance.random()
        if fate < 0.05 and request.method == "POST":
            self.fail(Fault(status=500))
        elif fate < 0.10:
            self.fail(Fault(drop=True))
            self.late += [request] if request.method == "POST" else []
        elif fate < 0.20 and request.method == "POST":
            self.fail(Fault(lose_answer=True))
        try:
            return await super().request(request, timeout_seconds=timeout_seconds)
        finally:
            await self._dawdle()

    def land(self) -> None:
        """Writes that no caller waits for any more reach the server, or are lost."""
        for write in self.late:
            if self.chance.random() < 0.5:
                self.answer(write)
        self.late.clear()

    async def _dawdle(self) -> None:
        for _ in range(self.chance.randrange(3)):
            await asyncio.sleep(0)


class Run:
    """One random history."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - a reproducible history
        self.server = Unreliable(self.chance)
        self.events: Inbox = self.server.follow(PODS)
        self.now = 0.0
        self.calls: dict[asyncio.Task[BindOutcome], AnyJson] = {}
        self.seen: Counter[str] = Counter()
        self.endings: Counter[LeadEnding] = Counter()
        self.made = 0
        self.start()

    def start(self) -> None:
        """A new process: nothing in memory, then what a list shows."""
        self.world = World()
        for manifest in NODE_MANIFESTS.values():
            self.world.show_node(manifest)
        self.read_list()
        clock = Clock(now=lambda: self.now)
        context = Context(self.server, self.world.state, Readiness({}), "one", clock=clock, unix_seconds=lambda: 1.0)
        writer = Writer(context)
        self.leads = Leads(context, writer)
        self.leads.endings = self.endings
        self.binder = Binder(context, writer, self.leads)

    def read_list(self) -> None:
        """What a list shows; the watch goes on from there."""
        while not self.events.empty():
            self.events.get_nowait()
        for manifest in self.pods:
            self.world.show(manifest)

    @property
    def pods(self) -> list[AnyJson]:
        return self.server.objects(PODS)

    async def step(self) -> None:
        action = self.chance.choices(
            (
                self.create,
                self.schedule,
                self.deliver,
                self.end,
                self.repeat,
                self.look,
                self.wait,
                self.relist,
                self.restart,
            ),
            (20, 40, 45, 12, 4, 4, 3, 0.8, 0.4),
        )[0]
        await action()
        self.seen[action.__name__] += 1
        await asyncio.sleep(0)
        self.collect()

    async def create(self) -> None:
        name = f"pod-{self.chance.randrange(MOST_PODS)}"
        resource = self.chance.choice((CORE, DEVICE))
        manifest = pod_manifest(name, resource, self.chance.choice((1, 1, 2, 4)))
        if self.chance.random() < 0.4:
            memory = {MEMORY_KEY: self.chance.choice(("1024", "5120", "12000"))}
            resources = manifest["spec"]["containers"][0]["resources"]
            resources.update({kind: quantities | memory for kind, quantities in resources.items()})
        with suppress(Refusal):  # there is one of this name
            self.server.create_pod(manifest)
            self.made += 1

    async def schedule(self) -> None:
        """One attempt of kube-scheduler: filter some nodes, bind to one that passed, or had passed a while ago.

        Sometimes something after filter refuses the node, and sometimes another scheduler asks for all that fit.
        """
        pods = self.pods
        some = self.chance.sample(pods, min(8, len(pods)))
        pod = next((pod for pod in some if not pod["spec"].get("nodeName")), None)
        if pod is None:
            return
        names, record = self.chance.sample(NODES[: self.chance.choice((12, 100))], 8), _record(pod)
        led = None
        if self.chance.random() < 0.8 and not self.world.state.bound_to(record.uid):
            led = self.leads.lead(record, names)
        passed = [led] if led else filter_nodes(self.world.state, record, names).passed
        if self.chance.random() < 0.1:
            passed = names
        if passed and self.chance.random() < 0.8:
            self.call(pod, self.chance.choice(passed))

    async def repeat(self) -> None:
        """A bind again, to the same node or another one, while an earlier one runs or long after it."""
        again = list(self.calls.values()) or [pod for pod in self.pods if pod["spec"].get("nodeName")]
        if again:
            pod = self.chance.choice(again)
            self.call(pod, pod["spec"].get("nodeName") or self.chance.choice(NODES))

    def call(self, pod: AnyJson, node: str) -> None:
        self.calls[asyncio.ensure_future(self.binder.bind(pod_of(pod), node))] = pod

    async def deliver(self) -> None:
        """The watch catches up a little."""
        for _ in range(self.chance.randrange(1, 6)):
            if not self.events.empty():
                change = self.events.get_nowait()
                assert isinstance(change, ObjectChange)
                if change.gone:
                    self.world.gone(change.new.value)
                else:
                    self.world.show(change.new.value)

    async def end(self) -> None:
        """A pod is deleted, or finishes."""
        pods = self.pods
        if not pods:
            return
        led = [pod for pod in pods if self.leads.has_place(pod["metadata"]["uid"])]
        manifest = self.chance.choice(led if led and self.chance.random() < 0.2 else pods)
        name = manifest["metadata"]["name"]
        if manifest["spec"].get("nodeName") and self.chance.random() < 0.5:
            self.server.set_pod_status("default", name, {"phase": self.chance.choice(("Succeeded", "Failed"))})
        else:
            self.server.delete_pod("default", name, grace_seconds=0)

    async def look(self) -> None:
        """Half a second passes, and what filter assumed for pods that are gone ends."""
        self.now += 0.5
        self.leads.expire()

    async def wait(self) -> None:
        """Time passes until no write can be under way any more, and doubts are settled."""
        await self.finish_calls()
        self.server.land()
        self.now += self.chance.choice((LANDING + 1, EXPECTED_SECONDS))
        await self.binder.settle()
        assert not any(assumed.until <= self.now for assumed in self.world.state.assumed.values())

    async def relist(self) -> None:
        """The watch broke off: the events are lost, a list takes their place."""
        listed = {manifest["metadata"]["uid"] for manifest in self.pods}
        for uid in set(self.world.state.pods) - listed:
            self.world.state.remove_pod(uid)
        self.read_list()

    async def restart(self) -> None:
        """Killed between any two of an attempt's steps; the new process waits out what may still land."""
        for call in self.calls:
            call.cancel()
        for _, attempt in list(self.binder._attempts.values()):
            attempt.cancel()
        await asyncio.gather(*self.calls, return_exceptions=True)
        self.calls.clear()
        self.server.land()
        self.start()
        self.agrees_with_the_list()

    def collect(self) -> None:
        for call in [call for call in self.calls if call.done()]:
            del self.calls[call]
            outcome = call.result()
            self.seen[outcome.ending] += 1
            assert outcome.ending is not Ending.FAILED, outcome.error
            assert (outcome.error == "") is (outcome.ending in SUCCESSES)

    async def finish_calls(self) -> None:
        while self.calls:
            await asyncio.wait(self.calls)
            self.collect()

    def held(self) -> dict[str, list[tuple[int, int]]]:
        """The oracle: by node cores and memory of its pods, from the server's live and bound pods alone."""
        found: dict[str, list[tuple[int, int]]] = {}
        for manifest in self.pods:
            node = manifest["spec"].get("nodeName")
            if node and manifest["status"]["phase"] not in ("Succeeded", "Failed"):
                annotations = manifest["metadata"].get("annotations", {})
                given = (annotations.get("NEURON_CORES", ""), annotations.get("NEURON_DEVS", ""))
                limits = manifest["spec"]["containers"][0]["resources"]["limits"]
                memory = int(limits.get(MEMORY_KEY, "0"))
                found.setdefault(node, []).append((_mask(*given, CORES_PER_DEVICE[node]), memory))
        return found

    def check(self) -> None:
        for node, pods in self.held().items():
            taken, used, per_device = 0, Counter[int](), CORES_PER_DEVICE[node]
            for mask, memory in pods:
                assert not mask & taken, f"two live holders on {node}: {pods}"
                taken |= mask
                devices = {bit // per_device for bit in range(mask.bit_length()) if mask >> bit & 1}
                used.update(dict.fromkeys(devices, memory // len(devices)))
            assert max(used.values()) <= MEMORY[node], f"too much memory of a device of {node}: {pods}"
            assert not taken & ~self.world.state.nodes[node].used_mask, f"{node} would give away what is held: {pods}"
            self.seen["shared"] += any(0 < memory < amount for (_, memory) in pods for amount in used.values())
        self.counts_once()

    def counts_once(self) -> None:
        """Every pod that is bound or assumed, as far as is known here, counts once on its node; no two share a core."""
        state, held = self.world.state, Counter[str]()
        for pod in {**state.pods, **{uid: assumed.pod for uid, assumed in state.assumed.items()}}.values():
            if pod.node and isinstance(pod.assignment, Assignment):
                (part,) = pod.assignment.containers
                ids, per_device = ",".join(map(str, part.ids)), CORES_PER_DEVICE[pod.node]
                held[pod.node] += _mask(ids if part.request.resource is CORE else "", ids, per_device).bit_count()
        assert held == {name: info.used_mask.bit_count() for name, info in state.nodes.items() if info.used_mask}

    def agrees_with_the_list(self) -> None:
        """What a fresh process knows is what the server says, and nothing else."""
        truth = self.held()
        for node, record in self.world.state.nodes.items():
            assert record.used_mask == sum(mask for mask, _ in truth.get(node, [])), node
            assert not record.unclear


_records: dict[str, NeuronPod] = {}


def _record(manifest: AnyJson) -> NeuronPod:
    """What the pod asks for; read once, which is what makes a hundred thousand steps quick."""
    uid = manifest["metadata"]["uid"]
    if uid not in _records:
        _records[uid] = record_of(manifest)
    return _records[uid]


@cache
def _mask(cores: str, devices: str, cores_per_device: int) -> int:
    """Independent of the code under test: ids to bits."""
    if cores:
        return sum(1 << int(core) for core in cores.split(","))
    whole = (1 << cores_per_device) - 1
    return sum(whole << int(device) * cores_per_device for device in devices.split(","))


@pytest.mark.parametrize("seed", range(4))
async def test_t37_to_t43_no_core_has_two_live_holders_and_nothing_leaks(seed: int) -> None:
    run = Run(seed)

    for number in range(STEPS):
        await run.step()
        if number % 25 == 0:
            run.check()

    await run.wait()
    await run.relist()
    run.check()
    for _ in range(60):  # what chance left unread is read in the end
        run.now += 100
        await run.binder.settle()
    assert not run.world.state.assumed
    run.agrees_with_the_list()
    for manifest in run.pods:
        run.server.delete_pod("default", manifest["metadata"]["name"], grace_seconds=0)
    while not run.events.empty():
        await run.deliver()
    run.leads.expire()
    assert not run.leads._led
    assert all(record.used_mask == 0 for record in run.world.state.nodes.values())
    assert {*run.endings} == {*LeadEnding}
    endings = set(run.seen) & set(Ending)
    assert {Ending.BOUND, Ending.ADOPTED, Ending.REPEATED, Ending.UNKNOWN, Ending.NO_SET} <= endings
    assert run.made > STEPS // 25
    assert run.seen["shared"] > 20
    assert run.seen["restart"] >= STEPS // 2500
    assert run.seen["relist"] >= STEPS // 1250
