"""The kubelet's checkpoint: what its entries say, and that nothing unknown in it is taken for an empty list."""

from __future__ import annotations

import base64
import json
import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.kubelet import checkpoint
from neuron_plugin.kubelet._proto.deviceplugin.v1beta1 import api_pb2 as pb
from neuron_plugin.kubelet.checkpoint import (
    Checkpoint,
    CheckpointEntry,
    CheckpointError,
    CheckpointFile,
    parse_checkpoint,
)

UID = "0f1c2d3e-4a5b-6c7d-8e9f-001122334455"
NEURON = "aws.amazon.com/neuron"
OTHER = "example.com/gpu"
OURS = frozenset({NEURON})
REPLY = pb.ContainerAllocateResponse(
    envs={"NEURON_RT_VISIBLE_CORES": "2,3"},
    annotations={"neuron-plugin.io/allocation": "a1b2", "other": "x"},
    devices=[
        pb.DeviceSpec(container_path="/dev/neuron0", host_path="/dev/neuron5", permissions="rw"),
        pb.DeviceSpec(container_path="/dev/neuron1", host_path="/dev/neuron6", permissions="rw"),
    ],
)


def entry(device_ids: object, **changes: object) -> dict[str, object]:
    made = {
        "PodUID": UID,
        "ContainerName": "init",
        "ResourceName": NEURON,
        "DeviceIDs": device_ids,
        "AllocResp": base64.b64encode(REPLY.SerializeToString()).decode(),
    }
    return made | changes


def without(key: str) -> dict[str, object]:
    return {name: value for name, value in entry({"-1": ["1"]}).items() if name != key}


def text(*entries: object) -> bytes:
    data = {"PodDeviceEntries": list(entries), "RegisteredDevices": {NEURON: ["0", "1"]}}
    return json.dumps({"Data": data, "Checksum": 1234567890, "BootID": "b"}).encode()


def recorded(*ids: str) -> CheckpointEntry:
    return CheckpointEntry(
        UID, "init", NEURON, frozenset(ids), dict(REPLY.annotations), ("/dev/neuron5", "/dev/neuron6")
    )


# Entries


@pytest.mark.parametrize(
    "device_ids",
    [{"-1": ["10", "9"]}, {"0": ["9"], "1": ["10"]}, {"0": ["10", "9"], "1": None}, ["10", "9"]],
    ids=["no topology", "two nodes", "an empty node", "before 1.20"],
)
def test_p61_ids_of_all_numa_nodes_are_one_set(device_ids: object) -> None:
    assert parse_checkpoint(text(entry(device_ids)), OURS) == (recorded("9", "10"),)


def test_an_entry_with_an_empty_reply_is_an_entry() -> None:
    (found,) = parse_checkpoint(text(entry({"-1": ["1"]}, AllocResp="")), OURS)
    assert (found.ids, dict(found.annotations), found.device_paths) == (frozenset("1"), {}, ())


def test_entries_keep_the_order_of_the_file_and_may_repeat() -> None:
    found = parse_checkpoint(text(entry(["1"]), entry(["2"], ContainerName="main"), entry(["1"])), OURS)
    assert [(each.container, each.ids) for each in found] == [
        ("init", frozenset("1")),
        ("main", frozenset("2")),
        ("init", frozenset("1")),
    ]


def test_an_entry_that_was_in_the_last_file_is_not_decoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    (before,) = parse_checkpoint(text(entry(["4711"])), OURS)
    monkeypatch.setattr(checkpoint, "_decode_entry", None)
    assert parse_checkpoint(text(entry(["4711"])), OURS)[0] is before


@pytest.mark.parametrize("shape", [{"PodUID": 7}, {"DeviceIDs": "0"}, {"AllocResp": None}, {"ContainerName": ""}])
def test_entries_of_other_plugins_are_skipped_whatever_they_contain(shape: dict[str, object]) -> None:
    foreign = entry({"-1": ["1"]}, ResourceName=OTHER) | shape
    assert parse_checkpoint(text(foreign, entry(["1"]), foreign), OURS) == (recorded("1"),)


def test_a_wrong_checksum_does_not_matter() -> None:
    damaged = text(entry({"-1": ["1"]})).replace(b"1234567890", b'"no number"')
    assert parse_checkpoint(damaged, OURS) == (recorded("1"),)


@pytest.mark.parametrize(
    "empty",
    [
        b'{"PodDeviceEntries": null}',
        b'{"PodDeviceEntries": []}',
        b'{"PodDeviceEntries": null, "RegisteredDevices": {"a": ["0"]}}',
    ],
)
def test_the_file_of_a_new_kubelet_is_empty(empty: bytes) -> None:
    assert parse_checkpoint(b'{"Data": %s, "Checksum": 1}' % empty, OURS) == ()


# An unknown shape is an error


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (None, "got `null`"),
        (7, "got `int`"),
        ([], "got `array`"),
        ({}, "`ResourceName`"),
        (without("PodUID"), "`PodUID`"),
        (without("ContainerName"), "`ContainerName`"),
        (without("ResourceName"), "`ResourceName`"),
        (without("DeviceIDs"), "`DeviceIDs`"),
        (without("AllocResp"), "`AllocResp`"),
        (entry(None), r"\$\.DeviceIDs"),
        (entry("0"), r"\$\.DeviceIDs"),
        (entry([["1"]]), r"\$\.DeviceIDs"),
        (entry({"0": "1"}), r"\$\.DeviceIDs"),
        (entry({"0": [1]}), r"\$\.DeviceIDs"),
        (entry({"0": {"1": ["1"]}}), r"\$\.DeviceIDs"),
        (entry({"-1": ["1"]}, PodUID=""), "PodUID is ''"),
        (entry({"-1": ["1"]}, PodUID=None), r"\$\.PodUID"),
        (entry({"-1": ["1"]}, ContainerName=5), r"\$\.ContainerName"),
        (entry({"-1": ["1"]}, ContainerName=""), "ContainerName ''"),
        (entry({"-1": ["1"]}, ResourceName=None), r"\$\.ResourceName"),
        (entry({"-1": ["1"]}, AllocResp=None), r"\$\.AllocResp"),
        (entry({"-1": ["1"]}, AllocResp="no base64!"), r"\$\.AllocResp"),
        (entry({"-1": ["1"]}, AllocResp="AAAA"), "ContainerAllocateResponse"),
    ],
)
def test_p61_an_entry_of_an_unknown_shape_makes_the_file_unreadable_and_is_named(bad: object, said: str) -> None:
    with pytest.raises(CheckpointError, match=rf"entry 1 of Data.PodDeviceEntries: .*{said}"):
        parse_checkpoint(text(entry(["1"]), bad), OURS)


GARBAGE = (
    *(b"", b"{", b"null", b"[]", b"{}", b"\xff\xfe\x00", b"[" * 100_000, text() + b"{}"),
    *(b'{"Data": null}', b'{"Data": []}', b'{"Data": {}}', b'{"Data": {"RegisteredDevices": {}}}'),
    *(b'{"Data": {"PodDeviceEntries": {}}}', b'{"Data": {"PodDeviceEntries": "none"}}'),
    b'{"Data": {"ContainerDeviceEntries": []}}',
    b'{"Data": {"RegisteredDevices": {}, "podDeviceEntries": []}}',
)


@pytest.mark.parametrize("garbage", GARBAGE)
def test_p61_garbage_is_unreadable_and_never_empty(garbage: bytes) -> None:
    with pytest.raises(CheckpointError):
        parse_checkpoint(garbage, OURS)


@given(st.binary(max_size=60) | st.text(max_size=60).map(text))
def test_p61_any_content_is_read_or_unreadable(content: bytes) -> None:
    with pytest.raises(CheckpointError):
        parse_checkpoint(content, OURS)


@given(st.integers(0, 600))
def test_p61_a_file_that_was_cut_off_is_unreadable(length: int) -> None:
    whole = text(entry({"-1": ["1"]}))
    if length >= len(whole):
        assert parse_checkpoint(whole[:length], OURS) == (recorded("1"),)
    else:
        with pytest.raises(CheckpointError):
            parse_checkpoint(whole[:length], OURS)


@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=3))
def test_p61_damage_is_never_fewer_entries(position: int, damage: bytes) -> None:
    whole = bytearray(text(entry(["1"]), entry(["2"])))
    at = position % len(whole)
    whole[at : at + len(damage)] = damage
    try:
        found = parse_checkpoint(bytes(whole), OURS | {_resource_at(bytes(whole))})
    except CheckpointError:
        return
    assert len(found) == 2


def _resource_at(damaged: bytes) -> str:
    """The name of a resource that the damage may have changed into another one."""
    try:
        entries = json.loads(damaged)["Data"]["PodDeviceEntries"]
        names = {each["ResourceName"] for each in entries}
    except (ValueError, LookupError, TypeError):
        return NEURON
    return str(next(iter(names - OURS), NEURON))


# The file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kubelet_internal_checkpoint"


def replace(path: Path, content: bytes) -> None:
    """As the kubelet writes it: aside, then renamed."""
    aside = path.with_name(f".{random.random()}")  # noqa: S311 - a name, guards nothing
    aside.write_bytes(content)
    aside.replace(path)


def test_a_file_is_read_with_its_version(path: Path) -> None:
    file = CheckpointFile(path, [NEURON])
    replace(path, text(entry({"-1": ["3"]})))
    assert file.read() == Checkpoint((recorded("3"),), file.version())


def test_a_missing_file_is_a_kubelet_that_has_written_nothing_yet(path: Path) -> None:
    file = CheckpointFile(path, OURS)
    assert file.version() is None
    assert file.read() == Checkpoint((), None)


def test_each_write_is_another_version_even_of_the_same_content(path: Path) -> None:
    file = CheckpointFile(path, OURS)
    versions = set()
    for _ in range(5):
        replace(path, text())
        versions.add(file.version())
        assert file.read().version == file.version()
    assert len(versions) == 5


def test_the_version_is_that_of_the_file_which_was_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = CheckpointFile(path, OURS)
    replace(path, text(entry(["1"])))
    first = file.version()
    fstat = os.fstat

    def replaced_meanwhile(descriptor: int) -> os.stat_result:
        found = fstat(descriptor)
        replace(path, text(entry(["2"])))
        return found

    monkeypatch.setattr(os, "fstat", replaced_meanwhile)
    read = file.read()
    assert (read.entries, read.version) == ((recorded("1"),), first)
    assert file.version() != first


def forbidden(*_: object, **__: object) -> None:
    raise PermissionError(13, "Permission denied", "the file")


@pytest.mark.parametrize(
    ("content", "patch", "said"),
    [
        (b'{"Data": 7}', {}, "{path}: .*Expected `object`, got `int` - at `[$].Data`"),
        (None, {}, "Is a directory: '{path}'"),
        (text(), {"pathlib.Path.open": forbidden}, "{path}: .*Permission denied: 'the file'"),
        (text(entry(["1"])), {"neuron_plugin.kubelet.checkpoint.MOST_BYTES": 100}, "{path}: .*100 bytes"),
    ],
    ids=["another format", "a directory", "it may not be read", "too large"],
)
def test_what_cannot_be_read_is_named_and_has_a_version(
    path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, patch: dict[str, object], said: str
) -> None:
    path.mkdir() if content is None else replace(path, content)
    assert CheckpointFile(path, OURS).version() is not None
    for name, value in patch.items():
        monkeypatch.setattr(name, value)
    with pytest.raises(CheckpointError, match=said.format(path=path)):
        CheckpointFile(path, OURS).read()


def test_a_file_that_cannot_be_looked_at_has_a_version_that_no_file_has(path: Path) -> None:
    path.parent.joinpath("file").touch()
    file = CheckpointFile(path.parent / "file" / path.name, OURS)
    assert file.version() == (0, 0, 0)
    with pytest.raises(CheckpointError, match="Not a directory"):
        file.read()
