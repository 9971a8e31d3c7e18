"""Health from a fault of the machine to whoever is told: kubelet, pod, annotation, events, condition."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from neuron_plugin.allocation.inventory import INVENTORY_KEY
from neuron_plugin.hardware import kmsg_reader
from neuron_plugin.hardware.attributes import ResetState
from neuron_plugin.plugin.daemon import NodeDaemon
from neuron_plugin.plugin.settings import PluginSettings, ResourceName
from neuron_plugin.simulation.api_server import EVENTS, NODES, StandInApiServer
from neuron_plugin.simulation.kubelet import StandInKubelet
from neuron_plugin.simulation.kubelet_pods import Container, Pod
from neuron_plugin.simulation.node import SimulatedNode, write_node
from neuron_plugin.topology.instances import catalogue

NODE = "worker-1"
DEVICES = "aws.amazon.com/neuron"
DEADLINE_SECONDS = 20.0
_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - a private directory in it


@dataclass
class Site:
    """A machine of six devices, its kubelet and API server, and the daemon."""

    node: SimulatedNode
    kubelet: StandInKubelet
    api: StandInApiServer
    daemon: NodeDaemon

    async def allocatable(self, count: int) -> None:
        await self.kubelet.wait_for_capacity(DEVICES, count, timeout_seconds=DEADLINE_SECONDS)

    def inventory(self) -> dict[str, Any]:
        text = (self.api.get(NODES, NODE)["metadata"].get("annotations") or {}).get(INVENTORY_KEY, "{}")
        told: dict[str, Any] = json.loads(text)
        return told

    def events(self) -> list[tuple[str, str]]:
        in_time = sorted(self.api.objects(EVENTS), key=lambda event: str(event["eventTime"]))
        return [(event["reason"], event["note"]) for event in in_time]

    def condition(self) -> str:
        conditions = (self.api.get(NODES, NODE).get("status") or {}).get("conditions", [])
        return next((one["status"] for one in conditions if one["type"] == "NeuronDevicesHealthy"), "")


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not condition():
            await asyncio.sleep(0.02)


@asynccontextmanager
async def a_site(*, usage_counters: bool = False, kmsg: Path | None = None) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=_MEMORY)))
        (root / "plugins").mkdir()
        (root / "pods").mkdir()
        node = write_node(root / "node", "inf2.24xlarge", usage_counters=usage_counters)
        api = await stack.enter_async_context(StandInApiServer())
        api.create_node({"metadata": {"name": NODE}})
        kubelet = await stack.enter_async_context(
            StandInKubelet(root / "plugins", root / "pods", random=Random(7))  # noqa: S311 - chooses ids
        )
        settings = PluginSettings(
            node_name=NODE,
            kubeconfig=api.write_kubeconfig(root / "kubeconfig"),
            sysfs=node.paths.sysfs,
            dev=node.paths.dev,
            logical_core_file=node.paths.logical_nc_config,
            kubelet_dir=root / "plugins",
            pod_resources_socket=root / "pods/kubelet.sock",
            resources=(ResourceName.NEURON,),
            rescan_seconds=0.1,
            health_port=0,
            node_lease=False,
            node_condition="NeuronDevicesHealthy",
            state_dir=root / "state",
            kmsg=kmsg,
        )
        stop = asyncio.Event()
        daemon = NodeDaemon(settings, catalogue())
        running = asyncio.create_task(daemon.run(stop), name="daemon")
        try:
            site = Site(node, kubelet, api, daemon)
            await site.allocatable(6)
            yield site
        finally:
            stop.set()
            await running


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kmsg_reader, "LOOK_SECONDS", 0.02)


async def test_p67_p68_p71_a_fault_reaches_everybody_and_so_does_its_end() -> None:
    async with a_site() as site:
        pod = Pod("uid-holder", "default", "holder", (Container("main", {DEVICES: 6}),))
        await site.kubelet.admit(pod)
        await eventually(lambda: site.condition() == "True")
        site.node.set_reset(2, ResetState.FAILED)
        await site.allocatable(5)
        assert site.kubelet.device_health("uid-holder", "main")["2"] == "Unhealthy"
        await eventually(lambda: list(site.inventory().get("unhealthy", ())) == ["2"])
        await eventually(lambda: site.condition() == "False")
        site.node.set_reset(2, ResetState.READY)
        await site.allocatable(6)
        assert set(site.kubelet.device_health("uid-holder", "main").values()) == {"Healthy"}
        await eventually(lambda: site.inventory().get("unhealthy") == {} and site.condition() == "True")
        await eventually(lambda: len(site.events()) == 2)
        reset = "its last reset failed (reset it again, reload the driver or reboot)"
        assert site.events() == [
            ("NeuronDeviceUnhealthy", f"neuron device 2 is not given to new pods: {reset}"),
            ("NeuronDeviceHealthy", "neuron device 2 is healthy again and given to new pods"),
        ]


async def test_p67_errors_of_a_core_and_kernel_messages_reach_the_kubelet() -> None:
    async with a_site(usage_counters=True) as site:
        site.node.set_core_errors(1, 0, hw_nc_ue_error=1)
        await site.allocatable(5)
        site.node.log_kernel_message("nd4: NEURON_HW_ERR=HBM_UNCORRECTABLE_ERROR on HBM 0")
        await site.allocatable(4)
        await eventually(
            lambda: (
                site.inventory().get("unhealthy")
                == {
                    "1": "1 uncorrectable core error on physical core 0",
                    "4": "1 kernel message of NEURON_HW_ERR=HBM_UNCORRECTABLE_ERROR",
                }
            )
        )


async def test_p67_a_forged_line_and_one_without_a_device_take_nothing_away() -> None:
    async with a_site() as site:
        site.node.log_kernel_message("nd4: NEURON_HW_ERR=DMA_ERROR on queue 1", by_kernel=False)
        site.node.log_kernel_message("kernel: NEURON_HW_ERR=SRAM_UNCORRECTABLE_ERROR affecting neuron devices")
        await eventually(lambda: any(reason == "NeuronDeviceWarning" for reason, _ in site.events()))
        assert site.kubelet.capacity(DEVICES).allocatable == 6
        assert all(health.status == "warning" for health in site.daemon.health.devices.values())
        assert "no device of this node" in site.events()[0][1]


async def test_p25_a_driver_reload_is_unhealthy_and_back() -> None:
    async with a_site() as site:
        site.node.unload_driver()
        await site.allocatable(0)
        site.node.load_driver()
        await site.allocatable(6)
        await eventually(lambda: len(site.events()) == 2)
        assert [note.split(" are ")[0] for _, note in site.events()] == ["neuron devices 0,1,2,3,4,5"] * 2


async def test_p69_a_flapping_node_makes_a_bounded_number_of_messages_and_events() -> None:
    async with a_site() as site:
        start = site.daemon.offering._advertisements[ResourceName.NEURON.resource].latest.version
        for _ in range(15):
            site.node.remove_node(3)
            await asyncio.sleep(0.12)
            site.node.restore_node(3)
            await asyncio.sleep(0.12)
        latest = site.daemon.offering._advertisements[ResourceName.NEURON.resource].latest.version
        assert 1 <= latest - start <= 3  # gone, back, gone and then held for ten seconds
        assert len(site.events()) <= 3
        assert site.daemon.health.unhealthy == {3: "/dev/neuron3 is absent"}


async def test_p70_a_kernel_log_that_is_not_there_is_named_and_the_rest_goes_on() -> None:
    async with a_site(kmsg=Path("/nowhere/kmsg")) as site:
        await eventually(lambda: "kernel-log" in site.daemon.health.silent_sources)
        assert site.daemon._moment().silent_sources["kernel-log"].startswith("/nowhere/kmsg cannot be opened")
        site.node.remove_node(0)
        await site.allocatable(5)
