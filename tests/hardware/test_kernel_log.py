"""The kernel log: hardware errors in it, what is new in it, and how it is followed."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.hardware import kmsg_reader
from neuron_plugin.hardware.kernel_log import (
    KernelLog,
    KernelRecord,
    RecordSplitter,
    RingNews,
    parse_error,
    parse_record,
    read_ring,
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


NOW = 5000.0


def of(*lines: str) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def texts(records: list[KernelRecord]) -> list[str]:
    return [record.text for record in records]


def told(*rings: bytes) -> list[list[str]]:
    """What each sight of the ring tells."""
    news = RingNews()
    return [texts(news.records(each, NOW)) for each in rings]


def dated(number: int, text: str = "") -> str:
    return f"<6>[{number:5d}.000000] {text or number}"


def test_a_line_has_a_priority_a_time_and_a_text() -> None:
    lines = of("<3>[ 5678.901234] nd3: NEURON_HW_ERR=DMA_ERROR now", "<11>[  12.000001][  T42] a: [1.0] b")
    assert RingNews().records(lines, NOW) == [
        KernelRecord(5678.901234, "nd3: NEURON_HW_ERR=DMA_ERROR now", by_kernel=True),
        KernelRecord(12.000001, "a: [1.0] b", by_kernel=False),
    ]


def test_what_is_there_at_first_is_told_and_then_only_what_comes() -> None:
    assert told(of(dated(1), dated(2)), of(dated(1), dated(2)), of(dated(1), dated(2), dated(3))) == [
        ["1", "2"],
        [],
        ["3"],
    ]


def test_a_ring_that_wraps_around_tells_nothing_twice_and_leaves_nothing_out() -> None:
    ring_of_three = [of(*(dated(number) for number in range(end - 3, end))) for end in (3, 4, 6, 20)]
    assert told(*ring_of_three) == [["0", "1", "2"], ["3"], ["4", "5"], ["17", "18", "19"]]


def test_a_ring_that_was_cleared_goes_on_with_what_came_since() -> None:
    assert told(of(dated(1), dated(2)), of(), of(), of(dated(3)), of(dated(3), dated(4))) == [
        ["1", "2"],
        [],
        [],
        ["3"],
        ["4"],
    ]
    assert told(of(dated(1), dated(2)), of(dated(3)), of(dated(4))) == [["1", "2"], ["3"], ["4"]]


def test_the_rest_of_a_line_that_was_cut_off_at_the_front_is_passed_over() -> None:
    whole = of(dated(1), dated(2), dated(3))
    assert told(whole, whole[8:] + of(dated(4))) == [["1", "2", "3"], ["4"]]
    assert told(b"00] rest\n" + of(dated(2))) == [["2"]]


def test_the_same_text_again_is_another_line() -> None:
    first, again = dated(1, "nd0: NEURON_HW_ERR=DMA_ERROR"), dated(2, "nd0: NEURON_HW_ERR=DMA_ERROR")
    assert told(of(first), of(first, again)) == [["nd0: NEURON_HW_ERR=DMA_ERROR"]] * 2


@pytest.mark.parametrize("before", ["<3>", "<3>[   T12] "])
def test_without_times_what_is_new_is_dated_now_and_what_was_there_may_be_old(before: str) -> None:
    news = RingNews()
    assert news.records(of(f"{before}old"), NOW) == []
    assert news.records(of(f"{before}old", f"{before}new"), NOW) == [KernelRecord(NOW, "new", by_kernel=True)]
    assert news.records(of(f"{before}new", f"{before}new"), NOW) == [KernelRecord(NOW, "new", by_kernel=True)]


def test_without_times_a_line_after_a_clearing_is_new() -> None:
    assert told(of("<3>a"), of(), of("<3>b")) == [[], [], ["b"]]


def test_times_that_are_switched_off_make_nothing_old_new() -> None:
    assert told(of(dated(1)), of("<6>1", "<6>2"), of("<6>1", "<6>2", "<6>3")) == [["1"], [], ["3"]]


@given(sights=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 12)), max_size=8))
def test_whatever_a_ring_loses_at_its_front_each_line_it_shows_is_told_once_in_its_order(
    sights: list[tuple[int, int]],
) -> None:
    news, begin, end = RingNews(), 0, 1
    told_so_far, expected = list[str](), list[str]()
    for more, lost in sights:
        known, end = end, end + more
        begin = min(begin + lost, end)  # wrapped around, or cleared
        told_so_far += texts(news.records(of(*map(dated, range(begin, end))), NOW))
        expected += map(str, range(max(begin, known) if expected else begin, end))
    assert told_so_far == expected


def test_a_call_that_is_refused_is_an_error_with_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        """A C library without the call."""

        def __init__(self, *_arguments: object, **_options: object) -> None:
            pass

    monkeypatch.setattr(ctypes, "CDLL", Library)
    with pytest.raises(OSError, match="Function not implemented") as caught:
        read_ring()
    assert caught.value.errno == errno.ENOSYS


def _may_read() -> bool:
    try:
        read_ring()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not _may_read(), reason="syslog(2) is not allowed here")
def test_the_kernels_own_ring_is_understood() -> None:
    records = RingNews().records(read_ring(), NOW)
    assert records
    assert all(0 <= record.at <= time.clock_gettime(time.CLOCK_MONOTONIC) + 60 for record in records)


@pytest.mark.skipif(
    not (_may_read() and os.access("/dev/kmsg", os.W_OK)), reason="the kernel's log may not be written here"
)
def test_a_line_that_a_process_writes_is_new_and_not_the_kernels() -> None:
    news = RingNews()
    news.records(read_ring(), NOW)
    text = f"neuron-plugin test {os.getpid()} {time.monotonic_ns()}"
    with open("/dev/kmsg", "w", encoding="ascii") as log:  # noqa: PTH123 - a device
        log.write(f"{text}\n")
    (mine,) = [record for record in news.records(read_ring(), NOW) if record.text == text]
    assert not mine.by_kernel


DEADLINE_SECONDS = 5


class Heard:
    """What a log has told."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.troubles: list[str] = []
        self.news = asyncio.Event()

    def record(self, record: KernelRecord) -> None:
        self.texts.append(record.text)
        self.news.set()

    def trouble(self, text: str) -> None:
        if not self.troubles or self.troubles[-1] != text:
            self.troubles.append(text)
            self.news.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not condition():
                self.news.clear()
                await self.news.wait()


@asynccontextmanager
async def following(path: Path, ring: Callable[[], bytes] = lambda: b"") -> AsyncIterator[Heard]:
    heard = Heard()
    task = asyncio.create_task(KernelLog(path, heard.record, heard.trouble, ring).run(), name="log under test")
    try:
        yield heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> socket.socket:
    """The writing end of a stand-in for ``/dev/kmsg``: one record a read, and poll(2) says when."""
    reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reader.settimeout(0)
    descriptor = reader.detach()
    monkeypatch.setattr(os, "open", lambda *_arguments: descriptor)
    return writer


async def test_what_is_there_and_what_comes_is_heard(device: socket.socket) -> None:
    device.send(b"6,1,1000000,-;before\n")
    async with following(Path("/dev/kmsg")) as heard:
        await heard.until(lambda: heard.texts == ["before"])
        device.send(b"6,2,2000000,-;after\n KEY=value\n")
        await heard.until(lambda: heard.texts == ["before", "after"])
        assert heard.troubles == [""]
    device.close()


async def test_records_that_were_overwritten_do_not_end_the_reading(
    device: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_read, failures = os.read, [OSError(errno.EPIPE, "overwritten")]

    def read(descriptor: int, size: int) -> bytes:
        if failures:
            raise failures.pop()
        return really_read(descriptor, size)

    monkeypatch.setattr(os, "read", read)
    device.send(b"6,7,1000000,-;the oldest there is\n")
    async with following(Path("/dev/kmsg")) as heard:
        await heard.until(lambda: heard.texts == ["the oldest there is"])
        assert heard.troubles == [""]
    device.close()


async def test_a_long_history_lets_others_have_their_turn(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text("".join(f"6,{number},1000000,-;{'x' * 500}\n" for number in range(20_000)))
    turns = 0
    async with following(path) as heard:
        while len(heard.texts) < 20_000:
            turns += 1
            await asyncio.sleep(0)
    assert turns > 2


async def test_p70_a_log_that_is_not_there_is_named_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    async with following(path) as heard:
        await heard.until(lambda: bool(heard.troubles))
        assert heard.troubles == [
            f"{path} cannot be opened: No such file or directory: mount the host's /dev/kmsg here"
        ]


async def test_p70_a_log_that_may_not_be_read_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kmsg"
    path.touch()

    def refuse(_descriptor: int, _size: int) -> bytes:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "read", refuse)
    async with following(path) as heard:
        await heard.until(lambda: bool(heard.troubles))
        (trouble,) = heard.troubles
        assert trouble.startswith(f"{path} cannot be read: Operation not permitted; ")
        assert "CAP_SYSLOG" in trouble
        assert "device cgroup" in trouble


async def test_a_log_that_comes_late_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kmsg_reader, "RETRY_SECONDS", 0.01)
    path = tmp_path / "kmsg"
    async with following(path) as heard:
        await heard.until(lambda: bool(heard.troubles))
        path.write_text("6,1,1000000,-;at last\n")
        await heard.until(lambda: heard.texts == ["at last"])
        assert heard.troubles[-1] == ""


async def test_a_plain_file_that_grows_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kmsg_reader, "LOOK_SECONDS", 0.01)
    path = tmp_path / "kmsg"
    path.touch()
    async with following(path) as heard:
        await heard.until(lambda: heard.troubles == [""])
        with path.open("a") as log:
            log.write("6,1,1000000,-;half")
            log.flush()
            await asyncio.sleep(0.03)
            log.write(" and half\n")
        await heard.until(lambda: heard.texts == ["half and half"])


async def test_a_log_that_has_to_be_opened_anew_tells_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kmsg_reader, "RETRY_SECONDS", 0.01)
    path = tmp_path / "kmsg"
    path.write_text("6,1,1000000,-;first\n")
    really_read, failures = os.read, [OSError(errno.EIO, "Input/output error")]

    def read(descriptor: int, size: int) -> bytes:
        data = really_read(descriptor, size)
        if not data and failures:
            raise failures.pop()
        return data

    monkeypatch.setattr(os, "read", read)
    monkeypatch.setattr(kmsg_reader, "LOOK_SECONDS", 0.01)
    async with following(path) as heard:
        await heard.until(lambda: heard.troubles == [f"{path} cannot be read: Input/output error", ""])
        with path.open("a") as log:
            log.write("6,2,2000000,-;second\n")
        await heard.until(lambda: heard.texts == ["first", "second"])


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The kernel's own log, as it is in a container: there, and not to be opened."""
    monkeypatch.setattr(kmsg_reader, "RING_SECONDS", 0.01)
    monkeypatch.setattr(kmsg_reader, "RETRY_SECONDS", 0.01)
    really_open = os.open

    def refuse(path: str | Path, flags: int, mode: int = 0o777) -> int:
        if path == Path("/dev/kmsg"):
            raise PermissionError(errno.EPERM, "Operation not permitted")
        return really_open(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    return Path("/dev/kmsg")


async def test_p67_a_log_that_may_not_be_opened_is_asked_for_by_syslog(closed: Path) -> None:
    rings = [b"<3>[    1.000000] before\n", b"<3>[    1.000000] before\n<3>[    2.000000] after\n"]
    async with following(closed, lambda: rings.pop(0) if len(rings) > 1 else rings[0]) as heard:
        await heard.until(lambda: heard.texts == ["before", "after"])
        assert heard.troubles == [""]


async def test_p70_where_neither_way_is_open_both_are_named(closed: Path) -> None:
    def refuse() -> bytes:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    async with following(closed, refuse) as heard:
        await heard.until(lambda: bool(heard.troubles))
        (trouble,) = heard.troubles
        assert trouble == (
            "/dev/kmsg cannot be opened: Operation not permitted, and syslog(2) says: Operation not permitted; "
            "give this process CAP_SYSLOG (devicePlugin.kernelLog in the chart); with the device 1:11 in its device "
            "cgroup, too, the file is read"
        )


async def test_p70_a_ring_that_fails_is_named_and_asked_again_and_tells_nothing_twice(closed: Path) -> None:
    answers: list[bytes | OSError] = [b"<3>[    1.000000] a\n", OSError(errno.EPERM, "no"), b"<3>[    1.000000] a\n"]
    last = b"<3>[    1.000000] a\n<3>[    2.000000] b\n"

    def ring() -> bytes:
        answer = answers.pop(0) if answers else last
        if isinstance(answer, OSError):
            raise answer
        return answer

    async with following(closed, ring) as heard:
        await heard.until(lambda: heard.texts == ["a", "b"])
        assert len(heard.troubles) == 3
        assert heard.troubles[::2] == ["", ""]


async def test_a_simulated_machine_never_hears_the_real_ones_log(tmp_path: Path) -> None:
    def ring() -> bytes:
        raise AssertionError("the ring is this machine's")

    async with following(tmp_path / "kmsg", ring) as heard:
        await heard.until(lambda: bool(heard.troubles))


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="the kernel's own log may not be read here")
async def test_the_kernels_own_log_is_understood() -> None:
    async with following(Path("/dev/kmsg")) as heard:
        await heard.until(lambda: bool(heard.texts or "".join(heard.troubles)))
        assert not "".join(heard.troubles) or "CAP_SYSLOG" in heard.troubles[-1]
