"""The random life of a node whose plugin is a driver of claims: pods come and go, and everything around them fails.

The daemon's own parts decide: its inputs, its watches, and the answers of `ClaimPreparer`. Around them are the API
server of `life_cluster`, and models of its allocator, the kubelet and another driver, on a virtual clock and without
I/O. The memory of the kubelet and its file are those of the simulated one. The oracle is what running containers have:
no core may belong to two claims.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from neuron_plugin.allocation import PodUid
from neuron_plugin.allocation.claims import DRA_DRIVER, ClaimDevice, NeuronClaim, mask_of_name, names_mask
from neuron_plugin.cluster.api import JsonObject
from neuron_plugin.cluster.claims import RESOURCE_CLAIMS as DECODED
from neuron_plugin.cluster.claims import neuron_claim
from neuron_plugin.kubelet.dra_service import ClaimReference
from neuron_plugin.plugin.claims import ClaimPreparer, ClaimSource
from neuron_plugin.plugin.metrics import new_counts
from neuron_plugin.plugin.node import LocalNode, NodeOptions
from neuron_plugin.plugin.pod_watch import ClaimWatch, PodWatch
from neuron_plugin.plugin.settings import Mode, Numbering, PluginSettings
from neuron_plugin.plugin.settle import is_explained
from neuron_plugin.plugin.slices import SliceKeeper, slice_spec
from neuron_plugin.plugin.snapshot import Snapshot
from neuron_plugin.simulation.api_server_kinds import RESOURCE_CLAIMS, RESOURCE_SLICES, AnyJson
from neuron_plugin.simulation.kubelet_dra import ClaimInfo, DriverDevice, NotPreparedError
from neuron_plugin.topology import CoreMask
from tests.plugin.life_cluster import NODE, AnyLife, Violation, follow_pods
from tests.plugin.world import INF2, inventory, uid_of
from tests.support.model_kubelet import ModelKubelet

PARTNER = "efa.networking.k8s.aws"
MOST_PODS = 10
REST_EVERY = 500
"""Steps."""
SHARED = ("shared-0", "shared-1")
_MACHINE = inventory(INF2)


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
    def manifest(self) -> AnyJson:
        container = {"name": "app", "resources": {"claims": [{"name": "neurons"}]}}
        claims = [{"name": "neurons", "resourceClaimName": self.claim}]
        spec = {"nodeName": NODE, "containers": [container], "resourceClaims": claims}
        return {"metadata": {"name": self.name, "uid": self.uid}, "spec": spec}


class Plugin:
    """One process of the daemon, as far as claims concern it. ``calls`` end when it does."""

    def __init__(self, life: ClaimLife) -> None:
        self.life = life
        loop = asyncio.get_running_loop()
        self.node = LocalNode(life.kubelet.file, life, NodeOptions(()), loop.time, life.kubelet.claims_file)
        settings = PluginSettings(node_name=NODE, mode=Mode.DRA, cdi_dir=life.directory, numbering=Numbering.HOST)
        counts = new_counts()
        self.pods = PodWatch(self.node, NODE, "", settings.decision_deadline_seconds, counts, connect_seconds=1.0)
        self.claims = ClaimWatch(self.node, DRA_DRIVER)
        source = ClaimSource(self.claims.read_claim, self.pods.list_pods)
        self.preparer = ClaimPreparer(self.node, settings, source, counts)
        self.calls: dict[asyncio.Task[Any], None] = {}
        self.slices = SliceKeeper(NODE, DRA_DRIVER, counts)
        self.node.disabled_known.clear()
        self.node.see_inventory(life.inventory)
        for each in life.pods:
            if each.running:
                mask = names_mask([f"neuron-{device}" for device in life.devices_of(each)], INF2, 1)
                self.node.hold_down(each.uid, mask, "unknown pod")
            elif each.uid in life.kubelet.admitted and not self.knows(each):
                each.unseen = True  # it may start without being prepared again, and nothing says so yet
        jobs = {
            "turns": self._turns(),
            "pods": follow_pods(life.api, self.pods, life.chance),
            "claims": self.claims.run(life.api),
            "orders": self._wait_for_claims(),
            "slices": self.slices.run(life.api),
            "publish": self._publish(),
        }
        self.tasks = [asyncio.create_task(job, name=name) for name, job in jobs.items()]
        for task in self.tasks:
            task.add_done_callback(life.ended)

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
                await self.pods.list_pods()

    async def _publish(self) -> None:
        while True:
            await self.node.changed.wait()
            self.node.changed.clear()
            if self.node.snapshot:
                self.slices.want(wanted_slice(self.node.snapshot), "")

    async def _wait_for_claims(self) -> None:
        await self.claims.read.wait()
        self.node.disabled_known.set()


def wanted_slice(snapshot: Snapshot) -> JsonObject:
    return slice_spec(snapshot.published_inventory, NODE, DRA_DRIVER, placed=False)


class Kubelet(ModelKubelet):
    """One node's kubelet; ``admitted`` are the pods whose claims it has prepared."""

    def __init__(self, life: ClaimLife) -> None:
        super().__init__(life.chance)
        self.life = life
        self.admitted: set[str] = set()
        self.tasks: dict[asyncio.Task[None], None] = {}

    def start(self) -> None:
        """Begin with the file, and go on with every pod."""
        life = self.life
        self.begin()
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
        life = self.life
        claim = life.claims.get(one.claim)
        if claim is None or not life.api.up or one.uid not in claim.reserved_for:
            raise NotPreparedError("the claim cannot be read, or is not the pod's")
        await self.memory.prepare([life.api.get(RESOURCE_CLAIMS, one.claim, "default")], one.uid, self)

    async def node_prepare(
        self, driver: str, claims: Sequence[ClaimInfo]
    ) -> Mapping[str, Sequence[DriverDevice] | str]:
        if driver == PARTNER:
            await asyncio.sleep(self.life.chance.random() * 0.1)
            if self.life.chance.random() < 0.5:
                self.life.seen["half-failed"] += 1
                raise NotPreparedError("the partner failed")
            return {each.uid: () for each in claims}
        plugin = self.life.plugin
        if plugin is None:
            raise NotPreparedError("the driver is away")
        asked = [ClaimReference(*each.key, each.uid) for each in claims]
        call = asyncio.ensure_future(plugin.preparer.prepare(asked))
        plugin.calls[call] = None
        call.add_done_callback(plugin.calls.pop)
        done, _ = await asyncio.wait((call,), timeout=45)
        if not done or call.cancelled():
            call.cancel()
            raise NotPreparedError("no answer")
        if self.life.chance.random() < 0.02:
            raise NotPreparedError("the answer was lost")
        answer = call.result()
        self.life.seen["prepared"] += sum(not isinstance(each, str) for each in answer.values())
        return {
            uid: found
            if isinstance(found, str)
            else [DriverDevice(each.pool, each.device, (each.request,), tuple(each.cdi_devices)) for each in found]
            for uid, found in answer.items()
        }

    async def node_unprepare(self, driver: str, claims: Sequence[ClaimInfo]) -> None:  # noqa: ARG002 - the protocol's
        running = {each.claim for each in self.life.pods if each.running}
        self.life.seen["unprepared a live pod"] += sum(each.key[1] in running for each in claims)

    async def _finish(self, one: LifePod) -> None:
        """The containers end, then the claims are given up; the object of a pod that was deleted gracefully goes."""
        life = self.life
        await asyncio.sleep(life.chance.choice((0.1, 1.0, 3.0)))
        while one.running or life.plugin is None:
            life.stop(one)
            await asyncio.sleep(0.5)
        one.over = True
        for _ in range(2 if life.chance.random() < 0.2 else 1):  # kubernetes#140212
            await self.memory.unprepare([("default", one.claim)], one.uid, self)
            await asyncio.sleep(life.chance.random() * 0.1)
        self.admitted.discard(one.uid)
        life.remove(one)
        life.forget(one)


@lru_cache(1000)
def _decoded(encoded: bytes) -> NeuronClaim:
    return neuron_claim(DECODED.decode(encoded), DRA_DRIVER)


class ClaimLife(AnyLife):
    """One node for a while."""

    pauses = (0.0, 0.05, 0.3, 1.0)

    def __init__(self, seed: int, directory: Path, lag_seconds: float) -> None:
        super().__init__(seed, lag_seconds)
        self.directory = directory
        self.pods: list[LifePod] = []
        self.plugin: Plugin | None = None
        self.inventory = _MACHINE
        self.kubelet = Kubelet(self)
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
            (self.flip_health, 0.5),
            (self.leave_a_slice, 0.2),
        )

    def is_populated(self, uid: str) -> bool | None:
        return any(each.running for each in self.pods if each.uid == uid)

    def ended(self, task: asyncio.Task[None]) -> None:
        self.kubelet.tasks.pop(task, None)
        self.task_ended(task)

    def devices_of(self, one: LifePod) -> list[int]:
        mask = 0
        for each in one.given.values():
            mask |= each
        return [int(device) for device in INF2.devices_touched(mask)]

    # The API server, and whoever allocates.

    @property
    def claims(self) -> dict[str, NeuronClaim]:
        stored = self.api._objects.collections[RESOURCE_CLAIMS].objects()
        return {claim.name: claim for claim in (_decoded(each.encoded) for each in stored)}

    def _allocate(self, name: str) -> bool:
        """Make a claim with the first devices or cores that fit; now and then with some that somebody has already."""
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
                pool = {"request": "neurons", "driver": DRA_DRIVER, "pool": f"{NODE}-neuron"}
                results = [pool | {"device": each} for each in names]
                if self.chance.random() < 0.2:
                    link = {"request": "links", "driver": PARTNER, "pool": NODE, "device": "link-0"}
                    results.insert(self.chance.randrange(2), link)
                self.api.create(RESOURCE_CLAIMS, {"metadata": {"name": name}}, "default")
                self._change(name, {"allocation": {"devices": {"results": results}}})
                return True
        return False

    def _change(self, claim: str, status: AnyJson) -> None:
        self.api.patch_status(RESOURCE_CLAIMS, claim, status, "default")

    def _reserve(self, claim: str, users: Iterable[str]) -> None:
        self._change(claim, {"reservedFor": [{"resource": "pods", "name": uid, "uid": uid} for uid in users]})

    def create(self) -> None:
        if not self.api.up or len(self.pods) >= MOST_PODS:
            return
        self._numbers += 1
        name = self.chance.choice(SHARED) if self.chance.random() < 0.2 else f"claim-{self._numbers}"
        if name not in self.claims and not self._allocate(name):
            return
        one = LifePod(f"pod-{self._numbers}", uid_of(f"pod {self._numbers}"), name)
        claim = self.claims[name]
        self._reserve(name, (*claim.reserved_for, one.uid))
        self.pods.append(one)
        self.note(f"bound {one} with {[each.device for each in claim.results]}")
        self.seen["bound"] += 1
        self.api.create_pod(one.manifest)
        self.kubelet.sees(one)

    def remove(self, one: LifePod) -> None:
        """The object goes, and its claim is free as far as the API server knows."""
        if one.removed:
            return
        one.removed = True
        if one.over:
            self.api.show(one.uid, "Succeeded", running=False)
        self.api.remove(one.uid)
        if claim := self.claims.get(one.claim):
            if left := [uid for uid in claim.reserved_for if uid != one.uid]:
                self._reserve(one.claim, left)
            else:
                self.api.delete(RESOURCE_CLAIMS, one.claim, "default")

    def forget(self, one: LifePod) -> None:
        if one in self.pods and not one.running:
            self.pods.remove(one)

    def delete(self) -> None:
        """Gracefully: its object stays until its containers have ended."""
        found = [each for each in self.pods if not (each.removed or each.over)]
        if found and self.api.up:
            one = self.chance.choice(found)
            self.note(f"{one} is deleted")
            one.over = True
            self.kubelet.sees(one)

    def delete_by_force(self) -> None:
        found = [each for each in self.pods if not (each.removed or each.over)]
        if found and self.api.up:
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
            says = partial(self.api.show, one.uid, "Running", started=True, running=True)
            self._loop.call_later(self.chance.random() * 0.2, says)

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
        if self.violations:
            raise self.violations[0]

    def restart_kubelet(self) -> None:
        self.note("kubelet restarts")
        self.seen["kubelet restart"] += 1
        self.kubelet.stop()
        for each in self.api.objects(RESOURCE_SLICES):  # as it does until it knows its drivers
            self.api.delete(RESOURCE_SLICES, each["metadata"]["name"])
        self.kubelet.start()

    def kill_plugin(self) -> None:
        if self.plugin:
            self.note("plugin killed")
            self.seen["plugin kill"] += 1
            self.plugin.kill()
            self.plugin = None
            self._loop.call_later(self.chance.choice((0.2, 2.0, 40.0)), self.start_plugin)

    def start_plugin(self) -> None:
        if self.plugin is None:
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
        self.kubelet.claims_file.put(None)

    def spoil_file(self) -> None:
        self.note("the file is corrupt")
        self.seen["file corrupt"] += 1
        self.kubelet.claims_file.put(b"{}")

    def flip_health(self) -> None:
        """A device breaks, or is repaired: its taint keeps new claims off."""
        unhealthy = {} if self.inventory.unhealthy else {self.chance.randrange(INF2.device_count): "broken"}
        self.inventory = replace(self.inventory, unhealthy=unhealthy)
        if self.plugin:
            self.plugin.node.see_inventory(self.inventory)

    def leave_a_slice(self) -> None:
        """A plugin that called its slice otherwise has left one behind."""
        self._numbers += 1
        spec = {"driver": DRA_DRIVER, "nodeName": NODE, "pool": {"name": "old", "resourceSliceCount": 1}}
        self.api.create(RESOURCE_SLICES, {"metadata": {"name": f"old-{self._numbers}"}, "spec": spec}, "")

    async def rest(self) -> None:
        """Without trouble there is one slice: all devices in their order, with a taint on what may not be given."""
        self.api.forgive()
        self.api.stalled_until = 0.0
        self.start_plugin()
        await asyncio.sleep(60)
        snapshot = self.plugin.node.snapshot if self.plugin else None
        assert snapshot
        self.seen["rest"] += 1
        (found,) = self.api.objects(RESOURCE_SLICES)
        devices = found["spec"]["devices"]
        if found["spec"] != wanted_slice(snapshot):
            raise Violation(f"the slice says {devices}, wanted is {wanted_slice(snapshot)}")
        if [device["name"] for device in devices] != [f"neuron-{device}" for device in range(INF2.device_count)]:
            raise Violation(f"the slice has other devices, or in another order: {devices}")
        tainted = {number for number, device in enumerate(devices) if device.get("taints")}
        if not tainted >= self.inventory.unhealthy.keys():
            raise Violation(f"{self.inventory.unhealthy} may not be given, and {tainted} have a taint")

    def lose_api(self) -> None:
        self.api.go_away()
        self._loop.call_later(self.chance.choice((1.0, 20.0)), self.api.forgive)

    def stall_watch(self) -> None:
        self.api.stalled_until = self._loop.time() + self.chance.choice((1.0, 10.0))


async def live(seed: int, directory: Path, steps: int, lag_seconds: float) -> ClaimLife:
    """A life of so many steps; a violation tells the seed and what happened last."""
    life = ClaimLife(seed, directory, lag_seconds)
    life.kubelet.start()
    life.start_plugin()
    try:
        for number in range(steps):
            await life.step()
            if number % REST_EVERY == REST_EVERY - 1:
                await life.rest()
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
