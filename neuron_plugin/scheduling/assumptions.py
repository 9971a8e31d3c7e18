"""Which node filter names for a pod, and the set that the pod is assumed to get there until its bind comes.

kube-scheduler takes a single feasible node as it is, so filter names the best node alone. In the same step it assumes
the pod there, as kube-scheduler assumes pods in its cache: the next pod finds that set in use. Only a pod that the
watch shows is assumed, so nothing is kept for one that has ended. An assumption ends with the bind, with the pod, with
the pod's next filter call, or after some seconds. That next call means that something after filter refused the node. So
it leads to the next best node, then to two, to four and to all: no node is insisted on.

A gang (pods whose PodGroup has a ``minCount``) is planned as a whole at the first filter call of a cycle. If it fits,
each member is led to its place in the plan. If it does not, each is refused; where pods of lower priority could be
evicted, only those asked for last: kube-scheduler looks for victims once its own counts are used up. Other pods do not
see a plan, because kube-scheduler may give the cycle up without a word. All sets of a plan are assumed together when
the first of its members is bound.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from neuron_plugin.allocation import Capacity, Dialect, NeuronPod, NodeInfo, PlacementStrategy, PodUid, Rejection
from neuron_plugin.allocation.placement import assignment_of
from neuron_plugin.allocation.pod import assigned_allocations, mask_union
from neuron_plugin.backoff import Clock
from neuron_plugin.scheduling.state import UNKNOWN_NODE, AssumedPod, ClusterState
from neuron_plugin.topology import NO_CORES

EXPECTED_SECONDS = 10.0
"""How long a bind may be on its way: volumes and permits come before it. A later one chooses again."""
ONE_NODE_SECONDS = 2.0
"""The same where the caller named one node only: it may be asking what would be."""
WIDTHS = (1, 1, 2, 4)
"""How many nodes the first calls for a pod are answered with; later ones get all."""
GROUP_DOES_NOT_FIT = Rejection("group-does-not-fit", "The pod's group does not fit as a whole", may_pass=True)


class AssumptionEnding(enum.StrEnum):
    """How what filter had assumed ended; the label of its metric."""

    BOUND = "bound"
    """The bind came."""
    ELSEWHERE = "bound-elsewhere"
    """The bind came, for another node."""
    ASKED_AGAIN = "asked-again"
    """The pod's next filter call came: something after filter refused the node."""
    EXPIRED = "expired"
    """No bind came in time."""
    POD_ENDED = "pod-ended"
    """The pod is gone, or was bound by others."""


@dataclass(slots=True)
class _Lead:
    """How often a pod was led, to which nodes, and whether it is assumed on the last of them."""

    calls: int = 0
    nodes: set[str] = field(default_factory=set)
    assumed: bool = False


@dataclass(frozen=True, slots=True)
class _Plan:
    """Places for the waiting members of a gang, as of a version of the state; ``asked`` are those led there."""

    version: tuple[int, int]
    places: dict[PodUid, AssumedPod]
    fits: bool
    may_preempt: bool
    avoided: frozenset[str]
    asked: set[PodUid] = field(default_factory=set)


class Assumptions:
    """What filter has promised and binds take up. One event loop owns it, and nothing here waits."""

    def __init__(
        self,
        state: ClusterState,
        dialects: Collection[Dialect],
        strategy: PlacementStrategy,
        clock: Clock,
        unix_ns: Callable[[], int],
    ) -> None:
        self.endings: Counter[AssumptionEnding] = Counter()
        self._state = state
        self._dialects = dialects
        self.strategy = strategy
        self._clock = clock
        self._unix_ns = unix_ns
        self._leads: dict[PodUid, _Lead] = {}
        self._plans: dict[tuple[str, str], _Plan] = {}

    def lead(self, pod: NeuronPod, called: Container[str], *, one_node: bool = False) -> list[str] | None:
        """The nodes of those ``called`` that filter names for an unbound pod, assumed there if it is one.

        Empty where none fits, None for all that fit. ``one_node`` says that no more than one was called.
        """
        self._end(pod.uid, AssumptionEnding.ASKED_AGAIN)
        if pod.group in self._state.min_counts:  # its group is known, and must be placed as a whole
            return self._lead_member(pod, called)
        known = pod.uid in self._state.pods
        lead = self._leads.setdefault(pod.uid, _Lead()) if known else _Lead()
        names = self._choose_nodes(pod, called, lead)
        lead.calls += bool(names)
        if names and len(names) == 1:
            lead.nodes.update(names)
            seconds = ONE_NODE_SECONDS if one_node else EXPECTED_SECONDS
            made = self.choose(pod, names[0])
            if known and isinstance(made, AssumedPod):
                self._state.assume(replace(made, until=made.since + seconds))
                lead.assumed = True
        return names

    def _choose_nodes(self, pod: NeuronPod, called: Container[str], lead: _Lead) -> list[str] | None:
        strategy = pod.strategy_or(self.strategy)
        answers = self._state.choices.answers(pod.requests, strategy)
        kept = self._state.reserved.get(pod.uid)
        is_called = kept is not None and kept.node in called and kept.node not in lead.nodes
        if kept and is_called and isinstance(self.choose(pod, kept.node), AssumedPod):
            return [kept.node]
        if not (best := answers.best(called, lead.nodes)):
            lead.nodes.clear()
            best = answers.best(called)
        if not best:
            return []
        if pod.rules.prefers_nodes:
            all_of_them = strategy is PlacementStrategy.SPREAD or lead.calls > 1
            return None if all_of_them else answers.equals(best, called, lead.nodes)
        if lead.calls >= len(WIDTHS):
            return None
        names = [best]
        while len(names) < WIDTHS[lead.calls] and (best := answers.best(called, {*lead.nodes, *names})):
            names.append(best)
        return names

    def refused_elsewhere(self, uid: PodUid) -> Collection[str]:
        """The nodes that filter named alone for this pod in vain, once it names several."""
        lead = self._leads.get(uid)
        return lead.nodes if lead and lead.calls > WIDTHS.count(1) else ()

    def choose(self, pod: NeuronPod, node: str) -> AssumedPod | str:
        """The pod with the best sets of the moment on a node, those that it is assumed to have first; or why not."""
        if isinstance(pod.request, Rejection):
            return pod.request.detail
        if not pod.request:
            return AssumedPod(replace(pod, node=node), (), self._clock.now())
        earlier, kept = self._state.assumed.get(pod.uid), self._state.reserved.get(pod.uid)
        info = self._state.nodes.get(node)
        capacity = info.capacity if info else UNKNOWN_NODE
        is_here = (earlier is not None and earlier.pod.node == node) or pod.promised == node
        if info is None or isinstance(capacity, Rejection) or not (is_here or (kept and kept.node == node)):
            return self._choose_on(pod, node, capacity)
        own_mask = info.ledger.mask_of(pod.uid)
        if pod.promised == node and own_mask:
            return AssumedPod(replace(pod, node=node), (), self._clock.now())  # the pod says it all
        if earlier and earlier.pod.node == node and own_mask & capacity.healthy_mask == own_mask:
            return replace(earlier, since=self._clock.now(), until=inf)
        capacity = self._state.imagine(info.node, without=pod.uid).capacity
        return self._choose_on(pod, node, capacity)

    def _choose_on(self, pod: NeuronPod, node: str, capacity: Capacity | Rejection) -> AssumedPod | str:
        """The pod with the best sets that a node of this capacity has."""
        if isinstance(capacity, Rejection):
            return capacity.text
        placement = capacity.place(pod.requests)
        if isinstance(placement, Rejection):
            return placement.text
        if Dialect.NEURON_PLUGIN not in self._dialects and len({container.resource for container in pod.requests}) > 1:
            return f"pod {pod.reference} asks for two resources, which the vendor's dialect cannot say"
        assignment = assignment_of(capacity.geometry, placement, self._unix_ns())
        bound = replace(pod, node=node, assignment=assignment)
        return AssumedPod(bound, self._dialects, self._clock.now(), chosen_from=capacity)

    def begin_bind(self, pod: NeuronPod, node: str) -> None:
        """A pod's bind has come. For the first of a gang, its whole plan is assumed."""
        lead, assumed = self._leads.get(pod.uid), self._state.assumed.get(pod.uid)
        if lead and lead.assumed and assumed and assumed.expected:
            lead.assumed = False
            here = assumed.pod.node == node
            self.endings[AssumptionEnding.BOUND if here else AssumptionEnding.ELSEWHERE] += 1
        plan = self._plans.get(pod.group) if pod.group else None
        if pod.group is None or plan is None or not plan.fits or pod.uid not in plan.asked:
            return
        del self._plans[pod.group]
        members = self._state.members.get(pod.group, {})
        for uid in plan.asked - self._state.assumed.keys():
            member, place = members.get(uid), plan.places[uid]
            if member and not member.node and self._is_open(place):
                now = self._clock.now()
                self._state.assume(replace(place, since=now, until=now + EXPECTED_SECONDS))
                self._leads[uid] = _Lead(assumed=uid != pod.uid)

    def expire(self) -> None:
        """End what no bind has come for, and forget the pods that are bound or gone."""
        now = self._clock.now()
        for uid, assumed in list(self._state.assumed.items()):
            if assumed.until <= now:
                self._end(uid, AssumptionEnding.EXPIRED)
        for uid, lead in list(self._leads.items()):
            pod = self._state.pods.get(uid)
            if pod is None or pod.node:
                self.endings[AssumptionEnding.POD_ENDED] += lead.assumed
                del self._leads[uid]
        for group in self._plans.keys() - self._state.members.keys():
            del self._plans[group]

    def _end(self, uid: PodUid, ending: AssumptionEnding) -> None:
        """End what filter has assumed of a pod, if anything."""
        assumed = self._state.assumed.get(uid)
        if assumed and assumed.expected:
            self._state.forget(uid)
            self.endings[ending] += 1
            if lead := self._leads.get(uid):
                lead.assumed = False

    def _lead_member(self, pod: NeuronPod, called: Container[str]) -> list[str]:
        plan = self.plan_of(pod)
        if not (plan.fits or plan.may_preempt):
            return []
        if pod.uid not in plan.places and not plan.fits:
            known = self._state.pods
            alike = (uid for uid in plan.places if uid in known and known[uid].requests == pod.requests)
            if other := next((uid for uid in alike if uid not in plan.asked), None):
                plan.places[pod.uid] = plan.places.pop(other)
        if pod.uid not in plan.places:
            return []
        place = plan.places[pod.uid]
        if place.pod.node not in called or not self._is_open(place):
            others = [other for uid, other in plan.places.items() if uid != pod.uid]
            changed = {member.pod.node: self._imagine(member.pod.node, others) for member in others}
            assumed = self._place(pod, called, (), changed)
            if assumed is None:
                return []
            plan.places[pod.uid] = place = assumed
        plan.asked.add(pod.uid)
        return [place.pod.node]

    def has_no_room(self, pod: NeuronPod) -> bool:
        """Whether all pods of this member's gang are refused for as long as the state is this one."""
        plan = self._plans.get(pod.group) if pod.group else None
        return plan is not None and not (plan.fits or plan.may_preempt)

    def has_place(self, pod: NeuronPod) -> bool:
        """Whether this member of a gang was led to a node, so that only others need victims."""
        plan = self._plans.get(pod.group) if pod.group else None
        return plan is not None and pod.uid in plan.asked

    def plan_of(self, pod: NeuronPod) -> _Plan:
        """The plan of the pod's gang: a new one if the pod was led by the last one, or the state is another."""
        group = pod.group or ("", "")
        version, min_count = self._state.version, self._state.min_counts.get(group, 0)
        last = self._plans.get(group)
        is_current = last is not None and last.version == version
        if last and pod.uid not in last.asked and (is_current or last.asked):
            return last
        avoided = frozenset[str]()
        if last and last.fits and last.asked == last.places.keys():  # the whole gang was led there, in vain
            avoided = last.avoided.union(place.pod.node for place in last.places.values())
        members = self._state.members.get(group, {})
        waiting = [
            member
            for uid, member in members.items()
            if not (member.place or member.terminating or uid in self._state.assumed)
        ]
        missing = min_count - sum(bool(member.place) or uid in self._state.assumed for uid, member in members.items())
        places = self._places(waiting, avoided)
        if avoided and len(places) < max(missing, len(waiting)):
            avoided, places = frozenset(), self._places(waiting, ())
        may_preempt = any(other.priority < pod.priority for other in self._state.pods.values() if other.node)
        plan = _Plan(version, places, len(places) >= missing, may_preempt, avoided)
        self._plans[group] = plan
        return plan

    def _places(self, waiting: Collection[NeuronPod], avoided: Collection[str]) -> dict[PodUid, AssumedPod]:
        """A place for each that fits beside the others, the largest first."""
        changed: dict[str, NodeInfo] = {}
        places: dict[PodUid, AssumedPod] = {}
        for pod in sorted(
            waiting, key=lambda member: (-sum(container.count for container in member.requests), member.reference.name)
        ):
            if pod.requests and (place := self._place(pod, self._state.nodes, avoided, changed)):
                places[pod.uid] = place
                changed[place.pod.node] = self._imagine(place.pod.node, places.values())
        return places

    def _place(
        self, pod: NeuronPod, called: Container[str], avoided: Container[str], changed: Mapping[str, NodeInfo]
    ) -> AssumedPod | None:
        """The pod on its best node while some nodes are ``changed``."""
        node = self._state.choices.answers(pod.requests, pod.strategy_or(self.strategy)).best(called, avoided, changed)
        info = changed.get(node) or self._state.nodes.get(node)
        choice = self._choose_on(pod, node, info.capacity) if info else ""
        return choice if isinstance(choice, AssumedPod) else None

    def _imagine(self, node: str, places: Iterable[AssumedPod]) -> NodeInfo:
        beside = [place.pod for place in places if place.pod.node == node]
        return self._state.imagine(self._state.nodes[node].node, beside=beside)

    def _is_open(self, place: AssumedPod) -> bool:
        """Whether the sets of a plan are still free."""
        info = self._state.nodes.get(place.pod.node)
        capacity = info.capacity if info else UNKNOWN_NODE
        if isinstance(capacity, Rejection):
            return False
        allocations = assigned_allocations(place.pod, capacity.geometry)
        mask = NO_CORES if isinstance(allocations, Rejection) else mask_union(allocations)
        return bool(mask) and mask & capacity.free_mask == mask
