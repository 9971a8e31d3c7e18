"""Which pods wait although enough is free, and what one move would do for them: a metric and an event on the pod.

The leader looks every half minute at pods that have waited for a while. Nothing is evicted and nothing is held: an
administrator reads what would help. The plan is worked out in a thread, from records that do not change, so the
scheduler is not kept waiting.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import NoReturn

from neuron_plugin.allocation import PodUid
from neuron_plugin.cluster import CLOCK, ApiServer, Clock, ObjectReference
from neuron_plugin.extender.events import write_event
from neuron_plugin.extender.leadership import Readiness
from neuron_plugin.extender.metrics import ExtenderMetrics
from neuron_plugin.extender.planned import SECONDS_AN_HOUR, planned
from neuron_plugin.extender.state import ClusterState
from neuron_plugin.extender.views import node_view, pod_view
from neuron_plugin.planning import Move, MoveRules, PlannedPod, Policy, Prospect, Standing, prospects

PERIOD_SECONDS = 30.0
MOST_PODS = 20
"""Waiting pods planned for in one look, those of high priority first."""
REPEAT_SECONDS = 3600.0
"""How long after an event its pod gets no other one."""
EVENT_REASON = "NeuronRoomByMove"

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
        clock: Clock = CLOCK,
    ) -> None:
        """A pod is planned for once it has waited for ``after_seconds``."""
        self._api = api
        self._state = state
        self._readiness = readiness
        self._metrics = metrics
        self._rules = rules
        self._after_seconds = after_seconds
        self._instance = instance
        self._clock = clock
        self._since: dict[PodUid, float] = {}
        self._reported: dict[PodUid, float] = {}

    async def run(self) -> NoReturn:
        """Look periodically until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(PERIOD_SECONDS)

    async def look(self) -> None:
        """Plan for the pods that have waited long enough, and report what would help them."""
        found: list[Prospect] = []
        if not self._readiness.why_not and self._due():
            found = await asyncio.to_thread(self._plan)
        for standing in Standing:
            number = sum(each.standing is standing for each in found)
            self._metrics.waiting_pods.labels(standing.value).set(number)
        moves = [each.move for each in found if each.move]
        self._metrics.waiting_pods_by_move.set(len(moves))
        now = self._clock.now()
        for move in moves:
            if now - self._reported.get(move.pod.uid, -REPEAT_SECONDS) >= REPEAT_SECONDS:
                self._reported[move.pod.uid] = now
                await self._report(move)

    def _due(self) -> bool:
        """Whether a pod has waited long enough; remembers since when each waits."""
        now, state = self._clock.now(), self._state
        waiting = {uid for uid, pod in state.pods.items() if pod.request and not pod.terminating}
        waiting -= {uid for uid in waiting if state.bound_to(uid)}
        self._since = {uid: self._since.get(uid, now) for uid in waiting}
        self._reported = {uid: at for uid, at in self._reported.items() if uid in waiting}
        return any(self._is_due(uid) for uid in waiting)

    def _is_due(self, uid: PodUid) -> bool:
        return self._clock.now() - self._since.get(uid, self._clock.now()) >= self._after_seconds

    def _plan(self) -> list[Prospect]:
        """The prospects of the pods that are due; runs in a thread."""
        state = self._state
        nodes, pods = list(state.nodes.values()), list(state.pods.values())
        cluster = planned((node_view(state, info) for info in nodes), (pod_view(state, pod) for pod in pods))
        due: list[PlannedPod] = [pod for pod in cluster.waiting if self._is_due(pod.uid)][:MOST_PODS]
        return prospects(cluster.nodes, due, Policy(), now=time.time() / SECONDS_AN_HOUR, rules=self._rules)

    async def _report(self, move: Move) -> None:
        pod = move.pod.reference
        moves = ", ".join(f"{each.pod.reference} from node {each.source} to {each.target}" for each in move.victims)
        _log.info("a move would make room", extra={"pod": str(pod), "uid": pod.uid, "node": move.node, "moves": moves})
        note = (
            f"Enough Neuron devices are free, but not together. Node {move.node} would have room after a move of "
            f"{moves}: see neuron-plugin plan."
        )
        regarding = ObjectReference("Pod", pod.name, pod.uid, "v1", pod.namespace)
        await write_event(self._api, regarding, EVENT_REASON, note, self._instance, warning=False)
