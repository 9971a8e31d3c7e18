"""One look, judged by a node's own policies and what its daemon remembers."""

from __future__ import annotations

from typing import Any

import pytest
from neuron_plugin.plugin.health.look import judge_once
from neuron_plugin.plugin.health.memory import DeviceMemory, Memory
from neuron_plugin.plugin.health.policy import Action, Baseline, HealthSettings, Recovery, SignalPolicy

from neuron_plugin.hardware import EccCounts, ResetState, Severity, Signal, Verdict
from neuron_plugin.hardware.device import CoreErrors, NodeState
from neuron_plugin.topology import DeviceId
from tests.plugin.health.world import device, machine

KEY = f"{0:016x}"
ERRORS = (CoreErrors(0, hw_nc_ue_error=4),)


def verdict(settings: HealthSettings | None = None, memory: DeviceMemory | None = None, **seen: Any) -> Verdict:
    kept = Memory({KEY: memory} if memory else {})
    return judge_once(machine(device(0, **seen)), settings or HealthSettings(), kept)[DeviceId(0)]


def severities(found: Verdict) -> list[tuple[Signal, Severity]]:
    return [(finding.signal, finding.severity) for finding in found.findings]


def test_a_sound_device_has_no_finding() -> None:
    assert verdict() == Verdict()


def test_what_is_wrong_is_told_worst_first() -> None:
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
        (SignalPolicy(), Severity.UNHEALTHY),
        (SignalPolicy(action=Action.WARN), Severity.WARNING),
        (SignalPolicy(after_seconds=60), Severity.PASSING),
        (SignalPolicy(action=Action.IGNORE), None),
        (SignalPolicy(threshold=3), None),
    ],
)
def test_the_nodes_policies_say_what_a_signal_means(policy: SignalPolicy, expected: Severity | None) -> None:
    found = verdict(HealthSettings(sram_ecc=policy), ecc=EccCounts(sram=2))
    assert severities(found) == ([(Signal.SRAM_ECC, expected)] if expected else [])


def test_errors_that_only_tell_by_rising_may_be_old_where_nobody_counted_before() -> None:
    found = verdict(core_errors=ERRORS)
    assert severities(found) == [(Signal.NC_UNCORRECTABLE, Severity.WARNING)]
    assert found.findings[0].text.endswith(", which may be old")


def test_what_the_daemon_has_accepted_is_no_error_and_what_came_after_is() -> None:
    assert verdict(memory=DeviceMemory({"hw-nc-ue-error": 4}), core_errors=ERRORS) == Verdict()
    risen = verdict(memory=DeviceMemory({"hw-nc-ue-error": 3}), core_errors=ERRORS)
    assert severities(risen) == [(Signal.NC_UNCORRECTABLE, Severity.UNHEALTHY)]


def test_what_waits_for_a_reload_is_still_wrong() -> None:
    policy = SignalPolicy(recovery=Recovery.RELOAD, baseline=Baseline.ZERO)
    latched = DeviceMemory(latched={"reset-failed": "its last reset failed"})
    found = verdict(HealthSettings(reset_failed=policy), latched)
    assert severities(found) == [(Signal.RESET_FAILED, Severity.UNHEALTHY)]
