"""The one writer: every write about a pod, and the recovery of writes whose answer was lost.

After a failed write, the one question is whether it may have happened anyway. A 4xx says no; a 5xx, a time-out or a
broken connection leaves it open. Then the pod stays assumed at its place, and is read back later. No write is sent
unless this replica's term as leader lasts longer than the request may take.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Collection, Container
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus

from neuron_plugin.allocation import (
    Assignment,
    Capacity,
    Dialect,
    NeuronPod,
    Placement,
    PodReference,
    PodUid,
    Rejection,
)
from neuron_plugin.allocation.placement import assignment_of
from neuron_plugin.allocation.pod import assigned_allocations
from neuron_plugin.cluster import ApiError, ApiRequest, ClusterError, UnreachableError
from neuron_plugin.cluster.api import send
from neuron_plugin.cluster.pods import PODS, neuron_pod
from neuron_plugin.cluster.writes import read_pod
from neuron_plugin.decision_log import LoggedDecision, Step
from neuron_plugin.placement.claims import ClaimWriter, Results, results_of
from neuron_plugin.placement.context import Context
from neuron_plugin.placement.gates import writes
from neuron_plugin.placement.state import AssumedPod

_log = logging.getLogger(__name__)


class Outcome(enum.StrEnum):
    """The known result of a write."""

    DONE = "done"
    REFUSED = "refused"
    """It did not happen."""
    UNKNOWN = "unknown"
    """It may have happened, or may still happen."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A write that was tried. ``body`` is the server's answer."""

    outcome: Outcome
    body: bytes = b""
    error: ClusterError | None = None

    @property
    def done(self) -> bool:
        """Whether it is known to be written."""
        return self.outcome is Outcome.DONE

    @property
    def status(self) -> int:
        """The HTTP status of a refusal, 0 without one."""
        return self.error.status if isinstance(self.error, ApiError) else 0


class NotSentError(ClusterError):
    """Nothing was sent: this replica may not write now."""


def attempt_of(error: ClusterError) -> Attempt:
    """The attempt that ended in this error."""
    if isinstance(error, UnreachableError):
        unknown = error.may_have_arrived
    elif isinstance(error, NotSentError):
        unknown = False
    else:
        unknown = not isinstance(error, ApiError) or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return Attempt(Outcome.UNKNOWN if unknown else Outcome.REFUSED, error=error)


class Writer:
    """Writes of one replica. Assignments are written in these ``dialects``; ``claims`` allocates by DRA."""

    def __init__(
        self,
        context: Context,
        dialects: Collection[Dialect] = (Dialect.NEURON_PLUGIN,),
        claims: ClaimWriter | None = None,
    ) -> None:
        self._context = context
        self._state = context.state
        self.dialects = dialects
        self.claims = claims
        self._on_its_way: dict[str, tuple[PodUid, float]] = {}
        """By node, the last pod sent there, and when."""

    async def send(self, request: ApiRequest, *, timeout_seconds: float = 0.0) -> Attempt:
        """One write. A server that is too busy is asked again after the delay that it names, within the time-out."""
        clock = self._context.clock
        ends = clock.now() + (timeout_seconds or self._context.times.write)
        while True:
            if why_not := self._context.why_not_write():
                return Attempt(Outcome.REFUSED, error=NotSentError(why_not))
            try:
                return Attempt(Outcome.DONE, await send(self._context.api, request, timeout_seconds=ends - clock.now()))
            except ApiError as error:
                wait = error.retry_after_seconds if error.status == HTTPStatus.TOO_MANY_REQUESTS else None
                if wait is None or clock.now() + wait >= ends:
                    return attempt_of(error)
            except ClusterError as error:
                return attempt_of(error)
            await clock.sleep(wait)

    def assumed_at(self, pod: NeuronPod, node: str, placement: Placement, *, bound: bool = False) -> AssumedPod | str:
        """A pod as it will be after the write of its placement; or why it cannot be written.

        ``bound``: written with its binding, else as a promise.
        """
        info = self._state.nodes[node]
        if info.inventory is None:
            return "the node's devices are not known"
        by_claims = bool(pod.rules.claim_driver)  # then its claims hold its assignment
        if by_claims and self.claims is None:
            return "claims are not allocated here: dra-driver is not set"
        only_vendors = not by_claims and Dialect.NEURON_PLUGIN not in self.dialects
        if only_vendors and len({container.resource for container in pod.requests}) > 1:
            return f"pod {pod.reference} asks for two resources, which the vendor's dialect cannot say"
        assignment = assignment_of(info.inventory.geometry, placement, self._context.unix_ns())
        own, promised = (node, pod.promised) if bound else (pod.node, node)
        return AssumedPod(
            replace(pod, node=own, promised=promised, assignment=assignment),
            () if by_claims else self.dialects,
            self._context.clock.now(),
            chosen_from=info.capacity if isinstance(info.capacity, Capacity) else None,
            claims=results_of(pod, placement, info.inventory, node) if by_claims else (),
        )

    async def place(self, pod: NeuronPod, write: Callable[[NeuronPod], ApiRequest], *, nominee_of: str = "") -> Attempt:
        """Write a placement: the claims, a nomination where CPU is short, then the one PATCH with the version read.

        The assumed pod is forgotten if the write is known not to have happened.
        """
        uid, times = pod.uid, self._context.times
        assumed, seen, half = self._state.assumed.get(uid), pod, times.write / 2
        if self.claims and assumed and assumed.claims:
            allocated = await self.allocate(self.claims, pod, assumed.pod.promised, assumed.claims)
            if not allocated.done:
                return self._ended(pod, allocated)
        if nominee_of:
            nominated = await self.send(writes.nominate(pod, nominee_of), timeout_seconds=half)
            if not nominated.done:
                return self._ended(pod, nominated)
            seen = replace(pod, version=PODS.decode(nominated.body).resource_version)
        if assumed and (nominee_of or assumed.claims) and self._state.assumed.get(uid) is assumed:
            self._state.assume(replace(assumed, since=self._context.clock.now()))  # this write begins now
        return self._ended(pod, await self.send(write(seen), timeout_seconds=half if nominee_of else times.write))

    async def allocate(self, claims: ClaimWriter, pod: NeuronPod, node: str, results: Results) -> Attempt:
        """Allocate those claims of a pod that do not have this allocation yet."""
        seconds = self._context.times.write / 2
        try:
            await claims.allocate(pod, node, results, timeout_seconds=seconds, check=self._check)
        except ClusterError as error:
            return attempt_of(error)
        return Attempt(Outcome.DONE)

    def take_turn(self, pod: NeuronPod, node: str) -> bool:
        """Whether a pod may be sent to a node now; if so, others wait until the plugin has given it its devices.

        If the plugin stops meanwhile, the kubelet rejects the pod for good, and that closes the node until the plugin
        renews its Lease. So only one pod is lost with a plugin, not a whole burst
        (docs/decisions/0057-one-pod-at-a-time-on-its-way-to-a-node.md). Without a Lease nothing would close the node,
        and maybe no plugin gives out devices: then pods go as they come. So do pods of a PodGroup, because
        kube-scheduler binds none of them before it has seen all.
        """
        waits_for_others = pod.group in self._state.min_counts
        if node not in self._state.leased or pod.rules.claim_driver or waits_for_others:
            return True
        now = self._context.clock.now()
        uid, since = self._on_its_way.get(node, (PodUid(""), 0.0))
        last = self._state.pods.get(uid)
        has_devices = last is not None and isinstance(last.assignment, Assignment) and last.assignment.allocated
        is_coming = uid in self._state.assumed or (last is not None and last.place == node)
        if is_coming and not has_devices and now - since < self._context.times.admission:
            return False
        self._on_its_way[node] = pod.uid, now
        return True

    async def withdraw(
        self,
        pod: NeuronPod,
        write: Callable[[NeuronPod], ApiRequest] = writes.withdraw,
        *,
        read_first: bool = False,
    ) -> Attempt:
        """Take a placement off a pod that is not bound, after freeing the allocations of its claims.

        ``write`` is what does so on the pod as it was read. ``read_first``: the pod is no longer gated, so its version
        differs from the one that was seen.
        """
        times = self._context.times
        try:
            if read_first:
                seen = await self.read(pod.reference)
                if seen is None or seen.node:
                    return Attempt(Outcome.REFUSED)
                pod = seen
            if self.claims and pod.claims:
                # First, because a withdrawn pod is not looked at again. A claim reserved for a bound pod is a conflict.
                await self.claims.free(pod, timeout_seconds=times.write / 2)
        except ClusterError as error:
            return attempt_of(error)
        return await self.send(write(pod))

    def _check(self) -> None:
        if why_not := self._context.why_not_write():
            raise NotSentError(why_not)

    def _ended(self, pod: NeuronPod, attempt: Attempt) -> Attempt:
        fields = {"pod": str(pod.reference), "uid": pod.uid, "error": str(attempt.error)}
        if attempt.done:
            self._state.confirm(pod.uid)
        elif attempt.outcome is Outcome.UNKNOWN:
            _log.warning("it is not known whether a pod was placed", extra=fields)
        else:
            _log.info("pod not placed", extra=fields)
            self._state.forget(pod.uid)
        return attempt

    # Writes whose answer was lost.

    async def take_over(self) -> None:
        """Forget assumptions of an earlier term of this replica: another replica may have given the devices away since.

        A new leader lists once each write of an earlier term has landed, or never will. So a write that the watch does
        not show by now did not happen.
        """
        for uid in list(self._state.assumed):
            self._state.forget(uid)

    def unseen(self) -> int:
        """Confirmed writes that the watch should have shown by now; asked from a scrape's thread, too."""
        return sum(pod.confirmed and self._is_due(pod) for pod in list(self._state.assumed.values()))

    async def settle(self, under_way: Container[str] = ()) -> None:
        """Look up the assumed pods that the watch should have shown by now, and confirm or forget them."""
        for assumed in list(self._state.assumed.values()):
            if not self._is_due(assumed):
                continue
            pod = assumed.pod.reference
            try:
                seen = await self.read(pod)
                seconds = self._context.times.read
                if self.claims and not await self.claims.are_shown(
                    pod.namespace, assumed.claims, timeout_seconds=seconds
                ):
                    continue  # a claim may have been allocated: the watch's version is older
            except ClusterError:
                continue  # still unknown: it stays assumed
            if self._state.assumed.get(pod.uid) is not assumed or pod.uid in under_way:
                continue  # the watch or a new attempt was faster
            if seen is None or seen.ended or seen.place != assumed.pod.place:
                self._state.forget(pod.uid)
                _log.info("assumed pod forgotten", extra={"pod": str(pod), "uid": pod.uid, "node": assumed.pod.place})
            else:
                self.adopt(replace(assumed, since=self._context.clock.now()), seen)

    def adopt(self, assumed: AssumedPod, seen: NeuronPod) -> None:
        """The pod is where we wanted it: count its own assignment, if that can be read."""
        if seen.uid in self._state.assumed:
            pod = seen if isinstance(seen.assignment, Assignment) else assumed.pod
            self._state.assume(replace(assumed, pod=pod, confirmed=True))

    async def read(self, pod: PodReference) -> NeuronPod | None:
        """The pod of this name by a consistent read; None when there is none or it has another UID.

        Raises:
            ClusterError: the server did not answer, or refused.
        """
        request = read_pod(namespace=pod.namespace, name=pod.name)
        try:
            answer = await send(self._context.api, request, timeout_seconds=self._context.times.read)
        except ApiError as error:
            if error.missing:
                return None
            raise
        current = PODS.decode(answer)
        return replace(neuron_pod(current), version=current.resource_version) if current.uid == pod.uid else None

    def _is_due(self, assumed: AssumedPod) -> bool:
        """Whether so much time has passed that the watch should have shown this pod, and has not."""
        pod, times = self._state.pods.get(assumed.pod.uid), self._context.times
        if assumed.expected or (pod is not None and pod.place == assumed.pod.place):
            return False
        return self._context.clock.now() - assumed.since > (times.doubt if assumed.confirmed else times.landing)

    def log_choice(self, assumed: AssumedPod) -> None:
        """Remember why a pod got these sets, for ``neuron-plugin decisions``; nothing where nothing was chosen."""
        capacity, pod = assumed.chosen_from, assumed.pod
        if capacity is None:
            return
        allocations = assigned_allocations(pod, capacity.geometry)
        for allocation in () if isinstance(allocations, Rejection) else allocations:
            at = self._context.unix_ns()
            made = (at, Step.BOUND, pod.place, capacity.geometry, allocation.resource, allocation.mask)
            usable = partial(int, capacity.free_mask)
            why = "takes least from later pods"
            self._context.decisions.record(LoggedDecision(*made, why, pod.reference, allocation.container, usable))
