"""The five products, as the driver names them.

A product decides what sysfs leaves out: how many logical cores a device shows by default, and which sizes are legal.
The key is ``device_name``: ``NDv3`` is two products, and the driver's ``instance_type`` is a family, not an EC2 type.
Source: Neuron driver 2.24.7 and 2.25.4, ``info/architecture/*``; SDK documentation to 2.32 for LNC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Generation:
    """One product. Cores are physical; the logical core size (LNC) is physical cores per logical core.

    ``largest_logical_core_size`` is what the runtime accepts at most, whatever divides the cores.
    """

    device_name: str
    family: str
    device_arch: str
    core_arch: str
    cores_per_device: int
    default_logical_core_size: int = 1
    largest_logical_core_size: int = 1


GENERATIONS: Mapping[str, Generation] = {
    generation.device_name: generation
    for generation in (
        Generation("Inferentia", "Inf1", "NDv1", "NCv1", 4),
        Generation("Trainium1", "Trn1", "NDv2", "NCv2", 2),
        Generation("Inferentia2", "Inf2", "NDv3", "NCv2", 2),
        Generation("Trainium2", "Trn2", "NDv3", "NCv3", 8, 2, 2),
        Generation("Trainium3", "Trn3", "NDv4", "NCv4", 8, 2, 8),
    )
}
"""By ``device_name``. A name that is not here belongs to hardware newer than this package."""
