"""The annotations a pod gets once it is certain what it holds."""

from __future__ import annotations

from neuron_plugin.allocation.annotations import ALLOC_TIME_KEY, ALLOCATED_KEY, VENDOR_IDS_KEY, Dialect, write
from neuron_plugin.allocation.ledger import Holding
from neuron_plugin.allocation.placement import ContainerSet
from neuron_plugin.allocation.resources import ids_of
from neuron_plugin.plugin.pods import NodePod
from neuron_plugin.topology.geometry import Geometry


def confirmed_annotations(
    geometry: Geometry, pod: NodePod, holdings: tuple[Holding, ...], now_ns: int
) -> dict[str, str]:
    """What to write on the pod; nothing when it says so already.

    A decision that came true is only marked as allocated. One that came otherwise (the kubelet admitted two equal
    pods in the other order) and a pod without one get the ids they really hold. Nothing is written while a container's
    ids are unknown: half an assignment would be read as a malformed one.
    """
    if pod.decision and _came_true(geometry, pod, holdings):
        return {} if pod.decision.allocated else {ALLOCATED_KEY: "true"}
    by_container = {holding.container: holding.mask for holding in holdings}
    if any(part.container not in by_container for part in pod.request):
        return {}
    placement = tuple(ContainerSet(part, by_container[part.container]) for part in pod.request)
    dialects = {Dialect.NEURON_PLUGIN} | ({Dialect.VENDOR} if VENDOR_IDS_KEY in pod.assignment_keys else set())
    decided_ns = pod.decision.alloc_time_ns if pod.decision else now_ns
    return write(geometry, placement, decided_ns, dialects) | {ALLOC_TIME_KEY: str(decided_ns), ALLOCATED_KEY: "true"}


def _came_true(geometry: Geometry, pod: NodePod, holdings: tuple[Holding, ...]) -> bool:
    decided = {part.request.container: part.ids for part in pod.decision.containers} if pod.decision else {}
    return all(
        decided.get(holding.container) == ids_of(geometry, holding.resource.unit, holding.mask) for holding in holdings
    )
