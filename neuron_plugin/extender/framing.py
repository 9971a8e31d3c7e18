"""What Kubernetes puts around objects: lists, watch events, bookmarks, Status and discovery, as JSON.

Only values come in, so all of it may run in a thread: thousands of objects take some tenths of a second.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from neuron_plugin.extender.change_log import Change, Record
from neuron_plugin.extender.nodes import NodeRecord
from neuron_plugin.extender.objects import API_VERSION, Json, neuron_node, neuron_pod
from neuron_plugin.extender.selectors import Selector

GONE = 410

encode = msgspec.json.Encoder().encode

Versioned = tuple[Record, int]
"""A record, and the version of its last change."""


@dataclass(frozen=True, slots=True)
class Collection:
    """One of the two resources: its names, and the records that it shows."""

    plural: str
    kind: str
    record: type[Record]


def listed(collection: Collection, found: Iterable[Versioned], version: int) -> bytes:
    """A list, as of a version."""
    content: Json = {
        "apiVersion": API_VERSION,
        "kind": f"{collection.kind}List",
        "metadata": {"resourceVersion": str(version)},
        "items": [_object(record, own) for record, own in found],
    }
    return encode(content)


def added(found: Iterable[Versioned]) -> bytes:
    """The events that a watch without a version begins with."""
    return b"".join(_event("ADDED", _object(record, version)) for record, version in found)


def told(changes: Iterable[Change], collection: Collection, selector: Selector) -> bytes:
    """The events of these changes for a watcher who sees only what is selected."""
    return b"".join(
        _change(change, selector) for change in changes if isinstance(change.after or change.before, collection.record)
    )


def bookmark(collection: Collection, version: int) -> bytes:
    """Nothing that is selected happened up to this version."""
    metadata = {"resourceVersion": str(version)}
    return _event("BOOKMARK", {"apiVersion": API_VERSION, "kind": collection.kind, "metadata": metadata})


def expired_event() -> bytes:
    """The end of a watch whose client has fallen behind."""
    return _event("ERROR", expired())


def expired() -> Json:
    """The version asked for is not known: a Kubernetes client lists again."""
    return status(GONE, "Expired", "the resourceVersion is no longer known here: list again")


def status(code: int, reason: str, message: str) -> Json:
    """A failure, as a Kubernetes Status."""
    return {
        "apiVersion": "v1",
        "kind": "Status",
        "metadata": {},
        "status": "Failure",
        "reason": reason,
        "message": message,
        "code": code,
    }


def discovery(collections: Iterable[Collection]) -> Json:
    """The APIResourceList."""
    resources = [
        {
            "name": each.plural,
            "singularName": each.kind.lower(),
            "namespaced": False,
            "kind": each.kind,
            "verbs": ["list", "watch"],
        }
        for each in collections
    ]
    return {"apiVersion": "v1", "kind": "APIResourceList", "groupVersion": API_VERSION, "resources": resources}


def _object(record: Record, version: int) -> Json:
    return neuron_node(record, version) if isinstance(record, NodeRecord) else neuron_pod(record, version)


def _change(change: Change, selector: Selector) -> bytes:
    was, is_now = selector.matches(change.before), selector.matches(change.after)
    shown = change.after if is_now else change.before
    if shown is None or not (was or is_now):
        return b""
    kind = {(False, True): "ADDED", (True, True): "MODIFIED", (True, False): "DELETED"}[was, is_now]
    return _event(kind, _object(shown, change.version))


def _event(kind: str, content: Json) -> bytes:
    return encode({"type": kind, "object": content}) + b"\n"
