"""How pods leave a simulated node: ended, deleted while they wait, or by force with their processes still running."""

from __future__ import annotations

from tests.plugin.life_base import Life


class Departures(Life):
    """Pods go."""

    async def finish(self) -> None:
        """The containers end, then the kubelet says so."""
        running = [pod for pod in self.bound if pod.admitted]
        if running and not self.kubelet.down:
            self.end(self.chance.choice(running))

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
