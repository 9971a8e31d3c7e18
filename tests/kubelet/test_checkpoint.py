"""The kubelet's own file: what it says, and everything it may say instead."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.kubelet.checkpoint import RecordedDevices, parse_checkpoint, read_checkpoint

UID = "0f1c2d3e-4a5b-6c7d-8e9f-001122334455"
NEURON = "aws.amazon.com/neuron"


def entry(device_ids: object, **changes: object) -> dict[str, object]:
    made = {
        "PodUID": UID,
        "ContainerName": "init",
        "ResourceName": NEURON,
        "DeviceIDs": device_ids,
        "AllocResp": "CgA=",
    }
    return made | changes


def text(*entries: object) -> bytes:
    data = {"PodDeviceEntries": list(entries), "RegisteredDevices": {NEURON: ["0", "1"]}}
    return json.dumps({"Data": data, "Checksum": 1234567890, "BootID": "b"}).encode()


def recorded(*ids: str) -> RecordedDevices:
    return RecordedDevices(UID, "init", NEURON, frozenset(ids))


@pytest.mark.parametrize(
    "device_ids",
    [{"-1": ["10", "9"]}, {"0": ["9"], "1": ["10"]}, {"0": ["10", "9"], "1": None}, ["10", "9"]],
    ids=["no topology", "two nodes", "an empty node", "before 1.20"],
)
def test_p61_ids_of_all_numa_nodes_are_one_set(device_ids: object) -> None:
    assert parse_checkpoint(text(entry(device_ids))) == (recorded("9", "10"),)


def test_a_wrong_checksum_does_not_matter() -> None:
    assert parse_checkpoint(text(entry({"-1": ["1"]})).replace(b"1234567890", b'"no number"')) == (recorded("1"),)


@pytest.mark.parametrize(
    "bad",
    [
        None,
        7,
        [],
        {},
        entry(None),
        entry({}),
        entry("0"),
        entry({"0": "1"}),
        entry({"0": [1]}),
        entry({"-1": ["1"]}, PodUID=""),
        entry({"-1": ["1"]}, PodUID=None),
        entry({"-1": ["1"]}, ContainerName=5),
    ],
)
def test_an_entry_that_makes_no_sense_costs_only_itself(bad: object) -> None:
    assert parse_checkpoint(text(bad, entry({"-1": ["1"]}))) == (recorded("1"),)


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"{}",
        b'{"Data": null}',
        b'{"Data": {"PodDeviceEntries": null}}',
        b'{"Data": {"PodDeviceEntries": {}}}',
        b"\xff\xfe\x00",
        b"[" * 100_000,
    ],
)
def test_p61_garbage_says_nothing(garbage: bytes) -> None:
    assert parse_checkpoint(garbage) == ()


@given(st.binary(max_size=60) | st.text(max_size=60).map(text))
def test_p61_no_content_is_an_error(content: bytes) -> None:
    parse_checkpoint(content)


@given(st.integers(0, 400))
def test_p61_a_file_that_was_cut_off_says_nothing_and_is_no_error(length: int) -> None:
    whole = text(entry({"-1": ["1"]}))
    assert parse_checkpoint(whole[:length]) == (() if length < len(whole) else (recorded("1"),))


def test_a_file_is_read_and_a_missing_one_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "kubelet_internal_checkpoint"
    assert read_checkpoint(path) == ()
    path.write_bytes(text(entry({"-1": ["3"]})))
    assert read_checkpoint(path) == (recorded("3"),)
    assert read_checkpoint(tmp_path) == ()
