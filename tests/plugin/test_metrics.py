from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from neuron_plugin.allocation import Holding
from neuron_plugin.build import build
from neuron_plugin.hardware import Device, EccCounts, Inventory, Process
from neuron_plugin.hardware.device import HealthReadings, NodeState
from neuron_plugin.plugin import node
from neuron_plugin.plugin.counts import Counts, Latencies
from neuron_plugin.plugin.exposition import MetricKind
from neuron_plugin.plugin.metrics import METRICS, PREFIX, metrics_page
from neuron_plugin.plugin.moment import Moment
from neuron_plugin.plugin.quarantine import Quarantine, Users
from neuron_plugin.topology import DeviceId
from tests.plugin.world import CORE, DEVICE, INF2, NEURON, a_state, app, decided, devices, machine, ref

REGISTERED = {NEURON.value: True, DEVICE.value: True, CORE.value: False}


def scraped(moment: Moment) -> dict[str, dict[tuple[str, ...], float]]:
    """Samples by metric, without the prefix, and by the values of their labels."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(metrics_page(moment).body.decode()):
        for sample in family.samples:
            name = sample.name.removeprefix(PREFIX)
            found.setdefault(name, {})[tuple(sample.labels.values())] = sample.value
    return found


def moment_of(state: node.NodeState, counts: Counts | None = None, **fields: object) -> Moment:
    return replace(Moment(state, counts or Counts(), REGISTERED), **fields)  # type: ignore[arg-type]  # a test's few


def states_of(samples: Mapping[tuple[str, ...], float], resource: str) -> dict[str, float]:
    return {state: value for (name, state), value in samples.items() if name == resource}


def everything() -> Moment:
    """A moment at which every metric has a sample."""
    state = a_state(INF2, decided("waits", app(1, DEVICE), sets=[(9,)], geometry=INF2))
    state.hold(ref("train"), Holding("app", DEVICE, devices(0, geometry=INF2)))
    counts = Counts(corrections=1)
    for counter in (counts.allocations, counts.preferences_replaced, counts.lists, counts.starts_held):
        counter["neuron"] += 1
    counts.starts_held_now["neuron"] += 1
    state.quarantine = Quarantine(30.0).with_suspect(ref("gone"), devices(5, geometry=INF2), now=0.0)
    for labelled in (counts.refusals, counts.registrations, counts.watch_restarts):
        labelled["a", "b"] += 1
    counts.health_transitions[3, "unhealthy"] += 1
    counts.allocate_seconds["neuron"] = counts.preference_seconds["neuron"] = Latencies()
    ecc = HealthReadings(ecc=EccCounts(sram=1, memory=2, repairable=3))
    device = Device(DeviceId(0), 2, "Inferentia2", "NDv3", frozenset(), NodeState.PRESENT, health=ecc)
    return moment_of(
        state,
        counts,
        inventory=Inventory((device,)),
        silent_sources={"kmsg": "not permitted"},
        watch_age_seconds=1.5,
        outbox_requests=2,
    )


def test_p79_what_is_exposed_is_what_is_documented() -> None:
    families = {
        family.name: family for family in text_string_to_metric_families(metrics_page(everything()).body.decode())
    }
    documented = {metric.name.removesuffix("_total"): metric for metric in METRICS.values()}
    assert families.keys() == documented.keys()
    for name, family in families.items():
        metric = documented[name]
        assert (family.type, family.documentation) == (metric.kind.value, metric.meaning)
        labels = {tuple(label for label in sample.labels if label != "le") for sample in family.samples}
        assert labels == {metric.labels}


def test_counters_are_called_total_and_nothing_else_is() -> None:
    assert {name.endswith("_total") for name in METRICS if METRICS[name].kind is MetricKind.COUNTER} == {True}
    assert {name.endswith("_total") for name in METRICS if METRICS[name].kind is not MetricKind.COUNTER} == {False}


def test_p79_every_id_is_in_exactly_one_state_under_each_name() -> None:
    state = a_state(INF2)
    state.see_machine(machine(INF2, unhealthy={5: "sick"}))
    state.hold(ref("train"), Holding("app", DEVICE, devices(0, 1, geometry=INF2)))
    state.quarantine = Quarantine(30.0).with_suspect(ref("gone"), devices(5, 7, geometry=INF2), now=0.0)
    found = scraped(moment_of(state))["devices"]
    expected = {"held": 0, "held_elsewhere": 0, "unhealthy": 1, "suspect": 1}
    assert states_of(found, DEVICE.value) == expected | {"free": 8, "held": 2}
    assert states_of(found, NEURON.value) == expected | {"free": 8, "held_elsewhere": 2}
    assert states_of(found, CORE.value) == {"free": 16, "held": 0, "held_elsewhere": 4, "unhealthy": 2, "suspect": 2}


def test_p79_a_pod_that_is_gone_leaves_no_series() -> None:
    state = a_state(INF2)
    state.hold(ref("train"), Holding("app", DEVICE, devices(0, 1, geometry=INF2)))
    held = scraped(moment_of(state))
    assert held["held"] == {("default", "train", "app", DEVICE.value): 2}
    assert held["holding_pods"] == {(): 1}
    state.release(ref("train").uid)
    gone = scraped(moment_of(state))
    assert "held" not in gone
    assert gone["holding_pods"] == {(): 0}


def test_p79_suspects_are_counted_by_their_evidence_and_leave_no_series() -> None:
    state = a_state(INF2)
    state.quarantine = Quarantine(30.0).with_suspect(ref("gone"), devices(5, 7, geometry=INF2), now=0.0)
    assert scraped(moment_of(state))["suspect_cores"] == {("not_looked",): 4}
    state.see_users(Users({5: (Process(7, "train", "uid-gone"),)}, complete=True, moment=1.0))
    assert scraped(moment_of(state))["suspect_cores"] == {("process",): 4}
    state.see_users(Users({}, complete=True, moment=2.0))
    assert "suspect_cores" not in scraped(moment_of(state))


def test_p79_a_start_that_is_held_no_longer_leaves_its_count_alone() -> None:
    counts = Counts()
    counts.starts_held["neuron"] += 1
    counts.starts_held_now["neuron"] += 0
    found = scraped(moment_of(a_state(INF2), counts))
    assert found["held_starts_total"] == {("neuron",): 1}
    assert "held_starts" not in found


def test_p79_a_device_that_another_machine_does_not_have_leaves_no_series() -> None:
    state, counts = a_state(INF2), Counts()
    counts.health_transitions[11, "unhealthy"] += 1
    assert scraped(moment_of(state, counts))["health_transitions_total"] == {("11", "unhealthy"): 1}
    state.machine = machine(INF2, unhealthy={})
    state.machine = replace(state.machine, listed=(0, 1))
    found = scraped(moment_of(state, counts))
    assert "health_transitions_total" not in found
    assert found["device_healthy"] == {("0",): 1, ("1",): 1}


def test_a_holder_nobody_has_named_is_counted_and_not_named() -> None:
    state = a_state(INF2)
    state.hold(state.new_stand_in(), Holding("", DEVICE, devices(0, geometry=INF2)))
    found = scraped(moment_of(state))
    assert "held" not in found
    assert (found["holding_pods"], found["unconfirmed_holders"]) == ({(): 1}, {(): 1})


def test_waiting_decisions_are_counted_by_container() -> None:
    state = a_state(INF2, decided("two", app(1, DEVICE), app(1, DEVICE, "b"), sets=[(0,), (1,)], geometry=INF2))
    assert scraped(moment_of(state))["waiting_decisions"] == {(): 2}


def test_ecc_counts_are_those_of_the_latest_look() -> None:
    found = scraped(everything())["ecc_errors"]
    assert found == {("0", "sram"): 1, ("0", "memory"): 2, ("0", "repairable"): 3}


def test_before_a_device_is_found_the_page_is_there_all_the_same() -> None:
    found = scraped(moment_of(node.NodeState()))
    assert list(found["info"].values()) == [1]
    assert found["build_info"] == {build(): 1}
    assert "devices" not in found
    assert found["registered"] == {(NEURON.value,): 1, (DEVICE.value,): 1, (CORE.value,): 0}


def test_without_an_api_server_nothing_is_said_of_it() -> None:
    found = scraped(moment_of(a_state()))
    assert not {"watch_age_seconds", "outbox_requests"} & found.keys()
    linked = scraped(everything())
    assert (linked["watch_age_seconds"], linked["outbox_requests"]) == ({(): 1.5}, {(): 2})


def test_p70_a_silent_source_is_a_series() -> None:
    assert scraped(everything())["silent_sources"] == {("kmsg",): 1}
