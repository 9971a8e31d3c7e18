"""The gated pods, in the order in which they are placed.

Order is priority, then creation; a group has the highest priority of its pods. Pods that ask for the same, may go to
the same nodes and have the same priority are of one kind. An answer for one pod holds for all of its kind, so kinds are
judged, not pods. A kind that fits nowhere is not looked at again until the capacity of some node changes. A group is a
kind of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from neuron_plugin.allocation import NeuronPod, PodUid
from neuron_plugin.allocation.pod import in_rank_order
from neuron_plugin.planning.population import PodKind


@dataclass
class _Line:
    """The pods of one kind, the oldest first; pods that are gone are dropped when they come to the front."""

    pods: dict[PodUid, NeuronPod] = field(default_factory=dict)
    order: list[tuple[float, str, PodUid]] = field(default_factory=list)

    def first(self) -> NeuronPod | None:
        while self.order:
            if pod := self.pods.get(self.order[0][2]):
                return pod
            heappop(self.order)
        return None


class Queue:
    """Gated pods by kind."""

    def __init__(self) -> None:
        self._lines: dict[PodKind, _Line] = {}
        self._kinds: dict[PodUid, PodKind] = {}
        self._anti_keys = frozenset[str]()
        self.hopeless: set[PodKind] = set()
        """Kinds that fitted nowhere when they were last looked at."""

    def __len__(self) -> int:
        return len(self._kinds)

    def look_at(self, anti_keys: Collection[str]) -> None:
        """The anti-affinity of placed pods looks at these labels now, so pods of one kind may differ now."""
        if self._anti_keys != frozenset(anti_keys):
            self._anti_keys = frozenset(anti_keys)
            for pod in [pod for line in self._lines.values() for pod in line.pods.values()]:
                self.put(pod)

    def put(self, pod: NeuronPod) -> None:
        """A pod waits, or its spec has changed."""
        kind, known = PodKind.of(pod, self._anti_keys), self._kinds.get(pod.uid)
        if kind.group:
            self.hopeless.discard(kind)  # the group may be complete now, or all of its pods can be served
        if known == kind:
            self._lines[kind].pods[pod.uid] = pod
            return
        self.remove(pod.uid)
        line = self._lines.setdefault(kind, _Line())
        self._kinds[pod.uid] = kind
        line.pods[pod.uid] = pod
        heappush(line.order, (pod.created, pod.reference.name, pod.uid))

    def remove(self, uid: PodUid) -> None:
        """A pod no longer waits."""
        if kind := self._kinds.pop(uid, None):
            line = self._lines[kind]
            del line.pods[uid]
            if not line.pods:
                del self._lines[kind]
                self.hopeless.discard(kind)

    def pods(self, kind: PodKind) -> list[NeuronPod]:
        """The waiting pods of a kind, the oldest first; pods of a group in the order of their ranks."""
        pods = self._lines[kind].pods.values() if kind in self._lines else ()
        if kind.group:
            return in_rank_order(pods)
        return sorted(pods, key=lambda pod: (pod.created, pod.reference.name))

    def kinds(self) -> list[PodKind]:
        """The kinds with a waiting pod."""
        return list(self._lines)

    def clear(self) -> None:
        """Remove all pods."""
        self._lines.clear()
        self._kinds.clear()
        self.hopeless.clear()

    def in_order(self) -> Iterator[tuple[PodKind, NeuronPod]]:
        """The pods to look at, each once, in order.

        The caller puts a kind that fits nowhere into ``hopeless`` and gets no other pod of it. It may remove the pod
        that it was given.
        """
        heads: list[tuple[int, float, str, int, PodKind]] = []
        for number, (kind, line) in enumerate(self._lines.items()):
            if kind not in self.hopeless and (pod := line.first()):
                heads.append((*self._rank(kind, pod), number, kind))
        heapify(heads)
        while heads:
            *_, number, kind = heappop(heads)
            looked_at = self._lines[kind].first() if kind in self._lines else None
            if looked_at is None:
                continue
            yield kind, looked_at
            if kind in self.hopeless or kind not in self._lines:
                continue
            line = self._lines[kind]
            following = line.first()
            if following and following.uid != looked_at.uid:
                heappush(heads, (*self._rank(kind, following), number, kind))

    def _rank(self, kind: PodKind, first: NeuronPod) -> tuple[int, float, str]:
        """The sort key of a kind, by its first pod and its highest priority."""
        pods = self._lines[kind].pods.values() if kind.group else (first,)
        return -max(pod.priority for pod in pods), first.created, first.reference.name
