"""Asking the kubelet which pod holds what.

Allocate names no pod, so until the kubelet has been asked a holder is only supposed. PodResources answers by pod name:
``Get`` of the pods that may be meant, as soon as the call has returned. ``List`` is kept for quiet moments, because a
``List`` while the kubelet waits for an Allocate makes it forget the reservation and hand the devices out again
(kubernetes/kubernetes#137534).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Protocol

from neuron_plugin.allocation.ledger import Holder, Holding, PodUid, union_of
from neuron_plugin.allocation.requests import Kind
from neuron_plugin.kubelet.pod_resources import GetUnsupportedError, PodDevices, PodResourcesError
from neuron_plugin.plugin.node import NodeState
from neuron_plugin.plugin.pods import NodePod
from neuron_plugin.plugin.records import Records, uid_of, unlisted_holdings
from neuron_plugin.plugin.standins import is_nameless, named_stand_in, stands_in
from neuron_plugin.plugin.truth import listed_holdings, true_holdings, with_unlisted
from neuron_plugin.topology.geometry import Geometry

logger = logging.getLogger(__name__)

SETTLE_SECONDS = 0.05
"""The kubelet records an allocation some milliseconds after our answer."""
QUIET_SECONDS = 1.0
"""Without an Allocate for so long none of ours is under way."""
GRACE_SECONDS = 30.0
"""How long a stand-in that the kubelet does not list is kept: far longer than an admission takes."""
PERIOD_SECONDS = 10.0
LOOK_SECONDS = 1.0
"""How long a preference may wait for the kubelet's own account, and for a look at who uses what that frees."""


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
        self._on_confirmed = on_confirmed
        self._cluster = cluster
        self._look_at_users = look_at_users
        self._read_records = read_records
        self._records: Records = ()
        self._look_at_strangers = look_at_strangers
        self._listed_uids: frozenset[str] = frozenset()
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
        """Learn what live pods hold before anything is offered.

        Without a kubelet nothing can be offered either, so then this is made up for soon after it is there, and by the
        first preference at the latest.
        """
        try:
            await self._list()
            await self._meet_strangers()
        except PodResourcesError as error:
            logger.info("the kubelet does not say yet who holds what", extra={"why": str(error)})

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
        listed = await self._list()
        for uid in [holder.pod.uid for holder in disputed]:
            holder = self._state.ledger.holders.get(uid)
            if holder and not is_nameless(holder) and self._has_gone(holder, listed):
                self._state.end(uid, self._mask_of(listed))
        if self._look_at_users:
            await self._look_at_users()

    def _has_gone(self, holder: Holder, listed: tuple[PodDevices, ...]) -> bool:
        """Whether the kubelet lists no pod of this name, or one that has other ids: a new pod of an old name.

        Or one without what it would list by now: what was noted for it was another's.
        """
        same = [found for found in listed if (found.namespace, found.name) == (holder.pod.namespace, holder.pod.name)]
        mask = self._mask_of(same)
        return not same or not (mask & holder.mask if mask else self._is_unlisted(holder))

    def _is_unlisted(self, holder: Holder) -> bool:
        """Whether all that is noted for a pod is what the kubelet never lists, or certain."""
        pod = self._state.pods.get(holder.pod.uid)
        if pod is None or holder.pod.uid in self._state.confirmed:
            return True
        kinds = {part.container: part.kind for part in pod.request}
        return all(kinds.get(holding.container) is Kind.INIT for holding in holder.holdings)

    def _mask_of(self, listed: Iterable[PodDevices]) -> int:
        machine, mask = self._state.machine, 0
        if machine:
            for holding in (one for found in listed for one in listed_holdings(machine.geometry, found)):
                mask |= holding.mask
        return mask

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
        unasked = not self._can_get and bool(self._unconfirmed())
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
                await self._list()
            await self._meet_strangers()
        except PodResourcesError as error:
            logger.debug("confirming later", extra={"why": str(error)})

    async def _meet_strangers(self) -> None:
        if self._state.holders_known and self._look_at_strangers and await self._look_at_strangers(self._listed_uids):
            self._look_at_strangers = None

    async def _ask_for_pods(self) -> None:
        """Get every live pod that has not been confirmed yet."""
        unconfirmed = self._unconfirmed()
        if any(part.kind is Kind.INIT for pod in unconfirmed for part in pod.request):
            await self._read()
        for pod in unconfirmed:
            found = await self._pod_resources.get(pod.pod.namespace, pod.pod.name)
            if found:
                self._take(pod.pod.uid, found)

    def _unconfirmed(self) -> list[NodePod]:
        return [pod for uid, pod in self._state.pods.items() if pod.request and uid not in self._state.confirmed]

    async def _list(self) -> tuple[PodDevices, ...]:
        await self._read()
        began = self._state.clock()
        listed = await self._pod_resources.list()
        if self._state.machine is not None:
            self._take_list(self._state.machine.geometry, listed, began)
            self._state.holders_known = True
        return listed

    async def _read(self) -> None:
        """The kubelet's own file, as it is now."""
        if self._read_records:
            self._records = await asyncio.to_thread(self._read_records)

    # Taking in what the kubelet says.

    def _take(self, uid: PodUid, found: PodDevices) -> None:
        """One pod's devices, once they are complete. The pod may have ended or changed while the kubelet was asked."""
        pod, machine = self._state.pods.get(uid), self._state.machine
        if pod is None or machine is None or uid in self._state.confirmed:
            return
        listed = listed_holdings(machine.geometry, found)
        if self._is_predecessors(pod, listed):
            return
        ledger, confirmed = self._state.ledger, self._state.confirmed
        holdings = true_holdings(machine.geometry, pod, listed, ledger, confirmed, self._records)
        if holdings:
            self._state.confirm(pod.pod, holdings)
            self._on_confirmed(pod, holdings)
            return
        for holding in listed:  # restarted in the middle of an admission, we know of its first half from here only
            if not ledger.holders_of(holding.mask):
                self._state.hold(pod.pod, holding)

    def _is_predecessors(self, pod: NodePod, listed: tuple[Holding, ...]) -> bool:
        """Whether the kubelet, asked by name, still tells of a pod that vanished and has been made anew.

        What it lists for the new one it has asked us for, so that somebody holds it.
        """
        lost = self._state.has_lost_name(pod.pod)
        return lost and bool(listed) and not self._state.ledger.holders_of(union_of(listed))

    def _take_list(self, geometry: Geometry, listed: tuple[PodDevices, ...], began: float) -> None:
        """Pods that no watch has shown are held by name; stand-ins that are not listed are let go."""
        uids = {(pod.pod.namespace, pod.pod.name): uid for uid, pod in self._state.pods.items()}
        self._listed_uids = frozenset(uid_of(self._records, found) for found in listed) - {""}
        for found in listed:
            uid = uids.get((found.namespace, found.name))
            if uid:
                self._doubt(geometry, uid, found)
                self._take(uid, found)
            elif not self._state.pods_known:
                self._take_by_name(geometry, found)
        self._release_stand_ins(geometry, listed, began)

    def _doubt(self, geometry: Geometry, uid: PodUid, found: PodDevices) -> None:
        """Confirm a pod anew for which the kubelet lists more than it holds: that was another pod's account.

        The kubelet answers by name, and for a moment still for the pod that had this name before.
        """
        holder = self._state.ledger.holders.get(uid)
        held = holder.mask if holder else 0
        if uid in self._state.confirmed and any(one.mask & ~held for one in listed_holdings(geometry, found)):
            name = f"{found.namespace}/{found.name}"
            logger.warning("the kubelet lists other ids for a pod than before", extra={"pod": name})
            self._state.doubt(uid)

    def _take_by_name(self, geometry: Geometry, found: PodDevices) -> None:
        listed, pod = listed_holdings(geometry, found), named_stand_in(found.namespace, found.name)
        if listed and uid_of(self._records, found):  # its file tells all, what a call that was cut off left included
            sets = {(one.resource, one.mask) for one in listed}
            recorded = unlisted_holdings(geometry, self._records, found)
            self._state.confirm(pod, (*listed, *(one for one in recorded if (one.resource, one.mask) not in sets)))
        elif listed:
            self._state.confirm(pod, with_unlisted(pod, listed, self._state.ledger))

    def _release_stand_ins(self, geometry: Geometry, listed: tuple[PodDevices, ...], began: float) -> None:
        """Those that the kubelet does not list; a nameless one later if it may be an init container's.

        None that was made since the List ``began``, which cannot have it.

        Where the watch knows all pods, a name that it does not know is a pod that has ended: kubelets before 1.34 go
        on listing it.
        """
        names = {(found.namespace, found.name) for found in listed}
        if self._state.pods_known:
            names &= {(pod.pod.namespace, pod.pod.name) for pod in self._state.pods.values()}
        masks: dict[tuple[str, str], int] = {}
        held = 0
        for found in listed:
            mask = union_of(listed_holdings(geometry, found))
            masks[found.namespace, found.name] = masks.get((found.namespace, found.name), 0) | mask
            held |= mask
        for holder in [holder for holder in self._state.ledger if stands_in(holder)]:
            name = (holder.pod.namespace, holder.pod.name)
            if is_nameless(holder):
                lasts = bool(holder.mask & held) or self._may_be_unlisted(holder)
            else:  # of the same name and with nothing of it: another pod that was made anew
                lasts = name in names and bool(holder.mask & masks[name])
            if not lasts and self._state.tenancy.since.get(holder.pod.uid, float("-inf")) < began:
                self._state.release(holder.pod.uid)

    def _may_be_unlisted(self, holder: Holder) -> bool:
        """Whether a nameless holder may be a plain init container, of a pod that the watch knows or will yet show.

        The one that was noted last may be that of the pod that is being admitted right now, whom no watch has shown.
        """
        since = self._state.tenancy.since.get(holder.pod.uid, float("-inf"))
        age = self._state.clock() - since
        if age > GRACE_SECONDS:
            return False
        if age < QUIET_SECONDS and since == max(self._state.tenancy.since.values()):
            return True
        asking = [part for pod in self._unconfirmed() for part in pod.request if part.kind is Kind.INIT]
        return not self._state.pods_known or any(
            part.resource is holding.resource for part in asking for holding in holder.holdings
        )
