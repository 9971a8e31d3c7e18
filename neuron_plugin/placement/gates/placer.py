"""Placing gated pods: judge and assume in one step, then write node, assignment and the end of the gate.

Each pod takes one PATCH. Two things come before it: on a node with little CPU or memory left the pod is nominated, and
its claims are allocated. The places of a group are kept for its pods and written down before the first of them is
released: the next leader completes it.

One step looks at all pods that may fit, without waiting once, so nothing can come between a choice and the next. Each
PATCH is sent by itself and carries the version of the pod that was read. A pod is counted on its node from the choice
on. It is assumed until the watch shows the promise on the pod, and then counts by itself, until it is bound or ends.

A node whose plugin can be heard gets its pods one by one: what is chosen for it waits in line, assumed, until the one
before has its devices.

A pod of which something cannot be judged is handed to its scheduler without a node. Left out are those nodes that the
scheduler would take by its counts, and that have no linked set. Until it is bound, no other pod takes the last set of a
node to which it may go.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from math import inf
from typing import NoReturn

from neuron_plugin.allocation import NeuronPod, NodeInfo, PodUid, Rejection, Resource
from neuron_plugin.allocation.event_reasons import EventReason
from neuron_plugin.allocation.group import GroupName
from neuron_plugin.allocation.keys import GATE
from neuron_plugin.allocation.pod import in_rank_order
from neuron_plugin.allocation.ultraserver import INDEX_VARIABLE, UltraServerPlace
from neuron_plugin.cluster import ApiRequest
from neuron_plugin.cluster.pods import PODS
from neuron_plugin.placement.context import Context
from neuron_plugin.placement.gates import writes
from neuron_plugin.placement.gates.ultraservers import ultraserver_places
from neuron_plugin.placement.group_checks import GroupChecks
from neuron_plugin.placement.queue import Queue
from neuron_plugin.placement.room import Room
from neuron_plugin.placement.state import AssumedPod
from neuron_plugin.placement.writer import Attempt, NotSentError, Outcome, Writer
from neuron_plugin.planning import Scene
from neuron_plugin.planning.groups import Anchor, GroupPlan, place_group
from neuron_plugin.planning.population import PodKind
from neuron_plugin.planning.scene import Place

MANY_IN_FLIGHT = 16
"""With so many writes under way the API server is behind, and nothing that is done here sooner makes it faster."""
REST_SECONDS = 0.015
"""How long a step then waits for answers and events, to handle them in one go: some 15 % less CPU a pod."""
MOST_IN_FLIGHT = 64
"""Writes under way at one time. Their order does not matter: each pod has its own set."""
MOST_IN_LINE = 256
"""Pods that have been placed and whose turn on their node it is not yet. Each step looks at all of them."""
MOST_ROAMING = 32
"""Pods that were handed to their schedulers without a node and are not bound yet. Each choice looks at all of them."""
MOST_EXCLUDED = 1_000
"""Nodes that one pod's node affinity may leave out; each is a requirement of some 80 bytes."""
_log = logging.getLogger(__name__)

_Write = Callable[[NeuronPod], ApiRequest]


class Placer:
    """The gated pods of one replica; only the leader places any."""

    def __init__(self, context: Context, writer: Writer, room: Room, checks: GroupChecks | None = None) -> None:
        """``checks`` are made of groups that ask for one, before these are placed."""
        self.queue = Queue()
        self._checks = checks
        self._context = context
        self._state = context.state
        self._writer = writer
        self._room = room
        self._seen = -1
        self._judged_capacity = -1
        self._frees_room = False
        """Whether a step has made room, for pods that it may have looked at before."""
        self._in_flight: dict[PodUid, asyncio.Task[None]] = {}
        self._in_line: dict[PodUid, tuple[str, float, _Write]] = {}
        """Pods whose turn on their node has not come, the first in line first: node, since when, and what to write."""
        self._unwritten: set[GroupName] = set()
        """Groups in line whose places are not written down yet."""
        self._begun: set[PodUid] = set()
        """Pods that have their place, by claims that were allocated or from a leader before us, and are gated still."""
        self._undecided: set[PodUid] = set()
        """Pods on which something was written, and the watch does not show yet what came of it."""
        self._answered: dict[PodUid, tuple[str, float]] = {}
        """By pod, the version on which a write was answered, and until when it is not written on again."""

    @property
    def under_way(self) -> int:
        """Writes that have not ended."""
        return len(self._in_flight)

    async def run(self) -> NoReturn:
        """Place pods as they come and as room comes, until cancelled."""
        clock, times = self._context.clock, self._context.times
        while True:
            seen = self._state.changes.version
            self.step()
            await self._state.changes.wait(seen, within_seconds=times.tick)
            # What comes together is placed together.
            await clock.sleep(REST_SECONDS if len(self._in_flight) >= MANY_IN_FLIGHT else times.gather)

    async def drain(self) -> None:
        """Wait until the writes under way have ended; each does by its own deadline."""
        while self._in_flight:
            await asyncio.wait(self._in_flight.values())

    def step(self) -> None:
        """Place all pods that fit now."""
        self._follow()
        self._state.end_avoided(self._context.clock.now())
        if self._context.why_not_write():
            return
        if self._state.capacity_version != self._judged_capacity:
            self.queue.hopeless.clear()
        for uid in list(self._begun):
            self._complete(uid)
        self._serve(list(self._in_line))
        for kind, pod in self.queue.in_order():
            if len(self._in_flight) >= MOST_IN_FLIGHT or len(self._in_line) >= MOST_IN_LINE:
                break
            placed = self._place_group(kind) if kind.group else self._place_pod(pod)
            if not placed:
                self.queue.hopeless.add(kind)
        else:
            self._judged_capacity = -1 if self._frees_room else self._state.capacity_version
        self._frees_room = False

    def _follow(self) -> None:
        """Bring the queue to what the state shows."""
        changes = self._state.changes
        self.queue.look_at(frozenset(self._state.population.anti_keys))
        if not changes.knows(self._seen):
            self.queue.clear()
            for pod in self._state.gated.values():
                self._put(pod)
            self._begun = {pod.uid for pod in self._state.pods.values() if pod.gated and pod.promised}
        else:
            for change in changes.after(self._seen):
                record = change.after or change.before
                if isinstance(record, NeuronPod):
                    if isinstance(change.before, NeuronPod):
                        self._room.places.see_member(change.before, gone=change.after is None)
                    self._see(record)
        self._seen = changes.version
        for uid in list(self._undecided):
            self._undecided.discard(uid)
            if gated := self._state.gated.get(uid):
                self._put(gated)

    def _see(self, record: NeuronPod) -> None:
        gated = self._state.gated.get(record.uid)
        if record.gated and record.promised:
            self._begun.add(record.uid)
        if gated:
            self._put(gated)
        else:
            self.queue.remove(record.uid)
            self._answered.pop(record.uid, None)

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
        return version == pod.version and self._context.clock.now() < until

    # One pod.

    def _place_pod(self, pod: NeuronPod) -> bool:
        """Place a pod, or hand it to its scheduler where it cannot be judged; whether either was done."""
        scene = self._state.scene()
        if scene.cluster.refusal(pod):
            return False  # no scheduler could serve it: its event says why, and it waits until it is changed
        if not pod.requests:
            reason = f"it has the gate and asks for none of {', '.join(Resource)}"
            self._send(pod, writes.release_plainly(pod), reason)
            return True
        if doubt := scene.doubt(pod):
            return self._release_among(scene, [pod], doubt)
        place = scene.best(pod)
        assumed = self._writer.assumed_at(pod, *place) if place else ""
        if not place or not isinstance(assumed, AssumedPod):
            return False
        self._state.assume(assumed)
        self._hand_over(pod, place[0], partial(writes.place, node=place[0], annotations=assumed.annotations))
        return True

    def _release_among(self, scene: Scene, pods: Sequence[NeuronPod], doubt: str) -> bool:
        """Hand pods to their schedulers, but for nodes without a linked set for them; whether all have a place."""
        under_way = len(self._state.roaming)
        if any(pod.rules.claim_driver for pod in pods) or (under_way and under_way + len(pods) > MOST_ROAMING):
            return False  # only we may allocate its claims
        together, found = [*scene.roaming, *pods], list[tuple[list[NeuronPod], list[str]]]()
        if scene.placeable(together) != together:
            return False
        for alike in scene.alike(pods):
            first, allowed = alike[0], scene.allowed(alike[0])
            names = [name for name in scene.cluster.nodes if name in allowed]
            lacking = scene.lacking_sets(names, [other for other in together if other is not first], [first])
            if len(lacking) == len(names) or len(lacking) > MOST_EXCLUDED:
                return False
            found.append((alike, lacking))
        for pod, lacking in ((pod, lacking) for alike, lacking in found for pod in alike):
            self._state.roaming[pod.uid] = writes.kept_off(pod, lacking)
            self._send(pod, writes.release_among(pod, lacking), doubt)
        return True

    def release_plainly(self, pod: NeuronPod, reason: str) -> None:
        """Hand a pod to its scheduler without a place."""
        if pod.uid not in self._in_flight and not self._context.why_not_write():
            self._send(pod, writes.release_plainly(pod), reason)

    def _complete(self, uid: PodUid) -> None:
        """Hand over a pod that has its place: by a leader before us, or by claims that were allocated for another pod.

        A pod of a group goes with the others of it.
        """
        pod = self._state.pods.get(uid)
        if pod is None or not (pod.gated and pod.promised):
            self._begun.discard(uid)
            return
        members = self._state.members_of(pod.group) if pod.group else []
        placed = sum(bool(member.place) or member.uid in self._state.assumed for member in members)
        if pod.group and placed < self._state.least_of(pod.group):
            return
        if not self._is_under_way(pod) and pod.rules.gates == (GATE,):
            self._hand_over(pod, pod.promised, partial(writes.place, node=pod.promised, annotations={}))

    def _is_under_way(self, pod: NeuronPod) -> bool:
        begun = pod.uid in self._in_flight or pod.uid in self._in_line or pod.uid in self._state.assumed
        return begun or self._is_answered(pod)

    # Groups.

    def _place_group(self, kind: PodKind) -> bool:
        """Place the waiting pods of a group that fit if the group has its least number then, else none.

        Gives whether some were placed.
        """
        group = kind.group or ("", "")
        members = self._state.members_of(group)
        current = {pod.uid for pod in members}
        waiting = [pod for pod in self.queue.pods(kind) if pod.uid in current]
        least = self._state.least_of(group)
        missing = least - sum(bool(pod.place) or pod.uid in self._state.assumed for pod in members)
        if not waiting or (self._checks and self._checks.holds(group, members)):
            return False
        if len(waiting) < missing:
            return self._place_leader(group, waiting, members, least)
        scene = self._state.scene()
        if any(map(scene.cluster.refusal, waiting)):
            return False
        if doubt := next(filter(None, map(scene.doubt, waiting)), ""):
            return self._release_among(scene, waiting, doubt)
        if any(self._room.places.place_ends(pod) for pod in waiting):
            return False  # its own place is about to be free
        wish, anchors = scene.cluster.wish_of(waiting[0]), self._anchors(members)
        plan = place_group(scene, waiting, least=max(missing, 1), wish=wish, anchors=anchors, says_most=False)
        made = self._assumed_by(plan) if isinstance(plan, GroupPlan) else None
        if made is None or not isinstance(plan, GroupPlan):
            # What a leader before us has begun, or is kept: others may need the room.
            self._withdraw([pod for pod in members if pod.gated and pod.promised])
            self._frees_room |= self._room.places.give_up(waiting)
            return False
        if self._checks and self._checks.must_wait(group, members, plan, waiting):
            return False
        said = self._said_of(plan, members)
        self._hand_over_group(group, made, said, [(pod, plan.places[pod.uid]) for pod in waiting if pod.uid in said])
        return True

    def _hand_over_group(
        self,
        group: GroupName,
        made: Sequence[AssumedPod],
        said: Mapping[PodUid, Mapping[str, str]],
        kept: Sequence[tuple[NeuronPod, Place]],
    ) -> None:
        """Hand pods of a group to their schedulers, once all places that are to be ``kept`` are written down.

        The place of one pod need not be: its own PATCH is all there is to complete.
        """
        for assumed in made:
            self._state.assume(assumed)
        if len(kept) > 1:
            self._room.places.keep_for(group, kept)
            self._unwritten.add(group)
            self._start(PodUid("/".join(group)), self._write_down(group, [pod.uid for pod, _ in kept]))
        for assumed in made:
            node, annotations = assumed.pod.promised, {**assumed.annotations, **said[assumed.pod.uid]}
            pod = self._state.gated[assumed.pod.uid]
            self._hand_over(pod, node, partial(writes.place, node=node, annotations=annotations))

    async def _write_down(self, group: GroupName, uids: Sequence[PodUid]) -> None:
        """Write down what is kept for pods of a group; where that fails they leave the line for a while.

        They come back at once where nothing was sent, as while the Lease was not renewed lately. Where a pod has gone
        meanwhile, or its place is of no use any more, the group is looked at again.
        """
        written = False
        try:
            written = await self._room.record()
        finally:
            self._unwritten.discard(group)
            pods = [pod for uid in self._in_line if (pod := self._state.pods.get(uid)) and pod.group == group]
            is_whole = all(uid in self._state.reserved for uid in uids)
            for pod in [] if written and is_whole else pods:
                self._leave_line(pod.uid)
                if not (written or self._context.why_not_write()):
                    self._answered[pod.uid] = pod.version, self._context.clock.now() + self._context.times.retry
            self._serve([pod.uid for pod in pods if pod.uid in self._in_line])

    def _anchors(self, members: Iterable[NeuronPod]) -> list[Anchor]:
        anchors = []
        for pod in members:
            assumed = self._state.assumed.get(pod.uid)
            place = assumed.pod.place if assumed else pod.place
            if place and (info := self._state.nodes.get(place)) and (mask := info.ledger.mask_of(pod.uid)):
                anchors.append(Anchor(place, mask))
        return anchors

    def _assumed_by(self, plan: GroupPlan) -> list[AssumedPod] | None:
        """The pods that are there, at their places; None where one is not to be had."""
        gated = self._state.gated
        made = [self._writer.assumed_at(gated[uid], *place) for uid, place in plan.places.items() if uid in gated]
        assumed = [one for one in made if isinstance(one, AssumedPod)]
        return assumed if len(assumed) == len(made) else None

    def _said_of(self, plan: GroupPlan, members: Sequence[NeuronPod]) -> dict[PodUid, dict[str, str]]:
        """What is written with each pod's assignment: its rank, the domain, and its place in an UltraServer."""
        order = in_rank_order(members)
        ranks = {pod.uid: number for number, pod in enumerate(order)}
        ultraservers, said = self._ultraserver_places(plan, order), {}
        for uid in plan.places.keys() & self._state.gated.keys():
            pod = self._state.gated[uid]
            own = pod.member.rank if pod.member else None
            rank = None if own is None else own[0] if len(own) == 1 else ranks[uid]
            said[uid] = writes.group_annotations(rank, plan.domain, ultraservers.get(uid))
        return said

    def _ultraserver_places(self, plan: GroupPlan, order: Sequence[NeuronPod]) -> Mapping[PodUid, UltraServerPlace]:
        """The places in UltraServers of a group's pods, by their ranks, once the pods of a plan are where it says.

        The variables of a container never change. If those of a pod that was placed before are not true any more, an
        event says so; and if it has none, the others get none.
        """
        nodes = dict[PodUid, NodeInfo]()
        for pod in order:
            assumed = self._state.assumed.get(pod.uid)
            name = plan.places[pod.uid][0] if pod.uid in plan.places else (assumed.pod if assumed else pod).place
            if name in self._state.nodes and pod.requests:
                nodes[pod.uid] = self._state.nodes[name]
        places = ultraserver_places([pod for pod in order if pod.uid in nodes], nodes)
        before = [pod for pod in order if pod.uid in nodes and pod.uid not in plan.places]
        if not all(pod.ultraserver for pod in before):
            return {}
        if changed := [pod for pod in before if pod.ultraserver != places.get(pod.uid)]:
            new = [pod for pod in order if pod.uid in plan.places]
            self._start(changed[0].uid, self._say_restart(changed, new))
        return places

    async def _say_restart(self, changed: Sequence[NeuronPod], new: Sequence[NeuronPod]) -> None:
        others = f" and {len(new) - 1} more" if len(new) > 1 else ""
        note = (
            f"With {new[0].reference.name}{others} placed, {INDEX_VARIABLE} and the other variables of UltraServers "
            f"are not true any more in {len(changed)} running pods of its group: restart the whole group"
        )
        await self._context.report(changed[0].reference, EventReason.GROUP_MUST_RESTART, note)

    def _withdraw(self, planned: Iterable[NeuronPod]) -> None:
        """Take a plan off that was cut off half way: others may need the room."""
        for pod in planned:
            if pod.uid not in self._in_flight and not self._is_answered(pod):
                self._start(pod.uid, self._free_and_withdraw(pod))

    async def _free_and_withdraw(self, pod: NeuronPod) -> None:
        attempt = await self._writer.withdraw(pod)
        self._note(pod, attempt)

    def _place_leader(
        self, group: GroupName, waiting: Sequence[NeuronPod], members: Sequence[NeuronPod], least: int
    ) -> bool:
        """Place the pods that the others of their group wait for, where the whole group fits.

        The others are made once these are placed, or run: what they need is kept for them. Before the leader has waited
        long enough the group is looked at again at the next step.
        """
        leader = next((pod for pod in waiting if pod.member and pod.member.leads), None)
        if leader is None:
            return False
        if leader.created > self._context.unix_seconds() - self._context.times.leader:
            return True
        others = self._room.places.others_of(leader, members, least)
        if others is None:
            self._start(leader.uid, self._look_for_others(leader, least))
            return True
        if not others:
            return self._place_pod(leader)
        scene, whole = self._state.scene(), [*waiting, *others]
        wish = scene.cluster.wish_of(leader)
        plan = place_group(scene, whole, wish=wish, anchors=self._anchors(members), says_most=False)
        made = self._assumed_by(plan) if isinstance(plan, GroupPlan) else None
        if made is None or not isinstance(plan, GroupPlan):
            return False
        if self._checks and self._checks.must_wait(group, members, plan, whole):
            return False
        said = self._said_of(plan, [*members, *others])
        self._hand_over_group(group, made, said, [(pod, plan.places[pod.uid]) for pod in whole])
        return True

    async def _look_for_others(self, leader: NeuronPod, least: int) -> None:
        await self._room.places.look_for_others(leader, least)

    # Writing.

    def _send(self, pod: NeuronPod, request: ApiRequest, reason: str = "") -> None:
        """Send a PATCH; ``reason`` says why a pod is released without a node."""
        self._start(pod.uid, self._write(pod, lambda _: request, reason=reason))

    def _hand_over(self, pod: NeuronPod, node: str, write: _Write) -> None:
        """Hand a placed pod to its scheduler once it has its turn on the node. Nothing is written before."""
        self.queue.remove(pod.uid)
        self._in_line[pod.uid] = node, self._context.clock.now(), write
        if assumed := self._state.assumed.get(pod.uid):
            self._state.assume(replace(assumed, until=assumed.since + self._context.times.longest))
        self._serve([pod.uid])

    def _serve(self, line: Iterable[PodUid]) -> None:
        """Hand over those in line whose turn has come; nominated before that where pods without Neuron may come first.

        Where a node has closed meanwhile, its pods leave the line and are placed again. The pods of a group, which have
        a place among others, do so after a while: a plugin that starts again opens its node in seconds.
        """
        now, times, busy = self._context.clock.now(), self._context.times, set[str]()
        for uid in line:
            if len(self._in_flight) >= MOST_IN_FLIGHT:
                break
            pod = self._state.pods.get(uid)
            if pod and pod.group in self._unwritten:
                continue
            node, since, write = self._in_line[uid]
            info = self._state.nodes.get(node)
            is_closed = info is None or isinstance(info.capacity, Rejection)
            has_place = pod and pod.gated and (uid in self._state.assumed or pod.promised == node)
            is_void = pod and info and pod.reference in info.void  # it is taken off by the upkeep
            if not pod or not has_place or is_void or (is_closed and not (pod.promised or uid in self._state.reserved)):
                self._leave_line(uid)
            elif is_closed and now - since > times.closed:
                self._leave_line(uid)
                self._withdraw([pod] if pod.promised else [])
            elif not is_closed and node not in busy and self._writer.take_turn(pod, node):
                del self._in_line[uid]
                if assumed := self._state.assumed.get(uid):
                    self._state.assume(replace(assumed, since=now, until=inf))
                self._start(uid, self._write(pod, write, nominee_of=node if self._state.is_tight(node) else ""))
            else:
                busy.add(node)

    def _leave_line(self, uid: PodUid) -> None:
        del self._in_line[uid]
        self._state.forget(uid)
        self._undecided.add(uid)

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
        write: _Write,
        *,
        reason: str = "",
        nominee_of: str = "",
    ) -> None:
        assumed = self._state.assumed.get(pod.uid)
        try:
            attempt = await self._writer.place(pod, write, nominee_of=nominee_of)
        except Exception:  # noqa: BLE001 - whatever it is, one pod's placement must not end the daemon
            _log.exception("placing failed", extra={"pod": str(pod.reference), "uid": pod.uid})
            self._answered[pod.uid] = pod.version, self._context.clock.now() + self._context.times.refused
            self._state.forget(pod.uid)
            return
        is_new = self._answered.get(pod.uid, ("", 0.0))[0] != pod.version
        self._note(pod, attempt)
        if attempt.done and reason:
            await self._say_released(pod, reason)
        elif attempt.done and assumed:
            _log.info("pod placed", extra={"pod": str(pod.reference), "uid": pod.uid, "node": assumed.pod.place})
            self._writer.log_choice(assumed)
        elif is_new and attempt.status == HTTPStatus.FORBIDDEN:
            note = f"The pod cannot be placed, its gate stays: {attempt.error}"
            await self._context.report(pod.reference, EventReason.PLACEMENT_FORBIDDEN, note)

    def _note(self, pod: NeuronPod, attempt: Attempt) -> None:
        """Remember that a write was answered: it is not written again before the watch shows another version."""
        if attempt.outcome is Outcome.UNKNOWN:
            return  # it stays assumed until a read says what became of it
        until = inf
        if not attempt.done:
            self._state.roams_no_more(pod.uid)
            if isinstance(attempt.error, NotSentError):
                return
            path, times = getattr(attempt.error, "path", ""), self._context.times
            is_other_version = attempt.status == HTTPStatus.CONFLICT and path.startswith(PODS.group)
            seconds = times.tick if attempt.status == HTTPStatus.TOO_MANY_REQUESTS else times.refused
            until = inf if is_other_version else self._context.clock.now() + seconds
        self._answered[pod.uid] = pod.version, until

    async def _say_released(self, pod: NeuronPod, reason: str) -> None:
        self._state.history.released[pod.uid] = reason
        self._context.metrics.add("extender_released_plainly_total")
        _log.info("pod released without a place", extra={"pod": str(pod.reference), "uid": pod.uid, "reason": reason})
        among = " Nodes without a linked set are left out." if pod.uid in self._state.roaming else ""
        chosen = "node, the plugin the devices" if pod.request else "node"
        note = f"No node was chosen for the pod: {reason}. Its scheduler chooses the {chosen}.{among}"
        await self._context.report(pod.reference, EventReason.RELEASED_PLAINLY, note)
