"""How long the kubelet waits for its answers, measured around whoever gives them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from neuron_plugin.kubelet import AllocationRefusedError, ContainerAllocation
from neuron_plugin.plugin.allocator import Allocator
from neuron_plugin.plugin.counts import Latencies
from neuron_plugin.plugin.witness import Witness


class Timed:
    """A handler that answers as ``handler`` does, and has a witness of how long that took and of what it refused."""

    def __init__(self, handler: Allocator, witness: Witness, clock: Callable[[], float] = time.perf_counter) -> None:
        self._handler = handler
        self._witness = witness
        self._clock = clock

    async def preferred(
        self, resource: str, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        """See ``DeviceHandler``."""
        started = self._clock()
        try:
            return await self._handler.preferred(resource, available, must_include, size)
        finally:
            _observe(self._witness.counts.preference_seconds, resource, self._clock() - started)

    async def allocate(self, resource: str, ids: Sequence[str]) -> ContainerAllocation:
        """See ``DeviceHandler``."""
        started = self._clock()
        try:
            return self._handler.allocate(resource, ids)
        except AllocationRefusedError as error:
            self._witness.refused(resource, ids, error)
            raise
        finally:
            _observe(self._witness.counts.allocate_seconds, resource, self._clock() - started)


def _observe(latencies: dict[str, Latencies], resource: str, seconds: float) -> None:
    found = latencies.get(resource)
    if found is None:
        found = latencies[resource] = Latencies()
    found.observe(seconds)
