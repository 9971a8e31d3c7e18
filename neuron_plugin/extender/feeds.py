"""The watches that feed the state: pods, nodes and the plugins' leases.

Each reflector's news is one synchronous call on the state, so between two events the state is whole. The plugins'
leases are looked at on a tick, because falling silent is no event.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import NoReturn, Protocol

from neuron_plugin.allocation import PodUid
from neuron_plugin.cluster import LEASES, NODES, PODS, ApiServer, Lease, Observer, Pod, Reflector, Scope
from neuron_plugin.extender.claims import PodRecord
from neuron_plugin.extender.hardware import NodeFacts
from neuron_plugin.extender.observation import asks_for_neuron, node_facts, pod_record
from neuron_plugin.extender.readiness import Readiness
from neuron_plugin.extender.staleness import PluginLeases, keep_plugin_lease
from neuron_plugin.extender.state import ClusterState

TICK_SECONDS = 2.0


class Following(Protocol):
    """What the feeds and the metrics need of a reflector, whatever it follows."""

    def age_seconds(self) -> float:
        """How long ago the server was last heard of."""

    def followed_seconds(self) -> float:
        """For how long a watch has been open without a break."""

    async def run(self) -> NoReturn:
        """Follow until cancelled."""


def keep_pod(pod: Pod) -> PodRecord | None:
    """Live pods that ask for Neuron; a terminal pod is as good as gone."""
    return pod_record(pod) if asks_for_neuron(pod) and not pod.terminal else None


class Feeds:
    """The reflectors of one extender, wired to its state."""

    def __init__(
        self,
        api: ApiServer,
        state: ClusterState,
        observer: Observer | None,
        *,
        lease_namespace: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """An empty ``lease_namespace`` turns the judging of plugins by their leases off."""
        self._state = state
        self._clock = clock
        self._leases = PluginLeases()
        self.pods: Reflector[Pod, PodRecord] = Reflector(api, PODS, keep_pod, observer=observer)
        self._nodes = Reflector(api, NODES, node_facts, observer=observer)
        self._following: dict[str, Following] = {"nodes": self._nodes, "pods": self.pods}
        self.pods.subscribe(self._pod_changed)
        self._nodes.subscribe(self._node_changed)
        if lease_namespace:
            leases = Reflector(api, LEASES, keep_plugin_lease, scope=Scope(lease_namespace), observer=observer)
            leases.subscribe(self._lease_changed)
            self._following["leases"] = leases

    @property
    def ages(self) -> Mapping[str, Callable[[], float]]:
        """By kind, how long ago the server was last heard of, in seconds."""
        return {kind: following.age_seconds for kind, following in self._following.items()}

    async def list_consistently(self, timeout_seconds: float) -> None:
        """Bring the pods to what the server knows now.

        Raises:
            ClusterError: the server did not answer within ``timeout_seconds``, or refused.
        """
        await self.pods.list_consistently(timeout_seconds)

    def any_unbound(self) -> bool:
        """Whether a live pod that asks for Neuron has no node."""
        return any(not record.node for record in self.pods.values.values())

    async def run(self, readiness: Readiness) -> None:
        """Follow everything until cancelled; tell ``readiness`` when the first lists of pods and nodes are in.

        The leases are not waited for: without the right to read them plugins go unjudged, which is no reason to stop.
        """
        async with asyncio.TaskGroup() as group:
            for kind, following in self._following.items():
                group.create_task(following.run(), name=f"follow {kind}")
            group.create_task(self._judge_plugins(), name="judge plugins")
            await self.synced()
            readiness.met("synced")

    async def synced(self) -> None:
        """Wait until the first lists of pods and nodes are in."""
        for needed in (self.pods, self._nodes):
            await needed.synced.wait()  # no deadline: not ready meanwhile, and the probes say so

    async def _judge_plugins(self) -> NoReturn:
        while True:
            self._judge()
            await asyncio.sleep(TICK_SECONDS)

    def _judge(self) -> None:
        """A lease that nobody watches has not run out; and a new watch has to tell first what was missed."""
        leases = self._following.get("leases")
        if leases is not None and leases.followed_seconds() >= TICK_SECONDS:
            self._state.set_stale(self._leases.stale(self._clock()))

    def _pod_changed(self, uid: str, _: PodRecord | None, record: PodRecord | None) -> None:
        if record is None:
            self._state.remove_pod(PodUid(uid))
        else:
            self._state.put_pod(record)

    def _node_changed(self, uid: str, before: NodeFacts | None, facts: NodeFacts | None) -> None:
        if facts is not None:
            self._state.put_node(facts)
        elif before is not None:
            self._state.remove_node(before.name, uid)

    def _lease_changed(self, uid: str, before: Lease | None, lease: Lease | None) -> None:
        self._leases.changed(uid, lease, self._clock())
        if before and lease and bool(before.holder) != bool(lease.holder):
            self._judge()  # a plugin stops or is back: the next pod should know
