"""Hardware errors in the kernel log: whose, of which kind, written by whom."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.hardware.kmsg import (
    KernelRecord,
    RecordSplitter,
    parse_error,
    parse_record,
    tells_of_reset,
)


def record(text: str, *, by_kernel: bool = True) -> KernelRecord:
    return KernelRecord(1.0, text, by_kernel)


def test_a_record_has_a_time_a_text_and_an_author() -> None:
    assert parse_record("3,1234,5678901234,-;nd3: NEURON_HW_ERR=DMA_ERROR now") == KernelRecord(
        5678.901234, "nd3: NEURON_HW_ERR=DMA_ERROR now", by_kernel=True
    )


@pytest.mark.parametrize("line", ["6,1,2,c,caller=T1;a;b", "6,1,2,-;a;b"])
def test_a_text_may_hold_what_separates(line: str) -> None:
    parsed = parse_record(line)
    assert parsed
    assert parsed.text == "a;b"


@pytest.mark.parametrize("line", ["", " SUBSYSTEM=pci", "no record", "a,b,c,-;text", "3,1;text"])
def test_what_is_no_record_is_none(line: str) -> None:
    assert parse_record(line) is None


@pytest.mark.parametrize(
    ("priority", "by_kernel"), [(0, True), (3, True), (7, True), (8, False), (11, False), (30, False)]
)
def test_p67_the_facility_tells_a_process_from_the_kernel(priority: int, by_kernel: bool) -> None:  # noqa: FBT001 - data
    parsed = parse_record(f"{priority},1,2,-;NEURON_HW_ERR=DMA_ERROR")
    assert parsed
    assert parsed.by_kernel is by_kernel


# The patterns that NPD and EKS's agent look for, and the agent's own test line.
@pytest.mark.parametrize(
    "kind",
    [
        "SRAM_UNCORRECTABLE_ERROR",
        "NC_UNCORRECTABLE_ERROR",
        "HBM_UNCORRECTABLE_ERROR",
        "DMA_ERROR",
        "HANG_ON_COLLECTIVES",
    ],
)
def test_p67_every_known_kind_is_found_without_a_device(kind: str) -> None:
    error = parse_error(record(f"kernel: NEURON_HW_ERR={kind} affecting neuron devices"))
    assert error
    assert (error.kind, error.devices, error.proves) == (kind, frozenset(), False)


@pytest.mark.parametrize(
    "text",
    [
        "nd3: NEURON_HW_ERR=DMA_ERROR queue 7",
        "neuron:rt: nd3 NEURON_HW_ERR=DMA_ERROR engine 1",
        "NEURON_HW_ERR=DMA_ERROR on neuron3",
        "NEURON_HW_ERR=DMA_ERROR neuron3: nc 1",
        "NEURON_HW_ERR=DMA_ERROR /dev/neuron3 core 1",
        "NEURON_HW_ERR=DMA_ERROR neuron device 3, nc 1",
        "NEURON_HW_ERR=DMA_ERROR neuron_device=3 neuron_core1",
        "NEURON_HW_ERR=DMA_ERROR device_id: 3 nc_id: 1",
        "[ND 3] NEURON_HW_ERR=DMA_ERROR NC 1",
        "NEURON_HW_ERR=DMA_ERROR Device #3",
        "ND3:NC1 saw NEURON_HW_ERR=DMA_ERROR",
    ],
)
def test_p67_a_device_is_found_however_it_is_written(text: str) -> None:
    error = parse_error(record(text))
    assert error
    assert error.devices == {3}
    assert error.kind == "DMA_ERROR"
    assert error.proves


@pytest.mark.parametrize(
    "text",
    [
        "NEURON_HW_ERR=DMA_ERROR nc 3",
        "NEURON_HW_ERR=DMA_ERROR neuron_core3",
        "NEURON_HW_ERR=DMA_ERROR neuroncore 3",
        "NEURON_HW_ERR=DMA_ERROR second 3",
        "NEURON_HW_ERR=DMA_ERROR at 0000:10:1c.0, 3 times",
        "NEURON_HW_ERR=DMA_ERROR nd123",
        "NEURON_HW_ERR=DMA_ERROR nd99",
        "NEURON_HW_ERR=DMA_ERROR neuron3.example.com",
    ],
)
def test_another_number_is_no_device(text: str) -> None:
    error = parse_error(record(text))
    assert error
    assert error.devices == frozenset()


def test_several_devices_may_be_named() -> None:
    error = parse_error(record("NEURON_HW_ERR=HBM_UNCORRECTABLE_ERROR nd1: and nd12: stopped"))
    assert error
    assert error.devices == {1, 12}


def test_a_hang_that_names_a_device_proves_nothing_about_it() -> None:
    error = parse_error(record("nd3: NEURON_HW_ERR=HANG_ON_COLLECTIVES waiting"))
    assert error
    assert not error.proves


@pytest.mark.parametrize(
    "text", ["all is well", "XNEURON_HW_ERR=DMA_ERROR", "NEURON_HW_ERR=", "neuron_hw_err=DMA_ERROR"]
)
def test_other_lines_are_no_errors(text: str) -> None:
    assert parse_error(record(text)) is None


@given(st.text(max_size=300))
def test_no_line_breaks_the_reader(text: str) -> None:
    for line in (text, f"3,1,2,-;{text}", f"3,1,2,-;NEURON_HW_ERR={text}"):
        parsed = parse_record(line)
        if parsed:
            parse_error(parsed)
            tells_of_reset(parsed)


@pytest.mark.parametrize(
    ("text", "by_kernel", "told"),
    [
        ("nd3: initiating device reset request 5", True, True),
        ("nd3: reset request 5 failed", True, True),
        ("nd3: reset request 5 failed", False, False),
        ("usb 1-1: reset high-speed device", True, False),
        ("nd3: Neuron Driver Started", True, False),
    ],
)
def test_the_driver_tells_of_resets(text: str, by_kernel: bool, told: bool) -> None:  # noqa: FBT001 - data
    assert tells_of_reset(record(text, by_kernel=by_kernel)) is told


def test_records_come_out_of_whatever_pieces_were_read() -> None:
    log = b"6,1,1000000,-;one\n SUBSYSTEM=pci\n DEVICE=+pci:0000\n6,2,2000000,-;two\n"
    for size in range(1, len(log) + 1):
        splitter = RecordSplitter()
        pieces = [log[start : start + size] for start in range(0, len(log), size)]
        texts = [found.text for piece in pieces for found in splitter.feed(piece)]
        assert texts == ["one", "two"], size


def test_after_a_gap_half_a_line_is_not_completed_by_another() -> None:
    splitter = RecordSplitter()
    assert list(splitter.feed(b"6,1,1000000,-;NEURON_HW_")) == []
    splitter.drop_rest()
    assert [found.text for found in splitter.feed(b"6,9,2000000,-;ERR=DMA_ERROR\n")] == ["ERR=DMA_ERROR"]


def test_p67_the_documented_line_names_the_device_by_its_serial_number_and_not_by_the_containers_count() -> None:
    line = (
        "NEURON_HW_ERR=SRAM_UNCORRECTABLE_ERROR instance-id=i-0592464924bd45322 hostname=ip-172-31-61-252 nd-id=0 "
        "nc-id=0 serial-num=19FCDA00f5ff6eb9 action=TERMINATE_INSTANCE"
    )
    error = parse_error(record(line))
    assert error
    assert (error.kind, error.devices) == ("SRAM_UNCORRECTABLE_ERROR", frozenset())
    assert error.serial_number == "19fcda00f5ff6eb9"
    assert error.proves


@pytest.mark.parametrize("rest", ["nd-id=0 nc-id=0", "serial-num= action=NONE", "serial-num=xyz", "my-serial-num=12"])
def test_a_line_without_a_serial_number_names_none_by_it(rest: str) -> None:
    error = parse_error(record(f"NEURON_HW_ERR=DMA_ERROR {rest}"))
    assert error
    assert (error.serial_number, error.devices, error.proves) == ("", frozenset(), False)
