"""Past events as this replica has seen them: for people, never for decisions.

They are the evictions of the last hour that made room for others, the times since when devices are unhealthy, and pods
to be reported by an event.

kube-scheduler evicts the victims of the node that it prefers, and does not name that node. So answers to preempt are
kept for a minute as offers, and an offered pod that ends meanwhile counts as evicted. Only the leader answers preempt
and moves pods: the time line of another replica is empty.
"""

from __future__ import annotations

import enum
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from neuron_plugin.allocation import NeuronPod, PodReference, PodUid
from neuron_plugin.placement.account import Account

HISTORY_SECONDS = 3600.0
"""How far back the time line goes."""
MOST_EVICTIONS = 1000
"""Evictions kept for metrics and reports."""
OFFER_SECONDS = 60.0
"""How long after an answer to preempt an offered pod's end counts as an eviction; kube-scheduler evicts at once."""
MOST_OFFERED = 10_000
"""Pods whose victims are remembered."""
MOST_REPORTS = 256
"""Pods remembered until they are reported."""


class Cause(enum.StrEnum):
    """Why a pod was evicted."""

    PREEMPTION = "preemption"
    """A pod of higher priority needs its devices."""
    MOVE = "move"
    """It fits elsewhere."""


class Eviction(msgspec.Struct, frozen=True, rename="camel"):
    """One pod that was evicted for another, ``made_for``. ``at`` is in unix seconds; pods are NAMESPACE/NAME.

    ``target`` is the new node of a moved pod; empty if kube-scheduler chooses it.
    """

    at: float
    cause: Cause
    pod: str
    node: str
    made_for: str
    target: str = ""


class History:
    """Evictions, bounded in time and number, and unhealthy devices by node.

    ``rejections`` are pods for which kubelets got no devices, and ``without_victims`` pods for which no eviction opens
    a set, until they are reported. ``released`` says why this replica has handed live pods to their schedulers without
    a place. ``renewals`` has by node name when its plugin last renewed its Lease, as the Lease says. A renewal is no
    change of the state: on a large cluster there are thousands a second. ``device_hours`` is the account of the leader;
    None elsewhere.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        """``now`` gives unix seconds."""
        self._now = now
        self._evictions: deque[Eviction] = deque(maxlen=MOST_EVICTIONS)
        self._offered: dict[PodUid, tuple[float, PodReference]] = {}
        self._unhealthy: dict[str, Mapping[int, float]] = {}
        self.rejections: deque[NeuronPod] = deque(maxlen=MOST_REPORTS)
        self.without_victims: deque[PodReference] = deque(maxlen=MOST_REPORTS)
        self.released: dict[PodUid, str] = {}
        self.renewals: dict[str, str] = {}
        self.device_hours: Account | None = None

    def evicted(self, cause: Cause, pod: PodReference, node: str, made_for: PodReference, target: str = "") -> None:
        """We have evicted ``pod`` from ``node`` to make room for ``made_for``."""
        self._evictions.append(Eviction(self._now(), cause, str(pod), node, str(made_for), target))

    def offer(self, victims: Iterable[str], made_for: PodReference) -> None:
        """The scheduler was given these UIDs to evict from one of several nodes."""
        until = self._now() + OFFER_SECONDS
        for uid in map(PodUid, victims):
            self._offered.pop(uid, None)  # the last offer is the one that counts, and goes to the end
            self._offered[uid] = until, made_for
        while len(self._offered) > MOST_OFFERED:
            del self._offered[next(iter(self._offered))]

    def ended(self, pod: PodReference, node: str) -> None:
        """A pod of the cluster terminates or is gone: it counts as evicted if it was offered lately."""
        self.released.pop(pod.uid, None)
        until, made_for = self._offered.pop(pod.uid, (0.0, None))
        now = self._now()
        if made_for and now <= until:
            self._evictions.append(Eviction(now, Cause.PREEMPTION, str(pod), node, str(made_for)))

    def evictions(self) -> list[Eviction]:
        """The evictions of the last hour, oldest first."""
        since = self._now() - HISTORY_SECONDS
        return [eviction for eviction in self._evictions if eviction.at >= since]

    def unhealthy(self, node: str, before: Collection[int], after: Collection[int]) -> None:
        """A node's unhealthy devices were ``before`` and are ``after``; devices in both keep their time, if known."""
        known, now = self._unhealthy.get(node, {}), self._now()
        since = {device: known.get(device, now) for device in after if device in known or device not in before}
        if since:
            self._unhealthy[node] = since
        else:
            self._unhealthy.pop(node, None)

    def unhealthy_since(self, node: str) -> Mapping[int, float]:
        """Since when devices are unhealthy, in unix seconds, without devices that were unhealthy from the start."""
        return self._unhealthy.get(node, {})
