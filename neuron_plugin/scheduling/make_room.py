"""Which pods wait although room can be made for them, and who has to go; moves are made with ``--make-room act``.

The leader looks when a pod has waited long enough, and every half minute after that. A metric and an event on the pod
say what would help. For a gated pod others of lower priority are evicted, the fewest and then the lowest:
kube-scheduler, which does it for all other pods, does not see a gated one. The plan is worked out in a thread, from
records that do not change, so no call has to wait. Volumes are no part of the state. They are read for the pods of a
plan that have claims.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice, zip_longest
from math import inf
from typing import NoReturn

from neuron_plugin.allocation import NeuronPod, PlacementStrategy, PodUid
from neuron_plugin.allocation.pod import PodKind, kind_of
from neuron_plugin.backoff import CLOCK, Clock
from neuron_plugin.cluster import ApiServer, ClusterError
from neuron_plugin.planning import PACK, Cluster, Move, MoveRules, Prospect, Standing, prospects
from neuron_plugin.scheduling.events import NO_PREEMPTION, about_pod, write_event
from neuron_plugin.scheduling.informers import movable_namespaces
from neuron_plugin.scheduling.leadership import Readiness
from neuron_plugin.scheduling.metrics import ExtenderMetrics
from neuron_plugin.scheduling.moving import Mover
from neuron_plugin.scheduling.state import ClusterState
from neuron_plugin.scheduling.volumes import ClaimedVolumes

MOST_PODS = 20
"""Waiting pods planned for in one look; a gang counts as one."""
PAUSE_FACTOR = 10.0
"""Looks that follow each other sooner than every ``period`` pause for so many times as long as the last one took."""
MOST_PLANS = 5
"""Plans of one look: the next one knows the volumes of the victims of the last one."""
EVENT_REASON = "NeuronRoomByMove"
OTHER_NAME = (
    "Pods of lower priority hold Neuron devices under another resource name, and kube-scheduler does not preempt "
    "across resource names. Evict them by hand, or let the extender do it: make-room: act, make-room-by-priority."
)
"""Of a pod that evictions of lower priority would help, though kube-scheduler sees no victims."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RoomTimes:
    """Seconds. Pods are planned for every ``period``, and at the next ``tick`` once one has waited long enough.

    While a gated pod waits that may preempt, they are planned for every ``preempting``: what was placed can be evicted
    only once it is bound. For ``namespaces`` the namespaces are taken to be as they were read. For ``repeat`` a pod
    gets no other event.
    """

    period: float = 30.0
    preempting: float = 10.0
    tick: float = 1.0
    namespaces: float = 300.0
    repeat: float = 3600.0


TIMES = RoomTimes()


class RoomPlanner:
    """The waiting pods of one state, and when each was reported. ``instance`` is this replica."""

    def __init__(
        self,
        api: ApiServer,
        state: ClusterState,
        readiness: Readiness,
        metrics: ExtenderMetrics,
        *,
        rules: MoveRules,
        after_seconds: float,
        instance: str,
        strategy: PlacementStrategy = PACK,
        mover: Mover | None = None,
        plans_moves: bool = True,
        makes_moves: bool = False,
        times: RoomTimes = TIMES,
        clock: Clock = CLOCK,
        unix_seconds: Callable[[], float] = time.time,
    ) -> None:
        """A pod is planned for once it is ``after_seconds`` old and waits. Without a ``mover`` no pod is evicted.

        ``plans_moves`` looks for moves, and ``makes_moves`` makes them. Gated pods preempt in any case.
        """
        self._api = api
        self._state = state
        self._readiness = readiness
        self._metrics = metrics
        self._rules = rules
        self._after_seconds = after_seconds
        self._instance = instance
        self._strategy = strategy
        self._mover = mover
        self._plans_moves = plans_moves
        self._makes_moves = makes_moves
        self._times = times
        self._clock = clock
        self._unix_seconds = unix_seconds
        self._planned: set[PodUid] = set()
        self._had_turn: set[PodKind] = set()
        self._reported: dict[PodUid, float] = {}
        self._without_victims: set[PodUid] = set()
        self._namespaces_until = -inf
        self._volumes = ClaimedVolumes(api, clock)

    async def run(self) -> NoReturn:
        """Look periodically, and as soon as a pod has waited long enough, until cancelled."""
        next_look = self._clock.now()
        while True:
            if self._mover:
                self._mover.tend()
            is_new = any(pod.uid not in self._planned for pod in self._due())
            if is_new or self._clock.now() >= next_look:
                began = self._clock.now()
                await self.look()
                now, pause = self._clock.now(), self._times.period
                if any(self._preempting(self._due())):
                    pause = min(pause, max(self._times.preempting, PAUSE_FACTOR * (now - began)))
                next_look = now + pause
            await asyncio.sleep(self._times.tick)

    async def look(self) -> None:
        """Plan for the pods that have waited long enough; report what would help them, or make the moves."""
        due = [] if self._readiness.why_not else self._due()
        self._planned = {pod.uid for pod in due}
        expected = await self._plan(self._in_turn(due)) if due else []
        await self._report_other_names(prospect.pod for prospect in expected if prospect.held_under_another_name)
        for standing in Standing:
            number = sum(prospect.standing is standing for prospect in expected)
            self._metrics.waiting_pods.labels(standing.value).set(number)
        moves = [prospect.move for prospect in expected if prospect.move and not prospect.move.preempts]
        self._metrics.waiting_pods_by_move.set(len(moves))
        await self._preempt(expected)
        self._reported = {uid: at for uid, at in self._reported.items() if uid in self._planned}
        for move in moves:
            uid, now = move.pod.uid, self._clock.now()
            if self._mover and self._would_move_for(uid) and await self._mover.make(move):
                self._reported[uid] = now
            elif now - self._reported.get(uid, -inf) >= self._times.repeat:
                self._reported[uid] = now
                pod, note = move.pod.reference, note_of(move)
                fields = {"pod": str(pod), "uid": uid, "node": move.node, "note": note}
                _log.info("a move would make room", extra=fields)
                await write_event(self._api, about_pod(pod), EVENT_REASON, note, self._instance, warning=False)

    async def _preempt(self, expected: list[Prospect]) -> None:
        """Make room for gated pods of higher priority; of a group, what fits already is kept for it as well."""
        if self._mover is None:
            return
        preempting = [prospect.move for prospect in expected if prospect.move and prospect.move.preempts]
        groups = {move.pod.group for move in preempting} - {None}
        kept = [
            Move(prospect.pod, prospect.node, prospect.placement, (), 0.0)
            for prospect in expected
            if prospect.pod.group in groups and prospect.standing is Standing.FITS
        ]
        for move in (*kept, *preempting):
            if self._mover.may_move_for(move.pod.uid, preempting=True):
                await self._mover.make(move)

    def _would_move_for(self, uid: PodUid) -> bool:
        """Whether a move that helps a pod would be made."""
        return self._makes_moves and self._mover is not None and self._mover.may_move_for(uid)

    async def _report_other_names(self, pods: Iterable[NeuronPod]) -> None:
        """kube-scheduler sees no victims for such a pod, and says of it only that no node is a candidate."""
        self._without_victims &= self._planned
        for pod in pods:
            if pod.uid not in self._without_victims:
                self._without_victims.add(pod.uid)
                _log.info("no preemption across resource names", extra={"pod": str(pod.reference), "uid": pod.uid})
                await write_event(self._api, about_pod(pod.reference), NO_PREEMPTION, OTHER_NAME, self._instance)

    def _due(self) -> list[NeuronPod]:
        """The pods that have waited long enough, those of high priority first; gated ones that may preempt at once."""
        oldest = self._unix_seconds() - self._after_seconds if self._plans_moves else 0.0
        waiting = [pod for pod in self._state.waiting() if pod.uid not in self._state.reserved]
        preempting = {pod.uid for pod in self._preempting(waiting)}
        return [pod for pod in waiting if pod.created <= oldest or pod.uid in preempting]

    def _in_turn(self, due: list[NeuronPod]) -> list[NeuronPod]:
        """Those of the pods that are planned for in this look, in their order.

        First comes one pod of each kind, and of the kinds those that had no turn lately: many pods that cannot be
        helped keep no other from being looked at. A gang is looked at as a whole.
        """
        by_kind = defaultdict[PodKind, list[list[NeuronPod]]](list)
        for pod in due:
            units = by_kind[kind_of(pod)]
            if units and pod.group and self._state.least_of(pod.group) > 0:
                units[0].append(pod)
            else:
                units.append([pod])
        kinds = sorted(by_kind, key=self._had_turn.__contains__)  # else as in ``due``
        rounds = zip_longest(*(by_kind[kind] for kind in kinds))
        chosen = list(islice((unit for units in rounds for unit in units if unit), MOST_PODS))
        self._had_turn = (self._had_turn & by_kind.keys()) | {kind_of(unit[0]) for unit in chosen}
        if self._had_turn == by_kind.keys():
            self._had_turn.clear()
        uids = {pod.uid for unit in chosen for pod in unit}
        return [pod for pod in due if pod.uid in uids]

    def _preempting(self, waiting: Iterable[NeuronPod]) -> Iterator[NeuronPod]:
        """The gated pods of higher priority than some pod that is bound."""
        if self._mover:
            least = min((pod.priority for pod in self._state.pods.values() if pod.node), default=inf)
            yield from (pod for pod in waiting if pod.gated and pod.preempts and pod.priority > least)

    async def _plan(self, due: list[NeuronPod]) -> list[Prospect]:
        """The prospects of these pods, as far as they can be judged."""
        try:
            if self._clock.now() >= self._namespaces_until:
                self._state.movable_namespaces = await movable_namespaces(self._api)
                self._namespaces_until = self._clock.now() + self._times.namespaces
            await self._volumes.read(due)
            for _ in range(MOST_PLANS):
                judged = [pod for pod in due if self._volumes.of(pod) is not None and not self._keeps_its_gate(pod)]
                now, cluster = self._unix_seconds(), self._cluster()
                gated = {pod.uid for pod in judged if pod.gated}
                rules = self._rules if self._plans_moves else MoveRules(most_victims=0)
                unmoved = {uid for uid in gated if not self._would_move_for(uid)} if self._mover else ()
                plan = partial(prospects, cluster, judged, now=now, rules=rules, preempting=gated, unmoved=unmoved)
                expected = await asyncio.to_thread(plan)
                moves = [prospect.move for prospect in expected if prospect.move]
                if not await self._volumes.read(victim.pod for move in moves for victim in move.victims):
                    return expected
        except ClusterError as error:
            _log.info("namespaces or volumes not read: no plan", extra={"error": str(error)})
        return []  # or more of the same: the next look knows these volumes

    def _keeps_its_gate(self, pod: NeuronPod) -> bool:
        """Whether room would not help: a pod that asks by claims waits for volumes, or is kept off by other pods."""
        if not (pod.gated and pod.rules.claim_driver):
            return False
        return not self._volumes.are_bound(pod) or self._state.is_kept_off(pod, self._state.nodes.keys())

    def _cluster(self) -> Cluster:
        claiming = [pod for pod in self._state.pods.values() if pod.rules.claims and self._volumes.are_known(pod)]
        known = {pod.uid: volumes for pod in claiming if (volumes := self._volumes.of(pod)) is not None}
        unknown = {pod.uid for pod in claiming} - known.keys()
        alone = self._mover.left_alone(self._state.pods.values()) if self._mover else set()
        protected = self._mover.protected if self._mover else ()
        return self._state.cluster(
            strategy=self._strategy, volumes=known, left_alone=unknown | alone, protected=protected
        )


def note_of(move: Move) -> str:
    """What a move would do, for the event on the waiting pod and for explanations."""
    moves = ", ".join(f"{victim.pod.reference} from node {victim.source} to {victim.target}" for victim in move.victims)
    return (
        f"Enough Neuron devices are free, but not together. Node {move.node} would have room after a move of {moves}: "
        "see neuron-plugin plan."
    )
