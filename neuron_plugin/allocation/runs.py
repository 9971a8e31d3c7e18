"""What became of a pod's containers: when each ran last, and how that ended."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContainerRun:
    """The latest run of one container, in unix seconds. ``ended`` is 0 while it runs.

    ``failed``: it has ended with an error of its own. Memory that ran out and a program that could not be started are
    the image's or the node's doing. An end that was requested, such as by the pod's deletion, is none of its own.
    """

    container: str
    started: float
    ended: float = 0.0
    failed: bool = False
