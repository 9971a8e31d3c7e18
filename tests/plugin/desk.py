"""A node and an allocator in memory, a kubelet that does what it is asked for, and stories about them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Collection, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest

from neuron_plugin.allocation import NeuronPod, Resource
from neuron_plugin.allocation.resources import format_ids, parse_ids
from neuron_plugin.decision_log import LoggedDecision
from neuron_plugin.kubelet import Advertisement, AllocationRefusedError, ContainerAllocation, PodDevices
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1.api_pb2 import ContainerAllocateResponse
from neuron_plugin.kubelet.device_plugin import container_response
from neuron_plugin.kubelet.pod_resources import ContainerDevices
from neuron_plugin.plugin.allocator import Allocator
from neuron_plugin.plugin.container import ALLOCATION_KEY, reply_for
from neuron_plugin.plugin.inputs import Inputs, NodePods, PendingAnswer
from neuron_plugin.plugin.metrics import new_counts
from neuron_plugin.plugin.node import LocalNode, NodeOptions
from neuron_plugin.plugin.settings import Numbering, PluginSettings, TopologyPolicy
from neuron_plugin.plugin.snapshot import Snapshot
from neuron_plugin.simulation.kubelet_device_manager import DeviceManager
from tests.plugin.world import (
    TRN1,
    FakeClock,
    asked_by,
    given_mask,
    holder,
    ids_of,
    moment,
    pod_of,
    records,
    ref,
    texts,
    uid_of,
    who_has,
    who_holds_down,
)
from tests.support.model_kubelet import ModelKubelet
from tests.support.stories import Scene


class MemoryKubelet(ModelKubelet):
    """A kubelet that writes on request. ``writes`` says whether a ListAndWatch message leads to a new file."""

    def __init__(self) -> None:
        super().__init__(Random(0))  # noqa: S311 - of no consequence
        self.messages = 0
        self.writes = True

    def write(self) -> None:
        self.file.put(self.manager.checkpoint_bytes())

    def write_empty(self) -> None:
        """An older file, from before anything was allocated, that comes late."""
        self.file.put(DeviceManager(self._chance).checkpoint_bytes())

    def record(
        self,
        uid: str,
        container: str,
        resource: Resource,
        ids: Collection[int],
        reply: ContainerAllocation | None = None,
        *,
        write: bool = True,
    ) -> None:
        """The kubelet takes a reply in; ``reply`` None is another plugin's."""
        response = container_response(reply) if reply else ContainerAllocateResponse()
        self.manager.record(uid, container, resource.value, texts(ids), response.SerializeToString())
        if write:
            self.write()

    def forget(self, *uids: str, write: bool = True) -> None:
        """Ended pods leave the kubelet's memory, by default all."""
        kept = {each.pod_uid for each in self.manager.entries()}
        self.manager.forget_pods(kept.difference(uids) if uids else ())
        if write:
            self.write()

    async def follow(self, advertisement: Advertisement) -> None:
        """A ListAndWatch stream."""
        advertisement.streams += 1
        sent = 0
        try:
            while True:
                if advertisement.latest.version == sent:
                    await advertisement.changed()
                    continue
                sent = advertisement.latest.version
                self.messages += 1
                if self.writes:
                    await asyncio.sleep(0.002)
                    self.write()
        finally:
            advertisement.streams -= 1


@dataclass
class FakeCgroups:
    """``alive``: UIDs of pods that have a process; None where that cannot be seen."""

    alive: set[str] | None = field(default_factory=set)

    def is_populated(self, uid: str) -> bool | None:
        return None if self.alive is None else uid in self.alive


@dataclass
class FakeLister:
    """The API server: ``pods`` are shown to the node at the next LIST."""

    node: LocalNode
    pods: Sequence[NeuronPod] | None = None
    lists: int = 0

    async def list_pods(self) -> None:
        self.lists += 1
        if self.pods is not None:
            self.node.see_pods(self.node.pods.with_list(self.pods, self.node.clock()))


@asynccontextmanager
async def running(*jobs: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """While the block lasts; what a job fails with is raised at its end."""
    tasks = [asyncio.create_task(job) for job in jobs]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result


class LoopClock(FakeClock):
    """The time of the event loop, which tests may make pass quickly."""

    def __call__(self) -> float:
        return asyncio.get_running_loop().time()


async def tell(begin: str, steps: str) -> None:
    """Live through a story, such as ``"a app:1 | alive a", "admit a=3; gone a; wait 3; held a=3!"``.

    It begins as `moment` reads it, and may say ``alive a``, ``unseen`` (no cgroup can be read), ``blind`` (nor can the
    checkpoint), ``unlisted`` (the API server was not heard yet), ``required`` (linked sets) and ``truthful`` (of broken
    devices). Each step is a method of `Story`.
    """
    clauses = [clause.strip() for clause in begin.split("|")]
    flags = {clause for clause in clauses if clause in {"unseen", "blind", "unlisted", "required", "truthful"}}
    alive = next((clause.split()[1:] for clause in clauses if clause.startswith("alive")), [])
    known = moment(" | ".join(one for one in clauses if one not in flags and not one.startswith("alive")))
    story = Story(known, flags, alive)
    if "start" not in steps.split("; "):
        story.start()
    async with story.followed():
        await story.play(steps)


class Story(Scene):
    """One node while a story is told. Ids are as in `ids_of`, and who has them as in `records`."""

    def __init__(
        self,
        begin: Inputs,
        flags: Collection[str] = (),
        alive: Collection[str] = (),
    ) -> None:
        self.kubelet = MemoryKubelet()
        self.cgroups = FakeCgroups(None if "unseen" in flags else {uid_of(name) for name in alive})
        options = NodeOptions(unhealthy_in_use="truthful" in flags)
        self.node = LocalNode(self.kubelet.file, self.cgroups, options, LoopClock())
        self.lister = FakeLister(self.node)
        policy = TopologyPolicy.REQUIRED if "required" in flags else TopologyPolicy.PREFERRED
        settings = PluginSettings(node_name="worker-1", numbering=Numbering.HOST, topology_policy=policy)
        self.allocator = Allocator(self.node, settings, self.lister, new_counts())
        self._begin = begin
        self._heard, self._reads = [0, 0], 0
        if "blind" in flags:
            self.blind()
        if "unlisted" not in flags:
            self.node.see_pods(NodePods().with_list(begin.pods.pods.values(), 0.0))

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        """With a kubelet that follows what is offered."""
        async with running(self.kubelet.follow(next(iter(self.node.advertisements.values())))):
            await asyncio.sleep(0)
            self._heard = [self.kubelet.messages, 0]
            yield

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def snapshot(self) -> Snapshot:
        assert self.node.snapshot
        return self.node.snapshot

    @property
    def decisions(self) -> list[LoggedDecision]:
        return list(self.allocator.log.decisions.entries())

    # Time, hardware, processes.

    def start(self) -> None:
        """The first look at the hardware."""
        self.node.see_inventory(self._begin.inventory)
        self.node.advertise()

    def later(self, text: str) -> None:
        """``later 2.5 dead``: a step that comes later, in the middle of another one."""
        seconds, verb, *rest = text.split(" ", 2)
        asyncio.get_running_loop().call_later(float(seconds), getattr(self, verb), *rest)

    def breaks(self, ids: str = "") -> None:
        broken = dict.fromkeys(parse_ids(ids) if ids else (), "sick")
        self.node.see_inventory(replace(self._begin.inventory, unhealthy=broken))

    def alive(self, names: str) -> None:
        """Which pods have a process, or ``unseen``."""
        self.cgroups.alive = None if names == "unseen" else {holder(name)[0] for name in names.split()}

    def dead(self) -> None:
        self.cgroups.alive = set()

    # The API server.

    def pod(self, text: str) -> None:
        self.node.see_pods(self.node.pods.with_pod(pod_of(text)))

    def gone(self, name: str) -> None:
        self.node.see_pods(self.node.pods.without(holder(name)[0]))

    def stopped(self, name: str) -> None:
        self.node.see_pods(self.node.pods.without(holder(name)[0], stopped=True))

    def killed(self, name: str) -> None:
        self.node.see_pods(self.node.pods.without(holder(name)[0], stopped=False))

    def list(self, text: str) -> None:
        """What the next LIST shows."""
        self.lister.pods = [pod_of(text)]

    # The kubelet.

    def record(self, text: str) -> None:
        """The kubelet's file has this from now on: with our answer of these ids if there is one that waits."""
        for one in records(text, self._begin.inventory):
            answers = [answer.reply for answer in self._pending() if answer.ids == one.ids]
            reply = answers[-1] if answers else one.reply
            assert reply
            given = ContainerAllocation({}, annotations={ALLOCATION_KEY: reply.annotation()})
            self.kubelet.record(one.key.uid, one.key.container, one.key.resource, one.ids, given)
        self.node.look_at_checkpoint()

    def forget(self, name: str) -> None:
        self.kubelet.forget(holder(name)[0])
        self.node.look_at_checkpoint()

    def drop(self, name: str) -> None:
        """As ``forget``, and the file is not written."""
        self.kubelet.forget(holder(name)[0], write=False)

    def lose(self) -> None:
        self.kubelet.file.put(None)
        self.node.look_at_checkpoint()

    def mute(self) -> None:
        """From now on no message makes the kubelet write its file."""
        self.kubelet.writes = False

    def write(self) -> None:
        self.kubelet.writes = True
        self.kubelet.write()
        self.node.look_at_checkpoint()

    def write_empty(self) -> None:
        self.kubelet.write_empty()
        self.node.look_at_checkpoint()

    def blind(self) -> None:
        """The checkpoint cannot be read."""
        self.kubelet.file.fault = "a future format"
        self.kubelet.write()
        self.node.look_at_checkpoint()

    def see(self) -> None:
        """It can be read again."""
        self.kubelet.file.fault = ""
        self.write()

    def look(self) -> None:
        self.node.look_at_checkpoint()

    def reads(self, expected: str) -> None:
        """How often the file was read since the last look at that."""
        before, self._reads = self._reads, self.kubelet.file.reads
        assert self._reads - before == int(expected)

    def restart(self) -> None:
        self.node.kubelet_restarted()

    def listed(self, text: str = "") -> None:
        """PodResources lists these; ``gpu`` has devices of another vendor."""
        found = []
        for name, ids in (word.split("=") for word in text.split()):
            resource = "nvidia.com/gpu" if name == "gpu" else Resource.NEURON.value
            container = ContainerDevices("app", resource, tuple(texts(parse_ids(ids))))
            found.append(PodDevices("default", name, (container,)))
        self.node.see_listed(found, self.now)

    def offered(self, ids: str) -> None:
        resource, numbers = ids_of(ids)
        self.node.see_offered(resource, numbers)

    async def prefer(self, text: str, expected: str = "") -> tuple[int, ...]:
        """``prefer 4 of 0-7 must 2 -> 0-3``, or ``-> not 0-3``."""
        request = asked_by(text, self.snapshot.inputs)
        answer = await self.allocator.preferred(
            request.resource.value, texts(request.available), texts(request.must_include), request.size
        )
        found, (how, _, ids) = tuple(sorted(map(int, answer))), expected.rpartition(" ")
        assert len(found) == request.size
        if expected:
            assert not {*found} & {*parse_ids(ids)} if how else found == parse_ids(ids), found
        return found

    async def allocate(self, text: str, expected: str = "") -> ContainerAllocation:
        """``allocate 3 -> 3``: what is given, or ``!`` and a part of the refusal."""
        resource, ids = ids_of(text)
        if expected.startswith("!"):
            with pytest.raises(AllocationRefusedError, match=re.escape(expected[1:])):
                await self.allocator.allocate(resource.value, texts(ids))
            return ContainerAllocation({})
        answer = await self.allocator.allocate(resource.value, texts(ids))
        await asyncio.sleep(0)
        geometry = self._begin.inventory.geometry
        given = geometry.ids_of(resource.unit, given_mask(geometry, answer))
        assert given == (ids_of(expected)[1] if expected else ids)
        return answer

    async def admit(self, text: str, expected: str = "") -> None:
        """An Allocate that the kubelet records."""
        who, _, ids = text.partition("=")
        await self.allocate(ids, expected)
        self.record(f"{who}={ids}")

    # Our own.

    def answer(self, text: str) -> None:
        """``answer a/init=3`` or ``answer 3>2``: an answer to an Allocate is remembered."""
        who, _, ids = text.rpartition("=")
        (one,) = records(f"{who or 'a'}={ids}", self._begin.inventory)
        reply = reply_for(
            self._begin.inventory, f"reply {len(self._pending())}", one.on(self._begin.inventory, ref("a")).mask
        )
        whose = (ref(who.partition("/")[0]), one.key.container) if who else (None, "")
        self.node.answered(PendingAnswer(reply, one.key.resource, one.ids, self.now, *whose))

    def _pending(self) -> Sequence[PendingAnswer]:
        return self.node.snapshot.inputs.pending if self.node.snapshot else ()

    def unknown(self, text: str) -> None:
        """A process of an unknown pod has devices open."""
        (one,) = records(text)
        self.node.hold_down(one.key.uid, TRN1.devices_mask(one.ids), "why")

    def again(self) -> None:
        self.node.look_again()

    async def rewrite(self, expected: str = "") -> None:
        came = await self.node.rewrite()
        assert not expected or came is (expected == "yes")

    # What follows.

    def has(self, expected: str) -> None:
        assert who_has(self.snapshot) == expected.replace("-", "")

    def held(self, expected: str) -> None:
        assert who_holds_down(self.snapshot.inputs) == expected.replace("-", "")

    def sick(self, expected: str) -> None:
        """What the kubelet is shown as unhealthy."""
        self.node.advertise()
        shown = self.node.advertisements[Resource.NEURON].latest.devices
        assert format_ids(int(one.id) for one in shown if not one.healthy) == expected.replace("-", "")

    def pending(self, expected: str) -> None:
        assert len(self._pending()) == int(expected)

    def due(self, expected: str) -> None:
        assert self.node.rewrite_is_due == (expected == "yes")

    def awaited(self, expected: str) -> None:
        assert self.node.record_is_awaited == (expected == "yes")

    def news(self, expected: str) -> None:
        """Whether anything has changed since the last look at that."""
        assert self.node.changed.is_set() == (expected == "yes")
        self.node.changed.clear()

    def asked(self, expected: str) -> None:
        """``1/2``: messages to the kubelet, and LISTs, since the last look at them."""
        seen = [self.kubelet.messages, self.lister.lists]
        assert "/".join(str(now - before) for now, before in zip(seen, self._heard, strict=True)) == expected
        self._heard = seen


@asynccontextmanager
async def a_desk(begin: str | Inputs = "", *flags: str) -> AsyncIterator[Story]:
    """A node as `moment` reads it, from its start on; flags are those of `tell`."""
    story = Story(begin if isinstance(begin, Inputs) else moment(begin), flags)
    story.start()
    async with story.followed():
        yield story
