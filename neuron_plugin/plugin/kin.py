"""Which holders are one pod, whatever names its containers were noted under.

Allocate names no pod, so what one pod was given may stand in the ledger under an equal pod's name, or under several.
But the kubelet gives no id of a resource to two pods at a time (where it does, it has lost a reservation:
kubernetes/kubernetes#137534). So what hangs together by its account is one pod's.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import or_

from neuron_plugin.allocation import Holder, Resource


def kin_of(holders: Iterable[Holder], resource: Resource, ids_mask: int) -> list[Holder]:
    """Those that the kubelet has given some of these ids of a resource, or some that one of them was given."""
    kin: list[Holder] = []
    left = list(holders)
    while more := [holder for holder in left if _on_account(holder, resource) & ids_mask]:
        kin += more
        left = [holder for holder in left if holder not in more]
        ids_mask = reduce(or_, (_on_account(holder, resource) for holder in more))
    return kin


def _on_account(holder: Holder, resource: Resource) -> int:
    """What the kubelet has given a pod under one resource name, as far as is known."""
    return reduce(or_, (one.on_account for one in holder.holdings if one.resource is resource), 0)
