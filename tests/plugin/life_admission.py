"""How the kubelet admits pods to a simulated node, and what must hold of each answer that it gets.

What a container receives is the only moment at which silicon gets a new owner; so it is held against all that run.
"""

from __future__ import annotations

from neuron_plugin.allocation import ContainerKind, ContainerRequest, Resource, ids_of, mask_of
from neuron_plugin.kubelet import ContainerAllocation
from neuron_plugin.kubelet.devices import RefusalError
from tests.plugin.life_faults import Faults
from tests.plugin.life_kubelet import CutOffError, RejectedError
from tests.plugin.life_plugin import machine_of
from tests.plugin.life_pods import LivePod
from tests.plugin.world import given_mask


class Admission(Faults):
    """The kubelet admits."""

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

    def meanwhile(self, *, last: bool) -> None:
        """What may happen while an Allocate is under way: a pod ends, and somebody else asks PodResources List."""
        if not last or self.in_trouble or not self.mode.cluster:
            return
        if self.chance.random() < 0.08 and (running := [pod for pod in self.bound if pod.admitted]):
            self.end(self.chance.choice(running))
            self.kubelet.free_ended()
            self.seen["reservation lost"] += 1
            self.lost_one = True

    # What it asks and receives.

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
        known = state.pods.get(pod.uid)  # the watch may not have told it yet of what it is to inherit
        if state.pods.keys() - {other.uid for other in self.bound} or (known and known.decision != decision):
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
        """An app container after several init containers may get another part of it, or share with a sidecar."""
        self.seen["got its set"] += 1
        decision = pod.decision
        for part in decision.containers if decision else ():
            if pod.shape.has_many_init and part.request.kind is ContainerKind.APP:
                continue
            given = ids_of(self.mode.geometry, part.request.resource.unit, pod.given[part.request.container])
            assert given == part.ids, f"{pod} {part.request.container} received {given}, decided was {part.ids}"
