"""The daemon reads the counters of the cores and says on its Lease, in events and metrics what containers do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from neuron_plugin.allocation.keys import UTILIZATION_KEY
from neuron_plugin.allocation.utilization import Utilization, read_utilization
from neuron_plugin.plugin.daemon import NodeDaemon
from neuron_plugin.simulation import SimulatedNode
from neuron_plugin.simulation.api_server_kinds import EVENTS, LEASES
from tests.plugin.site import Site, a_site, eventually
from tests.plugin.world import CORE, app, uid_of

A = uid_of("a")


@asynccontextmanager
async def a_measured_site(**changes: Any) -> AsyncIterator[Site]:
    """A node whose daemon reads the counters as fast as it can."""
    options = {name: changes.pop(name) for name in ("cluster", "driver_version") if name in changes}
    async with a_site("inf2.48xlarge", usage_counters=True, **options) as site:
        set_on(site, utilization_seconds=0.02, lease_renew_seconds=0.05, **changes)
        yield site


@asynccontextmanager
async def measuring(**changes: Any) -> AsyncIterator[tuple[Site, NodeDaemon]]:
    """Such a daemon, and a pod on device 0."""
    async with a_measured_site(**changes) as site, site.daemon() as daemon:
        await site.run("a", app(2, CORE))
        await site.confirmed(daemon, "a")
        yield site, daemon


def set_on(site: Site, **changes: Any) -> None:
    site.settings = msgspec.structs.replace(site.settings, **changes)


def published(site: Site) -> Utilization:
    assert site.api
    leases = site.api.objects(LEASES)
    return read_utilization((leases[0]["metadata"].get("annotations") or {}).get(UTILIZATION_KEY, "") if leases else "")


def executed(node: SimulatedNode, microseconds: int) -> None:
    for core in (0, 1):
        node.set_attribute(0, f"neuron_core{core}/stats/other_info/nc_time_in_use/total", f"{microseconds}\n")


async def test_a_container_that_works_is_busy_on_the_lease_and_idle_once_it_has_stopped() -> None:
    async with measuring(idle_after_seconds=1.0) as (site, daemon):
        await eventually(lambda: A in published(site))
        executed(site.node, 10**12)
        await eventually(lambda: any(one.busy_share == 1 for one in daemon.utilization.use.values()))
        assert published(site)[A]["app"].idle_since == 0
        await eventually(lambda: published(site)[A]["app"].idle_since > 0)
        executed(site.node, 2 * 10**12)
        await eventually(lambda: published(site)[A]["app"].idle_since == 0)


async def test_an_event_is_written_once_and_only_if_it_is_wanted() -> None:
    async with measuring(idle_event_after_seconds=0.2) as (site, _):
        await eventually(lambda: "NeuronCoresIdle" in site.event_reasons())
        assert site.api
        await eventually(lambda: A in published(site))
        event = next(each for each in site.api.objects(EVENTS) if each["reason"] == "NeuronCoresIdle")
        assert event["note"] == "container app has executed nothing on its Neuron cores for 0s; it keeps them"
        assert (event["type"], event["regarding"]["name"]) == ("Normal", "a")
        assert site.event_reasons().count("NeuronCoresIdle") == 1
    async with measuring() as (site, daemon):
        await eventually(lambda: any(one.known for one in daemon.utilization.use.values()))
        assert "NeuronCoresIdle" not in site.event_reasons()


@pytest.mark.parametrize("executes", [False, True])
async def test_a_plugin_that_was_started_again_knows_what_was_idle_before(*, executes: bool) -> None:
    async with a_measured_site(idle_after_seconds=1.0) as site:
        executed(site.node, 5_000_000)
        async with site.daemon() as daemon:
            await site.run("a", app(2, CORE))
            await eventually(lambda: A in published(site) and published(site)[A]["app"].idle_since > 0)
            (idle,) = daemon.utilization.use.values()
        if executes:
            executed(site.node, 50_000_000)
        set_on(site, utilization_seconds=1.0)
        async with site.daemon() as daemon:
            await eventually(lambda: any(one.known for one in daemon.utilization.use.values()))
            (found,) = daemon.utilization.use.values()
            assert (found.active_at == int(idle.active_at)) is not executes


async def test_what_was_published_is_removed_where_it_is_turned_off() -> None:
    async with a_measured_site() as site:
        async with site.daemon():
            await site.run("a", app(2, CORE))
            await eventually(lambda: A in published(site))
        set_on(site, utilization_seconds=0)
        async with site.daemon():
            await eventually(lambda: published(site) == {})


async def test_without_a_cluster_pods_have_no_names_and_no_metrics() -> None:
    async with a_measured_site(cluster=False) as site, site.daemon() as daemon:
        await site.run("a", app(1))
        await eventually(lambda: daemon.utilization.unix_seconds > 0)
        assert daemon.utilization.use == {}
