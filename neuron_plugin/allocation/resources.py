"""The resource names Kubernetes counts Neuron hardware under, and their ids.

``neuron`` and ``neurondevice`` are two names of one unit, the device; ``neuroncore`` counts logical cores. An id is
the physical one in decimal, so whoever reads the kubelet's records reads the truth about the silicon.
"""

from __future__ import annotations

import enum

from neuron_plugin.topology import CoreMask, Geometry, Unit, cores_in


class Resource(enum.StrEnum):
    """Extended resource names, as pods request them."""

    NEURON = "aws.amazon.com/neuron"
    NEURONDEVICE = "aws.amazon.com/neurondevice"
    NEURONCORE = "aws.amazon.com/neuroncore"

    @property
    def unit(self) -> Unit:
        """What one of this resource is."""
        return Unit.CORE if self is Resource.NEURONCORE else Unit.DEVICE

    @property
    def short_name(self) -> str:
        """The name without its domain, for socket names and messages."""
        return self.value.rpartition("/")[2]


def ids_of(geometry: Geometry, unit: Unit, mask: int) -> tuple[int, ...]:
    """The ids of a mask in a unit, ascending; a device counts when all of its cores are in the mask."""
    return geometry.whole_devices(mask) if unit is Unit.DEVICE else cores_in(mask)


def mask_of(geometry: Geometry, unit: Unit, ids: tuple[int, ...]) -> CoreMask:
    """The cores behind ids of a unit; ids outside the geometry add nothing."""
    return geometry.devices_mask(ids) if unit is Unit.DEVICE else geometry.cores_mask(ids)
