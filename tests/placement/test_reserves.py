"""What is reserved, as it is written into the leader's Lease."""

from __future__ import annotations

import pytest

from neuron_plugin.placement.reserves import MOST_PLAIN_BYTES, ReserveRecord, read_records, write_records

MOST_ANNOTATIONS = 256 << 10
"""Bytes of all annotations of an object (apimachinery, TotalAnnotationSizeLimitB)."""


def records(number: int) -> list[ReserveRecord]:
    return [
        ReserveRecord(
            uid=f"9c5b94b1-35ad-49bb-b118-{31 * each * each:012x}",
            namespace="default",
            name=f"train-{each}",
            node=f"ip-10-0-{each // 250}-{each % 250}.us-west-2.compute.internal",
            cores="0-31",
            at=1764416000.5,
            group="default/train",
        )
        for each in range(number)
    ]


@pytest.mark.parametrize("number", [0, 1, 5000])
def test_what_was_written_is_read(number: int) -> None:
    written = write_records(records(number))
    assert list(read_records(written)) == records(number)
    assert len(written) < MOST_ANNOTATIONS
    assert written.startswith("[") is (len(written) <= MOST_PLAIN_BYTES and number < 5000)


@pytest.mark.parametrize("text", ["", "{", "[1]", "e30=", "eJw=", '[{"uid": "x"}]'])
def test_what_is_none_of_it_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no records|base64|Incorrect padding"):
        read_records(text)
