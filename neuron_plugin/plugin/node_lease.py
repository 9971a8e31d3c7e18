"""A Lease that says: this node's plugin serves.

The extender leaves out a node whose Lease has run out and frees nothing there. So it is renewed only while the kubelet
follows us; a plugin that merely runs is of no use to a pod. The node owns it, so it goes with the node.

At SIGTERM it is given up: the kubelet reports its devices gone only with its next node status, up to 10 s later, and a
pod that is bound in between fails at its admission. Given up is not deleted, which would say "not judged", as for nodes
of the vendor's plugin. ``uninstall`` deletes it.

A write that got no answer may still be under way and land after that. So nothing that opens the node is written but
over the one version of the Lease that was seen last, and it is made as one that nobody holds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NoReturn

from neuron_plugin.cluster import (
    LEASES,
    MERGE_PATCH,
    NODES,
    ApiError,
    ApiRequest,
    ApiServer,
    ClusterError,
    Lease,
    LeaseName,
    ObjectReference,
    claim_lease,
    create_lease,
    read_node,
    renew_lease,
    send,
    utc_now,
)

logger = logging.getLogger(__name__)

GIVE_UP_SECONDS = 1.2
"""For giving up. The plugin serves meanwhile; a lost write leaves the node open for as long as the Lease lasts."""
LEASE_PREFIX = "neuron-plugin-"
"""The extender takes the node's name from what follows."""


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """How long a Lease is good for, and how often it is renewed, in seconds."""

    duration: float
    renew: float


def node_lease(namespace: str, node: str) -> LeaseName:
    """The Lease of one node's plugin, as it is while the plugin serves."""
    return LeaseName(namespace, f"{LEASE_PREFIX}{node}", holder=node)


def delete_lease(namespace: str, node: str) -> ApiRequest:
    """Take the Lease of a node away: its plugin is uninstalled."""
    return ApiRequest("DELETE", node_lease(namespace, node).path)


class NodeLease:
    """Renews the Lease of ``node`` while ``serving``."""

    def __init__(
        self,
        namespace: str,
        node: str,
        times: LeaseTimes,
        *,
        serving: Callable[[], bool],
        on_new_node: Callable[[], None],
    ) -> None:
        """``on_new_node`` is called when the Lease went away, as with its node: then so did all we had said there."""
        self._lease = node_lease(namespace, node)
        self._node = node
        self._times = times
        self._serving = serving
        self._on_new_node = on_new_node
        self._seen: Lease | None = None
        self._was_there = False
        self._news = asyncio.Event()
        self._failing = False

    def notify(self) -> None:
        """Serving has begun: renew now, pods may come at once."""
        self._news.set()

    async def run(self, api: ApiServer) -> NoReturn:
        """Renew until cancelled; what fails is tried again at the next turn."""
        while True:
            self._news.clear()
            if self._serving():
                await self._renew(api)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._times.renew):
                    await self._news.wait()

    async def give_up(self, api: ApiServer) -> bool:
        """Have the extender close the node now, and never renew again; without an answer it closes by silence.

        Whether the node is closed.
        """
        self._serving = lambda: False
        nobodys = replace(self._lease, holder="")
        try:
            await send(
                api,
                renew_lease(nobodys, duration_seconds=self._times.duration, now=utc_now()),
                timeout_seconds=GIVE_UP_SECONDS,
            )
        except ClusterError as error:
            logger.debug("this node's lease was not given up", extra={"node": self._node, "why": repr(error)})
            return False
        return True

    async def _renew(self, api: ApiServer) -> None:
        try:
            await self._renew_once(api)
            self._failing = False
        except ClusterError as error:
            if not self._failing:
                logger.warning("this node's lease cannot be renewed", extra={"node": self._node, "why": str(error)})
            self._failing = True

    async def _renew_once(self, api: ApiServer) -> None:
        try:
            await self._claim(api)
        except ApiError as error:
            if not (error.missing or error.other_object):
                raise
            await self._claim(api)  # it is not the one that was seen last: that is forgotten now

    async def _claim(self, api: ApiServer) -> None:
        """Renew what was seen last; until there is an answer nobody knows what there is."""
        seen = self._seen or await self._look(api)
        self._seen = None
        if self._serving():
            renewal = claim_lease(self._lease, seen, duration_seconds=self._times.duration, now=utc_now())
            self._seen = await self._sent(api, renewal)

    async def _look(self, api: ApiServer) -> Lease:
        """The Lease as it is: a patch that changes nothing takes no right to read."""
        try:
            look = ApiRequest("PATCH", self._lease.path, body={"metadata": {}}, content_type=MERGE_PATCH)
            seen = await self._sent(api, look)
        except ApiError as error:
            if not error.missing:
                raise
            seen = await self._make(api)
        self._was_there = True
        return seen

    async def _make(self, api: ApiServer) -> Lease:
        node = NODES.decode(await send(api, read_node(self._node), timeout_seconds=self._times.renew))
        lease = replace(self._lease, holder="", owner=ObjectReference("Node", node.name, node.uid, "v1"))
        made = await self._sent(api, create_lease(lease, duration_seconds=self._times.duration, now=utc_now()))
        if self._was_there:
            self._on_new_node()
        return made

    async def _sent(self, api: ApiServer, request: ApiRequest) -> Lease:
        return LEASES.decode(await send(api, request, timeout_seconds=self._times.renew))
