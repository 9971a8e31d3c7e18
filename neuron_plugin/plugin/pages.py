"""The pages the node daemon serves: probes, metrics, and the decisions of late."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from neuron_plugin.allocation import DecisionLog, explain_decision
from neuron_plugin.plugin.metrics import metrics_page
from neuron_plugin.plugin.moment import Moment
from neuron_plugin.plugin.offering import Offering
from neuron_plugin.plugin.probes import liveness, readiness
from neuron_plugin.plugin.responder import JSON, Page, Pages


def pages(offering: Offering, moment: Callable[[], Moment], journal: DecisionLog) -> Pages:
    """Every page by its path."""

    async def healthz() -> Page:
        return await liveness(offering.servers)

    async def readyz() -> Page:
        now = moment()
        return readiness(offering.servers, found=now.state.machine is not None, silent_sources=now.silent_sources)

    async def metrics() -> Page:
        return metrics_page(moment())

    async def decisions() -> Page:
        return Page(await asyncio.to_thread(decisions_json, journal), content_type=JSON)

    return {"/healthz": healthz, "/readyz": readyz, "/metrics": metrics, "/decisions": decisions}


def decisions_json(journal: DecisionLog) -> bytes:
    """All that is remembered, oldest first, each with its candidates. May take some 10 ms: not on the event loop."""
    explained = (
        json.dumps(explain_decision(entry)).encode() for entry in journal.entries()
    )  # one at a time: memory stays flat
    return b'{"decisions": [' + b", ".join(explained) + b"]}\n"
