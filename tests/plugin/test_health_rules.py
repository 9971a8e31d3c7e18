"""What signals mean by default and in a file, and how long they are held."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from neuron_plugin.hardware.health_signals import Signal
from neuron_plugin.plugin.health import Action, HealthRules, SignalRule, hold_seconds, rule_of
from neuron_plugin.plugin.settings import PluginSettings, check
from neuron_plugin.settings import SettingsError, as_yaml, load

DEFAULTS = HealthRules()


@pytest.mark.parametrize("signal", set(Signal) - {Signal.MISSING})
def test_p67_every_signal_but_a_missing_device_can_be_set_by_its_name(tmp_path: Path, signal: Signal) -> None:
    file = tmp_path / "plugin.yaml"
    file.write_text(f"health: {{{signal.value}: {{action: ignore}}}}\n")
    settings = load(PluginSettings, {}, {}, file).health
    assert rule_of(settings, signal).action is Action.IGNORE
    assert rule_of(settings, Signal.MISSING) == rule_of(DEFAULTS, Signal.MISSING)


def test_a_missing_device_cannot_be_called_healthy(tmp_path: Path) -> None:
    file = tmp_path / "plugin.yaml"
    file.write_text("health: {missing: {action: ignore}}\n")
    with pytest.raises(SettingsError, match="unknown field `missing`"):
        load(PluginSettings, {}, {}, file)
    assert rule_of(DEFAULTS, Signal.MISSING).action is Action.UNHEALTHY


def test_a_threshold_alone_leaves_the_rest_of_a_policy(tmp_path: Path) -> None:
    file = tmp_path / "plugin.yaml"
    file.write_text("health: {hw-nc-ue-error: {threshold: 3}}\n")
    policy = rule_of(load(PluginSettings, {}, {}, file).health, Signal.NC_UNCORRECTABLE)
    assert policy == msgspec.structs.replace(rule_of(DEFAULTS, Signal.NC_UNCORRECTABLE), threshold=3)
    assert policy.only_new_errors


def test_the_printed_policies_read_back(tmp_path: Path) -> None:
    file = tmp_path / "plugin.yaml"
    file.write_text(as_yaml(PluginSettings()))
    assert load(PluginSettings, {}, {}, file) == PluginSettings()


def test_p67_a_line_that_names_no_device_does_not_take_a_node_out_by_default() -> None:
    assert rule_of(DEFAULTS, Signal.KERNEL_MESSAGE_UNNAMED).action is Action.WARN
    assert rule_of(DEFAULTS, Signal.KERNEL_MESSAGE).action is Action.UNHEALTHY
    assert not DEFAULTS.trust_user_messages


def test_a_message_fires_at_once_whatever_the_file_says() -> None:
    settings = HealthRules(kernel_message=SignalRule(for_seconds=30, keep_firing_for_seconds=60))
    policy = rule_of(settings, Signal.KERNEL_MESSAGE)
    assert (policy.for_seconds, policy.keep_firing_for_seconds) == (0, 60)


@pytest.mark.parametrize(
    ("seconds", "holds"),
    [(0, [0, 10, 20, 40, 80, 160, 320, 640, 900, 900]), (60, [60, 60, 120, 240, 480]), (3600, [3600, 3600, 3600])],
)
def test_p69_a_signal_that_comes_back_is_held_twice_as_long_each_time_up_to_a_limit(
    seconds: float, holds: list[float]
) -> None:
    rule = SignalRule(keep_firing_for_seconds=seconds)
    assert [hold_seconds(rule, falls) for falls in range(1, len(holds) + 1)] == holds
    assert hold_seconds(rule, 10**9) == max(900, seconds)


@pytest.mark.parametrize(
    "name", ["NeuronHealth", "Ready", "MemoryPressure", "NetworkUnavailable", "AcceleratedHardwareReady"]
)
def test_a_node_condition_that_somebody_else_writes_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match=f"node-condition is '{name}', which .* writes: choose another name"):
        check(PluginSettings(node_condition=name))
    with pytest.raises(SettingsError, match=f"ready-condition is '{name}', which .* writes: choose another name"):
        check(PluginSettings(ready_condition=name))


def test_one_condition_cannot_say_two_things() -> None:
    with pytest.raises(SettingsError, match="node-condition and ready-condition are both 'Neuron': expected two names"):
        check(PluginSettings(node_condition="Neuron", ready_condition="Neuron"))


def test_no_node_condition_is_kept_by_default() -> None:
    assert PluginSettings().node_condition == PluginSettings().ready_condition == ""
    check(PluginSettings(node_condition="NeuronDevicesHealthy", ready_condition="NeuronDevicesReady"))
