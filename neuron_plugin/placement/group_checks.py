"""The checks of groups before they start: a pod at each place that was chosen for a group, and their results.

A group asks for a check by an annotation of its pods. Once its whole plan is found, the places are kept for its
members, and the pods of the check are made there, with the members' future devices. When all have passed, the group is
placed. If one fails, the group avoids its node for a while, and is planned elsewhere.

The pods of the check hold all of its state, so the next leader goes on where this one ended. Failed pods stay as long
as their nodes are avoided, for their logs. ``check_steps`` judges them.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from math import inf

from neuron_plugin.allocation import NeuronPod, PodUid
from neuron_plugin.allocation.group import GroupName
from neuron_plugin.allocation.node import Reservation
from neuron_plugin.allocation.placement import placement_mask
from neuron_plugin.allocation.pod import in_rank_order
from neuron_plugin.allocation.preflight import PreflightState, broken_devices
from neuron_plugin.cluster import ClusterError
from neuron_plugin.cluster.objects import pages
from neuron_plugin.cluster.pods import PODS
from neuron_plugin.cluster.writes import create_pod
from neuron_plugin.placement.check_pods import CheckedPlace, check_pod, check_scope, group_check_manifest, read_place
from neuron_plugin.placement.check_steps import CheckEnd, CheckPod, group_verdict, named_devices, running_text
from neuron_plugin.placement.context import Context
from neuron_plugin.placement.leadership import CONDITION
from neuron_plugin.placement.preflight import EVENTS, delete_check, give_devices, rules_of
from neuron_plugin.placement.reserves import cores_text
from neuron_plugin.placement.settings import PreflightSettings
from neuron_plugin.placement.writer import Outcome, Writer
from neuron_plugin.planning.groups import GroupPlan
from neuron_plugin.planning.scene import GroupStanding
from neuron_plugin.wording import first_of, named

MOST_EVENTS = 20
"""Pods of one group that get an event about its check."""
_SHOWN = 4
"""Nodes that one event names."""
_CHECK = "#check"
"""Behind a member's UID: what is kept for the pod that checks its place."""
_log = logging.getLogger(__name__)

_Spot = tuple[str, str, str]
_Found = Sequence[tuple[CheckedPlace, CheckPod]]


@dataclass
class _Check:
    """The check of a group, its ``places`` in the order of the ranks, and the ``kept`` ones.

    ``made``: the making of its pods has begun, so its places are final. ``ended`` counts pods that have ended. Once it
    has passed, or the group is placed unchecked, its places are kept until ``until``, by the clock of the watches.
    """

    places: tuple[CheckedPlace, ...]
    kept: Mapping[str, Reservation] = field(default_factory=dict)
    made: bool = False
    ended: int = 0
    passed: bool = False
    until: float = inf

    @property
    def at(self) -> float:
        return self.places[0].at


class GroupChecks:
    """The checks of one replica; their pods are in ``namespace``."""

    def __init__(self, context: Context, writer: Writer, settings: PreflightSettings, namespace: str) -> None:
        self._context = context
        self._state = context.state
        self._writer = writer
        self._settings = settings
        self._namespace = namespace
        self._rules = rules_of(settings)
        self._checks: dict[GroupName, _Check] = {}
        self._avoided: defaultdict[GroupName, dict[str, float]] = defaultdict(dict)
        """By group, the nodes where its check has failed, and until when it avoids them, in unix seconds."""
        self._held: dict[GroupName, tuple[float, str]] = {}
        """Groups that wait because their check cannot run: until when, and why."""
        self._unsaid: list[tuple[GroupName, PreflightState, str]] = []
        self._unseen: dict[PodUid, float] = {}
        """By its name, until when the place of a check's pod is kept, which the watch may not show yet.

        What is kept for a member ends with the member, and the pod of the check may come all the same.
        """
        self._leads = self._is_known = False
        """Whether the last leader's pods of checks were read."""
        self._has_pods = True
        """Whether there may be pods to delete."""

    # Questions of the placer.

    def holds(self, group: GroupName, members: Sequence[NeuronPod]) -> bool:
        """Whether a group that asks for a check waits, and no places are looked for."""
        if not self._is_asked_by(members):
            return False
        if not self._is_known or self._held.get(group, (0.0, ""))[0] > self._context.unix_seconds():
            return True
        check = self._checks.get(group)
        if check is None or not check.passed:
            return check is not None and check.made
        # The ended pods may have the devices for a moment longer.
        return not all(map(self._is_free, check.places))

    def must_wait(
        self, group: GroupName, members: Sequence[NeuronPod], plan: GroupPlan, pods: Sequence[NeuronPod]
    ) -> bool:
        """Whether a group with a plan for these pods has to wait for a check of the places; begins the check.

        A pod that comes after others have their places is not checked.
        """
        if not self._is_asked_by(members):
            return False
        known, unix_now = self._checks.get(group), self._context.unix_seconds()
        chosen = [pod for pod in in_rank_order(pods) if pod.uid in plan.places and pod.requests]
        places = tuple(
            CheckedPlace(
                uid=pod.uid,
                namespace=group[0],
                name=pod.reference.name,
                node=plan.places[pod.uid][0],
                cores=cores_text(placement_mask(plan.places[pod.uid][1])),
                at=unix_now,
                group="/".join(group),
                rank=rank,
                size=len(chosen),
                resource=pod.requests[0].resource.value,
            )
            for rank, pod in enumerate(chosen)
        )
        chosen_spots, known_spots = {*map(_spot, places)}, {*map(_spot, known.places)} if known else set[_Spot]()
        if known and known.passed and known_spots <= chosen_spots:
            return False
        if known_spots == chosen_spots:
            return True
        self._drop(group)
        by_claims = self._state.checked.claims
        odd = (pod for pod in chosen if len(pod.requests) > 1 or (pod.rules.claim_driver and not by_claims))
        if pod := next(odd, None):
            how = "in several requests" if len(pod.requests) > 1 else "by claims"
            return self._cannot_run(group, f"pod {pod.reference} asks for its devices {how}")
        kept = {place.uid: place.reservation for place in places}
        self._checks[group] = _Check(places, kept)
        for reservation in kept.values():
            self._state.reserve(reservation)
        self._publish()
        return True

    def _is_asked_by(self, members: Sequence[NeuronPod]) -> bool:
        asks = any(pod.member and pod.member.preflight for pod in members)
        return asks and not any(pod.place or pod.uid in self._state.assumed for pod in members)

    def _is_free(self, place: CheckedPlace) -> bool:
        info, reservation = self._state.nodes.get(place.node), place.reservation
        return info is not None and not reservation.mask & ~info.without({reservation.pod.uid}).free_mask

    # Periodic work.

    async def look(self) -> None:
        """One look at all checks of groups; without any, the API server is not asked."""
        if self._leads and self._context.ready.conditions.get(CONDITION):
            self._forget()
        if self._context.why_not_write():
            return
        self._leads = True
        self._release([key for key, until in self._unseen.items() if self._context.clock.now() >= until])
        now = self._context.unix_seconds()
        self._end_avoiding(now)
        if not self._is_known or self._checks or self._has_pods:
            found = await self._read()
            if found is None:
                return
            self._has_pods = False
            for group in {*found, *self._checks}:
                await self._tend(group, found.get(group, []), now)
        self._publish()
        unsaid, self._unsaid = self._unsaid, []
        for group, state, note in unsaid:
            for member in self._state.members_of(group)[:MOST_EVENTS]:
                await self._context.report(member.reference, EVENTS[state], note)

    async def take_over(self) -> None:
        """Find the checks that the last leader has made, before their places are given to other pods."""
        self._forget()
        if self._namespace:
            await self._read()
        self._publish()

    async def _read(self) -> Mapping[GroupName, _Found] | None:
        """The pods of checks, by group; None if the API server does not answer. The first time they are taken over."""
        try:
            scope = check_scope(self._namespace, "group")
            listed = pages(self._context.api, PODS, scope, page_timeout_seconds=self._context.times.request)
            pods = [pod async for page in listed for pod in page.records]
        except ClusterError as error:
            _log.info("pods of groups' checks not listed", extra={"error": str(error)})
            return None
        found = defaultdict[GroupName, list[tuple[CheckedPlace, CheckPod]]](list)
        for pod in pods:
            if place := read_place(pod):
                found[place.group_name].append((place, check_pod(pod, self._rules.timeout)))
        if not self._is_known:
            for group, checks in found.items():
                self._adopt(group, checks)
            self._is_known = True
            self._state.needs_changed()
        return found

    def _forget(self) -> None:
        """Another replica leads."""
        self._leads = False
        for group in list(self._checks):
            self._drop(group)
        self._release(list(self._unseen))
        self._avoided.clear()
        self._held.clear()
        self._is_known = False
        self._publish()

    def _adopt(self, group: GroupName, found: _Found) -> None:
        """Go on with a check of the last leader if all its pods are there, and none has failed."""
        for _, pod in found:
            if pod.end is CheckEnd.FAILED and not pod.terminating:
                self._avoided[group][pod.node] = pod.created + (self._rules.retry or inf)
        last = max(place.at for place, _ in found)
        current = sorted(((place, pod) for place, pod in found if place.at == last), key=lambda one: one[0].rank)
        is_good = all(pod.end in {CheckEnd.RUNS, CheckEnd.PASSED} and not pod.terminating for _, pod in current)
        if is_good and len(current) == current[0][0].size:
            places = tuple(place for place, _ in current)
            kept = {place.uid: place.reservation for place in places}
            self._checks[group] = _Check(places, kept, made=True)
            for reservation in kept.values():
                self._state.reserve(reservation)

    async def _tend(self, group: GroupName, found: _Found, now: float) -> None:
        """Take the next step of one group's check, and delete the pods that are of no use any more."""
        check = self._checks.get(group)
        if check:
            own = {place.uid: pod for place, pod in found if place.at == check.at}
            shown = (uid for uid, pod in own.items() if pod.end is not CheckEnd.RUNS or pod.uid in self._state.pods)
            self._release(PodUid(f"{uid}{_CHECK}") for uid in shown)
            if self._is_void(group, check):
                self._drop(group)
            elif not check.passed:
                await self._go_on(group, check, own, now)
        check = self._checks.get(group)
        for place, pod in found:
            is_log = pod.end is CheckEnd.FAILED and pod.node in self._avoided.get(group, ())
            is_needed = check and place.at == check.at and not (check.passed and pod.end is CheckEnd.RUNS)
            if not (is_log or is_needed):
                self._has_pods = True
                await delete_check(self._writer, self._namespace, pod)

    def _is_void(self, group: GroupName, check: _Check) -> bool:
        """Whether a check is of no use: its group is placed, lacks one of its pods, or lost one of its devices.

        Or the group does not fit there any more, and is to be planned anew.
        """
        if check.passed and self._context.clock.now() >= check.until:
            return True
        members = self._state.members_of(group)
        uids = {pod.uid for pod in members}
        own = {place.uid for place in check.places if "#" not in place.uid}  # else it is not made yet
        return any(pod.place for pod in members) or not own <= uids or any(map(self._is_broken, check.places))

    def _is_broken(self, place: CheckedPlace) -> bool:
        info = self._state.nodes.get(place.node)
        if info is None or info.inventory is None:
            return True
        devices = info.inventory.geometry.devices_touched(place.reservation.mask)
        return not {*broken_devices(info.inventory)}.isdisjoint(devices)

    async def _go_on(self, group: GroupName, check: _Check, own: Mapping[str, CheckPod], now: float) -> None:
        """Judge the pods of a check, and make those that are missing."""
        verdict = group_verdict([own.get(place.uid) for place in check.places], check.at, self._rules, now)
        check.ended = sum(pod.end is not CheckEnd.RUNS for pod in own.values())
        match verdict.end:
            case CheckEnd.PASSED:
                _log.info("group has passed its pre-flight check", extra={"group": "/".join(group)})
                self._allow_placing(check)
                self._context.metrics.add("preflight_group_checks_total", "passed")
            case CheckEnd.FAILED:
                self._has_failed(group, verdict.blamed, now)
            case CheckEnd.NOT_RUN:
                self._cannot_run(group, verdict.why)
            case CheckEnd.RUNS:
                check.made = True
                for pod in verdict.again:
                    await delete_check(self._writer, self._namespace, pod)
                for place in check.places:
                    if place.uid in own:
                        mask = place.reservation.mask
                        await give_devices(self._context, self._writer, own[place.uid], mask)
                await self._make(group, check, own)

    async def _make(self, group: GroupName, check: _Check, own: Mapping[str, CheckPod]) -> None:
        nodes = self._state.nodes
        peers = [(place.node, nodes[place.node].node.address or place.node) for place in check.places]
        for place in check.places:
            if place.uid in own or place.node not in nodes:
                continue
            node = nodes[place.node].node
            manifest = group_check_manifest(self._settings, node, self._namespace, place, peers, self._writer.dialects)
            kept, key = place.reservation, PodUid(f"{place.uid}{_CHECK}")
            self._state.reserve(replace(kept, pod=replace(kept.pod, uid=key)))
            self._unseen[key] = self._context.clock.now() + self._context.times.landing
            attempt = await self._writer.send(create_pod(manifest, self._namespace))
            # A conflict means that the previous pod is still being deleted.
            if attempt.outcome is Outcome.REFUSED and attempt.status and attempt.status != HTTPStatus.CONFLICT:
                self._cannot_run(group, f"its pod on node {place.node} was refused: {attempt.error}")
                return

    def _has_failed(self, group: GroupName, blamed: Sequence[CheckPod], now: float) -> None:
        until = now + self._rules.retry if self._rules.retry else inf
        self._avoided[group] |= dict.fromkeys((pod.node for pod in blamed), until)
        self._context.metrics.add("preflight_group_checks_total", "failed")
        texts = [f"{pod.node} ({_text_of(pod)})" for pod in blamed]
        spell = f"for {self._rules.retry:g} s" if self._rules.retry else "from now on"
        note = (
            f"The pre-flight check of group {group[1]} has failed on node{'s' * (len(texts) > 1)} "
            f"{first_of(texts, _SHOWN)}. The group is placed elsewhere, and avoids what has failed {spell}"
        )
        self._say(group, PreflightState.FAILED, note)
        self._drop(group)
        self._publish()  # before the placer looks again

    def _cannot_run(self, group: GroupName, why: str) -> bool:
        """Place the group unchecked, or let it wait for another try; gives whether it waits."""
        closes, retry = self._rules.closes, self._rules.retry
        self._context.metrics.add("preflight_group_checks_total", "unable")
        after = f"It is tried again after {retry:g} s" if retry else "It is not tried again"
        effect = f"The group waits. {after}" if closes else "The group is placed unchecked"
        self._say(group, PreflightState.UNABLE, f"The pre-flight check of group {group[1]} cannot run: {why}. {effect}")
        check = self._checks.get(group)
        if closes:
            until = self._context.unix_seconds() + retry if retry else inf
            self._held[group] = until, f"The pre-flight check of its group cannot run: {why}. {after}"
            self._drop(group)
        elif check:
            self._allow_placing(check)
        self._publish()
        return closes

    def _allow_placing(self, check: _Check) -> None:
        """Place the group where it was checked, once the check's pods have freed the devices."""
        check.passed, check.until = True, self._context.clock.now() + self._context.times.doubt

    def _say(self, group: GroupName, state: PreflightState, note: str) -> None:
        _log.warning("pre-flight check of a group", extra={"group": "/".join(group), "said": note})
        self._unsaid.append((group, state, note))

    def _drop(self, group: GroupName) -> None:
        """End a check and release its places, unless other pods have them by now."""
        if check := self._checks.pop(group, None):
            self._has_pods = True
            for key, reservation in check.kept.items():
                if self._state.reserved.get(key) is reservation:
                    self._state.release(key)

    def _release(self, keys: Iterable[PodUid]) -> None:
        """Keep nothing more for pods of checks: the watch shows them by now."""
        for key in keys:
            if self._unseen.pop(key, None):
                self._state.release(key)

    def _end_avoiding(self, now: float) -> None:
        """End the avoiding of nodes and holding of groups whose time is over, or whose group is gone."""
        for group, nodes in list(self._avoided.items()):
            left = {node: until for node, until in nodes.items() if until > now and self._state.members_of(group)}
            self._has_pods |= left != nodes
            self._avoided[group] = left
            if not left:
                del self._avoided[group]
        self._held = {
            group: held for group, held in self._held.items() if held[0] > now and self._state.members_of(group)
        }

    def _publish(self) -> None:
        """Publish the state of groups' checks, and let the placer look again if it has changed."""
        standings = {
            group: GroupStanding(self._waits(group), frozenset(self._avoided.get(group, ())))
            for group in {*self._checks, *self._avoided, *self._held}
        }
        if standings != self._state.checks or any(check.passed for check in self._checks.values()):
            self._state.checks.clear()
            self._state.checks.update(standings)
            self._state.needs_changed()

    def _waits(self, group: GroupName) -> str:
        if (check := self._checks.get(group)) and not check.passed:
            return running_text(check.ended, len(check.places))
        return self._held.get(group, (0.0, ""))[1]


def _spot(place: CheckedPlace) -> _Spot:
    return place.uid, place.node, place.cores


def _text_of(pod: CheckPod) -> str:
    """The failure as the pod of a check reports it: the devices that it names, and its last line."""
    said = next((line.strip() for line in reversed(pod.said.splitlines()) if line.strip()), "it has said nothing")
    devices = named_devices(pod.said)
    return f"{named('device', devices)}: {said}" if devices else said
