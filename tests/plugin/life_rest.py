"""A simulated node at rest: all that is under way ends, all that broke is mended, and everybody says the same."""

from __future__ import annotations

from neuron_plugin.allocation import ContainerKind, Resource, ids_of, mask_of
from tests.plugin.life_admission import Admission
from tests.plugin.life_base import Life
from tests.plugin.life_departures import Departures
from tests.plugin.life_plugin import machine_of
from tests.plugin.life_pods import LivePod


class Rest(Admission, Departures):
    """Bringing a node to rest."""

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


def check_at_rest(life: Life) -> None:
    state, running = life.plugin.state, [pod for pod in life.bound if pod.admitted]
    assert not [pod for pod in life.bound if pod.waits]
    held = {uid: holder.mask for uid, holder in state.ledger.holders.items()}
    if life.mode.cluster:
        assert held == {pod.uid: pod.mask for pod in running}, "the ledger is not what the containers have"
        assert not state.waiting(), f"left waiting: {state.waiting()}"
        for pod in running:
            _annotations_tell_the_truth(life, pod)
    else:
        by_name = {holder.pod.name: holder.mask for holder in state.ledger}
        assert by_name == {pod.name: pod.mask for pod in running}, "the ledger is not what the containers have"
    for pod in running:
        _kubelet_agrees(life, pod)
    assert state.quarantine is not None
    assert not state.quarantine.suspects, state.quarantine.suspects
    _free_is_offered(life, running)
    if life.extender:
        theirs = life.extender.held()
        assert theirs == held, f"the extender thinks {theirs}, the ledger says {held}"
        assert not life.extender.state.assumed
        healthy = machine_of(life.plugin).healthy_mask
        assert life.extender.state.nodes["node"].free_mask == healthy & ~state.ledger.used_mask


def _kubelet_agrees(life: Life, pod: LivePod) -> None:
    """PodResources and the ledger say one thing, but where the kubelet drew from init containers at random."""
    geometry = life.mode.geometry
    for container, (resource, ids) in pod.recorded.items():
        if not pod.shape.has_init:
            assert mask_of(geometry, resource.unit, tuple(ids)) == pod.given[container], f"{pod} {container}"


def _annotations_tell_the_truth(life: Life, pod: LivePod) -> None:
    decision = pod.decision
    assert decision is not None, f"{pod} has no annotation"
    assert decision.allocated, f"{pod} is not marked as allocated"
    for part in decision.containers:
        told = mask_of(life.mode.geometry, part.request.resource.unit, part.ids)
        given = pod.given[part.request.container]
        of_the_past = part.request.kind is ContainerKind.INIT and not told & ~pod.mask
        if pod not in life.forgotten and not of_the_past:  # of the forgotten only the pod's whole set is known
            assert told == given, f"{pod} {part.request.container}: {life.cores(told)} told, {life.cores(given)} given"


def _free_is_offered(life: Life, running: list[LivePod]) -> None:
    """All that is healthy and held under no other name, and nothing else."""
    geometry = life.mode.geometry
    for resource in Resource:
        elsewhere: int = geometry.devices_mask(life.unhealthy)
        for pod in running:
            of_name = {part.container: part.resource for part in pod.shape.request}
            for container, mask in pod.given.items():
                if of_name[container] is not resource:
                    elsewhere |= mask
        everything = ids_of(geometry, resource.unit, geometry.all_mask)
        free = {one for one in everything if not mask_of(geometry, resource.unit, (one,)) & elsewhere}
        offered = life.kubelet.healthy[resource]
        assert offered == free, f"{resource}: {sorted(offered)} are offered, {sorted(free)} could be"
