"""One node and all that is on it: the parts of its life, who runs there, and the tasks of its plugin.

All chance is drawn from one seed, so a life can be lived again.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from neuron_plugin.allocation import Resource
from neuron_plugin.topology import Geometry
from tests.plugin.life_cluster import Cluster
from tests.plugin.life_extender import LifeExtender
from tests.plugin.life_kubelet import LifeKubelet
from tests.plugin.life_plugin import LifePlugin
from tests.plugin.life_pods import LivePod
from tests.plugin.world import FakeClock


@dataclass(frozen=True)
class Mode:
    """What kind of node.

    ``lag``: how often the kubelet acts on a list of devices that is out of date. ``reads_records``: the plugin can read
    the kubelet's own file.
    """

    geometry: Geometry
    extender: bool = False
    cluster: bool = True
    sees_processes: bool = True
    reads_records: bool = True
    lag: float = 0.0


class Life:
    """One node, before anything happens."""

    def __init__(self, mode: Mode, seed: int) -> None:
        self.mode = mode
        self.chance = Random(seed)  # noqa: S311 - a life that can be lived again
        self.clock = FakeClock()
        self.cluster = Cluster(self.chance)
        self.kubelet = LifeKubelet(self.chance)
        self.unhealthy: dict[int, str] = {}
        self.ghosts: list[LivePod] = []
        self.unseen_ghosts: set[LivePod] = set()
        self.cut_off: set[LivePod] = set()
        self.forgotten: set[LivePod] = set()
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
            reads_records=self.mode.reads_records,
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

    @property
    def in_trouble(self) -> bool:
        """Whether the plugin cannot know who lives: nobody tells it."""
        return self.cluster.away_from_plugin or self.kubelet.throttled > 0 or not self.plugin.synced

    # What the kubelet hears.

    def stream(self) -> None:
        """The kubelet has taken in the latest lists of those resources that are registered."""
        for resource in self.kubelet.healthy:
            self.kubelet.healthy[resource] = self.plugin.offered(resource)
        self.kubelet.write()

    def register(self) -> None:
        if not self.kubelet.down:
            self.kubelet.healthy = {resource: self.plugin.offered(resource) for resource in Resource}

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

    async def become_known(self) -> None:
        if self.plugin.watch:
            self.plugin.watch.deliver(10**6)
        self.clock.now += 1.5
        await self.plugin.confirm()

    # A pod's end.

    def end(self, pod: LivePod) -> None:
        self.tell(f"ended {pod}")
        self.fail(pod)

    def fail(self, pod: LivePod) -> None:
        pod.active = pod.alive = False
        pod.terminal = True
        self.cluster.tell(pod)

    # In words.

    def tell(self, text: str) -> None:
        self.last.append(f"{self.clock.now:9.2f} {text}")

    def cores(self, mask: int) -> str:
        return f"cores {[core for core in range(mask.bit_length()) if mask >> core & 1]}"

    def described(self, pod: LivePod) -> str:
        return ", ".join(f"{name} {self.cores(mask)}" for name, mask in pod.given.items())


class _Processes:
    """Whose processes run, whenever it is asked."""

    def __init__(self, life: Life) -> None:
        self._life = life

    def __iter__(self) -> Iterator[LivePod]:
        return self._life.all_processes()
