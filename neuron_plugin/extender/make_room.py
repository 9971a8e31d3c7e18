"""Which pods wait although enough is free, and what one move would do for them; with ``--make-room act`` it is made.

The leader looks every half minute at pods that have waited for a while. A metric and an event on the pod say what would
help. The plan is worked out in a thread, from records that do not change, so the scheduler is not kept waiting. What
else kube-scheduler looks at is no part of the state, so it is read when a plan needs it: nodes' labels, taints and
resources, the pods of the plan and their volumes, and what other pods ask for on the nodes of the plan. No move is
proposed for a pod that may not go to the node, or of a pod that may not go where it fits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import NoReturn

import msgspec

from neuron_plugin.allocation import PodReference, PodUid
from neuron_plugin.cluster import (
    CLOCK,
    ApiError,
    ApiRequest,
    ApiServer,
    Clock,
    ClusterError,
    Scope,
    pages,
    send,
)
from neuron_plugin.extender.events import about_pod, write_event
from neuron_plugin.extender.informers import movable_namespaces, volumes_of
from neuron_plugin.extender.leadership import Readiness
from neuron_plugin.extender.metrics import ExtenderMetrics
from neuron_plugin.extender.moving import Mover, owner_of
from neuron_plugin.extender.node_rules import NODE_RULES, POD_RULES, NodeRules, NodeUse, PodRules, nodes_for, objections
from neuron_plugin.extender.planned import SECONDS_AN_HOUR, planned
from neuron_plugin.extender.state import ClusterState
from neuron_plugin.extender.views import PodView, node_view, pod_view
from neuron_plugin.planning import Move, MoveRules, Policy, Prospect, Standing, prospects

PERIOD_SECONDS = 30.0
TICK_SECONDS = 1.0
MOST_PODS = 20
"""Waiting pods planned for in one look, those of high priority first."""
MOST_PLANS = 5
"""Plans of one look: the next one knows where the victims of the last one may go."""
NODES_SECONDS = 300.0
"""For how long nodes' labels, taints and resources, and namespaces, are taken to be as they were read."""
REPEAT_SECONDS = 3600.0
"""How long after an event its pod gets no other one."""
EVENT_REASON = "NeuronRoomByMove"

_TIMEOUT_SECONDS = 10.0
_log = logging.getLogger(__name__)


class RoomPlanner:
    """The waiting pods of one state, since when each waits, and when it was reported. ``instance`` is this replica."""

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
        mover: Mover | None = None,
        clock: Clock = CLOCK,
    ) -> None:
        """A pod is planned for once it has waited for ``after_seconds``. Without a ``mover`` no move is made."""
        self._api = api
        self._state = state
        self._readiness = readiness
        self._metrics = metrics
        self._rules = rules
        self._after_seconds = after_seconds
        self._instance = instance
        self._mover = mover
        self._clock = clock
        self._since: dict[PodUid, float] = {}
        self._reported: dict[PodUid, float] = {}
        self._nodes: list[NodeRules] = []
        self._nodes_until = float("-inf")
        self._may_go_to: dict[PodUid, frozenset[str]] = {}
        self._rules_of: dict[PodUid, PodRules] = {}

    async def run(self) -> NoReturn:
        """Look periodically until cancelled."""
        next_look = self._clock.now()
        while True:
            if self._mover:
                self._mover.tend()
            if self._clock.now() >= next_look:
                await self.look()
                next_look = self._clock.now() + PERIOD_SECONDS
            await asyncio.sleep(min(TICK_SECONDS, PERIOD_SECONDS))

    async def look(self) -> None:
        """Plan for the pods that have waited long enough; report what would help them, or make the moves."""
        due = [] if self._readiness.why_not else self._due()
        found = await self._plan(due) if due else []
        for standing in Standing:
            number = sum(each.standing is standing for each in found)
            self._metrics.waiting_pods.labels(standing.value).set(number)
        moves = [each.move for each in found if each.move]
        self._metrics.waiting_pods_by_move.set(len(moves))
        self._state.moves = {move.pod.uid: _note(move) for move in moves}
        for move in moves:
            uid, now = move.pod.uid, self._clock.now()
            if self._mover and self._mover.may_move_for(uid) and await self._mover.make(move):
                self._reported[uid] = now
            elif now - self._reported.get(uid, -REPEAT_SECONDS) >= REPEAT_SECONDS:
                self._reported[uid] = now
                pod, note = move.pod.reference, self._state.moves[uid]
                fields = {"pod": str(pod), "uid": uid, "node": move.node, "note": note}
                _log.info("a move would make room", extra=fields)
                await write_event(self._api, about_pod(pod), EVENT_REASON, note, self._instance, warning=False)

    def _due(self) -> list[PodReference]:
        """The pods that have waited long enough, those of high priority first; remembers since when each waits."""
        now, state = self._clock.now(), self._state
        waiting = {uid: pod for uid, pod in state.pods.items() if pod.request and not pod.terminating}
        waiting = {uid: pod for uid, pod in waiting.items() if not state.bound_to(uid)}
        self._since = {uid: self._since.get(uid, now) for uid in waiting}
        self._reported = {uid: at for uid, at in self._reported.items() if uid in waiting}
        due = [pod for uid, pod in waiting.items() if now - self._since[uid] >= self._after_seconds]
        due = [pod for pod in due if pod.uid not in state.reserved]
        due.sort(key=lambda pod: (-pod.priority, pod.reference.namespace, pod.reference.name))
        return [pod.reference for pod in due[:MOST_PODS]]

    async def _plan(self, due: list[PodReference]) -> list[Prospect]:
        """The prospects of these pods, as far as they can be judged."""
        try:
            known = {node.name for node in self._nodes}
            if self._clock.now() >= self._nodes_until or self._state.nodes.keys() - known:
                self._nodes = [
                    node
                    async for page in pages(self._api, NODE_RULES, page_timeout_seconds=_TIMEOUT_SECONDS)
                    for node in page.records
                ]
                self._state.movable_namespaces = await movable_namespaces(self._api)
                self._nodes_until = self._clock.now() + NODES_SECONDS
                self._may_go_to.clear()
            # One that could go nowhere may by now: a gate was removed.
            self._may_go_to = {uid: names for uid, names in self._may_go_to.items() if names}
            await self._read(due)
            for _ in range(MOST_PLANS):
                found = await asyncio.to_thread(self._prospects, {pod.uid for pod in due})
                moves = [each.move for each in found if each.move]
                unknown = await self._read(each.pod.reference for move in moves for each in move.victims)
                if not unknown and not await self._leave_out_full_nodes(moves):
                    return found
            return [replace(each, move=None) for each in found]  # more of the same: the next look knows these nodes
        except ClusterError as error:
            _log.info("nodes or pods not read: no plan", extra={"error": str(error)})
        return []

    async def _read(self, pods: Iterable[PodReference]) -> bool:
        """Find out where pods may go; whether there was one of which that was not known."""
        self._may_go_to = {uid: names for uid, names in self._may_go_to.items() if uid in self._state.pods}
        self._rules_of = {uid: rules for uid, rules in self._rules_of.items() if uid in self._may_go_to}
        unknown = [pod for pod in pods if pod.uid not in self._may_go_to]
        for pod in unknown:
            request = ApiRequest("GET", POD_RULES.item(pod.name, pod.namespace))
            self._may_go_to[pod.uid] = frozenset()
            try:
                rules = POD_RULES.decode(await send(self._api, request, timeout_seconds=_TIMEOUT_SECONDS))
            except ApiError as error:
                if not error.missing:
                    raise
                continue
            if (volumes := await volumes_of(self._api, rules)) is not None:
                self._rules_of[pod.uid] = rules
                self._may_go_to[pod.uid] = await asyncio.to_thread(nodes_for, rules, self._nodes, volumes)
        return bool(unknown)

    async def _leave_out_full_nodes(self, moves: Iterable[Move]) -> bool:
        """Keep pods from nodes that lack CPU, memory, a port or the like for them; whether a move went to such a node.

        The victims of the same move are gone by then, and pods of earlier moves are where they go.
        """
        nodes, found = {node.name: node for node in self._nodes}, False
        there: dict[str, list[PodRules]] = {}
        coming = defaultdict[str, list[PodRules]](list)
        for move in moves:
            gone = {each.pod.uid for each in move.victims}
            for name, uid in [(move.node, move.pod.uid), *((each.target, each.pod.uid) for each in move.victims)]:
                if name not in there:
                    scope = Scope(field_selector=f"spec.nodeName={name}")
                    listed = pages(self._api, POD_RULES, scope, page_timeout_seconds=_TIMEOUT_SECONDS)
                    there[name] = [pod async for page in listed for pod in page.records]
                use = NodeUse([*(pod for pod in there[name] if pod.uid not in gone), *coming[name]])
                if any(True for _ in objections(self._rules_of[uid], nodes[name], use)):
                    self._may_go_to[uid] -= {name}
                    found = True
                coming[name].append(self._rules_of[uid])
        return found

    def _prospects(self, due: set[PodUid]) -> list[Prospect]:
        """The prospects of the pods that are due; runs in a thread."""
        state = self._state
        nodes, pods = list(state.nodes.values()), list(state.pods.values())
        views = (self._settled(pod_view(state, pod)) for pod in pods)
        cluster = planned((node_view(state, info) for info in nodes), views, self._may_go_to)
        # One that may go to no node, as far as can be judged, waits for something other than Neuron.
        waiting = [pod for pod in cluster.waiting if pod.uid in due and pod.nodes]
        return prospects(cluster.nodes, waiting, Policy(), now=time.time() / SECONDS_AN_HOUR, rules=self._rules)

    def _settled(self, pod: PodView) -> PodView:
        """A pod that is left alone for a while cannot be moved."""
        owner = owner_of(pod.metadata.namespace, pod.spec.controller)
        if self._mover and self._mover.is_left_alone(pod.uid, owner):
            return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, controller=""))
        return pod


def _note(move: Move) -> str:
    moves = ", ".join(f"{each.pod.reference} from node {each.source} to {each.target}" for each in move.victims)
    return (
        f"Enough Neuron devices are free, but not together. Node {move.node} would have room after a move of {moves}: "
        "see neuron-plugin plan."
    )
