"""The latest run of each container of a pod, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContainerRun:
    """The latest run of one container, in unix seconds. ``ended`` is 0 while it runs.

    ``failed``: the container ended with an error of its own. Not so if memory ran out or the program could not be
    started: these are faults of the image or the node. Not so either if the end was requested, as by the pod's
    deletion.
    """

    container: str
    started: float
    ended: float = 0.0
    failed: bool = False
