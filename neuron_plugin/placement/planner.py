"""Pods that wait although room can be made for them: the leader's look every half minute.

A metric and an event on the pod say what would help; with ``make-room: act`` the move is made. If our gate does not
hold a pod back, another event says why it waits. For a gated pod, pods of lower priority are evicted here:
kube-scheduler preempts for all other pods, but does not see a gated one. The plan is made in a thread, from immutable
records, so no call has to wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice, zip_longest
from math import inf
from typing import NoReturn

from neuron_plugin.allocation import NeuronPod, PodUid
from neuron_plugin.allocation.budgets import Budget
from neuron_plugin.allocation.event_reasons import EventReason
from neuron_plugin.allocation.keys import GATE
from neuron_plugin.placement.context import PAUSE_FACTOR, Context
from neuron_plugin.placement.events import gist, say_waiting
from neuron_plugin.placement.room import Room
from neuron_plugin.placement.state import in_line
from neuron_plugin.planning import Judgement, Move, MoveRules, Scene, Standing, judge_all
from neuron_plugin.planning.population import PodKind

MOST_PODS = 20
"""Waiting pods that one look plans for; a gang counts as one."""
_log = logging.getLogger(__name__)


class Planner:
    """The waiting pods of one state, and when each was reported.

    A pod is planned for once it is ``after_seconds`` old and waits. ``plans_moves`` looks for moves, and
    ``makes_moves`` makes them. Gated pods preempt in any case.
    """

    def __init__(
        self,
        context: Context,
        room: Room,
        *,
        rules: MoveRules,
        after_seconds: float,
        plans_moves: bool = True,
        makes_moves: bool = False,
    ) -> None:
        self._context = context
        self._state = context.state
        self._room = room
        self._rules = rules
        self._after_seconds = after_seconds
        self._plans_moves = plans_moves
        self._makes_moves = makes_moves
        self._planned: set[PodUid] = set()
        self._had_turn: set[PodKind] = set()
        self._reported: dict[PodUid, float] = {}
        self._said: dict[PodUid, str] = {}
        """By pod, the gist of its last event about why it waits."""
        self._without_victims: set[PodUid] = set()
        self._budgets: tuple[Budget, ...] = ()
        """The budgets at the last look."""

    async def run(self) -> NoReturn:
        """Look periodically, and as soon as a pod has waited long enough, until cancelled."""
        clock, times = self._context.clock, self._context.times
        next_look = rested = clock.now()
        while True:
            await self._room.tend()
            is_new = any(pod.uid not in self._planned for pod in self._due())
            # The budgets may allow now an eviction that they refused before.
            budgets_changed = self._budgets != tuple(self._state.budgets.values()) and clock.now() >= rested
            if is_new or budgets_changed or clock.now() >= next_look:
                began = clock.now()
                await self.look()
                now = clock.now()
                rested = now + PAUSE_FACTOR * (now - began)
                is_urgent = any(self._preempting(self._due()))
                next_look = now + (min(times.plan, max(times.preempt, rested - now)) if is_urgent else times.plan)
            await clock.sleep(times.tick)

    async def look(self) -> None:
        """Plan for the pods that have waited long enough; report what would help them, or make the moves."""
        self._budgets = tuple(self._state.budgets.values())
        due = [] if self._context.ready.why_not else sorted(self._due(), key=in_line)
        self._planned = {pod.uid for pod in due}
        judged = await self._plan(self._in_turn(due)) if due else []
        await self._report_other_names(one for one in judged if one.held_under_another_name)
        for standing in Standing:
            number = sum(one.standing is standing for one in judged)
            self._context.metrics.set("extender_waiting_pods", standing.value, value=number)
        moves = [one.move for one in judged if one.move and not one.move.preempts]
        self._context.metrics.set("extender_waiting_pods_by_move", value=len(moves))
        await self._explain(judged)
        await self._keep_for_groups(judged)
        for move in (one.move for one in judged if one.move and one.move.preempts):
            if self._room.may_evict and self._room.may_move_for(move.pod, preempting=True):
                await self._room.make(move)
        self._reported = {uid: at for uid, at in self._reported.items() if uid in self._planned}
        for move in moves:
            uid, now = move.pod.uid, self._context.clock.now()
            if self._would_move_for(move.pod) and await self._room.make(move):
                self._reported[uid] = now
            elif now - self._reported.get(uid, -inf) >= self._context.times.repeat:
                self._reported[uid] = now
                note = f"Enough Neuron devices are free, but not together. {move.note}."
                _log.info("a move would make room", extra={"pod": str(move.pod.reference), "uid": uid, "note": note})
                await self._context.report(move.pod.reference, EventReason.ROOM_BY_MOVE, note, warning=False)

    async def _explain(self, judged: Iterable[Judgement]) -> None:
        """Write why pods wait, unless our gate alone holds them back; the upkeep reports those."""
        self._said = {uid: said for uid, said in self._said.items() if uid in self._planned}
        for one in judged:
            has_own_event = one.move or one.held_under_another_name
            pod, text = one.pod, "" if has_own_event else one.text
            if pod.rules.gates != (GATE,) and text and self._said.get(pod.uid) != gist(text):
                self._said[pod.uid] = gist(text)
                await say_waiting(self._context, pod.reference, text)

    async def _keep_for_groups(self, judged: Sequence[Judgement]) -> None:
        """If room is made for a group, keep places for its pods that fit already, too."""
        groups = {
            one.pod.group
            for one in judged
            if one.move and self._room.may_evict and (one.move.preempts or self._would_move_for(one.pod))
        }
        for one in judged:
            if one.place and one.pod.group in groups - {None} and self._room.may_move_for(one.pod, preempting=True):
                node, placement = one.place
                await self._room.make(Move(one.pod, node, placement, (), 0.0))

    def _would_move_for(self, pod: NeuronPod) -> bool:
        """Whether a move that helps a pod would be made."""
        return self._makes_moves and self._room.may_evict and self._room.may_move_for(pod)

    async def _report_other_names(self, judged: Iterable[Judgement]) -> None:
        """Report pods whose victims kube-scheduler cannot see: it says only that no node is a candidate."""
        self._without_victims &= self._planned
        for pod, why in ((one.pod, one.helps) for one in judged):
            if pod.uid not in self._without_victims:
                self._without_victims.add(pod.uid)
                _log.info("no preemption across resource names", extra={"pod": str(pod.reference), "uid": pod.uid})
                await self._context.report(pod.reference, EventReason.NO_PREEMPTION, why)

    def _due(self) -> list[NeuronPod]:
        """The pods that have waited long enough, in any order; gated pods that may preempt are due at once."""
        oldest = self._context.unix_seconds() - self._after_seconds
        state = self._state
        waiting = [pod for pod in state.pods.values() if state.waits(pod) and pod.uid not in state.reserved]
        preempting = {pod.uid for pod in self._preempting(waiting)}
        return [pod for pod in waiting if pod.created <= oldest or pod.uid in preempting]

    def _in_turn(self, due: list[NeuronPod]) -> list[NeuronPod]:
        """The due pods that this look plans for, in order.

        First comes one pod of each kind, first of the kinds that had no turn lately: many pods without help do not
        block the others. A gang is looked at as a whole.
        """
        by_kind = defaultdict[PodKind, list[list[NeuronPod]]](list)
        for pod in due:
            units = by_kind[PodKind.of(pod)]
            if units and pod.group and self._state.least_of(pod.group) > 0:
                units[0].append(pod)
            else:
                units.append([pod])
        kinds = sorted(by_kind, key=self._had_turn.__contains__)  # else as in ``due``
        rounds = zip_longest(*(by_kind[kind] for kind in kinds))
        chosen = list(islice((unit for units in rounds for unit in units if unit), MOST_PODS))
        self._had_turn = (self._had_turn & by_kind.keys()) | {PodKind.of(unit[0]) for unit in chosen}
        if self._had_turn == by_kind.keys():
            self._had_turn.clear()
        uids = {pod.uid for unit in chosen for pod in unit}
        return [pod for pod in due if pod.uid in uids]

    def _preempting(self, waiting: Iterable[NeuronPod]) -> Iterator[NeuronPod]:
        """The gated pods of higher priority than some pod that is bound."""
        if self._room.may_evict:
            least = min((pod.priority for pod in self._state.pods.values() if pod.node), default=inf)
            yield from (pod for pod in waiting if pod.gated and pod.preempts and pod.priority > least)

    async def _plan(self, due: list[NeuronPod]) -> list[Judgement]:
        """The judgements of these pods; each has its sets or its move before the next is looked at."""
        alone = self._room.left_alone(self._state.pods.values())
        cluster = self._state.snapshot(left_alone=alone, protected=self._room.protected)
        gated = {pod.uid for pod in due if pod.gated}
        plan = partial(
            judge_all,
            Scene(cluster),
            due,
            now=self._context.unix_seconds(),
            rules=self._rules if self._plans_moves else None,
            preempting=gated,
            unmoved={pod.uid for pod in due if pod.gated and not self._would_move_for(pod)},
        )
        return await asyncio.to_thread(plan)
