"""Events on the pods that keep nodes closed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime
from typing import NoReturn

from neuron_plugin.cluster import ApiServer, ClusterError, ObjectReference, create_event, send, utc_now
from neuron_plugin.extender.closings import Closings, Report
from neuron_plugin.extender.readiness import Readiness
from neuron_plugin.extender.state import ClusterState

REPORTER = "neuron-plugin.io/extender"
PERIOD_SECONDS = 2.0
MOST_AT_ONCE = 20
"""Events per look; a cluster that is all wrong is told so by the metric, not by a storm."""

_TIMEOUT_SECONDS = 5.0
_log = logging.getLogger(__name__)


class Reporting:
    """Looks at the state and tells each fault once. Only the leader speaks."""

    def __init__(
        self,
        api: ApiServer,
        state: ClusterState,
        closings: Closings,
        readiness: Readiness,
        *,
        instance: str,
        clock: Callable[[], float],
        wall: Callable[[], datetime] = utc_now,
    ) -> None:
        self._api = api
        self._state = state
        self._closings = closings
        self._readiness = readiness
        self._instance = instance
        self._clock = clock
        self._wall = wall

    async def run(self) -> NoReturn:
        """Look every few seconds until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(PERIOD_SECONDS)

    async def look(self) -> None:
        """Report what is due."""
        if self._readiness.why_not:
            return
        for report in self._closings.due(self._state.nodes, self._clock())[:MOST_AT_ONCE]:
            await self._tell(report)

    async def _tell(self, report: Report) -> None:
        pod = report.pod
        request = create_event(
            ObjectReference("Pod", pod.name, pod.uid, "v1", pod.namespace),
            reason=report.reason,
            note=report.note,
            action="Scheduling",
            reporter=REPORTER,
            instance=self._instance,
            now=self._wall(),
            warning=True,
        )
        try:
            await send(self._api, request, timeout_seconds=_TIMEOUT_SECONDS)
        except ClusterError as error:  # the log line and the metric have said it
            _log.info("event not written", extra={"pod": str(pod), "reason": report.reason, "cause": str(error)})
