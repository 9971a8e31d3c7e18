"""What is known of one kind of object, keyed by UID, and never moved backwards.

News comes from two sides: the watch, and consistent lists taken beside it when an answer cannot wait for the watch. The
two overlap: a list may hold a pod whose end the watch has told already, and the watch may still tell of a pod that a
list has shown to be gone. Counting settles both. A list is true for *all* objects at its version, so what a watch tells
up to that version is old, and a list older than what the watch has told is no news.

Keys are UIDs because names come back: a StatefulSet's next pod has the name of the last. No I/O here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

V = TypeVar("V")

OnChange = Callable[[str, "V | None", "V | None"], None]
"""Called with UID, old value, new value; None is "not there". Must not block: it runs between two events."""

Entries = dict[str, tuple[int, V]]
"""UID to the version and the value of a record."""


class Store(Generic[V]):
    """The values that were kept, and up to which version they are the truth."""

    def __init__(self) -> None:
        self._values: dict[str, V] = {}
        self._versions: dict[str, int] = {}
        self._version = 0
        self._listed_version = 0
        self._listeners: list[OnChange[V]] = []

    @property
    def version(self) -> int:
        """The newest version heard of; 0 before the first list."""
        return self._version

    @property
    def values(self) -> Mapping[str, V]:
        """UID to value, as of the last event. Take a copy to keep it across an ``await``."""
        return MappingProxyType(self._values)

    def subscribe(self, on_change: OnChange[V]) -> None:
        """Have every further change told, in order. What is already there is not told again."""
        self._listeners.append(on_change)

    def put(self, uid: str, version: int, value: V | None) -> None:
        """Take an ADDED or MODIFIED event; a value None is one that nobody wants kept."""
        if value is None:
            self.remove(uid, version)
        elif self._is_news(version):
            old = self._values.get(uid)
            self._values[uid] = value
            self._versions[uid] = version
            self._tell(uid, old, value)

    def remove(self, uid: str, version: int) -> None:
        """Take a DELETED event: this UID, and no other object of the same name, is gone."""
        if self._is_news(version):
            old = self._values.pop(uid, None)
            self._versions.pop(uid, None)
            if old is not None:
                self._tell(uid, old, None)

    def advance(self, version: int) -> None:
        """Take a bookmark: nothing happened up to this version."""
        self._version = max(self._version, version)

    def replace(self, entries: Entries[V], version: int, *, version_at_start: int) -> bool:
        """Take a consistent list, in one step; True if it was news.

        ``version_at_start`` is the store's version when the list was asked for. A list below the present version was
        overtaken, by the watch or another list; unless nothing was told since: then the server's history was rewritten
        (a restored etcd), and the list is the truth.
        """
        if version < self._version != version_at_start:
            return False
        before, versions_before = self._values, self._versions
        self._values = {uid: value for uid, (_, value) in entries.items()}
        self._versions = {uid: of_record for uid, (of_record, _) in entries.items()}
        self._version = self._listed_version = version
        for uid, old in before.items():
            if uid not in self._values:
                self._tell(uid, old, None)
        for uid, value in list(self._values.items()):
            if versions_before.get(uid) != self._versions.get(uid):
                self._tell(uid, before.get(uid), value)
        return True

    def _is_news(self, version: int) -> bool:
        """Count the version in. A watch tells each once and in order, so only a list can have told it before."""
        self._version = max(self._version, version)
        return version > self._listed_version

    def _tell(self, uid: str, old: V | None, new: V | None) -> None:
        for listener in self._listeners:
            listener(uid, old, new)
