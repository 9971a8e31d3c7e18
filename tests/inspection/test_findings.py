from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.allocation import parse_ids
from neuron_plugin.inspection.findings import plural, ranges


@pytest.mark.parametrize(
    ("ids", "text"),
    [((), "-"), ((3,), "3"), ((1, 2), "1-2"), ((0, 1, 2, 3, 8), "0-3,8"), ((5, 1, 3), "1,3,5"), ((2, 2, 3), "2-3")],
)
def test_runs_of_ids_are_joined(ids: tuple[int, ...], text: str) -> None:
    assert ranges(ids) == text


@given(st.sets(st.integers(0, 200), min_size=1))
def test_ranges_read_back_as_the_same_ids(ids: set[int]) -> None:
    assert set(parse_ids(ranges(ids))) == ids


def test_one_is_no_plural() -> None:
    assert [plural(count, "device") for count in (0, 1, 2)] == ["0 devices", "1 device", "2 devices"]
