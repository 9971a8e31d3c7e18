"""Asking the kubelet which pod holds what.

Allocate names no pod, so until the kubelet has been asked a holder is only supposed. PodResources answers by pod name:
``Get`` of the pods that may be meant, as soon as the call has returned. ``List`` is kept for quiet moments, because a
``List`` while the kubelet waits for an Allocate makes it forget the reservation and hand the devices out again
(kubernetes/kubernetes#137534).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from neuron_plugin.allocation.ledger import Holding, PodUid
from neuron_plugin.kubelet.pod_resources import GetUnsupportedError, PodDevices, PodResourcesError
from neuron_plugin.plugin.node import NodeState
from neuron_plugin.plugin.pods import NodePod
from neuron_plugin.plugin.truth import listed_holdings, stands_in, true_holdings
from neuron_plugin.topology.geometry import Geometry

logger = logging.getLogger(__name__)

SETTLE_SECONDS = 0.05
"""The kubelet records an allocation some milliseconds after our answer."""
QUIET_SECONDS = 1.0
"""Without an Allocate for so long none of ours is under way."""
GRACE_SECONDS = 30.0
"""How long a stand-in that the kubelet does not list is kept: far longer than an admission takes."""
PERIOD_SECONDS = 10.0


class PodResources(Protocol):
    """The kubelet's account of live pods."""

    async def get(self, namespace: str, name: str) -> PodDevices | None:
        """What one pod holds; None when the kubelet does not know the pod."""

    async def list(self) -> tuple[PodDevices, ...]:
        """What every live pod holds."""


OnConfirmed = Callable[[NodePod, tuple[Holding, ...]], None]
"""Told of each pod and what all of its containers hold, once it is certain."""


class Confirmation:
    """Keeps the ledger true: asks after each Allocate, and every few seconds while anything is only supposed."""

    def __init__(
        self, state: NodeState, pod_resources: PodResources, on_confirmed: OnConfirmed, *, cluster: bool
    ) -> None:
        """``cluster``: pods and their ends come from the API server; without it they come from List alone."""
        self._state = state
        self._pod_resources = pod_resources
        self._on_confirmed = on_confirmed
        self._cluster = cluster
        self._news = asyncio.Event()
        self._confirmed: set[PodUid] = set()
        self._can_get = True

    def notify(self) -> None:
        """Something was allocated, or a pod came."""
        self._news.set()

    async def run(self) -> None:
        """Ask whenever there is news, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self._pause_seconds()):
                    await self._news.wait()
                await asyncio.sleep(SETTLE_SECONDS)
            except TimeoutError:
                pass  # nothing new: what is still open is asked again
            self._news.clear()
            await self._ask()

    def _pause_seconds(self) -> float:
        """Until the next look without news: soon when a List only waits for a quiet moment."""
        return PERIOD_SECONDS if self._is_quiet() or not self._needs_list() else QUIET_SECONDS

    async def rebuild(self) -> None:
        """Learn what live pods hold before anything is offered. Without a kubelet there is nothing to learn."""
        try:
            self._take_list(await self._pod_resources.list())
        except PodResourcesError as error:
            logger.info("the kubelet does not say yet who holds what", extra={"why": str(error)})

    async def _ask(self) -> None:
        try:
            if self._cluster and self._can_get:
                await self._ask_for_pods()
        except GetUnsupportedError as error:
            logger.info("asking the kubelet for all pods at once instead", extra={"why": str(error)})
            self._can_get = False
        except PodResourcesError as error:
            logger.debug("confirming later", extra={"why": str(error)})
        try:
            if self._needs_list() and self._is_quiet():
                self._take_list(await self._pod_resources.list())
        except PodResourcesError as error:
            logger.debug("confirming later", extra={"why": str(error)})

    async def _ask_for_pods(self) -> None:
        """Get every live pod that has not been confirmed yet."""
        for uid in self._unconfirmed():
            pod = self._state.pods.get(uid)
            found = await self._pod_resources.get(pod.pod.namespace, pod.pod.name) if pod else None
            if found and pod and uid in self._state.pods:
                self._take(pod, found)

    def _unconfirmed(self) -> list[PodUid]:
        self._confirmed &= set(self._state.pods)
        return [uid for uid, pod in self._state.pods.items() if pod.request and uid not in self._confirmed]

    def _take(self, pod: NodePod, found: PodDevices) -> None:
        machine = self._state.machine
        listed = listed_holdings(machine.geometry, found) if machine else ()
        holdings = true_holdings(machine.geometry, pod, listed, self._state.ledger) if machine and listed else None
        if holdings:
            self._state.confirm(pod.pod, holdings)
            self._confirmed.add(pod.pod.uid)
            self._on_confirmed(pod, holdings)

    def _needs_list(self) -> bool:
        """Whether a List would tell something that nothing else does."""
        supposed = any(stands_in(holder) for holder in self._state.ledger)
        return not self._cluster or supposed or (not self._can_get and bool(self._unconfirmed()))

    def _is_quiet(self) -> bool:
        """Whether none of our calls can be under way."""
        return self._age_of_latest() >= QUIET_SECONDS

    def _age_of_latest(self) -> float:
        return self._state.clock() - max(self._state.held_since.values(), default=float("-inf"))

    def _take_list(self, listed: tuple[PodDevices, ...]) -> None:
        """Pods that the watch has not shown are held by name; stand-ins that are not listed are let go."""
        if self._state.machine is None:
            return
        geometry = self._state.machine.geometry
        pods = {(pod.pod.namespace, pod.pod.name): pod for pod in self._state.pods.values()}
        for found in listed:
            holdings, pod = listed_holdings(geometry, found), pods.get((found.namespace, found.name))
            if pod and pod.pod.uid not in self._confirmed:
                self._take(pod, found)
            elif holdings and not pod:
                self._state.confirm(self._state.named_stand_in(found.namespace, found.name), holdings)
        self._release_unlisted(geometry, listed)

    def _release_unlisted(self, geometry: Geometry, listed: tuple[PodDevices, ...]) -> None:
        held = 0
        for found in listed:
            for holding in listed_holdings(geometry, found):
                held |= holding.mask
        for holder in [holder for holder in self._state.ledger if stands_in(holder) and not holder.mask & held]:
            age = self._state.clock() - self._state.held_since.get(holder.pod.uid, float("-inf"))
            if holder.pod.namespace or age > GRACE_SECONDS:
                self._state.release(holder.pod.uid)
