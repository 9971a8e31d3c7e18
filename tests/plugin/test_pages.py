"""The pages of a whole daemon in this process, asked over HTTP, between stand-ins of kubelet and API server."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from neuron_plugin.allocation import INVENTORY_KEY, ContainerKind, DecisionLog, Resource
from neuron_plugin.plugin.daemon import NodeDaemon
from neuron_plugin.plugin.pages import decisions_json
from neuron_plugin.plugin.settings import PluginSettings
from neuron_plugin.simulation import (
    Container,
    Pod,
    SimulatedNode,
    StandInApiServer,
    StandInKubelet,
    api_server,
    write_node,
)
from neuron_plugin.topology import catalogue

DEVICE, CORE = Resource.NEURONDEVICE.value, Resource.NEURONCORE.value
NODE = "worker-1"


@dataclass
class Site:
    """A daemon and what surrounds it."""

    daemon: NodeDaemon
    kubelet: StandInKubelet
    node: SimulatedNode
    stop: asyncio.Event

    async def get(self, path: str) -> tuple[int, str]:
        """Status and body of a page."""
        async with asyncio.timeout(10):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.daemon.responder.port)
            writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
        return int(head.split()[1]), body.decode()

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples with these labels."""
        _, text = await self.get("/metrics")
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return sum(one.value for one in samples if one.name == name and labels.items() <= one.labels.items())

    async def ready(self) -> None:
        for resource in Resource:
            count = 12 if resource is Resource.NEURONCORE else 6
            await self.kubelet.wait_for_capacity(resource.value, count, timeout_seconds=30)
        await until(lambda: all(server.registered.is_set() for server in self.daemon.offering.servers))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def running(root: Path, *, kubelet_up: bool = True, **settings: Any) -> AsyncIterator[Site]:
    """A daemon on a simulated inf2.24xlarge: six devices of two cores."""
    (root / "dp").mkdir()
    (root / "pr").mkdir()
    node = write_node(root / "node", "inf2.24xlarge", usage_counters=False)
    kubelet, stop = StandInKubelet(root / "dp", root / "pr"), asyncio.Event()
    if kubelet_up:
        await kubelet.start()
    usual = {
        "node_name": NODE,
        "cluster": False,
        "sysfs": node.paths.sysfs,
        "dev": node.paths.dev,
        "kubelet_dir": root / "dp",
        "pod_resources_socket": root / "pr" / "kubelet.sock",
        "health_address": "127.0.0.1",
        "health_port": free_port(),
        "rescan_seconds": 1,
    }
    daemon = NodeDaemon(PluginSettings(**{**usual, **settings}), catalogue())
    task = asyncio.create_task(daemon.run(stop), name="daemon under test")
    try:
        await until(lambda: daemon.responder.port is not None or task.done())
        yield Site(daemon, kubelet, node, stop)
    finally:
        stop.set()
        await task
        await kubelet.stop()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
async def site(root: Path) -> AsyncIterator[Site]:
    async with running(root) as site:
        await site.ready()
        yield site


@pytest.fixture
def root() -> Any:
    """A directory with a name short enough for sockets in it."""
    with TemporaryDirectory(prefix="np-") as path:
        yield Path(path)


def a_pod(name: str, resource: str, count: int) -> Pod:
    return Pod(f"uid-{name}", "default", name, (Container("main", {resource: count}, ContainerKind.APP),))


async def test_p78_a_registered_daemon_is_alive_and_ready(site: Site) -> None:
    assert await site.get("/healthz") == (200, "ok\n")
    status, text = await site.get("/readyz")
    assert status == 200
    assert text.startswith("ok\n")  # notes may follow: whether this machine has uevents is not the question


async def test_p78_without_a_kubelet_it_is_alive_and_not_ready_and_names_every_resource(root: Path) -> None:
    async with running(root, kubelet_up=False) as site:
        await until(lambda: all(server.state.value.startswith("waiting") for server in site.daemon.offering.servers))
        assert (await site.get("/healthz"))[0] == 200
        status, text = await site.get("/readyz")
        assert status == 503
        assert [f"{resource.value}: waiting for kubelet.sock" in text for resource in Resource] == [True] * 3
        await site.kubelet.start()
        await site.ready()
        assert (await site.get("/readyz"))[0] == 200


async def test_p78_a_machine_without_devices_is_alive_and_not_ready(root: Path) -> None:
    async with running(root, sysfs=root / "nowhere") as site:
        assert (await site.get("/healthz"))[0] == 200
        status, text = await site.get("/readyz")
        assert (status, "is the driver loaded?" in text) == (503, True)


async def test_p79_allocations_latencies_and_devices_show_in_the_metrics(site: Site) -> None:
    await site.kubelet.admit(a_pod("train", CORE, 2))
    assert await site.metric("neuron_plugin_allocations_total", resource=CORE) == 1
    assert await site.metric("neuron_plugin_allocate_seconds_count", resource=CORE) == 1
    assert await site.metric("neuron_plugin_preference_seconds_count", resource=CORE) == 1
    assert await site.metric("neuron_plugin_devices", resource=CORE, state="held") == 2
    assert await site.metric("neuron_plugin_devices", resource=DEVICE, state="held_elsewhere") == 1
    assert await site.metric("neuron_plugin_registrations_total", resource=CORE, result="accepted") == 1
    assert await site.metric("neuron_plugin_registered") == 3


async def test_p79_a_device_that_fails_and_returns_shows_in_the_metrics(site: Site) -> None:
    site.node.remove_node(3)
    site.node.set_ecc(1, memory=2)
    await until(lambda: bool(site.daemon.state.machine and len(site.daemon.state.machine.unhealthy) == 2))
    assert await site.metric("neuron_plugin_device_healthy") == 4
    assert await site.metric("neuron_plugin_ecc_errors", device="1", kind="memory") == 2
    await until(lambda: site.daemon.witness.counts.health_transitions.total() == 2)
    assert await site.metric("neuron_plugin_health_transitions_total", device="3", to="unhealthy") == 1


async def test_the_decisions_page_tells_what_was_chosen_and_from_what(site: Site) -> None:
    await site.kubelet.admit(a_pod("train", DEVICE, 2))
    _, text = await site.get("/decisions")
    preferred, allocated = json.loads(text)["decisions"]
    assert [preferred["step"], allocated["step"]] == ["preferred", "allocated"]
    assert preferred["ids"] == allocated["ids"]
    assert preferred["offered"] == "0,1,2,3,4,5"
    assert preferred["candidates"][0]["ids"] == preferred["ids"]
    assert preferred["candidateCount"] == 5
    assert preferred["node"] == NODE


def test_an_empty_journal_is_an_empty_list() -> None:
    assert json.loads(decisions_json(DecisionLog())) == {"decisions": []}


async def test_port_0_serves_no_pages(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    (root / "dp").mkdir()
    settings = PluginSettings(cluster=False, health_port=0, sysfs=root, dev=root, kubelet_dir=root / "dp")
    daemon, stop = NodeDaemon(settings, catalogue()), asyncio.Event()
    with caplog.at_level(logging.INFO, "neuron_plugin"):
        task = asyncio.create_task(daemon.run(stop), name="daemon under test")
        await until(lambda: any("no Neuron device" in record.getMessage() for record in caplog.records))
        stop.set()
        await task
    assert daemon.responder.port is None
    assert not any("probes" in record.getMessage() for record in caplog.records)


async def test_p84_at_the_default_level_what_does_not_change_is_silent(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "neuron_plugin"):
        async with running(root) as site:
            await site.ready()
            advertised = [one for one in caplog.records if one.getMessage() == "registered and advertised"]
            assert len(advertised) == 3
            caplog.clear()
            for _ in range(3):
                for page in ("/healthz", "/readyz", "/metrics", "/decisions"):
                    await site.get(page)
            site.daemon.offering.refresh()
            await asyncio.sleep(1.2)  # a rescan
            assert [record.getMessage() for record in caplog.records] == []
            await site.kubelet.admit(a_pod("train", CORE, 2))
            await until(lambda: bool(caplog.records))
            assert [record.getMessage() for record in caplog.records][:1] == ["allocated"]


async def test_e7_a_cluster_sees_the_lease_and_the_description_of_a_node_that_serves(root: Path) -> None:
    async with StandInApiServer() as api:
        api.create_node({"metadata": {"name": NODE}})
        config = api.write_kubeconfig(root / "kubeconfig")
        async with running(root, cluster=True, kubeconfig=config, lease_renew_seconds=1, kubelet_up=False) as site:
            await until(lambda: INVENTORY_KEY in api.get(api_server.NODES, NODE)["metadata"].get("annotations", {}))
            assert api.objects(api_server.LEASES) == []
            await site.kubelet.start()
            await site.ready()
            await until(lambda: bool(api.objects(api_server.LEASES)))
            assert await site.metric("neuron_plugin_outbox_requests") == 0
            assert await site.metric("neuron_plugin_lists_total", kind="pods") == 1
            assert 0 <= await site.metric("neuron_plugin_watch_age_seconds") < 10
        (lease,) = api.objects(api_server.LEASES)
        assert lease["metadata"]["name"] == f"neuron-plugin-{NODE}"


async def test_p78_an_api_server_that_is_away_makes_nobody_restart_the_plugin(root: Path) -> None:
    async with StandInApiServer() as api:
        config = api.write_kubeconfig(root / "kubeconfig")
    async with running(root, cluster=True, kubeconfig=config) as site:
        await site.ready()
        assert (await site.get("/healthz"))[0] == 200
        assert (await site.get("/readyz"))[0] == 200


async def test_the_lease_can_be_switched_off(root: Path) -> None:
    async with StandInApiServer() as api:
        api.create_node({"metadata": {"name": NODE}})
        config = api.write_kubeconfig(root / "kubeconfig")
        async with running(root, cluster=True, kubeconfig=config, node_lease=False) as site:
            await site.ready()
            await until(lambda: INVENTORY_KEY in api.get(api_server.NODES, NODE)["metadata"].get("annotations", {}))
            assert api.objects(api_server.LEASES) == []
