"""Where the attributes lie, what their texts mean (those of captured trees), and how reading them fails."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.hardware.sysfs import (
    PAGE_BYTES,
    DriverVersion,
    ResetState,
    Sysfs,
    SysfsError,
    parse_components,
    parse_connected_devices,
    parse_core_count,
    parse_counter,
    parse_device_numbers,
    parse_driver_version,
    parse_elected,
    parse_product_name,
    parse_reset,
    parse_serial_number,
    parse_word,
    read_attribute,
    read_text,
)
from neuron_plugin.simulation import SimulatedNode
from neuron_plugin.topology import MOST_CORES_PER_DEVICE, MOST_DEVICES, DeviceId

MakeNode = Callable[..., SimulatedNode]


def test_a_missing_file_or_one_below_a_file_is_a_missing_attribute(tmp_path: Path) -> None:
    (tmp_path / "neuron0").write_text("")
    for path in (tmp_path / "core_count", tmp_path / "neuron0" / "core_count"):
        with pytest.raises(SysfsError, match="core_count does not exist") as caught:
            read_text(path)
        assert caught.value.missing


@pytest.mark.parametrize(
    ("number", "missing"),
    [
        (errno.ENOENT, True),
        (errno.ENODEV, True),  # how a read ends when the device goes meanwhile
        (errno.ENXIO, True),
        (errno.EACCES, False),
        (errno.EPERM, False),
        (errno.EIO, False),
        (errno.EBUSY, False),
    ],
)
def test_failures_are_distinguished_by_errno(
    tmp_path: Path, fail_open: Callable[[str, int], None], number: int, *, missing: bool
) -> None:
    fail_open("reset", number)
    with pytest.raises(SysfsError) as caught:
        read_text(tmp_path / "reset")
    assert caught.value.missing is missing
    assert ("root can" in str(caught.value)) is (number in {errno.EACCES, errno.EPERM})
    assert caught.value.path == tmp_path / "reset"
    assert str(tmp_path / "reset") in str(caught.value)


def test_a_directory_in_an_attributes_place_is_a_read_error(tmp_path: Path) -> None:
    with pytest.raises(SysfsError, match="cannot be read"):
        read_text(tmp_path)


def test_bytes_that_are_no_text_come_back_escaped_and_no_more_than_a_page_is_read(tmp_path: Path) -> None:
    (tmp_path / "reset").write_bytes(b"\xff1\n")
    assert read_text(tmp_path / "reset") == "\\xff1\n"
    (tmp_path / "reset").write_bytes(b"1" * (PAGE_BYTES + 1))
    assert len(read_text(tmp_path / "reset")) == PAGE_BYTES


def test_p27_a_format_error_names_file_text_and_expectation(tmp_path: Path) -> None:
    path = tmp_path / "core_count"
    path.write_text("x")
    with pytest.raises(SysfsError) as caught:
        read_attribute(path, parse_core_count)
    assert str(caught.value) == f"{path} reads 'x', expected a decimal number of cores"
    assert not caught.value.empty
    path.write_text("x" * 1000)
    with pytest.raises(SysfsError) as caught:
        read_attribute(path, parse_core_count)
    assert len(str(caught.value)) < len(str(path)) + 150, "the beginning of a long text"


def test_only_directory_names_of_devices_count(make_node: MakeNode) -> None:
    node = make_node("inf2.24xlarge")
    for other in ("neuron", "neuronx", "neuron07", "neuron10000", "neuron1.bak", "xneuron1", "neuron1\n"):
        (node.paths.sysfs / "class/neuron_device" / other).mkdir()
    assert Sysfs(node.paths.sysfs).device_ids() == [0, 1, 2, 3, 4, 5]


def test_a_class_directory_that_is_not_there_is_a_missing_attribute(tmp_path: Path) -> None:
    with pytest.raises(SysfsError, match="neuron_device does not exist"):
        Sysfs(tmp_path).device_ids()


def test_every_attribute_of_a_device_is_found(make_node: MakeNode) -> None:
    tree = Sysfs(make_node("trn2.48xlarge").paths.sysfs).device(DeviceId(13))
    assert tree.read("core_count", parse_core_count) == 8
    assert tree.read("info/serial_number", parse_serial_number) == "00000b1c2d3e4f5d"
    assert tree.read("stats/hardware/mem_ecc_uncorrected", parse_counter) == 0
    assert Sysfs(tree.path.parents[2]).numbers(DeviceId(13)) == (243, 13)
    with pytest.raises(SysfsError, match="neuron13/no/such does not exist") as caught:
        tree.read("no/such", parse_counter)
    assert caught.value.missing


READ: dict[Callable[[str], object], dict[str, object]] = {
    parse_core_count: {"2": 2, "4": 4, "8": 8, "8\n": 8, str(MOST_CORES_PER_DEVICE): MOST_CORES_PER_DEVICE},
    parse_connected_devices: {
        "12, 3, 4, 1\n": {1, 3, 4, 12},  # trn1.32xlarge, device 0
        "12, 1, 3, 4\n": {1, 3, 4, 12},  # the order means nothing
        "12, 1, 9, 14\n": {1, 9, 12, 14},  # trn2.48xlarge, device 13
        "4\n": {4},  # inf2.24xlarge, device 5
        "2, 0\n": {0, 2},  # inf1.6xlarge, device 1
        "\n": set(),
        "": set(),  # the driver's answer where the list would take 20 bytes
        "1,2\n": {1, 2},
        "63": {63},
    },
    parse_reset: {"0\n": ResetState.RESETTING, "1\n": ResetState.READY, "2\n": ResetState.FAILED},
    parse_counter: {"0\n": 0, "18446744073709551615\n": 2**64 - 1},
    parse_word: {"Trainium1\n": "Trainium1"},
    parse_serial_number: {"00000B1C2D3E4F50\n": "00000b1c2d3e4f50", "\n": ""},  # firmware may not answer
    parse_device_numbers: {"243:13\n": (243, 13)},
    # Read liberally: the bytes are unpublished, and a word for none, read as a name, would close every device.
    parse_components: {
        "hbm\n": {"hbm"},
        "hbm,link_intraserver\n": {"hbm", "link_intraserver"},
        " hbm, sram ,\n": {"hbm", "sram"},
        "hbm\nsram\n": {"hbm", "sram"},
        **{text: set[str]() for text in ("\n", "", "none\n", "None", "0\n", "0x0", "OK\n", "-", "null,", "n/a\n")},
    },
    # Taken for unknown a driver that somebody built would be one of before 2.12.14, which numbers as the host does.
    parse_driver_version: {
        text: DriverVersion(text.strip(), numbers)
        for text, numbers in {
            "2.26.5.0\n": (2, 26, 5, 0),
            "2.19.64.0": (2, 19, 64, 0),
            "2.19.64.0-dirty\n": (2, 19, 64, 0),
            "2.26.5.0-rc1": (2, 26, 5, 0),
            "2.26.5.0+git.0a1b2c3": (2, 26, 5, 0),
            "2.26.5.0~dkms-1.amzn2023": (2, 26, 5, 0),
            "2.28_test": (2, 28),
        }.items()
    },
    parse_product_name: {
        "trn1.32xlarge\n": "trn1.32xlarge",
        "ml.trn1.32xlarge\n": "trn1.32xlarge",
        "trn3-dev0.48xlarge\n": "trn3-dev0.48xlarge",
        "trn2u-ac.24xlarge": "trn2u-ac.24xlarge",
        "HVM domU\n": "",
        "trn1." + "3" * 300: "",
        "Standard PC (Q35 + ICH9, 2009)\n": "",
        "": "",
    },
    parse_elected: {text: text.strip() for text in ("1,3,4\n", "0a1b2c3d4e5f6071", "-1\n", "busy\n", "\n", "")},
}
"""What the texts of an attribute mean."""
REFUSED: dict[tuple[Callable[[str], object], str], tuple[str, ...]] = {
    (parse_core_count, "decimal number of cores"): (
        *("", "\n", "-2", "+2", " 2", "2 ", "2\n\n", "two", "2.0", "0x2", "²", "٢"),
        "9" * 5000,  # int() itself would refuse it with another sentence
    ),
    (parse_core_count, "1 to 8 cores"): ("0", "9", "64", "999", "1000000000"),
    (parse_connected_devices, 'device ids joined by ", "'): (
        *("-1\n", "1, \n", ",", "1 2\n", "a\n", "1, b\n", "1\n2\n", "0x1\n"),
    ),
    (parse_connected_devices, f"below {MOST_DEVICES}"): ("1, 64\n",),
    (parse_reset, r"0 \(resetting\), 1 \(ready\) or 2 \(failed\)"): ("3\n", "-1\n", "", "ready\n"),
    (parse_counter, "decimal count"): ("0xdeadbeef\n",),
    (parse_word, "one word"): ("", "\n", "two words\n", "a\nb\n", "x" * 65, "a\0b"),
    (parse_serial_number, "hexadecimal"): ("unknown\n",),
    (parse_device_numbers, "major:minor"): ("243\n", "243:\n", ":1\n", "a:b\n", ""),
    (parse_components, "component names"): ('{"hbm": 1}\n',),
    (parse_driver_version, r"a version such as 2\.26\.5\.0"): (
        *("", "2", "dev", "2.x", "2.x.1234.0-dirty", "2..1", "2.26.5.0-", "2.26.5.0 dirty", "2.26.5.0\0"),
        "1.2.3.4.5.6.7",
    ),
    (parse_elected, "an id, a number or a list of modes"): ("x" * 65, "\0\0", "1 2", "ä"),
}
"""Texts that an attribute never has, and what the refusal says."""


def name_of(value: object) -> str:
    return getattr(value, "__name__", repr(value)[:40] if isinstance(value, str) else "")


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [(parse, text, value) for parse, texts in READ.items() for text, value in texts.items()],
    ids=name_of,
)
def test_p27_each_attribute_is_read_as_the_driver_prints_it(
    parse: Callable[[str], object], text: str, value: object
) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text", "said"),
    [(parse, text, said) for (parse, said), texts in REFUSED.items() for text in texts],
    ids=name_of,
)
def test_p27_what_the_driver_never_prints_is_refused_with_what_was_expected(
    parse: Callable[[str], object], text: str, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        parse(text)


def test_a_driver_version_is_compared_by_number_not_by_text() -> None:
    at_least = parse_driver_version("2.26.5.0\n").at_least
    assert [at_least(*numbers) for numbers in ((2, 12, 14), (2, 26, 5), (2, 26, 5, 0))] == [True] * 3
    assert [at_least(*numbers) for numbers in ((2, 26, 5, 1), (2, 28))] == [False] * 2
    assert not parse_driver_version("2.9.1").at_least(2, 12, 14)
    assert parse_driver_version("2.28").at_least(2, 28, 0, 0), "numbers left out count as zero"
    assert not parse_driver_version("2.28").at_least(2, 28, 0, 1)


unprinted = st.sampled_from(["0x10", "-3", "\0" * 4096, "9" * 4096, "1" * 21, " 7", "7\r\n", "\n\n", "1e3", "\ufeff1"])


@given(st.one_of(st.text(max_size=60), unprinted))
def test_any_text_is_a_value_or_a_value_error(text: str) -> None:
    for parse in READ:
        try:
            value = parse(text)
        except ValueError as error:
            assert str(error)  # noqa: PT017 - either outcome is right, a silent error is not
        else:
            assert len(value) <= 64 if isinstance(value, str) else value is not None


@given(st.from_regex(r"\A[a-z][a-z0-9-]*\.[a-z0-9-]+\Z"), st.from_regex(r"\A[0-9.]+[-+~_][A-Za-z0-9.+~_-]*\Z"))
def test_no_name_is_longer_than_the_cluster_accepts(product: str, version: str) -> None:
    assert len(parse_product_name(product)) <= 64
    try:
        assert len(parse_driver_version(version).text) <= 128
    except ValueError:
        assert not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,9}){1,5}[-+~_][A-Za-z0-9.+~_-]{1,40}", version)


@given(st.sets(st.integers(0, MOST_DEVICES - 1), min_size=1, max_size=8))
def test_every_list_the_driver_can_print_is_read_back(devices: set[int]) -> None:
    assert parse_connected_devices(", ".join(map(str, devices)) + "\n") == devices
