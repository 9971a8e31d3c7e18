"""One reading, judged by a node's own rules and what its daemon has saved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from neuron_plugin.hardware import Device, Inventory, ResetState
from neuron_plugin.hardware.device import CoreErrors, EccCounts, HealthReadings, NodeState
from neuron_plugin.hardware.health_signals import Severity, Signal, Verdict
from neuron_plugin.plugin.health import Action, HealthRules, SignalRule, judge_once
from neuron_plugin.topology import DeviceId
from tests.plugin.health_world import device, machine

KEY = f"{0:016x}"
ERRORS = (CoreErrors(0, hw_nc_ue_error=4),)


def verdict(settings: HealthRules | None = None, accepted: dict[str, int] | None = None, **seen: Any) -> Verdict:
    kept = {KEY: accepted} if accepted else {}
    return judge_once(machine(device(0, **seen)), settings or HealthRules(), kept)[DeviceId(0)]


def severities(found: Verdict) -> list[tuple[Signal, Severity]]:
    return [(finding.signal, finding.severity) for finding in found.findings]


def test_what_is_wrong_is_named_worst_first() -> None:
    found = verdict(node=NodeState.ABSENT, reset=ResetState.RESETTING, ecc=EccCounts(repairable=1))
    assert severities(found) == [
        (Signal.NODE, Severity.UNHEALTHY),
        (Signal.RESETTING, Severity.PASSING),
        (Signal.REPAIRABLE_ECC, Severity.WARNING),
    ]
    assert not found.healthy


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (SignalRule(), Severity.UNHEALTHY),
        (SignalRule(action=Action.WARN), Severity.WARNING),
        (SignalRule(for_seconds=60), Severity.PASSING),
        (SignalRule(action=Action.IGNORE), None),
        (SignalRule(threshold=3), None),
    ],
)
def test_the_nodes_policies_say_what_a_signal_means(policy: SignalRule, expected: Severity | None) -> None:
    found = verdict(HealthRules(sram_ecc=policy), ecc=EccCounts(sram=2))
    assert severities(found) == ([(Signal.SRAM_ECC, expected)] if expected else [])


def test_errors_that_only_count_by_rising_may_be_old_where_no_earlier_count_is_known() -> None:
    found = verdict(core_errors=ERRORS)
    assert severities(found) == [(Signal.NC_UNCORRECTABLE, Severity.WARNING)]
    assert found.findings[0].text.endswith(", which may be old")


def test_what_the_daemon_has_accepted_is_no_error_and_what_came_after_is() -> None:
    assert verdict(accepted={"hw-nc-ue-error": 4}, core_errors=ERRORS) == Verdict()
    risen = verdict(accepted={"hw-nc-ue-error": 3}, core_errors=ERRORS)
    assert severities(risen) == [(Signal.NC_UNCORRECTABLE, Severity.UNHEALTHY)]


DEVICE = device(3)


def assess(seen: Device) -> Verdict:
    """By the default rules, without a memory."""
    return judge_once(Inventory(devices=(seen,)), HealthRules(), {})[seen.id]


def with_health(**fields: Any) -> Device:
    return replace(DEVICE, health=replace(DEVICE.health, **fields))


def with_core_error(name: str) -> Device:
    return with_health(core_errors=(CoreErrors(0), CoreErrors(1, **{name: 2})))


UNHEALTHY = {
    Signal.NODE: replace(DEVICE, node=NodeState.ABSENT),
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
    Signal.RESET_FAILURES: with_core_error("reset_fail_count"),
    Signal.HEALTH_STATUS: with_health(status_counts=(("hw_error_events", 4),)),
}
PASSING = {Signal.RESETTING: with_health(reset=ResetState.RESETTING)}
NOT_OF_A_DEVICE = {Signal.MISSING, Signal.KERNEL_MESSAGE, Signal.KERNEL_MESSAGE_UNNAMED, Signal.FAILED_STARTS}
"""Signals that are not seen on a device the driver lists."""


def test_a_product_without_health_attributes_is_sound() -> None:
    assert assess(replace(DEVICE, health=HealthReadings())) == Verdict()


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
    verdict_of = assess(device)
    assert [(finding.signal, finding.severity) for finding in verdict_of.findings] == [(signal, severity)]
    assert verdict_of.healthy is (severity is not Severity.UNHEALTHY)
    assert verdict_of.reason
