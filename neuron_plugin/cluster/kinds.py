"""Where each kind lives in the API, and how its answers are read.

Decoders are built once per kind. Whatever comes in, the only error that goes out is ``DecodeError``: a garbled answer
is one more trouble of the cluster, never a crash.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Generic, Protocol, TypeVar

import msgspec

from neuron_plugin.cluster.api import UNREADABLE, DecodeError
from neuron_plugin.cluster.records import Lease, Node, Pod

_MAX_QUOTED = 120
_MOST_DIGITS = 20  # of a 64-bit number

INITIAL_EVENTS_END = "k8s.io/initial-events-end"
"""Annotation of the bookmark behind the last initial event of a WatchList (KEP-3157)."""


class Record(Protocol):
    """What the reflector needs of any record."""

    @property
    def uid(self) -> str:
        """Unique for ever."""

    @property
    def resource_version(self) -> str:
        """Decimal."""


R = TypeVar("R", bound=Record)


@dataclass(frozen=True, slots=True)
class Page(Generic[R]):
    """One page of a list. ``version`` is the same on all of them, ``continuation`` empty on the last."""

    records: tuple[R, ...]
    version: int
    continuation: str


class WatchEvent(msgspec.Struct, frozen=True, gc=False):
    """One line of a watch: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR, and the object still undecoded."""

    type: str
    object: msgspec.Raw


@dataclass(frozen=True, slots=True)
class Bookmark:
    """The server's word that nothing of interest happened up to ``version``.

    ``initial_end`` closes a WatchList's first part.
    """

    version: int
    initial_end: bool


class _ListMeta(
    msgspec.Struct, frozen=True, rename={"resource_version": "resourceVersion", "continuation": "continue"}
):
    resource_version: str = ""
    continuation: str = ""


class _WirePage(msgspec.Struct, Generic[R], frozen=True):
    metadata: _ListMeta
    items: tuple[R, ...] | None = None


@dataclass(frozen=True)
class Kind(Generic[R]):
    """One kind of object: the API group's path, its plural name, and the record it is read into."""

    group: str
    plural: str
    record: type[R]

    def collection(self, namespace: str = "") -> str:
        """The path of all objects, or of those in one namespace."""
        return f"{self.group}/namespaces/{namespace}/{self.plural}" if namespace else f"{self.group}/{self.plural}"

    def item(self, name: str, namespace: str = "") -> str:
        """The path of one object; no namespace for cluster-wide kinds."""
        return f"{self.collection(namespace)}/{name}"

    def decode(self, data: bytes | msgspec.Raw) -> R:
        """Read one object.

        Raises:
            DecodeError: it is not one.
        """
        try:
            return self._record_decoder.decode(data)
        except UNREADABLE as error:
            raise _unreadable(self.plural, bytes(data), error) from error

    def decode_page(self, data: bytes) -> Page[R]:
        """Read one page of a list.

        Raises:
            DecodeError: it is not one, or one of its objects is not of this kind.
        """
        try:
            page = self._page_decoder.decode(data)
        except UNREADABLE as error:
            raise _unreadable(f"a list of {self.plural}", data, error) from error
        return Page(page.items or (), parse_version(page.metadata.resource_version), page.metadata.continuation)

    @cached_property
    def _record_decoder(self) -> msgspec.json.Decoder[R]:
        return msgspec.json.Decoder(self.record)

    @cached_property
    def _page_decoder(self) -> msgspec.json.Decoder[_WirePage[R]]:
        page = _WirePage[self.record]  # type: ignore[name-defined]  # the record is known at run time only, msgspec reads it there
        return msgspec.json.Decoder(page)


class _BookmarkObject(msgspec.Struct, frozen=True):
    metadata: _BookmarkMetadata


class _BookmarkMetadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str
    annotations: dict[str, str] | None = None


_event_decoder = msgspec.json.Decoder(WatchEvent)
_bookmark_decoder = msgspec.json.Decoder(_BookmarkObject)


def decode_event(line: bytes) -> WatchEvent:
    """Read one line of a watch, leaving its object for later.

    Raises:
        DecodeError: it is no watch event.
    """
    try:
        return _event_decoder.decode(line)
    except UNREADABLE as error:
        raise _unreadable("a watch event", line, error) from error


def decode_bookmark(data: bytes | msgspec.Raw) -> Bookmark:
    """Read the object of a BOOKMARK event.

    Raises:
        DecodeError: it has no version.
    """
    try:
        metadata = _bookmark_decoder.decode(data).metadata
    except UNREADABLE as error:
        raise _unreadable("a bookmark", bytes(data), error) from error
    return Bookmark(
        parse_version(metadata.resource_version), (metadata.annotations or {}).get(INITIAL_EVENTS_END) == "true"
    )


def parse_version(text: str) -> int:
    """Read a resourceVersion as the number it is.

    Servers count writes, and from Kubernetes 1.35 the order is part of the contract (KEP-5504), so "newer" can be told.

    Raises:
        DecodeError: it is not a decimal number.
    """
    if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS:
        return int(text)
    raise DecodeError(
        f"resourceVersion reads {text[:_MAX_QUOTED]!r}, expected a decimal number: "
        "is this a Kubernetes API server backed by etcd?"
    )


def _unreadable(what: str, data: bytes, error: Exception) -> DecodeError:
    start = data[:_MAX_QUOTED].decode(errors="replace")
    return DecodeError(f"{what} cannot be read: {error}; it starts with {start!r} ({len(data)} bytes)")


PODS = Kind("/api/v1", "pods", Pod)
NODES = Kind("/api/v1", "nodes", Node)
LEASES = Kind("/apis/coordination.k8s.io/v1", "leases", Lease)
