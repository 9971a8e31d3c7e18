"""P67, P68: what one look at a device shows, and what that means by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from neuron_plugin.hardware.attributes import ResetState
from neuron_plugin.hardware.health import (
    Observation,
    Severity,
    Signal,
    Verdict,
    assess,
    assess_all,
    device_key,
    observe,
    unreadable,
)
from neuron_plugin.hardware.inventory import read_inventory
from neuron_plugin.hardware.records import CoreErrors, Device, EccCounts, HealthReadings, NodeState
from neuron_plugin.simulation import SimulatedNode
from neuron_plugin.topology import DeviceId

MakeNode = Callable[..., SimulatedNode]

SOUND = Device(
    id=DeviceId(3),
    cores=2,
    device_name="Trainium1",
    architecture="NDv2",
    connected=frozenset(),
    node=NodeState.PRESENT,
    serial_number="00000b1c2d3e4f53",
    health=HealthReadings(
        reset=ResetState.READY,
        ecc=EccCounts(),
        unhealthy_components=frozenset(),
        core_errors=(CoreErrors(0), CoreErrors(1)),
        status_counts=(("hw_error_events", 0),),
    ),
)


def with_health(**fields: Any) -> Device:
    return replace(SOUND, health=replace(SOUND.health, **fields))


def with_core_error(name: str) -> Device:
    return with_health(core_errors=(CoreErrors(0), CoreErrors(1, **{name: 2})))


UNHEALTHY = {
    Signal.NODE: replace(SOUND, node=NodeState.ABSENT),
    Signal.RESET_FAILED: with_health(reset=ResetState.FAILED),
    Signal.SRAM_ECC: with_health(ecc=EccCounts(sram=1)),
    Signal.MEMORY_ECC: with_health(ecc=EccCounts(memory=1)),
    Signal.COMPONENTS: with_health(unhealthy_components=frozenset({"hbm"})),
}
WARNING = {
    Signal.REPAIRABLE_ECC: with_health(ecc=EccCounts(repairable=1)),
    Signal.NC_UNCORRECTABLE: with_core_error("hw_nc_ue_error"),
    Signal.HBM_UNCORRECTABLE: with_core_error("hw_hbm_ue_error"),
    Signal.DMA_ABORT: with_core_error("hw_dma_abort_error"),
    Signal.HW_ERROR: with_core_error("hw_error"),
    Signal.HEALTH_STATUS: with_health(status_counts=(("hw_error_events", 4),)),
}
PASSING = {Signal.RESETTING: with_health(reset=ResetState.RESETTING)}
NOT_OF_A_DEVICE = {Signal.MISSING, Signal.KERNEL_MESSAGE, Signal.KERNEL_MESSAGE_UNNAMED}
"""Signals that are not seen on a device the driver lists."""


def test_a_sound_device_has_no_finding() -> None:
    assert assess(SOUND) == Verdict()
    assert assess(SOUND).healthy


def test_a_product_without_health_attributes_is_sound() -> None:
    assert assess(replace(SOUND, health=HealthReadings())) == Verdict()


def test_every_signal_of_a_device_has_one_here_that_shows_it() -> None:
    assert UNHEALTHY.keys() | WARNING.keys() | PASSING.keys() | NOT_OF_A_DEVICE == set(Signal)


@pytest.mark.parametrize(
    ("signal", "device", "severity"),
    [
        *[(signal, device, Severity.UNHEALTHY) for signal, device in UNHEALTHY.items()],
        *[(signal, device, Severity.WARNING) for signal, device in WARNING.items()],
        *[(signal, device, Severity.PASSING) for signal, device in PASSING.items()],
    ],
)
def test_p67_each_signal_is_found_alone_and_with_its_severity(
    signal: Signal, device: Device, severity: Severity
) -> None:
    verdict = assess(device)
    assert [(finding.signal, finding.severity) for finding in verdict.findings] == [(signal, severity)]
    assert verdict.healthy is (severity is not Severity.UNHEALTHY)
    assert verdict.reason


@pytest.mark.parametrize("node", [NodeState.ABSENT, NodeState.NOT_A_DEVICE, NodeState.STALE])
def test_p67_a_node_that_cannot_be_opened_is_named_with_its_state(node: NodeState) -> None:
    verdict = assess(replace(SOUND, node=node))
    assert not verdict.healthy
    assert verdict.reason == f"/dev/neuron3 is {node}"


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


def test_counters_are_observed_at_zero_so_that_a_rise_has_a_beginning() -> None:
    counts = {(seen.signal, seen.part): seen.count for seen in observe(SOUND)}
    assert set(counts.values()) == {0}
    assert counts.keys() == {
        (Signal.SRAM_ECC, ""),
        (Signal.MEMORY_ECC, ""),
        (Signal.REPAIRABLE_ECC, ""),
        (Signal.NC_UNCORRECTABLE, ""),
        (Signal.HBM_UNCORRECTABLE, ""),
        (Signal.DMA_ABORT, ""),
        (Signal.HW_ERROR, ""),
        (Signal.HEALTH_STATUS, "hw_error_events"),
    }


def test_errors_of_cores_are_added_up_and_the_cores_named() -> None:
    errors = (CoreErrors(0, hw_error=2), CoreErrors(1), CoreErrors(5, hw_error=3))
    assert assess(with_health(core_errors=errors)).reason == "5 hardware errors on physical cores 0, 5"


def test_accepted_errors_are_told_apart() -> None:
    seen = Observation(Signal.MEMORY_ECC, "uncorrected memory error", count=5, where=" there")
    assert seen.worded() == "5 uncorrected memory errors there"
    assert seen.worded(accepted=4) == "5 uncorrected memory errors there, 4 of them old"


def test_components_are_observed_one_by_one() -> None:
    seen = observe(with_health(unhealthy_components=frozenset({"sram", "hbm"})))
    assert [(one.part, one.text) for one in seen if one.signal is Signal.COMPONENTS] == [
        ("hbm", "firmware reports hbm unhealthy"),
        ("sram", "firmware reports sram unhealthy"),
    ]


def test_what_cannot_be_read_is_no_sign_of_health() -> None:
    assert unreadable(SOUND) == frozenset()
    assert unreadable(with_health(reset=None)) == {Signal.RESETTING, Signal.RESET_FAILED}
    assert unreadable(with_health(unhealthy_components=None)) == {Signal.COMPONENTS}


def test_a_memory_belongs_to_the_chip_and_not_to_its_place() -> None:
    assert device_key(SOUND) == "00000b1c2d3e4f53"
    assert device_key(replace(SOUND, serial_number="")) == "neuron3"


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
