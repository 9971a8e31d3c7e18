"""A pod's request as a text that people write: ``neuron=4``."""

from __future__ import annotations

from neuron_plugin.allocation.requests import ContainerKind, ContainerRequest, PodRequest, parse_count
from neuron_plugin.allocation.resources import Resource

_RESOURCES = {resource.short_name: resource for resource in Resource}


class DemandError(ValueError):
    """A shape, mix or trace that cannot be used; the text names it and the expected form."""


def parse_shape(text: str) -> PodRequest:
    """A pod of one container from RESOURCE=COUNT, such as ``neuron=4`` or ``neuroncore=2``.

    Raises:
        DemandError: the text has another form.
    """
    name, _, count = text.strip().partition("=")
    try:
        resource, number = _RESOURCES[name.removeprefix("aws.amazon.com/")], parse_count(count)
    except (KeyError, ValueError):
        number = 0
    if not number:
        raise DemandError(f"{text[:60]!r} is no shape: expected such as neuron=4 or neuroncore=2")
    return (ContainerRequest("main", ContainerKind.APP, resource, number),)


def shape_text(request: PodRequest) -> str:
    """A request in the form that ``parse_shape`` reads; several containers joined by "+"."""
    return "+".join(f"{container.resource.short_name}={container.count}" for container in request)
