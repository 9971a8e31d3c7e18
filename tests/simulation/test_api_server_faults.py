from __future__ import annotations

import pytest

from neuron_plugin.simulation.api_server_faults import Fault, Faults, Match


@pytest.mark.parametrize(
    ("match", "meets"),
    [
        (Match(), True),
        (Match(method="GET"), True),
        (Match(method="POST"), False),
        (Match(path="/pods$"), True),
        (Match(path="/binding$"), False),
        (Match(watch=True), True),
        (Match(watch=False), False),
        (Match(method="GET", path="v1", watch=True), True),
    ],
)
def test_a_match_says_which_requests(match: Match, meets: bool) -> None:  # noqa: FBT001 - a table's column
    assert match.meets("GET", "/api/v1/pods", watch=True) is meets


def test_without_faults_nothing_happens() -> None:
    assert Faults().take("GET", "/", watch=False) is None


def test_a_fault_is_used_up() -> None:
    faults = Faults()
    faults.add(Fault(times=2, status=500))
    taken = [faults.take("GET", "/", watch=False) for _ in range(3)]
    assert [fault.status if fault else None for fault in taken] == [500, 500, None]


def test_faults_happen_in_their_order() -> None:
    faults = Faults()
    for status in (500, 503):
        faults.add(Fault(status=status))
    taken = [faults.take("GET", "/", watch=False) for _ in range(2)]
    assert [fault.status for fault in taken if fault] == [500, 503]


def test_a_fault_waits_for_the_request_it_is_meant_for() -> None:
    faults = Faults()
    faults.add(Fault(Match(method="POST"), status=500))
    assert faults.take("GET", "/", watch=False) is None
    assert faults.take("POST", "/", watch=False) is not None


def test_what_was_cleared_does_not_happen() -> None:
    faults = Faults()
    faults.add(Fault(times=9))
    faults.clear()
    assert faults.take("GET", "/", watch=False) is None
