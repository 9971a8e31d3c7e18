"""One process of the node daemon, as far as it decides, wired as the daemon wires it, without sockets and tasks.

Its parts are the real ones. What the daemon's tasks would do at some moment is here done when the life says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from neuron_plugin.allocation import Holding, Resource
from neuron_plugin.hardware import Process
from neuron_plugin.kubelet import Advertisement, ContainerAllocation
from neuron_plugin.kubelet.device_plugin import checked_ids, preference_fault
from neuron_plugin.plugin.allocator import Allocator
from neuron_plugin.plugin.cluster_link import ClusterLink
from neuron_plugin.plugin.confirm import Confirmation
from neuron_plugin.plugin.counts import Counts
from neuron_plugin.plugin.machine import Machine, advertised, told_machine
from neuron_plugin.plugin.node import NodeState
from neuron_plugin.plugin.pod_watch import _take_in, neuron_pod
from neuron_plugin.plugin.pods import NodePod
from neuron_plugin.plugin.quarantine import Quarantine, Users
from neuron_plugin.plugin.report import Reporter
from neuron_plugin.plugin.settings import PluginSettings, TopologyPolicy
from neuron_plugin.plugin.steering import Steering
from neuron_plugin.plugin.witness import Witness
from neuron_plugin.topology import Geometry
from tests.plugin.life_cluster import Cluster, Watch
from tests.plugin.life_kubelet import LifeKubelet
from tests.plugin.life_pods import NODE, LivePod
from tests.plugin.world import FakeClock, host_style, machine

QUARANTINE_SECONDS = 30.0


class _Confirmation(Confirmation):
    """Reads the kubelet's file without a thread: they are too dear for hundreds of thousands of looks."""

    async def _read(self) -> None:
        if self._read_records:
            self._answers.records = self._read_records()


class LifePlugin:
    """From a start to its kill.

    ``processes`` are pods whose processes run; ``sees_processes``: /proc may be read; ``reads_records``: so may the
    kubelet's own file.
    """

    def __init__(
        self,
        geometry: Geometry,
        unhealthy: Mapping[int, str],
        kubelet: LifeKubelet,
        cluster: Cluster | None,
        clock: FakeClock,
        processes: Iterable[LivePod],
        *,
        sees_processes: bool,
        reads_records: bool,
    ) -> None:
        self.geometry = geometry
        self.state = NodeState(on_change=self._changed, clock=clock, quarantine=Quarantine(QUARANTINE_SECONDS))
        self.advertisements = {resource: Advertisement() for resource in Resource}
        self.watch: Watch[NodePod] | None = None
        self.synced = False
        self._cluster = cluster
        self._processes = processes
        self._sees_processes = sees_processes
        self._dirty = False
        settings = PluginSettings(node_name=NODE, cluster=cluster is not None)
        witness = Witness(settings.node_name, self.state, Counts())
        self.link = ClusterLink(settings, self.state, lambda: None, witness=witness, serving=lambda: True)
        self.confirmation = _Confirmation(
            self.state,
            kubelet,
            self.link.write_assignment if cluster else _tell_nobody,
            cluster=cluster is not None,
            look_at_users=self.look_at_users,
            read_records=(lambda: kubelet.written) if reads_records else None,
        )
        look_at_pods = self._look_at_pods if cluster else None
        steering = Steering(self.state, look_at_pods, self.confirmation.look_again)
        self._allocator = Allocator(self.state, host_style, TopologyPolicy.PREFERRED, Reporter(), steering)
        self.see_machine(unhealthy)

    # What its tasks do.

    async def rebuild(self) -> None:
        """Learn what live pods hold; the daemon registers after that."""
        await self.confirmation.rebuild()
        self.refresh()

    def connect(self) -> None:
        """The API server is there: follow this node's pods from now on."""
        if self._cluster and not self.watch:
            self.watch = Watch(self._cluster, neuron_pod, of_node=True)
            self.watch.store.subscribe(
                lambda uid, old, new: _take_in(self.state, self.link.report, lambda: None, uid, old, new)
            )

    def sync(self) -> None:
        """The first list is in, or one after the watch was lost."""
        self.connect()
        if self.watch:
            self.watch.relist()
            if not self.synced:
                self.state.see_all_pods({uid for uid, pod in self.watch.store.values.items() if not pod.ended})
        self.synced = True

    def end(self) -> None:
        """Killed."""
        if self._cluster and self.watch:
            self._cluster.watches.remove(self.watch)

    def see_machine(self, unhealthy: Mapping[int, str]) -> None:
        """A look at the hardware, judged."""
        self.state.see_machine(machine(self.geometry, unhealthy=dict(unhealthy)))

    async def confirm(self) -> None:
        await self.confirmation._ask()
        self.refresh()

    async def send(self) -> None:
        """The outbox sends what is due."""
        outbox = self.link._outbox
        if self._cluster and outbox._unsent:
            await outbox._send_first(self._cluster)

    @property
    def unsent(self) -> int:
        return self.link._outbox.unsent

    async def look_at_users(self) -> None:
        """Judge what is suspect by who has it open."""
        if not (self.state.quarantine and self.state.quarantine.suspects):
            return
        opened: dict[int, tuple[Process, ...]] = {}
        if self._sees_processes:
            for number, pod in enumerate(self._processes):
                for device in self.geometry.devices_touched(pod.mask):
                    opened[device] = (*opened.get(device, ()), Process(number, "python", pod.uid))
        self.state.see_users(Users(opened, self._sees_processes, self.state.clock()))

    # What the kubelet hears and asks.

    def _changed(self) -> None:
        self._dirty = True

    def refresh(self) -> None:
        """What the daemon does once the calls of the moment are answered."""
        if not self._dirty or self.state.machine is None:
            return
        self._dirty = False
        for resource, advertisement in self.advertisements.items():
            advertisement.publish(advertised(self.state.machine, self.state.ledger, resource, self.state.quarantine))
        if self._cluster:
            self.link.publish(told_machine(self.state.machine, self.state.quarantine))

    def offered(self, resource: Resource) -> set[int]:
        """The ids that the latest edition calls Healthy."""
        self.refresh()
        return {int(device.id) for device in self.advertisements[resource].latest.devices if device.healthy}

    async def preferred(self, resource: Resource, available: list[str], must: list[str], size: int) -> set[int]:
        answer = await self._allocator.preferred(resource.value, available, must, size)
        assert preference_fault(answer, available, must, size) is None
        self.refresh()
        return {int(each) for each in answer}

    def allocate(self, resource: Resource, ids: list[str]) -> ContainerAllocation:
        (checked,) = checked_ids(resource.value, self.advertisements[resource].latest, [ids])
        allocation = self._allocator.allocate(resource.value, checked)
        self.refresh()
        return allocation

    async def _look_at_pods(self) -> None:
        """One consistent list, where there is a watch to take it in and an API server to give it."""
        if self._cluster and self.watch and not self._cluster.away_from_plugin:
            self.watch.list_consistently()


def _tell_nobody(_pod: NodePod, _holdings: tuple[Holding, ...]) -> None:
    """There is no API server."""


def machine_of(plugin: LifePlugin) -> Machine:
    """What it believes the machine to be."""
    assert plugin.state.machine is not None
    return plugin.state.machine
