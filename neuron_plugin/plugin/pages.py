"""The pages the node daemon serves: probes, metrics, and the decisions of late."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from neuron_plugin.allocation.journal import Journal, explain
from neuron_plugin.plugin.moment import Moment
from neuron_plugin.plugin.offering import Offering
from neuron_plugin.plugin.probes import liveness, readiness
from neuron_plugin.plugin.responder import JSON, Page, Pages


def pages(offering: Offering, moment: Callable[[], Moment], journal: Journal) -> Pages:
    """Every page by its path."""

    async def healthz() -> Page:
        return await liveness(offering.servers)

    async def readyz() -> Page:
        now = moment()
        return readiness(offering.servers, found=now.state.machine is not None, silent_sources=now.silent_sources)

    async def metrics() -> Page:
        make = await asyncio.to_thread(_metrics)
        return make(moment())

    async def decisions() -> Page:
        return Page(await asyncio.to_thread(decisions_json, journal), content_type=JSON)

    return {"/healthz": healthz, "/readyz": readyz, "/metrics": metrics, "/decisions": decisions}


def decisions_json(journal: Journal) -> bytes:
    """All that is remembered, oldest first, each with its candidates. May take some 10 ms: not on the event loop."""
    return json.dumps({"decisions": [explain(entry) for entry in journal.entries()]}).encode()


def _metrics() -> Callable[[Moment], Page]:
    """Loaded at the first scrape, in a thread: on the event loop it would hold up an Allocate by 80 ms."""
    from neuron_plugin.plugin.metrics import metrics_page  # noqa: PLC0415 - see above

    return metrics_page
