"""The table of products agrees with the catalogue of instance types, which is kept apart from it."""

from __future__ import annotations

import pytest

from neuron_plugin.hardware.generations import GENERATIONS
from neuron_plugin.topology import InstanceType, catalogue


@pytest.mark.parametrize("instance", catalogue().values(), ids=lambda instance: instance.name)
def test_every_shipped_type_has_devices_of_a_known_product(instance: InstanceType) -> None:
    generation = GENERATIONS[instance.device_name]
    assert instance.cores_per_device == generation.cores_per_device
    assert instance.logical_core_size == generation.default_logical_core_size


def test_ndv3_is_two_products() -> None:
    found = {name for name, generation in GENERATIONS.items() if generation.device_arch == "NDv3"}
    assert found == {"Inferentia2", "Trainium2"}


@pytest.mark.parametrize(
    ("device_name", "default", "largest"),
    [("Inferentia", 1, 1), ("Inferentia2", 1, 1), ("Trainium1", 1, 1), ("Trainium2", 2, 2), ("Trainium3", 2, 8)],
)
def test_logical_cores_exist_from_trn2_on(device_name: str, default: int, largest: int) -> None:
    generation = GENERATIONS[device_name]
    assert (generation.default_logical_core_size, generation.largest_logical_core_size) == (default, largest)
