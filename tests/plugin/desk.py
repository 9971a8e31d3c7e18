"""Where the kubelet is asked who holds what, with everything around it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from neuron_plugin.allocation import Holding
from neuron_plugin.kubelet import RecordedDevices
from neuron_plugin.plugin.answers import QUIET_SECONDS
from neuron_plugin.plugin.confirm import Confirmation
from neuron_plugin.plugin.pods import NodePod
from tests.plugin.world import (
    NEURON,
    TRN1,
    FakeClock,
    FakePodResources,
    a_state,
    at_once,
    devices,
    ref,
)

ROW0, ROW1 = [0, 1, 2, 3], [4, 5, 6, 7]


@dataclass
class Desk:
    """A confirmation with everything around it, a second after the kubelet's last call."""

    cluster: bool = True
    clock: FakeClock = field(default_factory=FakeClock)
    kubelet: FakePodResources = field(default_factory=FakePodResources)
    told: list[tuple[str, list[int]]] = field(default_factory=list)
    records: list[RecordedDevices] = field(default_factory=list)
    strangers_but: set[str] = field(default_factory=set)
    looks: int = 0
    settled: bool = True

    def __post_init__(self) -> None:
        self.state = a_state(TRN1, clock=self.clock)
        self.state.pods_known, self.state.holders_known = self.cluster, False
        self.confirmation = self.another()

    def another(self) -> Confirmation:
        return Confirmation(
            self.state,
            self.kubelet,
            self.note,
            cluster=self.cluster,
            read_records=lambda: tuple(self.records),
            look_at_strangers=self.look_at_strangers,
        )

    async def look_at_strangers(self, known: Collection[str]) -> bool:
        self.looks += 1
        self.strangers_but = set(known)
        return self.settled

    def note(self, pod_: NodePod, holdings: tuple[Holding, ...]) -> None:
        self.told.append((pod_.pod.name, [holding.mask for holding in holdings]))

    def give(self, *ids: int, name: str = "") -> None:
        """An Allocate was answered just now, for a pod or for nobody known."""
        self.state.called()
        holder = ref(name) if name else self.state.new_stand_in()
        self.state.hold(holder, Holding("app" if name else "", NEURON, devices(*ids)))

    def ask(self, after: float = QUIET_SECONDS) -> None:
        self.clock.now += after
        at_once(self.confirmation._ask())

    @property
    def held(self) -> dict[str, int]:
        return {str(holder.pod): holder.mask for holder in self.state.ledger}
