"""Pods that were gone without having been seen to end.

Most were deleted by force. The kubelet goes on telling of such a pod by its name for a while, and a stand-in may hold
what it had: what was confirmed of nobody may have been the vanished pod's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from neuron_plugin.allocation.ledger import Pod, PodUid

LOST_NAME_SECONDS = 60.0
"""How long the name of a vanished pod is remembered: longer than the kubelet goes on telling of it."""


@dataclass(frozen=True, slots=True)
class Vanished:
    """``names`` are those of vanished pods, and when; ``left_by`` are pods that a stand-in may have stood for."""

    names: Mapping[tuple[str, str], float] = field(default_factory=dict)
    left_by: Mapping[PodUid, tuple[Pod, ...]] = field(default_factory=dict)

    def with_name(self, pod: Pod, now: float) -> Vanished:
        """A pod has vanished."""
        lately = {name: since for name, since in self.names.items() if since >= now - LOST_NAME_SECONDS}
        return Vanished({**lately, (pod.namespace, pod.name): now}, self.left_by)

    def with_left(self, pod: Pod, stand_ins: Iterable[PodUid], holders: Collection[PodUid]) -> Vanished:
        """A pod of which nobody knew what it held has vanished: it may be what some stand-ins stand for.

        Stand-ins that are no ``holders`` any more are forgotten.
        """
        left_by = {uid: pods for uid, pods in self.left_by.items() if uid in holders}
        return Vanished(self.names, {**left_by, **{uid: (*left_by.get(uid, ()), pod) for uid in stand_ins}})

    def has_name(self, pod: Pod, now: float) -> bool:
        """Whether a pod of this name has vanished lately."""
        return now - self.names.get((pod.namespace, pod.name), float("-inf")) <= LOST_NAME_SECONDS
