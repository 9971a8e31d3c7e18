"""Refusals are a few fixed texts, and say whether waiting helps."""

from __future__ import annotations

import pytest

from neuron_plugin.allocation.rejection import (
    Rejection,
    disabled,
    fragmented,
    not_free,
    too_many,
    too_many_together,
    unhealthy,
    unsupported_count,
)
from neuron_plugin.topology import Unit
from tests.topology.oracle import INF1, TRN1, TRN2

TEXTS = [
    (
        unsupported_count(TRN1, Unit.DEVICE, 7),
        (
            "Instance type trn1.32xlarge does not support requests for device: 7. "
            "Please request a different number of devices. It supports 1 or 4 or 8 or 16"
        ),
    ),
    (
        unsupported_count(TRN1, Unit.CORE, 5),
        (
            "Instance type trn1.32xlarge does not support requests for core: 5. "
            "Please request a different number of cores. It supports 1-2 or 8 or 16 or 32"
        ),
    ),
    (too_many(INF1, Unit.DEVICE, 5), "Instance type inf1.6xlarge has 4 Neuron devices and 5 were requested"),
    (too_many(INF1, Unit.CORE, 17), "Instance type inf1.6xlarge has 16 Neuron cores and 17 were requested"),
    (too_many_together(INF1), "Instance type inf1.6xlarge has no room for all containers of the pod at once"),
    (unhealthy(Unit.DEVICE, 4), "No set of 4 healthy linked Neuron devices on the node"),
    (disabled(Unit.DEVICE, 4), "The node's disabled Neuron devices leave no linked set of 4 devices"),
    (not_free(Unit.CORE, 3), "Fewer than 3 free Neuron cores"),
    (not_free(Unit.DEVICE, 1), "No free Neuron device"),
    (unhealthy(Unit.CORE, 1), "No healthy Neuron core on the node"),
    (fragmented(TRN1, Unit.DEVICE, 4), "No free linked set of 4 Neuron devices"),
    (fragmented(TRN1, Unit.CORE, 8), "No free linked set of 8 Neuron cores"),
    (fragmented(TRN2, Unit.DEVICE, 8), "No free linked set of 8 Neuron devices"),
    (fragmented(TRN2, Unit.CORE, 2), "No free aligned set of 2 Neuron cores"),
    (
        unsupported_count(TRN2, Unit.CORE, 12),
        (
            "Instance type trn2.48xlarge does not support requests for core: 12. "
            "Please request a different number of cores. It supports 1-4 or 8 or 16 or 32 or 64"
        ),
    ),
]


@pytest.mark.parametrize(("refusal", "text"), TEXTS, ids=lambda part: part.code if isinstance(part, Rejection) else "")
def test_t7_a_text_is_exactly_this(refusal: Rejection, text: str) -> None:
    assert refusal.text == text


def test_t8_only_what_pods_hold_can_pass() -> None:
    assert {refusal.code for refusal, _ in TEXTS if refusal.may_pass} == {"not-free", "fragmented"}


def test_equal_refusals_are_one_text_for_the_scheduler_to_count() -> None:
    assert not_free(Unit.DEVICE, 4) == not_free(Unit.DEVICE, 4)
    assert len({refusal.text for refusal, _ in TEXTS}) == len(TEXTS)
