"""Groups: pods that are placed together or not at all, their order, and how near they must be to each other."""

from __future__ import annotations

from dataclasses import dataclass

from neuron_plugin.allocation.rejection import Rejection

GroupName = tuple[str, str]
"""Namespace and name. For a replica of a LeaderWorkerSet, the name ends in a slash and the replica's index."""


@dataclass(frozen=True, slots=True)
class TopologyWish:
    """How near to each other a group's pods have to be, by the levels of ``planning/domains``.

    ``required`` and ``preferred`` name a level or a node label; with ``anywhere`` distance does not matter. With
    ``slice_size``, every slice of so many pods, by rank, has to be in one domain of ``slice_level``. Without
    ``any_window`` the pods have the same sets on every node.
    """

    required: str = ""
    preferred: str = ""
    slice_size: int = 0
    slice_level: str = ""
    anywhere: bool = False
    any_window: bool = False


NO_WISH = TopologyWish()


def is_replica(group: GroupName) -> bool:
    """Whether a group is a replica of a LeaderWorkerSet: its name is the set's, ``/`` and the replica's index."""
    return "/" in group[1]


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A pod's membership in its group, as its object declares it.

    ``size`` is how many pods the group has, 0 if unknown. ``rank`` orders the pods, as the index of their framework
    does; None without a known index. ``leads``: the other pods are created once this pod runs or is placed.
    ``unreadable`` names an annotation that cannot be read. ``leader_worker_set`` is the pod's LeaderWorkerSet. ``host``
    is the DNS name that a Service gives the pod, empty without one. ``sets_ultraserver``: a container sets a variable
    of UltraServers itself. ``spares`` is how many nodes are kept to replace lost pods. ``preflight``: the group's
    places are checked before it starts.
    """

    group: GroupName
    size: int = 0
    rank: tuple[int, ...] | None = None
    leads: bool = False
    wish: TopologyWish = NO_WISH
    unreadable: Rejection | None = None
    leader_worker_set: str = ""
    host: str = ""
    sets_ultraserver: bool = False
    spares: int = 0
    preflight: bool = False


def spare_key(group: GroupName, number: int) -> str:
    """The name of a spare node of a group; it differs from every pod's UID."""
    return f"{'/'.join(group)}#spare.{number}"


def rank_key(group: GroupName, rank: tuple[int, ...]) -> str:
    """The name of a rank of a group; it differs from every pod's UID."""
    return f"{'/'.join(group)}#{rank_text(rank)}"


def is_key_of(group: GroupName, name: str) -> bool:
    """Whether a name is of a rank or spare node of a group."""
    return name.startswith(f"{'/'.join(group)}#")


def rank_text(rank: tuple[int, ...]) -> str:
    """A rank for people: ``3``, or ``1.3`` where a job or replica has a number, too."""
    return ".".join(map(str, rank))
