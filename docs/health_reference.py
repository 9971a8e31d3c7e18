"""The part of the configuration page about ``health``: what each signal is, and what follows from it by default.

The defaults are the code's. Signals and keys are explained here, and one that is not fails the making of the page.
"""

from __future__ import annotations

import msgspec

from neuron_plugin.hardware.health_signals import Signal
from neuron_plugin.plugin.health import HealthRules, SignalRule, rule_of
from neuron_plugin.settings import as_text

HOW = """\
The section `health` of the file, or `devicePlugin.settings.health` of the chart; what is not named keeps its default:

```yaml
health:
  sram-ecc: {threshold: 5}
  hw-error: {action: unhealthy, keep-firing-for-seconds: 600}
```"""

HEAD = ("signal", *(field.encode_name for field in msgspec.structs.fields(SignalRule)), "what it is")

_KEYS = {
    "action": (
        "`ignore`; `warn`: reported in log, event, node condition and metric, and handed out; "
        "`unhealthy`: not handed out, pods that have the device keep it"
    ),
    "for-seconds": "fires once it has been seen for so long; a kernel message fires at once",
    "threshold": "for counters: fires from so many errors on",
    "only-new-errors": (
        "for counters: errors that are there when the plugin first sees the device do not count, nor does what was "
        "counted once there was no further error for the time to keep firing; else all since power-up count"
    ),
    "keep-firing-for-seconds": "the time to keep firing after the cause has gone",
}

_SIGNALS = {
    Signal.NODE: "the device node is missing, or is none of the driver's",
    Signal.RESET_FAILED: "a reset has failed",
    Signal.COMPONENTS: "parts that firmware reports unhealthy",
    Signal.SRAM_ECC: "counter: uncorrected errors of on-chip memory",
    Signal.MEMORY_ECC: "counter: uncorrected errors of device memory",
    Signal.NC_UNCORRECTABLE: "counter of each core: `hw_nc_ue_error`",
    Signal.HBM_UNCORRECTABLE: "counter of each core: `hw_hbm_ue_error`",
    Signal.KERNEL_MESSAGE: "a hardware error in the kernel log that names the device",
    Signal.FAILED_STARTS: "counter: different pods in a row that failed to start on the device, while others run "
    "elsewhere ([what counts](troubleshooting.md#a-device-on-which-every-pod-fails))",
    Signal.RESET_FAILURES: "counter of each core: `reset_fail_count`",
    Signal.RESETTING: "a reset is under way",
    Signal.DMA_ABORT: "counter of each core: `hw_dma_abort_error`",
    Signal.HW_ERROR: "counter of each core: `hw_error`",
    Signal.HEALTH_STATUS: "counters of firmware below `health_status`",
    Signal.REPAIRABLE_ECC: "counter: uncorrected errors of device memory that can be repaired",
    Signal.KERNEL_MESSAGE_UNNAMED: "a hardware error in the kernel log that names no device",
}

_OTHERS = {
    "flapping-window-seconds": "a signal that comes back within this time is held longer each time; 0 turns that off",
    "first-hold-seconds": "how long the first time; then twice as long each time",
    "longest-hold-seconds": "how long at most",
    "failed-start-seconds": "a container that ends with an error within this time of its start has failed to start",
    "failed-starts-window-seconds": "failed starts that are older say nothing any more",
    "trust-user-messages": "believe kernel log lines that processes have written, too",
}


def keys() -> list[tuple[str, ...]]:
    """Every key of a signal's rule."""
    return [(f"`{name}`", _KEYS[name]) for name in HEAD[1:-1]]


def signals() -> list[tuple[str, ...]]:
    """Every signal with its defaults."""
    rules = HealthRules()
    return [
        (f"`{signal.value}`", *map(as_text, msgspec.structs.astuple(rule_of(rules, signal))), _SIGNALS[signal])
        for signal in Signal
        if signal is not Signal.MISSING  # what is missing cannot be handed out: no setting
    ]


def others() -> list[tuple[str, ...]]:
    """Every key beside the signals."""
    known = {signal.value for signal in Signal}
    fields = [field for field in msgspec.structs.fields(HealthRules) if field.encode_name not in known]
    return [(f"`{each.encode_name}`", as_text(each.default), _OTHERS[each.encode_name]) for each in fields]
