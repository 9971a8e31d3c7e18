"""Namespaces, disruption budgets and storage in the state: rules need them besides pods and nodes.

Namespaces and budgets are followed from the start. Storage is followed once a pod that waits has volumes: most pods
with Neuron have none, and a large cluster has many claims. Until the first lists are in, such a pod waits. Without the
right to read, it does not wait: storage cannot be judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from neuron_plugin.cluster import ApiResource, ApiServer, Reflector
from neuron_plugin.cluster.objects import ApiObject
from neuron_plugin.cluster.reflector import Observer
from neuron_plugin.cluster.storage import (
    BUDGETS,
    CLAIMS,
    CSI_DRIVERS,
    CSI_NODES,
    NAMESPACES,
    PERSISTENT_VOLUMES,
    STORAGE_CLASSES,
    WireBudget,
    WireCsiDriver,
    WireNamespace,
)
from neuron_plugin.placement.state import ClusterState

NOT_READ = "its volumes are being looked up"
PATIENCE_SECONDS = 10.0
"""How long the first lists may take before storage counts as not judgeable."""

Put = Callable[[ClusterState, str, Any, Any], None]
"""Brings one object into the state: its UID, and the object before and now, None if it did not or does not exist."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of objects: how to read it, the part to keep, and how to bring it into the state."""

    resource: ApiResource[Any]
    keep: Callable[[Any], object]
    put: Put


def _put_namespace(state: ClusterState, _: str, before: WireNamespace | None, now: WireNamespace | None) -> None:
    if known := now or before:
        state.put_namespace(known.name, dict(known.labels) if now else None, movable=bool(now and now.movable))


def _put_budget(state: ClusterState, uid: str, _: WireBudget | None, now: WireBudget | None) -> None:
    if now:
        state.budgets[uid] = now.value
    else:
        state.budgets.pop(uid, None)
    state.needs_changed()


def _put_in(table: str, state: ClusterState, _: str, before: ApiObject | None, now: ApiObject | None) -> None:
    """Into one of the tables of ``Storage``, by name, or by namespace and name."""
    known = getattr(state.storage, table)
    for record, is_there in ((before, False), (now, True)):
        if record is None:
            continue
        key = (record.namespace, record.name) if table == "claims" else record.name
        if is_there:
            known[key] = record.value  # type: ignore[attr-defined]  # each wire record of storage has one
        else:
            known.pop(key, None)
    state.needs_changed()


def _put_driver(state: ClusterState, _: str, before: WireCsiDriver | None, now: WireCsiDriver | None) -> None:
    names = state.storage.with_capacity - ({before.name} if before else set())
    if now and now.spec.storage_capacity:
        names |= {now.name}
    state.storage = replace(state.storage, with_capacity=frozenset(names))
    state.needs_changed()


def _whole(record: ApiObject) -> ApiObject:
    return record


ALWAYS: Mapping[str, Kind] = {
    "namespaces": Kind(NAMESPACES, _whole, _put_namespace),
    "poddisruptionbudgets": Kind(BUDGETS, _whole, _put_budget),
}
"""The kinds that are followed from the start."""
STORAGE: Mapping[str, Kind] = {
    "persistentvolumeclaims": Kind(CLAIMS, _whole, partial(_put_in, "claims")),
    "persistentvolumes": Kind(PERSISTENT_VOLUMES, _whole, partial(_put_in, "volumes")),
    "storageclasses": Kind(STORAGE_CLASSES, _whole, partial(_put_in, "classes")),
    "csinodes": Kind(CSI_NODES, _whole, partial(_put_in, "limits")),
    "csidrivers": Kind(CSI_DRIVERS, _whole, _put_driver),
}
"""The kinds that are followed once a waiting pod has volumes."""


def reflectors(
    api: ApiServer, state: ClusterState, kinds: Mapping[str, Kind], observer: Observer | None
) -> dict[str, Reflector[Any, Any]]:
    """One reflector for each kind, which brings its objects into the state."""
    made: dict[str, Reflector[Any, Any]] = {}
    for name, kind in kinds.items():
        made[name] = Reflector(api, kind.resource, kind.keep, observer=observer)
        made[name].subscribe(partial(kind.put, state))
    return made


def listed(followed: Iterable[Reflector[Any, Any]]) -> bool:
    """Whether the first lists of all are in."""
    return all(one.synced.is_set() for one in followed)
