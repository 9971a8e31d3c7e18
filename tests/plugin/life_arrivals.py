"""How pods come to a simulated node: created under names that return, and bound with a decision or without."""

from __future__ import annotations

from tests.plugin.life_base import Life
from tests.plugin.life_pods import INIT_SHAPES, PLAIN_SHAPES, SIDECAR_FIRST_SHAPES, LivePod

NAMES = 40
"""Few, so that they come back."""


class Arrivals(Life):
    """Pods come."""

    async def create(self) -> None:
        name = f"p{self.chance.randrange(NAMES)}"
        pending = sum(not pod.bound for pod in self.cluster.pods.values())
        if name in self.cluster.pods or pending > 5:
            return
        shapes = PLAIN_SHAPES + INIT_SHAPES + (SIDECAR_FIRST_SHAPES if self.mode.reads_records else ())
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
