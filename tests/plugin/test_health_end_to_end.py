"""Health from a fault of the machine to everyone who sees it: kubelet, pod, annotation, events, condition."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from neuron_plugin.allocation.keys import INVENTORY_KEY
from neuron_plugin.hardware import ResetState
from neuron_plugin.hardware.kernel_log import LogPeriods
from neuron_plugin.plugin.daemon import NodeDaemon
from neuron_plugin.plugin.health import Action, HealthRules, SignalRule
from neuron_plugin.simulation import SimulatedNode
from neuron_plugin.simulation.api_server_kinds import EVENTS, NODES
from tests.plugin import site as sites
from tests.plugin.site import NODE, eventually
from tests.plugin.world import NEURON, app, uid_of


@dataclass
class Running:
    """A node of six devices and its daemon; what others see of them."""

    site: sites.Site
    daemon: NodeDaemon

    @property
    def machine(self) -> SimulatedNode:
        return self.site.node

    async def allocatable(self, count: int) -> None:
        await self.site.kubelet.wait_for_capacity(NEURON.value, count)

    def node_status(self) -> dict[str, Any]:
        assert self.site.api is not None
        status: dict[str, Any] = self.site.api.get(NODES, NODE).get("status") or {}
        return status

    def inventory(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.site.node_annotations().get(INVENTORY_KEY, "{}"))
        return found

    def events(self) -> list[tuple[str, str]]:
        assert self.site.api is not None
        in_time = sorted(self.site.api.objects(EVENTS), key=lambda event: str(event["eventTime"]))
        return [(event["reason"], event["note"]) for event in in_time]

    def condition(self) -> str:
        conditions = self.node_status().get("conditions", [])
        return next((one["status"] for one in conditions if one["type"] == "NeuronDevicesHealthy"), "")


@asynccontextmanager
async def a_site(
    *, usage_counters: bool = False, kmsg: Path | None = None, truthful: bool = False
) -> AsyncIterator[Running]:
    async with sites.a_site("inf2.24xlarge", usage_counters=usage_counters, resources=("neuron",)) as site:
        site.settings = msgspec.structs.replace(
            site.settings,
            health_port=0,
            node_lease=False,
            node_condition="NeuronDevicesHealthy",
            state_dir=site.settings.cdi_dir / "state",
            kmsg=kmsg,
            report_unhealthy_in_use=truthful,
        )
        site.times = replace(site.times, kernel_log=LogPeriods(file=0.02))
        async with site.daemon() as daemon:
            yield Running(site, daemon)


def health_of_held(node: Running) -> dict[str, str]:
    """As the status of the pod ``holder`` shows it."""
    pod = node.site.kubelet_pods["holder"]
    (shown,) = node.site.kubelet.resource_health(pod, pod.container("app"))
    return {each["resourceID"]: each["health"] for each in shown["resources"]}


async def test_p67_p68_p71_a_fault_reaches_kubelet_pod_node_and_events_and_so_does_its_end() -> None:
    async with a_site(truthful=True) as node:
        await node.site.run("holder", app(6))
        await eventually(lambda: node.condition() == "True")
        node.machine.set_reset(2, ResetState.FAILED)
        await node.allocatable(5)
        assert health_of_held(node)["2"] == "Unhealthy"
        await eventually(lambda: list(node.inventory().get("unhealthy", ())) == ["2"])
        await eventually(lambda: node.condition() == "False")
        node.machine.set_reset(2, ResetState.READY)
        await node.allocatable(6)
        assert set(health_of_held(node).values()) == {"Healthy"}
        await eventually(lambda: node.inventory().get("unhealthy") == {} and node.condition() == "True")
        await eventually(lambda: len(node.events()) == 4)
        reset = "its last reset failed (reset it again, reload the driver or reboot)"
        assert sorted(node.events()) == [
            ("NeuronDeviceHealthy", "neuron device 2 is healthy again and given to new pods"),
            ("NeuronDeviceHealthy", "neuron device 2 of this pod is healthy again"),
            ("NeuronDeviceUnhealthy", f"neuron device 2 is not given to new pods: {reset}"),
            ("NeuronDeviceUnhealthy", f"neuron device 2 of this pod is unhealthy: {reset}. The pod keeps it"),
        ]
        assert node.site.api
        types = {(event["reason"], event["type"]) for event in node.site.api.objects(EVENTS)}
        assert types == {("NeuronDeviceHealthy", "Normal"), ("NeuronDeviceUnhealthy", "Warning")}


async def test_a_device_that_breaks_under_a_pod_is_counted_once_until_the_pod_is_deleted() -> None:
    async with a_site() as node:
        await node.site.run("holder", app(3))
        node.machine.set_reset(1, ResetState.FAILED)
        await eventually(lambda: list(node.inventory().get("unhealthy", ())) == ["1"])
        await eventually(lambda: [reason for reason, _ in node.events()] == ["NeuronDeviceUnhealthy"] * 2)
        assert node.site.kubelet.capacity(NEURON.value).allocatable == 6
        assert node.condition() == "False"
        await node.site.run("other", app(3))
        assert node.site.api
        counts = {NEURON.value: "6", "cpu": "8"}
        node.site.api.patch_node(NODE, {"status": {"allocatable": counts}}, status=True)  # as the kubelet has it
        node.site.api.delete_pod(sites.NAMESPACE, "holder")  # its containers have some time to end
        await node.allocatable(5)
        await eventually(lambda: node.node_status()["allocatable"] == counts | {NEURON.value: "5"})
        node.site.end("holder")
        node.machine.set_reset(1, ResetState.READY)
        await node.allocatable(6)


async def test_p67_errors_of_a_core_and_kernel_messages_reach_the_kubelet() -> None:
    async with a_site(usage_counters=True) as node:
        node.machine.set_core_errors(1, 0, hw_nc_ue_error=1)
        await node.allocatable(5)
        node.machine.log_kernel_message("nd4: NEURON_HW_ERR=HBM_UNCORRECTABLE_ERROR on HBM 0")
        await node.allocatable(4)
        await eventually(
            lambda: (
                node.inventory().get("unhealthy")
                == {
                    "1": "1 uncorrectable core error on physical core 0",
                    "4": "kernel message NEURON_HW_ERR=HBM_UNCORRECTABLE_ERROR",
                }
            )
        )


def fails(site: sites.Site, name: str, started: datetime) -> None:
    """The pod's container ends with an error three seconds after its start, and the pod has failed."""
    assert site.api
    times = {"startedAt": started, "finishedAt": started + timedelta(seconds=3)}
    end = {"exitCode": 1, "reason": "Error"} | {key: time.strftime("%Y-%m-%dT%H:%M:%SZ") for key, time in times.items()}
    status = {"phase": "Failed", "containerStatuses": [{"name": "app", "state": {"terminated": end}}]}
    site.kubelet.finish(site.kubelet_pods[name].uid)
    site.api.set_pod_status(sites.NAMESPACE, name, status)


def is_free(daemon: NodeDaemon, name: str) -> bool:
    return uid_of(name) not in sites.holders(daemon)


def runs(site: sites.Site, name: str, started: datetime) -> None:
    assert site.api
    state = {"running": {"startedAt": started.strftime("%Y-%m-%dT%H:%M:%SZ")}}
    status = {"phase": "Running", "containerStatuses": [{"name": "app", "started": True, "state": state}]}
    site.api.set_pod_status(sites.NAMESPACE, name, status)


@pytest.mark.parametrize("action", [Action.UNHEALTHY, Action.IGNORE])
async def test_a_device_on_which_three_pods_failed_in_a_row_is_given_to_no_other(action: Action) -> None:
    async with sites.a_site("inf2.24xlarge", resources=("neuron",)) as site:
        rule = SignalRule(action=action, threshold=3, keep_firing_for_seconds=60)
        site.settings = msgspec.structs.replace(site.settings, health=HealthRules(failed_starts=rule))
        now = datetime.now(UTC)
        async with site.daemon() as daemon:
            node = Running(site, daemon)
            await site.run("other", app(1))
            runs(site, "other", now - timedelta(minutes=10))
            for number, name in enumerate(("a", "b", "c")):
                admitted = await site.run(name, app(1))
                assert sites.ids(admitted, NEURON) == (1,), "the core that is free again is given again"
                await site.annotated(name)
                fails(site, name, now - timedelta(seconds=60 - 10 * number))
                await eventually(partial(is_free, daemon, name))
            if action is Action.IGNORE:
                assert daemon.health.unhealthy == {}
                return
            await eventually(lambda: 1 in daemon.health.unhealthy)
            await eventually(lambda: "1" in node.inventory()["unhealthy"])
            assert "3 failed starts of different pods in a row" in node.inventory()["unhealthy"]["1"]
            await node.allocatable(5)
            assert sites.ids(await site.run("next", app(1)), NEURON) == (2,)
