"""The random life of a node whose plugin is a driver of claims: pods come and go, and everything around them fails.

The daemon's own parts decide: its inputs, and the answers of `ClaimPreparer`. Around them are models of the API server,
its allocator, the kubelet and another driver, on a virtual clock and without I/O. The memory of the kubelet and its
file are those of the simulated one. The oracle is what running containers have: no core may belong to two claims.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from neuron_plugin.allocation import NeuronPod, PodUid
from neuron_plugin.allocation.claims import (
    DRA_DRIVER,
    ClaimDevice,
    ClaimResult,
    NeuronClaim,
    PodClaim,
    mask_of_name,
    names_mask,
)
from neuron_plugin.kubelet import Checkpoint, CheckpointError
from neuron_plugin.kubelet.dra_service import ClaimReference
from neuron_plugin.kubelet.dra_state import DraState, parse_dra_state
from neuron_plugin.plugin.claims import ClaimPreparer, ClaimSource
from neuron_plugin.plugin.counters import Counters
from neuron_plugin.plugin.node import Node, NodeOptions
from neuron_plugin.plugin.settings import Mode, Numbering, PluginSettings
from neuron_plugin.plugin.snapshot import is_explained
from neuron_plugin.simulation.kubelet_claims import ClaimInfo, ClaimMemory, Device, NotPreparedError
from neuron_plugin.topology import CoreMask
from tests.plugin.world import INF2, inventory, pod, uid_of

PARTNER = "efa.networking.k8s.aws"
MOST_PODS = 10
SHARED = ("shared-0", "shared-1")
_MACHINE = inventory(INF2)


class Violation(AssertionError):  # noqa: N818 - it is the word for it
    """Something that must never happen."""


@dataclass(eq=False)
class LifePod:
    """A pod as it really is; ``given`` are the cores that its running containers have, by the claims' UIDs.

    ``removed``: its object is gone. ``over``: its containers have ended or never started, and never will. ``unseen``:
    the plugin has no way to know what it has.
    """

    name: str
    uid: PodUid
    claim: str
    started: bool = False
    running: bool = False
    removed: bool = False
    over: bool = False
    unseen: bool = False
    given: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name}/{self.claim}"

    @property
    def record(self) -> NeuronPod:
        claims = (PodClaim("neurons", self.claim, (("app", ""),)),)
        return replace(pod(self.name, uid=self.uid), claims=claims, started=self.started, running=self.started)


class StateFile:
    """``dra_manager_state``; ``fault`` says why it cannot be read."""

    def __init__(self) -> None:
        self.data: bytes | None = None
        self.fault = ""
        self._edition = 0

    def put(self, data: bytes | None, fault: str = "") -> None:
        self.data, self.fault, self._edition = data, fault, self._edition + 1

    def version(self) -> tuple[int, int, int] | None:
        return None if self.data is None else (self._edition, len(self.data), 1)

    def read(self) -> DraState:
        if self.fault:
            raise CheckpointError(self.fault)
        return DraState(parse_dra_state(self.data, {DRA_DRIVER}) if self.data else (), self.version())


class _NoCheckpoint:
    def version(self) -> None:
        return None

    def read(self) -> Checkpoint:
        return Checkpoint((), None)


class Plugin:
    """One process of the daemon, as far as claims concern it. ``calls`` end when it does."""

    def __init__(self, life: ClaimLife) -> None:
        self.life = life
        loop = asyncio.get_running_loop()
        self.node = Node(_NoCheckpoint(), life, NodeOptions(()), loop.time, life.file)
        settings = PluginSettings(node_name="worker-1", mode=Mode.DRA, cdi_dir=life.directory, numbering=Numbering.HOST)
        self.preparer = ClaimPreparer(self.node, settings, ClaimSource(self._read, self.list_pods), Counters())
        self.calls: dict[asyncio.Task[Any], None] = {}
        self.version = 0
        self.node.orders_known.clear()
        self.node.see_inventory(_MACHINE)
        for each in life.pods:
            if each.running:
                mask = names_mask([f"neuron-{device}" for device in life.devices_of(each)], INF2, 1)
                self.node.hold_down(each.uid, mask, "unknown pod")
            elif each.uid in life.kubelet.admitted and not self.knows(each):
                each.unseen = True  # it may start without being prepared again, and nothing says so yet
        self.tasks = [
            asyncio.create_task(job(), name=job.__name__) for job in (self._turns, self._follow, self._claims)
        ]

    def knows(self, one: LifePod) -> bool:
        return self.node.snapshot is not None and is_explained(self.node.snapshot.inputs, one.uid)

    def kill(self) -> None:
        for task in (*self.tasks, *self.calls):
            task.cancel()

    async def _turns(self) -> None:
        while True:
            await asyncio.sleep(0.25)
            self.node.look_at_claims()
            self.node.look_again()
            if self.node.list_is_due:
                await self.list_pods()

    async def _claims(self) -> None:
        """As ``ClaimWatch`` does."""
        while True:
            named = {
                (each.reference.namespace, one.claim): uid
                for uid, each in self.node.pods.pods.items()
                for one in each.claims
            }
            fresh = {}
            for key, uid in named.items():
                known = self.node.claims.get(key)
                if (known is None or uid not in known.reserved_for) and (found := await self._read(*key)):
                    fresh[key] = found
            claims = {**self.node.claims, **fresh}
            self.node.see_claims({key: one for key, one in claims.items() if key in named})
            if self.node.pods.listed_at is not None:
                self.node.orders_known.set()
            await asyncio.sleep(1.0 if self.node.orders_known.is_set() else 0.05)

    async def _read(self, namespace: str, name: str) -> NeuronClaim | None:
        assert namespace == "default"
        await asyncio.sleep(self.life.chance.random() * 0.02)
        return self.life.claims.get(name) if self.life.api_up else None

    async def list_pods(self) -> None:
        """A consistent LIST; nothing while the API server is away."""
        life, began = self.life, asyncio.get_running_loop().time()
        await asyncio.sleep(life.chance.random() * 0.02)
        if not life.api_up:
            return
        version, pods = life.version, [each.record for each in life.pods if not each.removed]
        await asyncio.sleep(life.chance.random() * 0.05)
        if version >= self.version:
            self.version = version
            self.node.see_pods(self.node.pods.with_list(pods, began))

    async def _follow(self) -> None:
        """List, then take in each change some time after it was made."""
        life, loop = self.life, asyncio.get_running_loop()
        await asyncio.sleep(life.chance.random())
        while self.node.pods.listed_at is None:
            await self.list_pods()
            await asyncio.sleep(0.2)
        while True:
            await asyncio.sleep(0.02)
            for version, due, uid, record, stopped in list(life.log):
                if version <= self.version or not life.api_up or loop.time() < max(due, life.stalled_until):
                    continue
                self.version = version
                pods = self.node.pods
                self.node.see_pods(pods.with_pod(record) if record else pods.without(uid, stopped=stopped))


class Kubelet:
    """One node's kubelet; ``admitted`` are the pods whose claims it has prepared."""

    def __init__(self, life: ClaimLife) -> None:
        self.life = life
        self.memory = ClaimMemory()
        self.admitted: set[str] = set()
        self.tasks: dict[asyncio.Task[None], None] = {}

    def start(self) -> None:
        """Begin with the file, and go on with every pod."""
        life = self.life
        if life.file.fault:  # the real one does not start, and its operator removes the file
            life.file.put(None)
        self.memory = ClaimMemory()
        self.memory.load(life.file.data)
        self.admitted = {each.uid for each in life.pods if each.running}
        for each in life.pods:
            if each.removed or each.over:
                self._spawn(self._finish(each))
            elif not each.running:
                self._spawn(self._run(each))

    def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        self.tasks.clear()

    def sees(self, one: LifePod) -> None:
        """A pod is bound here, or has to end."""
        self._spawn(self._finish(one) if one.removed or one.over else self._run(one))

    def _spawn(self, job: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(job)
        self.tasks[task] = None
        task.add_done_callback(self.life.ended)

    async def _run(self, one: LifePod) -> None:
        life = self.life
        await asyncio.sleep(life.chance.random() * 0.3)
        while not (one.removed or one.over):
            try:
                await self._prepare(one)
            except NotPreparedError as error:
                life.note(f"{one} waits: {error}")
                life.seen["waited"] += 1
                await asyncio.sleep(life.chance.choice((1.0, 5.0, 60.0)))
            else:
                break
        if one.over or (one.removed and one.uid not in self.admitted):
            return
        self.admitted.add(one.uid)
        await asyncio.sleep(life.chance.choice((0.05, 0.5, 2.0)))
        if self.life.may_start(one):
            life.start(one)

    async def _prepare(self, one: LifePod) -> None:
        life, chance = self.life, self.life.chance
        claim = life.claims.get(one.claim)
        if claim is None or not life.api_up or one.uid not in claim.reserved_for:
            raise NotPreparedError("the claim cannot be read, or is not the pod's")
        results = [{"driver": DRA_DRIVER}] + [{"driver": PARTNER}] * (claim.uid in life.mixed)
        metadata = {"namespace": "default", "name": claim.name, "uid": claim.uid}
        status = {"allocation": {"devices": {"results": results}}}
        info = self.memory.add({"metadata": metadata, "status": status}, one.uid)
        self._write()
        asked = list(self.memory.unprepared([info]).items())
        chance.shuffle(asked)
        for driver, _ in asked:
            for device in await (self._ask(info) if driver == DRA_DRIVER else self._ask_partner()):
                self.memory.add_device(info.key, driver, device)
        self.memory.mark_prepared([info.key])
        self._write()

    async def _ask(self, info: ClaimInfo) -> list[Device]:
        plugin = self.life.plugin
        if plugin is None:
            raise NotPreparedError("the driver is away")
        call = asyncio.ensure_future(plugin.preparer.prepare([ClaimReference("default", info.key[1], info.uid)]))
        plugin.calls[call] = None
        call.add_done_callback(plugin.calls.pop)
        done, _ = await asyncio.wait((call,), timeout=45)
        if not done or call.cancelled():
            call.cancel()
            raise NotPreparedError("no answer")
        if self.life.chance.random() < 0.02:
            raise NotPreparedError("the answer was lost")
        answer = call.result()[info.uid]
        if isinstance(answer, str):
            raise NotPreparedError(answer)
        self.life.seen["prepared"] += 1
        return [Device(each.pool, each.device, (each.request,), tuple(each.cdi_devices)) for each in answer]

    async def _ask_partner(self) -> list[Device]:
        await asyncio.sleep(self.life.chance.random() * 0.1)
        if self.life.chance.random() < 0.5:
            self.life.seen["half-failed"] += 1
            raise NotPreparedError("the partner failed")
        return []

    async def _finish(self, one: LifePod) -> None:
        """The containers end, then the claims are given up; the object of a pod that was deleted gracefully goes."""
        life = self.life
        await asyncio.sleep(life.chance.choice((0.1, 1.0, 3.0)))
        while one.running or life.plugin is None:
            life.stop(one)
            await asyncio.sleep(0.5)
        one.over = True
        for _ in range(2 if life.chance.random() < 0.2 else 1):  # kubernetes#140212
            claims = [
                each for found in self.memory.given_up([("default", one.claim)], one.uid).values() for each in found
            ]
            for claim in claims:
                if any(each.running and each.claim == claim.key[1] for each in life.pods):
                    life.seen["unprepared a live pod"] += 1
            self.memory.forget({claim.key for claim in claims})
            self._write()
            await asyncio.sleep(life.chance.random() * 0.1)
        self.admitted.discard(one.uid)
        life.remove(one)
        life.forget(one)

    def _write(self) -> None:
        self.life.file.put(self.memory.state_bytes())


class ClaimLife:
    """One node for a while. ``claims`` are those of the API server, ``log`` the changes of its pods."""

    def __init__(self, seed: int, directory: Path, lag_seconds: float) -> None:
        random.seed(seed)
        self.chance = Random(seed)  # noqa: S311 - a life that can be lived again
        self.directory = directory
        self.seen: Counter[str] = Counter()
        self.trace: deque[str] = deque(maxlen=60)
        self.pods: list[LifePod] = []
        self.claims: dict[str, NeuronClaim] = {}
        self.mixed: set[str] = set()
        self.file = StateFile()
        self.api_up, self.stalled_until = True, 0.0
        self.version, self.log = 1, deque[tuple[int, float, PodUid, NeuronPod | None, bool]](maxlen=500)
        self.errors: list[BaseException] = []
        self.plugin: Plugin | None = None
        self.kubelet = Kubelet(self)
        self._lag_seconds = lag_seconds
        self._loop = asyncio.get_running_loop()
        self._number = 0
        self.actions = (
            (self.create, 20),
            (self.delete, 8),
            (self.delete_by_force, 8),
            (self.restart_kubelet, 0.7),
            (self.kill_plugin, 0.8),
            (self.reboot, 0.1),
            (self.lose_file, 0.2),
            (self.spoil_file, 0.2),
            (self.lose_api, 0.3),
            (self.stall_watch, 0.4),
        )

    def note(self, text: str) -> None:
        self.trace.append(f"{self._loop.time():9.3f} {text}")

    def is_populated(self, uid: str) -> bool | None:
        return any(each.running for each in self.pods if each.uid == uid)

    def ended(self, task: asyncio.Task[None]) -> None:
        self.kubelet.tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()):
            self.errors.append(error)

    def devices_of(self, one: LifePod) -> list[int]:
        mask = 0
        for each in one.given.values():
            mask |= each
        return [int(device) for device in INF2.devices_touched(mask)]

    # The API server, and whoever allocates.

    def _show(self, one: LifePod) -> None:
        self.version += 1
        due = self._loop.time() + self.chance.expovariate(1) * self._lag_seconds
        stopped = one.removed and one.over  # as the kubelet says before it removes the object
        self.log.append((self.version, due, one.uid, None if one.removed else one.record, stopped))

    def _allocate(self, name: str) -> NeuronClaim | None:
        """The first devices or cores that fit; now and then some that somebody has already."""
        busy = 0
        for each in self.claims.values() if self.chance.random() < 0.95 else ():
            busy |= each.mask_on(INF2, 1)
        count = self.chance.choice((0, 1, 1, 2, 4))
        for first in range(INF2.device_count - count + 1):
            devices = [ClaimDevice(first + more) for more in range(count)]
            if not count and first < INF2.device_count:
                core = 2 * first + self.chance.randrange(2)
                devices = [ClaimDevice(first, (core, core))]
            names = [each.name for each in devices]
            if devices and not names_mask(names, INF2, 1) & busy:
                self._number += 1
                results = tuple(ClaimResult("neurons", "worker-1-neuron", each) for each in names)
                return NeuronClaim(f"uid-{self._number}", "default", name, allocated=True, results=results)
        return None

    def create(self) -> None:
        if not self.api_up or len(self.pods) >= MOST_PODS:
            return
        self._number += 1
        name = self.chance.choice(SHARED) if self.chance.random() < 0.2 else f"claim-{self._number}"
        claim = self.claims.get(name) or self._allocate(name)
        if claim is None:
            return
        one = LifePod(f"pod-{self._number}", uid_of(f"pod {self._number}"), name)
        if name not in self.claims and self.chance.random() < 0.2:
            self.mixed.add(claim.uid)
        self.claims[name] = replace(claim, reserved_for=(*claim.reserved_for, one.uid))
        self.pods.append(one)
        self.note(f"bound {one} with {[each.device for each in claim.results]}")
        self.seen["bound"] += 1
        self._show(one)
        self.kubelet.sees(one)

    def remove(self, one: LifePod) -> None:
        """The object goes, and its claim is free as far as the API server knows."""
        if one.removed:
            return
        one.removed = True
        self._show(one)
        claim = self.claims.get(one.claim)
        if claim:
            left = tuple(uid for uid in claim.reserved_for if uid != one.uid)
            if left:
                self.claims[one.claim] = replace(claim, reserved_for=left)
            else:
                del self.claims[one.claim]

    def forget(self, one: LifePod) -> None:
        if one in self.pods and not one.running:
            self.pods.remove(one)

    def delete(self) -> None:
        """Gracefully: its object stays until its containers have ended."""
        found = [each for each in self.pods if not (each.removed or each.over)]
        if found and self.api_up:
            one = self.chance.choice(found)
            self.note(f"{one} is deleted")
            one.over = True
            self.kubelet.sees(one)

    def delete_by_force(self) -> None:
        found = [each for each in self.pods if not (each.removed or each.over)]
        if found and self.api_up:
            one = self.chance.choice(found)
            self.note(f"{one} is deleted by force")
            self.seen["deleted by force"] += 1
            self.remove(one)
            self._loop.call_later(self.chance.random() * 0.3, self.kubelet.sees, one)

    # The node.

    def may_start(self, one: LifePod) -> bool:
        """Whether a pod's containers start; those of one that was deleted by force may start all the same."""
        return not one.over and (not one.removed or self.chance.random() < 0.3)

    def start(self, one: LifePod) -> None:
        """The containers start with what the kubelet has for them."""
        info = self.kubelet.memory.claims.get(("default", one.claim))
        if info is None:
            return  # given up meanwhile: the container cannot be created
        names = [each.name for _, each in info.devices("") if each.cdi_ids]
        shown = [each.cdi_ids[0].rpartition("=")[2].partition("-")[0] for _, each in info.devices("") if each.cdi_ids]
        if [f"{name}-".split("-")[1] for name in names] != shown:
            raise Violation(f"{one} got {shown} for {names}")
        mask = 0
        for name in names:
            mask |= mask_of_name(name, INF2, 1)
        one.given = {info.uid: mask}
        one.running = one.started = True
        self.note(f"started {one} with {names}")
        self.check()
        if not one.removed:
            self._loop.call_later(self.chance.random() * 0.2, self._show, one)

    def stop(self, one: LifePod) -> None:
        if one.running:
            self.note(f"processes of {one} have ended")
        one.running, one.given = False, {}

    def check(self) -> None:
        """No core belongs to two claims among live processes."""
        alive = [each for each in self.pods if each.running and not each.unseen]
        for place, one in enumerate(alive):
            for other in alive[place + 1 :]:
                for (uid, mask), (other_uid, other_mask) in (
                    (first, second) for first in one.given.items() for second in other.given.items()
                ):
                    if uid != other_uid and mask & other_mask:
                        raise Violation(f"{one} and {other} both have cores {CoreMask(mask & other_mask):b}")
        if self.errors:
            raise self.errors[0]

    def restart_kubelet(self) -> None:
        self.note("kubelet restarts")
        self.seen["kubelet restart"] += 1
        self.kubelet.stop()
        self.kubelet.start()

    def kill_plugin(self) -> None:
        if self.plugin:
            self.note("plugin killed")
            self.seen["plugin kill"] += 1
            self.plugin.kill()
            self.plugin = None
            self._loop.call_later(self.chance.choice((0.2, 2.0, 40.0)), self.start_plugin)

    def start_plugin(self) -> None:
        self.note("plugin starts")
        self.plugin = Plugin(self)

    def reboot(self) -> None:
        self.note("reboot")
        self.seen["reboot"] += 1
        self.kubelet.stop()
        for each in self.pods:
            self.stop(each)
        self.kill_plugin()
        self.kubelet.start()

    def lose_file(self) -> None:
        self.note("the file is lost")
        self.seen["file lost"] += 1
        self.file.put(None)

    def spoil_file(self) -> None:
        self.note("the file is corrupt")
        self.seen["file corrupt"] += 1
        self.file.put(b"{}", "spoiled")

    def lose_api(self) -> None:
        self.api_up = False
        self._loop.call_later(self.chance.choice((1.0, 20.0)), setattr, self, "api_up", True)  # noqa: FBT003 - setattr's

    def stall_watch(self) -> None:
        self.stalled_until = self._loop.time() + self.chance.choice((1.0, 10.0))

    async def step(self) -> None:
        actions, weights = zip(*self.actions, strict=True)
        self.chance.choices(actions, weights)[0]()
        await asyncio.sleep(self.chance.choice((0.0, 0.05, 0.3, 1.0)) * self.chance.random())
        self.check()


async def live(seed: int, directory: Path, steps: int, lag_seconds: float) -> ClaimLife:
    """A life of so many steps; a violation tells the seed and what happened last."""
    life = ClaimLife(seed, directory, lag_seconds)
    life.kubelet.start()
    life.start_plugin()
    try:
        for _ in range(steps):
            await life.step()
    except BaseException as error:
        last = "\n".join(life.trace)
        raise Violation(f"life {seed}: {error}\n{last}") from error
    finally:
        life.kubelet.stop()
        if life.plugin:
            life.plugin.kill()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
    return life
