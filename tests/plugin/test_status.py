"""What the daemon says about itself: probes, metrics as a scraper reads them, decisions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from neuron_plugin.allocation import NodeInventory, Resource
from neuron_plugin.allocation.inventory import write_inventory
from neuron_plugin.build import build
from neuron_plugin.cluster import ApiRequest
from neuron_plugin.decision_log import DecisionLog
from neuron_plugin.hardware import Device, EccCounts, Inventory
from neuron_plugin.hardware.core_counters import CoreCounters
from neuron_plugin.hardware.device import HealthReadings, NodeState
from neuron_plugin.kubelet import Advertisement, DevicePluginServer, DirectoryWatch, KubeletCounters
from neuron_plugin.metrics import MetricCounts
from neuron_plugin.plugin.inputs import HoldDown, Inputs
from neuron_plugin.plugin.metrics import METRICS, new_counts
from neuron_plugin.plugin.node import NodeOptions
from neuron_plugin.plugin.publisher import WriteQueue
from neuron_plugin.plugin.snapshot import derive
from neuron_plugin.plugin.status import PluginStatus
from neuron_plugin.plugin.utilization import ContainerKey, ContainerUse, UseByContainer
from neuron_plugin.topology import DeviceId
from tests.kubelet.fakes import FakeHandler
from tests.plugin.desk import a_desk
from tests.plugin.world import (
    CORE,
    DEVICE,
    INF2,
    NEURON,
    app,
    assigned,
    entry,
    inputs,
    inventory,
    moment,
    pod,
    ref,
    uid_of,
)
from tests.support.stories import rows

A = uid_of("a")


class Server(DevicePluginServer):
    """A registration that stands where a test says."""

    def __init__(
        self,
        resource: Resource,
        *,
        registered: bool = True,
        socket: Path | None = Path("/x.sock"),
        dialled: str | None = None,
        replaced: Path | None = None,
    ) -> None:
        """``dialled`` is what is wrong with its socket, ``replaced`` the socket that comes while it is dialled."""
        super().__init__(resource.value, DirectoryWatch(Path("/nowhere")), FakeHandler(), Advertisement())
        self.socket_path = socket
        self._dialled = dialled
        self._replaced = replaced
        if registered:
            self.registered.set()

    async def fault(self, timeout_seconds: float) -> str | None:  # noqa: ARG002 - as the server's own
        self.socket_path = self._replaced or self.socket_path
        return self._dialled


@dataclass
class Parts:
    """What a status describes; each part may be replaced."""

    inputs: Inputs | None = field(default_factory=inputs)
    servers: list[Server] = field(default_factory=lambda: [Server(one) for one in (NEURON, DEVICE, CORE)])
    silent: dict[str, str] = field(default_factory=dict)
    hardware: Inventory | None = None
    decisions: DecisionLog = field(default_factory=DecisionLog)
    counts: MetricCounts = field(default_factory=new_counts)
    kubelet: KubeletCounters = field(default_factory=KubeletCounters)
    age: float | None = None
    writes: WriteQueue | None = None
    own_node: Any = None
    use: UseByContainer = field(default_factory=dict)

    @property
    def status(self) -> PluginStatus:
        fakes: Any = SimpleNamespace
        return PluginStatus(
            fakes(
                snapshot=derive(self.inputs) if self.inputs else None,
                options=NodeOptions(tuple(Resource(server.resource) for server in self.servers)),
                dra_unreadable="",
            ),
            self.servers,
            fakes(silent_sources=self.silent, inventory=self.hardware),
            self.decisions,
            self.counts,
            self.kubelet,
            self.cluster,
            fakes(use=self.use, unix_seconds=1000.0),
        )

    @property
    def cluster(self) -> Any:
        if self.own_node is None and self.writes is None and self.age is None:
            return None
        own_node = self.own_node or SimpleNamespace(unreadable="", problem="", inventory="")
        queue = WriteQueue() if self.writes is None else self.writes
        age, publisher = SimpleNamespace(age_seconds=self.age), SimpleNamespace(queue=queue)
        return SimpleNamespace(own_node=own_node, pods=age, publisher=publisher, slices=SimpleNamespace(published=True))

    def page(self) -> str:
        class Page(Collector):
            def collect(_self) -> Iterator[Any]:  # noqa: N805 - of the class around it
                yield from self.status.collect()

        registry: Any = Page()
        return generate_latest(registry).decode()

    def scraped(self) -> dict[str, dict[tuple[str, ...], float]]:
        """Samples by metric, without the prefix, and by the values of their labels."""
        found: dict[str, dict[tuple[str, ...], float]] = {}
        for family in text_string_to_metric_families(self.page()):
            for sample in family.samples:
                name = sample.name.removeprefix(METRICS.prefix)
                _, labels, _ = METRICS.rows.get(name, METRICS.rows.get(name.rpartition("_")[0], ("", (), "")))
                values = tuple(sample.labels[label] for label in (*labels, "le") if label in sample.labels)
                found.setdefault(name, {})[values] = sample.value
        return found


def states_of(samples: Mapping[tuple[str, ...], float], resource: Resource) -> dict[str, float]:
    return {state: value for (name, state), value in samples.items() if name == resource.value and value}


def held(*ids: int, node: NodeInventory | None = None) -> HoldDown:
    mask = (node or inventory()).geometry.devices_mask(ids)
    return HoldDown(A, ref("gone"), mask, 0.0, 0.0, 0.0, 0.0, 99.0, "why")


# Probes.


async def test_p78_alive_means_that_every_socket_of_ours_answers() -> None:
    assert not any((await Parts().status.liveness()).checks.values())
    parts = Parts(servers=[Server(NEURON), Server(CORE, socket=Path("/b.sock"), dialled="Connection refused")])
    assert (await parts.status.liveness()).checks == {
        NEURON.value: "",
        CORE.value: "aws.amazon.com/neuroncore does not answer on /b.sock: Connection refused",
    }


@pytest.mark.parametrize(
    "server",
    [
        pytest.param({"registered": False, "socket": None}, id="no kubelet, and no device"),
        pytest.param({"dialled": "No such file", "replaced": Path("/next.sock")}, id="replaced while it is dialled"),
    ],
)
async def test_p78_what_is_away_or_replaced_is_no_reason_for_a_restart(server: dict[str, Any]) -> None:
    assert (await Parts(inputs=None, servers=[Server(NEURON, **server)]).status.liveness()).checks == {NEURON.value: ""}


async def test_p78_ready_means_that_the_kubelet_follows_every_resource() -> None:
    assert not any((await Parts().status.readiness()).checks.values())
    parts = Parts(servers=[Server(NEURON), Server(CORE, registered=False)])
    assert (await parts.status.readiness()).checks == {NEURON.value: "", CORE.value: f"{CORE.value}: stopped"}


async def test_without_a_device_the_reason_is_the_hardware_and_not_each_resource() -> None:
    ready = await Parts(inputs=None, servers=[Server(NEURON, registered=False)]).status.readiness()
    assert ready.checks == {"devices": "no Neuron device has been found: is the driver loaded?"}


NOTED = [
    (Parts(silent={"kernel-log": "/dev/kmsg: denied"}), "kernel-log is not running: /dev/kmsg: denied"),
    (Parts(inputs(file={"unreadable": "a future format"})), "allocations come from PodResources: a future format"),
    (
        Parts(own_node=SimpleNamespace(unreadable="disable-devices reads 'x'", problem="")),
        "disabled devices are those of before: disable-devices reads 'x'",
    ),
]


@pytest.mark.parametrize(("parts", "note"), NOTED, ids=["p70 a source", "the checkpoint", "disabled devices"])
async def test_what_does_not_work_is_named_and_fails_nothing(parts: Parts, note: str) -> None:
    ready = await parts.status.readiness()
    assert not any(ready.checks.values())
    assert ready.notes == (note,)
    found = parts.scraped()
    assert found["checkpoint_readable"] == {(): "PodResources" not in note}
    assert found.get("disable_devices_readable", {(): 1}) == {(): "disabled" not in note}


def test_pods_can_get_devices_once_every_resource_is_registered_and_the_latest_inventory_is_published() -> None:
    def reason(parts: Parts, published: str = "") -> str:
        parts.own_node = SimpleNamespace(unreadable="", problem="", inventory=published)
        is_ready, why, _ = parts.status.ready_condition()
        assert is_ready is (why == "DevicesReady")
        return why

    has = write_inventory(inventory())
    assert reason(Parts(), has) == "DevicesReady"
    assert reason(Parts(inputs=None), has) == "NoDevices"
    assert reason(Parts(servers=[Server(NEURON), Server(CORE, registered=False)]), has) == "NotRegistered"
    assert reason(Parts(moment("broken 3")), has) == "InventoryNotPublished"
    holding = Parts(inputs(hold_downs=(held(3),)))
    assert reason(holding, has) == "InventoryNotPublished"
    assert reason(holding, write_inventory(derive(inputs(hold_downs=(held(3),))).published_inventory)) == "DevicesReady"


async def test_a_node_that_the_api_server_does_not_know_is_not_ready() -> None:
    own_node = SimpleNamespace(unreadable="", problem="the API server has no node 'wroker-1'")
    for parts in (Parts(own_node=own_node), Parts(inputs=None, own_node=own_node)):
        assert (await parts.status.readiness()).checks["node"] == own_node.problem


# Metrics.


def everything() -> Parts:
    """A moment at which every metric has a sample."""
    node = inventory(INF2)
    counts = new_counts()
    counts.add("corrections_total")
    counts.add("allocations_total", "neuron")
    counts.listed("pods", records=3, seconds=0.1)
    counts.interrupted("pods", "end", wait_seconds=0.1)
    counts.add("health_transitions_total", "3", "unhealthy")
    for name, resource in (("allocate", "neuron"), ("preference", "neuron"), ("prepare", "neuron.aws.com")):
        counts.observe(f"{name}_seconds", resource, seconds=0.1)
    kubelet = KubeletCounters()
    kubelet.refused_requests["neuron", "Allocate"] += 1
    kubelet.preferences_replaced["neuron"] += 1
    kubelet.registrations["neuron", "accepted"] += 1
    readings = HealthReadings(ecc=EccCounts(sram=1, memory=2, repairable=3))
    device = Device(DeviceId(0), 2, "Inferentia2", "NDv3", frozenset(), NodeState.PRESENT, health=readings)
    return Parts(
        inputs(
            pod("a", app(1, DEVICE)),
            assigned("waits", app(1, DEVICE), sets=[[9]], geometry=INF2),
            node=node,
            recorded=[entry(A, "app", DEVICE, 0, node=node)],
            hold_downs=(held(5, node=node),),
        ),
        silent={"kernel-log": "not permitted"},
        hardware=Inventory((device,)),
        counts=counts,
        kubelet=kubelet,
        age=1.5,
        writes=WriteQueue(),
        own_node=SimpleNamespace(unreadable="", problem=""),
        use={
            ContainerKey(ref("a"), "app"): ContainerUse(
                {(0, 0): CoreCounters(9, 1024)}, ((1, 0), (31, 15_000_000)), 970.0
            )
        },
    )


def test_p79_what_is_exposed_is_what_is_documented() -> None:
    families = {family.name: family for family in text_string_to_metric_families(everything().page())}
    documented = {METRICS.prefix + name.removesuffix("_total"): metric for name, metric in METRICS.rows.items()}
    assert families.keys() == documented.keys()
    for name, family in families.items():
        kind, labels, meaning = documented[name]
        assert (family.type, family.documentation) == (kind, meaning)
        seen = {frozenset(sample.labels) - {"le"} for sample in family.samples}
        assert seen == {frozenset(labels)}


def test_use_is_shown_by_container_and_only_what_is_known() -> None:
    parts = everything()
    found, labels = parts.scraped(), ("default", "a", "app")
    assert found["container_busy_ratio"] == {labels: 0.5}
    assert found["container_idle_seconds"] == {labels: 30.0}
    assert found["container_device_memory_bytes"] == {labels: 1024.0}
    parts.use = {ContainerKey(ref("a"), "app"): ContainerUse({(0, 0): CoreCounters(None, 1024)}, (), 970.0)}
    assert "container_busy_ratio" not in parts.scraped()
    assert parts.scraped()["container_device_memory_bytes"] == {labels: 1024.0}


def test_counters_are_called_total_and_nothing_else_is() -> None:
    assert {name.endswith("_total") for name, (kind, *_) in METRICS.rows.items() if kind == "counter"} == {True}
    assert {name.endswith("_total") for name, (kind, *_) in METRICS.rows.items() if kind != "counter"} == {False}


def test_p79_every_id_is_in_exactly_one_state_under_each_name() -> None:
    node = inventory(INF2, unhealthy={5: "sick"}, disabled=(1, 5, 9))
    before = inputs(
        pod("a", app(2, DEVICE)),
        node=node,
        recorded=[entry(A, "app", DEVICE, 0, 1, node=node)],
        hold_downs=(held(5, 7, node=node),),
    )
    found = Parts(before).scraped()["devices"]
    others = {"unhealthy": 1.0, "cooling_down": 1.0, "disabled": 1.0}
    assert states_of(found, DEVICE) == others | {"free": 7, "allocated": 2}
    assert states_of(found, NEURON) == others | {"free": 7, "allocated_as_other": 2}
    each = {"unhealthy": 2, "cooling_down": 2, "disabled": 2}
    assert states_of(found, CORE) == each | {"free": 14, "allocated_as_other": 4}
    assert len(found) == 18


APP, INIT = f"default,a,app,{NEURON.value}", f"default,a,init,{NEURON.value}"
SHOWN = rows(f"""
    p79 what a pod has: a app:2 | has a=0,1 => allocated {APP}=2; allocated_pods =1
    p79 a pod that is gone leaves no series: trn1 => allocated; allocated_pods =0
    one that the API server has not shown is counted and not named: has a=0 => allocated; allocated_pods =1
    the set of an init container is counted once: a init:4 app:4 | has a/init=0-3 a=0-3 => allocated {APP}=4
    also where only a part is used again: a init:4 app:1 | has a/init=0-3 a=3>0 => allocated {INIT}=3 {APP}=1
    each core has the container that has it now:
        a init:2 app:1 | b app:core:1 | has a/init=0,1 a=1 b=core:5 =>
        core_holder 0,0,default,a,init=1 1,0,default,a,init=1 2,1,default,a,app=1 3,1,default,a,app=1
        5,2,default,b,app=1
    a core that two pods have, as after a change of the LNC, is one series all the same:
        a app:core:1 | b app:core:1 | has a=core:5 b=core:5 => core_holder 5,2,default,b,app=1
    waiting assignments: a app:1=0 | b app:1=1 => waiting_assignments =2
    the source of allocations: trn1 => checkpoint_readable =1; unconfirmed_allocations =0; cooling_down_cores =0
    whether a device is healthy, and whether it is disabled:
        inf1 | broken 1 | off 2 => device_healthy 0=1 1=0 2=1 3=1; device_disabled 0=0 1=0 2=1 3=0
""")
"""A moment, and the samples of some metrics: the values of the labels, and the sample's own."""


@pytest.mark.parametrize(("before", "expected"), SHOWN)
def test_what_metrics_show_of_a_moment(before: str, expected: str) -> None:
    found = Parts(moment(before)).scraped()
    for metric in expected.split("; "):
        name, *samples = metric.split(" ")
        values = (sample.split("=") for sample in samples)
        wanted = {tuple(labels.split(",")) if labels else (): float(value) for labels, value in values}
        assert found.get(name, {}) == wanted


def test_an_id_that_no_device_has_is_in_no_state() -> None:
    found = Parts(inputs(node=inventory(INF2, present=(0, 2)))).scraped()["devices"]
    assert (states_of(found, NEURON), states_of(found, CORE)) == ({"free": 2}, {"free": 4})


def test_each_counter_shows_its_own_count_by_its_own_labels() -> None:
    parts = Parts(servers=[Server(NEURON), Server(CORE, registered=False)])
    parts.counts.add("corrections_total", count=2)
    parts.counts.add("allocations_total", "neuron", count=3)
    parts.counts.add("lists_total", "pods", count=4)
    parts.counts.add("watch_restarts_total", "pods", "end", count=5)
    parts.counts.add("health_transitions_total", "3", "healthy", count=6)
    parts.counts.observe("preference_seconds", "neuron", seconds=0.003)
    parts.kubelet.refused_requests["neuron", "Allocate"] += 8
    parts.kubelet.preferences_replaced["neuron"] += 9
    parts.kubelet.registrations["neuron", "failed"] += 10
    found = parts.scraped()
    shown = {name: values for name, values in found.items() if name.endswith("_total")}
    assert shown == {
        "corrections_total": {(): 2},
        "allocations_total": {("neuron",): 3},
        "lists_total": {("pods",): 4},
        "watch_restarts_total": {("pods", "end"): 5},
        "health_transitions_total": {("3", "healthy"): 6},
        "refusals_total": {("neuron", "Allocate"): 8},
        "preferences_replaced_total": {("neuron",): 9},
        "registrations_total": {("neuron", "failed"): 10},
    }
    assert found["preference_seconds_sum"] == {("neuron",): 0.003}
    assert found["preference_seconds_count"] == {("neuron",): 1}
    assert [found["preference_seconds_bucket"]["neuron", bound] for bound in ("0.0025", "0.005")] == [0, 1]
    assert "allocate_seconds_sum" not in found
    assert found["registered"] == {(NEURON.value,): 1, (CORE.value,): 0}


def test_p79_a_device_that_is_not_listed_leaves_no_series() -> None:
    parts = everything()
    assert parts.scraped()["health_transitions_total"] == {("3", "unhealthy"): 1}
    parts.inputs = inputs(node=inventory(INF2, present=(0, 1)))
    found = parts.scraped()
    assert "health_transitions_total" not in found
    assert found["device_healthy"] == {("0",): 1, ("1",): 1}


async def test_answers_that_the_file_does_not_show_and_held_down_cores_are_counted() -> None:
    async with a_desk() as desk:
        await desk.allocate("3")
        found = Parts(replace(desk.snapshot.inputs, hold_downs=(held(7, 8),))).scraped()
        assert found["unconfirmed_allocations"] == {(): 1}
        assert found["cooling_down_cores"] == {(): 4}


def test_before_a_device_is_found_the_page_is_there_all_the_same() -> None:
    found = Parts(inputs=None).scraped()
    assert found["build_info"] == {tuple(build()): 1}
    assert "devices" not in found
    assert set(found["registered"].values()) == {1}


def test_without_an_api_server_there_is_no_metric_of_it() -> None:
    assert not {"watch_age_seconds", "pending_writes"} & Parts().scraped().keys()
    parts = everything()
    assert parts.writes is not None
    parts.writes.put("a", ApiRequest("PATCH", "/a"))
    found = parts.scraped()
    assert (found["watch_age_seconds"], found["pending_writes"]) == ({(): 1.5}, {(): 1})


def test_p70_a_silent_source_is_a_series_and_ecc_counts_are_those_of_the_latest_look() -> None:
    found = everything().scraped()
    assert found["silent_sources"] == {("kernel-log",): 1}
    assert found["ecc_errors"] == {("0", "sram"): 1, ("0", "memory"): 2, ("0", "repairable"): 3}


# Decisions.


async def test_decisions_are_given_oldest_first_with_their_candidates_and_pods() -> None:
    async with a_desk("a app:4=0-3") as desk:
        await desk.prefer("4")
        await desk.admit("a=0-3")
        found = json.loads(Parts(decisions=desk.allocator.log.decisions).status.decisions())["decisions"]
    assert [(one["step"], one["pod"], one["uid"], one["ids"]) for one in found] == [
        ("preferred", "default/a", A, [0, 1, 2, 3]),
        ("allocated", "default/a", A, [0, 1, 2, 3]),
    ]
    assert found[0]["candidateCount"] == 4
    assert found[0]["candidates"][0]["ids"] == [0, 1, 2, 3]


def test_without_a_decision_the_page_is_an_empty_list() -> None:
    assert json.loads(Parts().status.decisions()) == {"decisions": []}
