"""Which pods may have made a call that names none.

A pod that holds nothing yet and asks for exactly so much may be the one. Where several may, the order in which the
watch showed them is the best guess: it is the order of their bindings, which is how the kubelet usually admits.
"""

from __future__ import annotations

from dataclasses import dataclass

from neuron_plugin.allocation import ContainerKind, HolderLedger, PodReference, PodUid, Resource
from neuron_plugin.plugin.pods import NodePod, NodePods
from neuron_plugin.plugin.standins import is_nameless, named_stand_in
from neuron_plugin.topology import Geometry, Unit


@dataclass(frozen=True, slots=True)
class Callers:
    """This node's pods at the moment of a call for ``count`` of ``resource``."""

    geometry: Geometry
    pods: NodePods
    ledger: HolderLedger
    resource: Resource
    count: int

    def asking(self) -> list[NodePod]:
        """Pods that hold nothing and ask for exactly this, in the order in which they came."""
        return [pod for pod in self.pods.values() if not self._holds(pod.pod) and self._asks(pod)]

    def undecided(self) -> list[NodePod]:
        """Those without a decision, less the first ones, for whom nameless holders stand in already."""
        stood_for = self._stood_for()
        open_pods = []
        for pod in (pod for pod in self.asking() if pod.decision is None):
            calls = self._calls(pod)
            if stood_for < calls:
                open_pods.append(pod)
            stood_for = max(0, stood_for - calls)
        return open_pods

    def undecided_before(self, uid: PodUid) -> bool:
        """Whether a pod without a decision came before this one, so that the call is probably not its."""
        order = {each: place for place, each in enumerate(self.pods)}
        return any(order[pod.pod.uid] < order[uid] for pod in self.undecided())

    def unservable(self) -> NodePod | None:
        """A pod with a request nobody can serve, if only such a one can have made the call."""
        if self.asking():
            return None
        wanted = (self.resource, str(self.count))
        return next((pod for pod in self.pods.values() if wanted in pod.refused), None)

    def described(self) -> str:
        """Who it may be, for people."""
        names = sorted(str(pod.pod) for pod in self.asking())
        return f"pod {' or '.join(names)}" if names else "a pod without a decision"

    def _holds(self, pod: PodReference) -> bool:
        return pod.uid in self.ledger.holders or named_stand_in(pod.namespace, pod.name).uid in self.ledger.holders

    def _asks(self, pod: NodePod) -> bool:
        return any(part.resource is self.resource and part.count == self.count for part in pod.request)

    def _calls(self, pod: NodePod) -> int:
        """How many sets of this size the pod is given in all: its init containers' are re-used."""
        asking = [part for part in pod.request if part.resource is self.resource and part.count == self.count]
        return max(1, sum(part.kind is not ContainerKind.INIT for part in asking))

    def _stood_for(self) -> int:
        """Sets of this size that nameless holders have."""
        cores = self.count * (1 if self.resource.unit is Unit.CORE else self.geometry.cores_per_device)
        nameless = (holding for holder in self.ledger if is_nameless(holder) for holding in holder.holdings)
        return sum(one.resource is self.resource and one.mask.bit_count() == cores for one in nameless)
