"""A Lease that says: this node's plugin serves.

The extender leaves out a node whose Lease has run out and frees nothing there. So it is renewed only while the kubelet
follows us; a plugin that merely runs is of no use to a pod. The node owns it, so it goes with the node.

At SIGTERM it is given up: the kubelet reports its devices gone only with its next node status, up to 10 s later, and a
pod that is bound in between fails at its admission. Given up is not deleted, which would say "not judged", as for nodes
of the vendor's plugin. ``uninstall`` deletes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from neuron_plugin.cluster.api import ApiError, ApiRequest, ApiServer, ClusterError, send
from neuron_plugin.cluster.kinds import NODES
from neuron_plugin.cluster.leases import LeaseName, create_lease, renew_lease, utc_now
from neuron_plugin.cluster.records import ObjectReference
from neuron_plugin.cluster.writes import read_node

logger = logging.getLogger(__name__)

GIVE_UP_SECONDS = 1.2
"""For giving up, a renewal under way included. The plugin serves meanwhile; a lost write leaves the node open for as
long as the Lease lasts."""
LEASE_PREFIX = "neuron-plugin-"
"""The extender takes the node's name from what follows."""


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """How long a Lease is good for, and how often it is renewed, in seconds."""

    duration: float = 8.0
    renew: float = 2.0


def node_lease(namespace: str, node: str, owner: ObjectReference | None = None) -> LeaseName:
    """The Lease of one node's plugin."""
    return LeaseName(namespace, f"{LEASE_PREFIX}{node}", holder=node, owner=owner)


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
        on_new_node: Callable[[], None] = lambda: None,
    ) -> None:
        """``on_new_node`` is called when the node was deleted and made anew, without anything we had said on it."""
        self._namespace = namespace
        self._node = node
        self._times = times
        self._serving = serving
        self._on_new_node = on_new_node
        self._node_uid = ""
        self._news = asyncio.Event()
        self._failing = False
        self._given_up = False
        self._writing = asyncio.Lock()

    def notify(self) -> None:
        """Serving has begun: renew now, pods may come at once."""
        self._news.set()

    async def run(self, api: ApiServer) -> NoReturn:
        """Renew until cancelled; what fails is tried again at the next turn."""
        while True:
            self._news.clear()
            async with self._writing:
                if self._serving() and not self._given_up:
                    await self._renew(api)
            try:
                async with asyncio.timeout(self._times.renew):
                    await self._news.wait()
            except TimeoutError:
                pass  # the next turn

    async def give_up(self, api: ApiServer) -> bool:
        """Have the extender close the node now, and never renew again; without an answer it closes by silence.

        Whether the node is closed.
        """
        self._given_up = True
        lease = LeaseName(self._namespace, f"{LEASE_PREFIX}{self._node}", holder="")
        try:
            async with asyncio.timeout(GIVE_UP_SECONDS), self._writing:
                renewal = renew_lease(lease, duration_seconds=self._times.duration, now=utc_now())
                await send(api, renewal, timeout_seconds=GIVE_UP_SECONDS)
        except (ClusterError, TimeoutError) as error:
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
        renewal = renew_lease(
            node_lease(self._namespace, self._node), duration_seconds=self._times.duration, now=utc_now()
        )
        try:
            await send(api, renewal, timeout_seconds=self._times.renew)
        except ApiError as error:
            if not error.missing:
                raise
            await self._make(api)

    async def _make(self, api: ApiServer) -> None:
        node = NODES.decode(await send(api, read_node(self._node), timeout_seconds=self._times.renew))
        lease = node_lease(self._namespace, self._node, ObjectReference("Node", node.name, node.uid, "v1"))
        creation = create_lease(lease, duration_seconds=self._times.duration, now=utc_now())
        await send(api, creation, timeout_seconds=self._times.renew)
        if self._node_uid not in {"", node.uid}:
            self._on_new_node()
        self._node_uid = node.uid
