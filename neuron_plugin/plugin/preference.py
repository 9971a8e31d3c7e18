"""Which ids the kubelet should prefer for a container.

The answer always has exactly the asked size, lies inside what the kubelet offers and includes what it must: anything
else the kubelet cuts or fills at random (pkg/kubelet/cm/devicemanager/manager.go).
"""

from __future__ import annotations

from collections.abc import Collection

from neuron_plugin.allocation import Rejection, choose, ids_of, mask_of
from neuron_plugin.topology import Geometry, Unit


def preferred_ids(
    geometry: Geometry,
    unit: Unit,
    *,
    available: Collection[int],
    must_include: Collection[int],
    free: int,
    size: int,
    unheld: int = 0,
) -> tuple[int, ...]:
    """The best valid set of ``available`` ids whose cores are ``free``, else the tightest ids there are.

    ``free`` are the cores no other pod holds and no other pod waits for. When no valid set is left the pod gets ids
    all the same, free ones first, then ``unheld`` ones, for which others wait: whether a pod is served with the ids
    of a live one is Allocate's decision, not the preference's.
    """
    offered = mask_of(geometry, unit, tuple(available))
    must = mask_of(geometry, unit, tuple(must_include))
    found = choose(geometry, (offered & free) | must, unit, size, must)
    if not isinstance(found, Rejection):
        return ids_of(geometry, unit, found)
    usable = set(ids_of(geometry, unit, offered & free)) | set(must_include)
    if len(usable) >= size:
        return tightest(usable, must_include, size)
    wanted = set(ids_of(geometry, unit, offered & (free | unheld))) | usable
    if len(wanted) >= size:
        return tightest(wanted, usable, size)
    extra = tightest(set(available) - wanted, (), size - len(wanted))
    return tuple(sorted({*wanted, *extra}))


def tightest(available: Collection[int], must_include: Collection[int], size: int) -> tuple[int, ...]:
    """``size`` ids around ``must_include`` with the least distance between first and last; lowest on a tie."""
    others = sorted(set(available) - set(must_include))
    missing = size - len(must_include)
    windows = [(*must_include, *others[start : start + missing]) for start in range(len(others) - missing + 1)]
    best = min(windows, key=lambda ids: (max(ids, default=0) - min(ids, default=0), ids), default=tuple(must_include))
    return tuple(sorted(best))
