"""The kubelet's file of prepared claims is read as Kubernetes 1.34 to 1.36 write it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from neuron_plugin.kubelet.checkpoint import CheckpointError
from neuron_plugin.kubelet.dra_state import API_VERSION, DraStateFile, PreparedClaim, parse_dra_state

OURS = ("neuron.aws.com",)


def text(*claims: dict[str, Any], version: str = API_VERSION) -> bytes:
    data = {"kind": "DRACheckpoint", "apiVersion": version, "ClaimInfoStateList": list(claims) or None}
    return json.dumps({"Data": json.dumps(data), "Checksum": 1}).encode()


def claim(uid: str = "u", driver: str = "neuron.aws.com", devices: tuple[str, ...] = ("neuron-3",)) -> dict[str, Any]:
    listed = [
        {"PoolName": "n-neuron", "DeviceName": name, "ShareID": None, "RequestNames": ["r"], "CDIDeviceIDs": ["x=y"]}
        for name in devices
    ]
    state = {driver: {"Devices": listed or None}}
    return {"ClaimUID": uid, "ClaimName": "c", "Namespace": "ml", "PodUIDs": {"b": {}, "a": {}}, "DriverState": state}


def test_a_prepared_claim_says_its_pods_and_devices() -> None:
    assert parse_dra_state(text(claim()), OURS) == (
        PreparedClaim("neuron.aws.com", "u", "ml", "c", ("a", "b"), ("neuron-3",)),
    )


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(text(claim(devices=())), id="a claim without devices is being prepared"),
        pytest.param(text(claim(driver="gpu.example.com")), id="a claim of another driver"),
        pytest.param(text(), id="no claims are null"),
    ],
)
def test_what_is_no_claim_of_ours_or_has_nothing_yet_is_passed_over(data: bytes) -> None:
    assert parse_dra_state(data, OURS) == ()


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b'{"Data": 7}', b'{"Data": "{}"}', text(claim(), version="v9"), b"\xff", b"[" * 99999]
)
def test_an_unknown_shape_is_an_error_and_never_an_empty_list(data: bytes) -> None:
    with pytest.raises(CheckpointError):
        parse_dra_state(data, OURS)


def test_what_is_read_has_the_version_of_the_file_and_none_without_one(tmp_path: Path) -> None:
    file = DraStateFile(tmp_path / "dra_manager_state", OURS)
    assert (file.version(), file.read().claims) == (None, ())
    file.path.write_bytes(text(claim()))
    found = file.read()
    assert (found.version, len(found.claims)) == (file.version(), 1)


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "dra_manager_state").mkdir()
    with pytest.raises(CheckpointError, match="dra_manager_state"):
        DraStateFile(tmp_path / "dra_manager_state", OURS).read()
