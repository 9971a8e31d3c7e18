"""What is kept of devices over a restart, and that losing it costs nothing."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from neuron_plugin.plugin.health import (
    MOST_DEVICES,
    DeviceHealth,
    DeviceMemory,
    HealthState,
    Memory,
    boot_id,
    load,
    save,
)

KNOWN = Memory({"aa": DeviceMemory(accepted={"sram-ecc": 2}, latched={"node/absent": "why"}), "bb": DeviceMemory()})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "health.json"


def test_what_was_saved_is_loaded(file: Path) -> None:
    save(file, KNOWN, "boot")
    assert load(file, "boot") == KNOWN
    assert [path.name for path in file.parent.iterdir()] == ["health.json"]


def test_p68_after_a_boot_nothing_waits_for_a_reload_and_old_errors_stay_old(file: Path) -> None:
    save(file, KNOWN, "boot")
    assert load(file, "another boot") == Memory({"aa": DeviceMemory(accepted={"sram-ecc": 2}), "bb": DeviceMemory()})


def test_without_a_file_nothing_is_known(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load(file, "boot") == Memory()
    assert caplog.records == []


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff\xfe", b'{"version": 1}', b'{"version": 1, "boot": "b", "devices": {"a": 3}}']
)
def test_a_file_that_cannot_be_used_is_logged_and_costs_nothing(
    file: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file.parent.mkdir()
    file.write_bytes(content)
    assert load(file, "boot") == Memory()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_file_of_another_version_is_passed_over(file: Path) -> None:
    file.parent.mkdir()
    file.write_text('{"version": 2, "boot": "boot", "devices": {}}')
    assert load(file, "boot") == Memory()


def test_it_does_not_grow_with_every_chip_that_was_ever_here() -> None:
    before = Memory({f"{number:x}": DeviceMemory() for number in range(2 * MOST_DEVICES)})
    here = DeviceHealth("here", memory=DeviceMemory({"hw-error": 7}))
    kept = HealthState(0.0, before, {0: here}).memory
    assert len(kept.devices) == MOST_DEVICES
    assert kept.of("here").accepted == {"hw-error": 7}
    assert f"{2 * MOST_DEVICES - 1:x}" in kept.devices  # the oldest are forgotten


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    with pytest.raises(OSError, match="state"):
        save(tmp_path / "state" / "health.json", KNOWN, "boot")


def test_a_boot_has_an_id() -> None:
    assert boot_id() == boot_id()
