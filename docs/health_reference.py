"""The part of the configuration page about ``health``: what each signal is, and what follows from it by default.

The defaults and the signals are the code's. Keys are explained here; one that is not fails the making of the page.
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

_OTHERS = {
    "flapping-window-seconds": "a signal that is back within this time is held longer each time, 10 s to 15 min; 0: no",
    "trust-user-messages": "believe kernel log lines that processes have written, too",
}


def keys() -> list[tuple[str, ...]]:
    """Every key of a signal's rule."""
    return [(f"`{name}`", _KEYS[name]) for name in HEAD[1:-1]]


def signals() -> list[tuple[str, ...]]:
    """Every signal with its defaults."""
    rules = HealthRules()
    return [
        (
            f"`{signal.value}`",
            *map(as_text, msgspec.structs.astuple(rule_of(rules, signal))),
            f"{'counter: ' if signal.counted else ''}{signal.meaning}",
        )
        for signal in Signal
        if signal is not Signal.MISSING  # what is missing cannot be handed out: no setting
    ]


def others() -> list[tuple[str, ...]]:
    """Every key beside the signals."""
    known = {signal.value for signal in Signal}
    fields = [field for field in msgspec.structs.fields(HealthRules) if field.encode_name not in known]
    return [(f"`{each.encode_name}`", as_text(each.default), _OTHERS[each.encode_name]) for each in fields]
