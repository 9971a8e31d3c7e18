"""Pods that are placed together, or not at all: who is one of them, in which order, and how near to each other."""

from __future__ import annotations

from dataclasses import dataclass

from neuron_plugin.allocation.rejection import Rejection

GroupName = tuple[str, str]
"""Namespace and name. That of a LeaderWorkerSet's replica has its index behind a slash."""


@dataclass(frozen=True, slots=True)
class TopologyWish:
    """How near to each other a group's pods are to be, by the levels of ``planning/domains``.

    ``required`` and ``preferred`` name a level, or a node label; ``anywhere`` says that distance does not matter. With
    ``slice_size``, so many pods in the order of their ranks have to be in one domain of ``slice_level``. Without
    ``any_window`` the group's pods have the same sets on every node.
    """

    required: str = ""
    preferred: str = ""
    slice_size: int = 0
    slice_level: str = ""
    anywhere: bool = False
    any_window: bool = False


NO_WISH = TopologyWish()


def is_replica(group: GroupName) -> bool:
    """Whether a group is one replica of a LeaderWorkerSet: the set, ``/`` and the replica's index are its name."""
    return "/" in group[1]


@dataclass(frozen=True, slots=True)
class GroupMember:
    """What a pod says of its group.

    ``size`` is how many pods the group has, 0 where the pod does not say. ``rank`` orders the pods, as the index of
    their framework does; None where no index is known. ``leads``: the others are made once this pod runs or is placed.
    ``unreadable`` says what of its wish cannot be read. ``leader_worker_set`` is the name of the LeaderWorkerSet that
    the pod is of. ``host`` is the DNS name that a Service gives the pod, empty without one.
    ``sets_ultraserver``: a container sets some variable of UltraServers itself. ``spares`` is how many nodes are kept
    for pods of the group that are lost. ``preflight``: the group's places are to be checked before it starts.
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
    """Whether a name is that of a rank or of a spare node of a group."""
    return name.startswith(f"{'/'.join(group)}#")


def rank_text(rank: tuple[int, ...]) -> str:
    """A rank for people: ``3``, or ``1.3`` where a job or replica has a number, too."""
    return ".".join(map(str, rank))
