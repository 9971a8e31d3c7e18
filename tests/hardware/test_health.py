"""P67, P68: what makes a device unhealthy, and that it recovers by the same rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from neuron_plugin.hardware.attributes import ResetState
from neuron_plugin.hardware.health import (
    DEFAULT_SEVERITIES,
    HealthPolicy,
    Severity,
    Signal,
    Verdict,
    assess,
    assess_all,
    baseline_key,
)
from neuron_plugin.hardware.inventory import read_inventory
from neuron_plugin.hardware.records import Device, EccCounts, HealthReadings, NodeState
from neuron_plugin.simulation.node import SimulatedNode
from neuron_plugin.topology.geometry import DeviceId

MakeNode = Callable[..., SimulatedNode]

SOUND = Device(
    id=DeviceId(3),
    cores=2,
    device_name="Trainium1",
    architecture="NDv2",
    connected=frozenset(),
    node=NodeState.PRESENT,
    serial_number="00000b1c2d3e4f53",
    health=HealthReadings(reset=ResetState.READY, ecc=EccCounts()),
)


def with_health(**fields: Any) -> Device:
    return replace(SOUND, health=replace(SOUND.health, **fields))


ALL_SIGNALS = {
    Signal.NODE: replace(SOUND, node=NodeState.ABSENT),
    Signal.RESETTING: with_health(reset=ResetState.RESETTING),
    Signal.RESET_FAILED: with_health(reset=ResetState.FAILED),
    Signal.SRAM_ECC: with_health(ecc=EccCounts(sram=1)),
    Signal.MEMORY_ECC: with_health(ecc=EccCounts(memory=1)),
    Signal.REPAIRABLE_ECC: with_health(ecc=EccCounts(repairable=1)),
    Signal.COMPONENTS: with_health(unhealthy_components=frozenset({"hbm"})),
}


def test_a_sound_device_has_no_finding() -> None:
    assert assess(SOUND) == Verdict()
    assert assess(SOUND).healthy


def test_a_product_without_health_attributes_is_sound() -> None:
    assert assess(replace(SOUND, health=HealthReadings())) == Verdict()


def test_every_signal_has_a_device_here_that_shows_it() -> None:
    assert set(ALL_SIGNALS) == set(Signal) == set(DEFAULT_SEVERITIES)


@pytest.mark.parametrize("signal", Signal)
def test_p67_each_signal_is_found_alone_and_with_its_severity(signal: Signal) -> None:
    verdict = assess(ALL_SIGNALS[signal])
    assert [(finding.signal, finding.severity) for finding in verdict.findings] == [
        (signal, DEFAULT_SEVERITIES[signal])
    ]
    assert verdict.reason


@pytest.mark.parametrize(
    "signal", [Signal.NODE, Signal.RESET_FAILED, Signal.SRAM_ECC, Signal.MEMORY_ECC, Signal.COMPONENTS]
)
def test_p67_lasting_faults_make_a_device_unhealthy(signal: Signal) -> None:
    assert not assess(ALL_SIGNALS[signal]).healthy


def test_a_reset_under_way_passes_and_does_not_make_the_device_flap() -> None:
    verdict = assess(ALL_SIGNALS[Signal.RESETTING])
    assert verdict.healthy
    assert verdict.passing


def test_repairable_errors_are_a_warning() -> None:
    verdict = assess(ALL_SIGNALS[Signal.REPAIRABLE_ECC])
    assert verdict.healthy
    assert not verdict.passing
    assert verdict.reason == "1 repairable memory errors"


@pytest.mark.parametrize("node", [NodeState.ABSENT, NodeState.NOT_A_DEVICE, NodeState.STALE])
def test_p67_a_node_that_cannot_be_opened_is_named_with_its_state(node: NodeState) -> None:
    verdict = assess(replace(SOUND, node=node))
    assert not verdict.healthy
    assert verdict.reason == f"/dev/neuron3 is {node}"


def test_p67_errors_count_above_the_baseline_only() -> None:
    seen = with_health(ecc=EccCounts(sram=2, memory=5))
    assert assess(seen, EccCounts(sram=2, memory=5)).healthy
    verdict = assess(seen, EccCounts(sram=2, memory=4))
    assert not verdict.healthy
    assert verdict.reason == "5 uncorrected memory errors, 4 accepted"


def test_p68_counters_below_the_baseline_after_a_power_cycle_are_no_fault() -> None:
    assert assess(with_health(ecc=EccCounts()), EccCounts(sram=9, memory=9, repairable=9)) == Verdict()


def test_findings_come_worst_first() -> None:
    verdict = assess(
        replace(
            SOUND,
            node=NodeState.ABSENT,
            health=HealthReadings(reset=ResetState.RESETTING, ecc=EccCounts(repairable=1)),
        )
    )
    assert [finding.signal for finding in verdict.findings] == [Signal.NODE, Signal.RESETTING, Signal.REPAIRABLE_ECC]
    assert verdict.reason.split("; ")[0] == "/dev/neuron3 is absent"


def test_a_policy_changes_the_signals_it_names_and_no_others() -> None:
    policy = HealthPolicy({Signal.REPAIRABLE_ECC: Severity.UNHEALTHY, Signal.SRAM_ECC: Severity.IGNORED})
    assert not assess(ALL_SIGNALS[Signal.REPAIRABLE_ECC], policy=policy).healthy
    assert assess(ALL_SIGNALS[Signal.SRAM_ECC], policy=policy) == Verdict()
    assert not assess(ALL_SIGNALS[Signal.NODE], policy=policy).healthy


def test_components_are_named_in_order() -> None:
    verdict = assess(with_health(unhealthy_components=frozenset({"sram", "hbm"})))
    assert verdict.reason == "firmware reports hbm, sram unhealthy"


def test_a_baseline_belongs_to_the_chip_and_not_to_its_place() -> None:
    assert baseline_key(SOUND) == "00000b1c2d3e4f53"
    assert baseline_key(replace(SOUND, serial_number="")) == "neuron3"


def test_accepted_errors_of_one_chip_do_not_excuse_another(make_node: MakeNode) -> None:
    node = make_node()
    node.set_ecc(1, memory=2)
    node.set_ecc(4, memory=2)
    inventory = read_inventory(node.paths)
    accepted = {baseline_key(inventory.devices[1]): EccCounts(memory=2)}
    verdicts = assess_all(inventory, accepted)
    assert [device for device, verdict in verdicts.items() if not verdict.healthy] == [4]


Fault = Callable[[SimulatedNode], None]


@pytest.mark.parametrize(
    ("fault", "remedy"),
    [
        (lambda node: node.remove_node(2), lambda node: node.restore_node(2)),
        (
            lambda node: node.set_reset(2, ResetState.FAILED),
            lambda node: node.set_reset(2, ResetState.READY),
        ),
        (lambda node: node.set_ecc(2, sram=1), lambda node: node.set_ecc(2, sram=0)),
        (lambda node: node.set_ecc(2, memory=1), lambda node: node.set_ecc(2, memory=0)),
        (
            lambda node: node.set_unhealthy_components(2, ["link_host"]),
            lambda node: node.set_unhealthy_components(2, []),
        ),
    ],
    ids=["node", "reset", "sram", "memory", "components"],
)
def test_p68_a_device_is_healthy_again_when_the_cause_is_gone(make_node: MakeNode, fault: Fault, remedy: Fault) -> None:
    node = make_node()
    fault(node)
    assert [device for device, verdict in assess_all(read_inventory(node.paths)).items() if not verdict.healthy] == [2]
    remedy(node)
    assert all(verdict == Verdict() for verdict in assess_all(read_inventory(node.paths)).values())


def test_errors_survive_a_driver_reload(make_node: MakeNode) -> None:
    node = make_node()
    node.set_ecc(2, memory=1)
    node.unload_driver()
    node.load_driver()
    assert not assess_all(read_inventory(node.paths))[DeviceId(2)].healthy
