"""How a bind ended, as values, and what an API server's answer says about it.

The one question after a failed write is whether it may have happened all the same. A refusal with a 4xx says no; a
5xx, a time-out or a broken connection says nothing, and the silicon stays reserved until somebody has looked.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from neuron_plugin.allocation import PodReference
from neuron_plugin.cluster import ApiError, ClusterError, UnreachableError
from neuron_plugin.extender.claims import PodRecord

_SERVER_ERRORS = 500


class Ending(enum.StrEnum):
    """How a bind call ended; the label of its metric."""

    BOUND = "bound"
    """Our write is confirmed."""
    REPEATED = "repeated"
    """The pod was bound there already by an earlier call."""
    ADOPTED = "adopted"
    """The write's answer was lost or refused, and the pod was found bound there with an assignment."""
    NO_SET = "no-set"
    """The node cannot take the pod any more."""
    NOT_THE_POD = "not-the-pod"
    """No pod of that name and UID, or it has ended."""
    BOUND_ELSEWHERE = "bound-elsewhere"
    """The pod is bound, or may be, by somebody or some call else."""
    REFUSED = "refused"
    """The API server did not write it."""
    UNKNOWN = "unknown"
    """Nobody knows whether it was written; the silicon stays reserved until somebody does."""
    NOT_SERVING = "not-serving"
    """Not synced, not the leader, or shutting down."""
    FAILED = "failed"
    """A fault of ours; the log has it."""


SUCCESSES = frozenset({Ending.BOUND, Ending.REPEATED, Ending.ADOPTED})


@dataclass(frozen=True, slots=True)
class Outcome:
    """A bind call's end, the text for the scheduler (empty on success) and the annotations that were bound."""

    ending: Ending
    error: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SeenPod:
    """A pod as one consistent read shows it."""

    record: PodRecord
    terminal: bool = False


class PodWrites(Protocol):
    """What binding needs of the API server. Every call ends by its deadline, with a ClusterError at the latest."""

    async def bind(
        self, pod: PodReference, node: str, annotations: Mapping[str, str], *, timeout_seconds: float
    ) -> None:
        """POST the pod's binding with its UID as precondition and annotations to merge into the pod's."""

    async def annotate(self, pod: PodReference, annotations: Mapping[str, str], *, timeout_seconds: float) -> None:
        """PATCH annotations onto the pod of this UID and no other."""

    async def read(self, pod: PodReference, *, timeout_seconds: float) -> SeenPod | None:
        """Read the pod of this name consistently; None when there is none or it has another UID."""


def may_have_happened(error: ClusterError) -> bool:
    """Whether a write that ended in this error may be in place, or may still come to be."""
    if isinstance(error, UnreachableError):
        return error.may_have_arrived
    return not isinstance(error, ApiError) or error.status >= _SERVER_ERRORS
