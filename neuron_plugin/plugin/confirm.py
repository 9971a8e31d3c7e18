"""Asking the kubelet which pod holds what.

Allocate names no pod, so until the kubelet has been asked a holder is only supposed. PodResources answers by pod name:
``Get`` of the pods that may be meant, as soon as the call has returned. ``List`` is kept for quiet moments, because a
``List`` while the kubelet waits for an Allocate makes it forget the reservation and hand the devices out again
(kubernetes/kubernetes#137534).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Protocol

from neuron_plugin.allocation import ContainerKind, Holder
from neuron_plugin.kubelet import GetUnsupportedError, PodDevices, PodResourcesAbsentError, PodResourcesError
from neuron_plugin.plugin.answers import QUIET_SECONDS, Answers, OnConfirmed
from neuron_plugin.plugin.node import NodeState
from neuron_plugin.plugin.records import Records
from neuron_plugin.plugin.standins import stands_in

logger = logging.getLogger(__name__)

SETTLE_SECONDS = 0.05
"""The kubelet records an allocation some milliseconds after our answer."""
PERIOD_SECONDS = 10.0
LOOK_SECONDS = 1.0
"""How long a preference may wait for the kubelet's own account, and for a look at who uses what that frees."""


class PodResources(Protocol):
    """The kubelet's account of live pods."""

    async def get(self, namespace: str, name: str) -> PodDevices | None:
        """What one pod holds; None when the kubelet does not know the pod."""

    async def list(self) -> tuple[PodDevices, ...]:
        """What every live pod holds."""


class Confirmation:
    """Keeps the ledger true: asks after each Allocate, and every few seconds while anything is only supposed."""

    def __init__(
        self,
        state: NodeState,
        pod_resources: PodResources,
        on_confirmed: OnConfirmed,
        *,
        cluster: bool,
        look_at_users: Callable[[], Awaitable[None]] | None = None,
        read_records: Callable[[], Records] | None = None,
        look_at_strangers: Callable[[Collection[str]], Awaitable[bool]] | None = None,
    ) -> None:
        """``cluster``: pods and their ends come from the API server; without it they come from List alone.

        ``look_at_users`` looks which suspect devices are still open, see ``quarantine``. ``read_records`` reads the
        kubelet's own file, in a thread; nothing depends on it. ``look_at_strangers`` is called after the first List
        with the UIDs of pods that it named, as far as that file tells them, and again until it says that it is done.
        """
        self._state = state
        self._pod_resources = pod_resources
        self._answers = Answers(state, on_confirmed)
        self._cluster = cluster
        self._look_at_users = look_at_users
        self._read_records = read_records
        self._look_at_strangers = look_at_strangers
        self._news = asyncio.Event()
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

    async def rebuild(self) -> None:
        """Learn what live pods hold before anything is offered, for as long as the kubelet takes to tell it.

        Without a kubelet nothing can be offered either, so then this is made up for soon after it is there, and by the
        first preference at the latest.
        """
        told = None
        while (refused := await self._refused()) is not None:
            if refused != told:
                logger.warning("nothing is offered until the kubelet says who holds what", extra={"why": refused})
            told = refused
            await asyncio.sleep(QUIET_SECONDS)

    async def _refused(self) -> str | None:
        """Why a kubelet that is there did not answer; None when it did, or is not there."""
        try:
            await self._read()
            await self._list()
            await self._meet_strangers()
        except PodResourcesAbsentError as error:
            logger.info("the kubelet does not say yet who holds what", extra={"why": str(error)})
        except PodResourcesError as error:
            return str(error)
        return None

    async def look_again(self, disputed: Collection[Holder]) -> None:
        """Let go of those holders that the kubelet no longer lists: it offers what they hold, so they may have ended.

        For the time of a preference call only: the kubelet has reserved nothing then that a List could lose. With NUMA
        hints it may have, and may then offer an id twice; the ledger keeps that from being served, where a holder that
        is not let go would have the kubelet fail pod after pod.
        """
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await self._look_again(disputed)
        except (PodResourcesError, TimeoutError) as error:
            why = str(error) or f"no answer within {LOOK_SECONDS:g} s"
            logger.warning("choosing without the kubelet's account of its pods", extra={"why": why})

    async def _look_again(self, disputed: Collection[Holder]) -> None:
        await self._read()
        self._answers.let_go(disputed, await self._list())
        if self._look_at_users:
            await self._look_at_users()

    # When to ask.

    def _pause_seconds(self) -> float:
        """Until the next look without news: soon when a List only waits for a quiet moment."""
        waits = self._needs_list() and not self._is_quiet()
        behind = self._state.machine is not None and not self._state.holders_known
        return QUIET_SECONDS if waits or behind else PERIOD_SECONDS

    def _needs_list(self) -> bool:
        """Whether a List would tell something that nothing else does."""
        if self._state.machine is None:
            return False
        supposed = any(stands_in(holder) for holder in self._state.ledger)
        unasked = not self._can_get and bool(self._answers.unconfirmed())
        return not self._cluster or not self._state.holders_known or supposed or unasked

    def _is_quiet(self) -> bool:
        """Whether none of our calls can be under way."""
        return self._state.clock() - self._state.last_call >= QUIET_SECONDS

    # Asking.

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
                await self._read()
                if self._is_quiet():  # it may have asked for something meanwhile
                    await self._list()
            await self._meet_strangers()
        except PodResourcesError as error:
            logger.debug("confirming later", extra={"why": str(error)})

    async def _meet_strangers(self) -> None:
        look = self._look_at_strangers if self._state.holders_known else None
        if look and await look(self._answers.listed_uids):
            self._look_at_strangers = None

    async def _ask_for_pods(self) -> None:
        """Get every live pod that has not been confirmed yet."""
        unconfirmed = self._answers.unconfirmed()
        if any(part.kind is ContainerKind.INIT for pod in unconfirmed for part in pod.request):
            await self._read()
        for pod in unconfirmed:
            found = await self._pod_resources.get(pod.pod.namespace, pod.pod.name)
            if found:
                self._answers.take(pod.pod.uid, found)

    async def _list(self) -> tuple[PodDevices, ...]:
        began = self._state.clock()
        listed = await self._pod_resources.list()
        self._answers.take_list(listed, began)
        return listed

    async def _read(self) -> None:
        """The kubelet's own file, as it is now."""
        if self._read_records:
            self._answers.records = await asyncio.to_thread(self._read_records)
