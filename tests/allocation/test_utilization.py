"""The annotation with how much containers use their cores: it reads back, and any other text says nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from neuron_plugin.allocation import PodUid
from neuron_plugin.allocation.utilization import (
    ContainerUtilization,
    duration_text,
    read_utilization,
    write_utilization,
)

GIB = 2**30
KNOWN = {
    PodUid("uid-b"): {"main": ContainerUtilization(73, 12 * GIB, 0, 4711)},
    PodUid("uid-a"): {
        "main": ContainerUtilization(0, 0, 1_795_363_200, 12),
        "eval": ContainerUtilization(100, GIB, 0, 9),
    },
}


def test_what_is_written_reads_back_as_it_was() -> None:
    assert read_utilization(write_utilization(KNOWN)) == KNOWN


def test_equal_values_give_equal_texts_in_whatever_order_they_came() -> None:
    assert write_utilization(KNOWN) == write_utilization(dict(reversed(KNOWN.items())))


def test_a_container_takes_some_eighty_bytes() -> None:
    uid = PodUid("0f8b3c52-7a41-4c0e-9d0a-3e2b6a1f5c77")
    busy = {uid: {"main": ContainerUtilization(73, 96 * GIB, 1_795_363_200, 1_000_000)}}
    assert len(write_utilization(busy)) - len(write_utilization({})) < 90


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "[]",
        "{}",
        '{"version":2,"pods":{}}',
        '{"version":1,"pods":[]}',
        '{"version":1}',
        "[" * 100_000,
        "\ud800",
    ],
)
def test_a_text_of_another_form_says_nothing(text: str) -> None:
    assert read_utilization(text) == {}


@pytest.mark.parametrize(
    "numbers", [[], [1, 2, 3], [1, 2, 3, -1], [1, 2, 3, True], [1.5, 2, 3, 4], [1, 2, 3, 10**20], "x"]
)
def test_a_container_that_cannot_be_read_takes_nothing_from_the_others(numbers: Any) -> None:
    text = json.dumps({"version": 1, "pods": {"a": {"bad": numbers, "good": [5, 0, 1, 2]}, "b": 7}})
    assert read_utilization(text) == {PodUid("a"): {"good": ContainerUtilization(5, 2**20, 0, 2)}}


def test_a_share_above_the_whole_is_the_whole() -> None:
    text = json.dumps({"version": 1, "pods": {"a": {"main": [250, 0, 0, 0]}}})
    assert read_utilization(text)[PodUid("a")]["main"].busy_percent == 100


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0s"),
        (45.9, "45s"),
        (60, "1m"),
        (719, "11m"),
        (7500, "2h5m"),
        (7200, "2h"),
        (273_600, "3d4h"),
        (86_459, "1d"),
    ],
)
def test_a_duration_is_short(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
