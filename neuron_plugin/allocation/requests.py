"""A pod's request for Neuron.

Read as the kubelet reads it: limits, or requests where there is no limit. Init containers come first, in spec order
including sidecars; containers without Neuron are left out. Beside its one resource a container may ask for amounts of
its devices, such as memory: extended resources that no kubelet counts.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

from neuron_plugin.allocation.claims import Attributes
from neuron_plugin.allocation.constraints import Constraints
from neuron_plugin.allocation.keys import PREFIX
from neuron_plugin.allocation.rejection import Rejection
from neuron_plugin.allocation.resources import Resource

MOST = 2**63 - 1
"""Kubernetes quantities are 64-bit."""

_QUANTITY = re.compile(
    r"([+-]?[0-9]+(?:\.[0-9]*)?|[+-]?\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,3})?", re.ASCII
)
_SUFFIXES = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1)}
_SUFFIXES |= {suffix: Fraction(1000**power) for power, suffix in enumerate("kMGTPE", 1)}
_SUFFIXES |= {f"{suffix}i": Fraction(1024**power) for power, suffix in enumerate("KMGTPE", 1)}
_LONGEST_QUANTITY = 64
"""Characters; 2^63-1 has 19."""
MOST_AMOUNTS = 8
"""Amounts that one container may ask for."""

Amounts = tuple[tuple[str, int], ...]
"""Amounts by name without the prefix, such as ``memory``, sorted by name."""


class RequestError(ValueError):
    """A request for Neuron that cannot be served; the text says what to change."""


class ContainerKind(enum.Enum):
    """When a container runs. It decides which containers' silicon may be re-used."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """The relevant part of a container's spec; quantities are texts of the API."""

    name: str
    kind: ContainerKind = ContainerKind.APP
    limits: Mapping[str, str] = field(default_factory=dict)
    requests: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """One container's demand: ``count`` of one resource.

    ``amounts`` are shared evenly by the container's devices. ``constraints`` are of the whole pod and equal for its
    containers; a ``Rejection`` if an annotation cannot be read. ``attributes`` are required of each device by the
    container's claim.
    """

    name: str
    kind: ContainerKind
    resource: Resource
    count: int
    amounts: Amounts = ()
    constraints: Constraints | Rejection | None = None
    attributes: Attributes = ()


PodRequest = tuple[ContainerRequest, ...]
"""The requesting containers of a pod in spec order, init containers first; empty if it asks for nothing."""


def pod_request(containers: Iterable[ContainerSpec]) -> PodRequest:
    """The request of a pod with these containers: init containers first, in spec order.

    Raises:
        RequestError: a quantity is no whole number from 0 to 2^63-1, or a container asks for two Neuron resources:
            the kubelet merges the two answers in random order, so their environments would collide
            (pkg/kubelet/cm/devicemanager/pod_devices.go). Or it asks for an amount and for no Neuron resource.
    """
    requests = []
    for container in containers:
        counts = {resource: _count(container, resource.value) for resource in Resource}
        asked = [(resource, count) for resource, count in counts.items() if count]
        named = sorted(name for name in {*container.limits, *container.requests} if name.startswith(PREFIX))
        asks = f"container {container.name} asks for"
        if len(named) > MOST_AMOUNTS:
            raise RequestError(f"{asks} {len(named)} amounts, expected at most {MOST_AMOUNTS}")
        amounts = tuple((name.removeprefix(PREFIX), count) for name in named if (count := _count(container, name)))
        if not asked and amounts:
            what = f"{PREFIX}{amounts[0][0]} and for no Neuron device or core"
            raise RequestError(f"{asks} {what}: ask for {Resource.NEURONCORE.value} beside it")
        if len(asked) > 1:
            names = " and ".join(resource.value for resource, _ in asked)
            raise RequestError(f"{asks} {names}: ask for one Neuron resource per container")
        if asked:
            requests.append(ContainerRequest(container.name, container.kind, *asked[0], amounts))
    return tuple(requests)


@lru_cache(4096)
def parse_quantity(text: str) -> Fraction:
    """A Kubernetes quantity: ``4``, ``500m``, ``1.5Gi``, ``2e3``.

    Raises:
        ValueError: not a quantity.
    """
    match = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST_QUANTITY else None
    if match is None:
        raise ValueError(f"{text[:_LONGEST_QUANTITY]!r} is not a quantity")
    number, suffix = Fraction(match[1]), match[2] or ""
    return number * (_SUFFIXES[suffix] if suffix in _SUFFIXES else Fraction(10) ** int(suffix[1:]))


def parse_count(text: str) -> int:
    """A Kubernetes quantity that must be a whole number: ``4``, ``1k``, ``2e0``.

    Raises:
        ValueError: negative, fractional, over 2^63-1 or not a quantity.
    """
    value = parse_quantity(text)
    if value.denominator != 1 or not 0 <= value <= MOST:
        raise ValueError(f"{text!r} is not a whole number from 0 to 2^63-1")
    return int(value)


def _count(container: ContainerSpec, resource: str) -> int:
    text = container.limits.get(resource, container.requests.get(resource, "0"))
    try:
        return parse_count(text)
    except ValueError as error:
        raise RequestError(f"container {container.name} asks for {resource}: {error}") from None
