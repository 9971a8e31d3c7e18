"""What the API server is told, in spite of everything it does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

import msgspec
import pytest

from neuron_plugin.cluster import ApiRequest, Response, UnreachableError
from neuron_plugin.plugin import outbox as module
from neuron_plugin.plugin.outbox import Outbox


@dataclass
class FakeApi:
    """Answers each path from its list of statuses, then 200; 0 is silence."""

    answers: dict[str, list[int]] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.gate.set()

    async def request(self, request: ApiRequest, *, timeout_seconds: float) -> Response:
        assert timeout_seconds == module.TIMEOUT_SECONDS
        self.seen.append(f"{request.path}?{request.query.get('v', '')}".rstrip("?"))
        await self.gate.wait()
        status = answers.pop(0) if (answers := self.answers.get(request.path)) else 200
        if not status:
            raise UnreachableError("PATCH", request.path, "no answer", may_have_arrived=True)
        return Response(status, msgspec.json.encode({"reason": "R", "message": "m"}))

    def stream(
        self, request: ApiRequest, *, silence_seconds: float
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        raise AssertionError(request, silence_seconds)


def asked(path: str, version: str = "") -> ApiRequest:
    return ApiRequest("PATCH", path, {"v": version} if version else {})


@asynccontextmanager
async def running(outbox: Outbox, api: FakeApi) -> AsyncIterator[None]:
    task = asyncio.create_task(outbox.run(api))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(api: FakeApi, *seen: str) -> None:
    async with asyncio.timeout(5):
        while api.seen != list(seen):
            await asyncio.sleep(0.001)
    await asyncio.sleep(0)


@pytest.fixture
def outbox(monkeypatch: pytest.MonkeyPatch) -> Outbox:
    monkeypatch.setattr(module, "FIRST_PAUSE_SECONDS", 0.002)
    monkeypatch.setattr(module, "LONGEST_PAUSE_SECONDS", 0.002)
    monkeypatch.setattr(module, "FIRST_PERMISSION_SECONDS", 0.002)
    monkeypatch.setattr(module, "LONGEST_PERMISSION_SECONDS", 0.002)
    return Outbox(chance=lambda: 0.0)


async def test_what_was_put_before_anybody_listened_is_sent_in_order(outbox: Outbox) -> None:
    api = FakeApi()
    outbox.put("a", asked("/a"))
    outbox.put("b", asked("/b"))
    async with running(outbox, api):
        await until(api, "/a", "/b")
        outbox.put("c", asked("/c"))
        await until(api, "/a", "/b", "/c")


async def test_a_newer_word_replaces_one_that_was_not_sent(outbox: Outbox) -> None:
    api = FakeApi()
    outbox.put("a", asked("/a", "1"))
    outbox.put("a", asked("/a", "2"))
    async with running(outbox, api):
        await until(api, "/a?2")


async def test_a_newer_word_that_comes_while_the_older_is_sent_is_sent_too(outbox: Outbox) -> None:
    api = FakeApi()
    api.gate.clear()
    outbox.put("a", asked("/a", "1"))
    async with running(outbox, api):
        await until(api, "/a?1")
        outbox.put("a", asked("/a", "2"))
        api.gate.set()
        await until(api, "/a?1", "/a?2")


@pytest.mark.parametrize("status", [0, 429, 500, 503])
async def test_silence_and_passing_trouble_are_no_answer(outbox: Outbox, status: int) -> None:
    api = FakeApi({"/a": [status, status]})
    outbox.put("a", asked("/a"))
    async with running(outbox, api):
        await until(api, "/a", "/a", "/a")


async def test_one_subjects_trouble_keeps_no_other_waiting(outbox: Outbox) -> None:
    api = FakeApi({"/a": [500] * 3})
    outbox.put("a", asked("/a"))
    outbox.put("b", asked("/b"))
    async with running(outbox, api):
        await until(api, "/a", "/b", "/a", "/a", "/a")


@pytest.mark.parametrize(("status", "level"), [(422, logging.WARNING), (404, logging.DEBUG), (409, logging.DEBUG)])
async def test_a_refusal_is_final_and_loud_unless_the_pod_is_only_gone(
    outbox: Outbox, caplog: pytest.LogCaptureFixture, status: int, level: int
) -> None:
    caplog.set_level(logging.DEBUG, logger="neuron_plugin.plugin.outbox")
    api = FakeApi({"/a": [status]})
    outbox.put("a", asked("/a"))
    outbox.put("b", asked("/b"))
    async with running(outbox, api):
        await until(api, "/a", "/b")
    (told,) = [each for each in caplog.records if each.message == "the API server refused"]
    assert told.levelno == level


@pytest.mark.parametrize("status", [401, 403])
async def test_what_is_not_permitted_is_told_once_and_sent_when_the_rights_have_come(
    outbox: Outbox, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    caplog.set_level(logging.INFO, logger="neuron_plugin.plugin.outbox")
    api = FakeApi({"/a": [status] * 3})
    outbox.put("a", asked("/a"))
    async with running(outbox, api):
        await until(api, "/a", "/a", "/a", "/a")
        await asyncio.sleep(0)
        assert outbox.unsent == 0
    assert [each.message for each in caplog.records] == ["not permitted, tried again later", "permitted now"]


async def test_what_is_not_permitted_keeps_nobody_waiting_and_counts_as_unsent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FIRST_PERMISSION_SECONDS", 600.0)
    outbox, api = Outbox(), FakeApi({f"/{subject}": [403] for subject in "abc"})
    for subject in "abcd":
        outbox.put(subject, asked(f"/{subject}"))
    async with running(outbox, api):
        await until(api, "/a", "/b", "/c", "/d")
        assert outbox.unsent == 3
        outbox.put("e", asked("/e"))
        await until(api, "/a", "/b", "/c", "/d", "/e")


async def test_a_newer_word_takes_the_place_of_one_that_was_not_permitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PERMISSION_SECONDS", 600.0)
    outbox, api = Outbox(), FakeApi({"/a": [403]})
    outbox.put("a", asked("/a", "1"))
    async with running(outbox, api):
        await until(api, "/a?1")
        outbox.put("a", asked("/a", "2"))
        await until(api, "/a?1", "/a?2")
        await asyncio.sleep(0)
        assert outbox.unsent == 0


async def test_what_comes_at_the_very_moment_of_another_try_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PERMISSION_SECONDS", 0.1)
    outbox, api = Outbox(chance=lambda: 1.0), FakeApi({"/a": [403]})
    outbox.put("a", asked("/a"))
    async with running(outbox, api):
        await until(api, "/a")
        loop = asyncio.get_running_loop()
        loop.call_at(outbox._again_at + 0.001, outbox.put, "b", asked("/b"))
        while loop.time() < outbox._again_at + 0.01:
            pass  # both timers are due when the loop looks again
        await until(api, "/a", "/a", "/b")


async def test_of_what_is_never_permitted_only_the_newest_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PERMISSION_SECONDS", 600.0)
    monkeypatch.setattr(module, "MOST_NOT_PERMITTED", 2)
    outbox, api = Outbox(), FakeApi({f"/{number}": [403] for number in range(4)})
    for number in range(4):
        outbox.put(f"event {number}", asked(f"/{number}"))
    async with running(outbox, api):
        await until(api, *(f"/{number}" for number in range(4)))
        assert outbox.unsent == 2
