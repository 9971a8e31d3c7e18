"""What is new in the kernel's ring, however it wraps, is cleared or is dated; and the real one of this machine."""

from __future__ import annotations

import ctypes
import errno
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.hardware.kmsg import KernelRecord
from neuron_plugin.hardware.ring import RingNews, read_ring

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
