"""The kubelet's two questions, and what is waited for before they are answered: ``answers`` says what.

GetPreferredAllocation may wait for the API server, for the kubelet's record and for ended pods' processes. Allocate
answers from memory; it waits for the same only before it would refuse. A refusal ends its pod for good, and a
ReplicaSet replaces that pod at once.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Protocol

from neuron_plugin.allocation import NeuronPod, PodUid, Resource
from neuron_plugin.allocation.event_reasons import EventReason
from neuron_plugin.kubelet import AllocationRefusedError, ContainerAllocation
from neuron_plugin.metrics import MetricCounts
from neuron_plugin.plugin.answers import (
    AllocateCall,
    Answer,
    Conflict,
    PreferenceRequest,
    answer_for,
    may_improve,
    preference_for,
)
from neuron_plugin.plugin.call_log import CallLog
from neuron_plugin.plugin.container import (
    ALLOCATION_KEY,
    container_allocation,
    container_style,
    reply_for,
    ultraserver_variables,
)
from neuron_plugin.plugin.inputs import PendingAnswer, named
from neuron_plugin.plugin.node import LocalNode
from neuron_plugin.plugin.settings import PluginSettings, TopologyPolicy
from neuron_plugin.plugin.snapshot import Snapshot
from neuron_plugin.plugin.writes import PodEvent

RECONSIDER_SECONDS = 4.0
"""How long a call may wait for ended pods' processes, after the kubelet and the API server were asked again.

After a force deletion a container runtime took 2.6 to 3.7 s to end the processes of one that ignores SIGTERM (1.36).
"""
POLL_SECONDS = 0.1
"""Between two looks at what an Allocate waits for."""


class PodLister(Protocol):
    """The API server, asked for this node's pods when the watch may lag behind the kubelet."""

    async def list_pods(self) -> None:
        """Take in a consistent LIST, under a deadline; never raises."""


class Allocator:
    """Answers the kubelet for all resources of the node.

    ``events`` of refused calls wait here for the publisher. ``last_call`` is when the kubelet last asked for
    something, on the node's clock: PodResources is never listed while a call is under way.
    """

    def __init__(self, node: LocalNode, settings: PluginSettings, pods: PodLister | None, counts: MetricCounts) -> None:
        """Without ``pods`` there is no API server."""
        self.log = CallLog(settings.node_name)
        self.events: deque[PodEvent] = deque(maxlen=256)
        self.last_call = float("-inf")
        self.calls_under_way = 0
        self._node = node
        self._settings = settings
        self._pods = pods
        self._counts = counts
        self._preference_request: PreferenceRequest | None = None
        self._latest_reply = ""

    async def preferred(
        self, resource: str, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        """Choose the ids that the next Allocate should carry."""
        request = PreferenceRequest(Resource(resource), _parsed(available), _parsed(must_include), size)
        with self._counted("preference_seconds", resource):
            self._preference_request = request  # the caller may give up while this waits
            self._node.see_offered(request.resource, set(request.available) - set(request.must_include))
            await self._node.disabled_known.wait()
            async with self._node.listing:
                self._node.look_at_checkpoint()
            preference = preference_for(self._snapshot(), request)
            if preference.waiting is None and self._pods:
                callers, unassigned = self._candidates(request.resource, request.size), self._snapshot().unassigned
                if not any(pod in unassigned for pod in callers):  # else a LIST would show nothing new
                    await self._pods.list_pods()
                    preference = preference_for(self._snapshot(), request)
            if may_improve(self._snapshot(), request, preference):
                async for snapshot in self._reconsidered():
                    preference = preference_for(snapshot, request)
                    if not may_improve(snapshot, request, preference):
                        break
            self._preference_request = request
        asyncio.get_running_loop().call_soon(self.log.preferred, self._snapshot(), request, preference)
        return [str(number) for number in preference.ids]

    async def allocate(self, resource: str, ids: Sequence[str]) -> ContainerAllocation:
        """Give a container its devices for exactly these ids.

        Raises:
            AllocationRefusedError: another pod has some of them, or its processes still use them. Or they are not
                linked and must be. Or only a pod whose request cannot be served can have asked.
        """
        with self._counted("allocate_seconds", resource):
            await self._node.disabled_known.wait()  # at the start of the daemon only
            drawn = AllocateCall(Resource(resource), _parsed(ids))
            request, self._preference_request = self._preference_request, None
            if request and request.leads_to(drawn.resource, drawn.ids):
                drawn = replace(drawn, after=request)
            began = self._node.clock()
            self._node.look_at_checkpoint()
            answer = answer_for(self._snapshot(), replace(drawn, latest=self._latest_pod(began)))
            if isinstance(answer, Conflict) and not answer.lasting:
                async for snapshot in self._reconsidered():
                    answer = answer_for(snapshot, replace(drawn, latest=self._latest_pod(began)))
                    if isinstance(answer, Answer):
                        break
            if isinstance(answer, Conflict):
                self._node.see_offered(drawn.resource, drawn.ids)
                callers = sorted(named(pod.reference) for pod in self._candidates(drawn.resource, len(drawn.ids)))
                text = f"{answer.text}; wanted by {' or '.join(callers) or 'a pod that is not known yet'}"
                raise self._refused(drawn, text)
            return self._give(drawn, answer)

    def _latest_pod(self, began: float) -> PodUid | None:
        """The pod of our latest answer, in a call that ``began`` at that time.

        With NUMA hints the kubelet may draw ids unasked that it has just taken from a static pod. Whether it still has
        them on that pod's account shows only a file that was written since.
        """
        inputs = self._snapshot().inputs
        if self._node.numa_nodes and inputs.recorded.rewritten_at < began:
            return None
        pending = [inputs.uid_of(answer) for answer in inputs.pending if answer.reply.id == self._latest_reply]
        recorded = inputs.recorded.entries.items()
        known = [key.uid for key, entry in recorded if entry.reply and entry.reply.id == self._latest_reply]
        return next(iter((*pending, *known)), None)

    def _give(self, call: AllocateCall, answer: Answer) -> ContainerAllocation:
        snapshot, resource = self._snapshot(), call.resource
        if answer.pod is None and not self._candidates(resource, len(call.ids)):
            for pod in snapshot.inputs.pods.pods.values():
                if (resource, len(call.ids)) in pod.life.refused_demands:
                    raise self._refused(call, str(pod.request))
        unlinked = "" if answer.assigned else snapshot.unlinked_text(resource, answer.mask)
        if unlinked and self._settings.topology_policy is TopologyPolicy.REQUIRED:
            raise self._refused(call, unlinked)
        inventory = snapshot.inventory
        reply = reply_for(inventory, secrets.token_hex(8), answer.mask)
        given = container_allocation(
            inventory.geometry, resource, answer.mask, container_style(self._settings, inventory)
        )
        self._node.answered(PendingAnswer(reply, resource, call.ids, self._node.clock(), answer.pod, answer.container))
        self._latest_reply = reply.id
        if unlinked:
            answer = replace(answer, reason=f"{answer.reason}; not linked: {unlinked}")
        loop = asyncio.get_running_loop()
        loop.call_soon(self._counts.add, "allocations_total", resource.value)
        loop.call_soon(self.log.allocated, snapshot, call, answer, given, reply.id)
        known = snapshot.inputs.pods.pods.get(answer.pod.uid) if answer.pod else None
        envs = {**given.envs, **ultraserver_variables(known, inventory)}
        return replace(given, envs=envs, annotations={ALLOCATION_KEY: reply.annotation()})

    async def _reconsidered(self) -> AsyncIterator[Snapshot]:
        """Snapshots after asking each that can settle a conflict: the kubelet's whole memory, the API server, time.

        Time ends hold-downs, and answers that the kubelet has never recorded. A pod that the kubelet has rejected is
        soon shown as failed.
        """
        await self._node.rewrite()
        yield self._snapshot()
        if self._pods:
            await self._pods.list_pods()
            yield self._snapshot()
        loop = asyncio.get_running_loop()
        until = loop.time() + RECONSIDER_SECONDS
        while loop.time() < until:
            inputs = self._snapshot().inputs
            forgotten = any(entry.missing for entry in inputs.recorded.entries.values())
            if not (inputs.hold_downs or inputs.pending or forgotten):
                return
            if not (self._node.rewrite_is_due and await self._node.rewrite()):
                await asyncio.sleep(POLL_SECONDS)
                self._node.look_again()
            yield self._snapshot()

    def _snapshot(self) -> Snapshot:
        snapshot = self._node.snapshot
        if snapshot is None:
            raise AllocationRefusedError("no Neuron device has been found on this node yet: is the driver loaded?")
        return snapshot

    def _candidates(self, resource: Resource, count: int) -> list[NeuronPod]:
        """The pods that may have made a call."""
        snapshot = self._snapshot()
        waiting = {assignment.pod.uid for assignment in snapshot.waiting}
        return [
            pod
            for pod in snapshot.inputs.pods.asking
            if (pod.uid in waiting or pod in snapshot.unassigned)
            and any((container.resource, container.count) == (resource, count) for container in pod.requests)
        ]

    def _refused(self, call: AllocateCall, text: str) -> AllocationRefusedError:
        """Record a refusal. It reaches the pod's status by the kubelet, and an event where the pod is certain."""
        snapshot, candidates = self._snapshot(), self._candidates(call.resource, len(call.ids))
        if len(candidates) == 1:
            self.events.append(PodEvent(candidates[0].reference, EventReason.ALLOCATION_REFUSED, text))
        self.log.refused(snapshot, call.resource, call.ids, text)
        return AllocationRefusedError(text)

    @contextmanager
    def _counted(self, metric: str, resource: str) -> Iterator[None]:
        started = time.perf_counter()
        self.calls_under_way += 1
        try:
            yield
        finally:
            self.calls_under_way -= 1
            self.last_call = self._node.clock()
            seconds = time.perf_counter() - started
            asyncio.get_running_loop().call_soon(partial(self._counts.observe, metric, resource, seconds=seconds))


def _parsed(ids: Sequence[str]) -> tuple[int, ...]:
    return tuple(sorted(map(int, ids)))
