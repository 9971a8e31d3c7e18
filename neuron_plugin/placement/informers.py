"""How the state follows the API server: watches of pods, nodes and the plugins' Leases, or one look without a daemon.

Each event of a watch is one synchronous call on the state, so between two events the state is whole.

A node's plugin renews a Lease of its own. When it stops, the node's statements about its devices are stale: no new pod
goes there, and no device is freed. A node without such a Lease is not judged: the vendor's plugin has none. A missing
renewal is no event, so the Leases are looked at periodically.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from neuron_plugin.allocation import Assignment, NeuronNode, NeuronPod, PodUid
from neuron_plugin.allocation.claims import NeuronClaim
from neuron_plugin.allocation.group import TopologyWish
from neuron_plugin.allocation.keys import GATE, PREFLIGHT_KEY, UTILIZATION_KEY
from neuron_plugin.allocation.preflight import CheckScope
from neuron_plugin.allocation.utilization import read_utilization
from neuron_plugin.backoff import CLOCK, Clock
from neuron_plugin.cluster import (
    ApiError,
    ApiRequest,
    ApiServer,
    ClusterError,
    Lease,
    Node,
    Pod,
    Reflector,
    Scope,
)
from neuron_plugin.cluster.api import PAGE_SECONDS, send
from neuron_plugin.cluster.claims import RESOURCE_CLAIMS, ResourceClaim, neuron_claim
from neuron_plugin.cluster.leases import LEADER_LEASE, LEASE_PREFIX, ObservedLease
from neuron_plugin.cluster.nodes import neuron_node
from neuron_plugin.cluster.objects import LEASES, NODES, POD_GROUPS, PodGroup, pages
from neuron_plugin.cluster.pods import (
    PODS,
    FinishedMember,
    PodUse,
    asks_for_neuron,
    finished_member,
    neuron_pod,
    pod_use,
)
from neuron_plugin.cluster.reflector import Observer
from neuron_plugin.placement import storage
from neuron_plugin.placement.check_pods import check_scope, group_standings
from neuron_plugin.placement.claims import ClaimedPods, Shown
from neuron_plugin.placement.reserves import RECORDS_KEY, see_reserves
from neuron_plugin.placement.state import ClusterState
from neuron_plugin.topology import Catalogue, Geometry, product_names

_log = logging.getLogger(__name__)
LOOK_SECONDS = 1.0
"""Between two looks at a Lease that shows whether it is renewed."""
_STORAGE_LOOK_SECONDS = 0.1
"""Between two looks whether the first lists of storage are in."""
PATIENCE_SECONDS = 45.0
"""How long ``watch_leases`` waits until Leases are renewed or run out: they last 8 s, or 40 in large clusters."""


@dataclass(frozen=True, slots=True)
class InformerTimes:
    """Seconds. ``tick``: between two looks at the Leases; ``groups``: between two looks for PodGroups.

    A pod that was deleted while it ran keeps its devices for ``departed``. Its node needs some tenths of a second to
    see that, and to report devices that the pod's processes still use.
    """

    tick: float = 2.0
    groups: float = 60.0
    departed: float = 3.0


TIMES = InformerTimes()


def keep_pod(pod: Pod, *, claims: bool = False) -> Shown:
    """Live pods that ask for Neuron, the use of nodes by other bound pods, and which pods of groups have succeeded.

    With ``claims``, pods that have claims may ask for Neuron by them: they are kept whole. So are all pods with our
    gate, because only we remove it.

    A terminal pod counts as gone, unless its kubelet got no devices for it. Phase and start time are left out: they
    decide nothing here, and so their changes do not change the state.
    """
    is_gated = any(gate.name == GATE for gate in pod.spec.scheduling_gates or ())
    if not (asks_for_neuron(pod) or is_gated or (claims and pod.spec.resource_claims)):
        return pod_use(pod)
    if pod.terminal and not pod.rejected_at_admission:
        return finished_member(pod)
    return neuron_pod(pod, progress=False)


class PluginLeases:
    """The plugins' Leases, and when each was last seen to be renewed, by our own clock."""

    def __init__(self) -> None:
        self._leases: dict[str, tuple[Lease, ObservedLease]] = {}
        self._doubted: set[str] = set()

    def changed(self, uid: str, lease: Lease | None, now: float) -> bool:
        """A Lease was seen at ``now``, or is gone; gives whether that ends a doubt.

        A plugin makes its Lease before it holds it. Until it has written a time there, even to give the Lease up, the
        plugin is not judged, as without a Lease.
        """
        known, observed = self._leases.pop(uid, (None, ObservedLease()))
        is_renewal = not lease or not known or lease.resource_version != known.resource_version
        was_doubted = is_renewal and uid in self._doubted
        if was_doubted:
            self._doubted.discard(uid)
        if lease is None or not lease.renewed_at:
            return was_doubted
        observed.observe(lease, now)
        self._leases[uid] = (lease, observed)
        return was_doubted

    def doubt(self, node: str) -> bool:
        """The node's kubelet got no devices from the plugin: it is stale until its Lease is renewed, if it has one."""
        uids = [uid for uid, (lease, _) in self._leases.items() if nodes_of([lease]) == {node}]
        self._doubted.update(uids)
        return bool(uids)

    def away(self) -> frozenset[str]:
        """The nodes whose Lease was given up, or was not renewed since a doubt: one look shows it."""
        return nodes_of(lease for uid, (lease, _) in self._leases.items() if uid in self._doubted or not lease.holder)

    def stale(self, now: float) -> frozenset[str]:
        """The nodes that are away, and the nodes whose Lease was not renewed for its whole duration."""
        expired = (lease for lease, observed in self._leases.values() if observed.expired(lease, now))
        return self.away() | nodes_of(expired)


def nodes_of(leases: Iterable[Lease]) -> frozenset[str]:
    """The nodes whose plugins renew these Leases."""
    return frozenset(lease.name.removeprefix(LEASE_PREFIX) for lease in leases)


_AnyReflector = (
    Reflector[Pod, NeuronPod | PodUse | FinishedMember]
    | Reflector[Node, NeuronNode]
    | Reflector[Lease, Lease]
    | Reflector[ResourceClaim, NeuronClaim]
)


class Informers:
    """The watches of one extender, and the state that they keep."""

    def __init__(
        self,
        api: ApiServer,
        state: ClusterState,
        types: Catalogue,
        observer: Observer | None = None,
        *,
        lease_namespace: str = "",
        dra_driver: str = "",
        times: InformerTimes = TIMES,
        clock: Clock = CLOCK,
    ) -> None:
        """With an empty ``lease_namespace``, plugins are not judged by their Leases.

        With a ``dra_driver``, claims of that driver are followed, too.
        """
        self._api = api
        self._state = state
        self._lease_namespace = lease_namespace
        self._observer = observer
        self._times = times
        self._clock = clock
        self._leases = PluginLeases()
        self._closed: frozenset[str] = frozenset()
        """The nodes that are closed because of their plugins' Leases."""
        self._pods: Reflector[Pod, NeuronPod | PodUse | FinishedMember] = Reflector(
            api, PODS, self._keep_pod, observer=observer
        )
        self._stopped: set[str] = set()
        """The UIDs of pods that are still kept and were seen to have ended, with no container running."""
        self._nodes = Reflector(api, NODES, partial(neuron_node, types=types), observer=observer)
        self._followed: dict[str, _AnyReflector] = {"nodes": self._nodes, "pods": self._pods}
        self._claimed: ClaimedPods | None = None
        self._claims: Reflector[ResourceClaim, NeuronClaim] | None = None
        if dra_driver:
            self._follow_claims(dra_driver)
        self._pods.subscribe(self._pod_shown)
        self._nodes.subscribe(self._node_changed)
        if lease_namespace:
            leases = Reflector(api, LEASES, _keep_plugin_lease, scope=Scope(lease_namespace), observer=observer)
            leases.subscribe(self._lease_changed)
            self._followed["leases"] = leases
        self._around = storage.reflectors(api, state, storage.ALWAYS, observer)
        self._storage = storage.reflectors(api, state, storage.STORAGE, observer)
        self._storage_wanted = asyncio.Event()
        self._groups: Reflector[PodGroup, PodGroup] | None = None

    def _follow_claims(self, driver: str) -> None:
        self._claimed = ClaimedPods(driver, self._pod_changed)
        self._claims = Reflector(
            self._api, RESOURCE_CLAIMS, partial(neuron_claim, driver=driver), observer=self._observer
        )
        self._claims.subscribe(self._claim_changed)
        self._followed["resourceclaims"] = self._claims
        self._claimed.see_machines(machines_of(self._state, driver))

    def ages(self) -> Mapping[str, float]:
        """By kind, how long ago the server was last heard of, in seconds."""
        return {kind: followed.age_seconds() for kind, followed in self._followed.items()}

    async def list_consistently(self, timeout_seconds: float) -> None:
        """Update the pods, and the claims if followed, to the server's current state.

        Raises:
            ClusterError: the server did not answer within ``timeout_seconds``, or refused.
        """
        if self._claims:
            await self._claims.list_consistently(timeout_seconds)
        await self._pods.list_consistently(timeout_seconds)

    async def list_once(self) -> None:
        """Bring the state to the server's current one, by one list of each kind: for a look without a daemon.

        A kind that may not be read is left out, except nodes and pods. Without ``dra_driver`` the nodes say it.

        Raises:
            ClusterError: the server refused nodes or pods, did not answer, or its answer cannot be read.
        """
        await self._nodes.list_consistently()
        await self._list_claims()
        await self._pods.list_consistently()
        with suppress(ApiError):
            if groups := await self._served_groups():
                await groups.list_consistently()
        for followed in self._around.values():
            with suppress(ApiError):
                await followed.list_consistently()
        if self._storage_wanted.is_set():
            doubt = ""
            for kind, followed in self._storage.items():
                try:
                    await followed.list_consistently()
                except ApiError as error:
                    doubt = f"{kind} cannot be read: {error}"
            self._see_storage(doubt)
        if self._lease_namespace:
            await read_leader(self._api, self._state, self._lease_namespace)
            with suppress(ApiError):
                await self._followed["leases"].list_consistently()
            await self._list_group_checks()

    async def _list_claims(self) -> None:
        """List the claims of the nodes' DRA driver, if a node has one and claims may be read."""
        inventories = (info.inventory for info in self._state.nodes.values())
        driver = next((inventory.claim_driver for inventory in inventories if inventory and inventory.claim_driver), "")
        if driver and not self._claims:
            self._follow_claims(driver)
        try:
            if self._claims:
                await self._claims.list_consistently()
        except ApiError as error:
            _log.info("claims not read", extra={"error": str(error)})
            self._claims = self._claimed = None
            del self._followed["resourceclaims"]

    async def _list_group_checks(self) -> None:
        scope = self._state.checked
        if scope.groups and scope.namespace:
            with suppress(ApiError):
                own = check_scope(scope.namespace, "group")
                listed = pages(self._api, PODS, own, page_timeout_seconds=PAGE_SECONDS)
                self._state.checks |= group_standings([pod async for page in listed for pod in page.records])

    async def watch_leases(self) -> frozenset[str]:
        """The nodes whose plugin's Lease is given up, or runs out while it is watched: one look cannot see that.

        So this lasts until every Lease was renewed (two seconds, or ten in a large cluster) or has run out.
        """
        first, began = self.leases, self._clock.now()
        while True:
            stale = self._leases.stale(self._clock.now())
            renewed = nodes_of(lease for lease in self.leases if lease not in first)
            if self._clock.now() - began >= PATIENCE_SECONDS or renewed | stale >= nodes_of(self.leases):
                return stale
            await self._clock.sleep(LOOK_SECONDS)
            with suppress(ApiError):
                await self._followed["leases"].list_consistently()

    @property
    def leases(self) -> list[Lease]:
        """The plugins' Leases, as they were last seen; none without the right to read them."""
        followed = self._followed.get("leases")
        return [lease for lease in followed.values.values() if isinstance(lease, Lease)] if followed else []

    @property
    def claims(self) -> Mapping[tuple[str, str], NeuronClaim]:
        """The claims by namespace and name; none where they are not followed."""
        return self._claimed.claims if self._claimed else {}

    def any_unbound(self) -> bool:
        """Whether a live pod that asks for Neuron has no node."""
        return any(isinstance(pod, NeuronPod) and not pod.node for pod in self._pods.values.values())

    async def run(self) -> None:
        """Follow everything until cancelled."""
        async with asyncio.TaskGroup() as group:
            for kind, followed in (*self._followed.items(), *self._around.items()):
                group.create_task(followed.run(), name=f"follow {kind}")
            group.create_task(self._follow_groups(), name="follow podgroups")
            group.create_task(self._follow_storage(), name="follow storage")
            while True:
                self._judge()
                self._state.end_departed(self._clock.now())
                await asyncio.sleep(self._times.tick)

    async def _follow_groups(self) -> None:
        """Follow PodGroups once the server has them; most clusters have none, and pods are then placed one by one."""
        while True:
            try:
                groups = await self._served_groups()
            except ClusterError as error:
                _log.info("pod groups not read", extra={"error": str(error)})
            else:
                if groups:
                    await groups.run()
            await self._clock.sleep(self._times.groups)

    async def _served_groups(self) -> Reflector[PodGroup, PodGroup] | None:
        """What follows the PodGroups that the server has; None if it has none.

        Raises:
            ClusterError: the server refused, or did not answer.
        """
        for resource in POD_GROUPS if self._groups is None else ():
            try:
                await send(
                    self._api, ApiRequest("GET", resource.collection(), {"limit": "1"}), timeout_seconds=PAGE_SECONDS
                )
            except ApiError as error:
                if error.missing:
                    continue
                raise
            self._groups = Reflector(self._api, resource, _keep_gang, observer=self._observer)
            self._groups.subscribe(partial(_show_group, self._state))
            break
        return self._groups

    async def _follow_storage(self) -> None:
        """Follow claims and volumes once a waiting pod has some."""
        await self._storage_wanted.wait()  # no deadline: most clusters have no such pod
        async with asyncio.TaskGroup() as group:
            for kind, followed in self._storage.items():
                group.create_task(followed.run(), name=f"follow {kind}")
            until = self._clock.now() + storage.PATIENCE_SECONDS
            while not storage.listed(self._storage.values()):
                missing = [kind for kind, followed in self._storage.items() if not followed.synced.is_set()]
                if self._clock.now() >= until and not self._state.storage.doubt:
                    self._see_storage(doubt=f"{', '.join(missing)} cannot be read")
                await self._clock.sleep(_STORAGE_LOOK_SECONDS)
            self._see_storage()

    def _see_storage(self, doubt: str = "") -> None:
        self._state.storage = replace(self._state.storage, doubt=doubt, waits="")
        self._state.needs_changed()

    async def pods_listed(self) -> None:
        """Wait until the first list of pods is in."""
        await self._pods.synced.wait()  # no deadline: not ready meanwhile, and the probes report it

    async def synced(self) -> None:
        """Wait until the first lists of pods and nodes are in.

        The Leases are not waited for: without the right to read them plugins go unjudged, which is no reason to stop.
        """
        await self.pods_listed()
        await self._nodes.synced.wait()  # no deadline: as above
        if self._claims:
            await self._claims.synced.wait()  # no deadline: pods' devices by claims decide as much as the rest

    async def leases_listed(self, within_seconds: float) -> None:
        """Wait until the first list of Leases is in, but not for ever: without the right to read them there is none."""
        if leases := self._followed.get("leases"):
            with suppress(TimeoutError):
                async with asyncio.timeout(within_seconds):
                    await leases.synced.wait()

    def _judge(self) -> None:
        """Close and open nodes by their plugins' Leases.

        An unwatched Lease has not run out, and a new watch first has to show missed changes. Two facts need no watch:
        that a Lease was given up, because a leader that has just started must not place pods there, and that a plugin
        is back.
        """
        leases = self._followed.get("leases")
        if leases is None:
            return
        watched = leases.followed_seconds() >= self._times.tick
        stale = self._leases.stale(self._clock.now())
        self._closed = stale if watched else (self._closed & stale) | self._leases.away()
        self._state.set_stale(self._closed)

    def _keep_pod(self, pod: Pod) -> Shown:
        """Note which pods end by themselves: when they leave the watch, that looks like a deletion."""
        known = self._pods.values.get(pod.uid)
        if isinstance(known, NeuronPod) and pod.terminal and not pod.running:
            self._stopped.add(pod.uid)
        return keep_pod(pod, claims=self._claimed is not None)

    def _claim_changed(self, uid: str, before: NeuronClaim | None, claim: NeuronClaim | None) -> None:  # noqa: ARG002 - a listener
        known = claim or before
        if self._claimed and known:
            self._claimed.put_claim((known.namespace, known.name), claim)

    def _pod_shown(self, uid: str, before: Shown, pod: Shown) -> None:
        (self._claimed.put_pod if self._claimed else self._pod_changed)(uid, before, pod)

    def _pod_changed(self, uid: str, before: Shown, pod: Shown) -> None:
        """A rejected pod that was seen alive with an assignment of ours shows that its node's plugin is away."""
        was_running = isinstance(before, NeuronPod) and before.running and not before.ended
        was_deleted_running = was_running and pod is None and uid not in self._stopped
        if isinstance(before, NeuronPod) and self._claimed and self._claimed.is_shared(before):
            was_deleted_running = False  # another pod has its devices
        if isinstance(pod, NeuronPod) and pod.rules.claims and not (pod.node or self._storage_wanted.is_set()):
            self._state.storage = replace(self._state.storage, waits=storage.NOT_READ)
            self._storage_wanted.set()
        show_pod(self._state, uid, before, pod, self._clock.now() + self._times.departed if was_deleted_running else 0)
        if not isinstance(pod, NeuronPod) or pod.ended:
            self._stopped.discard(uid)
        if not (isinstance(before, NeuronPod) and isinstance(pod, NeuronPod) and pod.ended):
            return
        if not before.ended and isinstance(before.assignment, Assignment) and self._leases.doubt(before.node):
            self._state.history.rejections.append(replace(before, rejection_message=pod.rejection_message))
            self._judge()

    def _node_changed(self, uid: str, before: NeuronNode | None, node: NeuronNode | None) -> None:
        if node is not None:
            self._state.put_node(node)
        elif before is not None:
            self._state.remove_node(before.name, uid)
        if self._claimed and any(record and record.rules.claim_driver for record in (before, node)):
            self._claimed.see_machines(machines_of(self._state, self._claimed.driver))

    def _lease_changed(self, uid: str, before: Lease | None, lease: Lease | None) -> None:
        was_doubted = self._leases.changed(uid, lease, self._clock.now())
        if lease:
            self._state.history.renewals[lease.name.removeprefix(LEASE_PREFIX)] = lease.renewed_at
        elif before:
            self._state.history.renewals.pop(before.name.removeprefix(LEASE_PREFIX), None)
        self._state.leased -= nodes_of(filter(None, [before]))
        self._state.leased |= nodes_of([lease] if lease and lease.renewed_at else [])
        _see_utilization(self._state, before, lease)
        was_held = before is None or bool(before.holder)
        if lease and (was_held != bool(lease.holder) or was_doubted):
            self._judge()  # a plugin stops or is back: the next pod should know


def show_pod(state: ClusterState, uid: str, before: Shown, pod: Shown, kept_until: float = 0.0) -> None:
    """Change a pod in the state from ``before`` to ``pod``: either may ask for Neuron, or not, or be gone.

    When a pod is gone, its shared claims count for the next pod that has them. For ``kept_until`` see
    ``ClusterState.remove_pod``.
    """
    use_before, use = (record if isinstance(record, PodUse) else None for record in (before, pod))
    asks = pod if isinstance(pod, NeuronPod) and not pod.ended else None
    if asks is None and (isinstance(pod, NeuronPod) or isinstance(before, NeuronPod)):
        state.remove_pod(PodUid(uid), kept_until=kept_until)
    if use_before != use:
        state.put_other(uid, use_before, use)
    finished_before, finished = (record if isinstance(record, FinishedMember) else None for record in (before, pod))
    if finished_before != finished:
        state.see_finished(uid, finished_before, finished)
    if asks:
        state.put_pod(asks)


def _show_group(state: ClusterState, _: str, before: PodGroup | None, group: PodGroup | None) -> None:
    for record, is_there in ((before, False), (group, True)):
        if record:
            name = record.namespace, record.name
            state.set_min_count(name, record.min_count if is_there else 0)
            level = record.topology_key if is_there else ""
            state.set_wish(name, TopologyWish(required=level) if level else None)


def machines_of(state: ClusterState, driver: str) -> frozenset[Geometry]:
    """The machines of the nodes of a DRA driver."""
    inventories = (info.inventory for info in state.nodes.values())
    return frozenset(inventory.geometry for inventory in inventories if inventory and inventory.claim_driver == driver)


def _see_utilization(state: ClusterState, before: Lease | None, lease: Lease | None) -> None:
    """Read the utilization of a node's containers from its Lease; most renewals do not change it."""
    texts = [record.annotations.get(UTILIZATION_KEY, "") if record else "" for record in (before, lease)]
    named = lease or before
    if named and texts[0] != texts[1]:
        state.see_utilization(named.name.removeprefix(LEASE_PREFIX), read_utilization(texts[1]))


def see_leader(state: ClusterState, lease: Lease | None) -> None:
    """Read the leader's annotations of its Lease: the scope of its pre-flight checks, and its reservations."""
    says = lease.annotations if lease else {}
    state.check(CheckScope.read(says.get(PREFLIGHT_KEY, "")))
    see_reserves(state, says.get(RECORDS_KEY, "[]") if lease and lease.holder else "[]")


async def read_leader(api: ApiServer, state: ClusterState, lease_namespace: str) -> None:
    """Bring the leader's statements in its Lease into the state; nothing if the Lease cannot be read."""
    request = ApiRequest("GET", LEASES.item(LEADER_LEASE, lease_namespace))
    with suppress(ClusterError):
        see_leader(state, LEASES.decode(await send(api, request, timeout_seconds=PAGE_SECONDS)))


def _keep_gang(group: PodGroup) -> PodGroup | None:
    return group if group.min_count > 0 or group.topology_key else None


def _keep_plugin_lease(lease: Lease) -> Lease | None:
    return lease if lease.name.startswith(LEASE_PREFIX) else None


def surveyed(nodes: Iterable[Node], pods: Iterable[Pod], types: Catalogue) -> ClusterState:
    """The state that follows from some nodes and pods."""
    state = ClusterState(products=product_names(types))
    for pod in pods:
        _take_pod(state, pod)
    for node in nodes:
        state.put_node(neuron_node(node, types))
    return state


def _take_pod(state: ClusterState, record: Pod) -> None:
    show_pod(state, record.uid, None, keep_pod(record))
