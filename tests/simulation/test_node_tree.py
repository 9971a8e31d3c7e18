"""The table of files of a device, as a value."""

from __future__ import annotations

import msgspec
import pytest

from neuron_plugin.simulation.node_tree import File, NodeDescription, SimulatedDevice, device_files, serial_number

TRN2 = NodeDescription(
    instance_type="trn2.48xlarge", device_name="Trainium2", device_count=16, driver_version="2.30.2.0"
)


def overridden(**texts: str | None) -> dict[str, File]:
    devices = {0: SimulatedDevice(overrides={name.replace("__", "/"): text for name, text in texts.items()})}
    return device_files(msgspec.structs.replace(TRN2, devices=devices), 0)


def test_a_device_of_trn2_has_some_hundred_files_of_which_monitors_read_most() -> None:
    quiet = msgspec.structs.replace(TRN2, usage_counters=False)
    assert len(device_files(TRN2, 0)) > 800
    assert len(device_files(quiet, 0)) < 30
    assert device_files(quiet, 0).items() <= device_files(TRN2, 0).items()


def test_devices_differ_in_what_names_them_only() -> None:
    first, second = device_files(TRN2, 0), device_files(TRN2, 1)
    assert first.keys() == second.keys()
    differing = {name for name, file in first.items() if second[name] != file}
    assert differing == {"dev", "uevent", "connected_devices", "info/serial_number"}


def test_an_override_keeps_the_mode_of_the_file_it_replaces() -> None:
    assert overridden(reset="9\n")["reset"] == File("9\n", 0o600)
    assert overridden(info__new="1\n")["info/new"] == File("1\n", 0o644)


def test_an_override_with_nothing_takes_the_file_away() -> None:
    assert device_files(TRN2, 0).keys() - overridden(core_count=None).keys() == {"core_count"}
    assert overridden(not_there=None) == device_files(TRN2, 0)


@pytest.mark.parametrize(("device_name", "beats"), [("Trainium1", False), ("Inferentia2", False), ("Trainium2", True)])
def test_only_trn2_and_trn3_have_a_heartbeat(device_name: str, beats: bool) -> None:  # noqa: FBT001 - parametrized
    files = device_files(msgspec.structs.replace(TRN2, device_name=device_name), 0)
    assert ("stats/hardware/health_status/healthcheck_heartbeat" in files) is beats


def test_a_serial_number_is_sixteen_hexadecimal_digits_up_to_the_last_device() -> None:
    serials = [serial_number(device) for device in range(64)]
    assert len(set(serials)) == 64
    assert all(len(serial) == 16 and int(serial, 16) for serial in serials)
