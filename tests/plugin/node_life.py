"""The life of a node: its pods, its kubelet, its plugin, its scheduler, and everything that goes wrong among them.

The oracle is what the containers received and whose processes run: no core may be in two of them. Everything else is
held against that: the ledger, the kubelet's account, the annotations, what is offered, and the extender's view. All
chance is drawn from one seed, so a life can be lived again.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from random import Random

from neuron_plugin.allocation.requests import ContainerRequest
from neuron_plugin.allocation.resources import Resource, ids_of, mask_of
from neuron_plugin.kubelet.devices import ContainerAllocation, RefusalError
from neuron_plugin.plugin.machine import MISSING
from neuron_plugin.topology.geometry import Geometry
from tests.plugin.life_cluster import Cluster
from tests.plugin.life_extender import LifeExtender
from tests.plugin.life_kubelet import CutOffError, LifeKubelet, RejectedError
from tests.plugin.life_plugin import LifePlugin, machine_of
from tests.plugin.life_pods import INIT_SHAPES, PLAIN_SHAPES, LivePod
from tests.plugin.life_rest import check_at_rest
from tests.plugin.world import FakeClock, given_mask

NAMES = 40
"""Few, so that they come back."""


@dataclass(frozen=True)
class Mode:
    """What kind of node. ``lag``: how often the kubelet acts on a list of devices that is out of date."""

    geometry: Geometry
    extender: bool = False
    cluster: bool = True
    sees_processes: bool = True
    lag: float = 0.0


class NodeLife:
    """One node for a while."""

    def __init__(self, mode: Mode, seed: int) -> None:
        self.mode = mode
        self.chance = Random(seed)  # noqa: S311 - a life that can be lived again
        self.clock = FakeClock()
        self.cluster = Cluster(self.chance)
        self.kubelet = LifeKubelet(self.chance)
        self.kubelet.meanwhile = self.meanwhile
        self.unhealthy: dict[int, str] = {}
        self.ghosts: list[LivePod] = []
        self.unseen_ghosts: set[LivePod] = set()
        self.cut_off: set[LivePod] = set()
        self.was_cut_off = False
        self.lost: set[int] = set()
        self.lost_one = False
        self.times = itertools.count(1)
        self.seen: Counter[str] = Counter()
        self.last: deque[str] = deque(maxlen=60)
        self.plugin = self.new_plugin()
        self.extender: LifeExtender | None = None

    async def begin(self) -> None:
        await self.plugin.rebuild()
        self.plugin.connect()
        self.register()
        await self.plugin.send()
        if self.mode.extender:
            self.extender = self.new_extender()

    def new_plugin(self) -> LifePlugin:
        return LifePlugin(
            self.mode.geometry,
            self.unhealthy,
            self.kubelet,
            self.cluster if self.mode.cluster else None,
            self.clock,
            _Processes(self),
            sees_processes=self.mode.sees_processes,
        )

    def new_extender(self) -> LifeExtender:
        return LifeExtender(self.cluster, self.clock, lambda: next(self.times))

    # Who there is.

    def all_processes(self) -> Iterator[LivePod]:
        """Pods whose processes run."""
        yield from (pod for pod in self.cluster.pods.values() if pod.alive)
        yield from self.ghosts

    @property
    def bound(self) -> list[LivePod]:
        return [pod for pod in self.cluster.pods.values() if pod.active]

    # One step.

    async def step(self) -> None:
        self.clock.now += self.chance.random() / 4
        action = self.chance.choices(self.actions, self.weights)[0]
        await action()
        self.check()

    @property
    def actions(self) -> list[Callable[[], Awaitable[None]]]:
        return [action for action, _ in self.what_may_happen]

    @property
    def weights(self) -> list[float]:
        return [weight for _, weight in self.what_may_happen]

    @property
    def what_may_happen(self) -> list[tuple[Callable[[], Awaitable[None]], float]]:
        return [
            (self.create, 14),
            (self.schedule, 16),
            (self.admit, 18),
            (self.deliver, 22),
            (self.confirm, 10),
            (self.send, 10),
            (self.finish, 8),
            (self.collect, 7),
            (self.delete_waiting, 1),
            (self.delete_by_force, 1.5),
            (self.die, 3),
            (self.flip_health, 1.5),
            (self.look, 3),
            (self.wait, 1),
            (self.outage, 0.4),
            (self.restart_kubelet, 0.6),
            (self.kill_plugin, 0.6),
            (self.kill_extender, 0.3),
        ]

    def tell(self, text: str) -> None:
        self.last.append(f"{self.clock.now:9.2f} {text}")

    # Pods come.

    async def create(self) -> None:
        name = f"p{self.chance.randrange(NAMES)}"
        pending = sum(not pod.bound for pod in self.cluster.pods.values())
        if name in self.cluster.pods or pending > 5:
            return
        known = any(pod.pod.name == name for pod in self.plugin.state.pods.values())
        shapes = PLAIN_SHAPES + (INIT_SHAPES if self.mode.cluster and not known else ())
        pod = self.cluster.create(name, self.chance.choice(shapes))
        self.tell(f"created {pod}: {pod.shape}")

    async def schedule(self) -> None:
        """By the extender, or by kube-scheduler alone: static pods, ``nodeName``, no extender installed."""
        pending = [pod for pod in self.cluster.pods.values() if not pod.bound]
        if not pending:
            return
        pod = self.chance.choice(pending)
        if self.extender and self.chance.random() < 0.95:
            ending = await self.extender.schedule(pod)
            self.seen[f"bind {ending}"] += 1
            self.tell(f"the extender's bind of {pod}: {ending} {pod.annotations if pod.bound else ''}")
        elif self.counts_fit(pod) or self.chance.random() < 0.02:
            self.cluster.assign(pod, {})
            self.tell(f"{pod} bound without a decision")

    def counts_fit(self, pod: LivePod) -> bool:
        """What NodeResourcesFit knows."""
        for resource, count in pod.shape.needs.items():
            asked = sum(other.shape.needs.get(resource, 0) for other in self.bound)
            if asked + count > len(self.kubelet.healthy.get(resource, ())):
                return False
        return True

    # The kubelet admits.

    async def admit(self) -> None:
        waiting = [pod for pod in self.bound if pod.waits]
        if not waiting or self.kubelet.down or not self.kubelet.healthy:
            return
        pod = next((pod for pod in waiting if pod.recorded), None) or self.chance.choice(waiting)
        await self.admit_one(pod, cut_off=self.chance.random() < 0.03 and not self.in_trouble)
        if self.chance.random() < 0.5:
            await self.confirm()

    async def admit_one(self, pod: LivePod, *, cut_off: bool = False) -> None:
        if self.chance.random() >= self.mode.lag:
            self.stream()
        certain = not cut_off and self.must_get_its_set(pod)
        self.was_cut_off = pod in self.cut_off
        cut_after = self.chance.randrange(len(pod.shape.request)) if cut_off else -1
        try:
            await self.kubelet.allocate(pod, self.preferred, self.allocate, self.received, cut_after=cut_after)
        except CutOffError:
            self.tell(f"the kubelet ended while it admitted {pod}")
            self.cut_off.add(pod)
            self.kubelet.stop()
            self.start_kubelet()
            return
        except (RejectedError, RefusalError) as error:
            self.tell(f"{pod} rejected: {error}")
            self.seen["refused by the plugin" if isinstance(error, RefusalError) else "rejected"] += 1
            if certain:
                raise AssertionError(f"{pod} was to get {pod.annotations}") from error
            self.fail(pod)
            return
        pod.admitted = pod.alive = True
        self.tell(f"admitted {pod}: {self.described(pod)}")
        self.seen["admitted"] += 1
        if certain:
            self.got_its_set(pod)
        if self.lost_one:  # only a pod that is known is safe from this fault of the kubelet
            self.lost_one = False
            await self.become_known()
        if self.chance.random() < 0.03:
            self.tell(f"{pod} rejected after all")
            self.fail(pod)

    async def preferred(self, resource: Resource, available: list[str], must: list[str], size: int) -> set[int]:
        ids = await self.plugin.preferred(resource, available, must, size)
        if self.chance.random() >= self.mode.lag:
            self.stream()
        self.tell(f"preferred of {resource.short_name}: {sorted(ids)} of {sorted(map(int, available))} with {must}")
        return ids

    def allocate(self, resource: Resource, ids: list[str]) -> ContainerAllocation:
        stale = self.kubelet.chosen_from != self.plugin.offered(resource)
        free = self.free_ids(resource) & self.kubelet.last_offer
        self.lost = self.kubelet.lost & set(map(int, ids))
        try:
            return self.plugin.allocate(resource, ids)
        except RefusalError as error:
            excused = self.lost or self.in_trouble or self.was_cut_off
            if not (stale or excused):
                raise AssertionError("refused in steady operation") from error
            if len(free) >= len(ids) and not excused:
                raise AssertionError(f"refused, and {sorted(free)} would have done") from error
            raise

    @property
    def in_trouble(self) -> bool:
        """Whether the plugin cannot know who lives: nobody tells it."""
        return self.cluster.away_from_plugin or self.kubelet.throttled > 0 or not self.plugin.synced

    def free_ids(self, resource: Resource) -> set[int]:
        """Ids that the plugin offers and that are in nobody's hands by its books."""
        used, geometry = self.plugin.state.ledger.used_mask, self.mode.geometry
        return {one for one in self.plugin.offered(resource) if not mask_of(geometry, resource.unit, (one,)) & used}

    def received(self, pod: LivePod, part: ContainerRequest, allocation: ContainerAllocation) -> None:
        """The only moment at which silicon gets a new owner."""
        mask = given_mask(self.mode.geometry, allocation)
        size = part.count * (1 if part.resource is Resource.NEURONCORE else self.mode.geometry.cores_per_device)
        assert mask.bit_count() == size, f"{pod} {part.container} received {self.cores(mask)}, not {size} cores"
        self.shares_with_nobody(pod, mask, unless_unknown=bool(self.lost))
        if part.container in pod.shape.lasting and not self.lost:
            for name, theirs in pod.lasting:
                assert name == part.container or not theirs & mask, f"{pod}: {name} and {part.container} share"
        pod.given[part.container] = mask

    def shares_with_nobody(self, pod: LivePod, mask: int, *, unless_unknown: bool = False) -> None:
        """``unless_unknown``: the kubelet offers what it gave away a moment ago; only a pod that is known is safe."""
        for other in self.all_processes():
            if unless_unknown and other.uid not in self.plugin.state.confirmed:
                continue
            if other is not pod and other.mask & mask and other not in self.unseen_ghosts:
                raise AssertionError(f"{pod} received {self.cores(mask & other.mask)}, which {other} has")

    async def become_known(self) -> None:
        if self.plugin.watch:
            self.plugin.watch.deliver(10**6)
        self.clock.now += 1.5
        await self.plugin.confirm()

    def meanwhile(self, *, last: bool) -> None:
        """What may happen while an Allocate is under way: a pod ends, and somebody else asks PodResources List."""
        if not last or self.in_trouble or not self.mode.cluster:
            return
        if self.chance.random() < 0.08 and (running := [pod for pod in self.bound if pod.admitted]):
            self.end(self.chance.choice(running))
            self.kubelet.free_ended()
            self.seen["reservation lost"] += 1
            self.lost_one = True

    def stream(self) -> None:
        """The kubelet has taken in the latest lists of those resources that are registered."""
        for resource in self.kubelet.healthy:
            self.kubelet.healthy[resource] = self.plugin.offered(resource)

    def register(self) -> None:
        if not self.kubelet.down:
            self.kubelet.healthy = {resource: self.plugin.offered(resource) for resource in Resource}

    # A pod gets what was decided for it.

    def must_get_its_set(self, pod: LivePod) -> bool:
        """Whether nothing stands between it and its set: nobody has it, nobody else waits, and all of it is offered."""
        decision = pod.decision
        if decision is None or self.cluster.away_from_plugin or not self.plugin.watch or pod.recorded:
            return False
        state = self.plugin.state
        if state.quarantine and state.quarantine.suspects:
            return False
        if any(other.uid not in state.confirmed for other in self.bound if other is not pod):
            return False
        if state.pods.keys() - {other.uid for other in self.bound}:
            return False
        taken = state.ledger.used_mask
        for part in decision.containers:
            resource = part.request.resource
            offered = self.kubelet.healthy[resource] - self.kubelet.recorded(resource)
            mask = mask_of(self.mode.geometry, resource.unit, part.ids)
            if mask & taken or mask & ~machine_of(self.plugin).healthy_mask or not offered.issuperset(part.ids):
                return False
        return True

    def got_its_set(self, pod: LivePod) -> None:
        self.seen["got its set"] += 1
        decision = pod.decision
        for part in decision.containers if decision else ():
            given = ids_of(self.mode.geometry, part.request.resource.unit, pod.given[part.request.container])
            assert given == part.ids, f"{pod} {part.request.container} received {given}, decided was {part.ids}"

    # Pods go.

    async def finish(self) -> None:
        """The containers end, then the kubelet says so."""
        running = [pod for pod in self.bound if pod.admitted]
        if running and not self.kubelet.down:
            self.end(self.chance.choice(running))

    def end(self, pod: LivePod) -> None:
        self.tell(f"ended {pod}")
        self.fail(pod)

    def fail(self, pod: LivePod) -> None:
        pod.active = pod.alive = False
        pod.terminal = True
        self.cluster.tell(pod)

    async def collect(self) -> None:
        """Ended pods are deleted."""
        ended = [pod for pod in self.cluster.pods.values() if pod.terminal]
        if ended:
            self.cluster.remove(self.chance.choice(ended))

    async def delete_waiting(self) -> None:
        waiting = [pod for pod in self.cluster.pods.values() if not pod.admitted and not pod.alive]
        if waiting:
            pod = self.chance.choice(waiting)
            self.tell(f"deleted {pod}, which waited")
            pod.active = False
            self.cluster.remove(pod)

    async def delete_by_force(self) -> None:
        """The object is gone, the kubelet forgets it, its processes run on."""
        running = [pod for pod in self.bound if pod.alive]
        if running:
            pod = self.chance.choice(running)
            self.tell(f"deleted by force {pod}: {self.described(pod)}")
            self.seen["deleted by force"] += 1
            pod.active = False
            self.ghosts.append(pod)
            known = self.mode.cluster and pod.uid in self.plugin.state.confirmed
            if not (known and self.mode.sees_processes):
                self.unseen_ghosts.add(pod)
            self.cluster.remove(pod)

    async def die(self) -> None:
        if self.ghosts:
            pod = self.ghosts.pop(self.chance.randrange(len(self.ghosts)))
            self.tell(f"the processes of {pod} have died")
            pod.alive = False
            self.unseen_ghosts.discard(pod)

    # The plugin's tasks.

    async def deliver(self) -> None:
        """Watches catch up a little."""
        if not (self.plugin.synced or self.cluster.away_from_plugin):
            self.plugin.sync()
        if self.plugin.watch:
            self.plugin.watch.deliver(self.chance.randrange(1, 5))
        if self.extender:
            self.extender.watch.deliver(self.chance.randrange(1, 5))
            if self.chance.random() < 0.3:
                self.extender.see_node()

    async def confirm(self) -> None:
        self.clock.now += self.chance.choice((0.1, 1.5))
        await self.plugin.confirm()

    async def send(self) -> None:
        await self.plugin.send()

    async def look(self) -> None:
        await self.plugin.look_at_users()

    async def wait(self) -> None:
        if any(pod.waits and pod.recorded for pod in self.bound):
            return  # no kubelet takes so long over one pod
        self.clock.now += self.chance.choice((2, 12, 40))
        await self.confirm()
        await self.look()
        if self.extender:
            await self.extender.binder.settle()

    # What goes wrong.

    async def flip_health(self) -> None:
        """A device gets sick or goes missing, or is well again; whoever has it keeps it."""
        device = self.chance.randrange(self.mode.geometry.device_count)
        if device in self.unhealthy:
            del self.unhealthy[device]
        elif len(self.unhealthy) < self.mode.geometry.device_count // 4:
            self.unhealthy[device] = self.chance.choice(("sick", MISSING))
        self.tell(f"unhealthy: {self.unhealthy}")
        self.seen["health flip"] += 1
        self.plugin.see_machine(self.unhealthy)

    async def outage(self) -> None:
        """The plugin's line to the API server breaks: nothing comes, nothing goes; or it is back, with a list."""
        self.cluster.away_from_plugin = not self.cluster.away_from_plugin
        self.tell(f"outage: {self.cluster.away_from_plugin}")
        self.seen["outage"] += 1
        self.cluster.binds_fail = self.chance.choice((0.0, 0.0, 0.2))
        self.kubelet.throttled = self.chance.choice((0.0, 0.0, 0.3))
        if self.plugin.watch:
            self.plugin.watch.silent = self.cluster.away_from_plugin
        if not self.cluster.away_from_plugin:
            self.plugin.sync()

    async def restart_kubelet(self) -> None:
        """It stops, or comes back: its streams are gone, its checkpoint is not."""
        if self.kubelet.down:
            self.start_kubelet()
        else:
            self.kubelet.stop()
            self.tell("the kubelet stopped")
            if self.chance.random() < 0.7:
                self.start_kubelet()

    def start_kubelet(self) -> None:
        self.kubelet.start()
        self.seen["kubelet restart"] += 1
        self.tell("the kubelet started")
        self.register()

    @property
    def may_be_killed(self) -> bool:
        """What init containers hold is known to nobody but this process, until it is annotated and can be read."""
        if self.cluster.away_from_plugin and any(pod.shape.has_init for pod in self.bound):
            return False
        return all(not pod.shape.has_init or not pod.recorded or _is_annotated(pod) for pod in self.bound)

    async def kill_plugin(self) -> None:
        """A new process: the kubelet's account, registration, and some time later the watch."""
        if not self.may_be_killed:
            return
        self.tell("the plugin was killed")
        self.seen["plugin kill"] += 1
        self.kubelet.throttled = 0.0
        self.plugin.end()
        self.unseen_ghosts.update(self.ghosts)
        self.plugin = self.new_plugin()
        early = self.chance.random() < 0.5
        if early and not self.cluster.away_from_plugin:
            self.plugin.sync()
        await self.plugin.rebuild()
        self.register()
        if not early and any(pod.shape.has_init for pod in self.bound):
            self.plugin.sync()

    async def kill_extender(self) -> None:
        if self.extender:
            self.tell("the extender was killed")
            self.extender.end()
            self.extender = self.new_extender()

    # What must hold at every moment.

    def check(self) -> None:
        """What runs is on the books, as soon as the kubelet could be asked."""
        state = self.plugin.state
        known = state.ledger.used_mask | (state.quarantine.mask if state.quarantine else 0)
        for pod in self.bound:
            asked = pod.uid in state.confirmed and pod.alive
            if asked and pod.mask & ~known:
                raise AssertionError(f"{pod} has {self.cores(pod.mask & ~known)}, which no book says")

    # What must hold at rest.

    async def rest(self) -> None:
        """Everything that is under way comes to its end, and everything that was broken is mended."""
        self.tell("rest")
        self.cluster.away_from_plugin = False
        self.cluster.binds_fail = self.kubelet.throttled = 0.0
        if self.kubelet.down:
            self.start_kubelet()
        if self.plugin.watch:
            self.plugin.watch.silent = False
        self.plugin.sync()
        while self.ghosts:
            await self.die()
        for _ in range(3):
            for pod in sorted((pod for pod in self.bound if pod.waits), key=lambda pod: not pod.recorded):
                await self.admit_one(pod)
                await self.calm()
        await self.calm()

    async def calm(self) -> None:
        for _ in range(3):
            self.clock.now += 31
            await self.confirm()
            await self.look()
            while self.plugin.unsent:
                await self.send()
            if self.plugin.watch:
                self.plugin.watch.deliver(10**6)
            self.plugin.refresh()
        self.stream()
        if self.extender:
            self.extender.watch.deliver(10**6)
            self.extender.see_node()
            await self.extender.binder.settle()

    async def finish_all(self) -> None:
        """What holds when all is over."""
        for pod in list(self.cluster.pods.values()):
            if pod.active:
                self.end(pod)
            self.cluster.remove(pod)
        await self.calm()
        assert not self.plugin.state.ledger.holders
        if self.extender:
            assert not self.extender.held()

    # In words.

    def cores(self, mask: int) -> str:
        return f"cores {[core for core in range(mask.bit_length()) if mask >> core & 1]}"

    def described(self, pod: LivePod) -> str:
        return ", ".join(f"{name} {self.cores(mask)}" for name, mask in pod.given.items())


class _Processes:
    """Whose processes run, whenever it is asked."""

    def __init__(self, life: NodeLife) -> None:
        self._life = life

    def __iter__(self) -> Iterator[LivePod]:
        return self._life.all_processes()


def _is_annotated(pod: LivePod) -> bool:
    decision = pod.decision
    return decision is not None and decision.allocated


async def live(mode: Mode, seed: int, steps: int, *, rest_every: int = 500) -> NodeLife:
    """A whole life; a violation names the seed and tells what came before."""
    life = NodeLife(mode, seed)
    number = 0
    try:
        await life.begin()
        for number in range(steps):
            await life.step()
            if number % rest_every == rest_every - 1:
                await life.rest()
                check_at_rest(life)
        await life.rest()
        check_at_rest(life)
        await life.finish_all()
    except Exception as error:
        before = "\n".join(life.last)
        error.add_note(f"seed {seed}, step {number}, {mode}; the last that happened:\n{before}")
        raise
    return life
