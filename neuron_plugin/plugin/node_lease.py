"""A Lease that says: this node's plugin serves.

The extender leaves out a node whose Lease has expired, and frees nothing there. So the Lease is renewed only while the
kubelet follows a resource: a plugin that merely runs is of no use to a pod. The Node object owns the Lease.

When the kubelet ends, the Lease has no holder until the plugin is registered with the next one: a kubelet that starts
may admit a pod before that, and a pod that was bound meanwhile fails then. Such a pod should not come at all.

At SIGTERM the Lease is given up: the kubelet reports its devices gone only with its next node status, up to 10 s later,
and a pod that is bound in between fails at its admission. It is not deleted: a node without a Lease counts as
served, because nodes of the vendor's plugin have none. ``uninstall`` deletes it.

The renewal carries how much the node's containers use their cores: it is written anyway, and read where that is shown
(docs/decisions/0041-utilization-rides-on-the-lease.md).

A write without an answer may land later. So a renewal names the version of the Lease that was seen last, and the Lease
is created without a holder.

600 plugins that renew every two seconds take half a CPU of the API server. So a plugin looks how many nodes there are,
and renews less often in a large cluster: ``LeaseTimes.spread_over``.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NoReturn

from neuron_plugin.allocation.keys import UTILIZATION_KEY
from neuron_plugin.backoff import every
from neuron_plugin.cluster import ApiError, ApiRequest, ApiServer, ClusterError, Lease, LeaseName, ObjectReference
from neuron_plugin.cluster.api import MERGE_PATCH, send
from neuron_plugin.cluster.leases import LEASE_PREFIX
from neuron_plugin.cluster.objects import LEASES, NODES, count_of
from neuron_plugin.cluster.writes import claim_lease, create_lease, read_node, renew_lease, utc_now
from neuron_plugin.telemetry import Problem

logger = logging.getLogger(__name__)

GIVE_UP_SECONDS = 1.2
"""For giving up. The plugin serves meanwhile; a lost write leaves the node open for as long as the Lease lasts."""
COUNT_SECONDS = 1800.0
"""Between two looks at how many nodes there are."""
FEW_NODES, MOST_STRETCH = 100, 5
"""Up to ``FEW_NODES`` nodes Leases are renewed as often as the settings say. With more nodes they are renewed less
often, at least a fifth as often: by default every 10 s, as kubelets renew theirs."""


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """How long a Lease lasts, and how often it is renewed, in seconds."""

    duration: float
    renew: float

    def spread_over(self, nodes: int) -> LeaseTimes:
        """The times in a cluster of ``nodes`` nodes.

        By default all plugins together renew 50 times a second at most; with more than 500 nodes as often as kubelets.
        """
        stretch = min(max(nodes / FEW_NODES, 1.0), MOST_STRETCH)
        return LeaseTimes(self.duration * stretch, self.renew * stretch)


def node_lease(namespace: str, node: str) -> LeaseName:
    """The Lease of one node's plugin, as it is while the plugin serves."""
    return LeaseName(namespace, f"{LEASE_PREFIX}{node}", holder=node)


class NodeLease:
    """Renews the Lease of ``node`` while ``serving``."""

    def __init__(self, namespace: str, node: str, times: LeaseTimes) -> None:
        self.serving = False
        self.utilization: str | None = None
        """The text to write with the next renewal; None as long as it is not known, and empty to remove it."""
        self.found_utilization: str | None = None
        """The text that the Lease had before this plugin wrote it; None as long as the Lease has not been read."""
        self._lease = node_lease(namespace, node)
        self._node = node
        self._configured = times
        self._times = times
        self._counted_at = float("-inf")
        self._seen: Lease | None = None
        self._held = False
        """Whether the API server may have us as the holder, by what was sent last."""
        self._ended = False
        self._due = asyncio.Event()

    def serve(self, *, serving: bool) -> None:
        """Say whether the kubelet follows a resource. When that changes the Lease is written at once."""
        if serving != self.serving:
            self._due.set()
        self.serving = serving and not self._ended

    async def run(self, api: ApiServer) -> NoReturn:
        """Renew until cancelled, or give the Lease up for a while; what fails is tried again at the next turn."""
        problem = Problem(logger, "cannot renew the Lease", ClusterError, node=self._node)

        async def look() -> None:
            if self.serving or (self._held and not self._ended):
                with problem:
                    await self._count_nodes(api)  # first: a Lease has to last until it is renewed next
                    try:
                        await self._claim(api)
                    except ApiError as error:
                        if not (error.missing or error.other_object):
                            raise
                        await self._claim(api)  # it is not the Lease that was seen last, which is forgotten now

        await every(lambda: self._times.renew, look, self._due)

    async def give_up(self, api: ApiServer) -> bool:
        """Have the extender close the node now, and never renew again. Whether the API server has answered.

        Without an answer the node is closed when the Lease expires.
        """
        self._ended, self.serving = True, False
        without_holder = replace(self._lease, holder="")
        try:
            await send(
                api,
                renew_lease(without_holder, duration_seconds=self._times.duration, now=utc_now()),
                timeout_seconds=GIVE_UP_SECONDS,
            )
        except ClusterError as error:
            logger.debug("the Lease was not given up", extra={"node": self._node, "error": repr(error)})
            return False
        return True

    async def _count_nodes(self, api: ApiServer) -> None:
        """Look now and then how many nodes there are."""
        now = asyncio.get_running_loop().time()
        if now - self._counted_at >= COUNT_SECONDS:
            self._counted_at = now
            with suppress(ClusterError):
                nodes = await count_of(api, NODES, timeout_seconds=self._configured.renew)
                self._times = self._configured.spread_over(nodes)

    async def _claim(self, api: ApiServer) -> None:
        """Write on the version that was seen last. Until there is an answer it is not known which version there is."""
        seen = self._seen or await self._look(api)
        self._seen = None
        if not self._ended:
            lease = self._lease if self.serving else replace(self._lease, holder="")
            self._held = self._held or bool(lease.holder)
            annotations = {} if self.utilization is None else {UTILIZATION_KEY: self.utilization}
            claim = claim_lease(
                lease, seen, duration_seconds=self._times.duration, now=utc_now(), annotations=annotations
            )
            self._seen = await self._sent(api, claim)
            self._held = bool(lease.holder)

    async def _look(self, api: ApiServer) -> Lease:
        """The Lease as it is: a patch that changes nothing needs no right to read."""
        try:
            look = ApiRequest("PATCH", self._lease.path, body={"metadata": {}}, content_type=MERGE_PATCH)
            seen = await self._sent(api, look)
        except ApiError as error:
            if not error.missing:
                raise
            node = NODES.decode(await send(api, read_node(self._node), timeout_seconds=self._times.renew))
            lease = replace(self._lease, holder="", owner=ObjectReference("Node", node.name, node.uid, "v1"))
            seen = await self._sent(api, create_lease(lease, duration_seconds=self._times.duration, now=utc_now()))
        if self.found_utilization is None:
            self.found_utilization = seen.annotations.get(UTILIZATION_KEY, "")
        return seen

    async def _sent(self, api: ApiServer, request: ApiRequest) -> Lease:
        return LEASES.decode(await send(api, request, timeout_seconds=self._times.renew))
