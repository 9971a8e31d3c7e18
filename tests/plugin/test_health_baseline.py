"""What is kept of devices over a restart, and that losing it costs nothing."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from neuron_plugin.hardware.device import CoreErrors
from neuron_plugin.plugin.health import MOST_DEVICES, Baseline, HealthRules, HealthState, health_after, load, save
from tests.plugin.health_world import device, machine

KNOWN: Baseline = {"aa": {"sram-ecc": 2}, "bb": {}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "health.json"


def test_what_was_saved_is_loaded(file: Path) -> None:
    save(file, KNOWN)
    assert load(file) == KNOWN
    assert [path.name for path in file.parent.iterdir()] == ["health.json"]


def test_without_a_file_nothing_is_known(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load(file) == {}
    assert caplog.records == []


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff\xfe", b'{"version": 1}', b'{"version": 2, "devices": {"a": 3}}']
)
def test_a_file_that_cannot_be_used_is_logged_and_costs_nothing(
    file: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file.parent.mkdir()
    file.write_bytes(content)
    assert load(file) == {}
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_file_of_another_version_is_passed_over(file: Path) -> None:
    file.parent.mkdir()
    file.write_text('{"version": 1, "devices": {"a": {"sram-ecc": 1}}}')
    assert load(file) == {}


def test_it_does_not_grow_with_every_chip_that_was_ever_here() -> None:
    before = {f"{number:x}": {"hw-error": 1} for number in range(2 * MOST_DEVICES)}
    here = device(0, serial="0e", core_errors=(CoreErrors(0, hw_error=7),))
    kept = health_after(HealthState(before), machine(here), 0.0, HealthRules()).baseline
    assert len(kept) == MOST_DEVICES
    assert kept["0e"]["hw-error"] == 7
    assert f"{2 * MOST_DEVICES - 1:x}" in kept  # the oldest are forgotten


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    with pytest.raises(OSError, match="state"):
        save(tmp_path / "state" / "health.json", KNOWN)
