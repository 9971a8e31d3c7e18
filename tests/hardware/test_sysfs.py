"""Where the attributes lie, and which failure is told as what."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from neuron_plugin.hardware.attributes import ResetState, parse_core_count
from neuron_plugin.hardware.sysfs import (
    PAGE_BYTES,
    AttributeDeniedError,
    AttributeMissingError,
    AttributeReadError,
    Sysfs,
    SysfsError,
    SysfsFormatError,
    read_attribute,
    read_text,
)
from neuron_plugin.simulation import SimulatedNode
from neuron_plugin.topology import DeviceId

MakeNode = Callable[..., SimulatedNode]


def test_a_missing_file_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(AttributeMissingError, match="core_count does not exist"):
        read_text(tmp_path / "core_count")


def test_a_file_below_a_file_is_missing_too(tmp_path: Path) -> None:
    (tmp_path / "neuron0").write_text("")
    with pytest.raises(AttributeMissingError):
        read_text(tmp_path / "neuron0" / "core_count")


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOENT, AttributeMissingError),
        (errno.ENODEV, AttributeMissingError),  # how a read ends when the device goes meanwhile
        (errno.ENXIO, AttributeMissingError),
        (errno.EACCES, AttributeDeniedError),
        (errno.EPERM, AttributeDeniedError),
        (errno.EIO, AttributeReadError),
        (errno.EBUSY, AttributeReadError),
    ],
)
def test_failures_are_told_apart_by_errno(
    tmp_path: Path, fail_open: Callable[[str, int], None], number: int, expected: type[SysfsError]
) -> None:
    fail_open("reset", number)
    with pytest.raises(expected) as caught:
        read_text(tmp_path / "reset")
    assert caught.value.path == tmp_path / "reset"
    assert str(tmp_path / "reset") in str(caught.value)


def test_a_directory_in_an_attributes_place_is_a_read_error(tmp_path: Path) -> None:
    with pytest.raises(AttributeReadError, match="cannot be read"):
        read_text(tmp_path)


def test_bytes_that_are_no_text_come_back_escaped(tmp_path: Path) -> None:
    (tmp_path / "reset").write_bytes(b"\xff1\n")
    assert read_text(tmp_path / "reset") == "\\xff1\n"


def test_no_more_than_a_page_is_read(tmp_path: Path) -> None:
    (tmp_path / "reset").write_bytes(b"1" * (PAGE_BYTES + 1))
    assert len(read_text(tmp_path / "reset")) == PAGE_BYTES


def test_p27_a_format_error_names_file_text_and_expectation(tmp_path: Path) -> None:
    path = tmp_path / "core_count"
    path.write_text("x")
    with pytest.raises(SysfsFormatError) as caught:
        read_attribute(path, parse_core_count)
    assert str(caught.value) == f"{path} reads 'x', expected a decimal number of cores"
    assert caught.value.text == "x"


def test_a_format_error_quotes_the_beginning_of_a_long_text(tmp_path: Path) -> None:
    path = tmp_path / "core_count"
    path.write_text("x" * 1000)
    with pytest.raises(SysfsFormatError) as caught:
        read_attribute(path, parse_core_count)
    assert len(str(caught.value)) < len(str(path)) + 150


def test_only_directory_names_of_devices_count(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    for stranger in ("neuron", "neuronx", "neuron07", "neuron10000", "neuron1.bak", "xneuron1", "neuron1\n"):
        (node.paths.sysfs / "class/neuron_device" / stranger).mkdir()
    assert Sysfs(node.paths.sysfs).device_ids() == [0, 1, 2, 3, 4, 5]


def test_devices_come_in_numeric_order(make_node: MakeNode) -> None:
    assert Sysfs(make_node("inf2.48xlarge").paths.sysfs).device_ids() == list(range(12))


def test_a_class_directory_that_is_not_there_is_a_missing_attribute(tmp_path: Path) -> None:
    with pytest.raises(AttributeMissingError, match="neuron_device does not exist"):
        Sysfs(tmp_path).device_ids()


def test_every_attribute_of_a_device_is_found(make_node: MakeNode) -> None:
    tree = Sysfs(make_node("trn2.48xlarge").paths.sysfs).device(DeviceId(13))
    assert tree.core_count() == 8
    assert tree.connected_devices() == {12, 1, 9, 14}
    assert tree.device_name() == "Trainium2"
    assert tree.architecture() == "NDv3"
    assert tree.numbers() == (243, 13)
    assert tree.reset() is ResetState.READY
    assert tree.serial_number() == "00000b1c2d3e4f5d"
    assert tree.hardware_counter("mem_ecc_uncorrected") == 0
    assert tree.unhealthy_components() == frozenset()
    assert tree.core_ids() == set(range(8))


def test_the_machine_is_known_by_driver_and_dmi(make_node: MakeNode) -> None:
    sysfs = Sysfs(make_node("trn1.32xlarge", driver_version="2.26.5.0").paths.sysfs)
    assert sysfs.driver_version().text == "2.26.5.0"
    assert sysfs.instance_type() == "trn1.32xlarge"
    assert sysfs.elected("node_id_4") == "-1"


def test_inf1_has_no_serial_number_and_no_ecc_counter(make_node: MakeNode) -> None:
    tree = Sysfs(make_node("inf1.xlarge").paths.sysfs).device(DeviceId(0))
    with pytest.raises(AttributeMissingError):
        tree.serial_number()
    with pytest.raises(AttributeMissingError):
        tree.hardware_counter("mem_ecc_uncorrected")
