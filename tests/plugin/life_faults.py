"""What goes wrong on a simulated node: hardware, the line to the API server, and kills of everything that runs."""

from __future__ import annotations

from neuron_plugin.hardware import MISSING
from tests.plugin.life_base import Life
from tests.plugin.life_pods import LivePod


class Faults(Life):
    """What breaks, and comes back."""

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
        """Whether what init containers and their heirs were given can still be learned.

        The kubelet's file says what it drew for them; what they received in its place only this process knows until it
        is annotated. So it goes on while one is admitted, and without that file until all that can be read.
        """
        of_init = [pod for pod in self.bound if pod.shape.has_init]
        if self.mode.reads_records:
            return not any(pod.waits and pod.recorded for pod in of_init)
        return all(not pod.recorded or (_is_annotated(pod) and not self.cluster.away_from_plugin) for pod in of_init)

    async def kill_plugin(self) -> None:
        """A new process: the kubelet's account, registration, and some time later the watch."""
        if not self.may_be_killed:
            return
        self.tell("the plugin was killed")
        self.seen["plugin kill"] += 1
        self.kubelet.throttled = 0.0
        self.plugin.end()
        self.forgotten.update(pod for pod in self.bound if pod.shape.has_init and not _is_annotated(pod))
        self.unseen_ghosts.update(self.ghosts)
        self.plugin = self.new_plugin()
        early = self.chance.random() < 0.5
        if early and not self.cluster.away_from_plugin:
            self.plugin.sync()
        await self.plugin.rebuild()
        self.register()
        if not (early or self.mode.reads_records) and any(pod.shape.has_init for pod in self.bound):
            self.plugin.sync()

    async def kill_extender(self) -> None:
        if self.extender:
            self.tell("the extender was killed")
            self.extender.end()
            self.extender = self.new_extender()


def _is_annotated(pod: LivePod) -> bool:
    decision = pod.decision
    return decision is not None and decision.allocated
