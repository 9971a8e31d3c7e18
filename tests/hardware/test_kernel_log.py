"""The kernel log: hardware errors in it, what is new in it, and how it is followed."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.hardware import kernel_log
from neuron_plugin.hardware.kernel_log import (
    PERIODS,
    KernelLog,
    KernelRecord,
    LogPeriods,
    NewLines,
    parse_error,
    parse_line,
    read_syslog,
)


def parse_record(line: str) -> KernelRecord | None:
    return parse_line(line.encode(), None)


RECORDS = {
    "3,1234,5678901234,-;nd3: NEURON_HW_ERR=DMA_ERROR now": (5678.901234, "nd3: NEURON_HW_ERR=DMA_ERROR now", True),
    # A text may hold what separates.
    "6,1,2,c,caller=T1;a;b": (0.000002, "a;b", True),
    "6,1,2,-;a;b": (0.000002, "a;b", True),
    # p67: the facility distinguishes a process from the kernel.
    **{f"{priority},1,2,-;x": (0.000002, "x", True) for priority in (0, 3, 7)},
    **{f"{priority},1,2,-;x": (0.000002, "x", False) for priority in (8, 11, 30)},
    **dict.fromkeys(("", " SUBSYSTEM=pci", "no record", "a,b,c,-;text", "3,1;text")),
}
"""Lines of /dev/kmsg; time, text, and whether the kernel wrote it."""


@pytest.mark.parametrize(("line", "expected"), RECORDS.items())
def test_p67_a_record_has_a_time_a_text_and_an_author(line: str, expected: tuple[float, str, bool] | None) -> None:
    found = parse_record(line)
    assert (found and (found.at, found.text, found.by_kernel)) == expected


OURS = "NEURON_HW_ERR=DMA_ERROR"
NONE = "DMA_ERROR"
ERRORS = {
    # The patterns that NPD and EKS's agent look for, and the agent's own test line.
    **{
        f"kernel: NEURON_HW_ERR={kind} affecting neuron devices": kind
        for kind in (
            *("SRAM_UNCORRECTABLE_ERROR", "NC_UNCORRECTABLE_ERROR", "HBM_UNCORRECTABLE_ERROR", "DMA_ERROR"),
            "HANG_ON_COLLECTIVES",
        )
    },
    # However a device is written ...
    **dict.fromkeys(
        (
            *(f"nd3: {OURS} queue 7", f"neuron:rt: nd3 {OURS} engine 1", f"{OURS} on neuron3", f"{OURS} neuron3: nc 1"),
            *(f"{OURS} /dev/neuron3 core 1", f"{OURS} neuron device 3, nc 1", f"{OURS} neuron_device=3 neuron_core1"),
            *(f"{OURS} device_id: 3 nc_id: 1", f"[ND 3] {OURS} NC 1", f"{OURS} Device #3", f"ND3:NC1 saw {OURS}"),
        ),
        "DMA_ERROR 3 proves",
    ),
    # ... another number is none.
    **dict.fromkeys(
        (
            *(f"{OURS} nc 3", f"{OURS} neuron_core3", f"{OURS} neuroncore 3", f"{OURS} second 3", f"{OURS} nd123"),
            *(f"{OURS} at 0000:10:1c.0, 3 times", f"{OURS} nd99", f"{OURS} neuron3.example.com"),
        ),
        NONE,
    ),
    "NEURON_HW_ERR=HBM_UNCORRECTABLE_ERROR nd1: and nd12: stopped": "HBM_UNCORRECTABLE_ERROR 1,12 proves",
    "nd3: NEURON_HW_ERR=HANG_ON_COLLECTIVES waiting": "HANG_ON_COLLECTIVES 3",
    # The documented line names the device by its serial number; nd-id is the container's count.
    "NEURON_HW_ERR=SRAM_UNCORRECTABLE_ERROR instance-id=i-0592464924bd45322 hostname=ip-172-31-61-252 nd-id=0 nc-id=0 "
    "serial-num=19FCDA00f5ff6eb9 action=TERMINATE_INSTANCE": "SRAM_UNCORRECTABLE_ERROR #19fcda00f5ff6eb9 proves",
    **dict.fromkeys(
        (
            *(f"{OURS} nd-id=0 nc-id=0", f"{OURS} serial-num= action=NONE", f"{OURS} serial-num=xyz"),
            f"{OURS} my-serial-num=12",
        ),
        NONE,
    ),
    **dict.fromkeys(("all is well", f"X{OURS}", "NEURON_HW_ERR=", "neuron_hw_err=DMA_ERROR"), ""),
}
"""Texts of the kernel; the kind of error, its devices or serial number, and whether it proves something of them."""


@pytest.mark.parametrize(("text", "expected"), ERRORS.items())
def test_p67_which_error_a_line_tells_of_and_of_which_device(text: str, expected: str) -> None:
    error, said = parse_error(KernelRecord(1.0, text, by_kernel=True)), ""
    if error:
        devices, serial = ",".join(map(str, sorted(error.devices))), f"#{error.serial_number}".rstrip("#")
        said = " ".join(filter(None, (error.kind, devices, serial, "proves" * error.proves)))
    assert said == expected


@given(st.text(max_size=300))
def test_no_line_breaks_the_reader(text: str) -> None:
    for line in (text, f"3,1,2,-;{text}", f"3,1,2,-;NEURON_HW_ERR={text}"):
        parsed = parse_record(line)
        if parsed:
            parse_error(parsed)


NOW = 5000.0


def of(*lines: str) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def texts(records: list[KernelRecord]) -> list[str]:
    return [record.text for record in records]


def dated(number: int, text: str = "") -> str:
    return f"<6>[{number:5d}.000000] {text or number}"


def test_a_line_has_a_priority_a_time_and_a_text() -> None:
    lines = of("<3>[ 5678.901234] nd3: NEURON_HW_ERR=DMA_ERROR now", "<11>[  12.000001][  T42] a: [1.0] b")
    assert NewLines().records(lines, NOW) == [
        KernelRecord(5678.901234, "nd3: NEURON_HW_ERR=DMA_ERROR now", by_kernel=True),
        KernelRecord(12.000001, "a: [1.0] b", by_kernel=False),
    ]


DMA = "nd0: NEURON_HW_ERR=DMA_ERROR"
SECOND = of("6,1,1000000,-;one", " SUBSYSTEM=pci", " DEVICE=+pci:0000", "6,2,2000000,-;two")
WHOLE = of(dated(1), dated(2), dated(3))
RINGS: dict[str, tuple[list[bytes], list[list[str]]]] = {
    "what is there at first is news, and then only what comes": (
        [of(dated(1), dated(2)), of(dated(1), dated(2)), WHOLE],
        [["1", "2"], [], ["3"]],
    ),
    "a ring that wraps around repeats nothing and leaves nothing out": (
        [of(*(dated(number) for number in range(end - 3, end))) for end in (3, 4, 6, 20)],
        [["0", "1", "2"], ["3"], ["4", "5"], ["17", "18", "19"]],
    ),
    "a ring that was cleared goes on with what came since": (
        [of(dated(1), dated(2)), of(), of(), of(dated(3)), of(dated(3), dated(4))],
        [["1", "2"], [], [], ["3"], ["4"]],
    ),
    "one that was cleared unseen, too": (
        [of(dated(1), dated(2)), of(dated(3)), of(dated(4))],
        [["1", "2"], ["3"], ["4"]],
    ),
    "the rest of a line that was cut off at the front": ([WHOLE, WHOLE[8:] + of(dated(4))], [["1", "2", "3"], ["4"]]),
    "such a rest at first": ([b"00] rest\n" + of(dated(2))], [["2"]]),
    "the same text again is another line": ([of(dated(1, DMA)), of(dated(1, DMA), dated(2, DMA))], [[DMA], [DMA]]),
    "without times what was there may be old": ([of("<3>a"), of("<3>a", "<3>b")], [[], ["b"]]),
    "without times a line after a clearing is new": ([of("<3>a"), of(), of("<3>b")], [[], [], ["b"]]),
    "lines of a dictionary after a record": ([SECOND], [["one", "two"]]),
    "half a record waits for its end": ([b"6,1,1000000,-;NEURON_HW_", of(f"6,1,1000000,-;{OURS}")], [[], [OURS]]),
}
"""What the ring shows at each look, and what of it is new."""


@pytest.mark.parametrize(("rings", "news"), RINGS.values(), ids=RINGS)
def test_what_is_new_in_the_ring(rings: list[bytes], news: list[list[str]]) -> None:
    lines = NewLines()
    assert [texts(lines.records(each, NOW)) for each in rings] == news


@pytest.mark.parametrize("before", ["<3>", "<3>[   T12] "])
def test_without_times_what_is_new_is_dated_now_and_what_was_there_may_be_old(before: str) -> None:
    news = NewLines()
    assert news.records(of(f"{before}old"), NOW) == []
    assert news.records(of(f"{before}old", f"{before}new"), NOW) == [KernelRecord(NOW, "new", by_kernel=True)]
    assert news.records(of(f"{before}new", f"{before}new"), NOW) == [KernelRecord(NOW, "new", by_kernel=True)]


@given(sights=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 12)), max_size=8))
def test_whatever_a_ring_loses_at_its_front_each_line_it_shows_is_news_once_in_its_order(
    sights: list[tuple[int, int]],
) -> None:
    news, begin, end = NewLines(), 0, 1
    found_so_far, expected = list[str](), list[str]()
    for more, lost in sights:
        known, end = end, end + more
        begin = min(begin + lost, end)  # wrapped around, or cleared
        found_so_far += texts(news.records(of(*map(dated, range(begin, end))), NOW))
        expected += map(str, range(max(begin, known) if expected else begin, end))
    assert found_so_far == expected


def test_a_call_that_is_refused_is_an_error_with_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        """A C library without the call."""

        def __init__(self, *_arguments: object, **_options: object) -> None:
            pass

    monkeypatch.setattr(ctypes, "CDLL", Library)
    with pytest.raises(OSError, match="Function not implemented") as caught:
        read_syslog()
    assert caught.value.errno == errno.ENOSYS


def _may_read() -> bool:
    try:
        read_syslog()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not _may_read(), reason="syslog(2) is not allowed here")
def test_the_kernels_own_ring_is_understood() -> None:
    records = NewLines().records(read_syslog(), NOW)
    assert records
    assert all(0 <= record.at <= time.clock_gettime(time.CLOCK_MONOTONIC) + 60 for record in records)


@pytest.mark.skipif(
    not (_may_read() and os.access("/dev/kmsg", os.W_OK)), reason="the kernel's log may not be written here"
)
def test_a_line_that_a_process_writes_is_new_and_not_the_kernels() -> None:
    news = NewLines()
    news.records(read_syslog(), NOW)
    text = f"neuron-plugin test {os.getpid()} {time.monotonic_ns()}"
    with open("/dev/kmsg", "w", encoding="ascii") as log:  # noqa: PTH123 - a device
        log.write(f"{text}\n")
    (mine,) = [record for record in news.records(read_syslog(), NOW) if record.text == text]
    assert not mine.by_kernel


DEADLINE_SECONDS = 5


class Followed:
    """A log that is followed, and what was news in it: the kinds of its errors, and each change of its problem."""

    def __init__(self, log: KernelLog) -> None:
        self.log = log
        self.kinds: list[str] = []
        self.problems: list[str] = []
        self.news = asyncio.Event()

    async def run(self) -> None:
        async for news in self.log.news():
            self.kinds += [error.kind for error in news]
            if self.problems[-1:] != [self.log.problem]:
                self.problems.append(self.log.problem)
            self.news.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not condition():
                self.news.clear()
                await self.news.wait()


@asynccontextmanager
async def following(path: Path) -> AsyncIterator[Followed]:
    followed = Followed(KernelLog(path, LogPeriods(file=0.01, syslog=0.01, retry=0.01)))
    task = asyncio.create_task(followed.run(), name="log under test")
    try:
        yield followed
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


KMSG = Path("/dev/kmsg")
Answer = bytes | OSError


def syslog(monkeypatch: pytest.MonkeyPatch, *answers: Answer) -> None:
    """Let syslog(2) answer each of these in turn, and the last one from then on."""
    left = list(answers)

    def read() -> bytes:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(kernel_log, "read_syslog", read)


def error_line(seconds: int, kind: str) -> str:
    return f"<3>[{seconds:5d}.000000] nd1: NEURON_HW_ERR={kind} on queue 3"


@pytest.mark.looptime
async def test_a_log_with_nothing_new_is_no_news(monkeypatch: pytest.MonkeyPatch) -> None:
    syslog(monkeypatch, of(dated(1)), of(dated(1), dated(2)), of(dated(1), dated(2), error_line(3, "A_ERROR")))
    news = aiter(KernelLog(KMSG).news())
    assert await anext(news) == ()  # the first: the log can be read
    begun = asyncio.get_running_loop().time()
    assert [error.kind for error in await anext(news)] == ["A_ERROR"]
    assert asyncio.get_running_loop().time() - begun >= 2 * PERIODS.syslog


async def test_p83_a_long_history_does_not_hold_the_loop(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text("".join(f"6,{number},1000000,-;{'x' * 500}\n" for number in range(20_000)) + ERROR_RECORD)
    turns = 0
    async with following(path) as log:
        while not log.kinds:
            turns += 1
            await asyncio.sleep(0)
    assert turns > 2


ERROR_RECORD = "3,1,1000000,-;nd1: NEURON_HW_ERR=DMA_ERROR\n"


async def test_p70_a_log_that_may_not_be_read_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    syslog(monkeypatch, PermissionError(errno.EPERM, "Operation not permitted"))
    async with following(KMSG) as log:
        await log.until(lambda: bool(log.problems))
        (problem,) = log.problems
        assert problem == (
            "the kernel log cannot be read by syslog(2): Operation not permitted; "
            "give this process CAP_SYSLOG (devicePlugin.kernelLog in the chart)"
        )


async def test_p70_a_log_that_is_not_there_is_named_and_read_when_it_comes(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    async with following(path) as log:
        await log.until(lambda: bool(log.problems))
        assert log.problems == [f"{path} cannot be read: No such file or directory"]
        path.write_text(ERROR_RECORD)
        await log.until(lambda: log.kinds == ["DMA_ERROR"])
        assert log.problems[-1] == ""


async def test_a_plain_file_that_grows_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.touch()
    async with following(path) as log:
        await log.until(lambda: log.problems == [""])
        with path.open("a") as file:
            file.write("3,1,1000000,-;nd1: NEURON_HW_ERR=DMA")
            file.flush()
            await asyncio.sleep(0.03)
            file.write("_ERROR\n")
        await log.until(lambda: log.kinds == ["DMA_ERROR"])


async def test_p67_p70_a_log_that_fails_is_named_and_read_again_and_repeats_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = error_line(1, "A_ERROR"), error_line(2, "B_ERROR")
    syslog(monkeypatch, of(first), OSError(errno.EIO, "Input/output error"), of(first), of(first, second))
    async with following(KMSG) as log:
        await log.until(lambda: log.kinds == ["A_ERROR", "B_ERROR"])
        assert log.problems == ["", "the kernel log cannot be read by syslog(2): Input/output error", ""]


async def test_a_simulated_machine_never_reads_the_real_ones_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read() -> bytes:
        raise AssertionError("this machine's own log")

    monkeypatch.setattr(kernel_log, "read_syslog", read)
    (tmp_path / "kmsg").touch()
    async with following(tmp_path / "kmsg") as log:
        await log.until(lambda: bool(log.problems))


async def test_a_character_device_is_the_kernels_own_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the host's, mounted at another path."""
    syslog(monkeypatch, of(error_line(1, "A_ERROR")))
    assert [error.kind for error in await anext(aiter(KernelLog(Path("/dev/null")).news()))] == ["A_ERROR"]
