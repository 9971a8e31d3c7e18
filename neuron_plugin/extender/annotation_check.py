"""Does this API server merge a binding's annotations into the pod?

Every Kubernetes since 0.13 does; a proxy or a re-implementation may not, and then assignments would be lost without a
word. So the first binding is read back. Where they were dropped, annotations are patched before each binding from then
on, which needs the right to patch ``pods/status``.
"""

from __future__ import annotations

import logging

from neuron_plugin.cluster import ClusterError
from neuron_plugin.extender.attempts import PodWrites
from neuron_plugin.extender.state import Reservation

_log = logging.getLogger(__name__)


class AnnotationCheck:
    """What is known of one API server; ``timeout_seconds`` ends each request."""

    def __init__(self, writes: PodWrites, *, timeout_seconds: float) -> None:
        self._writes = writes
        self._timeout_seconds = timeout_seconds
        self.merged: bool | None = None
        """Whether they were merged; None before a binding was read back."""

    async def after(self, bound: Reservation) -> None:
        """Read the first binding back; annotate its pod if the binding did not. A failure leaves it to the next one."""
        if self.merged is not None or not bound.annotations:
            return
        try:
            await self._read_back(bound)
        except ClusterError as error:
            _log.warning("binding annotations not verified", extra={"pod": str(bound.pod), "cause": str(error)})

    async def _read_back(self, bound: Reservation) -> None:
        seen = await self._writes.read(bound.pod, timeout_seconds=self._timeout_seconds)
        if seen is None or seen.record.node != bound.node:
            return
        self.merged = seen.record.decision is not None
        if not self.merged:
            _log.error("API server drops binding annotations; patching pods instead", extra={"pod": str(bound.pod)})
            await self._writes.annotate(bound.pod, bound.annotations, timeout_seconds=self._timeout_seconds)
