"""A binder on a world in memory and a pod server whose answers are the test's."""

from __future__ import annotations

from neuron_plugin.allocation import Dialect
from neuron_plugin.backoff import Clock
from neuron_plugin.extender.binding import Binder, BindTimes, Outcome
from neuron_plugin.scheduling.leadership import Readiness
from tests.support.pod_server import Manifest, PodServer
from tests.support.world import DEVICE, World, pod_of

TRN1 = "trn1.32xlarge"


NOW_NS = 1_700_000_000_000_000_000


class Bench:
    """A binder on a world and a pod server."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.server = PodServer()
        self.now = 100.0
        self.ready = Readiness({})
        self.dialects: tuple[Dialect, ...] = (Dialect.NEURON_PLUGIN, Dialect.VENDOR)
        self.binder = self.make()
        world.node("node", TRN1)
        world.node("other", TRN1)

    def make(self, answer: float = 4.0) -> Binder:
        return Binder(
            self.world.state,
            self.server,
            self.ready,
            dialects=self.dialects,
            times=BindTimes(answer=answer),
            clock=Clock(now=lambda: self.now),
            unix_ns=lambda: NOW_NS,
        )

    def waiting(self, name: str, amount: int = 1) -> Manifest:
        """A pod that waits, known to the server and to the watch."""
        return self.server.add(self.world.pod(name, DEVICE, amount))

    async def bind(self, manifest: Manifest, node: str = "node") -> Outcome:
        return await self.binder.bind(pod_of(manifest), node)

    def used(self, node: str = "node") -> int:
        return self.world.state.nodes[node].used_mask.bit_count() // 2
