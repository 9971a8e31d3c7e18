from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from neuron_plugin.cluster.api import send
from neuron_plugin.cluster.leases import LeaseName, create_lease, renew_lease, utc_now
from neuron_plugin.cluster.reflector import UNOBSERVED
from neuron_plugin.cluster.transport import KubernetesApi
from neuron_plugin.extender import feeds as module
from neuron_plugin.extender.feeds import Feeds
from neuron_plugin.extender.readiness import Readiness
from neuron_plugin.extender.state import ClusterState
from neuron_plugin.simulation.api_server import Fault, Match, StandInApiServer
from neuron_plugin.simulation.manifests import node_manifest, pod_manifest
from neuron_plugin.topology.instances import catalogue
from tests.extender.running import until
from tests.extender.world import DEVICE

LEASE = LeaseName("kube-system", "neuron-plugin-node", "node")


async def test_e07_a_lease_that_nobody_watches_has_not_run_out(
    server: StandInApiServer, api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An API server that refuses one watch for half a minute must not close every node."""
    monkeypatch.setattr(module, "TICK_SECONDS", 0.02)
    now = 0.0
    state = ClusterState(catalogue())
    feeds = Feeds(api, state, UNOBSERVED, lease_namespace="kube-system", clock=lambda: now)
    leases = feeds._following["leases"]
    server.create_node(node_manifest("node", "trn1.32xlarge"))
    await send(api, create_lease(LEASE, duration_seconds=8, now=utc_now()), timeout_seconds=5)
    running = asyncio.create_task(feeds.run(Readiness({})), name="feeds")
    await until(lambda: "node" in state.nodes and leases.followed_seconds() > 0)

    now += 8
    await until(lambda: state.nodes["node"].stale)
    await send(api, renew_lease(LEASE, duration_seconds=8, now=utc_now()), timeout_seconds=5)
    await until(lambda: not state.nodes["node"].stale)

    server.fail(Fault(match=Match(path="/leases$"), status=500, times=10_000))
    server.end_watches()
    await until(lambda: not leases.followed_seconds())
    now += 30
    await asyncio.sleep(0.1)  # some looks, which see nothing
    assert not state.nodes["node"].stale

    server.forgive()
    await until(lambda: state.nodes["node"].stale)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_e07_a_plugin_that_stops_closes_its_node_with_its_word_and_not_with_the_next_look(
    server: StandInApiServer, api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TICK_SECONDS", 0.02)
    state = ClusterState(catalogue())
    feeds = Feeds(api, state, UNOBSERVED, lease_namespace="kube-system")
    leases = feeds._following["leases"]
    server.create_node(node_manifest("node", "trn1.32xlarge"))
    await send(api, create_lease(LEASE, duration_seconds=600, now=utc_now()), timeout_seconds=5)
    async with asyncio.TaskGroup() as group:
        # Nobody looks from time to time here.
        tasks = [group.create_task(each.run(), name="feed") for each in feeds._following.values()]
        await until(lambda: "node" in state.nodes and leases.followed_seconds() > 0.02)
        await send(api, renew_lease(replace(LEASE, holder=""), duration_seconds=600, now=utc_now()), timeout_seconds=5)
        await until(lambda: state.nodes["node"].stale)
        await send(api, renew_lease(LEASE, duration_seconds=600, now=utc_now()), timeout_seconds=5)
        await until(lambda: not state.nodes["node"].stale)
        for task in tasks:
            task.cancel()


async def test_e04_a_pod_is_unbound_while_it_lives_and_has_no_node(
    server: StandInApiServer, api: KubernetesApi
) -> None:
    feeds = Feeds(api, ClusterState(catalogue()), UNOBSERVED)
    for name, amount, node in (("bound", 1, "node"), ("asks-for-nothing", 0, "")):
        server.create_pod(pod_manifest(name, DEVICE, amount, node=node) if amount else {"metadata": {"name": name}})
    await feeds.list_consistently(5)
    assert not feeds.any_unbound()

    server.create_pod(pod_manifest("waiting", DEVICE, 1))
    await feeds.list_consistently(5)
    assert feeds.any_unbound()

    server.set_pod_status("default", "waiting", {"phase": "Failed"})
    await feeds.list_consistently(5)
    assert not feeds.any_unbound()
