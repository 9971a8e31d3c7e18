from __future__ import annotations

import pytest

from neuron_plugin.inspection.findings import Unknown, report_of, unchecked
from neuron_plugin.wording import plural


def test_one_is_no_plural() -> None:
    assert [plural(count, "device") for count in (0, 1, 2)] == ["0 devices", "1 device", "2 devices"]


@pytest.mark.parametrize(
    ("action", "for_root"),
    [
        ("run this as root", "root is not enough here: run this on the node itself, or give it CAP_DAC_READ_SEARCH"),
        ("run this as root; in a pod it takes CAP_SYS_PTRACE", "root is not enough here: it takes CAP_SYS_PTRACE"),
        ("run this as root on the node itself", "root is not enough here: run this on the node itself"),
        ("reload the driver", "reload the driver"),
    ],
)
def test_root_is_not_sent_to_be_root(action: str, for_root: str) -> None:
    findings = [unchecked(Unknown("no permission", action))]
    assert report_of(findings, as_root=True).findings[0].action == for_root
    assert report_of(findings).findings[0].action == action
