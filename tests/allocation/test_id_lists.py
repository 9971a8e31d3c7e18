"""Id lists are read in any form and written in one."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.allocation.resources import HIGHEST_ID, IdListError, format_ids, parse_ids, ranges

id_sets = st.sets(st.integers(0, HIGHEST_ID), min_size=1, max_size=200)


@given(id_sets)
def test_p52_what_is_written_reads_back(ids: set[int]) -> None:
    assert parse_ids(format_ids(ids)) == tuple(sorted(ids))


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 6)), min_size=1, max_size=5),
    st.randoms(use_true_random=False),
)
def test_ranges_and_single_ids_in_any_order_give_the_same_ids(
    steps: list[tuple[int, int]], shuffler: random.Random
) -> None:
    parts: list[str] = []
    expected: list[int] = []
    next_free = 0
    for gap, length in steps:
        first = next_free + gap
        parts.append(f"{first}-{first + length}" if length else str(first))
        expected += range(first, first + length + 1)
        next_free = first + length + 1
    shuffler.shuffle(parts)
    assert parse_ids(",".join(parts)) == tuple(expected)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("2,3", (2, 3)),
        ("3,2", (2, 3)),
        ("0", (0,)),
        ("0-3", (0, 1, 2, 3)),
        ("0-3,8", (0, 1, 2, 3, 8)),
        (" 2 , 3 ", (2, 3)),
        ("7-7", (7,)),
        ("02", (2,)),
        ("10,9,2", (2, 9, 10)),
        ("4095", (4095,)),
    ],
)
def test_lists_that_can_be_read(text: str, ids: tuple[int, ...]) -> None:
    assert parse_ids(text) == ids


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is no id: expected decimal ids"),
        (",", "'' is no id"),
        ("1,", "'' is no id"),
        ("a", "'a' is no id"),
        ("-1", "'-1' is no id"),
        ("1-", "'1-' is no id"),
        ("1-2-3", "'1-2-3' is no id"),
        ("1 2", "'1 2' is no id"),
        ("1.0", "'1.0' is no id"),
        ("+1", r"'\+1' is no id"),
        ("٣", "'٣' is no id"),
        ("²", "'²' is no id"),
        ("3-2", "the range '3-2' runs backwards"),
        ("2,2", "the id 2 is twice in the list"),
        ("0-5,3", "the id 3 is twice in the list"),
        ("4096", "the id 4096 is above 4095"),
        ("0-4096", "the id 4096 is above 4095"),
        ("99999", "'99999' is no id"),
    ],
)
def test_lists_that_cannot_be_read_say_which_part(text: str, message: str) -> None:
    with pytest.raises(IdListError, match=message):
        parse_ids(text)


@given(st.text(alphabet="0123456789,-| \t\n٣x", max_size=40))
def test_any_text_gives_ascending_ids_or_the_typed_error(text: str) -> None:
    try:
        ids = parse_ids(text)
    except IdListError:
        return
    assert list(ids) == sorted(set(ids))
    assert ids


@pytest.mark.parametrize("text", ["9" * 10**6, "0-4095," * 9_000, "0," * 10**6, "-" * 60_000, "1" + " " * 10**6])
def test_huge_texts_are_refused_without_effort(text: str) -> None:
    with pytest.raises(IdListError) as caught:
        parse_ids(text)
    assert len(str(caught.value)) < 200


def test_a_text_of_the_greatest_length_is_still_read() -> None:
    assert parse_ids("7".rjust(65_536)) == (7,)
    with pytest.raises(IdListError, match="a list of 65537 characters, expected at most 65536"):
        parse_ids("7".rjust(65_537))


def test_t24_numbers_are_written_in_numeric_order() -> None:
    assert format_ids({10, 9, 11, 2}) == "2,9,10,11"
    assert format_ids(()) == ""


@pytest.mark.parametrize(
    ("ids", "text"),
    [((), "-"), ((3,), "3"), ((1, 2), "1-2"), ((0, 1, 2, 3, 8), "0-3,8"), ((5, 1, 3), "1,3,5"), ((2, 2, 3), "2-3")],
)
def test_runs_of_ids_are_joined(ids: tuple[int, ...], text: str) -> None:
    assert ranges(ids) == text


@given(st.sets(st.integers(0, 200), min_size=1))
def test_ranges_read_back_as_the_same_ids(ids: set[int]) -> None:
    assert set(parse_ids(ranges(ids))) == ids
