from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_plugin.cluster.reflector import Store

Changes = list[tuple[str, str | None, str | None]]


def store_with(entries: dict[str, str], version: int) -> tuple[Store[str], Changes]:
    store: Store[str] = Store()
    changes: Changes = []
    store.subscribe(lambda uid, old, new: changes.append((uid, old, new)))
    store.replace(entries, version, version_at_start=0)
    changes.clear()
    return store, changes


def test_a_list_is_put_in_place_in_one_step() -> None:
    store, _ = store_with({"u1": "a", "u2": "b"}, 9)
    seen_by_listener: list[dict[str, str]] = []
    store.subscribe(lambda *_: seen_by_listener.append(dict(store.values)))
    store.replace({"u2": "b", "u3": "c"}, 12, version_at_start=9)
    assert seen_by_listener == [{"u2": "b", "u3": "c"}] * 2


def test_t31_one_uids_end_leaves_another_of_the_same_name() -> None:
    store, _ = store_with({"first": "web-0"}, 1)
    store.put("second", 3, "web-0")
    store.put("first", 4, None)
    assert dict(store.values) == {"second": "web-0"}


def test_the_end_of_what_was_never_known_is_no_news() -> None:
    store, changes = store_with({}, 1)
    store.put("unknown", 2, None)
    assert changes == []


def test_a_history_that_was_rewritten_is_believed() -> None:
    """A restored etcd counts from yesterday: a quorum list is below what was known when it was asked for."""
    store, _ = store_with({"u": "a"}, 100)
    assert store.replace({"v": "b"}, 50, version_at_start=100) is True
    store.put("w", 51, "c")
    assert dict(store.values) == {"v": "b", "w": "c"}


def test_of_two_lists_of_a_rewritten_history_the_newer_one_stays() -> None:
    store, _ = store_with({"u": "a"}, 100)
    assert store.replace({"v": "c"}, 52, version_at_start=100) is True
    assert store.replace({"v": "b"}, 50, version_at_start=100) is False
    assert dict(store.values) == {"v": "c"}


def test_a_bookmark_never_moves_the_version_back() -> None:
    store, _ = store_with({}, 5)
    store.advance(3)
    assert store.version == 5


def test_values_cannot_be_written_from_outside() -> None:
    store, _ = store_with({"u": "a"}, 1)
    assert not hasattr(store.values, "__setitem__")


# Against an oracle: a server's history, a watch that lags behind it, and lists taken at any moment and delivered late.


@dataclass
class History:
    """What happened at a server: the oracle."""

    version: int = 1
    objects: dict[str, str] = field(default_factory=dict)
    events: list[tuple[int, str, str | None]] = field(default_factory=list)

    def write(self, uid: str) -> None:
        self.version += 1
        self.objects[uid] = f"{uid}@{self.version}"
        self.events.append((self.version, uid, self.objects[uid]))

    def delete(self, uid: str) -> None:
        if uid in self.objects:
            self.version += 1
            del self.objects[uid]
            self.events.append((self.version, uid, None))


Step = st.one_of(
    st.tuples(st.just("write"), st.sampled_from("abcd")),
    st.tuples(st.just("delete"), st.sampled_from("abcd")),
    st.tuples(st.sampled_from(["watch", "bookmark", "ask", "answer the first", "answer the last"]), st.just("")),
)


class Mirror:
    """Rebuilds the store from its changes, and checks that no change goes back."""

    def __init__(self, store: Store[str]) -> None:
        self.values: dict[str, str] = {}
        self._newest: dict[str, int] = {}
        store.subscribe(self._on_change)

    def _on_change(self, uid: str, old: str | None, new: str | None) -> None:
        assert self.values.get(uid) == old
        if new is None:
            del self.values[uid]
            return
        version = int(new.partition("@")[2])
        assert version > self._newest.get(uid, 0)
        self._newest[uid] = version
        self.values[uid] = new


class Follower:
    """Takes steps on a store: a watch that lags, lists that are asked for now and answered later."""

    def __init__(self, server: History, store: Store[str]) -> None:
        self._server = server
        self._store = store
        self._sent = 0
        self._asked: list[tuple[dict[str, str], int, int]] = []

    @property
    def behind(self) -> bool:
        return self._sent < len(self._server.events)

    def step(self, kind: str) -> None:
        if kind == "watch" and self.behind:
            self.watch()
        elif kind == "bookmark" and not self.behind:
            self._store.advance(self._server.version)
        elif kind == "ask":
            self._asked.append((dict(self._server.objects), self._server.version, self._store.version))
        elif kind.startswith("answer") and self._asked:
            entries, version, at_start = self._asked.pop(-1 if kind.endswith("last") else 0)
            self._store.replace(entries, version, version_at_start=at_start)

    def watch(self) -> None:
        version, uid, value = self._server.events[self._sent]
        self._sent += 1
        self._store.put(uid, version, value)


@settings(max_examples=400)
@given(steps=st.lists(Step, max_size=60))
def test_t32_any_mixture_of_watch_and_lists_ends_in_the_servers_state(steps: list[tuple[str, str]]) -> None:
    server, store = History(), Store[str]()
    mirror, follower = Mirror(store), Follower(server, store)
    store.replace({}, 1, version_at_start=0)
    for step, uid in steps:
        if step == "write":
            server.write(uid)
        elif step == "delete":
            server.delete(uid)
        else:
            follower.step(step)
    while follower.behind:
        follower.watch()
    assert dict(store.values) == server.objects == mirror.values
