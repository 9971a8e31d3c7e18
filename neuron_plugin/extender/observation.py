"""From the API server's records to what the extender keeps.

Of a cluster's pods only the live ones that ask for Neuron are kept, and of those only what decides: everything else is
dropped as it comes in, which keeps memory proportional to Neuron pods, not to pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TypeAlias

from neuron_plugin.allocation import (
    INVENTORY_KEY,
    ContainerKind,
    ContainerSpec,
    PodReference,
    PodRequest,
    PodUid,
    RequestError,
    Resource,
    pod_request,
)
from neuron_plugin.cluster import records
from neuron_plugin.extender.claims import PodRecord, Unreadable, decision_of
from neuron_plugin.extender.hardware import NodeFacts, instance_type_of

_NAMES = tuple(resource.value for resource in Resource)
_MOST_REQUESTS = 4_096

_Quantities: TypeAlias = tuple[tuple[str, str], ...]
_Key: TypeAlias = tuple[str, ContainerKind, _Quantities, _Quantities]


def pod_record(pod: records.Pod) -> PodRecord:
    """What matters of a pod; its request is empty when it asks for no Neuron."""
    request = request_of(pod)
    key = PodReference(PodUid(pod.uid), pod.namespace, pod.name)
    return PodRecord(
        pod=key,
        request=request,
        node=pod.node_name,
        decision=decision_of(key, pod.annotations, request) if request else None,
        priority=pod.priority,
        terminating=pod.terminating,
    )


def asks_for_neuron(pod: records.Pod) -> bool:
    """Whether the extender has to remember this pod while it lives."""
    return any(
        name in container.limits or name in container.requests for container, _ in pod.containers for name in _NAMES
    )


def request_of(pod: records.Pod) -> PodRequest | Unreadable:
    """What a pod asks for; equal requests are one object."""
    return _request(tuple(_key(container, kind) for container, kind in pod.containers))


@lru_cache(maxsize=_MOST_REQUESTS)
def _request(key: tuple[_Key, ...]) -> PodRequest | Unreadable:
    """Exact quantities cost tens of microseconds each; the pods of a cluster ask for few different things."""
    try:
        return pod_request(
            ContainerSpec(name, kind, dict(limits), dict(requests)) for name, kind, limits, requests in key
        )
    except RequestError as error:
        return Unreadable(str(error))


def node_facts(node: records.Node) -> NodeFacts:
    """What matters of a node."""
    return NodeFacts(
        name=node.name,
        uid=node.uid,
        inventory=node.annotations.get(INVENTORY_KEY),
        instance_type=instance_type_of(node.labels),
        capacity={name: node.capacity[name] for name in _NAMES if name in node.capacity},
        allocatable={name: node.allocatable[name] for name in _NAMES if name in node.allocatable},
    )


def _key(container: records.Container, kind: ContainerKind) -> _Key:
    return container.name, kind, _neuron(container.limits), _neuron(container.requests)


def _neuron(quantities: Mapping[str, str]) -> _Quantities:
    return tuple((name, quantities[name]) for name in _NAMES if name in quantities)
