from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_plugin.kubelet.advertisement import Advertisement
from neuron_plugin.kubelet.devices import (
    MalformedRequestError,
    RefusalError,
    UnhealthyDeviceError,
    UnknownDeviceError,
    in_numeric_order,
)
from neuron_plugin.kubelet.requests import PreferenceRequest, checked_ids, preferred_ids
from tests.kubelet.fakes import CORE, FakeHandler, devices

EDITION = Advertisement(devices(12, 5)).latest


def request(available: str, must_include: str = "", size: int = 2) -> PreferenceRequest:
    return PreferenceRequest(tuple(available.split()), tuple(must_include.split()), size)


@st.composite
def preference_requests(draw: st.DrawFn) -> PreferenceRequest:
    available = draw(st.lists(st.integers(0, 200).map(str), unique=True, min_size=1, max_size=40))
    must = draw(st.lists(st.sampled_from(available), unique=True))
    return PreferenceRequest(tuple(available), tuple(must), draw(st.integers(len(must), len(available))))


@given(preference_requests())
def test_p29_the_fallback_is_an_answer_the_kubelet_takes_exactly(demand: PreferenceRequest) -> None:
    assert demand.fault_of(demand.fallback()) is None


def test_the_fallback_keeps_what_it_must_and_adds_the_lowest() -> None:
    assert request("10 9 2 11", "10", size=3).fallback() == ["2", "9", "10"]


def test_the_fallback_of_too_few_is_all_there_is() -> None:
    assert request("3 1", size=5).fallback() == ["1", "3"]


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (["1"], "names 1 ids, expected 2"),
        (["1", "2", "3"], "names 3 ids, expected 2"),
        (["1", "1"], "names an id twice"),
        (["1", "7"], "names 7, which the kubelet does not offer"),
        (["2", "3"], "leaves out 1, which the kubelet has already taken"),
        (["1", "3"], None),
    ],
)
def test_p29_an_answer_the_kubelet_would_not_take_exactly_is_a_fault(answer: list[str], fault: str | None) -> None:
    assert request("1 2 3", "1").fault_of(answer) == fault


async def ask(handler: FakeHandler, demand: PreferenceRequest, deadline: float = 5.0) -> tuple[list[str], str | None]:
    answer = await preferred_ids(handler, CORE, demand, deadline)
    return list(answer.ids), answer.fault


async def test_the_handlers_choice_is_answered() -> None:
    assert await ask(FakeHandler(), request("3 2 1")) == (["1", "2"], None)


async def test_p33_an_error_inside_becomes_a_valid_answer_with_its_reason() -> None:
    async def broken(*_: object) -> Sequence[str]:
        raise ZeroDivisionError("no devices")

    ids, fault = await ask(FakeHandler(prefer=broken), request("3 2 1", "3"))
    assert ids == ["1", "3"]
    assert fault == "failed: ZeroDivisionError: no devices"


async def test_p33_a_hung_choice_is_replaced_at_the_deadline() -> None:
    async def hung(*_: object) -> Sequence[str]:
        await asyncio.Event().wait()
        return ()

    ids, fault = await ask(FakeHandler(prefer=hung), request("3 2 1"), deadline=0.01)
    assert ids == ["1", "2"]
    assert fault == "took longer than 0.01 s"


async def test_a_wrong_choice_is_replaced() -> None:
    async def everything(available: Sequence[str], *_: object) -> Sequence[str]:
        return available

    assert await ask(FakeHandler(prefer=everything), request("3 2 1")) == (["1", "2"], "names 3 ids, expected 2")


async def test_a_cancelled_call_is_cancelled_and_not_answered() -> None:
    started = asyncio.Event()

    async def hung(*_: object) -> Sequence[str]:
        started.set()
        await asyncio.Event().wait()
        return ()

    task = asyncio.create_task(ask(FakeHandler(prefer=hung), request("3 2 1")))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(
    ("containers", "kind", "text"),
    [
        ([], MalformedRequestError, "names no device ids"),
        ([["1"], []], MalformedRequestError, "names no device ids"),
        ([["1", "10", "10", "9", "9"]], MalformedRequestError, "names 9, 10 twice"),
        ([["1"], ["1"]], MalformedRequestError, "names 1 twice"),
        ([["1", "77", "x"]], UnknownDeviceError, "has no device 77, x"),
        ([["1", "5"]], UnhealthyDeviceError, "device 5: unhealthy"),
    ],
)
def test_p38_a_bad_request_is_refused_and_says_which(
    containers: list[list[str]], kind: type[RefusalError], text: str
) -> None:
    with pytest.raises(kind, match=text) as refusal:
        checked_ids(CORE, EDITION, containers)
    assert CORE in str(refusal.value)


def test_p39_ids_come_back_container_by_container_in_numeric_order() -> None:
    assert checked_ids(CORE, EDITION, [["11", "2"], ["10", "9"]]) == [["2", "11"], ["9", "10"]]


@given(st.lists(st.text(), unique=True))
def test_any_text_has_a_place_in_the_order(ids: list[str]) -> None:
    ordered = in_numeric_order(ids)
    assert sorted(ordered) == sorted(ids)
    assert in_numeric_order(reversed(ordered)) == ordered


def test_numbers_come_before_other_texts() -> None:
    assert in_numeric_order(["b", "10", "a", "9"]) == ["9", "10", "a", "b"]
