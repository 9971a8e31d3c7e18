"""The life of a node: its pods, a model of its kubelet, and what must hold all the time.

The model hands out ids as the kubelet does: random order of admission, a preference only for new ids, a random part of
an init container's ids without asking, calls cut off by a restart and made again. The oracle is what the containers
received: no core may be in two live pods, nor in two lasting containers of one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from neuron_plugin.allocation.annotations import ContainerIds
from neuron_plugin.allocation.ledger import Holding, PodUid
from neuron_plugin.allocation.placement import Placement, place
from neuron_plugin.allocation.refusals import Refusal
from neuron_plugin.allocation.requests import ContainerRequest, ContainerSpec, Kind, pod_request
from neuron_plugin.allocation.resources import Resource, ids_of, mask_of
from neuron_plugin.kubelet.devices import AllocationRefusedError
from neuron_plugin.kubelet.pod_resources import ContainerDevices, PodDevices
from neuron_plugin.plugin.annotate import confirmed_annotations, inherited_annotations
from neuron_plugin.plugin.confirm import GRACE_SECONDS, Confirmation
from neuron_plugin.plugin.machine import advertised
from neuron_plugin.plugin.node import NodeState
from neuron_plugin.plugin.pods import NodePod
from neuron_plugin.topology.geometry import Geometry
from tests.plugin.world import (
    CORE,
    FakeClock,
    a_state,
    an_allocator,
    app,
    assignment,
    at_once,
    given_mask,
    init,
    machine,
    pod,
    shuffled,
    sidecar,
    texts,
)

SHAPES: tuple[tuple[ContainerSpec, ...], ...] = (
    (app(1),),
    (app(1),),
    (app(2, CORE),),
    (app(1, CORE), app(1, CORE, "second")),
    (init(2, CORE), app(2, CORE)),
    (init(4, CORE), app(2, CORE)),
    (init(4, CORE), sidecar(1, CORE), app(2, CORE)),
    (init(1), app(2)),
    (app(1), app(1, CORE, "second")),
)


@dataclass
class LivePod:
    """A pod as the API server and the kubelet have it, and what its containers received."""

    name: str
    containers: tuple[ContainerSpec, ...]
    annotations: dict[str, str] = field(default_factory=dict)
    admitted: bool = False
    recorded: dict[str, tuple[Resource, frozenset[int]]] = field(default_factory=dict)
    given: dict[str, int] = field(default_factory=dict)

    @property
    def seen(self) -> NodePod:
        return pod(self.name, *self.containers, annotations=self.annotations)

    @property
    def lasting(self) -> Iterator[tuple[str, int]]:
        kinds = {part.name: part.kind for part in self.containers}
        return ((name, mask) for name, mask in self.given.items() if kinds[name] is not Kind.INIT)

    @property
    def mask(self) -> int:
        mask = 0
        for each in self.given.values():
            mask |= each
        return mask


class CutOffError(Exception):
    """The kubelet restarted while an Allocate was under way."""


class RejectedError(Exception):
    """The kubelet failed the pod."""


class NodeLife:
    """One node for a while; ``seed`` decides what Go leaves to the order of its maps."""

    def __init__(self, geometry: Geometry, seed: int) -> None:
        self.geometry = geometry
        self.chance = Random(seed)  # noqa: S311 - the order of Go's maps
        self.clock = FakeClock()
        self.pods: dict[str, LivePod] = {}
        self.names = itertools.count(1)
        self.start_plugin()

    def start_plugin(self) -> None:
        self.state: NodeState = a_state(self.geometry, clock=self.clock)
        self.confirmation = Confirmation(self.state, self, self.on_confirmed, cluster=True)
        self.allocator = an_allocator(self.state, look_at_holders=self.confirmation.look_again)

    # What happens.

    def bind(self, containers: tuple[ContainerSpec, ...], *, by_extender: bool) -> str:
        """A pod is bound to this node, with a decision or without, and the watch shows it."""
        name = f"p{next(self.names)}"
        live = LivePod(name, containers)
        if by_extender:
            live.annotations = self.decision(containers)
        self.pods[name] = live
        self.state.see_pod(live.seen)
        return name

    def admit(self, name: str, *, cut_off: bool = False) -> None:
        """The kubelet admits a pod; ``cut_off``: it restarts in one of the calls, and admits the pod again."""
        live = self.pods[name]
        certain = self.must_get_its_set(live) and not cut_off
        try:
            if cut_off:
                self.walk(live, cut_after=self.chance.randrange(len(live.containers)))
            self.walk(live)
        except RejectedError:
            if certain:
                raise
            self.end(name)
            return
        live.admitted = True
        if certain:
            for part in self.decided_sets(live):
                assert ids_of(self.geometry, part.request.resource.unit, live.given[part.request.container]) == part.ids

    def end(self, name: str) -> None:
        """The containers are dead, and the API server says so."""
        del self.pods[name]
        self.state.forget_pod(PodUid(f"uid-{name}"))

    def confirm(self) -> None:
        """The confirmation asks, in a quiet moment; its patches arrive."""
        self.clock.now += 2
        at_once(self.confirmation._ask())

    def wait_long(self) -> None:
        """Longer than any stand-in is kept that the kubelet does not list."""
        self.confirm()
        self.clock.now += GRACE_SECONDS
        self.confirm()

    def restart_plugin(self, *, list_first: bool) -> None:
        """A new process: the kubelet's account, then the watch; or the other way about."""
        self.start_plugin()
        if list_first:
            at_once(self.confirmation.rebuild())
        for live in self.pods.values():
            self.state.see_pod(live.seen)
        self.state.see_all_pods({f"uid-{name}" for name in self.pods})
        if not list_first:
            at_once(self.confirmation.rebuild())

    @property
    def can_restart(self) -> bool:
        """What init containers hold is known to nobody but this process until it is annotated."""
        return all(live.recorded.keys() <= self.known_containers(live) for live in self.pods.values())

    # What must hold.

    def no_core_is_in_two_live_pods(self) -> None:
        used = 0
        for live in self.pods.values():
            assert not used & live.mask
            used |= live.mask

    def no_core_is_in_two_lasting_containers(self) -> None:
        for live in self.pods.values():
            used = 0
            for _, mask in live.lasting:
                assert not used & mask
                used |= mask

    def what_is_given_is_held(self) -> None:
        used = self.state.ledger.used_mask
        for live in self.pods.values():
            assert not live.mask & ~used

    def check(self) -> None:
        """What holds at every moment."""
        self.no_core_is_in_two_live_pods()
        self.no_core_is_in_two_lasting_containers()
        self.what_is_given_is_held()

    def finish(self) -> None:
        """What holds at rest, and when all is over."""
        self.confirm()
        for live in self.pods.values():
            if live.admitted:
                self.check_at_rest(live)
        for name in list(self.pods):
            self.end(name)
        self.wait_long()
        assert not self.state.ledger.holders

    def check_at_rest(self, live: LivePod) -> None:
        """The ledger and the annotations say what the containers have."""
        holder = self.state.ledger.holders[PodUid(f"uid-{live.name}")]
        lasting = dict(live.lasting)
        assert {one.container: one.mask for one in holder.holdings if one.container in lasting} == lasting
        decision = live.seen.decision
        if decision is None:
            return
        assert decision.allocated
        for part in decision.containers:
            mask = mask_of(self.geometry, part.request.resource.unit, part.ids)
            if part.request.container in lasting:
                assert mask == lasting[part.request.container]

    # The extender, as far as it matters here.

    def decision(self, containers: tuple[ContainerSpec, ...]) -> dict[str, str]:
        """A placement on what no annotation claims, if there is one."""
        free = int(self.geometry.all_mask)
        for live in self.pods.values():
            decision = live.seen.decision
            for part in decision.containers if decision else ():
                free &= ~mask_of(self.geometry, part.request.resource.unit, part.ids)
        placement = place(self.geometry, free, pod_request(containers))
        return {} if isinstance(placement, Refusal) else self.annotated(containers, placement)

    def annotated(self, containers: tuple[ContainerSpec, ...], placement: Placement) -> dict[str, str]:
        sets = [ids_of(self.geometry, part.request.resource.unit, part.mask) for part in placement]
        return assignment(self.geometry, containers, sets, next(self.names))

    def must_get_its_set(self, live: LivePod) -> bool:
        """Whether nothing stands between a pod and what was decided for it: nobody has it, nobody else waits."""
        alone = all(PodUid(f"uid-{name}") in self.state.confirmed for name in self.pods if name != live.name)
        masks = [mask_of(self.geometry, part.request.resource.unit, part.ids) for part in self.decided_sets(live)]
        return alone and bool(masks) and not any(mask & self.state.ledger.used_mask for mask in masks)

    def decided_sets(self, live: LivePod) -> tuple[ContainerIds, ...]:
        decision = live.seen.decision
        return decision.containers if decision else ()

    def on_confirmed(self, seen: NodePod, holdings: tuple[Holding, ...]) -> None:
        heir = self.state.heir_of(seen)
        if heir:
            self.patch(heir, inherited_annotations(self.geometry, heir, seen))
        self.patch(seen, confirmed_annotations(self.geometry, seen, holdings, 1))

    def patch(self, seen: NodePod, annotations: dict[str, str | None]) -> None:
        live = self.pods[seen.pod.name]
        live.annotations = {key: value for key, value in (live.annotations | annotations).items() if value is not None}
        self.state.see_pod(live.seen)

    def known_containers(self, live: LivePod) -> set[str]:
        """Containers that a new process can know of: those the kubelet lists, and all once they are annotated."""
        decision = live.seen.decision
        if decision and decision.allocated:
            return {part.name for part in live.containers}
        if any(part.kind is Kind.INIT for part in live.containers):
            return set()
        return {part.name for part in live.containers}

    # The kubelet.

    def walk(self, live: LivePod, cut_after: int = -1) -> None:
        """Admission: container by container, what is recorded already is passed over."""
        reusable: dict[Resource, set[int]] = {}
        for place_, part in enumerate(pod_request(live.containers)):
            if part.container not in live.recorded:
                ids = self.allocated(live, part, reusable.setdefault(part.resource, set()), cut=place_ == cut_after)
                if ids is None:
                    return
                live.recorded[part.container] = (part.resource, ids)
            ids = live.recorded[part.container][1]
            left = reusable.setdefault(part.resource, set())
            reusable[part.resource] = left | ids if part.kind is Kind.INIT else left - ids

    def allocated(
        self, live: LivePod, part: ContainerRequest, reusable: set[int], *, cut: bool
    ) -> frozenset[int] | None:
        listed = advertised(machine(self.geometry), self.state.ledger, part.resource)
        healthy = {int(each.id) for each in listed if each.healthy}
        taken = set(shuffled(self.chance, reusable)[: part.count])
        if len(taken) < part.count:
            available = healthy - self.recorded_ids(part.resource)
            if len(available) < part.count - len(taken):
                raise RejectedError
            offer, must = texts(shuffled(self.chance, available | taken)), texts(taken)
            answer = at_once(self.allocator.preferred(part.resource.value, offer, must, part.count))
            assert len(set(answer)) == part.count
            assert set(must) <= set(answer) <= set(offer)
            taken = {int(each) for each in answer}
        try:
            allocation = self.allocator.allocate(part.resource.value, texts(shuffled(self.chance, taken)))
        except AllocationRefusedError as error:
            raise RejectedError from error
        if cut:
            return None
        live.given[part.container] = given_mask(self.geometry, allocation)
        return frozenset(taken)

    def recorded_ids(self, resource: Resource) -> set[int]:
        found: set[int] = set()
        for live in self.pods.values():
            for of_resource, ids in live.recorded.values():
                if of_resource is resource:
                    found |= ids
        return found

    def said(self, live: LivePod) -> PodDevices:
        kinds = {part.name: part.kind for part in live.containers}
        return PodDevices(
            "default",
            live.name,
            tuple(
                ContainerDevices(container, resource.value, tuple(texts(sorted(ids))))
                for container, (resource, ids) in live.recorded.items()
                if kinds[container] is not Kind.INIT
            ),
        )

    async def get(self, namespace: str, name: str) -> PodDevices | None:
        del namespace
        return self.said(self.pods[name]) if name in self.pods else None

    async def list(self) -> tuple[PodDevices, ...]:
        return tuple(self.said(live) for live in self.pods.values())
