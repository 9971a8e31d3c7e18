"""Placing gated pods: choose and assume in one step, then write node, assignment and the end of the gate.

A single pod takes one PATCH; a pod of a group is planned by one and released by another. Two things come before it: on
a node with little CPU or memory left the pod is nominated, and its claims are allocated.

One step looks at all pods that may fit, without waiting once, so nothing can come between a choice and the next. Each
PATCH is sent by itself and carries the version of the pod that was read. A pod is counted on its node from the choice
on: as assumed until the watch shows the promise on the pod, then by the pod itself, until it is bound or ends.

A PATCH whose answer is lost may have been written. The pod then stays assumed until a consistent read says what became
of it. Nothing is sent unless this replica's term as leader lasts longer than the request may take.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from math import inf
from typing import NoReturn

from neuron_plugin.allocation import (
    Dialect,
    NeuronPod,
    NodeInfo,
    Placement,
    PlacementStrategy,
    PodUid,
    Rejection,
    Resource,
)
from neuron_plugin.allocation.keys import GATE
from neuron_plugin.allocation.node_rules import PodRules
from neuron_plugin.allocation.placement import assignment_of
from neuron_plugin.allocation.pod import PodKind
from neuron_plugin.backoff import CLOCK, Clock
from neuron_plugin.cluster import ApiError, ApiRequest, ApiServer, ClusterError, Election
from neuron_plugin.cluster.api import send
from neuron_plugin.cluster.pods import PODS
from neuron_plugin.decision_log import DecisionLog
from neuron_plugin.gates import writes
from neuron_plugin.gates.claims import ClaimWriter, TermEndsError, results_of
from neuron_plugin.gates.queue import Queue
from neuron_plugin.planning import PACK, place_together, why_not_judged
from neuron_plugin.scheduling.assumed import log_choice, may_have_happened
from neuron_plugin.scheduling.events import about_pod, write_event
from neuron_plugin.scheduling.leadership import Readiness
from neuron_plugin.scheduling.metrics import ExtenderMetrics
from neuron_plugin.scheduling.moving import owner_of
from neuron_plugin.scheduling.state import AssumedPod, ClusterState
from neuron_plugin.scheduling.volumes import ClaimedVolumes

RELEASED_PLAINLY = "NeuronReleasedPlainly"
FORBIDDEN = "NeuronPlacementForbidden"
"""The reason of the event on a pod that this account, or a policy, may not place."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GateTimes:
    """Seconds. ``write`` ends a PATCH. ``gather`` is how long a step waits for more pods to come.

    ``rest`` is how long the process sleeps between two steps while ``MANY_IN_FLIGHT`` writes are under way. The API
    server is behind then, and nothing that is done here sooner makes it faster. What has come meanwhile, answers and
    events, is then read and handled in one go, which takes a third less CPU a pod than one by one.

    ``leader`` is how long the first pod of a group may wait for the others before it is placed alone. A pod of which
    the API server refused a write waits for ``refused``. ``tick`` is the longest time between two steps.
    """

    write: float = 2.5
    gather: float = 0.002
    rest: float = 0.015
    leader: float = 5.0
    refused: float = 10.0
    tick: float = 1.0


TIMES = GateTimes()
MANY_IN_FLIGHT = 16
"""With so many PATCHes under way the API server is behind: see ``GateTimes.rest``."""
MOST_IN_FLIGHT = 64
"""PATCHes under way at one time. Their order does not matter: each pod has its own set."""


class Placer:
    """The gated pods of one replica; only the leader places any."""

    def __init__(
        self,
        api: ApiServer,
        state: ClusterState,
        readiness: Readiness,
        metrics: ExtenderMetrics,
        *,
        instance: str,
        election: Election | None = None,
        dialects: Collection[Dialect] = (Dialect.NEURON_PLUGIN,),
        strategy: PlacementStrategy = PACK,
        decisions: DecisionLog | None = None,
        claims: ClaimWriter | None = None,
        times: GateTimes = TIMES,
        clock: Clock = CLOCK,
        unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.queue = Queue()
        self.volumes = ClaimedVolumes(api, clock)
        self._api = api
        self._state = state
        self._readiness = readiness
        self._metrics = metrics
        self._instance = instance
        self._election = election
        self._dialects = dialects
        self._strategy = strategy
        self._decisions = decisions or DecisionLog()
        self.claims = claims
        self._times = times
        self._clock = clock
        self._unix_ns = unix_ns
        self._seen = -1
        self._judged_capacity = -1
        self._in_flight: dict[PodUid, asyncio.Task[None]] = {}
        self._planned: set[tuple[str, str]] = set()
        """Groups of which some pod has its placement and is gated still."""
        self._allocated: set[PodUid] = set()
        """Pods that have their place by claims that were allocated, and are gated still."""
        self._avoided: dict[tuple[str, str], float] = {}
        self._undecided: set[PodUid] = set()
        """Pods on which something was written, and the watch does not show yet what came of it."""
        self._answered: dict[PodUid, tuple[str, float]] = {}
        """By pod, the version on which a write was answered, and until when it is not written on again."""

    @property
    def under_way(self) -> int:
        """Writes that have not ended."""
        return len(self._in_flight)

    @property
    def has_judged(self) -> bool:
        """Whether all pods that wait have been looked at once."""
        return self._judged_capacity >= 0

    async def run(self) -> NoReturn:
        """Place pods as they come and as room comes, until cancelled."""
        while True:
            seen = self._state.changes.version
            self.step()
            await self._state.changes.wait(seen, within_seconds=self._times.tick)
            if len(self._in_flight) >= MANY_IN_FLIGHT:
                self._clock.halt(self._times.rest)
            await self._clock.sleep(self._times.gather)  # what comes together is placed together

    async def drain(self) -> None:
        """Wait until the writes under way have ended; each does by its own deadline."""
        while self._in_flight:
            await asyncio.wait(self._in_flight.values())

    def step(self) -> None:
        """Place all pods that fit now."""
        self._follow()
        if self._readiness.why_not or not self._may_write():
            return
        if self._state.capacity_version != self._judged_capacity:
            self.queue.hopeless.clear()
        self.queue.hopeless -= {kind for kind in self.queue.hopeless if self._waits_for_volumes(kind)}
        for group in list(self._planned):
            self._complete(group)
        for uid in list(self._allocated):
            self._release_allocated(uid)
        for kind, pod in self.queue.in_order():
            if len(self._in_flight) >= MOST_IN_FLIGHT:
                break
            placed = self._place_group(kind) if kind.group else self._place_pod(pod)
            if not placed:
                self.queue.hopeless.add(kind)
        else:
            self._judged_capacity = self._state.capacity_version

    def _follow(self) -> None:
        """Bring the queue to what the state shows."""
        changes = self._state.changes
        if not changes.knows(self._seen):
            for kind in self.queue.kinds():
                for pod in self.queue.pods(kind):
                    self.queue.remove(pod.uid)
            for pod in self._state.gated.values():
                self._put(pod)
            pods = self._state.pods.values()
            self._planned = {pod.group for pod in pods if pod.group and pod.gated and pod.promised}
            self._allocated = {pod.uid for pod in pods if pod.gated and pod.promised and not pod.group}
        else:
            for change in changes.after(self._seen):
                record = change.after or change.before
                if isinstance(record, NeuronPod):
                    gated = self._state.gated.get(record.uid)
                    if record.group and record.gated and record.promised:
                        self._planned.add(record.group)
                    elif record.gated and record.promised:
                        self._allocated.add(record.uid)
                    if gated:
                        self._put(gated)
                    else:
                        self.queue.remove(record.uid)
                        self._answered.pop(record.uid, None)
        self._seen = changes.version
        for uid in list(self._undecided):
            self._undecided.discard(uid)
            if gated := self._state.gated.get(uid):
                self._put(gated)

    def _put(self, pod: NeuronPod) -> None:
        """A gated pod waits for us once ours is its last gate, and nothing may be written on it already."""
        if pod.uid in self._in_flight:
            return  # it is out of the queue, and is looked at again once the write has ended
        if pod.uid in self._state.assumed or self._is_answered(pod):
            self._undecided.add(pod.uid)
        elif pod.rules.gates == (GATE,):
            self.queue.put(pod)
            return
        self.queue.remove(pod.uid)

    def _is_answered(self, pod: NeuronPod) -> bool:
        version, until = self._answered.get(pod.uid, ("", 0.0))
        return version == pod.version and self._clock.now() < until

    def _may_write(self) -> bool:
        return self._election is None or self._election.seconds_left() > self._times.write

    def _check_term(self) -> None:
        if not self._may_write():
            raise TermEndsError("this replica's term as leader may end before an answer comes")

    def release_plainly(self, pod: NeuronPod, reason: str) -> None:
        """Hand a pod to its scheduler without a place."""
        if pod.uid not in self._in_flight and self._may_write() and not self._readiness.why_not:
            self._send(pod, writes.release_plainly(pod), reason)

    def avoid(self, owner: str, node: str, until: float) -> None:
        """Place no pod of this owner on this node for a while: its scheduler did not find it good."""
        self._avoided[owner, node] = until

    # One pod.

    def _place_pod(self, pod: NeuronPod) -> bool:
        """Place a pod, or hand it to its scheduler where it cannot be judged; whether either was done."""
        if self._state.refusal(pod):
            return False  # no scheduler could serve it: its event says why, and it waits until it is changed
        if self._reads_volumes([pod]):
            return True
        kept, called = self._state.reserved.get(pod.uid), self._open_to(pod)
        if reason := self._why_not_judged(pod, called):
            if pod.rules.claim_driver:
                return False  # no scheduler can allocate its claims: its event says why, and it waits
            self._send(pod, writes.release_plainly(pod), reason)
            return True
        answers = self._state.choices.answers(pod.requests, pod.strategy_or(self._strategy))
        node = kept.node if kept and kept.node in called else ""
        assumed = self._choose(pod, node) if node else None
        if assumed is None and (node := answers.best(called, self._skipped(pod)) or ""):
            assumed = self._choose(pod, node)
        if assumed is None:
            return False
        self._state.assume(assumed)
        self._hand_over(pod, node, partial(writes.place, node=node, annotations=assumed.annotations))
        return True

    def why_not_judged(self, pod: NeuronPod) -> str:
        """Why it cannot be judged where a pod may go; empty if it can."""
        return self._why_not_judged(pod, self._open_to(pod))

    def _why_not_judged(self, pod: NeuronPod, called: Collection[str]) -> str:
        """Why it cannot be judged whether a pod may go to the nodes ``called``; empty if it can."""
        if pod.rules.resource_claims:
            return "it has resource claims"
        if not (pod.request or pod.rules.claim_driver):
            return f"it has the gate and asks for none of {', '.join(Resource)}"
        if not self.volumes.are_bound(pod):
            return "not all of its volumes are there yet"
        is_kept_off_all = bool(pod.rules.claim_driver and not called and self.feasible(pod))
        if is_kept_off_all or self._state.is_kept_off(pod, called):
            return "the anti-affinity of other pods keeps it off some nodes"
        return why_not_judged(pod)

    def _open_to(self, pod: NeuronPod) -> Collection[str]:
        """The nodes where a pod may be placed.

        A pod that asks by claims cannot be left to its scheduler: it gets a node that no other pod keeps it off.
        """
        called = self.feasible(pod)
        if pod.rules.claim_driver and self._state.is_kept_off(pod, called):
            return {name for name in called if not self._state.is_kept_off(pod, (name,))}
        return called

    def feasible(self, pod: NeuronPod) -> Collection[str]:
        """The nodes that kube-scheduler leaves to a pod now."""
        return self._state.choices.feasible(pod.rules, self.volumes.of(pod) or ())

    def _waits_for_volumes(self, kind: PodKind) -> bool:
        """Whether the volumes of a kind are to be read again: a pod that waits for one is not told of it by a watch."""
        pods = self.queue.pods(kind) if kind.rules.claims or kind.group else ()
        return any(not self.volumes.are_known(pod) for pod in pods)

    def _reads_volumes(self, pods: Iterable[NeuronPod]) -> bool:
        """Whether claims of these pods are to be read first; they are looked at again once they are."""
        unknown = [pod for pod in pods if not self.volumes.are_known(pod)]
        for pod in unknown:
            self._start(pod.uid, self._read_volumes(pod))
        return bool(unknown)

    async def _read_volumes(self, pod: NeuronPod) -> None:
        try:
            await self.volumes.read([pod])
        except ClusterError as error:
            _log.info("volumes not read", extra={"pod": str(pod.reference), "error": str(error)})
            await self._clock.sleep(self._times.refused)

    def _skipped(self, pod: NeuronPod) -> set[str]:
        """The nodes that other pods of the same owner could not get on to lately."""
        now = self._clock.now()
        self._avoided = {key: until for key, until in self._avoided.items() if until > now}
        return {node for owner, node in self._avoided if pod.controller and owner == owner_of(pod)}

    def _choose(self, pod: NeuronPod, node: str) -> AssumedPod | None:
        """The pod with the best sets of a node; None where there are none."""
        info = self._state.nodes[node]
        capacity = info.capacity
        if pod.uid in self._state.reserved:
            capacity = self._state.imagine(info.node, without=pod.uid).capacity
        placement = capacity if isinstance(capacity, Rejection) else capacity.place(pod.requests)
        if isinstance(placement, Rejection) or isinstance(capacity, Rejection):
            return None
        return self._assume_at(pod, node, placement)

    def _assume_at(self, pod: NeuronPod, node: str, placement: Placement) -> AssumedPod | None:
        info = self._state.nodes[node]
        if info.inventory is None:
            return None
        by_claims = bool(pod.rules.claim_driver)  # then its assignment stands in its claims
        if by_claims and self.claims is None:
            return None
        only_vendors = not by_claims and Dialect.NEURON_PLUGIN not in self._dialects
        if only_vendors and len({container.resource for container in pod.requests}) > 1:
            return None  # two resources, which the vendor's dialect cannot say
        assignment = assignment_of(info.inventory.geometry, placement, self._unix_ns())
        return AssumedPod(
            replace(pod, promised=node, assignment=assignment),
            () if by_claims else self._dialects,
            self._clock.now(),
            chosen_from=None if isinstance(info.capacity, Rejection) else info.capacity,
            claims=results_of(pod, placement, info.inventory, node) if by_claims else (),
        )

    def _release_allocated(self, uid: PodUid) -> None:
        """Hand over a pod whose claims are allocated: by a leader before us, or for another of their pods."""
        pod = self._state.pods.get(uid)
        if pod is None or not (pod.gated and pod.promised):
            self._allocated.discard(uid)
            return
        under_way = uid in self._in_flight or uid in self._state.assumed or self._is_answered(pod)
        if not under_way and pod.rules.gates == (GATE,):
            self._hand_over(pod, pod.promised, partial(writes.place, node=pod.promised, annotations={}))

    # Groups.

    def _place_group(self, kind: PodKind) -> bool:
        """Place the waiting pods of a group that fit if the group has its least number then, else none.

        Each gets its placement first, with its gate still there; once the group is whole a second PATCH releases each
        (``_complete``). So the next leader can complete it. Gives whether some were placed.
        """
        group = kind.group or ("", "")
        members = self._state.members.get(group, {})
        planned = [pod for pod in members.values() if pod.gated and pod.promised]
        waiting = self.queue.pods(kind)
        least = self._state.least_of(group)
        placed = sum(bool(pod.place) or pod.uid in self._state.assumed for pod in members.values())
        missing = least - placed
        if len(waiting) < missing:
            return self._place_leader(waiting)
        if self._reads_volumes(waiting):
            return True
        if any(self._state.refusal(pod) or self.why_not_judged(pod) for pod in waiting):
            return False
        places = self._places(waiting)
        if len(places) < max(missing, 1):
            for pod in planned:  # of a plan that was cut off half way: others may need the room
                if pod.uid not in self._in_flight and not self._is_answered(pod):
                    self._start(pod.uid, self._write(pod, writes.withdraw, frees=True))
            return False
        chosen = {uid: self._assume_at(self._state.gated[uid], *place) for uid, place in places.items()}
        if any(assumed is None for assumed in chosen.values()):
            return False
        made = [assumed for assumed in chosen.values() if assumed]
        for assumed in made:
            self._state.assume(assumed)
            self.queue.remove(assumed.pod.uid)
        if len(made) == 1 and least <= 1 + sum(bool(pod.place) for pod in members.values() if not pod.gated):
            (assumed,) = made
            node = assumed.pod.promised
            self._hand_over(assumed.pod, node, partial(writes.place, node=node, annotations=assumed.annotations))
        else:
            for assumed in made:
                pod = assumed.pod
                self._send(pod, writes.plan(pod, pod.promised, assumed.annotations))
        return True

    def _places(self, pods: Iterable[NeuronPod]) -> dict[PodUid, tuple[str, Placement]]:
        """A node and its sets for each of some pods that fits beside the others."""
        coming: defaultdict[str, list[PodRules]] = defaultdict(list)

        def best(pod: NeuronPod, changed: Mapping[str, NodeInfo]) -> str:
            answers = self._state.choices.answers(pod.requests, pod.strategy_or(self._strategy))
            called, skipped = self._open_to(pod), self._skipped(pod)
            if (kept := self._state.reserved.get(pod.uid)) and kept.node in called:
                return kept.node
            while node := answers.best(called, skipped, changed):
                if node not in coming or self._state.choices.has_room(node, pod.rules, coming[node]):
                    coming[node].append(pod.rules)
                    return node
                skipped.add(node)
            return ""

        return place_together(pods, self._state.nodes, best)

    def _place_leader(self, waiting: Iterable[NeuronPod]) -> bool:
        """Place the pod that the others of its group wait for, alone: they are made once it is scheduled.

        Before it has waited long enough the group is looked at again at the next step.
        """
        leader = next((pod for pod in waiting if pod.leads_group), None)
        if leader is None:
            return False
        return leader.created > self._unix_ns() / 1e9 - self._times.leader or self._place_pod(leader)

    def _complete(self, group: tuple[str, str]) -> None:
        """Release the planned pods of a group of which no placement is missing any more."""
        members = self._state.members.get(group, {}).values()
        planned = [pod for pod in members if pod.gated and pod.promised]
        least = self._state.least_of(group)
        if not planned:
            self._planned.discard(group)
        is_whole = sum(bool(pod.place) for pod in members) >= least
        if is_whole and not any(pod.uid in self._state.assumed for pod in members):
            for pod in planned:
                if pod.uid not in self._in_flight and not self._is_answered(pod):
                    self._hand_over(pod, pod.promised, writes.release_planned)

    # Writing.

    def _send(self, pod: NeuronPod, request: ApiRequest, reason: str = "") -> None:
        """Send a PATCH; ``reason`` says why a pod is released plainly."""
        self._start(pod.uid, self._write(pod, lambda _: request, reason))

    def _hand_over(self, pod: NeuronPod, node: str, write: Callable[[NeuronPod], ApiRequest]) -> None:
        """Hand a placed pod to its scheduler, nominated before that where pods without Neuron may come first."""
        self._start(pod.uid, self._write(pod, write, nominee_of=node if self._state.is_tight(node) else ""))

    def _start(self, uid: PodUid, job: Coroutine[None, None, None]) -> None:
        """Do something about a pod that waits; it is not looked at before that has ended."""
        self.queue.remove(uid)
        self._in_flight[uid] = task = asyncio.create_task(job, name=f"place {uid}")
        task.add_done_callback(lambda _: self._ended(uid))

    def _ended(self, uid: PodUid) -> None:
        self._in_flight.pop(uid, None)
        self._undecided.add(uid)
        self._state.changes.wake()

    async def _write(
        self,
        pod: NeuronPod,
        write: Callable[[NeuronPod], ApiRequest],
        reason: str = "",
        nominee_of: str = "",
        *,
        frees: bool = False,
    ) -> None:
        uid, assumed, seen = pod.uid, self._state.assumed.get(pod.uid), pod
        try:
            if self.claims and frees:
                await self.claims.free(pod, timeout_seconds=self._times.write / 2)
            if self.claims and assumed and assumed.claims:
                await self.claims.allocate(
                    pod,
                    assumed.pod.promised,
                    assumed.claims,
                    timeout_seconds=self._times.write / 2,
                    check_term=self._check_term,
                )
                self._check_term()
            if nominee_of:
                answer = await send(self._api, writes.nominate(pod, nominee_of), timeout_seconds=self._times.write / 2)
                seen = replace(pod, version=PODS.decode(answer).resource_version)
            if assumed and (nominee_of or assumed.claims) and self._state.assumed.get(uid) is assumed:
                assumed = replace(assumed, since=self._clock.now())  # this write begins now
                self._state.assume(assumed)
            await send(self._api, write(seen), timeout_seconds=self._times.write / (2 if nominee_of else 1))
        except ClusterError as error:
            fields = {"pod": str(pod.reference), "uid": uid, "error": str(error)}
            if may_have_happened(error):
                _log.warning("it is not known whether a pod was placed", extra=fields)
                return  # it stays assumed until a read says what became of it
            _log.info("pod not placed", extra=fields)
            changed = isinstance(error, ApiError) and error.conflict and error.path.startswith(PODS.group)
            is_new = self._answered.get(uid, ("", 0.0))[0] != pod.version
            self._answered[uid] = pod.version, inf if changed else self._clock.now() + self._times.refused
            self._state.forget(uid)
            if is_new and isinstance(error, ApiError) and error.status == HTTPStatus.FORBIDDEN:
                note = f"The pod cannot be placed, its gate stays: {error.message}"
                await write_event(self._api, about_pod(pod.reference), FORBIDDEN, note, self._instance)
            return
        except Exception:  # noqa: BLE001 - whatever it is, one pod's placement must not end the daemon
            _log.exception("placing failed", extra={"pod": str(pod.reference), "uid": uid})
            self._answered[uid] = pod.version, self._clock.now() + self._times.refused
            self._state.forget(uid)
            return
        self._answered[uid] = pod.version, inf
        self._state.confirm(uid)
        if reason:
            self._state.history.released[uid] = reason
            self._metrics.released_plainly.inc()
            _log.info("pod released without a place", extra={"pod": str(pod.reference), "uid": uid, "reason": reason})
            chosen = "node, the plugin the devices" if pod.request else "node"
            note = f"No node was chosen for the pod: {reason}. Its scheduler chooses the {chosen}."
            await write_event(self._api, about_pod(pod.reference), RELEASED_PLAINLY, note, self._instance)
        elif assumed:
            log_choice(self._decisions, assumed, self._unix_ns())
