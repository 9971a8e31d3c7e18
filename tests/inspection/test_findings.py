from __future__ import annotations

from neuron_plugin.inspection.findings import plural


def test_one_is_no_plural() -> None:
    assert [plural(count, "device") for count in (0, 1, 2)] == ["0 devices", "1 device", "2 devices"]
