"""A binder on a world in memory and a simulated API server without sockets."""

from __future__ import annotations

from dataclasses import replace

from neuron_plugin.allocation import Dialect
from neuron_plugin.backoff import Clock
from neuron_plugin.cluster import ApiServer, Election
from neuron_plugin.placement.context import Context, Times
from neuron_plugin.placement.extender.binding import Binder, BindOutcome
from neuron_plugin.placement.extender.filter import Leads
from neuron_plugin.placement.leadership import Readiness
from neuron_plugin.placement.writer import Writer
from neuron_plugin.simulation.api_server_kinds import PODS, AnyJson
from tests.support.api_server import Fault, Match, StandInApiServer
from tests.support.world import DEVICE, World, pod_of

TRN1 = "trn1.32xlarge"
NOW_NS = 1_700_000_000_000_000_000
BINDS, READS = Match("POST", "/binding$"), Match("GET")
CUT, LOST, UNSENT = Fault(drop=True), Fault(lose_answer=True), Fault(unsent=True)
"""A request that is not done or done without an answer, and one that finds no connection."""


class Bench:
    """A binder on a world and an API server."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.server = StandInApiServer()
        self.now = 100.0
        self.ready = Readiness({})
        self.dialects: tuple[Dialect, ...] = (Dialect.NEURON_PLUGIN, Dialect.VENDOR)
        self.binder = self.make()
        world.node("node", TRN1)
        world.node("other", TRN1)

    def make(self, answer: float = 4.0, api: ApiServer | None = None, election: Election | None = None) -> Binder:
        """Another binder on the same state."""
        self.context = Context(
            api or self.server,
            self.world.state,
            self.ready,
            "one",
            election=election,
            clock=Clock(now=lambda: self.now),
            unix_seconds=lambda: NOW_NS / 1e9,
            times=Times(answer=answer),
        )
        self.writer = Writer(self.context, self.dialects)
        self.leads = Leads(self.context, self.writer)
        return Binder(self.context, self.writer, self.leads)

    def waiting(self, name: str, amount: int = 1) -> AnyJson:
        """A pod that waits, known to the server and to the watch."""
        return self.server.create_pod(self.world.pod(name, DEVICE, amount))

    def fail(self, match: Match, *faults: Fault) -> None:
        """What happens to the next requests of a kind, to one after the other."""
        for fault in faults:
            self.server.fail(replace(fault, match=match))

    def stored(self, manifest: AnyJson) -> AnyJson:
        """A pod as the server has it now."""
        return self.server.get(PODS, manifest["metadata"]["name"], "default")

    @property
    def calls(self) -> list[str]:
        """What the server was asked for: to bind or to read."""
        return ["read" if seen.method == "GET" else "bind" for seen in self.server.requests]

    async def bind(self, manifest: AnyJson, node: str = "node") -> BindOutcome:
        return await self.binder.bind(pod_of(manifest), node)

    def used(self, node: str = "node") -> int:
        return self.world.state.nodes[node].used_mask.bit_count() // 2


def without_annotations(pod: AnyJson) -> AnyJson:
    return pod | {"metadata": pod["metadata"] | {"annotations": {}}}
