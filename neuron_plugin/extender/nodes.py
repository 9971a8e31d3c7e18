"""One node as the extender sees it: an immutable record, made anew from the node and its pods at every change.

Nothing is added to or subtracted from a record, so nothing can leak, go negative or go stale: used silicon is what
the pods of the moment claim.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from neuron_plugin.allocation import Holder, HolderLedger
from neuron_plugin.extender.claims import PodRecord, UnclearClaim, claim_of
from neuron_plugin.extender.hardware import Hardware, NodeFacts, NoHardware
from neuron_plugin.extender.reasons import OVERLAPPING_CLAIMS, STALE, NodeRefusal
from neuron_plugin.extender.shapes import AnyShape, closed_shape, open_shape
from neuron_plugin.topology import NO_CORES, CoreMask


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node's hardware, who holds what of it, and what keeps it closed."""

    facts: NodeFacts
    hardware: Hardware | NoHardware
    ledger: HolderLedger
    unclear: tuple[UnclearClaim, ...]
    stale: bool
    shape: AnyShape

    @property
    def name(self) -> str:
        """The node's name."""
        return self.facts.name

    @property
    def used_mask(self) -> CoreMask:
        """Every core that a pod holds or a bind has reserved."""
        return self.ledger.used_mask

    @property
    def free_mask(self) -> CoreMask:
        """Healthy cores that nobody holds."""
        if isinstance(self.hardware, NoHardware):
            return NO_CORES
        return CoreMask(self.hardware.healthy_mask & ~self.used_mask)


def node_record(
    facts: NodeFacts,
    hardware: Hardware | NoHardware,
    pods: Iterable[PodRecord],
    reserved: Iterable[Holder],
    *,
    stale: bool = False,
) -> NodeRecord:
    """The record of a node.

    ``pods`` are bound here and speak for themselves; ``reserved`` are holders that binds have chosen. A pod that asks
    for 0 has nothing to say.
    """
    if isinstance(hardware, NoHardware):
        return NodeRecord(facts, hardware, HolderLedger(), (), stale, closed_shape(hardware.refusal))
    claims = [claim_of(pod, hardware.geometry) for pod in pods if pod.request]
    holders = [claim for claim in claims if isinstance(claim, Holder)] + list(reserved)
    unclear = [claim for claim in claims if isinstance(claim, UnclearClaim)]
    unclear += _overlaps(holders)
    ledger = HolderLedger({holder.pod.uid: holder for holder in holders})
    shape = _shape(hardware, ledger, [claim.refusal for claim in unclear] + [STALE] * stale)
    return NodeRecord(facts, hardware, ledger, tuple(unclear), stale, shape)


def _shape(hardware: Hardware, ledger: HolderLedger, refusals: list[NodeRefusal]) -> AnyShape:
    if refusals:
        return closed_shape(min(refusals, key=lambda refusal: refusal.may_pass))
    return open_shape(hardware.geometry, hardware.healthy_mask, CoreMask(hardware.healthy_mask & ~ledger.used_mask))


def _overlaps(holders: list[Holder]) -> list[UnclearClaim]:
    """Pods that claim what another one claims.

    It happens for a moment when the plugin corrects two pods that the kubelet admitted in the other order: between
    its two patches one pod's old silicon looks free and is not.
    """
    found, seen = [], 0
    for holder in holders:
        mask = holder.mask
        if mask & seen:
            others = ", ".join(str(other.pod) for other in holders if other is not holder and other.mask & mask)
            detail = f"pod {holder.pod} claims silicon that {others} claims, too"
            found.append(UnclearClaim(holder.pod, OVERLAPPING_CLAIMS, detail))
        seen |= mask
    return found
