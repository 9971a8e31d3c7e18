from __future__ import annotations

import json
from typing import Any

import pytest

from neuron_plugin.simulation import api_server_store
from neuron_plugin.simulation.api_server_kinds import Refusal
from neuron_plugin.simulation.api_server_store import Collection, Inbox, ObjectChange, Versions, event_line

Json = dict[str, Any]


def thing(name: str, **rest: Any) -> Json:
    return {"metadata": {"name": name}, **rest}


@pytest.fixture
async def collection() -> Collection:
    return Collection(Versions())


def everything(_: Json) -> bool:
    return True


def red(candidate: Json) -> bool:
    return candidate.get("colour") == "red"


async def test_what_is_stored_carries_its_version_as_value_and_as_bytes(collection: Collection) -> None:
    stored = collection.put(("ns", "a"), thing("a"))
    assert stored.value["metadata"] == {"name": "a", "resourceVersion": "2"}
    assert json.loads(stored.encoded) == stored.value
    assert collection.get(("ns", "a")) is stored


async def test_a_write_leaves_what_readers_hold_alone(collection: Collection) -> None:
    first = collection.put(("", "a"), thing("a", colour="red"))
    collection.put(("", "a"), first.value | {"colour": "blue"})
    assert first.value["colour"] == "red"


async def test_a_write_that_changes_nothing_wakes_no_watch(collection: Collection) -> None:
    stored = collection.put(("", "a"), thing("a"))
    inbox = collection.follow(stored.version)
    assert collection.put(("", "a"), dict(stored.value)) is stored
    assert inbox.empty()


async def test_a_snapshot_does_not_change(collection: Collection) -> None:
    collection.put(("", "b"), thing("b"))
    taken = collection.snapshot()
    collection.put(("", "a"), thing("a"))
    assert [stored.value["metadata"]["name"] for stored in taken.objects] == ["b"]
    assert collection.snapshot_at(taken.version) is taken


async def test_old_snapshots_are_forgotten(collection: Collection) -> None:
    first = collection.snapshot()
    for number in range(10):
        collection.put(("", f"n{number}"), thing(f"n{number}"))
        collection.snapshot()
    with pytest.raises(Refusal) as raised:
        collection.snapshot_at(first.version)
    assert raised.value.code == 410


def changes(inbox: Inbox) -> list[ObjectChange]:
    found = [inbox.get_nowait() for _ in range(inbox.qsize())]
    return [each for each in found if isinstance(each, ObjectChange)]


async def test_a_follower_gets_each_change_once(collection: Collection) -> None:
    inbox = collection.follow(1)
    collection.put(("", "a"), thing("a"))
    collection.remove(("", "a"))
    assert [(change.version, change.gone) for change in changes(inbox)] == [(2, False), (3, True)]
    assert inbox.empty()


async def test_a_follower_can_begin_anywhere_in_the_history(collection: Collection) -> None:
    for name in "abc":
        collection.put(("", name), thing(name))
    assert [change.version for change in changes(collection.follow(3))] == [4]


async def test_after_a_compaction_nothing_begins_before_it(collection: Collection) -> None:
    following = collection.follow(1)
    collection.put(("", "a"), thing("a"))
    collection.compact()
    with pytest.raises(Refusal, match=r"too old resource version: 1 \(2\)"):
        collection.follow(1)
    collection.put(("", "b"), thing("b"))
    assert [change.version for change in changes(following)] == [2, 3], "who follows goes on"


async def test_the_history_does_not_grow_for_ever(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_server_store, "_KEPT_CHANGES", 3)
    for name in "abcd":
        collection.put(("", name), thing(name))
    with pytest.raises(Refusal, match="too old resource version"):
        collection.follow(3)
    assert changes(collection.follow(5)) == []


async def test_a_change_is_shown_as_the_selection_sees_it(collection: Collection) -> None:
    inbox = collection.follow(1)
    for colour in ("blue", "red", "pink", "red"):
        collection.put(("", "a"), thing("a", colour=colour))
    collection.put(("", "a"), thing("a", colour="red", size=2))
    collection.remove(("", "a"))
    seen = changes(inbox)
    types = [line and json.loads(line)["type"] for line in (change.line(red) for change in seen)]
    assert types == [None, "ADDED", "DELETED", "ADDED", "MODIFIED", "DELETED"]
    types = [json.loads(line)["type"] for line in (change.line(everything) for change in seen) if line]
    assert types == ["ADDED", "MODIFIED", "MODIFIED", "MODIFIED", "MODIFIED", "DELETED"]


def test_an_event_is_framed_as_one_line() -> None:
    assert event_line("ADDED", b'{"a":1}') == b'{"type":"ADDED","object":{"a":1}}\n'
